"""Models that several benchmarks use, made by name and kept.

    python benchmarks/recipes.py                    # lists them, and which are made
    python benchmarks/recipes.py pruned-demo        # makes one, or goes on with it

Scripts take `recipe:NAME` wherever they take `dir:PATH`. A recipe lies in build/recipes (or the
folder that CLEARVIT_RECIPES names) below a name with its fingerprint: another recipe or other
photos make another model. What every page says of its models is the name of the recipe. In a trial
(trials.py) a recipe is its tiny form: the same verb and options on small images, for one epoch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from data import find_data, find_model, fingerprint

TRIAL = "CLEARVIT_TRIAL"  # set while trials run
TINY_SIZE, TINY_IMAGES = 112, 12
HIGH_NORM_SIZE = 336  # the demo model has no high-norm tokens below
TINY: dict[str, dict[str, Any]] = {  # what the tiny form of a verb changes
    "cure": {"epochs": 1, "views": 4},
    "prune": {"epochs": 1, "warmup_epochs": 1, "finetune_epochs": 0},
}


@dataclass(frozen=True)
class Recipe:
    """A verb on a base model with its options; images are photos/ where it learns."""

    verb: str  # of clearvit: cure or prune
    base: str
    size: int
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    minutes: float = 1.0  # of CPU, about, on one core


RECIPES = {
    "cured-demo": Recipe("cure", "demo", 224, {"directions": "auto"}, 120),
    "cured-deit": Recipe("cure", "deit_tiny_patch16_224", 224, {}, 25),
    "cured-augreg": Recipe("cure", "vit_tiny_patch16_224.augreg_in21k_ft_in1k", 224, {}, 25),
    "all-weights-demo": Recipe("cure", "demo", 224, {"unfreeze": "all"}, 120),
    "test-time-demo": Recipe("cure", "demo", 518, {"method": "test-time"}, 15),
    "test-time-augreg": Recipe(
        "cure", "vit_tiny_patch16_224.augreg_in21k_ft_in1k", 224, {"method": "test-time"}, 5
    ),
    "fine-demo": Recipe("cure", "demo", 224, {"method": "fine"}, 40),
    "fine-augreg": Recipe(
        "cure", "vit_tiny_patch16_224.augreg_in21k_ft_in1k", 224, {"method": "fine"}, 3
    ),
    "pruned-demo": Recipe(
        "prune",
        "demo",
        224,
        {
            "keep": 0.7,
            "epochs": 2,
            "warmup_epochs": 4,
            "finetune_epochs": 4,
            "batch": 8,
            "lr": 1e-3,
            "unfreeze": True,
        },
        40,
    ),
}


def find_recipe(name: str) -> Recipe:
    """Give a recipe by name; in a trial, its tiny form."""
    recipe = RECIPES[name]
    if not os.environ.get(TRIAL):
        return recipe
    trains = recipe.verb == "prune" or recipe.options.get("method") in (None, "fine")
    options = dict(recipe.options) | (TINY[recipe.verb] if trains else {})
    size = min(recipe.size, TINY_SIZE if trains else HIGH_NORM_SIZE)
    return replace(recipe, size=size, options=options)


def recipe_folder(name: str) -> Path:
    """Where a recipe is kept, by its fingerprint."""
    recipe = find_recipe(name)
    facts = [recipe.verb, recipe.base, recipe.size, dict(recipe.options), fingerprint("photos")]
    facts += [TINY_IMAGES] if os.environ.get(TRIAL) else []
    mark = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]
    root = os.environ.get("CLEARVIT_RECIPES", Path("build") / "recipes")
    return Path(root) / f"{name}-{mark}"


def is_made(name: str) -> bool:
    """Whether a recipe was run to its end."""
    return (recipe_folder(name) / "clearvit.json").is_file()


def recipe_images() -> Path | list[Path]:
    """Give the photos that recipes learn from; in a trial, a few of them."""
    photos = find_data("photos")
    return sorted(photos.glob("*.jpg"))[:TINY_IMAGES] if os.environ.get(TRIAL) else photos


def make_recipe(name: str) -> Path:
    """Run a recipe, go on with one that was stopped, or take what is there."""
    import clearvit as cv

    recipe, folder = find_recipe(name), recipe_folder(name)
    if not is_made(name):
        base = cv.load(find_model(recipe.base), size=recipe.size)
        folder.parent.mkdir(parents=True, exist_ok=True)
        options = dict(recipe.options)
        if recipe.verb == "cure":
            options.setdefault("keep_anyway", True)  # a page shows it, helpful or not
        getattr(cv, recipe.verb)(base, recipe_images(), out=folder, **options)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *RECIPES], help="made if missing")
    for name in parser.parse_args().names:
        print(make_recipe(name))
    for name, recipe in RECIPES.items():
        state = "made" if is_made(name) else f"about {recipe.minutes:.0f} CPU minutes"
        how = ", ".join(f"{key} {value}" for key, value in recipe.options.items()) or "default"
        print(f"{name:18} {recipe.verb:6} {recipe.base}, {recipe.size} px, {how}: {state}")


if __name__ == "__main__":
    main()
