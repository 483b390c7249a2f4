from dataclasses import replace

import pytest

from clearvit.artifacts.config import DiagnoseConfig
from clearvit.artifacts.diagnosis import diagnose
from clearvit.artifacts.report.series import HEADER, compare_figure, compare_table
from clearvit.backbones.load import load
from clearvit.testing import planted
from tests.conftest import tiny_network
from tests.helpers.pages import made_images

CONFIG = DiagnoseConfig(size=64, shifted=1, experiments=False)


@pytest.fixture(scope="module")
def pair():
    network = tiny_network(reg_tokens=2, no_embed_class=True)
    healthy = load(network)
    sick = planted(healthy, "high-norm", fraction=0.05, block=1).backbone
    return [diagnose(backbone, made_images(6), config=CONFIG) for backbone in (healthy, sick)]


def test_rows_hold_the_numbers_of_the_diagnoses(pair):
    rows = compare_table(pair)
    for row, found in zip(rows, pair, strict=True):
        assert row.model == found.model and row.verdict == found.verdict
        assert row.onset == found.onset and row.peak == found.peak and row.depth == 3
        assert row.cutoff == found.cutoff and row.fraction == found.fraction
        assert row.largest_last == found.blocks[-1].largest
        assert row.largest_peak == found.blocks[found.peak].largest
        assert row.shifted == pytest.approx(found.equivariance.ratio)
        assert len(row.register_norms) == 2
        assert len(row.cells()) == len(HEADER)
    assert rows[1].interval == pair[1].findings[0].interval
    assert rows[0].interval is None and rows[0].cells()[2:4] == (None, None)
    assert rows[1].cells()[2] == "1 of 0..2"


def test_a_change_with_shifts_singles_out_no_token(pair):
    finding = replace(pair[1].findings[0], kind="non-equivariant", cutoff=None, fraction=1.0)
    (row,) = compare_table([replace(pair[1], findings=(finding,))])
    assert row.fraction == 0 and row.interval is None


def test_figure_has_one_line_per_model(pair):
    figure = compare_figure(pair)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert [len(line.get_xdata()) for line in axes.lines] == [3, 3]
    largest = figure.axes[2].lines[1].get_ydata()
    assert list(largest) == pytest.approx([block.largest for block in pair[1].blocks])


def test_three_models_or_more_are_a_series_in_the_order_given(pair):
    figure = compare_figure([*pair, pair[0]])
    assert len(figure.axes) == 6
    right = figure.axes[5].lines[0].get_ydata()
    peaks = [found.blocks[found.peak].largest for found in [*pair, pair[0]]]
    assert list(right) == pytest.approx(peaks)
    compare_figure(pair * 6)


def test_models_of_different_depth_share_an_axis_in_percent(pair):
    deep = diagnose(load(tiny_network(depth=4)), made_images(3), config=CONFIG)
    axes = compare_figure([pair[0], deep]).axes[0]
    assert axes.lines[0].get_xdata()[-1] == axes.lines[1].get_xdata()[-1] == 100
