"""Register neurons are found where one was planted, and moving them cures."""

import copy
from pathlib import Path

import pytest
import torch
from PIL import Image

from clearvit.artifacts.outliers import find_outliers
from clearvit.backbones.load import load
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.cures import test_time as testtime
from clearvit.cures.activations import ActivationReader
from clearvit.cures.test_time import find_neurons, selectivity, with_neurons
from clearvit.errors import ImageError, ModelError
from clearvit.images import find_images
from clearvit.progress import Meter
from tests.conftest import tiny_network

SIZE, CELL, COUNT = 96, 8, 8  # 12 x 12 patches
PINK = (150, 105, 128)
BLOCK, UNIT = 1, 17


def picture(seed, marks=4):
    """Grey noise with a few pink patches."""
    generator = torch.Generator().manual_seed(seed)
    pixels = (torch.rand(SIZE, SIZE, 3, generator=generator) * 20 + 118).to(torch.uint8)
    for place in torch.randperm((SIZE // CELL) ** 2, generator=generator)[:marks].tolist():
        row, column = (CELL * part for part in divmod(place, SIZE // CELL))
        pixels[row : row + CELL, column : column + CELL] = torch.tensor(PINK)
    return Image.fromarray(pixels.numpy())


def pink_patches(image):
    """Where they are, (N,) bool."""
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(SIZE, SIZE, 3)
    return (pixels[::CELL, ::CELL] == torch.tensor(PINK)).all(-1).flatten()


def healthy_network():
    """A tiny ViT in which pink and grey patches are equally long."""
    network = tiny_network(img_size=SIZE)
    with torch.no_grad():
        network.patch_embed.proj.bias.add_(torch.randn(24))
    return network


@pytest.fixture(scope="module")
def pictures():
    return [picture(seed) for seed in range(COUNT)]


@pytest.fixture(scope="module")
def sick(pictures):
    """A tiny ViT in which one hidden unit makes the tokens of pink patches long."""
    network = healthy_network()
    block = network.blocks[BLOCK]
    entering = []
    handle = block.mlp.fc1.register_forward_pre_hook(lambda _, x: entering.append(x[0][0, 1:]))
    load(network).tokens(pictures[0])
    handle.remove()
    pink = pink_patches(pictures[0])
    means = [entering[0][chosen].mean(0) for chosen in (pink, ~pink)]
    apart = means[0] - means[1]
    with torch.no_grad():  # +8 at the mean pink patch, -8 at the mean grey one
        block.mlp.fc1.weight[UNIT] = 16 * apart / apart.square().sum()
        block.mlp.fc1.bias[UNIT] = -block.mlp.fc1.weight[UNIT] @ (means[0] + means[1]) / 2
        block.mlp.fc2.weight[:, UNIT] = torch.randn(24) * block.mlp.fc2.weight.std() * 40
    return load(network)


@pytest.fixture(scope="module")
def cured(sick, pictures):
    return testtime.test_time(sick, pictures)


def norms(backbone, pictures):
    tokens = backbone.tokens(pictures, layers=[1, 2], norm=False)
    return tokens.layers[1].norms, tokens.layers[1].registers.norm(dim=-1)


def test_the_planted_neuron_is_found(cured):
    report = cured.report
    assert [(neuron.block, neuron.unit) for neuron in report.found] == [(BLOCK, UNIT)]
    assert report.found[0].outliers > 5 > 1 > report.found[0].others
    assert report.onset == BLOCK and report.images == COUNT and not report.skipped
    assert report.before[BLOCK] == pytest.approx(4 / 144)
    assert report.removed >= 0.95 and report.after[BLOCK] == pytest.approx(0, abs=0.002)
    assert {block: units.tolist() for block, units in report.neurons.items()} == {BLOCK: [UNIT]}


def test_the_length_moves_from_the_patches_to_the_register(sick, cured, pictures):
    fresh = [picture(seed) for seed in range(100, 104)]
    before, _ = norms(sick, fresh)
    after, register = norms(cured, fresh)
    pink = torch.stack([pink_patches(image) for image in fresh])
    assert bool((before[pink] > 2 * before.median()).all())
    assert find_outliers(after, "high") is None
    assert bool((register > 2 * after.median()).all())


def test_the_original_is_left_as_it_was(sick, pictures):
    weights = copy.deepcopy(sick.network.state_dict())
    before = sick.tokens(pictures[0]).patches
    testtime.test_time(sick, pictures)
    assert all(torch.equal(weights[key], t) for key, t in sick.network.state_dict().items())
    assert torch.equal(sick.tokens(pictures[0]).patches, before)
    assert sick.prefix_names == ("class",)


def test_the_batch_changes_nothing(sick, pictures, cured, monkeypatch):
    monkeypatch.setattr(testtime, "BATCH", 3)
    again = find_neurons(sick, pictures)
    assert again.neurons.keys() == cured.report.neurons.keys()
    assert again.ratios == cured.report.ratios
    assert again.found[0].outliers == pytest.approx(cured.report.found[0].outliers, rel=1e-4)


def test_top_is_obeyed_even_beyond_the_number_of_units(sick, pictures):
    assert len(find_neurons(sick, pictures, top=3).found) == 3
    every = find_neurons(sick, pictures, top=10_000)
    assert len(every.found) == 96 * (every.peak + 1)


def test_progress_rises_to_the_total(sick, pictures):
    calls = []
    find_neurons(sick, pictures, progress=lambda _, done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert len({total for _, total in calls}) == 1
    assert calls[-1][0] == calls[-1][1]


def test_limit_spreads_and_bad_files_are_skipped(sick, pictures, tmp_path):
    for number, image in enumerate(pictures):
        image.save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_bytes(b"no picture")
    report = find_neurons(sick, tmp_path)
    assert report.images == COUNT - 1 and [bad.name for bad in report.skipped] == ["3.png"]
    assert find_neurons(sick, tmp_path, limit=4).images == 4
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "1.png").write_bytes(b"no picture")
    with pytest.raises(ImageError, match="none of 1 images"):
        find_neurons(sick, tmp_path / "bad")


def test_a_model_without_high_norm_tokens_has_nothing_to_move(pictures):
    with pytest.raises(ModelError, match="nothing to move"):
        testtime.test_time(load(healthy_network()), pictures)


def test_an_edit_that_does_not_help_is_no_cure(sick, pictures, monkeypatch):
    monkeypatch.setattr(testtime, "selectivity", lambda outliers, others: -outliers)
    with pytest.raises(ModelError, match="removes only"):
        testtime.test_time(sick, pictures)


def test_a_model_with_registers_is_refused(pictures):
    backbone = load(tiny_network(img_size=SIZE, reg_tokens=2))
    with pytest.raises(ModelError, match="registers already"):
        find_neurons(backbone, pictures)


def test_wrong_numbers_are_refused(sick, pictures):
    for wrong in ({"limit": 0}, {"top": 0}):
        with pytest.raises(ModelError, match="at least 1"):
            find_neurons(sick, pictures, **wrong)


def test_activity_equals_a_plain_mean(sick, pictures):
    found = find_images(pictures[:3])
    outliers = torch.stack([pink_patches(image) for image in pictures[:3]])
    activity = ActivationReader((SIZE, SIZE), 2, Meter(None, 0)).activity(
        sick, found, outliers, BLOCK
    )
    hidden = []
    layer = sick.network.blocks[BLOCK].mlp.fc2
    handle = layer.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0][:, 1:]))
    sick.tokens(pictures[:3])
    handle.remove()
    strength = hidden[0].abs().double()
    for ours, chosen in ((activity.outliers, outliers), (activity.others, ~outliers)):
        assert len(ours) == BLOCK + 1
        torch.testing.assert_close(ours[BLOCK], strength[chosen].mean(0), rtol=1e-4, atol=1e-6)
    assert not layer._forward_pre_hooks


def test_selectivity_prefers_units_that_are_quiet_elsewhere():
    outliers, others = torch.tensor([3.0, 3.5, 0.1]), torch.tensor([0.2, 2.5, 0.2])
    scores = selectivity(outliers, others)
    assert scores.argsort(descending=True).tolist() == [0, 1, 2]
    assert scores[2] < 0


def test_the_neurons_of_the_demo_model_are_quiet_where_nothing_is_wrong(demo_backbone):
    data = pytest.importorskip("skimage.data")
    pixels = next(demo_backbone.pixels(Image.fromarray(data.astronaut()), size=112))
    neurons = {6: torch.tensor([764]), 7: torch.tensor([297, 1287])}  # those of its artifacts
    register, moved = (
        with_neurons(demo_backbone, chosen).tokens(pixels).patches for chosen in ({}, neurons)
    )
    assert not torch.equal(register, moved)
    assert torch.cosine_similarity(register, moved, dim=-1).mean() > 0.95


@pytest.mark.slow
def test_the_demo_model_is_cured_end_to_end(demo_backbone):
    skimage, sklearn = (pytest.importorskip(name) for name in ("skimage", "sklearn"))
    first, second = (Path(library.__file__).parent for library in (skimage, sklearn))
    names = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png")
    photos = [first / "data" / name for name in names]
    photos += [second / "datasets" / "images" / name for name in ("china.jpg", "flower.jpg")]
    cured = testtime.test_time(demo_backbone, photos)
    assert isinstance(cured, NeuronBackbone)
    assert cured.report.removed >= 0.9
    assert len(cured.report.found) <= 12
