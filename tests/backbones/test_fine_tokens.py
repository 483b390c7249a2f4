"""The head for fine tokens: what it is at any size, and how it is kept."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.output import FINE_HEAD, FineHead
from clearvit.backbones.saved import save
from clearvit.errors import ClearvitError, ModelError
from tests.helpers.photos import soft_photos


@pytest.fixture
def fine(tiny):
    """A tiny ViT with a head of random weights."""
    other = copy.copy(tiny)
    other.fine = random_head(tiny.width)
    return other


def random_head(channels):
    head = FineHead(channels)
    generator = torch.Generator().manual_seed(1)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=generator)
    return head.eval().requires_grad_(False)


def test_a_new_head_is_bilinear_upsampling(tiny):
    pixels = torch.randn(2, 3, 32, 48)
    other = copy.copy(tiny)
    other.fine = FineHead(tiny.width)
    plain, found = tiny.tokens(pixels), other.tokens(pixels)
    expected = F.interpolate(plain.map, scale_factor=2, mode="bilinear", align_corners=False)
    assert torch.allclose(found.map, expected, atol=1e-6)


@pytest.mark.parametrize("size", [(32, 32), (16, 48), (64, 40)])
def test_the_grid_is_twice_as_fine_at_any_size_and_prefix_tokens_stay(tiny, fine, size):
    pixels = torch.randn(2, 3, *size)
    plain, found = tiny.tokens(pixels), fine.tokens(pixels)
    assert found.grid == (2 * plain.grid[0], 2 * plain.grid[1]) == fine.grid_of(size)
    assert found.scale == fine.scale == 2
    assert found.patches.shape == (2, 4 * plain.patches.shape[1], tiny.width)
    assert torch.equal(found.prefix, plain.prefix)
    before = fine.tokens(pixels, norm=False, layers=[1])
    assert torch.equal(before.patches, tiny.tokens(pixels, norm=False).patches)
    assert before.layers[1].grid == plain.grid


def test_images_of_a_batch_do_not_see_each_other(fine):
    pixels = torch.randn(3, 3, 32, 32)
    whole = fine.tokens(pixels).patches
    assert torch.allclose(fine.tokens(pixels.flip(0)).patches.flip(0), whole, atol=1e-4)
    assert torch.allclose(fine.tokens(pixels, batch=1).patches, whole, atol=1e-4)


def test_the_head_moves_with_its_input():
    """A shift by a whole patch moves the fine tokens by two cells, away from the border."""
    head, maps = random_head(6), torch.randn(1, 6, 9, 11)
    still, moved = head(maps), head(maps.roll(1, 3))
    inside = slice(8, -8)  # blurred twice, a token looks two patches far, upsampling one more
    shifted = slice(10, -6)
    assert torch.allclose(moved[..., shifted], still[..., inside], atol=1e-5)
    assert not torch.allclose(moved[..., inside], still[..., inside], atol=1e-1)


def test_a_mirrored_head_mirrors_its_output():
    """Exchange the parts of the left and the right cells, and the head works in the mirror."""
    head, maps = random_head(6), torch.randn(1, 6, 4, 5)
    mirrored = copy.deepcopy(head)
    order = [1, 0, 3, 2]
    for name in ("weight", "bias"):
        part = getattr(head.split, name).unflatten(0, (6, 4))[:, order].flatten(0, 1)
        getattr(mirrored.split, name).copy_(part)
    assert torch.allclose(mirrored(maps.flip(3)).flip(3), head(maps), atol=1e-5)


def test_the_head_is_the_formula_in_numpy():
    head, (channels, height, width) = random_head(3).double(), (3, 5, 4)
    maps = np.random.default_rng(0).normal(size=(channels, height, width))
    weights = {key: value.numpy() for key, value in head.state_dict().items()}

    def blur(x):
        for axis in (1, 2):
            pad = [(1, 1) if i == axis else (0, 0) for i in range(3)]
            long, length = np.pad(x, pad, mode="edge"), x.shape[axis]
            parts = [np.take(long, range(i, i + length), axis) for i in range(3)]
            x = parts[0] / 4 + parts[1] / 2 + parts[2] / 4
        return x

    def upsampled(x):  # a fine cell lies a quarter of a patch from the center of its own
        for axis in (1, 2):
            pad = [(1, 1) if i == axis else (0, 0) for i in range(3)]
            long, length = np.pad(x, pad, mode="edge"), x.shape[axis]
            before, here, after = (np.take(long, range(i, i + length), axis) for i in range(3))
            pairs = np.stack([(before + 3 * here) / 4, (3 * here + after) / 4], axis + 1)
            x = pairs.reshape(*x.shape[:axis], 2 * length, *x.shape[axis + 1 :])
        return x

    once, twice = blur(maps), blur(blur(maps))
    around = np.einsum("oi,ihw->ohw", weights["around.weight"], np.concatenate([once, twice]))
    expected = upsampled(maps + around)
    for row in range(height):
        for column in range(width):
            own = weights["split.weight"] @ maps[:, row, column] + weights["split.bias"]
            cells = own.reshape(channels, 2, 2)
            expected[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] += cells
    assert np.allclose(head(torch.from_numpy(maps)[None])[0].numpy(), expected, atol=1e-10)


def test_a_head_is_saved_and_part_of_the_fingerprint(tiny, fine, tmp_path):
    folder = save(fine, tmp_path / "fine")
    again, pixels = load(f"dir:{folder}"), torch.randn(1, 3, 32, 48)
    assert torch.allclose(again.tokens(pixels).patches, fine.tokens(pixels).patches, atol=1e-6)
    assert again.fingerprint() == fine.fingerprint() != tiny.fingerprint()
    changed = copy.deepcopy(fine)
    with torch.no_grad():
        changed.fine.split.bias[0] += 1
    assert changed.fingerprint() != fine.fingerprint()
    network = timm.create_model(f"local-dir:{folder}", pretrained=True, dynamic_img_size=True)
    found = network.eval().forward_features(pixels)  # plain timm has the network without the head
    plain = tiny.tokens(pixels)
    assert torch.allclose(found, torch.cat([plain.prefix, plain.patches], 1), atol=1e-5)
    save(tiny, folder)
    assert not (folder / FINE_HEAD).exists()
    assert load(f"dir:{folder}").fine is None


def test_a_damaged_head_is_named(fine, tmp_path):
    folder = save(fine, tmp_path / "fine")
    state = load_file(folder / FINE_HEAD)
    save_file({**state, "split.bias": torch.zeros(3)}, folder / FINE_HEAD)
    with pytest.raises(ModelError, match=r"split\.bias is \(3,\)"):
        load(f"dir:{folder}")
    (folder / FINE_HEAD).unlink()
    with pytest.raises(ModelError, match=FINE_HEAD.replace(".", r"\.")):
        load(f"dir:{folder}")
    config = json.loads((folder / "clearvit.json").read_text())
    for wrong in ({"channels": 12, "scale": 2}, {"channels": 24, "scale": 3}, {"channels": 24}):
        (folder / "clearvit.json").write_text(json.dumps({**config, "fine": wrong}))
        with pytest.raises(ModelError, match=r"fine|channels"):
            load(f"dir:{folder}")


def test_what_does_not_go_with_a_head_is_refused(fine, tmp_path):
    with pytest.raises(ModelError, match="Prune the model it was made of"):
        cv.prune(fine, keep=0.5)
    with pytest.raises(ModelError, match="onnx or openvino"):
        cv.export(fine, tmp_path / "copy", format="timm")
    with pytest.raises(ModelError, match="fine grid already"):
        cv.denoise(fine, torch.randn(1, 3, 32, 32), views=4)
    with pytest.raises(ModelError, match="fitted to the tokens it has now"):
        cv.cure(fine, method="positional")


def test_shards_hold_the_fine_grid(fine, tmp_path):
    (tmp_path / "photos").mkdir()
    soft_photos(tmp_path / "photos", 3)
    photos = tmp_path / "photos"
    store = cv.save_tokens(fine, photos, out=tmp_path / "tokens", size=32)
    tokens = store.read([0, 1])
    assert tokens.grid == (8, 8) and tokens.scale == 2
    assert tokens.patches.shape == (2, 64, fine.width)
    with pytest.raises(ClearvitError, match="without its head"):
        cv.save_tokens(fine, photos, out=tmp_path / "layers", size=32, layers=[0])


@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_a_graph_gives_the_same_fine_tokens(fine, tmp_path, format):
    pytest.importorskip("onnxruntime" if format == "onnx" else "openvino")
    done = cv.export(fine.resized((32, 48)), tmp_path / format, format=format)
    assert done.checks[0].passed
    copied = load(f"{format}:{tmp_path / format}")
    pixels = torch.randn(3, 3, 32, 48)
    ours, theirs = fine.tokens(pixels), copied.tokens(pixels)
    assert theirs.grid == ours.grid == (8, 12) and theirs.scale == 2
    assert torch.allclose(theirs.patches, ours.patches, atol=1e-3)
    assert torch.allclose(theirs.prefix, ours.prefix, atol=1e-3)


def test_the_plain_torch_of_the_docs_is_the_head(tiny, fine, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "cure.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(next(block for block in blocks if "def fine_tokens" in block), names)
    pixels, folder = torch.randn(2, 3, 32, 48), save(fine, tmp_path / "fine")
    plain = tiny.tokens(pixels)
    found = names["fine_tokens"](plain.patches, plain.grid, folder / FINE_HEAD)
    assert torch.allclose(found, fine.tokens(pixels).map, atol=1e-5)


def test_an_index_takes_the_fine_grid(fine, tmp_path):
    (tmp_path / "photos").mkdir()
    photos = soft_photos(tmp_path / "photos", 6)
    for weights in ("uniform", "attention", "without-artifacts"):
        options = {"size": 32, "patch_weights": weights, "grid": 2}
        index = cv.Index.build(fine, photos, out=tmp_path / weights, **options)
        assert len(index.search(photos / "0.png", k=2)) == 2


def test_figures_and_tables_take_the_fine_grid(tiny, fine, tmp_path):
    (tmp_path / "photos").mkdir()
    photos = soft_photos(tmp_path / "photos", 6)
    assert len(cv.look(fine, photos, out=tmp_path / "look", size=32)) == 6
    assert cv.diagnose(fine, photos, size=32).verdict is not None
    assert cv.compare([tiny, fine], photos, size=32, views=4) is not None
