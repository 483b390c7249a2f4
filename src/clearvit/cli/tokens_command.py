"""`clearvit tokens`: the tokens of a folder of images, as files."""

from __future__ import annotations

import json
from dataclasses import asdict

from clearvit.cli.arguments import Images, Model, Out, Run
from clearvit.cli.console import next_step, report_skipped, require_images
from clearvit.cli.generate import command
from clearvit.shards.config import TokenConfig


@command("tokens")
def tokens(model: Model, images: Images, out: Out, config: TokenConfig, run: Run) -> None:
    """Write patch, class and register tokens of every image as safetensors shards.

    The same command continues a run that was interrupted. Bad files are skipped and listed at the
    end. Read the result with `clearvit.open_tokens(DIR)`.

    Example: `clearvit tokens demo photos/ --out tokens/ --layers 8,-1`
    """
    from clearvit.shards.extract import save_tokens

    store = save_tokens(run.load(model), images, out=out, config=config)
    report_skipped(store.skipped)
    summary = {
        "out": str(out),
        "images": len(store),
        "grid": list(store.grid),
        "layers": list(store.layers),
        "skipped": [asdict(bad) for bad in store.skipped],
    }
    height, width = store.grid
    run.show(summary, f"{len(store)} images, {height} x {width} patches each, in {out}")
    code = f"import clearvit; print(clearvit.open_tokens({json.dumps(str(out))})[0].map.shape)"
    require_images(len(store))
    next_step("python", "-c", code)
