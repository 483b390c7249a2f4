"""What tests share: made data, the demo model, golden files, and real data by CLEARVIT_DATA."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


def data_folder(name):
    """Give a folder of real images below CLEARVIT_DATA, or skip the test."""
    root = os.environ.get("CLEARVIT_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"needs {name}/ in the folder named by CLEARVIT_DATA")
    return Path(root) / name
