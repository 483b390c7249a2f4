"""The notebooks run from top to bottom, as they are but for a smaller size of the images."""

import json
import re
from pathlib import Path

import matplotlib
import pytest

LARGEST = 1_500_000  # bytes
NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))


def code_of(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert sources[0].startswith("%pip install")  # Colab starts without clearvit
    return sources[1:]


def test_there_are_four_with_small_stored_outputs():
    assert len(NOTEBOOKS) == 4
    for path in NOTEBOOKS:
        assert path.stat().st_size < LARGEST
        cells = json.loads(path.read_text("utf-8"))["cells"]
        outputs = [one for cell in cells for one in cell.get("outputs", ())]
        assert any("data" in one for one in outputs), f"run benchmarks/notebooks.py {path.name}"
        assert not any(one["output_type"] == "error" for one in outputs)
        assert not re.search(r"/(tmp|home|root|work|Users)/", json.dumps(outputs))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, demo_backbone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    names = {"__name__": "notebook"}
    large = re.compile(r"size=224\b")
    for number, code in enumerate(code_of(path), 1):
        exec(compile(large.sub("size=112", code), f"{path.name}, cell {number}", "exec"), names)
