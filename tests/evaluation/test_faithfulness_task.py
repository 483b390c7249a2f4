import math

import pytest
import torch

from clearvit.datasets.object_images import read_object_images
from clearvit.evaluation.evaluate import evaluate
from clearvit.evaluation.faithfulness_task import find_partner
from clearvit.probes.correspondence import patch_centers
from clearvit.retrieval.explanations.faithfulness import (
    find_cells,
    fraction_on_object,
    hide_patches,
    hiding_orders,
    strongest_matches,
    warp_accuracy,
)
from tests.helpers.made_data import class_folder, colour_image, save_png, voc_masks

PLAIN = {"limit": 2, "grid": 4, "hidden_fractions": (0.25, 0.5)}
GRID = (3, 4)


def test_cells_hold_their_centres_and_the_border():
    assert find_cells(patch_centers(GRID), GRID).tolist() == list(range(12))
    assert find_cells(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), GRID).tolist() == [0, 11]


def test_true_matches_are_right_and_shifted_ones_are_not():
    places = patch_centers(GRID)
    perfect = warp_accuracy(torch.eye(12), places, places, GRID, (0.05, 0.5))
    assert perfect.tolist() == [1, 1, 1, 1]
    shifted = warp_accuracy(torch.eye(12).roll(1, 1), places, places, GRID, (0.05, 0.25))
    assert shifted[:3].tolist() == [0, 0, 0]
    assert shifted[3] == pytest.approx(9 / 12)  # the ends of the rows jump to the next row
    half = warp_accuracy(torch.eye(12) + torch.eye(12).roll(1, 1), places, places, GRID, ())
    assert half[1] == pytest.approx(0.5)


def test_patches_that_leave_the_picture_or_have_no_match_are_not_judged():
    places = patch_centers(GRID).clone()
    places[:6] += 5
    given = torch.eye(12)
    given[6] = 0
    given[7] = given[8]
    assert strongest_matches(given)[6] == -1
    found = warp_accuracy(given, places, patch_centers(GRID), GRID, ())
    assert found[0] == pytest.approx(4 / 5)
    assert warp_accuracy(0 * given, places, patch_centers(GRID), GRID, ()).isnan().all()


def test_hiding_covers_the_cells_of_the_order():
    given = torch.diag(torch.arange(12.0))
    orders = hiding_orders(given, seed=1)
    assert orders["strongest"][:2].tolist() == [11, 10] and orders["weakest"][0] == 0
    assert sorted(orders["random"].tolist()) == list(range(12))
    pixels = torch.ones(3, 30, 40)
    shown = hide_patches(pixels, orders["strongest"], 1 / 6, GRID)
    assert shown[:, 20:, 20:].sum() == 0 and shown.sum() == 3 * (30 * 40 - 10 * 20)
    assert (
        hide_patches(pixels, orders["weakest"], 0.01, GRID)[0] == 0
    ).sum() == 100  # at least one


def test_mass_on_the_object_is_weighed_by_the_covered_area():
    mask = torch.zeros(6, 8, dtype=torch.bool)
    mask[:2, :3] = True  # the first cell and half of the second
    given = torch.zeros(12, 12)
    given[0, 0], given[1, 5] = 3.0, 1.0
    share, area = fraction_on_object(given, mask, GRID)
    assert share == pytest.approx((3 + 0.5) / 4) and area == pytest.approx(6 / 48)


def test_masks_boxes_classes_and_photos(tiny, tmp_path):
    masks = voc_masks(tmp_path / "voc")
    config = dict(PLAIN, methods=("transport", "chamfer"), patch_weights=("uniform", "cross"))
    table = evaluate(tiny, task="faithfulness", data=masks, **config)
    assert [row.setting for row in table.rows] == [
        "transport, uniform",
        "transport, cross",
        "chamfer, uniform",
        "chamfer, cross",
    ]
    assert table.protocol["kind"] == "masks"
    for row in table.rows:
        assert 0 <= row["correct cell"].mean <= 100 and 0 <= row["on object"].mean <= 100
        assert abs(row["drop patches, random"].mean) < 100
    areas = {row["object area"].mean for row in table.rows}
    assert len(areas) == 1  # of the object, whatever the method


def test_photos_without_objects_say_nothing_about_them(tiny, tmp_path):
    for i in range(3):
        save_png(tmp_path / f"{i}.png", colour_image(i)[0])
    table = evaluate(tiny, task="faithfulness", data=tmp_path, **PLAIN)
    assert math.isnan(table.rows[0]["on object"].mean) and table.protocol["kind"] == "images"
    kinds = class_folder(tmp_path / "kinds", each=2)
    assert read_object_images(kinds, layout=None, split=None).kind == "classes"


def test_boxes_pair_photos_of_a_class_and_cover_its_objects(tmp_path):
    for name, kind, box in (
        ("a", "cat", (1, 1, 4, 2)),
        ("b", "cat", (3, 3, 8, 8)),
        ("c", "dog", (1, 1, 2, 2)),
    ):
        save_png(tmp_path / f"JPEGImages/{name}.png", colour_image(0)[0])
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
    photos = read_object_images(tmp_path, layout=None, split=None)
    assert photos.kind == "boxes"
    assert find_partner(photos.classes, 0, torch.tensor([1.0, 0.2, 0.9])) == 1
    assert find_partner(photos.classes, 2, torch.tensor([1.0, 0.2, 0.9])) is None
    assert photos.object_mask(0, photos.classes[0]).sum() == 8


def test_the_demo_model_points_at_the_right_places(demo_backbone, tmp_path):
    data = pytest.importorskip("skimage.data")
    for name in ("chelsea", "coffee"):
        save_png(tmp_path / f"{name}.png", getattr(data, name)())
    config = {"size": 112, "limit": 1, "hidden_fractions": (0.3,)}
    row = evaluate(demo_backbone, task="faithfulness", data=tmp_path, **config).rows[0]
    assert row["correct cell"].mean > 3 * 100 / 49  # chance is one of 49
    assert row["PCK@0.1"].mean > 20
