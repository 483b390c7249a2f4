import json

import pytest

from clearvit.errors import ClearvitError
from tests.helpers.commands import clearvit, invoke
from tests.helpers.pages import check


def test_the_real_command_end_to_end(models, folder, tmp_path):
    (folder / "bad.jpg").write_bytes(b"no image")
    done = clearvit("diagnose", models[0], folder, "--out", tmp_path / "out", "--quick")
    (folder / "bad.jpg").unlink()
    assert done.returncode == 0, done.stderr
    assert "1 files were skipped" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("next: clearvit ")
    assert done.stdout.strip().splitlines()[-1] == str(tmp_path / "out" / "report.html")
    assert f"{models[0]}: " in done.stdout
    check((tmp_path / "out" / "report.html").read_text("utf-8"))


def test_json_is_what_the_file_holds(models, folder, tmp_path):
    page = tmp_path / "a.html"
    options = ("--out", page, "--json", "--quick", "--no-equivariance", "--seed", 1)
    done = invoke("diagnose", *models, folder, *options)
    assert done.exit_code == 0, done.output
    numbers = json.loads(done.stdout)
    assert {"made_by": "clearvit", **numbers} == json.loads(
        (tmp_path / "a.json").read_text("utf-8")
    )
    assert [found["model"] for found in numbers["diagnoses"]] == models
    for found in numbers["diagnoses"]:
        assert found["images"] == 3
        assert found["experiments"] is None and found["equivariance"] is None
    assert "Comparison" in page.read_text("utf-8")


def test_options_reach_the_diagnosis(models, folder, tmp_path):
    options = ("--limit", "2", "--size", "32x48", "--batch", "1", "--no-experiments", "--json")
    done = invoke("diagnose", models[0], folder, "--out", tmp_path, *options)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["diagnoses"]
    assert found["images"] == 2 and found["size"] == [32, 48] and found["experiments"] is None
    assert len(found["equivariance"]["shift"]) == 2


@pytest.mark.parametrize("arguments", [(), ("demo",), ("demo", "photos", "--size", "big")])
def test_wrong_usage(arguments):
    done = invoke("diagnose", *arguments)
    assert done.exit_code == 2


def test_images_are_looked_for_before_a_model_is_loaded(tmp_path):
    done = invoke("diagnose", "demoo", tmp_path / "nowhere")
    assert isinstance(done.exception, ClearvitError) and "does not exist" in str(done.exception)


def test_help_teaches_with_an_example():
    done = invoke("diagnose", "--help")
    assert done.exit_code == 0
    assert "clearvit diagnose demo photos/" in done.output
