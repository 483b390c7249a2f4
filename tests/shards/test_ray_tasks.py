"""Tasks on a cluster: one GPU each where there are some, results as they come."""

import pytest

from clearvit.errors import StoreError
from clearvit.images import ImageSource
from clearvit.progress import Meter
from clearvit.shards.ray_tasks import AHEAD, finished_tasks, run_tasks
from tests.helpers.ray_clusters import started_here

pytest.importorskip("ray")


@pytest.mark.slow
def test_tasks_ask_for_a_gpu_where_the_cluster_has_some():
    def work(shared, images, extra):
        import ray

        return shared, [image.name for image in images], extra, ray.get_gpu_ids()

    parts = [[ImageSource(f"{n}.png", f"/photos/{n}.png")] for n in range(3 * AHEAD)]
    with started_here(num_cpus=1, num_gpus=1):
        meter = Meter(None, len(parts))
        found = run_tasks(work, "all", parts, list(range(len(parts))), meter)
        numbers = {number for number, _ in finished_tasks(work, "all", parts[:3], "abc")}
        with pytest.raises(StoreError, match="ZeroDivisionError: integer") as caught:
            run_tasks(lambda *_: 1 // 0, None, parts[:1], "a", meter)
    assert "\n" not in str(caught.value)
    assert numbers == {0, 1, 2}
    for number, (shared, names, extra, gpus) in enumerate(found):
        assert (shared, names, extra) == ("all", [f"{number}.png"], number)
        assert [int(gpu) for gpu in gpus] == [0]


def test_images_in_memory_are_refused():
    with pytest.raises(StoreError, match="paths"):
        next(finished_tasks(len, None, [[ImageSource("a", object())]], [0]))
