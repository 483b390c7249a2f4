import json

import pytest
import torch

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.pruning.pruned import PrunedBackbone
from tests.conftest import tiny_network
from tests.helpers.commands import clearvit, invoke
from tests.helpers.photos import soft_photos

QUICK = ("--epochs", 1, "--batch", 4, "--lr", 1e-2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return f"dir:{save(load(tiny_network()), tmp_path_factory.mktemp('model'))}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = soft_photos(tmp_path_factory.mktemp("photos"), 8)
    (made / "bad.png").write_text("no image")
    return made


def test_the_real_command_end_to_end(model, folder, tmp_path):
    out = tmp_path / "pruned"
    done = clearvit("prune", model, folder, "--out", out, "--keep", 0.5, "--stages", "1,2", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "held-out cosine to the dense model" in done.stdout and "GMACs" in done.stdout
    assert f"cv.load('dir:{out}')" in done.stdout
    assert "1 files were skipped" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert (
        last == f"next: clearvit compare {model} dir:{out} OTHER_IMAGES/"
    )  # not its training images
    pruned = cv.load(f"dir:{out}")
    assert isinstance(pruned, PrunedBackbone) and pruned.plan.keep == (0.5, 0.25)
    assert pruned.tokens(torch.zeros(1, 3, 32, 32)).kept.sum() == 4


def test_json_and_a_second_call_that_has_nothing_to_do(model, folder, tmp_path):
    command = ("prune", model, folder, "--out", tmp_path / "out", "--json", *QUICK)
    first, second = (json.loads(invoke(*command).stdout) for _ in range(2))
    assert first == second
    assert {"before", "after", "best_epoch", "macs", "dense_macs"} <= first.keys()
    assert [bad["name"] for bad in first["skipped"]] == ["bad.png"]


def test_without_training_no_images_are_needed(model, tmp_path):
    out = tmp_path / "out"
    done = invoke("prune", model, "--out", out, "--scorer", "merge", "--keep", "0.6,0.5", "--json")
    assert json.loads(done.stdout)["keep"] == [0.6, 0.5]
    assert cv.load(f"dir:{out}").plan.scorer == "merge"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batch", 100), "fewer than a batch"),
        (("--labels", "folders"), "no classifier"),
    ],
)
def test_errors_name_the_remedy_and_leave_nothing(model, folder, tmp_path, options, words):
    out = tmp_path / "out"
    done = invoke("prune", model, folder, "--out", out, *QUICK, *options)
    assert done.exit_code == 1 and words in str(done.exception)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("photos",), "Missing option '--out'"),
        (("--out", "x", "--keep", "half"), "use a fraction in (0, 1]"),
        (("--out", "x", "--keep", "2"), "at most 1"),
        (("--out", "x", "--scorer", "key-norm"), "'random'"),
        (("--out", "x", "--preset", "paper"), "'dynamicvit'"),
    ],
)
def test_wrong_usage(model, arguments, words):
    done = invoke("prune", model, *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--epochs", "2"), "option of training"),
        (("photos", "--scorer", "fuse"), "needs no training"),
    ],
)
def test_options_that_contradict_the_images(model, tmp_path, arguments, words):
    done = invoke("prune", model, *arguments, "--out", tmp_path / "out")
    assert done.exit_code == 1 and words in str(done.exception)
    assert not (tmp_path / "out").exists()
