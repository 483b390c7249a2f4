"""Pages of results are what their JSON files give, and results say how they came about."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import data  # noqa: E402
import evidence  # noqa: E402
import render  # noqa: E402


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Write results to a folder of the test."""
    monkeypatch.setenv("CLEARVIT_RESULTS", str(tmp_path))
    return tmp_path


def test_every_page_is_what_its_results_give():
    wrong = render.differing(render.page_names())
    assert not wrong, f"run `python benchmarks/render.py`: {wrong}"


def test_a_result_keeps_its_numbers_and_says_how_it_came_about(elsewhere, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/x.py", "--work", "/tmp/w", "dir:/tmp/m", "a b"])
    evidence.write_result("trial", {"rows": {"a": 1}}, seeds=[3], models=["demo"])
    assert evidence.read_result("trial") == {"rows": {"a": 1}}
    (run,) = evidence.read_runs("trial")
    assert run["command"] == "python benchmarks/x.py --work WORK dir:WORK 'a b'"
    assert run["seeds"] == [3] and run["models"] == ["demo"]
    assert {"commit", "written", "code", "machine", "data"} <= set(run)


def test_a_run_that_writes_twice_is_recorded_once_and_earlier_runs_stay(elsewhere, monkeypatch):
    evidence.write_result("trial", {"rows": [1]})
    evidence.write_result("trial", {"rows": [1, 2]})
    assert len(evidence.read_runs("trial")) == 1
    monkeypatch.setattr(evidence, "STARTED", "later")
    evidence.write_result("trial", evidence.read_result("trial") | {"rows": [1, 2, 3]})
    assert [run["started"] == "later" for run in evidence.read_runs("trial")] == [False, True]


def test_no_result_holds_a_path_of_a_machine():
    for path in (ROOT / "benchmarks" / "results").iterdir():
        text = path.read_text("utf-8")
        found = [place for place in ("/home/", "/tmp/", "/work/", "/root/") if place in text]
        assert not found, f"{path.name} holds {found}"


def test_code_is_hashed_by_what_it_does(tmp_path):
    texts = ("x = 1\n", '"""Said."""\n\nx = 1  # why\n', "x = 2\n")
    hashes = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.py"
        path.write_text(text)
        hashes += evidence.code_fingerprints([path]).values()
    assert hashes[0] == hashes[1] != hashes[2]


def test_notes_end_a_page_or_stand_where_it_says(elsewhere, monkeypatch):
    class Page:
        text = "# Title\n\ntable\n"

        @classmethod
        def page(cls):
            return cls.text

    monkeypatch.setattr(render.importlib, "import_module", lambda name: Page)
    assert render.render_text("trial") == Page.text
    (elsewhere / "trial.notes.md").write_text("What it means.\n")
    assert render.render_text("trial") == "# Title\n\ntable\n\nWhat it means.\n"
    Page.text = "# Title\n\n<!-- notes -->\n\ntable\n"
    assert render.render_text("trial") == "# Title\n\nWhat it means.\n\ntable\n"


def test_a_missing_data_set_is_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEARVIT_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"corridor: no query/\*\.jpg"):
        data.find_data("corridor")
    monkeypatch.delenv("CLEARVIT_DATA")
    with pytest.raises(FileNotFoundError, match="set CLEARVIT_DATA"):
        data.find_data("voc")


def test_results_are_json_objects():
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert isinstance(json.loads(path.read_text("utf-8")), dict), path.name
