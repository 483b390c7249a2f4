"""The automatic choice of an index on collections that had no part in its making."""

from __future__ import annotations

from pages.facets import tables


def page() -> str:
    """Render every table of the held-out sets."""
    return tables("facets_held_out")
