import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from clearvit.artifacts import experiments as room
from clearvit.artifacts.experiments import (
    PUBLISHED,
    ProbeSettings,
    choose_images,
    labels_of,
    patch_levels,
    run_experiments,
)
from clearvit.artifacts.neighbors import neighbor_contrast, neighbor_similarity
from clearvit.artifacts.token_probes import pixel_probe
from clearvit.backbones.load import load
from clearvit.errors import ImageError, ModelError
from clearvit.images import ImageSource, find_images
from tests.conftest import tiny_network


def photo(seed):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 255, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((48, 40), Image.BICUBIC)


def photos(count):
    return find_images([photo(seed) for seed in range(count)])


def largest(norms):
    """The two largest norms of every image."""
    return norms >= norms.topk(2, dim=1).values[:, -1:]


def test_all_experiments_on_a_tiny_model(tiny):
    calls = []
    found = run_experiments(
        tiny,
        photos(40),
        block=-2,
        outlier_rule=largest,
        settings=ProbeSettings(labels=[i % 2 for i in range(40)], seeds=2),
        advance=calls.append,
    )
    assert (found.block, found.size, found.grid, found.images) == (1, (32, 32), (4, 4), 40)
    assert found.fraction == pytest.approx(2 / 16)
    assert calls == [4] * 10
    assert found.redundancy.conclusive and found.redundancy.outliers == 80
    assert found.position.row("outlier").count == 20
    assert not found.position.conclusive  # 20 tokens are fewer than 30
    assert [row.kind for row in found.classes.rows] == ["class", "normal", "outlier"]
    assert found.classes.conclusive and found.classes.row("class").count == 40
    assert "block 1 of 0..2" in found.differences and "40 images" in found.differences


def test_json_is_plain_and_strict(tiny):
    rule = torch.zeros_like  # no outliers: many numbers are unknown
    found = run_experiments(
        tiny,
        photos(6),
        block=2,
        outlier_rule=lambda n: rule(n).bool(),
        settings=ProbeSettings(seeds=1),
    )
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["redundancy"]["outlier"] is None and plain["redundancy"]["normal"] <= 1
    assert plain["position"]["rows"][1] == {
        "kind": "outlier",
        "means": [None, None],
        "sds": [None, None],
        "count": 0,
    }
    assert plain["classes"] is None and len(plain["published"]) == 4
    assert not found.redundancy.conclusive and "no outlier tokens" in found.redundancy.note


def test_what_is_probed_is_what_the_backbone_says(tiny):
    sources = photos(12)
    settings = ProbeSettings(seeds=1, batch=5)
    found = run_experiments(tiny, sources, block=1, outlier_rule=largest, settings=settings)
    tokens = tiny.tokens(sources, layers=[1], norm=False).layers[1].patches
    outlier = largest(tokens.norm(dim=-1))
    pixels = torch.stack([tiny.preprocessing(source.source) for source in sources])
    with torch.no_grad():
        embedded = tiny.network.patch_embed.proj(pixels)
    contrast = neighbor_contrast(neighbor_similarity(embedded).flatten(1), outlier)
    levels = patch_levels(pixels, tiny.preprocessing, tiny.patch)
    assert found.redundancy.auroc == pytest.approx(contrast.auroc, abs=1e-3)
    assert found.redundancy.normal == pytest.approx(contrast.normal, abs=1e-4)
    expected = pixel_probe(tokens, levels, outlier, seeds=1)
    assert found.pixels.row("normal").means == pytest.approx(expected.row("normal").means, rel=1e-2)
    assert found.fraction == float(outlier.float().mean())


def test_patch_levels_undo_the_preprocessing_at_any_shape(tiny):
    random = np.random.default_rng(0)
    source = Image.fromarray(random.integers(0, 256, (16, 24, 3), dtype=np.uint8))
    pixels = tiny.preprocessing(source, (16, 24))[None]
    levels = patch_levels(pixels, tiny.preprocessing, (8, 4))
    assert levels.shape == (1, 12, 96) and levels.dtype == torch.uint8
    expected = np.asarray(source)[8:16, 4:8].transpose(2, 0, 1).reshape(-1)
    np.testing.assert_array_equal(levels[0, 7], expected)


def test_results_do_not_depend_on_the_batch(tiny):
    runs = [
        run_experiments(
            tiny,
            photos(12),
            block=2,
            outlier_rule=largest,
            settings=ProbeSettings(seeds=1, batch=batch),
        )
        for batch in (1, 5)
    ]
    assert runs[0].redundancy.auroc == pytest.approx(runs[1].redundancy.auroc, abs=1e-3)
    for first, second in zip(runs[0].pixels.rows, runs[1].pixels.rows, strict=True):
        assert first.means == pytest.approx(second.means, rel=1e-2)


def test_half_precision_and_room_for_fewer_images(tiny, monkeypatch):
    full = run_experiments(
        tiny, photos(16), block=2, outlier_rule=largest, settings=ProbeSettings(seeds=1)
    )
    monkeypatch.setattr(room, "MAX_FULL_BYTES", 0)
    half = run_experiments(
        tiny, photos(16), block=2, outlier_rule=largest, settings=ProbeSettings(seeds=1)
    )
    for first, second in zip(full.pixels.rows, half.pixels.rows, strict=True):
        assert first.means == pytest.approx(second.means, rel=1e-2)
    assert half.redundancy == full.redundancy
    monkeypatch.setattr(room, "MAX_BYTES", 5 * 16 * (2 * 24 + 3 * 64))
    assert (
        run_experiments(
            tiny, photos(16), block=2, outlier_rule=largest, settings=ProbeSettings(seeds=1)
        ).images
        == 5
    )


def test_bad_images_are_skipped_and_keep_the_labels_in_step(tiny, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    bad = ImageSource("broken.jpg", broken)
    sources, labels = photos(24), [0, 0, 1] * 8

    def run(sources, labels):
        settings = ProbeSettings(labels=labels, seeds=1)
        return run_experiments(tiny, sources, block=2, outlier_rule=largest, settings=settings)

    found = run([*sources[:4], bad, *sources[4:]], [*labels[:4], 1, *labels[4:]])
    assert [one.name for one in found.skipped] == ["broken.jpg"] and found.images == 24
    assert found.classes == run(sources, labels).classes
    with pytest.raises(ImageError, match=r"none of 1 images can be read \(broken\.jpg"):
        run_experiments(tiny, [bad], block=2, outlier_rule=largest, settings=ProbeSettings())


def test_a_model_without_class_token_and_another_size():
    network = tiny_network(class_token=False, global_pool="avg")
    found = run_experiments(
        load(network),
        photos(12),
        block=0,
        outlier_rule=largest,
        settings=ProbeSettings(size=(24, 50), labels=[0, 1] * 6, seeds=1, limit=8),
    )
    assert (found.size, found.grid, found.images) == ((24, 48), (3, 6), 8)
    assert [row.kind for row in found.classes.rows] == ["normal", "outlier"]


def test_wrong_input_is_named(tiny):
    with pytest.raises(ImageError, match="3 labels for 2 images"):
        run_experiments(
            tiny, photos(2), block=0, outlier_rule=largest, settings=ProbeSettings(labels=[0, 1, 2])
        )
    with pytest.raises(ModelError, match="blocks 0 to 2"):
        run_experiments(tiny, photos(2), block=3, outlier_rule=largest, settings=ProbeSettings())


def named(*names):
    return [ImageSource(name, name) for name in names]


def test_labels_are_read_off_the_folders():
    assert labels_of(named("dog/1.jpg", "cat/1.jpg", "cat/2.jpg", "dog/2.jpg")) == [1, 0, 0, 1]
    assert labels_of(named("/d/b/1.jpg", "/d/b/2.jpg", "/d/a/1.jpg", "/d/a/2.jpg")) == [1, 1, 0, 0]
    assert labels_of(named("cat/1.jpg", "cat/2.jpg")) is None
    assert labels_of(named("cat/1.jpg", "cat/2.jpg", "dog/1.jpg")) is None
    assert labels_of(named("1.jpg", "2.jpg", "cat/1.jpg", "cat/2.jpg")) is None
    assert labels_of([]) is None


def test_chosen_pictures_are_spread():
    assert choose_images([0] * 5, 8) == [0, 1, 2, 3, 4]
    assert choose_images([0] * 10, 4) == [0, 2, 5, 7]


def test_chosen_pictures_come_from_few_classes():
    labels = [label for label in range(100) for _ in range(20)]
    chosen = choose_images(labels, 64)
    assert len(chosen) == 64 and chosen == sorted(set(chosen))
    assert sorted({labels[i] for i in chosen}) == [0, 12, 25, 37, 50, 62, 75, 87]
    small = [label for label in range(100) for _ in range(5)]  # then there must be more of them
    assert (
        len({small[i] for i in choose_images(small, 160)}) == 32
        and len(choose_images(small, 160)) == 160
    )
    uneven = [0] * 3 + [1] * 100  # the small class leaves its room to the other
    chosen = choose_images(uneven, 20)
    assert len(chosen) == 20 and sum(uneven[i] == 0 for i in chosen) == 3


def test_the_published_tables_are_complete():
    tables = {table.name: table for table in PUBLISHED}
    assert list(tables) == ["redundancy", "position", "pixels", "class"]
    for table in PUBLISHED:
        for row in table.rows:
            assert len(row.means) == len(row.sds) == len(table.metrics)
    unchecked = [table.name for table in PUBLISHED if not table.checked]
    assert unchecked == ["position", "pixels"]  # as marked in the notes they come from
    aircraft = tables["class"].metrics.index("Airc")
    assert [row.means[aircraft] for row in tables["class"].rows] == [87.3, 17.1, 79.1]
    assert math.isnan(tables["class"].rows[0].sds[aircraft])
    assert tables["class"].rows[2].sds[tables["class"].metrics.index("CUB")] == 2.1
