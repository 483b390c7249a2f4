"""Directories of strangers: no code, no other files, no endless memory, one sentence each."""

import json
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from clearvit.backbones.blueprint import Blueprint
from clearvit.backbones.guarded_timm import timm
from clearvit.backbones.load import load, pick_device
from clearvit.backbones.saved import save
from clearvit.backbones.sources.hf.load_hf import load_hf
from clearvit.errors import ClearvitError, ModelError, OptionError
from clearvit.pruning.prune import prune
from tests.conftest import tiny_network


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A pruned model on disk: both of our own JSON files."""
    return save(prune(load(tiny_network()), keep=0.5), tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def edit(saved, tmp_path):
    """Give a copy of the model whose JSON was changed."""

    def edited(change, name="clearvit.json"):
        for path in saved.iterdir():
            if path.is_file():
                (tmp_path / path.name).write_bytes(path.read_bytes())
        content = json.loads((saved / name).read_text())
        content = change(content) or content
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return f"dir:{tmp_path}"

    return edited


def arguments(**changes):
    return lambda content: content["blueprint"]["arguments"].update(changes)


def at(*keys, value):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


def without(*keys):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return change


LIES = {
    "a pickle by checkpoint_path": arguments(checkpoint_path="x.pth"),
    "weights of a url": arguments(pretrained_cfg={"url": "http://evil"}),
    "another class": arguments(block_fn="os.system"),
    "the hub": at("blueprint", "architecture", value="hf-hub:evil/x"),
    "another directory": at("blueprint", "architecture", value="local-dir:/tmp"),
    "no ViT": lambda c: c.update(blueprint={"architecture": "resnet18"}),
    "no architecture": without("blueprint", "architecture"),
    "architecture 5": at("blueprint", "architecture", value=5),
    "depth -1": arguments(depth=-1),
    "depth 1e9": arguments(depth=10**9),
    "depth as text": arguments(depth="3"),
    "a width that does not end": arguments(embed_dim=65535, num_heads=1, depth=512),
    "heads that do not divide": arguments(num_heads=5),
    "patch 0": arguments(patch_size=0),
    "image 1e9": arguments(img_size=[10**9, 10**9]),
    "image 65536": arguments(img_size=[65536, 65536]),
    "epsilon": at("blueprint", "epsilon", value="small"),
    "infinite epsilon": at("blueprint", "epsilon", value=float("inf")),
    "blueprint is a list": at("blueprint", value=[]),
    "mean of one": at("preprocessing", "mean", value=[0.5]),
    "std 0": at("preprocessing", "std", value=[0, 0, 0]),
    "size 0": at("preprocessing", "size", value=[0, 0]),
    "fit zz": at("preprocessing", "fit", value="zz"),
    "interpolation": at("preprocessing", "interpolation", value="magic"),
    "no preprocessing": without("preprocessing"),
    "positions": at("positions", value="nearby"),
    "no positions": without("positions"),
    "neurons of block 99": lambda c: c.update(neurons={"99": [0]}),
    "neurons of block x": lambda c: c.update(neurons={"x": [0]}),
    "output steps unknown": lambda c: c.update(output={"run": "me"}),
    "a head unknown": lambda c: c.update(head="evil"),
    "an unknown key": lambda c: c.update(hook="evil"),
    "another format": at("format", value=99),
    "a list": lambda c: "[1, 2]",
    "no JSON": lambda c: "{",
    "bytes": lambda c: "\x00\x01",
    "deep nesting": lambda c: "[" * 100_000,
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES.keys())
def test_a_lying_clearvit_json_is_one_sentence(edit, change, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *a, **o: pytest.fail("a pickle was opened"))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *a, **o: pytest.fail("the hub"))
    with pytest.raises(ModelError):
        load(edit(change))


@pytest.mark.parametrize(
    "change",
    [
        at("stages", value=5),
        at("stages", value=[0]),
        at("stages", value=[99]),
        at("keep", value=[2]),
        at("keep", value="2x"),
        at("scorer", value="evil"),
        at("fill", value=None),
        at("merge", value="yes"),
        without("keep"),
        lambda c: "null",
    ],
)
def test_a_lying_pruned_json_is_one_sentence(edit, change):
    with pytest.raises(ModelError):
        load(edit(change, "pruned.json"))


def test_weights_that_are_a_pipe_do_not_wait(edit, tmp_path):
    name = edit(lambda c: None)
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="no regular file"):
        load(name)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_when_loaded(edit, tmp_path, value):
    name = edit(lambda c: None)
    state = load_file(tmp_path / "model.safetensors")
    state["blocks.1.mlp.fc1.bias"][0] = value
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"blocks\.1\.mlp\.fc1\.bias.*NaN or infinity"):
        load(name)


def test_integer_weights_are_refused(edit, tmp_path):
    name = edit(lambda c: None)
    state = {key: t.to(torch.int8) for key, t in load_file(tmp_path / "model.safetensors").items()}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="int8"):
        load(name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_at_any_key_is_refused_or_loads(edit, data):
    def change(content):
        while True:
            key = data.draw(st.sampled_from(sorted(content)))
            inner = content[key]
            if not (isinstance(inner, dict) and inner and data.draw(st.booleans())):
                content[key] = data.draw(JSON)
                return
            content = inner

    name = edit(change, data.draw(st.sampled_from(["clearvit.json", "pruned.json"])))
    try:
        load(name)
    except ClearvitError:
        pass


def test_timm_builds_only_what_is_listed():
    for wrong in ("resnet18/..", "hf-hub:a/b", "", "vit tiny", "no_such_model", 5):
        with pytest.raises(ModelError, match="no architecture of timm"):
            Blueprint(wrong).build()
    with pytest.raises(ModelError, match="'scriptable' is unknown"):
        Blueprint("vit_tiny_patch16_224", {"scriptable": True}).build()


HF = {
    "model_type": "vit",
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}


@pytest.mark.parametrize(
    "change",
    [
        {"patch_size": 0},
        {"patch_size": -16},
        {"num_attention_heads": 0},
        {"num_attention_heads": 5},
        {"num_attention_heads": -3},
        {"image_size": 10**9},
        {"hidden_size": 10**9},
        {"num_hidden_layers": 10**9},
        {"layer_norm_eps": "x"},
        {"hidden_act": ["gelu"]},
        {"vision_config": 5, "model_type": "clip"},
    ],
    ids=str,
)
def test_an_absurd_config_json_of_hf_with_fitting_weights_is_one_sentence(tmp_path, change):
    transformers = pytest.importorskip("transformers")
    model = transformers.ViTModel(transformers.ViTConfig(**HF), add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    assert load_hf(str(tmp_path)).width == 24
    (tmp_path / "config.json").write_text(json.dumps({**HF, **change}))
    with pytest.raises(ModelError):
        load_hf(str(tmp_path))


@pytest.mark.parametrize("device", ["abc", "", "meta", "cuda:99", "5", "cuda;x"])
def test_a_device_that_is_not_there_names_the_remedy(device):
    with pytest.raises(OptionError, match=r"auto"):
        pick_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_cuda_without_cuda_names_the_remedy():
    with pytest.raises(OptionError, match=r"[^.]\. Use --device cpu"):
        pick_device("cuda")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is MPS")
def test_of_torchs_own_words_about_a_device_the_first_sentence_is_shown():
    with pytest.raises(OptionError, match="--device cpu") as refused:
        pick_device("mps")  # torch lists every backend of the operator, and blames Facebook's build
    assert len(str(refused.value)) < 300


def test_memory_is_measured_without_code_of_the_working_directory(saved, tmp_path):
    """A downloaded folder may hold a `clearvit/`, a `json.py` or a `torch/` of its own."""
    trap = "open('PWNED', 'w').close()\n"
    for name in ("json.py", "types.py", "torch.py", "clearvit/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(trap)
    code = (
        "import sys; sys.path.remove('');"  # as the installed command has it
        "from clearvit.benchmarking.memory import peak_memory;"
        f"print(peak_memory('dir:{saved}', keep=None, size=(32, 32), batches=[1], threads=1))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.startswith("{1: "), done.stderr
    assert not (tmp_path / "PWNED").exists()


def test_timm_never_unpickles_a_local_directory(tmp_path):
    """Since timm 1.0.26; the lower bound in pyproject.toml is above it."""
    assert tuple(int(part) for part in timm.__version__.split(".")[:3]) >= (1, 0, 26)

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "PWNED"), "w"))

    (tmp_path / "config.json").write_text(
        json.dumps({"architecture": "vit_tiny_patch16_224", "num_classes": 0})
    )
    torch.save(Evil(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError):
        load(f"timm:local-dir:{tmp_path}")
    assert not (tmp_path / "PWNED").exists()
