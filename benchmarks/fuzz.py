"""Do the readers of JSON and of images ever end in anything but an image, a model or one sentence?

    python benchmarks/fuzz.py --minutes 10 --out fuzz.json

Hypothesis changes values, keys and bytes of files that were good: the JSON of models (clearvit,
pruned, transformers, OpenCLIP, ONNX), of tokens, runs and indexes, of labels (strokes, COCO,
LabelMe) and segmenters, and images of ten formats. Any exception that is no `ClearvitError`, and
any image that takes longer than 30 s, is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import os
import shutil
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import clearvit as cv
from clearvit.backbones.guarded_timm import timm
from clearvit.backbones.sources.hf.hf_config import settings_of
from clearvit.backbones.sources.openclip_folder import FOLDER_CONFIG, check_folder
from clearvit.backbones.sources.runtime import _read_facts
from clearvit.errors import ClearvitError
from clearvit.images import read_image
from clearvit.retrieval.image_features import FeatureSpec
from clearvit.runs import claim, claim_files
from clearvit.segmentation import load_segmenter, read_examples

SLOW = 30.0  # seconds for one image
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 70_000)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["hf-hub:a/b", "../x", "x" * 5000, "nan", "\x1b[2J"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "TGA", "JPEG2000", "ICO")
OPENCLIP = {
    "model_cfg": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 48, "layers": 3},
        "text_cfg": {"context_length": 20, "vocab_size": 49408, "width": 16, "layers": 1},
    }
}
HF = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32},
    **{"intermediate_size": 48, "patch_size": 8, "hidden_act": "gelu", "layer_norm_eps": 1e-6},
}
GRAPH = {
    **{"version": 1, "format": "onnx", "source": "x", "fingerprint": "y", "size": [32, 32]},
    **{"patch": [8, 8], "width": 24, "prefix_names": ["class"], "settings": {}},
    "preprocessing": {"size": [32, 32], "mean": [0.5] * 3, "std": [0.5] * 3},
}
CORNERS = [[4, 4], [20, 4], [20, 20], [4, 20]]
LABELS = {
    "strokes": {
        "format": "clearvit-strokes",
        "version": 1,
        "classes": ["background", "dog"],
        "images": [
            {
                **{"image": "a.png", "width": 40, "height": 40},
                "strokes": [
                    {"class": "dog", "points": [[9, 9], [12, 20.5]], "radius": 3},
                    {"class": "background", "points": [[30, 30]]},
                ],
            }
        ],
    },
    "coco": {
        "images": [{"id": 1, "file_name": "a.png", "width": 40, "height": 40}],
        "categories": [{"id": 7, "name": "dog"}],
        "annotations": [
            {"image_id": 1, "category_id": 7, "segmentation": [[4, 4, 20, 4, 20, 20, 4, 20]]},
            {
                **{"image_id": 1, "category_id": 7},
                "segmentation": {"size": [40, 40], "counts": [800, 400, 400]},
            },
        ],
    },
    "labelme": {
        **{"imagePath": "a.png", "imageHeight": 40, "imageWidth": 40},
        "shapes": [{"label": "dog", "points": CORNERS, "shape_type": "polygon"}],
    },
}
SPEC = FeatureSpec("demo", "x", (32, 32), (4, 4), (4, 4), "class", "uniform", 24, 24)


@st.composite
def changed(draw: Any, content: Any) -> Any:
    """Change some values or keys of a JSON object, somewhere in its depth."""
    copy = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, 3))):
        place = copy
        while True:
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and place[key] and draw(st.booleans()):
                place = place[key]
                continue
            action = draw(st.sampled_from(["value", "value", "delete", "add"]))
            if action == "delete":
                del place[key]
            elif action == "add" and isinstance(place, dict):
                place[draw(st.text(max_size=10))] = draw(JSON)
            else:
                place[key] = draw(JSON)
            break
    return copy


@st.composite
def spoilt(draw: Any, files: list[bytes]) -> bytes:
    """Change, cut, repeat or insert bytes of a good file."""
    content = bytearray(draw(st.sampled_from(files)))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, max(0, min(len(content) - 1, 400))))
        action = draw(st.sampled_from(["set", "set", "big", "cut", "repeat", "insert"]))
        if action == "set":
            content[start : start + 1] = bytes([draw(st.integers(0, 255))])
        elif action == "big":
            content[start : start + 4] = draw(st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff"]))
        elif action == "cut":
            del content[start : start + draw(st.integers(1, 40))]
        elif action == "repeat":
            content[start:start] = content[start : start + 60] * draw(st.integers(1, 40))
        else:
            content[start:start] = draw(st.binary(min_size=1, max_size=20))
    return bytes(content)


class Fuzz:
    """The targets and what was found."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tries, self.findings = folder, Counter[str](), dict[str, str]()
        torch.manual_seed(0)
        sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
        backbone = cv.load(timm.create_model("vit_tiny_patch16_224", num_classes=0, **sizes))
        cv.save(cv.prune(backbone, keep=0.5, stages=[1]), folder / "model")
        Image.new("RGB", (40, 40), "red").save(folder / "a.png")
        cv.save_tokens(backbone, folder / "a.png", out=folder / "tokens")
        (folder / "labels").mkdir()
        shutil.copy(folder / "a.png", folder / "labels" / "a.png")
        self.file("strokes.json", LABELS["strokes"])
        plain = {"method": "prototypes", "scale": 1, "refine": "none", "page": False}
        labels, out = folder / "strokes.json", folder / "masks"
        cv.segment(backbone, folder / "a.png", examples=labels, out=out, **plain)
        rng = np.random.default_rng(0)
        image = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
        self.files = []
        for kind in FORMATS:
            for mode in ("RGB", "L", "P"):
                stream = io.BytesIO()
                with contextlib.suppress(OSError, ValueError):
                    image.convert(mode).save(stream, kind)
                    self.files.append(stream.getvalue())
        self.files.append(self.progressive(image))

    @staticmethod
    def progressive(image: Image.Image) -> bytes:
        """Give a JPEG of several scans."""
        stream = io.BytesIO()
        image.save(stream, "JPEG", progressive=True)
        return stream.getvalue()

    def tried(self, target: str, action: Callable[[], object], made_of: object) -> None:
        """Do something hostile; note whatever is no sentence."""
        self.tries[target] += 1
        began = time.monotonic()
        try:
            action()
        except ClearvitError:
            pass
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            key = f"{target}: {type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
            self.findings.setdefault(key, f"{error}"[:200] + f" <- {made_of!r}"[:300])
        if time.monotonic() - began > SLOW:
            self.findings.setdefault(f"{target}: slow", f"{made_of!r}"[:2000])

    def file(self, name: str, content: Any) -> None:
        """Write a JSON file below the folder."""
        (self.folder / name).write_text(json.dumps(content))

    def json_target(self, name: str, content: Any) -> None:
        """Give one changed JSON to the reader it belongs to."""
        folder = self.folder
        if name in ("clearvit.json", "pruned.json"):
            kept = (folder / "model" / name).read_text()
            self.file(f"model/{name}", content)
            self.tried(name, lambda: cv.load(f"dir:{folder / 'model'}"), content)
            (folder / "model" / name).write_text(kept)
        elif name == "index.json":
            kept = (folder / "tokens" / name).read_text()
            self.file(f"tokens/{name}", content)
            self.tried(name, lambda: cv.open_tokens(folder / "tokens")[:1], content)
            (folder / "tokens" / name).write_text(kept)
        elif name == "runtime.json":
            self.file(name, content)
            self.tried(name, lambda: _read_facts(folder, "onnx"), content)
        elif name == "config.json":
            self.tried(name, lambda: settings_of(content, {}), content)
        elif name == FOLDER_CONFIG:
            self.file(name, content)
            self.tried(name, lambda: check_folder(folder), content)
        elif name in LABELS:
            self.file("labels/x.json", content)
            self.tried(name, lambda: read_examples(folder / "labels").read(0), content)
        elif name == "segmenter.json":
            kept = (folder / "masks" / name).read_text()
            self.file(f"masks/{name}", content)
            self.tried(name, lambda: load_segmenter(folder / "masks"), content)
            (folder / "masks" / name).write_text(kept)
        elif name == "spec":
            self.tried(name, lambda: FeatureSpec.from_json(json.dumps(content)), content)
        else:
            place = folder / "run"
            place.mkdir(exist_ok=True)
            self.file(f"run/{name}", content)
            self.tried(
                name,
                lambda: (
                    claim(place, {"a": 1}, kind="tokens", files=["x"], overwrite=True)
                    if name == "plan.json"
                    else claim_files(place, ["x"], kind="cure")
                ),
                content,
            )
            shutil.rmtree(place, ignore_errors=True)

    def image_target(self, content: bytes) -> None:
        """Give spoilt bytes to the reader of images."""
        self.tried("image", lambda: read_image(content), content)

    def targets(self) -> dict[str, Any]:
        """Name the JSON files with good content."""
        read = {
            "clearvit.json": self.folder / "model" / "clearvit.json",
            "pruned.json": self.folder / "model" / "pruned.json",
            "index.json": self.folder / "tokens" / "index.json",
            "plan.json": self.folder / "tokens" / "plan.json",
            ".clearvit.json": self.folder / "model" / ".clearvit.json",
            "segmenter.json": self.folder / "masks" / "segmenter.json",
        }
        made = {"runtime.json": GRAPH, "config.json": HF, FOLDER_CONFIG: OPENCLIP}
        good = {name: json.loads(path.read_text()) for name, path in read.items()}
        return {**good, **made, **LABELS, "spec": dataclasses.asdict(SPEC)}

    def round(self, examples: int) -> None:
        """Try some changes of each target."""
        quiet = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        for name, good in self.targets().items():
            target = functools.partial(self.json_target, name)
            _each(quiet, changed(good), target)

        for _ in range(4):
            _each(quiet, spoilt(self.files), self.image_target)


def _each(how: settings, values: Any, target: Callable[[Any], None]) -> None:
    """Let hypothesis call a target with many values."""

    @how
    @given(value=values)
    def run(value: Any) -> None:
        target(value)

    run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"))
    options = parser.parse_args()
    os.environ["CLEARVIT_PROGRESS"] = "0"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="clearvit-fuzz-") as folder:
        fuzz, begun = Fuzz(Path(folder)), time.monotonic()
        while time.monotonic() - begun < options.minutes * 60:
            fuzz.round(100)
            content = {
                "minutes": round((time.monotonic() - begun) / 60, 1),
                "tries": dict(fuzz.tries),
                "findings": fuzz.findings,
            }
            options.out.write_text(json.dumps(content, indent=2))
    print(options.out.read_text())


if __name__ == "__main__":
    main()
