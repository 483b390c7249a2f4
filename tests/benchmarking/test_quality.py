"""Quality beside speed: cosines to the first model, accuracy by folders, and warnings."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from clearvit.backbones.load import load
from clearvit.benchmarking.bench import bench
from clearvit.benchmarking.bench_table import Bench, BenchRow
from clearvit.benchmarking.machine import this_machine
from clearvit.benchmarking.quality import Quality, class_numbers, measure_quality
from clearvit.errors import ImageError
from clearvit.pruning.prune import prune
from clearvit.timing import Spread
from tests.conftest import tiny_network


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Three images in each of the folders 0, 1 and 2."""
    root = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(0)
    for name in ("0", "1", "2"):
        (root / name).mkdir()
        base = rng.integers(0, 255, (4, 4, 3))
        for number in range(3):
            cells = np.clip(base + rng.integers(-9, 9, base.shape), 0, 255).astype(np.uint8)
            image = Image.fromarray(cells).resize((32, 32), Image.Resampling.BICUBIC)
            image.save(root / name / f"{number}.png")
    return root


def test_the_numbers_are_those_of_a_plain_transcription(classes):
    dense = load(tiny_network(num_classes=3))
    pruned = prune(dense, keep=0.5)
    first, second = measure_quality([dense, pruned], str(classes), (32, 32), batch=4)
    paths = sorted(classes.glob("*/*.png"))
    truth = torch.tensor([int(path.parent.name) for path in paths])
    ours, theirs = pruned.tokens(paths, size=32), dense.tokens(paths, size=32)
    assert first.cls == pytest.approx(1, abs=1e-5) and first.map == pytest.approx(1, abs=1e-5)
    assert second.images == 9
    expected = F.cosine_similarity(ours.cls, theirs.cls).mean()
    assert second.cls == pytest.approx(float(expected), abs=1e-5)
    expected = F.cosine_similarity(ours.patches, theirs.patches, dim=-1).mean()
    assert second.map == pytest.approx(float(expected), abs=1e-5)
    whole = torch.cat([ours.prefix, ours.patches], 1)
    scores = dense.network.forward_head(whole).argmax(1)
    assert second.top1 == pytest.approx(100 * float((scores == truth).float().mean()))
    unit = F.normalize(ours.cls, dim=1)
    nearest = [
        int(truth[max((j for j in range(9) if j != i), key=lambda j: float(unit[i] @ unit[j]))])
        for i in range(9)
    ]
    assert second.nearest == pytest.approx(100 * np.mean(np.array(nearest) == truth.numpy()))


def test_folders_are_numbers_wordnet_ids_or_all_classes_by_name():
    assert class_numbers(["7", "12", "7"], 1000) == [7, 12, 7]
    assert class_numbers(["n01443537", "n01440764"], 1000) == [1, 0]
    assert class_numbers(["cat", "dog", "bird"], 3) == [1, 2, 0]
    assert class_numbers(["cat", "dog"], 3) is None
    assert class_numbers(["n01443537"], 10) is None


def test_models_of_other_widths_and_without_labels_leave_cells_empty(classes, tiny):
    wide = load(tiny_network(embed_dim=48))
    flat = str(classes / "0")
    first, second = measure_quality([tiny, wide], flat, (32, 32))
    assert second.cls is None and second.map is None
    assert first.top1 is None and first.nearest is None  # one folder is no class


def test_the_table_has_the_columns_that_were_measured(classes, tiny, tmp_path):
    options = {"keep": 0.5, "batch": (1,), "rounds": 1, "memory": False}
    plain = bench(tiny, **options)
    assert "class cosine" not in plain.text() and plain.rows[0].quality is None
    result = bench(tiny, images=str(classes), out=tmp_path / "out", **options)
    assert result.header()[-3:] == ("class cosine", "map cosine", "1-NN, %")
    assert result.cells()[0][-3] == "1.000"
    assert "9 images" in result.text()
    assert "map cosine" in (tmp_path / "out" / "bench.html").read_text()
    with pytest.raises(ImageError):
        bench(tiny, images=str(tmp_path / "nothing"), **options)


def row(model, ratio, cls=None):
    quality = None if cls is None else Quality(4, cls, 0.5, None, None)
    speed = Spread(1.0, 1.0, 1.0)
    return BenchRow(model, 1, (32, 32), speed, ratio, 7, None, None, None, quality)


@pytest.mark.parametrize(
    ("ratio", "unclear"),
    [
        (Spread(1.5, 1.4, 1.6), False),
        (Spread(1.5, 1.0, 1.6), True),  # varies by 0.6, differs by 0.5
        (Spread(1.02, 1.0, 1.05), True),
        (Spread(0.5, 0.4, 0.6), False),
    ],
)
def test_a_spread_wider_than_the_effect_is_a_warning(ratio, unclear):
    rows = (row("dense", Spread(1, 1, 1)), row("pruned", ratio))
    found = Bench(this_machine(), 1e9, rows).warnings()
    assert len(found) == unclear
    if unclear:
        assert "pruned at batch 1" in found[0] and "more than it differs" in found[0]


def test_a_model_far_from_the_first_is_a_warning_once(tiny):
    clear = Spread(2.0, 1.9, 2.1)
    rows = (row("dense", Spread(1, 1, 1), 1.0), row("near", clear, 0.95), row("far", clear, 0.7))
    rows += (dataclasses.replace(rows[-1], batch=8),)
    (words,) = Bench(this_machine(), 1e9, rows).warnings()
    assert "far" in words and "0.700" in words and "0.9" in words
