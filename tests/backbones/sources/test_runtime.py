"""An exported model is a backbone: every verb that needs final tokens runs on it."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.sources import runtime
from clearvit.backbones.sources.runtime import CONFIG, GraphFacts, RuntimeBackbone
from clearvit.cures.registers import with_registers
from clearvit.errors import ImageError, ModelError, StoreError
from clearvit.formats.export import export
from clearvit.pruning.prune import prune
from clearvit.views.denoised import with_views
from tests.conftest import tiny_network
from tests.helpers.made_data import voc_masks
from tests.helpers.photos import soft_photos

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(0)
    return prune(with_registers(load(tiny_network(depth=4)), torch.randn(2, 24)), keep=0.6)


@pytest.fixture(scope="module", params=["onnx", "openvino"])
def name(request, original, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "model"
    export(original, out, format=request.param)
    return f"{request.param}:{out}"


@pytest.fixture(scope="module")
def copied(name):
    return load(name)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 6)


def test_paths_pictures_and_tensors(copied, original, photos):
    for images in (photos, photos / "0.png", Image.open(photos / "1.png"), [photos / "2.png"]):
        ours, theirs = original.tokens(images), copied.tokens(images)
        assert torch.allclose(theirs.patches, ours.patches, atol=2e-5)
        assert torch.allclose(theirs.cls, ours.cls, atol=2e-5)
        assert theirs.registers.shape == (len(ours), 2, 24)
        assert torch.equal(theirs.kept, ours.kept) and theirs.map.shape == ours.map.shape
    pixels = torch.randn(5, 3, 32, 32, requires_grad=True)
    assert torch.allclose(
        copied.tokens(pixels, batch=2).patches, original.tokens(pixels).patches, atol=2e-5
    )
    assert not copied.forward(pixels).patches.requires_grad


def test_it_says_what_it_is(copied, name, original):
    assert isinstance(copied, RuntimeBackbone) and copied.name == name
    assert copied.depth == 0 and copied.width == 24 and copied.patch == (8, 8)
    assert copied.preprocessing == original.preprocessing
    assert copied.facts.source == original.name and "32x32 px" in repr(copied)
    assert copied.device.type == "cpu" and copied.to("cpu") is copied
    assert GraphFacts.from_json(json.loads(json.dumps(copied.facts.to_json()))) == copied.facts
    assert load(name).fingerprint() == copied.fingerprint() != original.fingerprint()


def test_every_name_of_the_place_loads(copied, name):
    format, _, folder = name.partition(":")
    file = {"onnx": "model.onnx", "openvino": "model.xml"}[format]
    for other in (f"{format}:{folder}/{file}", f"dir:{folder}", f"{format}:{folder}/"):
        assert load(other).facts == copied.facts
    wrong = "openvino" if format == "onnx" else "onnx"
    with pytest.raises(ModelError, match=f"'{format}:{folder}'"):
        load(f"{wrong}:{folder}")


@pytest.mark.parametrize("options", [{"layers": [0]}, {"capture": "key"}, {"norm": False}])
def test_only_final_tokens(copied, options):
    with pytest.raises(ModelError, match=r"final tokens only.*model it was made of"):
        copied.tokens(torch.randn(1, 3, 32, 32), **options)


def test_other_sizes_name_the_exported_one(copied, name):
    for ask in (
        lambda: copied.tokens(torch.randn(1, 3, 64, 64)),
        lambda: copied.tokens(Image.new("RGB", (9, 9)), size=64),
        lambda: load(name, size=64),
        lambda: copied.resized((32, 40)),
    ):
        with pytest.raises(ModelError, match=r"exported for 32x32 px.*size=\(32, 32\)"):
            ask()
    assert load(name, size=33).fitting_size(30) == (32, 32)  # rounded, as everywhere
    with pytest.raises(ImageError, match="normalized floats"):
        copied.tokens(torch.zeros(1, 4, 32, 32))


def test_other_devices_and_positions_are_refused(copied, name):
    with pytest.raises(ModelError, match="runs on the CPU"):
        copied.to("cuda")
    with pytest.raises(ModelError, match="baked in"):
        load(name, positions="bicubic")


def test_threads_are_those_of_torch(copied, name, monkeypatch):
    seen = []
    kind = {"onnx": "_onnx_engine", "openvino": "_openvino_engine"}[name.partition(":")[0]]
    right = getattr(runtime, kind)
    monkeypatch.setattr(
        runtime,
        kind,
        lambda path, threads, outputs: seen.append(threads) or right(path, threads, outputs),
    )
    backbone, before = load(name), torch.get_num_threads()
    try:
        for threads in (1, 1, 2):
            torch.set_num_threads(threads)
            backbone.tokens(torch.zeros(1, 3, 32, 32))
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


def test_a_whole_batch_goes_to_the_graph_uncopied():
    # torch's threads, once awake, take the cores from those of the graph
    pixels = np.ones((2, 3, 4, 4), np.float32)
    assert runtime._filled(pixels, 2) is pixels and runtime._filled(pixels, None) is pixels
    filled = runtime._filled(pixels, 3)
    assert filled.shape == (3, 3, 4, 4) and filled[:2].all() and not filled[2].any()


def test_views_of_a_graph_are_saved(copied, original, photos, tmp_path):
    """Found by use: `segment` with a finer grid on a graph ended with StopIteration."""
    views = with_views(copied, 4, 2)
    assert views.to("cpu") is views and views.dtype == torch.float32
    saved = cv.save_tokens(copied, photos, out=tmp_path / "tokens", views=4, scale=2)
    ours = cv.denoise(original, photos, views=4, scale=2, precision="no")
    assert torch.allclose(saved.read([0]).patches[0].float(), ours.patches[0], atol=1e-2)
    other = Path(shutil.copytree(copied.folder, tmp_path / "other"))
    with next(other.glob("model.*")).open("ab") as file:
        file.write(b" ")
    assert with_views(load(f"dir:{other}"), 4, 2).fingerprint() != views.fingerprint()


def test_an_index_is_built_and_asked(copied, photos, tmp_path):
    index = cv.Index.build(copied, photos, out=tmp_path / "index")
    hits = index.search(photos / "3.png", k=3)
    assert hits[0].name == "3.png" and hits[0].score == pytest.approx(1, abs=1e-5)


def test_it_is_evaluated_and_compared(copied, original, photos, tmp_path):
    from clearvit.comparison.config import CompareConfig

    data = voc_masks(tmp_path / "voc")
    table = cv.evaluate([original, copied], task="segmentation", data=data, size=32, limit=2)
    first, second = (row["mIoU"].mean for row in table.rows)
    assert second == pytest.approx(first, abs=0.05)
    small = CompareConfig(
        limit=3, shifted_images=1, reference_images=1, views=2, rounds=1, shown_images=1
    )
    rows = cv.compare([original.dense, copied], photos, config=small).rows
    assert rows[1].model == copied.name


def test_what_is_no_export_is_refused(name, tmp_path, monkeypatch):
    format, _, folder = name.partition(":")
    with pytest.raises(ModelError, match=f"clearvit export MODEL --format {format}"):
        load(f"{format}:{tmp_path}")
    broken = tmp_path / "broken"
    broken.mkdir()
    content = json.loads((runtime.Path(folder) / CONFIG).read_text())
    (broken / CONFIG).write_text(json.dumps(content))
    with pytest.raises(ModelError, match="has lost its model"):
        load(f"{format}:{broken}")
    (broken / content_file(format)).write_text("nothing")
    with pytest.raises(ModelError, match=r"cannot read .*Export the model again"):
        load(f"{format}:{broken}").tokens(torch.zeros(1, 3, 32, 32))
    for bad in ("{", "[]", json.dumps(content | {"version": 99}), json.dumps({"version": 1})):
        (broken / CONFIG).write_text(bad)
        with pytest.raises((ModelError, StoreError)):
            load(f"{format}:{broken}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install 'clearvit\[runtime\]'"):
        load(name)


def content_file(format):
    return {"onnx": "model.onnx", "openvino": "model.xml"}[format]


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"CACHE_DIR": "/tmp/evil"}},
        {"settings": {"LOG_LEVEL": "LOG_TRACE"}},
        {"settings": ["x"]},
        {"format": "tensorrt"},
        {"format": ["onnx"]},
        {"patch": [0, 0]},
        {"patch": [7, 7]},
        {"batch": -3},
        {"width": "24"},
        {"size": [32]},
        {"prefix_names": ["evil"]},
        {"preprocessing": {}},
        {"pruned": "yes"},
        {"hook": "evil"},
        {"source": 5},
        {"version": None},
    ],
    ids=str,
)
def test_a_lying_runtime_json_is_one_sentence(name, tmp_path, change):
    format, _, folder = name.partition(":")
    content = json.loads((Path(folder) / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**content, **change}))
    with pytest.raises(ModelError):
        load(f"{format}:{tmp_path}")


@pytest.mark.parametrize("change", [{"width": 12}, {"prefix_names": ["class"]}])
def test_a_graph_that_gives_something_else_than_its_json_says(name, tmp_path, change):
    folder = Path(shutil.copytree(name.partition(":")[2], tmp_path / "copy"))
    content = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**content, **change}))
    with pytest.raises(ModelError, match="gives"):
        load(f"dir:{folder}").tokens(torch.zeros(1, 3, 32, 32))
