"""Who may write to an index, and who may ask it."""

from __future__ import annotations

import warnings
from dataclasses import replace

from clearvit.backbones.backbone import Backbone
from clearvit.errors import StoreError
from clearvit.retrieval.describe import Recipe, fingerprint_at
from clearvit.retrieval.store import Store


def check_recipe(store: Store, ours: Recipe) -> None:
    """Refuse to mix models or options in one index."""
    theirs = store.recipe
    if theirs == replace(ours, model=theirs.model):
        return
    if theirs.fingerprint != ours.fingerprint and theirs.size == ours.size:
        same = theirs.model == ours.model
        what = f"other weights of '{ours.model}'" if same else f"'{theirs.model}'"
        reason = f"it was made by {what}" + ("" if same else f", not by '{ours.model}'")
    else:
        names = ("size", "grid", "descriptor", "marginal")
        pairs = [(name, getattr(theirs, name), getattr(ours, name)) for name in names]
        reason = ", ".join(f"{name} was {a}, now {b}" for name, a, b in pairs if a != b)
    raise StoreError(
        f"the index '{store.place}' cannot be continued: {reason}. Choose another place, or"
        " overwrite to start again."
    )


def query_note(backbone: Backbone, store: Store, other_model: bool) -> str:
    """Check that a model can ask this index; say what differs."""
    recipe = store.recipe
    if fingerprint_at(backbone, recipe.size) == recipe.fingerprint:
        return ""
    fits = backbone.width == recipe.width
    dense = getattr(backbone, "dense", None)  # a pruned backbone knows what it was made of
    pruned = isinstance(dense, Backbone) and (
        fingerprint_at(dense, recipe.size) == recipe.fingerprint
    )
    if not fits or not (pruned or other_model):
        remedy = (
            " If its tokens live in the same space (a cured copy), open the index with it:"
            " Index.open(path, backbone, other_model=True)."
            if fits
            else f" Its tokens have {backbone.width} channels, those of the index {recipe.width}."
        )
        raise StoreError(
            f"the index '{store.place}' was made by '{recipe.model}' and not by '{backbone.name}',"
            f" or by other weights.{remedy}"
        )
    note = (
        f"Queries are described by '{backbone.name}', the index by '{recipe.model}': similarities"
        " are lower than between images of one model."
    )
    if not pruned:
        warnings.warn(note, stacklevel=3)
    return note
