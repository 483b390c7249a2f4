"""Smaller failures that hostile tries found, one test each."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.cli import failures
from clearvit.cli.console import next_step, note_once
from clearvit.datasets import masks
from clearvit.errors import ImageError, ModelError, StoreError, TrainingError
from clearvit.progress import printable
from clearvit.pruning.prune import prune
from tests.conftest import tiny_network
from tests.helpers.commands import invoke
from tests.helpers.made_training import paint

ROOT = Path(__file__).parents[1]
CURE = {"views": 2, "epochs": 1, "batch": 2, "registers": 1, "precision": "no", "keep_anyway": True}


@settings(max_examples=15, deadline=None)
@given(
    scorer=st.sampled_from(["class", "fuse", "merge", "random"]),
    keep=st.sampled_from([0.4, 0.6, 0.9]),
    order=st.permutations(range(5)),
)
def test_pruning_never_gives_an_image_the_tokens_of_another(tiny, scorer, keep, order):
    """Adaptive budgets permuted rows; whatever is batched together, each image stays itself."""
    pruned = prune(tiny, keep=keep, scorer=scorer)
    pixels = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    together = pruned.forward(pixels[list(order)])
    for row, image in enumerate(order):
        alone = pruned.forward(pixels[image : image + 1])
        assert torch.allclose(together.patches[row], alone.patches[0], atol=1e-5)
        assert torch.equal(together.kept[row], alone.kept[0])


def test_other_images_of_the_same_size_are_noticed_by_every_run(tiny, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()

    def write(seed):
        rng = np.random.default_rng(seed)
        for number in range(6):
            pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.bmp")

    write(0)
    verbs = {
        "tokens": lambda out: cv.save_tokens(tiny, folder, out=out),
        "cure": lambda out: cv.cure(tiny, folder, out=out, **CURE),
        "prune": lambda out: cv.prune(tiny, folder, out=out, batch=2, epochs=1, keep=0.5),
    }
    for name, verb in verbs.items():
        verb(tmp_path / name)
    write(1)
    for name, verb in verbs.items():
        with pytest.raises(StoreError, match=r"images are not the same|listing was"):
            verb(tmp_path / name)


def test_a_cut_shard_is_made_again(tiny, tmp_path):
    paint(tmp_path / "images", 5)
    run = {"out": tmp_path / "tokens", "batch": 2, "shard": 2}
    before = cv.save_tokens(tiny, tmp_path / "images", **run)[:].patches
    shard = tmp_path / "tokens" / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    after = cv.save_tokens(tiny, tmp_path / "images", **run)[:].patches
    assert torch.equal(after, before)


@pytest.mark.parametrize(
    "change",
    [
        {"images": [["a", 0]]},
        {"images": [[5, 0, 0]]},
        {"images": [["a", -1, 0]]},
        {"images": "all"},
        {"grid": [4]},
        {"layers": None},
        {"skipped": [["a"]]},
        {"model": 5},
    ],
    ids=str,
)
def test_a_hostile_index_of_tokens_is_one_sentence(tiny, tmp_path, change):
    paint(tmp_path / "images", 2)
    cv.save_tokens(tiny, tmp_path / "images", out=tmp_path / "tokens")
    index = tmp_path / "tokens" / "index.json"
    content = json.loads(index.read_text())
    for wrong in ({**content, **change}, {k: v for k, v in content.items() if k not in change}):
        index.write_text(json.dumps(wrong))
        with pytest.raises(StoreError):
            cv.open_tokens(tmp_path / "tokens")
    for lie in ({"images": [["a", 0, 7]]}, {"layers": [1]}):
        index.write_text(json.dumps({**content, **lie}))
        with pytest.raises(StoreError):
            cv.open_tokens(tmp_path / "tokens")[:]


def test_masks_of_only_void_are_said_to_be_void(tiny, tmp_path):
    pytest.importorskip("sklearn")
    for part in ("images", "masks"):
        (tmp_path / part / "val").mkdir(parents=True)
        (tmp_path / part / "train").mkdir(parents=True)
    for split in ("train", "val"):
        for number in range(2):
            Image.new("RGB", (32, 32)).save(tmp_path / "images" / split / f"{number}.png")
            Image.new("L", (32, 32), 255).save(tmp_path / "masks" / split / f"{number}.png")
    with pytest.raises(ImageError, match="void"):
        cv.evaluate(tiny, task="clustering", data=tmp_path)


def test_a_mask_with_one_huge_number_is_named(tmp_path):
    path = tmp_path / "m.png"
    Image.fromarray(np.full((4, 4), 60_000, np.uint16)).save(path)
    with pytest.raises(ImageError, match=r"m\.png.*60000"):
        masks._with_classes(tmp_path, "train", (path,), (path,))


def test_an_image_that_vanishes_during_a_training_is_named(tiny, tmp_path, monkeypatch):
    from clearvit.pruning.training.predictor_task import PredictorTask

    paint(tmp_path / "images", 6)
    original = PredictorTask.load_batch

    def lost(self, images, step):
        for path in (tmp_path / "images").iterdir():
            path.unlink()
        return original(self, images, step)

    monkeypatch.setattr(PredictorTask, "load_batch", lost)
    with pytest.raises(TrainingError, match=r"one of 0\d\.png.*no such file"):
        cv.prune(tiny, tmp_path / "images", batch=2, epochs=1, keep=0.5)


def test_tokens_beyond_half_precision_are_no_target(tmp_path):
    network = tiny_network()
    with torch.no_grad():
        network.norm.weight.mul_(1e6)
    paint(tmp_path / "images", 6)
    with pytest.raises(ModelError, match="65504"):
        cv.cure(load(network), tmp_path / "images", out=tmp_path / "out", **CURE)


def test_control_characters_are_escaped_and_commands_quoted(capsys):
    assert printable("a\x1b[2Jb\x1b]0;x\x07\u202ec\x9b") == r"a\x1b[2Jb\x1b]0;x\x07\u202ec\x9b"
    assert printable("naïve ☃\n\tb") == "naïve ☃\n\tb"
    next_step("clearvit", "explain", "index", "$(id).png", "\x1b[2J.png")
    text = capsys.readouterr().err
    assert "'$(id).png'" in text and "\x1b" not in text


def test_names_with_escapes_are_escaped_in_every_list(capsys):
    from clearvit.cli.console import report_skipped, show
    from clearvit.images import Skipped

    report_skipped([Skipped("\x1b]0;owned\x07.png", "damaged \x1b[2J")])
    show("\x1b[2J")
    captured = capsys.readouterr()
    assert "\x1b]" not in captured.err and "\x1b" not in captured.out


def test_segment_and_microscope_escape_names(tmp_path):
    save(load(tiny_network()), tmp_path / "model")
    paint(tmp_path / "photos", 2)
    (tmp_path / "photos/\x1b]0;bad.png").write_bytes(b"no")
    (tmp_path / "photos/00.png").rename(tmp_path / "photos/\x1b[2J$(id).png")
    (tmp_path / "examples").mkdir()
    with Image.open(tmp_path / "photos/01.png") as image:
        image.save(tmp_path / "examples/a.jpg")
        half = Image.new("L", image.size)
        half.paste(1, (0, 0, image.width // 2, image.height))
        half.save(tmp_path / "examples/a_mask.png")
    model, photos = f"dir:{tmp_path / 'model'}", tmp_path / "photos"
    plain = ("--method", "prototypes", "--scale", 1, "--refine", "none")
    for line in (
        ("segment", model, photos, "--examples", tmp_path / "examples", *plain),
        ("microscope", model, photos),
    ):
        note_once.cache_clear()  # as a new process would begin
        done = invoke(*line, "--out", tmp_path / f"{line[0]}.html")
        assert done.exit_code == 0, (done.exception, done.output)
        assert "\x1b]" not in done.output and "\x1b[2J" not in done.output
        assert "device: cpu" in done.output and r"\x1b]0;bad.png" in done.output


def test_every_test_that_the_page_on_hostile_tries_names_is_there():
    page = ROOT / "docs/results/hardening.md"
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", page.read_text("utf-8"))
    assert len(named) > 40
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), f"{file}::{name}"


def test_what_nobody_expected_is_one_line_with_a_log():
    code = (
        "import sys; from clearvit import cli;"
        "cli.app = lambda: [][1]; sys.argv = ['clearvit', 'look', '$(x)']; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "IndexError" in done.stderr and "report it" in done.stderr
    log = done.stderr.split("the log, '")[1].split("'")[0].replace("\n", "")
    text = open(log).read()
    assert "IndexError" in text and "clearvit look '$(x)'" in text


def test_known_failures_are_sentences():
    for error, words in (
        (StoreError("x."), "x."),
        (MemoryError(), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory"),
        (PermissionError(13, "Permission denied", "a/b"), "'a/b': permission denied"),
    ):
        assert words in failures.describe_failure(error)
    assert failures.describe_failure(KeyError("x")) == ""


def test_a_link_to_itself_does_not_end_look(tiny, tmp_path):
    paint(tmp_path / "images", 1)
    (tmp_path / "images" / "loop.png").symlink_to(tmp_path / "images" / "loop.png")
    with pytest.warns(UserWarning):
        assert len(cv.look(tiny, tmp_path / "images", out=tmp_path / "look")) == 1


def test_discover_writes_files_for_the_longest_names(tiny, tmp_path):
    from tests.helpers.commands import invoke

    (tmp_path / "images").mkdir()
    rng = random.Random(0)
    for letter in "xy":
        name = letter * 250 + ".png"
        Image.frombytes("RGB", (40, 40), rng.randbytes(4800)).save(tmp_path / "images" / name)
    cv.save(tiny, tmp_path / "model")
    line = ("discover", f"dir:{tmp_path / 'model'}", tmp_path / "images", "--method", "lost")
    done = invoke(*line, "--out", tmp_path / "boxes")
    assert done.exit_code == 0, done.exception
    assert len(list((tmp_path / "boxes").glob("*.png"))) == 2
