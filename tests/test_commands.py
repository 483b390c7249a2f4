"""The commands in README and docs run as printed, with a small model in the place of `demo`.

Its size and the rounds of a benchmark are cut down and outputs go to a fresh directory; everything
else is as on the page. What is not run here is listed with the reason.
"""

import re
import shlex

import numpy as np
import pytest
from PIL import Image

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from tests.conftest import tiny_network
from tests.helpers.commands import LINE, PAGES, invoke
from tests.helpers.made_data import (
    class_folder,
    colour_image,
    cub,
    depth_folder,
    save_png,
    voc_masks,
    voc_object,
)

SHELL = ("", "bash", "text")
SIDE = "32"  # pixels
NOT_RUN = {
    "make ": "the set-up itself: `make demo` and `make test` are timed in docs/results/fresh.md",
    "pip install": "the set-up of a machine, not of the suite",
    "clearvit demo --quick": "minutes; on a tiny model by tests/cli/test_demo_command.py",
    "clearvit serve": "runs until Ctrl-C; tests/microscopy/test_serve.py and its browser do it",
    "accelerate launch": "two processes are started by tests/cures/test_cure_killed.py",
    "python examples/train_tiny_clip.py": "minutes: tests/evaluation/test_zero_shot_task.py, slow",
    "openclip:": "needs weights; tiny ones: tests/evaluation/test_zero_shot_task.py",
    "timm:": "needs the hub; tests/backbones load every family without weights",
    "s3://": "needs a server; tests/retrieval/index/test_object_store.py starts one",
    "--engine ray": "starts a cluster; tests/shards/test_shards_killed.py does",
    "export AWS": "keys of a store",
    "clearvit finetune": "trains until it helps; tests/finetuning does",
    "--probe sgd": "2,000 steps; with few of them by tests/evaluation/test_evaluate.py",
}
BEGINNINGS = ("clearvit ", "make ", "pip ", "python ", "accelerate ", "export ")


def printed(page):
    """All command lines of a page."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    shell = "\n".join(code for language, code in blocks if language in SHELL)
    lines = [line.strip().removeprefix("$ ") for line in shell.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith(BEGINNINGS)]


def reason_not_to(line):
    command = line.partition("#")[0]
    return next((why for part, why in NOT_RUN.items() if part in command), None)


LINES = [(page, line) for page in PAGES for line in printed(page)]
RUN = [
    pytest.param(line, id=f"{page.stem}-{number}")
    for number, (page, line) in enumerate(LINES)
    if not reason_not_to(line)
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files and models that the pages speak of."""
    folder = tmp_path_factory.mktemp("pages")
    chance = np.random.default_rng(0)
    names = ("cat.jpg", "dog.jpg", "photo.jpg", *(f"photos/{i:02d}.jpg" for i in range(20)))
    (folder / "photos").mkdir()
    for name in names:
        pixels = chance.integers(0, 255, (5, 6, 3), dtype=np.uint8)
        side = (240, 200) if name == "cat.jpg" else (48, 40)
        Image.fromarray(pixels).resize(side).save(folder / name)
    for name in ("flowers", "imagenet", "classes", "cars"):
        class_folder(folder / name)
    annotated(voc_masks(folder / "VOC2012"))
    depth_folder(folder / "nyu")
    for i in range(2):
        pixels, mask = colour_image(i)
        save_png(folder / f"examples/{i}.png", pixels)
        save_png(folder / f"examples/{i}_mask.png", mask)
    cub(folder / "CUB_200_2011")
    for name in ("small", "cured", "own-cured", "tuned", "epoch-10", "epoch-20"):
        save(load(tiny_network(depth=12)), folder / name)
    made = (
        "prune dir:small --out pruned --scorer class",
        "export dir:small --format openvino --size 32 --out fast",
        "index dir:small photos --out index",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in made:
            done = invoke(*shlex.split(line))
            assert done.exit_code == 0, done.output
    return folder


def annotated(root):
    """Boxes for the pictures of a VOC folder."""
    (root / "Annotations").mkdir()
    (root / "ImageSets/Main").mkdir()
    pictures = sorted((root / "JPEGImages").iterdir())
    for picture in pictures:
        text = f"<annotation>{voc_object(3, 3, 20, 20)}</annotation>"
        (root / "Annotations" / f"{picture.stem}.xml").write_text(text)
        Image.open(picture).save(picture.with_suffix(".jpg"))
    names = "".join(f"{picture.stem}\n" for picture in pictures)
    (root / "ImageSets/Main/trainval.txt").write_text(names)


@pytest.mark.parametrize("line", RUN)
def test_a_printed_command_runs(line, workplace, tmp_path, monkeypatch):
    monkeypatch.chdir(workplace)
    words = shlex.split(line, comments=True)[1:]
    options = {"--out": str(tmp_path / "out"), "--size": SIDE}
    words = [
        options.get(before, "dir:small" if word == "demo" else word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    if words[0] == "search" and "--out" in words:
        words[words.index("--out") + 1] += ".html"
    if words[0] == "explain":
        words[words.index("--out") + 1] += ".png"
    if words[0] in ("search", "explain") and "--model" not in words:
        words += ["--model", "dir:small"]  # in the place of the demo model, which is well known
    if words[0] == "bench":  # tests/cli/test_bench_command.py measures memory
        words += ["--rounds", "1", "--no-memory"]
    done = invoke(*words)
    assert done.exit_code == 0, done.output


def test_what_is_not_run_is_there_and_every_page_is_read():
    for part in NOT_RUN:
        assert any(part in line for _, line in LINES), part
    assert len(RUN) > 20 and all(LINE.match(case.values[0]) for case in RUN)
