"""Students of the published code: wrapper-layout files give the tokens of the wrapper."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from torch import nn

from clearvit.backbones.blueprint import Blueprint
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.sources.hf.load_hf import load_hf
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.official import import_official
from clearvit.errors import ModelError

TOLERANCE = 1e-5
WIDTH, DEPTH, REGISTERS = 128, 2, 3


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- DINOv2 ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory):
    """A tiny Dinov2Model, the directory it is in, and registers."""
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=2, mlp_ratio=2,
        image_size=56, patch_size=14,
    )  # fmt: skip
    model = transformers.Dinov2Model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("dinov2")
    model.save_pretrained(folder)
    return model, folder, torch.randn(1, REGISTERS, WIDTH)


def wrapper_state(folder, registers):
    """Every tensor twice, as the wrapper's state dict has it."""
    plain = load_file(folder / "model.safetensors")
    again = {key.replace("embeddings.", "embed.", 1): t for key, t in plain.items()}
    return {"registers": registers, **{f"model.{k}": t for k, t in plain.items()}, **again}


def wrapper_tokens(model, registers, pixels):
    """Registers first, then the class token and the patches: the order of the published code."""
    with torch.no_grad():
        x = torch.cat([registers.expand(len(pixels), -1, -1), model.embeddings(pixels)], dim=1)
        if hasattr(model, "encoder"):
            x = model.encoder(x).last_hidden_state
        else:
            for block in model.layers:
                x = block(x)
        x = model.layernorm(x)
    return x[:, REGISTERS], x[:, REGISTERS + 1 :]


def saved(content, path):
    torch.save(content, path)
    return path


def check_dinov2(backbone, model, registers):
    assert backbone.prefix_names == ("class", *["register"] * REGISTERS)
    pixels = torch.randn(2, 3, 56, 56)
    tokens = backbone.tokens(pixels)
    cls, patches = wrapper_tokens(model, registers, pixels)
    assert (tokens.patches - patches).abs().max() <= TOLERANCE
    assert (tokens.cls - cls).abs().max() <= TOLERANCE


def test_dinov2(dinov2, tmp_path):
    model, folder, registers = dinov2
    path = saved(wrapper_state(folder, registers), tmp_path / "student.pth")
    backbone = import_official(path)
    check_dinov2(backbone, model, registers)
    assert backbone.positions == "bicubic-offset"  # that of the transformers it was trained with
    assert backbone.preprocessing.size == (56, 56) and backbone.name == f"official:{path}"


def test_dinov2_of_distributed_training_and_old_files(dinov2, tmp_path):
    model, folder, registers = dinov2
    state = {f"module.{k}": t for k, t in wrapper_state(folder, registers).items()}
    path = tmp_path / "old.pth"
    torch.save({"model_state_dict": state}, path, _use_new_zipfile_serialization=False)
    check_dinov2(import_official(path), model, registers)


@pytest.mark.parametrize("prefix", ["model.embeddings.", "embed."])
def test_only_what_was_trained(dinov2, prefix, tmp_path):
    model, folder, registers = dinov2
    changed = {"position_embeddings": torch.randn(1, 17, WIDTH) * 0.1}
    content = {
        "trainable_state_dict": {
            "registers": registers,
            **{prefix + key: tensor for key, tensor in changed.items()},
        },
        "optimizer_state_dict": {"state": {}, "param_groups": [{"lr": 1e-4}]},
    }
    path = saved(content, tmp_path / "trainable.pth")
    with pytest.raises(ModelError, match=r"only the 2 tensors that were trained.*base="):
        import_official(path)
    backbone = import_official(path, load_hf(str(folder)).resized(28))
    before = model.embeddings.position_embeddings.data
    model.embeddings.position_embeddings.data = changed["position_embeddings"]
    try:
        check_dinov2(backbone, model, registers)
    finally:
        model.embeddings.position_embeddings.data = before


# --- CLIP -----------------------------------------------------------------------------------


class Wrapper(nn.Module):
    """The image tower of OpenAI under its names, with the head the students were trained with."""

    def __init__(self, quick):
        super().__init__()
        self.quick = quick
        self.state = {
            "conv1.weight": torch.randn(WIDTH, 3, 8, 8) * 0.1,
            "class_embedding": torch.randn(WIDTH),
            "positional_embedding": torch.randn(17, WIDTH),
            "proj": torch.randn(WIDTH, 20) * 0.1,
        }
        for norm in ("ln_pre", "ln_post"):
            self.add_norm(norm)
        for i in range(DEPTH):
            block = f"transformer.resblocks.{i}"
            self.add_norm(f"{block}.ln_1")
            self.add_norm(f"{block}.ln_2")
            self.state[f"{block}.attn.in_proj_weight"] = torch.randn(3 * WIDTH, WIDTH) * 0.1
            self.state[f"{block}.attn.in_proj_bias"] = torch.randn(3 * WIDTH) * 0.1
            for name, rows, columns in (
                ("attn.out_proj", WIDTH, WIDTH),
                ("mlp.c_fc", 4 * WIDTH, WIDTH),
                ("mlp.c_proj", WIDTH, 4 * WIDTH),
            ):
                self.state[f"{block}.{name}.weight"] = torch.randn(rows, columns) * 0.05
                self.state[f"{block}.{name}.bias"] = torch.randn(rows) * 0.1

    def add_norm(self, name):
        self.state[f"{name}.weight"] = 1 + 0.1 * torch.randn(WIDTH)
        self.state[f"{name}.bias"] = 0.1 * torch.randn(WIDTH)

    def norm(self, name, x):
        return F.layer_norm(x, (WIDTH,), self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def linear(self, name, x):
        return F.linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def forward(self, pixels, registers):
        """Class token, patches, registers: the order of the published code."""
        s = self.state
        x = F.conv2d(pixels, s["conv1.weight"], stride=8).flatten(2).transpose(1, 2)
        x = torch.cat([s["class_embedding"].expand(len(x), 1, -1), x], dim=1)
        x = x + s["positional_embedding"]
        x = self.norm("ln_pre", torch.cat([x, registers.expand(len(x), -1, -1)], dim=1))
        for i in range(DEPTH - 1):
            block = f"transformer.resblocks.{i}"
            x = x + self.attention(f"{block}.attn", self.norm(f"{block}.ln_1", x))
            hidden = self.linear(f"{block}.mlp.c_fc", self.norm(f"{block}.ln_2", x))
            hidden = hidden * torch.sigmoid(1.702 * hidden) if self.quick else F.gelu(hidden)
            x = x + self.linear(f"{block}.mlp.c_proj", hidden)
        last = f"transformer.resblocks.{DEPTH - 1}"
        weight, bias = (s[f"{last}.attn.in_proj_{kind}"][-WIDTH:] for kind in ("weight", "bias"))
        value = F.linear(self.norm(f"{last}.ln_1", x), weight, bias)
        return self.norm("ln_post", self.linear(f"{last}.attn.out_proj", value)) @ s["proj"]

    def attention(self, name, x):
        stacked = F.linear(
            x, self.state[f"{name}.in_proj_weight"], self.state[f"{name}.in_proj_bias"]
        )
        q, k, v = (t.unflatten(-1, (2, 64)).transpose(1, 2) for t in stacked.chunk(3, dim=-1))
        weights = (q @ k.transpose(-2, -1) / 8).softmax(-1)
        return self.linear(f"{name}.out_proj", (weights @ v).transpose(1, 2).flatten(2))


def check_clip(backbone, wrapper, registers):
    pixels = torch.randn(2, 3, 32, 32)
    theirs = wrapper(pixels, registers)
    tokens = backbone.tokens(pixels)
    assert tokens.patches.shape == (2, 16, 20)
    scale = theirs.square().mean().sqrt()
    assert (tokens.patches - theirs[:, 1:17]).abs().max() <= TOLERANCE * scale
    assert (tokens.cls - theirs[:, 0]).abs().max() <= TOLERANCE * scale


@pytest.mark.parametrize(
    ("prefix", "quick", "rule"),
    [
        ("vit.", True, "bicubic-offset"),
        ("vit.", False, "bicubic-offset"),
        ("original_image_encoder.", True, "bicubic"),
    ],
)
def test_clip(prefix, quick, rule, tmp_path):
    wrapper, registers = Wrapper(quick), torch.randn(REGISTERS, WIDTH)
    state = {prefix + key: tensor for key, tensor in wrapper.state.items()}
    path = saved({"register_tokens": registers, **state}, tmp_path / "clip.pth")
    backbone = import_official(path, activation="quick_gelu" if quick else "gelu")
    check_clip(backbone, wrapper, registers)
    assert backbone.positions == rule and backbone.head == "maskclip"
    other = import_official(path, activation="gelu" if quick else "quick_gelu")
    pixels = torch.randn(1, 3, 32, 32)
    assert not torch.allclose(other.tokens(pixels).patches, backbone.tokens(pixels).patches)


def test_clip_with_a_table_of_three_axes_and_a_base(tmp_path):
    """The published code leaves an axis too many in the table, and doubles its side."""
    wrapper, registers = Wrapper(quick=False), torch.randn(REGISTERS, WIDTH)
    arguments = {
        "img_size": [16, 16], "patch_size": [8, 8], "embed_dim": WIDTH, "depth": DEPTH,
        "num_heads": 2, "act_layer": "gelu", "num_classes": 20, "global_pool": "token",
    }  # fmt: skip
    blueprint = Blueprint("vit_base_patch16_clip_224", arguments, 1e-5)
    network = blueprint.build()
    nn.init.zeros_(network.head.bias)
    preprocessing = Preprocessing((16, 16), (0.5,) * 3, (0.5,) * 3)
    base = VitBackbone(network, preprocessing, name="base", blueprint=blueprint)
    trained = {"vit." + key: tensor for key, tensor in wrapper.state.items()}
    trained["vit.positional_embedding"] = wrapper.state["positional_embedding"][None]
    content = {"trainable_state_dict": {"register_tokens": registers, **trained}}
    path = saved(content, tmp_path / "clip.pth")
    check_clip(import_official(path, base), wrapper, registers)


# --- refusals -------------------------------------------------------------------------------


def test_unknown_names_are_listed(dinov2, tmp_path):
    _, folder, registers = dinov2
    state = wrapper_state(folder, registers) | {"decoder.weight": torch.zeros(1)}
    with pytest.raises(ModelError, match=r"no student of PH-Reg has: decoder\.weight"):
        import_official(saved(state, tmp_path / "x.pth"))


def test_missing_tensors_are_named(dinov2, tmp_path):
    _, folder, registers = dinov2
    state = wrapper_state(folder, registers)
    lost = {k: t for k, t in state.items() if "layer.1.mlp.fc1.bias" not in k}
    with pytest.raises(ModelError, match=r"missing encoder\.layer\.1\.mlp\.fc1\.bias"):
        import_official(saved(lost, tmp_path / "x.pth"))
    lost = {k: t for k, t in state.items() if "position_embeddings" not in k}
    with pytest.raises(ModelError, match=r"incomplete: .*position_embeddings"):
        import_official(saved(lost, tmp_path / "y.pth"))


def test_copies_that_differ_are_refused(dinov2, tmp_path):
    _, folder, registers = dinov2
    state = wrapper_state(folder, registers)
    state["layernorm.bias"] = state["layernorm.bias"] + 1
    with pytest.raises(ModelError, match=r"'layernorm\.bias' twice"):
        import_official(saved(state, tmp_path / "x.pth"))


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("code of a checkpoint was run",))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_would_run_code_is_refused(zipped, tmp_path):
    path = tmp_path / "x.pth"
    torch.save({"registers": Harmful()}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match="could run code"):
        import_official(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ModelError, match="there is no checkpoint"):
        import_official(tmp_path / "nowhere.pth")
    with pytest.raises(ModelError, match="no student of PH-Reg"):
        import_official(saved({"weight": torch.zeros(2)}, tmp_path / "x.pth"))
    with pytest.raises(ModelError, match="holds no tensors"):
        import_official(saved({"epoch": 3}, tmp_path / "y.pth"))
    (tmp_path / "z.pth").write_bytes(b"no checkpoint at all")
    with pytest.raises(ModelError):
        import_official(tmp_path / "z.pth")
