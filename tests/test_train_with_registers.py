import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import clearvit as cv

SCRIPT = Path(__file__).parents[1] / "examples" / "train_with_registers.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_with_registers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def config(script):
    return script.Config(
        steps=6, batch=4, size=16, patch=4, width=24, depth=2, heads=3, checkpoints=4
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes, ten images each: dark ones and bright ones."""
    folder = tmp_path_factory.mktemp("images")
    chance = np.random.default_rng(0)
    for label, low in (("bright", 128), ("dark", 0)):
        (folder / label).mkdir()
        for i in range(10):
            pixels = chance.integers(low, low + 128, (24, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def data(script, folder, config):
    return script.read_images(folder, config)


@pytest.fixture(scope="module")
def runs(script, data, config, tmp_path_factory):
    """Checkpoints of an uninterrupted training, by the number of registers."""
    out = tmp_path_factory.mktemp("runs")
    return {count: script.train(data, count, config, out) for count in script.REGISTERS}


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_data_is_split_and_labelled(data):
    assert data.images.shape == (20, 3, 18, 18) and data.images.dtype == torch.uint8
    assert data.classes == ["bright", "dark"]
    assert len(data.held_out) == 2
    assert sorted([*data.train.tolist(), *data.held_out.tolist()]) == list(range(20))
    bright = data.images.float().mean((1, 2, 3)) > 127
    assert torch.equal(bright, data.labels == 0)


def test_a_bad_file_is_skipped_and_named(script, config, folder, tmp_path, capsys):
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "good.png").write_bytes((folder / "dark" / "0.png").read_bytes())
    (tmp_path / "a" / "bad.jpg").write_text("no image")
    data = script.read_images(tmp_path, config)
    assert len(data.images) == 2 and data.labels.tolist() == [0, 1]
    assert "skipped a/bad.jpg" in capsys.readouterr().out


@pytest.mark.parametrize("count", [0, 4])
def test_checkpoints_load(runs, config, count):
    assert [f.name for f in runs[count]] == [f"step-00000{step}" for step in (0, 2, 4, 6)]
    for folder in runs[count]:
        backbone = cv.load(f"dir:{folder}")
        assert backbone.prefix_names == ("class",) + ("register",) * count
        assert backbone.preprocessing.size == (config.size, config.size)
        assert {*backbone.preprocessing.mean, *backbone.preprocessing.std} == {0.5}  # -1..1
        tokens = backbone.tokens(torch.zeros(1, 3, 16, 16), norm=False)
        assert tokens.registers.shape == (1, count, 24)
    assert not same(weights(runs[count][0]), weights(runs[count][-1]))


def test_both_runs_start_from_the_same_weights(runs):
    plain, registered = (weights(runs[count][0]) for count in (0, 4))
    assert registered.pop("reg_token").shape == (1, 4, 24)
    assert same(plain, registered)


def test_training_learns_what_is_easy(script, data, config, tmp_path):
    longer = script.Config(**(vars(config) | {"steps": 30, "rate": 3e-3, "checkpoints": 2}))
    last = script.train(data, 4, longer, tmp_path)[-1]
    assert json.loads((last / script.DONE).read_text())["loss"] < 0.3


@pytest.mark.parametrize("stop", [0, 3, 5])
def test_resumed_run_ends_with_the_same_weights(
    script, data, config, runs, tmp_path, monkeypatch, stop
):
    whole = script.batch_at

    def interrupted(step, *arguments):
        if step == stop:
            raise KeyboardInterrupt
        return whole(step, *arguments)

    monkeypatch.setattr(script, "batch_at", interrupted)
    with pytest.raises(KeyboardInterrupt):
        script.train(data, 4, config, tmp_path)
    seen = []
    monkeypatch.setattr(
        script, "batch_at", lambda step, *rest: seen.append(step) or whole(step, *rest)
    )
    folders = script.train(data, 4, config, tmp_path)
    assert seen == list(range(stop // 2 * 2, 6))
    for resumed, straight in zip(folders, runs[4], strict=True):
        assert same(weights(resumed), weights(straight))
    assert script.train(data, 4, config, tmp_path) == folders  # nothing is left to do
    assert len(seen) == 6 - stop // 2 * 2


def test_a_half_written_checkpoint_is_done_again(script, data, config, runs, tmp_path, monkeypatch):
    whole = script.write_json

    def killed(path, content):
        if path.name == script.DONE and content["step"] == 4:
            raise KeyboardInterrupt
        whole(path, content)

    monkeypatch.setattr(script, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        script.train(data, 0, config, tmp_path)
    monkeypatch.undo()
    assert same(weights(script.train(data, 0, config, tmp_path)[-1]), weights(runs[0][-1]))


def test_moments_stay_with_the_newest_checkpoint_only(script, runs):
    kept = [(folder / script.MOMENTS).exists() for folder in runs[4]]
    assert kept == [False, False, False, True]


def test_errors_are_clear(script, config, folder, data, tmp_path, monkeypatch):
    with pytest.raises(cv.ImageError, match="no class folders"):
        script.read_images(folder / "dark", config)
    only = tmp_path / "only"
    (only / "cats").mkdir(parents=True)
    (only / "cats" / "0.png").write_bytes((folder / "dark" / "0.png").read_bytes())
    with pytest.raises(cv.ImageError, match="only one class folder, 'cats'"):
        script.read_images(only, config)
    with pytest.raises(cv.ImageError, match="does not exist"):
        script.read_images(tmp_path / "nowhere", config)
    with pytest.raises(cv.ImageError, match="no class folders"):
        script.read_images(folder / "dark" / "0.png", config)
    with pytest.raises(cv.ModelError, match="patch must divide size"):
        script.Config(size=30)
    (tmp_path / "settings.json").write_text('{"steps": 7}')
    with pytest.raises(cv.StoreError, match="other settings"):
        script.run(folder, config, tmp_path)
    monkeypatch.setattr(sys, "argv", ["script", str(only), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=r"error: .*only one class folder"):
        script.main()


@pytest.mark.skipif(not hasattr(cv, "diagnose"), reason="clearvit.diagnose is not there yet")
def test_run_measures_draws_and_tells(script, folder, config, tmp_path, capsys):
    script.run(folder, config, tmp_path)
    rows = json.loads((tmp_path / "norms.json").read_text())["checkpoints"]
    assert [(row["registers"], row["step"]) for row in rows] == [
        (count, step) for count in (0, 4) for step in (0, 2, 4, 6)
    ]
    for row in rows:
        assert isinstance(row["verdict"], str) and 0 <= row["fraction"] <= 1
        assert len(row["max_over_median"]) == config.depth
        assert np.shape(row["prefix_norms"]) == (config.depth, 1 + row["registers"])
        assert all(
            1 <= q <= m
            for q, m in zip(row["q999_over_median"], row["max_over_median"], strict=True)
        )
        on_registers = row["class_attention_on_registers"]
        assert all(0 < share < 1 for share in on_registers) == bool(row["registers"])
    with Image.open(tmp_path / "norms.png") as picture:
        assert picture.size == (1600, 800)
    printed = capsys.readouterr().out
    assert "verdict" in printed and "no artifacts are expected" in printed
    assert "next: clearvit diagnose dir:" in printed
