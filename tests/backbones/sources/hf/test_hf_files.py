"""Files of Hugging Face models: shards, processors, the hub, and what to say when they are bad."""

import json

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import errors as hub_errors
from safetensors.torch import load_file, save_file

from clearvit.backbones.load import load
from clearvit.backbones.sources.hf import hf_files
from clearvit.backbones.sources.hf.families import blueprint_for
from clearvit.backbones.sources.hf.load_hf import from_hf, load_hf
from clearvit.errors import ModelError
from tests.helpers.hf_models import NATIVE, saved_model, sequence


@pytest.fixture
def folder(tmp_path):
    saved_model("dinov2", tmp_path)
    return tmp_path


def rewritten(folder, change):
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path, metadata={"format": "pt"})


def edited(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_shards_are_joined(folder, tmp_path_factory):
    whole = load_hf(str(folder))
    other = tmp_path_factory.mktemp("shards")
    model = transformers.Dinov2Model.from_pretrained(folder)
    model.save_pretrained(other, max_shard_size="40KB")
    assert len(list(other.glob("*.safetensors"))) > 1
    assert load_hf(str(other)).network.state_dict().keys() == whole.network.state_dict().keys()
    assert torch.equal(
        sequence(load_hf(str(other)), torch.ones(1, 3, *NATIVE)),
        sequence(whole, torch.ones(1, 3, *NATIVE)),
    )
    next(other.glob("*-of-*.safetensors")).unlink()
    with pytest.raises(ModelError, match=r"lacks model-00001-of-.*safetensors"):
        load_hf(str(other))


def test_half_precision_is_read_as_float32(folder):
    rewritten(folder, lambda state: state.update({k: t.half() for k, t in state.items()}))
    assert {t.dtype for t in load_hf(str(folder)).network.state_dict().values()} == {torch.float32}


def test_preprocessing_is_read(folder):
    assert load_hf(str(folder)).preprocessing.mean == (0.485, 0.456, 0.406)
    content = {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3], "resample": 2}
    content |= {"size": {"shortest_edge": 99}, "crop_size": {"height": 88, "width": 88}}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    read = load_hf(str(folder)).preprocessing
    assert read.mean == (0.1, 0.2, 0.3) and read.std == (1.0, 2.0, 3.0)
    assert read.interpolation == "bilinear" and read.size == NATIVE
    (folder / "preprocessor_config.json").rename(folder / "x.json")
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": content}))
    assert load_hf(str(folder)).preprocessing == read


def test_no_normalising_means_plain_pixels(folder):
    (folder / "preprocessor_config.json").write_text('{"do_normalize": false}')
    read = load_hf(str(folder)).preprocessing
    assert read.mean == (0.0, 0.0, 0.0) and read.std == (1.0, 1.0, 1.0)


# --- errors -----------------------------------------------------------------------------------


def test_missing_and_extra_keys_are_listed(folder):
    def change(state):
        del state["encoder.layer.1.attention.attention.key.bias"]
        del state["layernorm.weight"]
        state["encoder.layer.0.adapter.weight"] = torch.ones(2)

    rewritten(folder, change)
    with pytest.raises(ModelError) as caught:
        load_hf(str(folder))
    message = str(caught.value)
    assert "differences: 3" in message
    assert "missing encoder.layer.1.attention.attention.key.bias" in message
    assert "missing layernorm.weight" in message
    assert "unexpected encoder.layer.0.adapter.weight" in message


def test_wrong_shape_is_listed(folder):
    rewritten(folder, lambda state: state.update({"layernorm.weight": torch.ones(7)}))
    with pytest.raises(ModelError, match=r"norm.weight is \(7,\), the network wants \(48,\)"):
        load_hf(str(folder))


def test_wrong_shape_inside_a_fused_tensor_is_listed(folder):
    name = "encoder.layer.0.attention.attention.key.weight"
    rewritten(folder, lambda state: state.update({name: torch.ones(48, 5)}))
    with pytest.raises(ModelError, match=rf"wrong shape: .*{name} \(48, 5\)"):
        load_hf(str(folder))


def test_weights_that_contradict_use_swiglu_are_listed(folder):
    edited(folder, use_swiglu_ffn=True)
    with pytest.raises(ModelError, match=r"missing encoder.layer.0.mlp.weights_in.weight"):
        load_hf(str(folder))


def test_long_lists_are_cut(folder):
    edited(folder, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"differences: 36(.|\n)*and 16 more"):
        load_hf(str(folder))


def test_part_of_a_pooling_head_is_an_error(tmp_path):
    saved_model("siglip", tmp_path)
    rewritten(tmp_path, lambda state: state.pop("head.mlp.fc1.bias"))
    with pytest.raises(ModelError, match=r"missing attn_pool.mlp.fc1.bias"):
        load_hf(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "dinov22"}, r"supported: vit,.* Closest: dinov2"),
        ({"model_type": None}, "names no model_type"),
        ({"hidden_act": "gelu_10"}, "'gelu_10'.*cannot be held"),
        ({"num_channels": 1}, "wants 1 channels"),
        ({"hidden_size": "wide"}, "whole number from 1"),
        ({"patch_size": [1, 2, 3]}, "a list of 2"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)
def test_config_that_cannot_be_used(folder, changes, message):
    edited(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load_hf(str(folder))


@pytest.mark.parametrize(
    "changes", [{"key_bias": True}, {"value_bias": False}, {"mlp_bias": False}], ids=str
)
def test_dinov3_that_timm_cannot_hold(changes):
    with pytest.raises(ModelError, match=f"cannot hold {next(iter(changes))}="):
        blueprint_for({}, {"model_type": "dinov3_vit", **changes})


def test_vision_config_that_is_no_object():
    with pytest.raises(ModelError, match="vision_config is no object"):
        from_hf({}, {"model_type": "clip", "vision_config": "base"})


def test_missing_and_malformed_files(folder):
    (folder / "preprocessor_config.json").write_text('{"image_mean": 3}')
    with pytest.raises(ModelError, match=r"preprocessor_config.json is malformed"):
        load_hf(str(folder))
    (folder / "preprocessor_config.json").unlink()
    for content in ("{", "[]"):
        (folder / "config.json").write_text(content)
        with pytest.raises(ModelError, match=r"'config.json' of .* is malformed"):
            load_hf(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config.json"):
        load_hf(str(folder))


def test_damaged_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"damaged; download it again"):
        load_hf(str(folder))


def test_pickles_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"never loads them. Convert"):
        load_hf(str(folder))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"has no model.safetensors"):
        load_hf(str(folder))


@pytest.mark.parametrize("name", ["./nowhere", "/no/where", "a/b/c"])
def test_directory_that_does_not_exist(name):
    with pytest.raises(ModelError, match="does not exist"):
        load_hf(name)


def test_id_that_the_hub_would_not_accept():
    with pytest.raises(ModelError, match=r"the hub has no model 'no id!'"):
        load_hf("no id!")


def hub_error(kind):
    error = kind.__new__(kind)  # the constructors want an answer of a server
    Exception.__init__(error, "refused")
    return error


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (hub_errors.GatedRepoError, "is gated: accept its terms"),
        (hub_errors.RepositoryNotFoundError, "the hub has no model 'some/model'"),
        (hub_errors.RevisionNotFoundError, "has no revision 'v2'"),
        (hub_errors.LocalEntryNotFoundError, "local directory, or start with the model 'demo'"),
        (hub_errors.OfflineModeIsEnabled, "local directory, or start with the model 'demo'"),
        (hub_errors.EntryNotFoundError, "has no config.json"),
        (ConnectionError, "Check the id and the connection"),
    ],
)
def test_hub_errors_name_a_remedy(monkeypatch, kind, message):
    def download(repository, filename, revision=None):
        assert (repository, filename, revision) == ("some/model", "config.json", "v2")
        raise hub_error(kind)

    monkeypatch.setattr(hf_files, "why_unreachable", lambda repository: "")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(ModelError, match=message):
        load("hf:some/model@v2")


@pytest.mark.parametrize(
    "absent", [hub_errors.EntryNotFoundError, hub_errors.LocalEntryNotFoundError]
)
def test_hub_id_is_loaded(monkeypatch, folder, absent):
    """Files that a repository or the offline cache lacks are no error unless they are needed."""

    def download(repository, filename, revision=None):
        if not (folder / filename).is_file():
            raise hub_error(absent)
        return str(folder / filename)

    monkeypatch.setattr(hf_files, "why_unreachable", lambda repository: "")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    backbone = load("hf:some/model")
    assert backbone.name == "hf:some/model"
    assert backbone.fingerprint() == load_hf(str(folder)).fingerprint()
