"""What a search returns: a ranked list that can say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from PIL import Image

from clearvit.errors import ImageError
from clearvit.files import check_replaceable
from clearvit.images import read_image
from clearvit.images.remote import is_url, store_of
from clearvit.retrieval.config import Matching
from clearvit.retrieval.explanation import Explanation, explain_pair
from clearvit.retrieval.image_features import ImageFeatures
from clearvit.retrieval.index.arrow_rows import Entry
from clearvit.retrieval.index.store import Store

Box = tuple[int, int, int, int]

# A pair that was not ranked by its patches is shown with what has a counterpart.
ILLUSTRATION = Matching(mass="auto")


@dataclass(frozen=True)
class Query:
    """What was searched for."""

    name: str
    features: ImageFeatures | None = field(default=None, repr=False)  # None: a text
    source: str | Path | Image.Image | None = field(default=None, repr=False)
    aspect: float | None = None  # height / width of the center crop that the model sees; None: all
    note: str = ""  # what to know about the model of the query
    region: Box | None = None  # of the image, where a part of it was searched for
    image: Image.Image | None = field(default=None, repr=False)  # all of it, if there is a region


@dataclass(frozen=True)
class Hit:
    """One image that was found."""

    rank: int  # from 1
    score: float  # global + weight x patch similarity
    global_similarity: float  # cosine of the descriptors
    patch_similarity: float | None  # None: the patches were not compared
    weight: float  # of the patch similarity in the score
    entry: Entry  # name, path, folder, label, bytes, mtime, width and height
    query: Query = field(repr=False, compare=False)
    matching: Matching = field(repr=False)
    store: Store = field(repr=False, compare=False)  # the index it was found in
    box: Box | None = None  # x0, y0, x1, y1 in its own pixels, where a region was searched

    @property
    def name(self) -> str:
        """Name in the index."""
        return self.entry.name

    @property
    def path(self) -> str:
        """Where the file was when it was indexed; empty for an image in memory."""
        return self.entry.path

    @property
    def label(self) -> str:
        """Folder it lies in."""
        return self.entry.label

    def read(self) -> Image.Image:
        """Read the file; one at a URL only if the index or the query is in the same bucket."""
        if not self.path:
            raise ImageError(f"'{self.name}' was indexed from memory, so there is no file to draw.")
        named = {store_of(str(place)) for place in (self.store.location, self.query.source)}
        if is_url(self.path) and store_of(self.path) not in named:
            raise ImageError(
                f"'{self.name}' is at '{self.path}'; an image at a URL is drawn only if the index"
                " or the query is in the same bucket."
            )
        return read_image(self.path)

    def explanation(self) -> Explanation:
        """Take the score apart; patches that were not compared for it are compared now."""
        if self.query.features is None:
            raise ImageError("a text has no patches; only hits of an image can be explained.")
        rows = self.store.fetch([self.name])
        if rows.features is None or not rows.entries:
            raise ImageError(f"'{self.name}' is no longer in the index; search again.")
        spec = self.store.spec
        return explain_pair(
            self.query.features.local_features(spec),
            rows.features.local_features(spec),
            spec.grid,
            matching=self.matching if self.patch_similarity is not None else ILLUSTRATION,
            global_similarity=self.global_similarity,
            weight=self.weight,
        )

    def explain(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Draw query and hit with their strongest matches, and write the figure as PNG.

        A hit of a region is drawn with its box.

        A file that clearvit did not write, such as the query itself, is replaced only with
        `overwrite`.
        """
        from clearvit.report.figure import save_figure
        from clearvit.retrieval.explanation_page import draw_explanation
        from clearvit.retrieval.regions.region_page import draw_regions

        if not overwrite:
            check_replaceable(Path(path))
        figure = draw_explanation(self) if self.box is None else draw_regions([self])
        return save_figure(figure, path, overwrite=overwrite)


class Hits(Sequence[Hit]):
    """Hits from best to worst.

    Attributes:
        query: What was searched for.
        note: How the ranking came about, as a sentence.
    """

    def __init__(self, hits: Sequence[Hit], *, query: Query, note: str) -> None:
        self._hits = tuple(hits)
        self.query = query
        self.note = note

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, index: int | slice) -> Hit | tuple[Hit, ...]:
        """Give one hit, or a tuple of them for a slice."""
        return self._hits[index]

    def __len__(self) -> int:
        return len(self._hits)

    def __repr__(self) -> str:
        lines = [f"{hit.rank:4d}  {hit.score:.4f}  {hit.name}" for hit in self._hits]
        return "\n".join([f"Hits of '{self.query.name}'. {self.note}", *lines])

    def _repr_html_(self) -> str:
        """Show the query and the best hits in a notebook, as far as their files can be read."""
        from clearvit.report.notebook import MOST_IMAGES, card

        named = [(self.query.source, f"query: {self.query.name}")]
        named += [(hit.path, f"{hit.rank}. {hit.score:.3f} {hit.name}") for hit in self._hits]
        images = [_thumbnail(*one) for one in named[:MOST_IMAGES]]
        return card(
            f"{len(self)} hits of '{self.query.name}'",
            text=self.note,
            images=[one for one in images if one is not None],
            table=(
                ("rank", "score", "name"),
                [(hit.rank, f"{hit.score:.4f}", hit.name) for hit in self._hits],
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Give the query, the note and every hit as JSON holds them."""
        fields = ("rank", "name", "path", "score", "global_similarity", "patch_similarity")
        listed: list[dict[str, Any]] = []
        for hit in self._hits:
            box = {} if hit.box is None else {"box": list(hit.box)}
            listed.append({name: getattr(hit, name) for name in fields} | box)
        return {"query": self.query.name, "note": self.note, "hits": listed}

    @property
    def names(self) -> list[str]:
        """Names in the index, best first."""
        return [hit.name for hit in self._hits]


def _thumbnail(source: str | Path | Image.Image | None, caption: str) -> tuple[bytes, str] | None:
    """Make a small picture of an image, None if it cannot be read any more."""
    from clearvit.images import read_image
    from clearvit.report.notebook import png_of

    if source is None or source == "":
        return None
    try:
        return png_of(read_image(source).copy()), caption
    except (ImageError, OSError):
        return None
