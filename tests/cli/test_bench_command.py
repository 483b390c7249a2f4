import json

import numpy as np
import pytest
from PIL import Image

from clearvit.errors import ModelError
from tests.helpers.commands import clearvit, invoke

QUICK = ("--batch", "1,2", "--rounds", 1)


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos") / "cat.png"
    pixels = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_the_real_command_end_to_end(model, photo, tmp_path):
    out = tmp_path / "out"
    done = clearvit("bench", model, "--keep", 0.5, *QUICK, "--draw", photo, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[0] == "model" and len(lines) == 7  # header, 4 rows, blank, legend
    assert "pruned to 0.5, 0.25" in lines[2] and "interleaved rounds" in lines[-1]
    assert lines[1].split()[-1].isdecimal()  # MB
    content = json.loads((out / "bench.json").read_text())
    assert [row["batch"] for row in content["rows"]] == [1, 1, 2, 2]
    assert Image.open(content["drawn"][0]).width == 1600
    assert done.stderr.strip().splitlines()[-1].startswith("next: clearvit export")


def test_json(model):
    done = invoke("bench", model, model, *QUICK, "--no-memory", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 4 and rows[0]["ratio"]["median"] == 1 and rows[0]["memory"] is None


def test_errors_name_the_remedy(model, photo, tmp_path):
    done = invoke("bench", model, "--draw", photo, "--no-memory", "--out", tmp_path, *QUICK)
    assert isinstance(done.exception, ModelError) and "only pruned models" in str(done.exception)
    for options in (
        ("--batch", "0"),
        ("--batch", "one"),
        ("--keep", "half"),
        ("--keep", 2),
        ("--size", "big"),
    ):
        assert invoke("bench", model, *options).exit_code == 2
