import json

import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.comparison.structures import self_similarity
from tests.conftest import tiny_network
from tests.helpers.pages import check
from tests.helpers.pages import made_images as photos


def test_self_similarity_is_the_cosine_of_a_plain_loop():
    map_ = torch.randn(5, 4, 6)
    cosine, matrix = self_similarity(map_, (0.3, 0.6))
    flat = map_.flatten(1).T.numpy()
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    assert np.allclose(matrix.numpy(), unit @ unit.T, atol=1e-5)
    assert np.allclose(cosine.flatten().numpy(), unit @ unit[1 * 6 + 3], atol=1e-5)
    assert self_similarity(torch.randn(3, 40, 50), (0, 0))[1].shape[0] <= 256


def test_structure_is_measured_for_every_model_with_and_without_masks(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, image in enumerate(photos(3)):
        image.save(folder / f"{i}.png")
    masks = tmp_path / "masks"
    masks.mkdir()
    mask = np.zeros((40, 50), dtype=np.uint8)
    mask[10:30, 10:30], mask[:3] = 1, 255
    Image.fromarray(mask).save(masks / "1.png")
    models = [load(tiny_network()), load(tiny_network(depth=2))]
    result = cv.compare(
        models,
        folder,
        size=64,
        quick=True,
        structure=True,
        masks=masks,
        views=8,
        rounds=1,
        reference_images=3,
    )
    assert len(result.structures.measured) == 2
    for one in result.structures.measured:
        assert 0 <= one.separation <= 1 and 0 <= one.label_separation <= 1
    page = result.save(tmp_path / "out")
    check(page.read_text("utf-8"))
    assert "Structure of the patches" in page.read_text("utf-8")
    numbers = json.loads((tmp_path / "out" / "compare.json").read_text("utf-8"))
    assert numbers["structures"][0]["smoothness"] == result.structures.measured[0].smoothness


@pytest.mark.filterwarnings("ignore:The masks")
def test_masks_without_background_are_named(tmp_path):
    folder, masks = tmp_path / "photos", tmp_path / "masks"
    folder.mkdir()
    masks.mkdir()
    for i, image in enumerate(photos(2)):
        image.save(folder / f"{i}.png")
        Image.fromarray(np.ones((40, 50), dtype=np.uint8)).save(masks / f"{i}.png")
    options = {"structure": True, "masks": masks, "views": 4, "rounds": 1, "reference_images": 2}
    result = cv.compare([load(tiny_network())], folder, size=64, quick=True, **options)
    assert "two classes" in result.structures.note
    page = result.save(tmp_path / "out").read_text("utf-8")
    assert "separate nothing" in page
