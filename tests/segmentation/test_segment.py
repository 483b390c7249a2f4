"""Masks of a folder from examples: right, resumed, corrected, and refused in one sentence."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.errors import ImageError, ModelError, OptionError, StoreError
from clearvit.segmentation import load_segmenter, write_strokes
from clearvit.segmentation.mask_results import mask_paths, read_facts
from tests.conftest import tiny_network
from tests.helpers.commands import invoke
from tests.helpers.made_data import colour_image, save_png

FAST = {"scale": 1, "refine": "none", "method": "probe", "batch": 2}


@pytest.fixture
def place(tmp_path):
    """Three examples with masks and six photos: class 1 is red, class 0 is blue."""
    for i in range(3):
        pixels, mask = colour_image(i)
        save_png(tmp_path / f"examples/images/{i}.png", pixels)
        save_png(tmp_path / f"examples/masks/{i}.png", mask)
    (tmp_path / "examples/classes.txt").write_text("background\nred\n")
    for i in range(6):
        save_png(tmp_path / f"photos/{i % 2}/{i}.png", colour_image(100 + i)[0])
    (tmp_path / "photos/broken.jpg").write_bytes(b"nothing")
    return tmp_path


def run(tiny, place, **options):
    given = {"examples": place / "examples", "out": place / "out", **FAST, **options}
    return cv.segment(tiny, place / "photos", **given)


def times(folder):
    return {p.relative_to(folder).as_posix(): p.stat().st_mtime_ns for p in folder.rglob("*.png")}


@pytest.mark.parametrize("method", ["probe", "knn", "prototypes", "mixed"])
def test_masks_are_nearly_right(tiny, place, method):
    masks = run(tiny, place, method=method)
    assert [bad.name for bad in masks.skipped] == ["broken.jpg"]
    assert len(masks) == 6 and masks.classes == {0: "background", 1: "red"}
    right = []
    for mask in masks:
        truth = colour_image(100 + int(mask.name.split("/")[1][0]))[1]
        assert mask.array.shape == truth.shape and mask.array.dtype == np.uint8
        right.append((mask.array == truth).mean())
    assert np.mean(right) > 0.9
    assert all(0 <= mask.confidence <= 1 for mask in masks)
    assert sum(masks[0].fractions().values()) == pytest.approx(1)
    assert masks[0].show(16).size == (16, 16)
    with Image.open(masks[0].path) as image:
        assert image.mode == "P" and image.getpalette()[3:6] == [128, 0, 0]


def test_auto_keeps_what_it_compared_and_says_why(tiny, place):
    masks = run(tiny, place, method="auto", scale=None, refine="auto")
    choice = masks.segmenter.choice
    names = [str(one) for one in choice.candidates]
    assert names[:4] == ["mixed", "probe", "knn", "prototypes"] and len(names) == 6
    assert str(choice.chosen) in names and choice.chosen.low <= choice.chosen.miou
    assert "3 examples, 3 folds" in str(choice)
    page = (place / "out/masks.html").read_text()
    assert "Look here next" in page and "prototypes" in page


def test_a_choice_that_cannot_be_made_says_so(tiny, place):
    strokes = [
        {"class": "red", "points": [[3, 3]], "radius": 0},
        {"class": "background", "points": [[20, 20]], "radius": 0},
    ]
    height, width = colour_image(100)[0].shape[:2]
    row = {"image": "0/0.png", "width": width, "height": height, "strokes": strokes}
    write_strokes(place / "clicks.json", ["background", "red"], [row])
    masks = cv.segment(tiny, place / "photos", examples=place / "clicks.json", batch=2)
    assert len(masks) == 6
    assert "too few pixels are labelled" in str(masks.segmenter.choice)


def test_halves_of_one_image_do_not_choose_the_classifier(tiny, place):
    """The other half of an image is no new scene: there the probe wins and then loses."""
    for i in (1, 2):
        (place / f"examples/masks/{i}.png").unlink()
        (place / f"examples/images/{i}.png").unlink()
    choice = run(tiny, place, method="auto", refine="auto").segmenter.choice
    assert choice.chosen.method == "mixed" and "halves of the labels" in str(choice)
    assert {one.method for one in choice.candidates} == {"mixed"}


def test_without_out_the_files_vanish_with_the_result(tiny, place):
    masks = run(tiny, place, out=None)
    folder = masks.folder
    assert masks[0].array.any() and folder.exists()
    del masks
    assert not folder.exists()


def test_a_finished_run_does_nothing_again(tiny, place, monkeypatch):
    run(tiny, place)
    before = times(place / "out")
    monkeypatch.setattr("clearvit.segmentation.segment.fit_segmenter", None)
    masks = run(tiny, place)
    assert times(place / "out") == before and len(masks) == 6


def test_new_and_changed_images_are_the_only_ones_made(tiny, place):
    run(tiny, place)
    before = times(place / "out")
    save_png(place / "photos/new.png", colour_image(7)[0])
    save_png(place / "photos/0/0.png", colour_image(8)[0])
    run(tiny, place)
    after = times(place / "out")
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"new.png", "0/0.png"}


def test_corrected_masks_change_the_model_and_edited_ones_are_kept(tiny, place):
    first = run(tiny, place)
    key, before = first.segmenter.key, times(place / "out")
    edited = first[1].array
    edited[:4] = 1
    Image.fromarray(edited).save(first[1].path)  # an editor that keeps no text
    (place / "examples/masks/0").mkdir()
    shutil.copy(first[2].path, place / "examples/masks/0/4.png")  # its image is among the photos
    second = run(tiny, place)
    assert second.segmenter.key != key
    assert [mask.edited for mask in second] == [False, True, *[False] * 4]
    assert np.array_equal(second[1].array, edited)
    after = times(place / "out")
    kept = {name for name in after if after[name] == before[name]}
    assert not kept  # all but the edited one were made again, and that one was edited
    third = run(tiny, place, overwrite=True)
    assert not any(mask.edited for mask in third)


def test_an_interrupted_run_goes_on_to_the_same_masks(tiny, place, monkeypatch):
    whole = {m.name: m.array for m in run(tiny, place, out=place / "whole")}
    from clearvit.segmentation import mask_making

    done = []

    def stop(path, mask, facts, write=mask_making.write_mask):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(path)
        write(path, mask, facts)

    with monkeypatch.context() as patch:
        patch.setattr(mask_making, "write_mask", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tiny, place)
    before = times(place / "out")
    assert len(before) == 3
    masks = run(tiny, place)
    assert all(np.array_equal(mask.array, whole[mask.name]) for mask in masks)
    after = times(place / "out")
    assert all(after[name] == before[name] for name in before)


def test_the_model_file_makes_the_same_masks_later(tiny, place):
    first = run(tiny, place)
    later = cv.segment(
        tiny, place / "photos", model_file=place / "out/segmenter.json", out=place / "later"
    )
    assert [m.confidence for m in later] == [m.confidence for m in first]
    assert all(np.array_equal(a.array, b.array) for a, b in zip(first, later, strict=True))
    network = tiny_network()
    with torch.no_grad():
        network.norm.bias += 1
    with pytest.raises(ModelError, match="fitted to tokens of"):
        cv.segment(load(network), place / "photos", model_file=place / "out", out=place / "x")


@pytest.mark.parametrize(
    "change",
    [{"numbers": [1, 0]}, {"width": 5}, {"chosen": 3}, {"classes": ["a"]}, {"size": [0, 0]}],
    ids=str,
)
def test_a_hostile_model_file_is_one_sentence(tiny, place, change):
    run(tiny, place)
    path = place / "out/segmenter.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | change))
    with pytest.raises(ModelError, match="segmenter"):
        load_segmenter(path)
    (place / "out/segmenter.safetensors").write_bytes(b"x" * 40)
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="segmenter"):
        load_segmenter(path)


def test_coco_holds_the_masks(tiny, place):
    masks = run(tiny, place, coco=True)
    from clearvit.segmentation import read_examples

    for name in ("0", "1"):
        shutil.copytree(place / "photos" / name, place / "back" / name)
    shutil.copy(place / "out/coco.json", place / "back")
    back = read_examples(place / "back")
    by_name = {one.name: n for n, one in enumerate(back.sources)}
    for mask in masks:
        if mask.array.any():
            assert np.array_equal(back.read(by_name[mask.name]), mask.array)


def test_three_strokes_on_one_image_are_enough(tiny, place):
    _, mask = colour_image(0)
    rows = []
    for name, place_ in (("background", 0), ("red", 1)):
        y, x = np.argwhere(mask == place_)[:: max(1, (mask == place_).sum() // 3)][:3].T
        rows += [
            {"class": name, "points": [[int(a), int(b)]], "radius": 2}
            for a, b in zip(x, y, strict=True)
        ]
    image = {"image": "0.png", "width": 32, "height": 32, "strokes": rows}
    folder = place / "examples/images"
    write_strokes(folder / "strokes.json", ["background", "red"], [image])
    for other in ("1.png", "2.png"):
        (folder / other).unlink()
    masks = run(tiny, place, examples=folder, method="auto")
    assert "halves of the labels" in str(masks.segmenter.choice)
    truth = colour_image(100)[1]
    assert (masks[0].array == truth).mean() > 0.7


def test_images_of_wildly_different_sizes(tiny, place):
    save_png(place / "photos/wide.png", np.zeros((3, 900, 3), np.uint8))
    save_png(place / "photos/tall.png", np.zeros((700, 1, 3), np.uint8))
    masks = run(tiny, place)
    sizes = {mask.name: mask.array.shape for mask in masks}
    assert sizes["wide.png"] == (3, 900) and sizes["tall.png"] == (700, 1)


def test_names_that_collide_or_lead_out_stay_apart_and_inside(tmp_path):
    from clearvit.images import ImageSource

    names = ["a.jpg", "a.png", "../b.jpg", "/c/d.jpg", "e"]
    paths = mask_paths([ImageSource(n, n) for n in names], tmp_path)
    found = [paths[n].relative_to(tmp_path).as_posix() for n in names]
    assert found == ["a.jpg.png", "a.png.png", "b.png", "c/d.png", "e.png"]


def test_masks_among_the_images_are_no_images(tiny, place):
    inside = place / "photos/masks"
    first = run(tiny, place, out=inside)
    assert len(run(tiny, place, out=inside)) == len(first) == 6
    with pytest.raises(ImageError, match="Choose another"):
        cv.segment(tiny, inside, examples=place / "examples", out=inside, **FAST)


def test_wrong_calls_are_one_sentence(tiny, place):
    with pytest.raises(OptionError, match="either examples or"):
        run(tiny, place, examples=None)
    (place / "empty").mkdir()
    with pytest.raises(ImageError, match="holds no labels"):
        run(tiny, place, examples=place / "empty")
    with pytest.raises(ImageError, match="no images"):
        cv.segment(tiny, place / "empty", examples=place / "examples", **FAST)
    (place / "full").mkdir()
    (place / "full/thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="not empty"):
        run(tiny, place, out=place / "full")
    assert read_facts(place / "photos/0/0.png") is None


def test_the_command_writes_masks_and_says_what_comes_next(tiny, place):
    cv.save(tiny, place / "model")
    line = ("segment", f"dir:{place / 'model'}", place / "photos", "--out", place / "out")
    done = invoke(*line, "--examples", place / "examples", "--scale", "1", "--json")
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["images"]) == 6 and found["classes"] == {"0": "background", "1": "red"}
    assert (place / "out/0/0.png").exists()
    both = invoke(*line, "--examples", place / "examples", "--model-file", "x")
    assert isinstance(both.exception, OptionError)


@pytest.mark.slow
def test_ray_makes_the_same_masks(tiny, place):
    pytest.importorskip("ray")
    cv.save(tiny, place / "model")
    backbone = load(f"dir:{place / 'model'}")
    local = run(backbone, place)
    spread = run(backbone, place, out=place / "ray", engine="ray")
    assert [bad.name for bad in spread.skipped] == ["broken.jpg"]
    for one, other in zip(local, spread, strict=True):
        assert (one.array == other.array).mean() > 0.99
