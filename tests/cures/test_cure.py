"""The verb from folder to result, on a model that trains in a second."""

import dataclasses
import json

import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.cures.config import CureConfig
from clearvit.cures.cure import cure
from clearvit.cures.results.cure_report import CureReport
from clearvit.demo.photos import prepare_photos
from clearvit.errors import ImageError, ModelError, OptionError, StoreError, TrainingError
from tests.helpers.commands import clearvit
from tests.helpers.photos import soft_photos

PUBLISHED = ("registers", "positions", "patches", "last")
CONFIG = CureConfig(
    unfreeze=PUBLISHED,
    registers=2,
    epochs=2,
    batch=4,
    lr=1e-3,
    held_out=0.2,
    views=4,
    precision="no",  # the same on every machine
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 15)


def changed(**options):
    return dataclasses.replace(CONFIG, **options)


@pytest.fixture(scope="module")
def cured(tiny, photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("cured") / "out"
    return cv.cure(tiny, photos, out=out, config=changed(epochs=6)), out


def test_held_out_images_come_closer_to_their_clean_tokens(cured):
    report = cured[0].report
    assert isinstance(report, CureReport) and report.after < report.before
    assert report.class_cosine > 0.99 and report.registers == 2 and report.images == 15
    assert [row.epoch for row in report.epochs] == list(range(len(report.epochs)))
    assert report.after == min(row.distance for row in report.epochs)
    assert "before" in str(report) and not report.skipped
    content = json.loads((cured[1] / "cure.json").read_text())
    assert CureReport.from_json(content["report"]) == report


def test_the_result_is_the_saved_model(tiny, cured):
    backbone, out = cured
    pixels = torch.randn(2, 3, 32, 32)
    loaded = cv.load(f"dir:{out}")
    assert torch.equal(loaded.tokens(pixels).patches, backbone.tokens(pixels).patches)
    assert loaded.prefix_names == backbone.prefix_names == ("class", "register", "register")
    weights = [path.name for path in out.glob("*.safetensors")]
    assert weights == ["model.safetensors"]  # once
    assert "Before and after" in (out / "README.md").read_text()


def test_what_is_frozen_stays(tiny, cured):
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
        tiny, photos, out=out, config=changed(epochs=6), progress=lambda *what: seen.append(what[0])
    )
    assert not seen and again.report == backbone.report
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.equal(again.tokens(pixels).patches, backbone.tokens(pixels).patches)


def test_overwrite_trains_a_finished_run_again(tiny, photos, tmp_path):
    def stages(overwrite):
        heard = set()
        config = changed(overwrite=overwrite)
        cure(tiny, photos, out=tmp_path / "c", config=config, progress=lambda s, *_: heard.add(s))
        return heard

    first = stages(False)
    assert stages(True) == first and "targets" in first


def test_another_run_is_refused_and_may_be_overwritten(tiny, photos, tmp_path):
    cure(tiny, photos, out=tmp_path / "out", config=CONFIG)
    with pytest.raises(StoreError, match=r"lr was 0.001, now 0.002.*--overwrite"):
        cure(tiny, photos, out=tmp_path / "out", config=changed(lr=2e-3))
    seen = []
    other = changed(lr=2e-3, overwrite=True)
    cure(
        tiny,
        photos,
        out=tmp_path / "out",
        config=other,
        progress=lambda *w: seen.append((w[0], w[2])),
    )
    assert ("train", 6) in seen and ("targets", 0) not in seen  # the targets are still right


def test_a_directory_of_somebody_else_is_left_alone(tiny, photos, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="Choose another --out"):
        cure(tiny, photos, out=tmp_path, config=CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("cache", [0.0, 3e-5])
def test_how_much_is_cached_does_not_change_the_result(tiny, photos, tmp_path, cache):
    whole = cure(tiny, photos, out=tmp_path / "a", config=CONFIG)
    less = cure(tiny, photos, out=tmp_path / "b", config=changed(target_cache_gb=cache))
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.equal(whole.tokens(pixels).patches, less.tokens(pixels).patches)
    kept = len(list((tmp_path / "b" / "training" / "targets").glob("0*.safetensors")))
    assert kept < 15 and (kept > 0) == (cache > 0)


def test_half_precision_on_a_cpu_trains_as_well(tiny, photos):
    report = cure(tiny, photos, config=changed(precision="bf16", epochs=6)).report
    assert report.after < report.before


def test_gradient_checkpointing_does_not_change_the_result(tiny, photos, tmp_path):
    pixels = torch.randn(1, 3, 32, 32)
    plain, saving = (
        cure(tiny, photos, config=changed(grad_checkpointing=flag)).tokens(pixels).patches
        for flag in (False, True)
    )
    assert torch.equal(plain, saving)


def test_another_layer_can_be_cleaned(tiny, photos):
    backbone = cure(tiny, photos, config=changed(layer=1, registers=0, epochs=6))
    assert backbone.depth == 3
    old, new = tiny.network.state_dict(), backbone.network.state_dict()
    assert torch.equal(old["blocks.2.mlp.fc1.weight"], new["blocks.2.mlp.fc1.weight"])
    assert not torch.equal(old["blocks.1.mlp.fc1.weight"], new["blocks.1.mlp.fc1.weight"])


def test_a_full_disk_while_caching_keeps_what_is_there(tiny, photos, tmp_path, monkeypatch):
    import clearvit.cures.targets as module

    written = []
    save = module.save_file

    def nearly_full(tensors, path, **options):
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path)
        save(tensors, path, **options)

    monkeypatch.setattr(module, "save_file", nearly_full)
    with pytest.raises(StoreError, match=r"disk is full.*--target-cache-gb"):
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
    report = cure(tiny, folder, out=tmp_path / "out", config=CONFIG).report
    assert [bad.name for bad in report.skipped] == ["broken.png", "narrow.png"]
    assert "less than a patch" in report.skipped[1].reason and report.images == 15


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch": 64}, TrainingError, r"15 images leave 12 .*batch=12"),
        ({"unfreeze": ("lats",)}, ModelError, "no part 'lats'"),
        ({"unfreeze": ()}, OptionError, "nothing to train"),
        ({"layer": 7}, ModelError, "blocks 0 to 2"),
        ({"features": "text"}, ModelError, "."),
    ],
)
def test_what_cannot_be_done_is_said_before_the_work(tiny, photos, tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        cure(tiny, photos, out=tmp_path / "out", config=changed(**options))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["epochs", "lr", "views", "batch"])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(OptionError, match=f"{option} is 0"):
        CureConfig(**{option: 0})
    with pytest.raises(OptionError, match="less than 1"):
        CureConfig(held_out=1.0)


def test_a_folder_without_a_usable_image(tiny, tmp_path):
    for number in range(15):
        Image.new("RGB", (3, 3)).save(tmp_path / f"dot-{number}.png")
    with pytest.raises(ImageError, match="none of 15 images"):
        cure(tiny, tmp_path, config=CONFIG)


def test_a_training_that_does_not_help_leaves_no_model(tiny, photos, tmp_path):
    """The raw model is a candidate; --keep-anyway writes the result without training again."""
    harmful, seen = changed(lr=0.5, clip_norm=None), []
    with pytest.raises(TrainingError, match=r"did not help.*more images.*--keep-anyway"):
        cure(tiny, photos, out=tmp_path, config=harmful)
    assert not list(tmp_path.glob("*.safetensors")) and not (tmp_path / "cure.json").exists()
    kept = cure(
        tiny,
        photos,
        out=tmp_path,
        config=dataclasses.replace(harmful, keep_anyway=True),
        progress=lambda *what: seen.append(what[0]),
    )
    assert "train" not in seen and kept.report.after >= kept.report.before
    assert (tmp_path / "model.safetensors").exists()


def test_a_command_that_harms_a_real_model_says_so_and_fails(demo_backbone, tmp_path):
    """Twelve photos, 56 px, one epoch."""
    pytest.importorskip("skimage")
    photos = prepare_photos(tmp_path / "photos", None, parts=3).learn
    for path in sorted(photos.iterdir())[12:]:
        path.unlink()
    options = ("--size", 56, "--epochs", 1, "--out", tmp_path / "out")
    done = clearvit("cure", "demo", photos, *options)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "did not help, and no model was written" in said and "--keep-anyway" in said
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_what_it_takes_and_what_speaks_against_it_is_said_first(tiny, photos):
    said = []
    cure(tiny, photos, config=changed(size=96), progress=lambda *what: said.append(what))
    first = [what[3] for what in said if not what[2]]
    assert "15 images are few" in first[0] and "size the model will be used at" in first[1]
    assert "on disk" in first[2] and "of memory" in first[2] and "2 registers" in first[2]


def test_a_default_cure_is_low_rank_and_plain(tiny, photos, tmp_path):
    cured = cv.cure(
        tiny, photos, out=tmp_path / "out", epochs=3, rank=2, views=4, held_out=0.2, lr=1e-2
    )
    assert cured.report.after < cured.report.before
    old, new = tiny.network.state_dict(), cured.network.state_dict()
    change = new["blocks.1.mlp.fc1.weight"] - old["blocks.1.mlp.fc1.weight"]
    sizes = torch.linalg.svdvals(change.double())
    assert sizes[1] > 0 and sizes[2] < 1e-5 * sizes[0]
    loaded = __import__("timm").create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert set(loaded.state_dict()) == set(new)


def test_a_cured_model_can_be_cured_again(tiny, cured, photos):
    again = cure(cured[0], photos, config=changed(registers=None, keep_anyway=True))
    assert again.prefix_names == cured[0].prefix_names


def test_models_without_weights_to_train_are_refused_before_any_work(tiny, photos):
    pruned = cv.prune(tiny, keep=0.5)
    with pytest.raises(ModelError, match="prune the result"):
        cure(pruned, photos, config=CONFIG)
    with pytest.raises(ModelError, match="averages views already"):
        cure(cv.cure(tiny, method="denoise", views=2), photos, config=CONFIG)


def test_an_unknown_method(tiny, photos):
    with pytest.raises(OptionError, match=r"use distill, .*Closest: distill"):
        cure(tiny, photos, method="distil")


def test_grid_only_backbones_are_sent_to_denoising(photos):
    grid = cv.load(__import__("timm").create_model("resnet10t"))
    with pytest.raises(ModelError, match="denoise"):
        cure(grid, photos)


def test_the_averaged_backbone_is_the_denoised_one(tiny):
    pixels = torch.randn(3, 3, 32, 48)
    backbone = cv.cure(tiny, method="denoise", views=6)
    expected = cv.denoise(tiny, pixels, views=6)
    found = backbone.tokens(pixels)
    assert torch.allclose(found.patches, expected.patches, atol=1e-5)
    assert torch.equal(found.counts, expected.counts)
    assert backbone.fingerprint() != tiny.fingerprint()
    with pytest.raises(ModelError, match="final tokens only"):
        backbone.tokens(pixels, layers=[0])


@pytest.mark.parametrize("class_weight", [0.0, 1.0])
def test_clip_learns_from_naclip_in_the_space_of_the_texts(photos, tmp_path, class_weight):
    """NACLIP teaches MaskCLIP; zero-shot classification keeps its class token."""
    from clearvit.backbones.clip_heads import DenseClip, dense_clip
    from tests.conftest import tiny_network

    options = {"num_classes": 20, "global_pool": "token", "pre_norm": True}
    clip = cv.load(tiny_network(**options))
    config = changed(features="text", epochs=8, class_weight=class_weight, patience=None)
    clip.blueprint.arguments["pre_norm"] = True  # which timm's ViT does not tell
    cured = cure(clip, photos, out=tmp_path / "out", config=config, progress=lambda *w: None)
    assert isinstance(cured, DenseClip) and cured.head == "maskclip" and cured.width == 20
    distances = [row.distance for row in cured.report.epochs]
    assert distances[-1] < distances[0]  # MaskCLIP comes closer to the averaged NACLIP
    pixels = torch.randn(2, 3, 32, 32)
    again = cv.load(f"dir:{tmp_path / 'out'}")
    assert torch.equal(again.tokens(pixels).patches, cured.tokens(pixels).patches)
    teacher = dense_clip(clip, "naclip")
    assert teacher.tokens(pixels).patches.shape == cured.tokens(pixels).patches.shape
    mlp = "blocks.2.mlp.fc1.weight"  # only the class token passes it
    moved = not torch.equal(clip.network.state_dict()[mlp], cured.network.state_dict()[mlp])
    assert moved == (class_weight > 0)


def test_before_and_after_are_of_the_same_kind_of_features(photos):
    """For CLIP the distance before is that of MaskCLIP, not of its NACLIP teacher."""
    from clearvit.backbones.clip_heads import dense_clip
    from tests.conftest import tiny_network

    clip = cv.load(tiny_network(num_classes=20, global_pool="token", pre_norm=True))
    clip.blueprint.arguments["pre_norm"] = True  # which timm's ViT does not tell
    report = cure(
        clip, photos, config=changed(features="text", lr=1e-12, registers=0, keep_anyway=True)
    ).report
    assert report.before == pytest.approx(report.after, abs=1e-4)  # nothing was learned
    names = sorted(photos.iterdir())
    held_out = [names[0], names[5], names[10]]
    clean = [
        cv.denoise(dense_clip(clip, "naclip"), name, views=4, seed=i)
        for name, i in zip(held_out, (0, 5, 10), strict=True)
    ]
    raw = [dense_clip(clip, "maskclip").tokens(name) for name in held_out]
    expected = [
        1 - torch.cosine_similarity(a.patches, b.patches, dim=-1).mean()
        for a, b in zip(clean, raw, strict=True)
    ]
    assert report.before == pytest.approx(float(torch.stack(expected).mean()), abs=1e-3)


def test_an_image_is_decoded_once(tiny, photos, tmp_path, monkeypatch):
    import clearvit.training.held_out as module

    read, seen = module.read_image, []
    monkeypatch.setattr(module, "read_image", lambda source: seen.append(source) or read(source))
    cure(tiny, photos, out=tmp_path / "out", config=CONFIG)
    assert len(seen) == len(set(map(str, seen))) == 15


def test_one_training_at_two_sizes(tiny, photos, tmp_path):
    config = changed(sizes=(32, 48), epochs=6)
    cured = cv.cure(tiny, photos, out=tmp_path / "out", config=config)
    assert cured.report.after < cured.report.before
    assert "32, 48 px" in (tmp_path / "out" / "README.md").read_text()
    again = cv.cure(tiny, photos, out=tmp_path / "out", config=config)  # is finished
    assert cured.fingerprint() == again.fingerprint()


@pytest.mark.parametrize(
    ("options", "word"),
    [({"size": 32}, "not both"), ({"method": "positional"}, "method 'distill'")],
)
def test_sizes_are_refused_where_they_mean_nothing(tiny, photos, options, word):
    with pytest.raises(OptionError, match=word):
        cv.cure(tiny, photos, sizes=(32, 48), **options)
