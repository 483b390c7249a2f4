"""`kill -9` while masks are written: nothing lost, the same masks."""

import pytest

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from tests.conftest import tiny_network
from tests.helpers.killed import Killer
from tests.helpers.made_data import colour_image, save_png

KILLS = 6


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    for i in range(2):
        pixels, mask = colour_image(i)
        save_png(folder / f"examples/images/{i}.png", pixels)
        save_png(folder / f"examples/masks/{i}.png", mask)
    for i in range(12):
        save_png(folder / f"photos/{i:02d}.png", colour_image(100 + i)[0])
    save(load(tiny_network()), folder / "model")
    return folder


def work(folder, out):
    """Run in a process of its own, the one that is killed."""
    import torch

    import clearvit as cv

    torch.set_num_threads(1)
    options = {"method": "prototypes", "scale": 1, "refine": "none", "batch": 2, "page": False}
    backbone = load(f"dir:{folder}/model")
    cv.segment(backbone, folder / "photos", examples=folder / "examples", out=out, **options)


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_kills_at_random_moments_change_no_byte(job, tmp_path):
    killer = Killer(work, (job,), ["clearvit.segmentation.segment", "clearvit.backbones.saved"])
    killer.run_whole(tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert sum(name.endswith(".png") for name in expected) == 12
    killed = 0
    for trial in range(KILLS):
        out = tmp_path / f"trial-{trial}"
        killed += killer.run_killed(out, at_once=trial % 2 == 0)
        killer.run_whole(out)
        found = contents(out)
        assert sorted(found) == sorted(expected), f"trial {trial}"
        assert not [name for name in expected if found[name] != expected[name]], f"trial {trial}"
    assert killed >= KILLS // 2
