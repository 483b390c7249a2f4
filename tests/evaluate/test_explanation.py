import dataclasses
import math

import pytest
import torch

from clearvit.dense.correspondence import centres
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.evaluate import evaluate
from clearvit.evaluate.explanation_photos import read_photos
from clearvit.evaluate.retrieval_config import RetrievalConfig
from clearvit.retrieval.faithfulness import (
    cell_of,
    hidden,
    hiding_orders,
    on_object,
    strongest,
    warp_accuracy,
)
from tests.dense.made_data import class_folder, colour_image, save, voc_masks

PLAIN = EvaluateConfig(resamples=20, limit=2, retrieval=RetrievalConfig(grid=4, masked=(0.25, 0.5)))
GRID = (3, 4)


def test_cells_hold_their_centres_and_the_border():
    assert cell_of(centres(GRID), GRID).tolist() == list(range(12))
    assert cell_of(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), GRID).tolist() == [0, 11]


def test_true_matches_are_right_and_shifted_ones_are_not():
    places = centres(GRID)
    perfect = warp_accuracy(torch.eye(12), places, places, GRID, (0.05, 0.5))
    assert perfect.tolist() == [1, 1, 1, 1]
    shifted = warp_accuracy(torch.eye(12).roll(1, 1), places, places, GRID, (0.05, 0.25))
    assert shifted[:3].tolist() == [0, 0, 0]
    assert shifted[3] == pytest.approx(9 / 12)  # the ends of the rows jump to the next row
    half = warp_accuracy(torch.eye(12) + torch.eye(12).roll(1, 1), places, places, GRID, ())
    assert half[1] == pytest.approx(0.5)


def test_patches_that_leave_the_picture_or_have_no_match_are_not_judged():
    places = centres(GRID).clone()
    places[:6] += 5
    given = torch.eye(12)
    given[6] = 0
    given[7] = given[8]
    assert strongest(given)[6] == -1
    found = warp_accuracy(given, places, centres(GRID), GRID, ())
    assert found[0] == pytest.approx(4 / 5)
    assert warp_accuracy(0 * given, places, centres(GRID), GRID, ()).isnan().all()


def test_hiding_covers_the_cells_of_the_order():
    given = torch.diag(torch.arange(12.0))
    orders = hiding_orders(given, seed=1)
    assert orders["strongest"][:2].tolist() == [11, 10] and orders["weakest"][0] == 0
    assert sorted(orders["chance"].tolist()) == list(range(12))
    pixels = torch.ones(3, 30, 40)
    shown = hidden(pixels, orders["strongest"], 1 / 6, GRID)
    assert shown[:, 20:, 20:].sum() == 0 and shown.sum() == 3 * (30 * 40 - 10 * 20)
    assert (hidden(pixels, orders["weakest"], 0.01, GRID)[0] == 0).sum() == 100  # at least one


def test_mass_on_the_object_is_weighed_by_the_covered_area():
    mask = torch.zeros(6, 8, dtype=torch.bool)
    mask[:2, :3] = True  # the first cell and half of the second
    given = torch.zeros(12, 12)
    given[0, 0], given[1, 5] = 3.0, 1.0
    share, area = on_object(given, mask, GRID)
    assert share == pytest.approx((3 + 0.5) / 4) and area == pytest.approx(6 / 48)


def test_masks_boxes_classes_and_photos(tiny, tmp_path):
    masks = voc_masks(tmp_path / "voc")
    config = dataclasses.replace(
        PLAIN,
        retrieval=dataclasses.replace(
            PLAIN.retrieval, methods=("transport", "chamfer"), marginals=("uniform", "cross")
        ),
    )
    table = evaluate(tiny, task="explanation", data=masks, config=config)
    assert [row.setting for row in table.rows] == [
        "transport, uniform",
        "transport, cross",
        "chamfer, uniform",
        "chamfer, cross",
    ]
    assert table.protocol["kind"] == "masks"
    for row in table.rows:
        assert 0 <= row["right cell"].mean <= 100 and 0 <= row["on object"].mean <= 100
        assert abs(row["drop structural, chance"].mean) < 100
    areas = {row["object area"].mean for row in table.rows}
    assert len(areas) == 1  # of the object, whatever the method


def test_photos_without_objects_say_nothing_about_them(tiny, tmp_path):
    for i in range(3):
        save(tmp_path / f"{i}.png", colour_image(i)[0])
    table = evaluate(tiny, task="explanation", data=tmp_path, config=PLAIN)
    assert math.isnan(table.rows[0]["on object"].mean) and table.protocol["kind"] == "photos"
    kinds = class_folder(tmp_path / "kinds", each=2)
    assert read_photos(kinds, layout=None, split=None).kind == "classes"


def test_boxes_pair_photos_of_a_class_and_cover_its_objects(tmp_path):
    for name, kind, box in (
        ("a", "cat", (1, 1, 4, 2)),
        ("b", "cat", (3, 3, 8, 8)),
        ("c", "dog", (1, 1, 2, 2)),
    ):
        save(tmp_path / f"JPEGImages/{name}.png", colour_image(0)[0])
        sides = "".join(
            f"<{key}>{value}</{key}>"
            for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
        )
        xml = (
            f"<annotation><object><name>{kind}</name><bndbox>{sides}</bndbox></object></annotation>"
        )
        (tmp_path / "Annotations").mkdir(exist_ok=True)
        (tmp_path / f"Annotations/{name}.xml").write_text(xml)
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    (tmp_path / "ImageSets/Main/trainval.txt").write_text("a\nb\nc\n")
    photos = read_photos(tmp_path, layout=None, split=None)
    assert photos.kind == "boxes"
    assert photos.partner(0, torch.tensor([1.0, 0.2, 0.9])) == 1
    assert photos.partner(2, torch.tensor([1.0, 0.2, 0.9])) is None
    assert photos.masker(0, photos.classes[0]).sum() == 8


def test_the_demo_model_points_at_the_right_places(demo_backbone, tmp_path):
    data = pytest.importorskip("skimage.data")
    for name in ("chelsea", "coffee"):
        save(tmp_path / f"{name}.png", getattr(data, name)())
    options = RetrievalConfig(masked=(0.3,))
    config = dataclasses.replace(PLAIN, size=112, limit=1, retrieval=options)
    row = evaluate(demo_backbone, task="explanation", data=tmp_path, config=config).rows[0]
    assert row["right cell"].mean > 3 * 100 / 49  # chance is one of 49
    assert row["PCK@0.1"].mean > 20
