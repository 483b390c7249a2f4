"""The verb from folder to result, on a model that trains in a second."""

import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import clearvit as cv
from clearvit.cure.config import CureConfig
from clearvit.cure.cure import cure
from clearvit.cure.distill import Distillation
from clearvit.cure.student import Lesson, Look, Student, varied
from clearvit.cure.targets import TargetConfig, Targets
from clearvit.cure.views import Views
from clearvit.errors import ImageError, ModelError, StoreError, TrainingError
from clearvit.images import find_images
from clearvit.training.pictures import split
from tests.photos import soft_photos

PUBLISHED = ("registers", "positions", "patches", "last")
CONFIG = CureConfig(
    unlock=PUBLISHED, registers=2, epochs=2, batch=4, lr=1e-3, validation=0.2, views=4
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 15)


def changed(**options):
    import dataclasses

    return dataclasses.replace(CONFIG, **options)


@pytest.fixture(scope="module")
def cured(tiny, photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("cured") / "out"
    return cv.cure(tiny, photos, out=out, config=changed(epochs=6)), out


def test_held_out_pictures_come_closer_to_their_clean_tokens(cured):
    content = json.loads((cured[1] / "cure.json").read_text())
    assert content["after"]["score"] > content["before"]["score"]
    assert content["after"]["class"] > 0.99


def test_the_result_is_the_saved_model(tiny, cured):
    backbone, out = cured
    pixels = torch.randn(2, 3, 32, 32)
    loaded = cv.load(f"dir:{out}")
    assert torch.equal(loaded.tokens(pixels).patches, backbone.tokens(pixels).patches)
    assert loaded.prefix_names == backbone.prefix_names == ("class", "register", "register")
    from clearvit.cure.delta import apply_delta

    again = apply_delta(tiny, out / "delta.safetensors")
    assert torch.equal(again.tokens(pixels).patches, backbone.tokens(pixels).patches)
    assert "Before and after" in (out / "README.md").read_text()


def test_what_is_locked_stays(tiny, cured):
    backbone, _ = cured
    old, new = tiny.network.state_dict(), backbone.network.state_dict()
    same = [key for key in new if key in old and torch.equal(old[key], new[key])]
    assert any(key.startswith("blocks.0.") for key in same)
    moved = {key for key in new if key not in same}
    assert not any(key.startswith(("blocks.0.", "blocks.1.", "norm.")) for key in moved)
    assert any(key.startswith("blocks.2.") for key in moved)


def test_a_finished_run_is_not_trained_again(tiny, photos, cured):
    backbone, out = cured
    seen = []
    again = cure(
        tiny, photos, out=out, config=changed(epochs=6), report=lambda *what: seen.append(what[0])
    )
    assert set(seen) == {"check"}
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.equal(again.tokens(pixels).patches, backbone.tokens(pixels).patches)


def test_another_run_is_refused_and_may_be_overwritten(tiny, photos, tmp_path):
    cure(tiny, photos, out=tmp_path / "out", config=CONFIG)
    with pytest.raises(StoreError, match=r"lr was 0.001, now 0.002.*--overwrite"):
        cure(tiny, photos, out=tmp_path / "out", config=changed(lr=2e-3))
    seen = []
    other = changed(lr=2e-3, overwrite=True)
    cure(tiny, photos, out=tmp_path / "out", config=other, report=lambda *w: seen.append(w[0]))
    assert "train" in seen and "targets" not in seen  # the targets are still right


def test_a_directory_of_somebody_else_is_left_alone(tiny, photos, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="Choose another --out"):
        cure(tiny, photos, out=tmp_path, config=CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("cache", [0.0, 1e-5])
def test_how_much_is_cached_does_not_change_the_result(tiny, photos, tmp_path, cache):
    whole = cure(tiny, photos, out=tmp_path / "a", config=CONFIG)
    less = cure(tiny, photos, out=tmp_path / "b", config=changed(cache=cache))
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.equal(whole.tokens(pixels).patches, less.tokens(pixels).patches)
    kept = len(list((tmp_path / "b" / "training" / "targets").glob("0*.safetensors")))
    assert kept < 15 and (kept > 0) == (cache > 0)


def test_half_precision_on_a_cpu_trains_as_well(tiny, photos, tmp_path):
    cure(tiny, photos, out=tmp_path / "out", config=changed(precision="bf16", epochs=6))
    content = json.loads((tmp_path / "out" / "cure.json").read_text())
    assert content["after"]["score"] > content["before"]["score"]


def test_recomputing_activations_does_not_change_the_result(tiny, photos, tmp_path):
    pixels = torch.randn(1, 3, 32, 32)
    plain, saving = (
        cure(tiny, photos, config=changed(recompute=flag)).tokens(pixels).patches
        for flag in (False, True)
    )
    assert torch.equal(plain, saving)


def test_another_layer_can_be_cleaned(tiny, photos):
    backbone = cure(tiny, photos, config=changed(layer=1, registers=0, epochs=6))
    assert backbone.depth == 3
    old, new = tiny.network.state_dict(), backbone.network.state_dict()
    assert torch.equal(old["blocks.2.mlp.fc1.weight"], new["blocks.2.mlp.fc1.weight"])
    assert not torch.equal(old["blocks.1.mlp.fc1.weight"], new["blocks.1.mlp.fc1.weight"])


@given(dy=st.integers(-2, 2), dx=st.integers(-1, 1), flip=st.booleans())
def test_targets_move_with_their_picture(dy, dx, flip):
    """A linear patch embedding commutes with every view, so it can stand for clean tokens."""
    pixels = torch.randn(1, 3, 32, 16, generator=torch.Generator().manual_seed(0))
    patch, grid = (8, 8), (4, 2)

    def clean(pictures):
        return F.avg_pool2d(pictures, 8).flatten(2).transpose(1, 2)

    views = Views(torch.tensor([[dy, dx]]), torch.tensor([flip]))
    lesson = Lesson(
        pixels, clean(pixels), torch.zeros(1, 3), torch.ones(1, 8), torch.ones(1, 8) > 0
    )
    moved = varied(lesson, views, Look(grid, patch, torch.zeros(3)))
    assert torch.allclose(moved.patches, clean(moved.pixels), atol=1e-6)
    assert torch.equal(moved.shown, moved.variance > 0)
    assert int(moved.shown.sum()) == (4 - abs(dy)) * (2 - abs(dx))


def test_the_class_token_is_told_to_stay(tiny):
    pixels = torch.randn(1, 3, 32, 32)
    tokens = tiny.tokens(pixels)
    lesson = Lesson(
        pixels, tokens.patches, tokens.cls + 1.0, torch.ones(1, 16), torch.ones(1, 16) > 0
    )
    with torch.no_grad():
        losses = Student(tiny, mse=1.0, class_weight=0.5, weigh=False)(lesson)
    assert float(losses["patches"]) == pytest.approx(0, abs=1e-5)
    assert float(losses["loss"]) == pytest.approx(0.5 * float(losses["class"]), rel=1e-5)
    assert "class" not in Student(tiny, mse=1.0, class_weight=0.0, weigh=False)(lesson)


def test_targets_are_the_denoised_tokens(tiny, photos, tmp_path):
    pictures = find_images(photos)[:2]
    targets = Targets(tiny, pictures, tmp_path, TargetConfig(size=(32, 32), views=6))
    targets.prepare()
    for number in range(2):
        pixels = targets.pixels(number)[None]
        clean = cv.denoise(tiny, pixels, views=6, seed=number)
        assert torch.allclose(targets[number].patches.float(), clean.patches[0], atol=2e-3)
        assert torch.equal(targets[number].cls, tiny.tokens(pixels).cls[0].half())
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size <= targets.bytes


def test_a_teacher_in_half_precision_says_almost_the_same(tiny, photos, tmp_path):
    pictures = find_images(photos)[:1]
    whole, half = (
        Targets(tiny, pictures, tmp_path, TargetConfig(size=(32, 32), limit=0.0, half=half))[0]
        for half in (False, True)
    )
    assert F.cosine_similarity(whole.patches.float(), half.patches.float(), dim=-1).min() > 0.999
    assert not torch.equal(whole.patches, half.patches) and half.patches.dtype == torch.float16


def test_a_full_disk_while_caching_keeps_what_is_there(tiny, photos, tmp_path, monkeypatch):
    import clearvit.cure.targets as module

    written = []
    save = module.save_file

    def nearly_full(tensors, path, **options):
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path)
        save(tensors, path, **options)

    monkeypatch.setattr(module, "save_file", nearly_full)
    with pytest.raises(StoreError, match=r"disk is full.*--cache"):
        cure(tiny, photos, out=tmp_path / "out", config=CONFIG)
    folder = tmp_path / "out" / "training" / "targets"
    assert len(list(folder.glob("0*.safetensors"))) == 3 and not list(folder.glob(".*"))
    monkeypatch.undo()
    assert cure(tiny, photos, out=tmp_path / "out", config=CONFIG).prefix_names[1] == "register"


def test_too_little_room_is_said_before_the_work(tiny, photos, tmp_path, monkeypatch):
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(StoreError, match="free"):
        cure(tiny, photos, out=tmp_path / "out", config=CONFIG)


def test_bad_files_are_left_out_and_listed(tiny, photos, tmp_path):
    import shutil

    folder = tmp_path / "mixed"
    shutil.copytree(photos, folder)
    (folder / "broken.png").write_bytes(b"no picture")
    Image.new("RGB", (5, 40)).save(folder / "narrow.png")
    cure(tiny, folder, out=tmp_path / "out", config=CONFIG)
    content = json.loads((tmp_path / "out" / "cure.json").read_text())
    assert {bad["name"].split("/")[-1] for bad in content["skipped"]} == {
        "broken.png",
        "narrow.png",
    }
    assert "less than a patch" in json.dumps(content["skipped"])
    assert content["plan"]["images"] == 15


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch": 64}, TrainingError, r"15 images leave 12 .*batch=12"),
        ({"unlock": ("lats",)}, ModelError, "no part 'lats'"),
        ({"epochs": 0}, TrainingError, "epochs is 0"),
        ({"lr": 0.0}, TrainingError, "positive"),
        ({"validation": 1.0}, TrainingError, "share"),
        ({"ema": 1.0}, TrainingError, r"ema is 1.0; .*0 for none"),
        ({"layer": 7}, ModelError, "blocks 0 to 2"),
        ({"features": "text"}, ModelError, "."),
    ],
)
def test_what_cannot_be_done_is_said_before_the_work(tiny, photos, tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        cure(tiny, photos, out=tmp_path / "out", config=changed(**options))
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_usable_picture(tiny, tmp_path):
    Image.new("RGB", (3, 3)).save(tmp_path / "dot.png")
    with pytest.raises(ImageError, match="none of 1 images"):
        cure(tiny, tmp_path, config=CONFIG)


def test_an_unknown_method(tiny, photos):
    with pytest.raises(ModelError, match="distill, test-time, denoise"):
        cure(tiny, photos, method="distil")


def test_grid_only_backbones_are_sent_to_denoising(photos):
    grid = cv.load(__import__("timm").create_model("resnet10t"))
    with pytest.raises(ModelError, match="denoise"):
        cure(grid, photos)


def test_the_averaged_backbone_is_the_denoised_one(tiny):
    pixels = torch.randn(3, 3, 32, 48)
    backbone = cv.cure(tiny, method="denoise", config=CureConfig(views=6))
    expected = cv.denoise(tiny, pixels, views=6)
    found = backbone.tokens(pixels)
    assert torch.allclose(found.patches, expected.patches, atol=1e-5)
    assert torch.equal(found.counts, expected.counts)
    assert backbone.fingerprint() != tiny.fingerprint()
    with pytest.raises(ModelError, match="final tokens only"):
        backbone.tokens(pixels, layers=[0])


@pytest.mark.parametrize("vary", ["none", "mirror", "views"])
def test_what_the_student_sees(tiny, photos, tmp_path, vary):
    targets = Targets(tiny, find_images(photos), tmp_path, TargetConfig(size=(64, 64), views=4))
    targets.prepare()
    config = changed(vary=vary, size=64)
    task = Distillation(tiny, targets, range(12), range(12, 15), config, torch.device("cpu"))
    lessons = [task.batch([1, 2, 3, 4], step) for step in range(8)]
    shifted = torch.stack([~lesson.shown.all(1) for lesson in lessons])
    assert shifted.any() == (vary == "views") and not shifted.all()
    again = task.batch([2], 5)  # depends on the step and the picture, on nothing else
    assert torch.equal(again.pixels[0], lessons[5].pixels[1])
    upright = [torch.equal(lesson.pixels[0], targets.pixels(1)) for lesson in lessons]
    assert all(upright) == (vary == "none")


def test_held_out_pictures_are_spread_and_never_trained_on():
    training, held = split(480, 0.1)
    assert len(held) == 48 and not set(training) & set(held)
    assert len(set(training) | set(held)) == 480
    assert split(2, 0.1) == ([1], [0])


@pytest.mark.parametrize("class_weight", [0.0, 1.0])
def test_clip_learns_from_naclip_in_the_space_of_the_texts(photos, tmp_path, class_weight):
    """NACLIP teaches MaskCLIP; zero-shot classification keeps its class token."""
    from clearvit.backbones.dense_clip import DenseClip, dense_clip
    from tests.conftest import tiny_network

    options = {"num_classes": 20, "global_pool": "token", "pre_norm": True}
    clip = cv.load(tiny_network(**options))
    config = changed(features="text", epochs=8, class_weight=class_weight, patience=None)
    clip.blueprint.arguments["pre_norm"] = True  # which timm's ViT does not tell
    cured = cure(clip, photos, out=tmp_path / "out", config=config)
    assert isinstance(cured, DenseClip) and cured.head == "maskclip" and cured.width == 20
    content = json.loads((tmp_path / "out" / "cure.json").read_text())
    scores = [row["score"] for row in content["epochs"]]
    assert scores[-1] > scores[0]  # MaskCLIP comes closer to the averaged NACLIP
    pixels = torch.randn(2, 3, 32, 32)
    again = cv.load(f"dir:{tmp_path / 'out'}")
    assert torch.equal(again.tokens(pixels).patches, cured.tokens(pixels).patches)
    teacher = dense_clip(clip, "naclip")
    assert teacher.tokens(pixels).patches.shape == cured.tokens(pixels).patches.shape
    mlp = "blocks.2.mlp.fc1.weight"  # only the class token passes it
    moved = not torch.equal(clip.network.state_dict()[mlp], cured.network.state_dict()[mlp])
    assert moved == (class_weight > 0)
