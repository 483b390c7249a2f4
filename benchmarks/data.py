"""Where benchmarks find their data: the folder named by the environment variable CLEARVIT_DATA.

It holds photos/ (images without labels), voc/ (PASCAL VOC with boxes and masks), imagenet100/ and
cars/ (class folders) and depth/ ({train,test}/{rgb,depth}); a script needs only some of them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

DATA = "$CLEARVIT_DATA"  # in the default of an option, which is read when it is needed
RESULTS = Path(__file__).parents[1] / "docs" / "results"


def data_path(text: str) -> Path:
    """Read the path of an option; the type of options whose default begins with `DATA`."""
    if not text.startswith(DATA):
        return Path(text)
    root = os.environ.get("CLEARVIT_DATA")
    if not root:
        raise argparse.ArgumentTypeError(
            "set CLEARVIT_DATA to the folder that holds voc/, photos/, imagenet100/, cars/ and"
            " depth/, or give this option a path."
        )
    path = Path(root + text[len(DATA) :])
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"'{path}' does not exist; is CLEARVIT_DATA right?")
    return path


def find_model(name: str) -> str:
    """Give the name that `cv.load` takes: a directory in CLEARVIT_WEIGHTS, or the name itself."""
    folder = Path(os.environ.get("CLEARVIT_WEIGHTS", "")) / name
    return f"timm:local-dir:{folder}" if (folder / "config.json").is_file() else name
