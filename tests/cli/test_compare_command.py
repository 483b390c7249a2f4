import json

import pytest

from clearvit.errors import ClearvitError
from clearvit.report.combine import combine_pages
from tests.helpers.commands import clearvit, invoke
from tests.helpers.pages import check

FEW = ("--views", "12", "--reference-images", "2", "--size", "64", "--quick")


def test_the_real_command_end_to_end(models, folder, tmp_path):
    (folder / "bad.jpg").write_bytes(b"no image")
    out = tmp_path / "out"
    done = clearvit("compare", *models, folder, "--out", out, *FEW)
    (folder / "bad.jpg").unlink()
    assert done.returncode == 0, done.stderr
    assert "1 files were skipped" in done.stderr and "bad.jpg" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("next: clearvit tokens ")
    lines = done.stdout.strip().splitlines()
    assert lines[-1] == str(out / "compare.html")
    assert "artifacts" in lines[0] and "gap to 10 views closed" in lines[0]
    assert lines[1].startswith(models[0]) and lines[2].startswith(models[1])
    assert check((out / "compare.html").read_text("utf-8")).links == ["./microscope.html"]
    assert 'id="clearvit-data"' in (out / "microscope.html").read_text("utf-8")
    combined = combine_pages([out / "compare.html"], tmp_path / "report.html", "All")
    assert check(combined.read_text("utf-8")).links == ["./out/microscope.html"]
    assert (out / "pca.png").exists() and len(list((out / "reference").iterdir())) == 2


def test_json_is_what_the_file_holds(models, folder, tmp_path):
    done = invoke("compare", *models, folder, "--out", tmp_path, "--json", *FEW)
    assert done.exit_code == 0, done.output
    numbers = json.loads(done.stdout)
    assert {"made_by": "clearvit", **numbers} == json.loads(
        (tmp_path / "compare.json").read_text("utf-8")
    )
    assert [row["model"] for row in numbers["rows"]] == models
    assert len(numbers["images"]) == 3 and numbers["gap"]["views"] == 12


def test_one_model_and_labels(models, folder, tmp_path):
    for i, path in enumerate(sorted(folder.glob("*.png")) * 2):
        kind = tmp_path / "labels" / str(i % 2)
        kind.mkdir(parents=True, exist_ok=True)
        (kind / f"{i}.png").write_bytes(path.read_bytes())
    options = ("--labels", tmp_path / "labels", "--out", tmp_path / "out", "--limit", 2)
    done = invoke("compare", models[0], folder, *options, "--json", *FEW)
    assert done.exit_code == 0, done.output
    numbers = json.loads(done.stdout)
    assert numbers["labeled"] == 6 and 0 <= numbers["rows"][0]["knn_accuracy"] <= 1
    assert len(numbers["images"]) == 2


@pytest.mark.parametrize("arguments", [(), ("demo",), ("demo", "photos", "--size", "big")])
def test_wrong_usage(arguments):
    assert invoke("compare", *arguments).exit_code == 2


def test_images_are_looked_for_before_a_model_is_loaded(tmp_path):
    done = invoke("compare", "demoo", tmp_path / "nowhere")
    assert isinstance(done.exception, ClearvitError) and "does not exist" in str(done.exception)


def test_help_teaches_with_an_example():
    done = invoke("compare", "--help")
    assert done.exit_code == 0
    assert "clearvit compare demo dir:cured/ photos/" in done.output
