import json

import pytest
import torch

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.errors import ClearvitError, ImageError
from tests.conftest import tiny_network
from tests.helpers.commands import clearvit, invoke
from tests.helpers.photos import soft_photos

QUICK = ("--epochs", 1, "--batch", 4, "--views", 4, "--lr", 1e-3, "--unfreeze", "registers,last")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return f"dir:{save(load(tiny_network()), tmp_path_factory.mktemp('model'))}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 10)


def test_the_real_command_end_to_end(model, folder, tmp_path):
    out = tmp_path / "cured"
    done = clearvit("cure", model, folder, "--out", out, "--registers", 2, *QUICK)
    assert done.returncode == 0, done.stderr
    assert "10 images x 4 views, 2 registers; about" in done.stderr  # what it takes comes first
    assert "held-out distance to clean tokens" in done.stdout
    assert f"timm.create_model('local-dir:{out}'" in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert (
        last == f"next: clearvit compare {model} dir:{out} OTHER_IMAGES/"
    )  # not its training images
    cured = cv.load(f"dir:{out}")
    assert cured.tokens(torch.zeros(1, 3, 32, 32)).registers.shape == (1, 2, 24)


def test_json_and_a_second_call_that_has_nothing_to_do(model, folder, tmp_path):
    command = ("cure", model, folder, "--out", tmp_path / "out", "--json", *QUICK)
    first, second = (json.loads(invoke(*command).stdout) for _ in range(2))
    assert first == second
    assert first["registers"] == 0 and first["skipped"] == []
    assert {"before", "after", "best_epoch", "class_cosine", "epochs"} <= first.keys()


def test_a_head_for_fine_tokens_from_the_command_line(model, tmp_path):
    (tmp_path / "photos").mkdir()
    photos, out = soft_photos(tmp_path / "photos", 24), tmp_path / "fine"
    command = ("cure", model, photos, "--out", out, "--method", "fine", "--views", 4, "--json")
    found = json.loads(invoke(*command).stdout)
    assert found["kept"] and found["after"] < found["before"]
    assert cv.load(f"dir:{out}").tokens(torch.zeros(1, 3, 32, 32)).grid == (8, 8)
    invoke("tokens", f"dir:{out}", photos, "--out", tmp_path / "tokens")
    assert cv.open_tokens(tmp_path / "tokens").read([0]).scale == 2


def test_position_and_views_need_no_images(model, tmp_path):
    projected, views = tmp_path / "projected", tmp_path / "views"
    done = clearvit("cure", model, "--out", projected, "--method", "positional", "--size", 48)
    assert done.returncode == 0 and "20 directions" in done.stdout, done.stderr
    pixels = torch.randn(1, 3, 48, 48)
    raw, found = cv.load(model).tokens(pixels), cv.load(f"dir:{projected}").tokens(pixels)
    assert not torch.allclose(raw.patches, found.patches, atol=1e-3)
    options = ("--method", "denoise", "--views", 4, "--scale", 2)
    assert invoke("cure", model, "--out", views, *options).exit_code == 0
    assert cv.load(f"dir:{views}").tokens(torch.randn(1, 3, 32, 32)).scale == 2


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--method", "test-time"),
        ("--method", "instant"),
        ("--method", "fine"),
        ("--method", "positional", "--scale", 2),
    ],
)
def test_other_cures_say_before_any_work_that_they_need_images(model, tmp_path, options):
    done = invoke("cure", model, "--out", tmp_path / "out", *options)
    assert isinstance(done.exception, ImageError) and "learns from images" in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batch", 100), "fewer than a batch"),
        (("--unfreeze", "first"), "no part 'first'"),
        (("--registers", 2, "--layer", 9), "blocks 0 to 2"),
        (("--method", "test-time"), "no high-norm tokens"),
        (("--scale", 3), "2 times as fine"),
        (("--method", "fine"), "at least 12"),
    ],
)
def test_errors_name_the_remedy_and_leave_nothing(model, folder, tmp_path, options, words):
    out = tmp_path / "out"
    done = invoke("cure", model, folder, "--out", out, *QUICK, *options)
    assert isinstance(done.exception, ClearvitError) and words in str(done.exception)
    assert not out.exists()


def test_a_cured_model_is_not_cured_again(model, folder, tmp_path):
    assert (
        invoke("cure", model, folder, "--out", tmp_path / "a", "--registers", 1, *QUICK).exit_code
        == 0
    )
    again = invoke(
        "cure", f"dir:{tmp_path / 'a'}", folder, "--out", tmp_path / "b", "--registers", 1, *QUICK
    )
    assert isinstance(again.exception, ClearvitError)
    assert "registers already" in str(again.exception)


def test_a_training_that_harms_ends_with_advice_and_writes_nothing(model, folder, tmp_path):
    out = tmp_path / "out"
    done = clearvit("cure", model, folder, "--out", out, *QUICK, "--lr", 10, "--registers", 2)
    assert done.returncode == 1
    assert (
        "did not help, and no model was written" in done.stderr and "--keep-anyway" in done.stderr
    )
    assert not (out / "model.safetensors").exists() and not (out / "cure.safetensors").exists()
