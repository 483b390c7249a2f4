"""CvT gives the last stage of transformers as a grid."""

import builtins
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearvit.backbones.load import load
from clearvit.errors import ModelError

transformers = pytest.importorskip("transformers")

STAGES = {
    "embed_dim": [8, 16, 24],
    "num_heads": [1, 2, 3],
    "depth": [1, 2, 3],
    "drop_path_rate": [0.0, 0.0, 0.1],
}


def saved_model(folder, kind="CvtModel", **settings):
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.CvtConfig(**STAGES, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for key, buffer in model.named_buffers():  # batch norm must use its statistics
            if key.endswith("running_mean"):
                buffer.normal_()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["CvtModel", "CvtForImageClassification"])
@pytest.mark.parametrize("size", [(64, 64), (48, 96)], ids=str)
def test_tokens_are_those_of_transformers(tmp_path, kind, size):
    model = saved_model(tmp_path, kind)
    backbone = load(f"hf:{tmp_path}")
    pixels = torch.randn(2, 3, *size)
    tokens = backbone.tokens(pixels)
    with torch.no_grad():
        expected = getattr(model, "cvt", model)(pixels)
    assert tokens.grid == (size[0] // 16, size[1] // 16)
    assert (tokens.map - expected.last_hidden_state).abs().max() <= 1e-5
    assert (tokens.prefix - expected.cls_token_value).abs().max() <= 1e-5
    assert backbone.patch == (16, 16) and backbone.width == 24 == tokens.cls.shape[1]


def test_without_class_token(tmp_path):
    saved_model(tmp_path, cls_token=[False, False, False])
    tokens = load(f"hf:{tmp_path}").tokens(torch.randn(2, 3, 32, 32))
    assert tokens.cls is None and tokens.prefix.shape == (2, 0, 24)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(384, (384, 384)), ({"shortest_edge": 96}, (96, 96)), ({"height": 64, "width": 32}, (64, 32))],
)
def test_size_comes_from_the_processor(tmp_path, size, expected):
    saved_model(tmp_path)
    assert load(f"hf:{tmp_path}").preprocessing.size == (224, 224)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": size, "resample": 2}))
    read = load(f"hf:{tmp_path}").preprocessing
    assert read.size == expected and read.interpolation == "bilinear"


def test_malformed_size(tmp_path):
    saved_model(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": "large"}')
    with pytest.raises(ModelError, match="malformed: size 'large'"):
        load(f"hf:{tmp_path}")


def test_keys_that_do_not_fit_are_listed(tmp_path):
    saved_model(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    lost = next(key for key in state if key.endswith("stages.2.cls_token"))
    del state[lost]
    state["stranger"] = torch.ones(1)
    save_file(state, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"missing {lost}(.|\n)*unexpected stranger"):
        load(f"hf:{tmp_path}")


def test_pickles_are_refused(tmp_path):
    saved_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="never loads them"):
        load(f"hf:{tmp_path}")


def test_missing_library_names_the_extra(tmp_path, monkeypatch):
    saved_model(tmp_path)
    plain = builtins.__import__

    def refuse(name, *arguments, **options):
        if name == "transformers":
            raise ImportError(name)
        return plain(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModelError, match=r"pip install 'clearvit\[hf\]'"):
        load(f"hf:{tmp_path}")
