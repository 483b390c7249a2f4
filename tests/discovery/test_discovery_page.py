import pytest
from PIL import Image

from clearvit import discover
from clearvit.discovery import draw_boxes
from clearvit.discovery.discovery_page import COLORS
from clearvit.report.figure import save_figure


def test_boxes_are_drawn_where_they_are(backbone, photos, tmp_path):
    found = discover(backbone, photos, objects=2)
    figure = draw_boxes(list(zip(photos, found, strict=True)), title="t", per_row=2)
    for axes, one in zip(figure.axes, found, strict=False):
        drawn = [patch for patch in axes.patches if patch.get_linewidth() < 3]
        assert len(drawn) == len(one.boxes)
        height, width = one.size
        left, upper = drawn[0].get_xy()
        assert (left * width, upper * height) == pytest.approx(one.boxes[0][:2])
    assert len(set(COLORS)) == len(COLORS)
    path = save_figure(figure, tmp_path / "a.png")
    assert Image.open(path).width == 1600
