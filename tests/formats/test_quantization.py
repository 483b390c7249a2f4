"""Fewer bits: int8 calibrated on images, bfloat16, and graphs without data-dependent shapes."""

import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.errors import ImageError, OptionError
from clearvit.formats import quantization
from clearvit.formats.export import export
from clearvit.formats.graph import Graph, write_by_tracing
from clearvit.formats.to_runtime import _facts
from clearvit.pruning.prune import prune
from tests.conftest import tiny_network

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
DYNAMIC = {"NonZero", "Loop", "If", "Scan", "Unique", "Compress", "NonMaxSuppression"}


def make_model(**options):
    torch.manual_seed(0)
    return prune(load(tiny_network(depth=4, img_size=40)), keep=0.7, **options)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(9):
        cells = rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)
        image = Image.fromarray(cells).resize((40, 40), Image.Resampling.BICUBIC)
        image.save(folder / f"{number}.png")
    return str(folder)


def test_images_that_judge_take_no_part_in_the_calibration(photos):
    backbone = make_model()
    calibrating, judging = quantization.read_calibration(backbone, photos)
    assert len(calibrating) == 7 and len(judging) == 2
    same = (calibrating[:, None] == judging[None]).flatten(2).all(2)
    assert not same.any()
    with pytest.raises(ImageError, match="calibration needs"):
        quantization.read_calibration(backbone, f"{photos}/0.png")


@pytest.mark.parametrize("batch", [None, 1, 4])
def test_every_image_calibrates_whatever_the_batch_of_the_graph(batch):
    facts = _facts(make_model(), "openvino", batch)
    pixels = torch.randn(7, 3, 40, 40)
    inputs = [one["pixels"] for one in quantization._inputs(pixels, facts)]
    assert {len(one) for one in inputs} == {batch or 1}
    assert np.array_equal(np.concatenate(inputs)[:7], pixels.numpy())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"format": "openvino", "quantize": "int8"}, "calibrated on images"),
        ({"format": "onnx", "quantize": "bf16"}, "no bfloat16"),
        ({"format": "onnx", "quantize": "int8", "calibration": "photos/"}, "omit them"),
        ({"format": "openvino", "calibration": "photos/"}, "omit them"),
        ({"format": "timm", "calibration": "photos/"}, "no option 'calibration'"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, reason, tmp_path):
    with pytest.raises(OptionError, match=reason):
        export(make_model(), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_bfloat16_is_near_and_is_remembered(tmp_path):
    backbone = make_model()
    done = export(backbone, tmp_path / "half", format="openvino", batch=2, quantize="bf16")
    again = cv.load(f"openvino:{tmp_path / 'half'}")
    assert again.facts.quantize == "bf16"
    assert again.facts.settings["INFERENCE_PRECISION_HINT"] == "bf16"
    assert done.checks[0].prefix_cosine > 0.99
    assert any("bf16 changes the tokens" in note for note in done.notes)
    pixels = torch.randn(3, 3, 40, 40)
    ours, theirs = backbone.tokens(pixels), again.tokens(pixels)
    assert torch.cosine_similarity(ours.cls, theirs.cls).min() > 0.98


@pytest.mark.slow
def test_int8_is_judged_on_images_of_the_user(photos, tmp_path):
    pytest.importorskip("nncf")
    out = tmp_path / "int8"
    done = export(
        make_model(), out, format="openvino", batch=1, quantize="int8", calibration=photos
    )
    assert sorted(path.name for path in out.glob("model.*")) == ["model.bin", "model.xml"]
    assert "FakeQuantize" in (out / "model.xml").read_text()
    check = done.checks[0]
    assert check.photos and check.images == 2 and check.prefix_cosine > 0.9
    assert any("took no part in the calibration" in note for note in done.notes)
    assert cv.load(f"openvino:{out}").tokens(photos).cls.shape[0] == 9


@pytest.mark.parametrize("scorer", ["class", "fuse"])
def test_a_graph_of_fixed_batch_has_no_shape_that_depends_on_data(scorer, tmp_path):
    import onnx

    backbone = make_model(scorer=scorer)
    facts = _facts(backbone, "onnx", 1)
    write_by_tracing(Graph(backbone, facts, None), facts, tmp_path / "model.onnx")
    model = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "model.onnx"), data_prop=True)
    assert not {node.op_type for node in model.graph.node} & DYNAMIC
    initializers = {one.name for one in model.graph.initializer}
    constants = {out for n in model.graph.node if n.op_type == "Constant" for out in n.output}
    for node in model.graph.node:
        if node.op_type == "TopK":  # TensorRT wants the number when the engine is built
            assert node.input[1] in initializers | constants
    for output in (*model.graph.input, *model.graph.output):
        dims = output.type.tensor_type.shape.dim
        assert all(dim.dim_value > 0 for dim in dims)
