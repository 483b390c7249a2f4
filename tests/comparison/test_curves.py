import json

import numpy as np
import pytest

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.comparison.curves import fit_inverse, fit_saturation
from clearvit.errors import ModelError
from tests.conftest import tiny_network
from tests.helpers.commands import invoke
from tests.helpers.photos import soft_photos


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    return soft_photos(folder, 6, size=(120, 90))


def test_fits_find_the_parameters_that_made_the_points():
    counts = [1, 2, 4, 8, 16]
    found = fit_inverse(counts, [0.9 - 0.2 / n for n in counts])
    assert found == pytest.approx({"Q_inf": 0.9, "c": 0.2})
    counts = [0, 1, 2, 4, 8, 16]
    found = fit_saturation(counts, [0.8 - 0.3 * np.exp(-0.5 * m) for m in counts])
    assert found == pytest.approx({"alpha": 0.8, "beta": 0.3, "gamma": 0.5}, rel=0.02)
    assert fit_inverse([1], [0.5]) == {} and fit_saturation([0, 1, 2], [0.1, 0.2, 0.3]) == {}


def test_quality_grows_with_views_of_both_kinds(demo_backbone, images, tmp_path):
    backbone = demo_backbone.resized(56)
    found = cv.curve(
        backbone, images, out=tmp_path / "out", counts=(1, 4, 12), limit=3, precision="no"
    )
    assert [one.name for one in found.series] == ["whole-patch views", "sub-patch views"]
    for one in found.series:
        assert one.quality[0] < one.quality[-1] <= 1 and one.parameters["c"] > 0
        assert all(a <= b <= c for a, b, c in zip(one.low, one.quality, one.high, strict=True))
    numbers = json.loads((tmp_path / "out" / "curve-views.json").read_text("utf-8"))
    assert numbers["series"][0]["quality"] == list(found.series[0].quality)
    assert (tmp_path / "out" / "curve-views.png").stat().st_size > 5000


def test_registers_are_trained_one_model_for_each_number(images, tmp_path):
    options = {"over": "registers", "counts": (0, 1), "epochs": 1, "size": 32}
    found = cv.curve(load(tiny_network()), images, out=tmp_path / "out", **options)
    (line,) = found.series
    assert line.counts == (0, 1) and all(0 < quality <= 1 for quality in line.quality)
    again = cv.curve(load(tiny_network()), images, out=tmp_path / "out", **options)
    assert again.series == found.series  # finished cures are not repeated


def test_no_views_are_refused(images, tmp_path):
    with pytest.raises(ModelError, match="at least one view"):
        cv.curve(load(tiny_network()), images, out=tmp_path, counts=(0, 1))


def test_the_command_draws_and_names_the_next_step(images, tmp_path):
    out = tmp_path / "out"
    done = invoke(
        *(
            "curve",
            "demo",
            str(images),
            "--size",
            "28",
            "--counts",
            "1,2",
            "--limit",
            "2",
            "-o",
            str(out),
        )
    )
    assert done.exit_code == 0, done.output
    assert "Q_inf" in done.output and (out / "curve-views.png").is_file()
