"""Every verb works on a device that is not the CPU, and every command can be told which."""

import inspect

import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.cli import app
from clearvit.cli.arguments import Run
from tests.helpers.made_data import class_folder, colour_image, save_png
from tests.helpers.second_device import DEVICE, move, second_device

WITHOUT_A_MODEL = {"models", "push", "report"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for i in range(6):
        pixels = generator.integers(0, 255, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def same(ours, theirs):
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_the_second_device_is_strict():
    with second_device():
        there = torch.ones(2, 3, device=DEVICE)
        assert there.device.type == DEVICE.type
        same(there @ torch.ones(3, 2).to(DEVICE), torch.full((2, 2), 3.0))
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.ones(2, 3)
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()


@pytest.fixture(scope="module")
def pair(tiny):
    return tiny, move(tiny)


VERBS = {
    "tokens": lambda b, p: b.tokens(p, layers=[0, -1], capture=("key", "attention")).patches,
    "class token": lambda b, p: b.tokens(p).cls,
    "denoise": lambda b, p: cv.denoise(b, p, views=4).patches,
    "fine": lambda b, p: cv.denoise(b, p, views=4, scale=2).patches,
    "diagnose": lambda b, p: cv.diagnose(b, p, size=32, quick=True).observations.norms,
    "discover": lambda b, p: cv.discover(b, p, size=32)[0].masks.float(),
    "prune": lambda b, p: cv.prune(b, keep=0.7, scorer="class").tokens(p).prefix,
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_gives_the_same_on_another_device(verb, pair, photos):
    here, elsewhere = pair
    wanted = VERBS[verb](here, photos)
    with second_device():
        found = VERBS[verb](elsewhere, photos)
        same(found, wanted)


def test_tables_files_and_pages_of_another_device(pair, photos, tmp_path):
    _, elsewhere = pair
    for i in range(2):
        pixels, mask = colour_image(i)
        save_png(tmp_path / f"examples/{i}.png", pixels)
        save_png(tmp_path / f"examples/{i}_mask.png", mask)
    with second_device():
        cv.save_tokens(elsewhere, photos, out=tmp_path / "tokens", size=32)
        cv.look(elsewhere, photos, out=tmp_path / "look", size=32)
        cv.segment(elsewhere, photos, examples=tmp_path / "examples", size=32)
        data = class_folder(tmp_path / "classes")
        assert cv.evaluate(elsewhere, task="classification", data=data, size=32).rows
        assert cv.compare([elsewhere], photos, size=32, quick=True).rows
        cv.microscope([elsewhere], photos, out=tmp_path / "page.html", size=32)


def test_an_index_of_another_device(pair, photos, tmp_path):
    here, elsewhere = pair
    wanted = cv.Index.build(here, photos, out=tmp_path / "a", size=32).search(photos / "0.png")
    with second_device():
        index = cv.Index.build(elsewhere, photos, out=tmp_path / "b", size=32)
        assert index.search(photos / "0.png").names == wanted.names


def test_every_command_that_runs_a_model_takes_a_device():
    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    commands = [command for group in groups for command in group.registered_commands]
    for command in commands:
        parameters = inspect.signature(command.callback).parameters
        assert "device" in parameters or command.name in WITHOUT_A_MODEL, command.name


def test_auto_is_the_default_everywhere():
    assert Run().device == "auto"
