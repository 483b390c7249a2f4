"""Pages of results are what their JSON files give, and results say how they came about."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import blocks  # noqa: E402
import data  # noqa: E402
import evidence  # noqa: E402
import render  # noqa: E402
import tables  # noqa: E402
import trace_numbers as trace  # noqa: E402


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Write results to a folder of the test."""
    monkeypatch.setenv("CLEARVIT_RESULTS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def pages():
    return render.make_pages()


def test_pages_and_documents_are_what_results_give(pages):
    wrong = render.find_differences(pages)
    assert not wrong, f"run `python benchmarks/render.py`: {wrong}"


def test_every_page_has_results(pages):
    found = {path.stem for path in (ROOT / "docs" / "results").glob("*.md")}
    without = found - set(pages) - set(render.BY_HAND) - {"index"}
    assert not without, f"no result gives these pages: {without}"


def test_every_number_of_the_documents_has_a_source():
    missing = trace.find_untraced()
    assert not missing, "link the page of results, or say what they are: " + "; ".join(missing)


def test_a_number_without_a_source_is_found():
    text = "# A\n\n12.34 of `0.5` and 77.7 % <!-- not results: 77.7, said -->\n\n## B\n\n98.76\n"
    found = {number: traced for _, number, traced in trace.find_numbers(text)}
    assert found == {"12.34": False, "77.7": True, "98.76": False}


def test_the_readme_shows_at_most_six_results():
    lines = blocks.readme_table().splitlines()
    assert lines[0] == "| task | raw | ours | change (95 % CI) | more |"
    assert len(lines) - 2 <= 6


def test_tables_of_a_page_are_read_and_given_back():
    text = "# Title\n\nText\nof two lines.\n\n## Part\n\n| a | b |\n|---|---|\n| 1.50 | - |\n"
    content = tables.read_markdown(text)
    assert content["parts"][2] == {"columns": ["a", "b"], "rows": [["1.50", "-"]]}
    assert render.parts_text(content) == text


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


def test_rows_from_before_the_record_are_not_said_to_be_of_a_later_run(elsewhere):
    evidence.write_json(evidence.result_path("trial"), {"rows": [1]})
    evidence.write_result("trial", {"rows": [1, 2]})
    evidence.write_result("trial", {"rows": [1, 2, 3]})
    before, run = evidence.read_runs("trial")
    assert "before runs were recorded" in before["note"] and run["code"]


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

    monkeypatch.setattr(render, "_body", lambda name: Page.text)
    monkeypatch.setattr(render, "runs_table", lambda names: "how\n")
    assert render.make_page("trial").text == "# Title\n\ntable\n\nhow\n"
    (elsewhere / "trial.notes.md").write_text("What it means.\n")
    assert render.make_page("trial").text == "# Title\n\ntable\n\nWhat it means.\n\nhow\n"
    Page.text = "# Title\n\n<!-- notes -->\n\ntable\n"
    assert render.make_page("trial").text == "# Title\n\nWhat it means.\n\ntable\n\nhow\n"


def test_pages_without_results_are_left_out(elsewhere):
    assert render.make_pages() == {}


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
