"""Run the example notebooks and store what they show.

    python benchmarks/notebooks.py [examples/notebooks/1_diagnose_and_cure.ipynb …]

The cells run in this process, in a temporary directory, as a kernel would run them: what is printed
and what the last expression shows (HTML, an image or text) is written back into the notebook. Large
images are made smaller. The suite runs the same cells, see tests/test_notebooks.py.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
WIDEST = 900  # pixels of a stored image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")))
    matplotlib.use("Agg")
    os.environ["CLEARVIT_PROGRESS"] = "0"
    for path in parser.parse_args().paths:
        store_outputs(path.resolve())
        print(path.name, f"{path.stat().st_size / 1e3:.0f} kB", flush=True)


def store_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {"__name__": "notebook"}
    count = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for cell in notebook["cells"]:
            installs = "".join(cell["source"]).startswith("%pip")
            if cell["cell_type"] == "code" and not installs:
                count += 1
                cell["execution_count"] = count
                cell["outputs"] = run_cell("".join(cell["source"]), names, count)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


def run_cell(code: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run one cell; give its outputs as a notebook stores them."""
    tree, shown = ast.parse(code), None
    last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        body = ast.Module(tree.body[:-1] if last else tree.body, [])
        exec(compile(body, f"cell {count}", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if shown is not None:
        result = {"output_type": "execute_result", "execution_count": count, "metadata": {}}
        outputs.append({**result, "data": mime_of(shown)})
    return outputs


def mime_of(shown: Any) -> dict[str, Any]:
    """Show a value in the ways it knows."""
    if isinstance(shown, Image.Image):
        return {"image/png": png_of(shown), "text/plain": ["<image>"]}
    data: dict[str, Any] = {"text/plain": repr(shown).splitlines(keepends=True)}
    if hasattr(shown, "_repr_html_"):
        data["text/html"] = [shown._repr_html_()]
    return data


def png_of(image: Image.Image) -> str:
    smaller = image.convert("RGB")
    smaller.thumbnail((WIDEST, 4 * WIDEST))
    palette = smaller.quantize(256, dither=Image.Dither.NONE)
    file = io.BytesIO()
    palette.save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")


if __name__ == "__main__":
    main()
