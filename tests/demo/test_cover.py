import json

import pytest

from clearvit.demo.cover import Findings, failures, numbers
from clearvit.demo.photos import prepare_photos
from clearvit.demo.stroke_examples import MIDDLE, PERSON, write_examples
from clearvit.segmentation import read_examples


@pytest.fixture
def found(tmp_path):
    def row(model, peak, gap):
        return {"model": model, "peak_fraction": peak, "gap_closed": gap}

    rows = [row("demo", 0.0126, 0.0), row("demo-cured", 0.0, 0.47), row("dir:x", 0.004, -0.1)]
    compared = {"rows": rows, "gap": {"views": 50}, "images": ["a", "b", "c"]}

    def timed(model, batch, median, low):
        ratio = {"median": median, "low": low, "high": 2.0}
        return {"model": model, "batch": batch, "ratio": ratio, "quality": {"cls": 0.8}}

    speeds = [timed("demo", 1, 1, 1), timed("pruned", 1, 1.2, 0.9), timed("pruned", 8, 1.5, 1.4)]
    for name, content in (("compare", compared), ("bench", {"rows": speeds})):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text(json.dumps(content))
    return Findings.read(tmp_path)


def test_the_cover_gives_three_numbers_of_the_cure_that_is_shown(found):
    values = [value for _, value in numbers(found)]
    assert values == ["1.26 to 0.00 %", "47 %", "1.50 x, class token cosine 0.80"]


def test_the_cover_says_what_did_not_work(found):
    text = " ".join(failures(found))
    assert "3 held-out photos" in text and "no better than the raw model" in text
    assert "-10 % of the gap" in text and "47 % by the one that ships" in text
    assert "At batch 1 a gain in speed is not certain (0.90 to 2.00 x)" in text
    assert "At batch 8" not in text and "cosine 0.80" in text


def test_the_strokes_are_examples_for_the_photos(tmp_path):
    photos = prepare_photos(tmp_path / "images", None, parts=1)
    examples = read_examples(photos.strokes)
    mask = examples.read(0)
    assert list(examples.classes) == ["background", "person"]
    assert {-1, 0, 1} == set(mask.flatten().tolist())
    names = {path.stem for path in photos.segment.iterdir()}
    assert "grace_hopper" in names and "astronaut" not in names
    assert len(examples) == 3 and PERSON.inside
    again = tmp_path / "photos" / "x.json"
    write_examples({photos.segment / "chelsea.png": MIDDLE}, again)
    assert read_examples(again).read(0).max() == 1
