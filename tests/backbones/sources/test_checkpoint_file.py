"""Checkpoint files: every layout gives the same tokens, strangers' files are refused."""

import argparse
import io
import pickle
import zipfile

import pytest
import timm
import torch
from safetensors.torch import save_file

import clearvit as cv
from clearvit.backbones.sources.checkpoint_file import read_checkpoint, split_name
from clearvit.errors import ModelError
from tests.conftest import randomised

ARCH = "test_vit"  # 160 px, patch 16, 0.4 million weights
PIXELS = torch.rand(2, 3, 160, 160, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return randomised(timm.create_model(ARCH, num_classes=0))


def under(prefix, state):
    return {f"{prefix}{key}": tensor for key, tensor in state.items()}


def worse(state):
    return {key: tensor + 1 for key, tensor in state.items()}


def layouts(state):
    head = {"head.mlp.0.weight": torch.zeros(4, 4), "head.last_layer.weight_g": torch.zeros(4)}
    return {
        "plain": state,
        "timm": {"arch": ARCH, "epoch": 3, "state_dict": worse(state), "state_dict_ema": state},
        "deit": {"model": state, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}},
        "distributed": {"state_dict": under("module.", state)},
        "compiled": under("_orig_mod.", state),
        "dino": {
            "student": under("module.backbone.", worse(state)),
            "teacher": {**under("backbone.", state), **head},
            "args": argparse.Namespace(arch="vit_small", patch_size=16),
            "dino_loss": {"center": torch.zeros(1, 8)},
        },
        "mae": {
            "model": {
                **state,
                "mask_token": torch.zeros(1, 1, 8),
                "decoder_embed.weight": torch.zeros(8, 8),
                "decoder_blocks.0.norm1.weight": torch.zeros(8),
            }
        },
        "lightly": {
            "state_dict": {
                **under("student_backbone.vit.", worse(state)),
                **under("teacher_backbone.vit.", state),
                "projection_head.layers.0.weight": torch.zeros(4, 4),
            },
            "pytorch-lightning_version": "2.0",
        },
        "chunked": {
            "teacher": under(
                "backbone.", {key.replace("blocks.", "blocks.0."): t for key, t in state.items()}
            )
        },
    }


@pytest.mark.parametrize("layout", layouts({}).keys())
def test_every_layout_gives_the_tokens_of_the_network(layout, network, tmp_path):
    file = tmp_path / "best.pth"
    torch.save(layouts(network.state_dict())[layout], file)
    backbone = cv.load(f"timm:{ARCH}@{file}")
    with torch.no_grad():
        torch.testing.assert_close(
            backbone.tokens(PIXELS).patches, network.forward_features(PIXELS)[:, 1:]
        )
    assert str(file) in backbone.note


def test_safetensors_with_a_classifier_and_another_size_and_back_from_disk(tmp_path):
    torch.manual_seed(0)
    trained = randomised(timm.create_model(ARCH, num_classes=7, img_size=192))
    save_file(trained.state_dict(), tmp_path / "a@b.safetensors")
    backbone = cv.load(f"timm:{ARCH}@{tmp_path / 'a@b.safetensors'}")
    assert backbone.preprocessing.size == (192, 192) and backbone.network.num_classes == 7
    cv.save(backbone, tmp_path / "saved")
    again = cv.load(f"dir:{tmp_path / 'saved'}")
    pixels = torch.rand(1, 3, 192, 192)
    torch.testing.assert_close(again.tokens(pixels).patches, backbone.tokens(pixels).patches)


def test_average_pooling_of_a_fine_tuned_mae(tmp_path):
    torch.manual_seed(0)
    trained = randomised(timm.create_model(ARCH, num_classes=3, global_pool="avg"))
    assert "fc_norm.weight" in trained.state_dict()
    torch.save({"model": trained.state_dict()}, tmp_path / "ft.pth")
    backbone = cv.load(f"timm:{ARCH}@{tmp_path / 'ft.pth'}")
    assert backbone.network.global_pool == "avg"


def test_normalization_follows_the_trainer_the_tag_or_the_recipe(network, tmp_path):
    state = network.state_dict()
    options = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    torch.save({"state_dict": state, "args": argparse.Namespace(**options)}, tmp_path / "t.pth")
    torch.save({"teacher": under("backbone.", state)}, tmp_path / "d.pth")
    assert cv.load(f"timm:{ARCH}@{tmp_path / 't.pth'}").preprocessing.mean == (0.1, 0.2, 0.3)
    imagenet = (0.485, 0.456, 0.406)
    assert cv.load(f"timm:{ARCH}@{tmp_path / 'd.pth'}").preprocessing.mean == imagenet
    tagged = cv.load(f"timm:{ARCH}.r160_in1k@{tmp_path / 'd.pth'}").preprocessing
    assert tagged.mean == (0.5, 0.5, 0.5)


def test_a_network_without_attention_loads_too(tmp_path):
    torch.manual_seed(0)
    trained = timm.create_model("test_convnext", num_classes=5).eval()
    torch.save({"model": trained.state_dict()}, tmp_path / "c.pth")
    backbone = cv.load(f"timm:test_convnext@{tmp_path / 'c.pth'}")
    assert backbone.tokens(torch.rand(1, 3, 160, 160)).grid == (5, 5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s.pop("norm.weight"), "missing norm.weight"),
        (lambda s: s.update({"extra.weight": torch.zeros(2)}), "unexpected extra.weight"),
        (lambda s: s.update({"norm.weight": torch.zeros(7)}), "the network wants"),
        (lambda s: s.pop("patch_embed.proj.weight"), "patch_embed.proj.weight"),
    ],
)
def test_differences_are_listed(change, expected, network, tmp_path):
    state = dict(network.state_dict())
    change(state)
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(ModelError, match=expected):
        cv.load(f"timm:{ARCH}@{tmp_path / 'x.pth'}")


def test_another_architecture_is_named(tmp_path):
    torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), tmp_path / "x.pth")
    with pytest.raises(ModelError, match=r"channels: 192 in the file.*timm:vit_tiny_patch16_224@"):
        cv.load(f"timm:{ARCH}@{tmp_path / 'x.pth'}")


def test_names():
    assert split_name("arch.tag")[1] is None
    assert split_name("hf-hub:user/name@main") == ("hf-hub:user/name@main", None)
    assert split_name("arch.tag@a/b@c.pth")[0] == "arch.tag"
    assert split_name("arch.tag@a/b@c.pth")[1].as_posix() == "a/b@c.pth"
    for name, words in {
        f"timm:{ARCH}@": "must follow",
        f"timm:{ARCH}@nowhere.pth": "there is no checkpoint file",
        "timm:vit_tny@x.pth": "no architecture",
        "best.pth": "needs its architecture",
    }.items():
        with pytest.raises(ModelError, match=words):
            cv.load(name)


def test_other_libraries_are_recognized(tmp_path):
    torch.save({"visual.conv1.weight": torch.zeros(4, 3, 2, 2)}, tmp_path / "clip.pt")
    with pytest.raises(ModelError, match="openclip:"):
        cv.load(f"timm:{ARCH}@{tmp_path / 'clip.pt'}")


class Attack:
    def __reduce__(self):
        return (print, ("code was run",))


def repeated(depth):
    value = {"t": torch.zeros(1)}
    for _ in range(depth):
        value = dict.fromkeys("abcdefghij", value)
    return value


HOSTILE = {
    "code": {"model": Attack()},
    "expanded": {"patch_embed.proj.weight": torch.zeros(1).expand(1 << 40)},
    "sparse": {"patch_embed.proj.weight": torch.eye(3).to_sparse()},
    "meta": {"patch_embed.proj.weight": torch.zeros(3, device="meta")},
    "laughs": repeated(6),
    "deep": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"t": torch.zeros(1)}}}}}}}}},
    "numbers": [1, 2, 3],
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("kind", HOSTILE)
def test_strangers_files_end_in_one_sentence(kind, legacy, tmp_path, capsys):
    file = tmp_path / "x.pth"
    torch.save(HOSTILE[kind], file, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ModelError):
        cv.load(f"timm:{ARCH}@{file}")
    assert "code was run" not in capsys.readouterr().out


def test_damaged_and_compressed_files(network, tmp_path):
    whole = io.BytesIO()
    torch.save(network.state_dict(), whole)
    content = whole.getvalue()
    for number, part in enumerate((b"", b"abc", content[:5000], content[5000:], pickle.dumps(3))):
        file = tmp_path / f"{number}.pth"
        file.write_bytes(part)
        with pytest.raises(ModelError):
            read_checkpoint(file)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(tmp_path / "z.pth", "w", 8) as new:
        for member in old.namelist():
            new.writestr(member, old.read(member))
    with pytest.raises(ModelError, match="compressed"):
        read_checkpoint(tmp_path / "z.pth")


@pytest.mark.parametrize("content", [b"", b"hello"])
def test_a_file_of_another_kind_is_called_damaged_in_words(content, tmp_path):
    file = tmp_path / "notes.pth"  # it was "cannot read …: 101", pickle's code for "e"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"damaged: it is no file of torch\.save"):
        read_checkpoint(file)


def test_official_dinov2_with_registers(tmp_path):
    arch = "vit_small_patch14_reg4_dinov2"
    torch.manual_seed(0)
    network = timm.create_model(arch, num_classes=0, img_size=98).eval()
    state = dict(network.state_dict())
    first = torch.randn(1, 1, 384)  # there, the class token has a position of its own
    state["cls_token"] = state["cls_token"] - first
    state["pos_embed"] = torch.cat([first, state["pos_embed"]], 1)
    state["register_tokens"] = state.pop("reg_token")
    state["mask_token"] = torch.zeros(1, 384)
    torch.save({"teacher": under("backbone.", state)}, tmp_path / "dinov2.pth")
    backbone = cv.load(f"timm:{arch}@{tmp_path / 'dinov2.pth'}")
    assert backbone.preprocessing.size == (98, 98)
    pixels = torch.rand(1, 3, 98, 98)
    with torch.no_grad():
        torch.testing.assert_close(
            backbone.tokens(pixels).patches,
            network.forward_features(pixels)[:, 5:],
            atol=1e-4,
            rtol=1e-4,
        )
