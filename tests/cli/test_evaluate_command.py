import json
import subprocess
import sys

import pytest

from clearvit.errors import ClearvitError
from clearvit.evaluation.registry import TASKS
from tests.helpers.commands import invoke
from tests.helpers.made_data import voc_masks


def test_the_table_and_the_file(model, tmp_path):
    voc = voc_masks(tmp_path / "voc")
    line = ("evaluate", "segmentation", model, "--data", voc, "--num-labelled", "2,all")
    line = (*line, "--iterations", 100)
    out = tmp_path / "result.json"
    done = invoke(*line, "--seeds", 2, "--subset", "background,aeroplane", "--json", "--out", out)
    assert done.exit_code == 0, done.output
    numbers = json.loads(done.stdout)
    assert {"made_by": "clearvit", **numbers} == json.loads(out.read_text("utf-8"))
    assert [row["num_labelled"] for row in numbers["rows"]] == [2, 6]
    wanted = {"mIoU", "mAcc", "pixels", "boundary IoU", "mIoU of 2", "boundary IoU of 2"}
    assert set(numbers["rows"][0]["values"]) == wanted
    done = invoke(*line, "--cache", tmp_path / "cache", "--size", 16)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].startswith("model") and "mIoU" in done.stdout
    assert any((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ("sleep", "demo"),
        ("depth", "demo"),
        ("depth", "demo", "--data", "x", "--num-labelled", "few"),
        ("depth", "demo", "--data", "x", "--inference", "slide"),
    ],
)
def test_wrong_usage(arguments):
    assert invoke("evaluate", *arguments).exit_code == 2


def test_data_are_read_before_a_model_is_loaded(tmp_path):
    done = invoke("evaluate", "segmentation", "demoo", "--data", tmp_path / "nowhere")
    assert isinstance(done.exception, ClearvitError) and "is no folder" in str(done.exception)


def test_help_lists_every_task_without_torch():
    code = "import sys; from clearvit.cli import app; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    done = invoke("evaluate", "-h")
    assert done.exit_code == 0 and all(name in done.output for name in TASKS)
