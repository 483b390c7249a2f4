import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import markupsafe
import numpy as np
import pytest

from clearvit.artifacts.config import DiagnoseConfig
from clearvit.artifacts.diagnosis import diagnose
from clearvit.artifacts.report.diagnosis_page import report_json, report_sections, write_report
from clearvit.artifacts.report.examples import pick_examples, rank_images
from clearvit.artifacts.report.figures import (
    draw_by_block,
    draw_norms,
    draw_readings,
    draw_redundancy,
)
from clearvit.artifacts.report.maps import draw_examples, draw_positions, draw_registers
from clearvit.backbones.load import load
from clearvit.errors import ModelError, StoreError
from clearvit.images import find_images
from clearvit.report.elements import Section
from clearvit.testing import planted
from tests.conftest import tiny_network
from tests.helpers.pages import check, made_images

CONFIG = DiagnoseConfig(size=64, shifted=2, experiments=False)


@pytest.fixture(scope="module")
def sick():
    """High-norm artifacts from the second of three blocks on, with all experiments."""
    backbone = planted(load(tiny_network()), "high-norm", fraction=0.05, block=1).backbone
    return diagnose(backbone, made_images(12), config=replace(CONFIG, experiments=True))


@pytest.fixture(scope="module")
def with_registers():
    backbone = load(tiny_network(reg_tokens=3, no_embed_class=True))
    return diagnose(backbone, made_images(4), config=CONFIG)


def saved(diagnosis, path):
    """Write and check a report; gives the page and the numbers."""
    page = Path(diagnosis.save(path))
    text = page.read_text("utf-8")
    check(text)
    return text, read_json(page.with_suffix(".json"))


def read_json(path):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


def titles(sections):
    return [section.title for section in sections]


def without_nan(value):
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def test_report_of_planted_artifacts(sick, tmp_path):
    page, numbers = saved(sick, tmp_path / "report.html")
    assert sick.verdict == "high-norm" and sick.onset == 1
    assert "High-norm artifact tokens" in page and "1 of 0..2" in page
    assert str(markupsafe.escape(sick.next_command)) in page
    assert numbers.pop("made_by") == "clearvit"
    assert numbers == {"diagnoses": [without_nan(sick.to_json())]}
    assert titles(report_sections([sick])[1]) == [
        "Verdict",
        "Norms, block by block",
        "Where they sit",
        "Attention",
        "Do features move with the image?",
        "What flagged tokens know",
        "All numbers",
        "Definitions and questions",
    ]
    assert "Paper: Outliers hold less of where they are." in page


def test_numbers_that_json_does_not_know_become_null(sick):
    broken = replace(sick.blocks[0], largest=math.inf, border=math.nan)
    numbers = report_json([replace(sick, blocks=(broken, *sick.blocks[1:]))])
    assert numbers["diagnoses"][0]["blocks"][0]["largest"] is None
    json.dumps(numbers, allow_nan=False)


def test_report_of_registers(with_registers, tmp_path):
    page, _ = saved(with_registers, tmp_path)
    assert (tmp_path / "report.html").exists() and (tmp_path / "report.json").exists()
    assert "Registers" in titles(report_sections([with_registers])[1])
    assert "No artifact tokens" in page
    assert draw_registers(with_registers) is not None
    axes = draw_norms(with_registers).axes[0]
    marks = [line for line in axes.lines if line.get_marker() in "D^v"]
    assert sum(len(line.get_xdata()) for line in marks) == 3 * 3
    heights = np.concatenate([line.get_ydata() for line in marks])
    low, high = axes.get_ylim()
    assert (heights >= low).all() and (heights <= high).all()  # else the layout would collapse


def test_report_without_class_token(tmp_path):
    backbone = load(tiny_network(class_token=False, global_pool="avg"))
    found = diagnose(backbone, made_images(4), config=CONFIG)
    saved(found, tmp_path)
    assert draw_registers(found) is None
    assert len(draw_by_block(found).axes) == 1
    sampled = draw_examples(found)
    assert "class attention, last" not in {text.get_text() for text in sampled.texts}


def test_report_of_one_image(tiny, tmp_path):
    found = diagnose(tiny, made_images(1), config=replace(CONFIG, equivariance=False))
    page, numbers = saved(found, tmp_path)
    assert "1 image at" in page and numbers["diagnoses"][0]["images"] == 1
    assert "Do features move" not in "".join(titles(report_sections([found])[1]))


def test_report_of_two_models_of_different_depth(sick, tmp_path):
    deeper = load(tiny_network(depth=5, reg_tokens=2, no_embed_class=True))
    other = diagnose(deeper, made_images(3), config=CONFIG)
    path = write_report([sick, other], tmp_path / "both")
    page = path.read_text("utf-8")
    parsed = check(page)
    assert parsed.headings.count(3) > 8
    _, sections = report_sections([sick, other])
    assert titles(sections) == [
        "Comparison",
        sick.model,
        other.model,
        "Definitions and questions",
    ]
    assert all(isinstance(part, Section) for part in sections[1].elements)
    assert len(read_json(tmp_path / "both" / "report.json")["diagnoses"]) == 2


def test_names_of_models_and_files_are_escaped(with_registers, tmp_path):
    evil = "<script>alert(1)</script>"
    seen = replace(with_registers.observations, names=tuple(f"{evil}{i}" for i in range(4)))
    renamed = tuple(replace(one, name=f"{evil}0") for one in with_registers.examples)
    found = replace(with_registers, model=evil, observations=seen, examples=renamed)
    page, numbers = saved(found, tmp_path)
    assert evil not in page and numbers["diagnoses"][0]["model"] == evil


def test_skipped_files_are_listed(tiny, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for i, image in enumerate(made_images(2)):
        image.save(folder / f"{i}.png")
    (folder / "bad&.jpg").write_bytes(b"no image")
    page, _ = saved(diagnose(tiny, folder, config=CONFIG), tmp_path / "out")
    assert "Skipped files (1)" in page and "bad&amp;.jpg" in page


def test_same_diagnosis_same_page(with_registers, tmp_path):
    bare = replace(with_registers, examples=())
    pages = [saved(bare, tmp_path / str(i))[0] for i in range(2)]
    assert pages[0] == pages[1]


def test_nothing_to_report_and_nowhere_to_write_are_clear_errors(with_registers, tmp_path):
    with pytest.raises(ModelError, match="nothing to report"):
        write_report([], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_report([with_registers], tmp_path / "file")


def test_examples_show_the_images_with_most_flags(sick):
    order = rank_images(sick, 4)
    counts = sick.outlier_mask().sum(dim=1)
    assert counts[order].tolist() == counts.sort(descending=True).values[:4].tolist()
    shown = sick.examples
    assert [one.name for one in shown] == [sick.observations.names[i] for i in order]
    for one in shown:
        assert one.photo.shape == (80, 96, 3) and one.colors.shape == (8, 8, 3)
        assert 0 <= one.colors.min() and one.colors.max() <= 1


def test_examples_of_images_that_are_gone(tiny):
    images = made_images(2)
    found = diagnose(tiny, images, config=CONFIG)
    assert pick_examples(tiny, find_images(images)[:1], found)[0].name == "image-000000"
    assert pick_examples(tiny, [], found) == ()
    assert draw_examples(replace(found, examples=())) is None
    assert report_sections([replace(found, examples=())])


def test_example_images_are_small(tiny):
    image = made_images(1)[0].resize((1500, 900))
    found = diagnose(tiny, image, config=CONFIG)
    (one,) = pick_examples(tiny, find_images(image), found)
    assert one.photo.shape == (288, 480, 3) and one.aspect == pytest.approx(0.6)


def test_heat_map_reaches_the_largest_norm(sick):
    axes = draw_norms(sick).axes[0]
    assert axes.get_ylim()[1] > max(block.largest for block in sick.blocks) > 4
    cutoffs = [b.high.cutoff for b in sick.blocks if b.high]
    sampled = [
        part.get_segments()[0][0, 1] for part in axes.collections if hasattr(part, "get_segments")
    ]
    assert sampled == pytest.approx(cutoffs)


def test_histograms_hold_every_token(sick):
    figure = draw_readings(sick)
    assert [axes.get_title(loc="left") for axes in figure.axes][-1] == "after the final norm"
    tokens = sick.observations.norms[:, 0].numel()
    for axes in figure.axes:
        assert sum(patch.get_data().values.sum() for patch in axes.patches) == tokens


def test_places_show_the_share_of_images(sick):
    first = draw_positions(sick).axes[0]
    np.testing.assert_allclose(first.images[0].get_array(), 100 * sick.position_map().numpy())


def test_redundancy_of_nothing_is_drawn_too(sick):
    contrast = sick.experiments.redundancy
    empty = replace(contrast, outlier_density=(0.0,) * 60, auroc=math.nan)
    assert len(draw_redundancy(empty).axes[0].patches) == 2
    assert len(draw_redundancy(contrast).axes[0].patches) == 4


def test_the_command_below_the_examples_names_files_that_are_there(tmp_path, monkeypatch):
    """It named them relative to their folder, so it failed when pasted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number, image in enumerate(made_images(3)):
        image.save(tmp_path / "photos" / f"{number} a.png")
    found = diagnose(load(tiny_network()), "photos", config=CONFIG)
    page = write_report([found], tmp_path / "report.html").read_text("utf-8")
    (line,) = re.findall(r"clearvit look [^<]+", page.split("</head>")[1].split("<script")[0])
    words = shlex.split(markupsafe.Markup(line).unescape())
    files = [word for word in words if word.endswith(".png")]
    assert len(files) == 3 and all(Path(file).is_file() for file in files)
    assert words[words.index("--size") + 1] == "64"
