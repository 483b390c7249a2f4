"""A segmenter and its backbone as one graph: pixels in, class maps out."""

import numpy as np
import pytest
import torch

import clearvit as cv
from clearvit.backbones.sources.runtime import CLASSES
from clearvit.errors import ModelError, OptionError
from clearvit.segmentation import load_segmenter
from clearvit.segmentation.patch_classifiers import METHODS, ClassMaps
from tests.helpers.made_data import colour_image, save_png

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


@pytest.fixture
def photos(tmp_path):
    for i in range(3):
        pixels, mask = colour_image(i)
        save_png(tmp_path / f"examples/images/{i}.png", pixels)
        save_png(tmp_path / f"examples/masks/{i}.png", mask)
        save_png(tmp_path / f"photos/{i}.png", colour_image(50 + i)[0])
    return tmp_path


def fit(tiny, photos, **options):
    given = {"scale": 1, "refine": "none", "examples": photos / "examples", **options}
    cv.segment(tiny, photos / "photos", out=photos / "masks", **given)
    return load_segmenter(photos / "masks")


@pytest.mark.parametrize("method", METHODS)
def test_the_graph_gives_the_classes_of_the_masks(tiny, photos, method):
    segmenter = fit(tiny, photos, method=method)
    backbone = segmenter.prepare(tiny)
    pixels = next(backbone.pixels(sorted((photos / "photos").iterdir())))
    tokens = backbone.forward(pixels)
    plain = torch.stack(
        [segmenter.classifier(one).T.unflatten(1, tokens.grid) for one in tokens.patches]
    )
    maps = ClassMaps(segmenter.classifier, tokens.grid)(tokens.patches)
    assert torch.allclose(maps, plain, atol=1e-5)
    done = cv.export(
        tiny, photos / "graph", format="onnx", segmenter=str(photos / "masks/segmenter.json")
    )
    assert "classes" in done.loading
    graph = cv.load(f"onnx:{photos / 'graph'}")
    assert graph.facts.classes == segmenter.classes
    found = graph.run(pixels)[CLASSES]
    assert torch.allclose(found, plain, atol=1e-3)
    right = [
        (one.argmax(0).numpy() == np.asarray(wanted.argmax(0))).mean()
        for one, wanted in zip(found, plain, strict=True)
    ]
    assert np.mean(right) > 0.99


def test_the_printed_code_runs_without_clearvit(tiny, photos):
    fit(tiny, photos, method="mixed")
    done = cv.export(tiny, photos / "graph", format="onnx", segmenter=str(photos / "masks"))
    names = {}
    exec(done.loading, names)
    assert names["classes"].shape[1] == 2
    assert np.allclose(names["classes"].sum(1), 1, atol=1e-5)


def test_what_one_graph_cannot_hold_is_one_sentence(tiny, photos):
    fit(tiny, photos, method="probe", scale=2)
    file = str(photos / "masks/segmenter.json")
    with pytest.raises(ModelError, match="averages views"):
        cv.export(tiny, photos / "graph", format="onnx", segmenter=file)
    with pytest.raises(OptionError, match="cannot hold a segmenter"):
        cv.export(tiny, photos / "graph", format="timm", segmenter=file)
    assert not (photos / "graph").exists()


def test_sharpened_masks_are_noted(tiny, photos):
    fit(tiny, photos, method="probe", refine="image")
    done = cv.export(tiny, photos / "graph", format="onnx", segmenter=str(photos / "masks"))
    assert any("sharpened" in note for note in done.notes)
