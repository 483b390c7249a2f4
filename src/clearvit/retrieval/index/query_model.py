"""Which model may encode queries, and whose word counts: the user's, not the index's."""

from __future__ import annotations

import shlex
import warnings

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ModelError, StoreError
from clearvit.retrieval.image_features import fingerprint_at
from clearvit.retrieval.index.store import Store


def is_wellknown(model: str) -> bool:
    """Tell whether a name is the demo model's, or in the lists of timm or OpenCLIP themselves."""
    source, _, name = model.partition(":")
    return model == "demo" or (source in ("timm", "openclip") and name in _listed(source))


def check_named(model: str) -> None:
    """Refuse to load what only the index names: it may be somebody else's."""
    if is_wellknown(model):
        return
    raise ModelError(
        f"the index says that '{model}' made it. An index may come from anybody, so a model that is"
        f" not in the lists of timm or OpenCLIP is loaded only if you name it: --model"
        f" {shlex.quote(model)}, or Index.open(path, clearvit.load({model!r}))."
    )


def _listed(source: str) -> set[str]:
    if source == "timm":
        from clearvit.backbones.guarded_timm import timm

        return {*timm.list_models(), *timm.list_pretrained()}
    try:
        import open_clip
    except ImportError:
        return set()
    return {"/".join(pair) for pair in open_clip.list_pretrained()}


def check_query_model(backbone: Backbone, store: Store, other_model: bool) -> str:
    """Check that a model may encode queries for an index; say what differs, else nothing."""
    spec = store.spec
    if fingerprint_at(backbone, spec.size) == spec.fingerprint:
        return ""
    width = spec.token_width or spec.width
    fits = backbone.width == width
    dense = getattr(backbone, "dense", None)  # a pruned backbone knows what it was made of
    pruned = isinstance(dense, Backbone) and fingerprint_at(dense, spec.size) == spec.fingerprint
    if not fits or not (pruned or other_model):
        remedy = (
            " If its tokens live in the same space (a cured copy), open the index with it:"
            " Index.open(path, backbone, other_model=True)."
            if fits
            else f" Its tokens have {backbone.width} channels, those of the index {width}."
        )
        raise StoreError(
            f"the index '{store.location}' was made by '{spec.model}' and not by"
            f" '{backbone.name}', or by other weights.{remedy}"
        )
    note = (
        f"Queries are encoded by '{backbone.name}', the index by '{spec.model}': similarities"
        " are lower than between images of one model."
    )
    if not pruned:
        warnings.warn(note, stacklevel=3)
    return note
