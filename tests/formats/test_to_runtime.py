"""Graphs for ONNX Runtime and OpenVINO: the tokens are those of the original."""

import dataclasses
import importlib.util
import json

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.output import OutputSteps
from clearvit.backbones.sources.runtime import CONFIG
from clearvit.backbones.tokens import Tokens
from clearvit.cures.positional import with_output
from clearvit.cures.registers import with_registers
from clearvit.errors import ModelError, OptionError, StoreError
from clearvit.formats import graph
from clearvit.formats import to_runtime as runtime
from clearvit.formats.export import export
from clearvit.formats.folder import atomic_folder
from clearvit.formats.parity import TOLERANCE, compare_runtime, synthetic_images
from clearvit.pruning.cost import macs
from clearvit.pruning.prune import prune
from clearvit.testing import planted
from clearvit.views.config import DenoiseConfig
from clearvit.views.denoised import DenoisedBackbone
from tests.conftest import tiny_network
from tests.helpers.commands import invoke
from tests.helpers.made_pruned import prune_with, random_predictors, tiny_eva

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
FORMATS = ("onnx", "openvino")
RECORD = ".clearvit.json"  # of what clearvit wrote there


def registered(**arguments):
    """A cured model: four registers behind the class token."""
    return with_registers(load(tiny_network(depth=4, **arguments)), torch.randn(4, 24))


def with_neurons():
    plain = load(tiny_network(depth=4, reg_tokens=1, no_embed_class=True))
    return NeuronBackbone(plain, {1: torch.tensor([0, 5, 7])})


def oblong(backbone):
    return backbone.resized((5 * backbone.patch[0], 7 * backbone.patch[1]))


MODELS = {
    "raw": lambda: load(tiny_network(depth=4)),
    "cured": registered,
    "cured at test time": with_neurons,
    "projected and smoothed": lambda: with_output(registered(), OutputSteps(4, True)),
    "pruned, projected": lambda: prune(with_output(registered(), OutputSteps(4)), keep=0.6),
    "no class token": lambda: load(tiny_network(depth=4, class_token=False, global_pool="avg")),
    "rotary": lambda: tiny_eva("eva02_tiny_patch14_224"),
    "rotary, one per block": lambda: tiny_eva("vit_small_patch16_rope_mixed_224"),
    "pruned": lambda: prune(load(tiny_network(depth=4)), keep=0.6),
    "pruned and cured": lambda: prune(registered(), keep=0.6),
    "pruned and cured at test time": lambda: prune(with_neurons(), keep=0.6),
    "pruned, rotary": lambda: prune(tiny_eva(), keep=0.6),
    "pruned, rotary, one per block": lambda: prune(
        tiny_eva("vit_small_patch16_rope_mixed_224"), keep=0.6
    ),
    "pruned, no class token": lambda: prune(
        load(tiny_network(depth=4, class_token=False, global_pool="avg")), keep=0.6
    ),
    "merged": lambda: prune(registered(), keep=0.4, scorer="merge"),
    "fused, delta": lambda: prune(registered(), keep=0.6, scorer="fuse", fill="delta"),
    "random, mean": lambda: prune(registered(), keep=0.6, scorer="random", fill="mean"),
    "learned": lambda: prune_with(registered(), random_predictors(24, 3), keep=0.6),
    "kept whole": lambda: prune(registered(), keep=1.0),
}


# An export takes half a second, and several by torch.export, which these need; so most are slow.
QUICK = {
    ("raw", "onnx"),
    ("cured", "openvino"),
    ("pruned and cured", "onnx"),
    ("projected and smoothed", "onnx"),
}
WHOLE = ("rotary", "merged", "fused", "key norm")
CASES = [
    pytest.param(name, format, marks=[] if (name, format) in QUICK else pytest.mark.slow)
    for name in MODELS
    for format in FORMATS
]


@pytest.mark.parametrize(("name", "format"), CASES)
def test_the_graph_gives_the_same_tokens_for_any_number_of_images(name, format, tmp_path, recwarn):
    if any(word in name for word in WHOLE):
        pytest.importorskip("onnxscript")
    backbone = oblong(MODELS[name]())
    done = export(backbone, tmp_path / "out", format=format)
    assert not recwarn.list  # nobody wants to read about tracing
    assert done.checks[0].relative <= 2e-5 and done.checks[0].ties == 0
    assert done.checks[0].cosine > 0.9999
    again = cv.load(f"{format}:{tmp_path / 'out'}")
    for count in (1, 3):
        pixels = torch.randn(count, 3, *backbone.preprocessing.size)
        ours, theirs = backbone.tokens(pixels), again.tokens(pixels)
        assert torch.allclose(theirs.patches, ours.patches, atol=2e-5)
        assert torch.allclose(theirs.prefix, ours.prefix, atol=2e-5)
        assert theirs.grid == (5, 7) and theirs.prefix_names == ours.prefix_names
        if ours.kept is not None:
            assert torch.equal(theirs.kept, ours.kept) and theirs.kept.dtype is torch.bool


@given(
    st.integers(1, 5), st.integers(1, 5), st.floats(0.05, 1), st.sampled_from(("class", "random"))
)
@settings(deadline=None, max_examples=8)
@pytest.mark.slow
def test_any_grid_and_share(tmp_path_factory, height, width, keep, scorer):
    backbone = prune(load(tiny_network()), keep=keep, scorer=scorer)
    out = tmp_path_factory.mktemp("out")
    done = export(backbone, out, format="onnx", size=(8 * height, 8 * width))
    assert done.checks[0].relative <= 2e-5


@pytest.mark.parametrize("format", [pytest.param("onnx", marks=pytest.mark.slow), "openvino"])
def test_a_fixed_batch_takes_any_number_of_images_in_turns(tmp_path, format):
    backbone = registered()
    done = export(backbone, tmp_path / format, format=format, batch=2)
    assert "2 images at a time" in done.notes[1]
    again = cv.load(f"{format}:{tmp_path / format}")
    for count in (1, 2, 5):
        pixels = torch.randn(count, 3, 32, 32)
        assert torch.allclose(
            again.tokens(pixels).patches, backbone.tokens(pixels).patches, atol=1e-5
        )


def test_what_lies_there(tmp_path):
    backbone = prune(registered(), keep=0.6)
    done = export(backbone, tmp_path / "a", format="onnx", size=(16, 40))
    assert sorted(p.name for p in done.path.iterdir()) == [RECORD, "model.onnx", "runtime.json"]
    facts = json.loads((done.path / CONFIG).read_text())
    assert facts["size"] == [16, 40] and facts["patch"] == [8, 8] and facts["width"] == 24
    assert facts["prefix_names"] == ["class"] + ["register"] * 4 and facts["pruned"]
    assert facts["source"] == backbone.name and facts["preprocessing"]["size"] == [16, 40]
    assert facts["fingerprint"] == backbone.resized((16, 40)).fingerprint()
    assert facts["macs"] == pytest.approx(macs(backbone, (16, 40)).total, rel=1e-3)
    done = export(backbone, tmp_path / "b", format="openvino")
    names = sorted(p.name for p in done.path.iterdir())
    assert names == [RECORD, "model.bin", "model.xml", "runtime.json"]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_the_original_stays_as_it_was(tmp_path):
    backbone = prune_with(registered(), random_predictors(24, 3), keep=0.6)
    pixels = torch.randn(1, 3, 32, 32)
    before, weights = backbone.tokens(pixels).patches, backbone.fingerprint()
    export(backbone, tmp_path / "a", format="onnx", size=64)
    assert torch.equal(backbone.tokens(pixels).patches, before)
    assert backbone.fingerprint() == weights


@pytest.mark.slow
def test_half_precision_is_widened(tmp_path):
    half = prune_with(registered(), random_predictors(24, 3), keep=0.6)
    half.network.bfloat16(), half.predictors.bfloat16()
    assert export(half, tmp_path / "b", format="onnx").checks[0].relative <= 2e-5
    assert half.dtype is torch.bfloat16 and half.predictors[0].in_conv[1].weight.dtype == half.dtype


def test_eight_bits_tell_their_error_and_are_smaller(tmp_path):
    backbone = load(tiny_network(embed_dim=96, num_heads=3))
    whole = export(backbone, tmp_path / "f", format="onnx")
    done = export(backbone, tmp_path / "i", format="onnx", quantize="int8")
    check = done.checks[0]
    assert check.relative > TOLERANCE and 0.99 < check.cosine < 0.99999  # and yet no error
    assert any(f"cosine {check.cosine:.4f}" in note for note in done.notes)
    sizes = [(d.path / "model.onnx").stat().st_size for d in (whole, done)]
    assert sizes[1] < 0.5 * sizes[0]
    assert sorted(p.name for p in done.path.iterdir()) == [RECORD, "model.onnx", "runtime.json"]
    pixels = torch.randn(2, 3, 32, 32)
    ours, theirs = backbone.tokens(pixels).patches, cv.load(f"onnx:{done.path}").tokens(pixels)
    assert torch.cosine_similarity(ours, theirs.patches, dim=-1).mean() > 0.99


@pytest.mark.parametrize(
    ("name", "format"),
    [
        pytest.param("pruned and cured", "openvino", marks=pytest.mark.slow),
        ("no class token", "onnx"),
    ],
)
def test_the_printed_code_runs(name, format, tmp_path):
    done = export(MODELS[name](), tmp_path / "out", format=format)
    names = {}
    exec(done.loading, names)
    assert names["patches"].shape == (1, 16, 24)
    assert ("kept" in names) == (name == "pruned and cured")


@pytest.mark.slow
def test_short_sequences_in_openvino(tmp_path):
    """Its fused attention is wrong for a few tokens in a graph with a fixed number of images."""
    backbone = prune(load(tiny_network(depth=6, embed_dim=192)).resized(64), keep=0.4)
    done = export(backbone, tmp_path / "out", format="openvino", batch=1)
    assert done.checks[0].relative <= 2e-5
    pixels = torch.randn(2, 3, 64, 64)
    again = cv.load(f"openvino:{done.path}")
    assert torch.allclose(again.tokens(pixels).cls, backbone.tokens(pixels).cls, atol=2e-5)


# --- the check can fail -----------------------------------------------------------------------


def test_a_graph_with_other_tokens_is_an_error_and_nothing_appears(tmp_path, monkeypatch):
    right = graph.Graph.forward
    monkeypatch.setattr(graph.Graph, "forward", lambda s, x: tuple(t * 1.01 for t in right(s, x)))
    monkeypatch.setattr(runtime, "EXPORTERS", [graph.write_by_tracing])
    with pytest.raises(ModelError, match="ONNX Runtime computes other tokens"):
        export(registered(), tmp_path / "out", format="onnx")
    assert not list(tmp_path.iterdir())


def test_only_patches_of_equal_score_are_excused(tiny):
    pruned = prune(tiny.resized(96), keep=0.5)  # 144 patches

    class Copy:
        """Change `count` patches of an image by `shift`; exchange `exchanged` kept ones."""

        def __init__(self, image, count, shift, exchanged):
            self.image, self.count, self.shift, self.exchanged = image, count, shift, exchanged
            self.begun = 0

        def forward(self, pixels):
            tokens = pruned.forward(pixels)
            patches, kept = tokens.patches.clone(), tokens.kept.clone()
            place = self.image - self.begun
            if 0 <= place < len(pixels):
                patches[place, : self.count] += self.shift
                for was in (True, False):
                    places = (tokens.kept[place] == was).nonzero()[: self.exchanged, 0]
                    kept[place, places] = not was
            self.begun += len(pixels)
            return dataclasses.replace(tokens, patches=patches, kept=kept)

    def checked(image=0, count=0, shift=1.0, exchanged=0):
        return compare_runtime(pruned, Copy(image, count, shift, exchanged), (96, 96))

    assert checked().relative < 1e-5 and checked().ties == 0
    assert checked(count=1).passed and checked(count=1).ties == 1
    assert not checked(count=2).passed
    for image in (0, 3):  # the last one is a batch of its own
        assert not checked(image, count=144).passed  # the same patches were kept
        assert checked(image, count=144, shift=0.01, exchanged=1).passed
        assert not checked(image, count=144, shift=3.0, exchanged=1).passed
        assert not checked(image, count=144, shift=0.01, exchanged=20).passed


def test_nan_and_other_shapes_never_pass(tiny):
    class Copy:
        def __init__(self, change):
            self.change = change

        def forward(self, pixels):
            tokens = tiny.forward(pixels)
            return dataclasses.replace(tokens, patches=self.change(tokens.patches))

    assert compare_runtime(tiny, Copy(lambda p: p), (32, 32)).relative < 1e-5  # batches differ
    assert not compare_runtime(tiny, Copy(lambda p: p * torch.nan), (32, 32)).passed
    assert not compare_runtime(tiny, Copy(lambda p: p[:, 1:]), (32, 32)).passed
    one = torch.zeros(16, 24)
    one[3, 3] = 0.01
    assert not compare_runtime(tiny, Copy(lambda p: p + one), (32, 32)).passed
    assert synthetic_images((16, 24)).shape == (4, 3, 16, 24)


def test_rounding_may_be_large_in_a_few_of_thousands_of_tokens(tiny):
    """Torch's own rounding exceeds the tolerance in one token of a large grid."""

    class Copy:
        def __init__(self, tokens, by):
            self.tokens, self.by = tokens, by

        def forward(self, pixels):
            found = tiny.forward(pixels)
            patches = found.patches.clone()
            patches[0, : self.tokens] += self.by * float(patches.square().mean().sqrt())
            return dataclasses.replace(found, patches=patches)

    size = (256, 256)  # 4 images of 1025 tokens; the copy sees them in two batches
    assert compare_runtime(tiny, Copy(1, 3e-4), size).passed
    assert not compare_runtime(tiny, Copy(1, 3e-3), size).passed
    assert not compare_runtime(tiny, Copy(20, 3e-4), size).passed


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backbone", "options", "words"),
    [
        (
            lambda: DenoisedBackbone(registered(), DenoiseConfig(views=3)),
            {},
            "model it was made of",
        ),
        (lambda: load(timm.create_model("resnet18")), {}, "grid-only"),
        (registered, {"batch": 0}, "at least 1"),
        (registered, {"quantize": "int4"}, "int8"),
        (registered, {"check": 64}, "no option 'check'"),
        (registered, {"format": "openvino", "quantize": "int8"}, "calibration"),
        (registered, {"format": "timm", "batch": 2}, "no option 'batch'"),
        (registered, {"format": "tflite"}, "timm, hf, onnx, openvino"),
        pytest.param(
            lambda: planted(registered(), kind="high-norm").backbone,
            {},
            "model it was made of",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path, backbone, options, words):
    with pytest.raises((ModelError, OptionError), match=words):
        export(backbone(), tmp_path / "out", **({"format": "onnx"} | options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("format", "library"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_extra_names_the_pip_line(format, library, tmp_path, monkeypatch):
    right = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == library else right(n))
    with pytest.raises(ModelError, match=rf"{library}.*pip install 'clearvit\[runtime\]'"):
        export(registered(), tmp_path / "out", format=format)


def test_foreign_folders_are_left_alone_and_own_ones_replaced(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    with pytest.raises(StoreError, match="choose another directory"):
        export(registered(), tmp_path / "photos", format="onnx")
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "meow"
    out = tmp_path / "out"
    export(registered(), out, format="openvino")
    export(registered(), out, format="onnx")
    assert sorted(p.name for p in out.iterdir()) == [RECORD, "model.onnx", "runtime.json"]
    with pytest.raises(ZeroDivisionError), atomic_folder(out) as folder:
        (folder / "half").write_text("done")
        _ = 1 / 0
    assert sorted(p.name for p in out.iterdir()) == [RECORD, "model.onnx", "runtime.json"]
    assert len(list(tmp_path.iterdir())) == 2


# --- the command, and real weights ------------------------------------------------------------


def test_the_command(tmp_path):
    model = f"dir:{cv.save(prune(registered(), keep=0.6), tmp_path / 'model')}"
    line = ("export", model, "--format", "openvino", "--out", tmp_path / "ov", "--size", "16x24")
    done = invoke(*line, "--batch", 3)
    assert done.exit_code == 0, done.output
    assert "OpenVINO gives the same tokens at 16x24 px" in done.stdout
    assert "of their RMS" in done.stdout and "3 images at a time" in done.stderr
    exec(done.stdout, {})
    done = invoke(*line[:3], "onnx", *line[4:], "--quantize", "int8", "--json")
    result = json.loads(done.stdout)
    assert result["reader"] == "ONNX Runtime" and result["checks"][0]["size"] == [16, 24]
    assert 1e-4 < result["checks"][0]["relative"] and result["checks"][0]["cosine"] < 1
    assert "int8 changes the tokens: mean cosine" in done.stderr


@pytest.mark.parametrize("format", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_real_weights_pruned_at_another_size(demo_backbone, tmp_path, format):
    backbone = prune(load(demo_backbone, size=112), keep=0.7)
    pixels = torch.randn(2, 3, 112, 112)
    ours = backbone.tokens(pixels)
    done = export(backbone, tmp_path / format, format=format)
    assert done.checks[0].relative <= TOLERANCE
    theirs = cv.load(f"{format}:{done.path}").tokens(pixels)
    assert isinstance(theirs, Tokens) and torch.equal(theirs.kept, ours.kept)
    assert torch.cosine_similarity(theirs.patches, ours.patches, dim=-1).min() > 0.999
