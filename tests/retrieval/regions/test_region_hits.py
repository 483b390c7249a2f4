"""Hits of a region: which of them stand out from random images, and how they are drawn."""

from dataclasses import replace

import numpy as np
import pytest

from clearvit.retrieval.explanations.null_similarity import NULL
from clearvit.retrieval.index.index import Index
from clearvit.retrieval.regions.region_page import PER_ROW, draw_regions
from clearvit.retrieval.regions.region_search import maxsim
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")

REGION = (0, 0, 32, 24)


@pytest.fixture(scope="module")
def found(demo_backbone, tmp_path_factory):
    """All hits of a region of one of 30 small photos, and the index."""
    folder = tmp_path_factory.mktemp("regions")
    photos = write_photos(folder / "photos", 30)
    index = Index.build(demo_backbone, photos, out=folder / "index", size=112)
    return index, index.search(photos / index.names[4], region=REGION, k=30)


def test_a_hit_stands_out_from_random_images_or_says_so(found):
    index, hits = found
    asked = hits.query.features.patches[0]
    null = maxsim(asked, index.store.sample(NULL).patches).numpy()
    middle = np.sort(null)[(len(null) - 1) // 2]  # the lower median, as torch has it
    deviations = np.abs(null - middle)
    spread = 1.4826 * np.sort(deviations)[(len(null) - 1) // 2]
    expected = [hit.score >= middle + 2 * spread for hit in hits]
    assert [hit.stands_out for hit in hits] == expected
    assert expected[0] and not expected[-1]
    assert "random images" in hits.note
    assert hits[0].place.count(",") == 3 and hits[-1].place == "like random images"
    assert [one["stands_out"] for one in hits.to_json()["hits"]] == expected


def test_few_images_are_no_random_ones(tiny, tmp_path):
    photos = write_photos(tmp_path / "photos", 6)
    index = Index.build(tiny, photos, out=tmp_path / "index")
    hits = index.search(photos / index.names[0], region=REGION)
    assert all(hit.stands_out for hit in hits) and "random images" not in hits.note


def test_all_panels_are_of_one_width_and_boxes_leave_the_part_visible(found):
    _, hits = found
    figure = draw_regions(hits[:PER_ROW])  # and the query: one more than a row
    widths = {round(axes.get_position().width, 6) for axes in figure.axes}
    assert len(widths) == 1
    image = np.asarray(figure.axes[1].get_images()[0].get_array())
    assert 0 < is_orange(image).mean() < 0.2


def test_a_weak_hit_is_drawn_without_a_box(found):
    _, hits = found
    for stands_out in (True, False):
        figure = draw_regions([replace(hits[0], stands_out=stands_out)])
        image = np.asarray(figure.axes[1].get_images()[0].get_array())
        assert is_orange(image).any() == stands_out
        assert any("random" in text.get_text() for text in figure.texts) != stands_out


def is_orange(image):
    """The color of boxes in hits."""
    from matplotlib.colors import to_rgb

    from clearvit.report.chart import ORANGE

    return np.abs(image - np.asarray(to_rgb(ORANGE))).max(-1) < 0.02
