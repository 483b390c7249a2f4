"""What a search returns: a ranked list that can say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from PIL import Image

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ImageError
from clearvit.files import check_replaceable
from clearvit.retrieval.config import Matching
from clearvit.retrieval.explanations.explanation import Explanation, explain_pair
from clearvit.retrieval.explanations.fine_tokens import FineTokens, extract_fine
from clearvit.retrieval.explanations.null_similarity import NULL, needed_matches
from clearvit.retrieval.explanations.seen_image import check_store, read_seen
from clearvit.retrieval.image_features import ImageFeatures
from clearvit.retrieval.index.arrow_rows import Entry
from clearvit.retrieval.index.store import Store
from clearvit.retrieval.matching.parts import find_parts

Box = tuple[int, int, int, int]
WEAK = "like random images"  # what is said of a hit that does not stand out from them


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
    size: tuple[int, int] | None = None  # (height, width) in pixels that the model sees
    backbone: Backbone | None = field(default=None, repr=False, compare=False)  # that encoded it

    @cached_property
    def fine_tokens(self) -> FineTokens | None:
        """Tokens on a fine grid, for explanations; None if there is no image to read."""
        try:
            return self.extract_fine(read_seen(self.source, self.name))
        except ImageError:
            return None

    def extract_fine(self, image: Image.Image) -> FineTokens | None:
        """Extract fine tokens of an image by the model of the query; None if it is not known."""
        if self.backbone is None or self.size is None:
            return None
        return extract_fine(self.backbone, image, self.size)


@dataclass(frozen=True, repr=False)
class Hit:
    """One image that was found."""

    rank: int  # from 1
    score: float  # global + weight x patch similarity
    global_similarity: float  # cosine of the descriptors
    patch_similarity: float | None  # None: the patches were not compared
    weight: float  # of the patch similarity in the score
    entry: Entry  # name, path, folder, label, bytes, mtime, width and height
    query: Query = field(compare=False)
    matching: Matching
    store: Store = field(compare=False)  # the index it was found in
    box: Box | None = None  # x0, y0, x1, y1 in its own pixels, where a region was searched
    stands_out: bool = True  # where a region was searched: among random images of the index

    def __repr__(self) -> str:
        box = "" if self.box is None else f", box ({', '.join(f'{side:.0f}' for side in self.box)})"
        return f"Hit({self.rank}, '{self.name}', score {self.score:.4f}{box})"

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

    @property
    def place(self) -> str:
        """Say where the region lies, "x0,y0,x1,y1", or that the hit does not stand out."""
        if self.box is None:
            return ""
        return ",".join(map(str, self.box)) if self.stands_out else WEAK

    def read(self) -> Image.Image:
        """Read the file; one at a URL only if the index or the query is in the same bucket."""
        check_store(self.path, self.name, (self.store.location, self.query.source))
        return read_seen(self.path or None, self.name)

    def explanation(self) -> Explanation:
        """Take the score apart; patches that were not compared for it are compared now."""
        if self.query.features is None:
            raise ImageError("a text has no patches; only hits of an image can be explained.")
        rows = self.store.fetch([self.name])
        if rows.features is None or not rows.entries:
            raise ImageError(f"'{self.name}' is no longer in the index; search again.")
        spec = self.store.spec
        query, hit = (one.local_features(spec) for one in (self.query.features, rows.features))
        explanation = explain_pair(
            query,
            hit,
            spec.grid,
            matching=self.matching,
            global_similarity=self.global_similarity,
            weight=self.weight,
        )
        null = self.store.sample(NULL)
        needed = needed_matches(self.query.features, rows.features, null, spec)
        fine = self._fine_pair()
        if fine is None:  # what the index keeps is coarse, but it is there
            stored = (spec.grid, spec.grid)
            parts = find_parts(query.patches[0], hit.patches[0], stored, needed=needed)
        else:
            grids = (fine[0].grid, fine[1].grid)
            parts = find_parts(fine[0].patches, fine[1].patches, grids, needed=needed)
        return replace(explanation, parts=parts)

    def _fine_pair(self) -> tuple[FineTokens, FineTokens] | None:
        """Fine tokens of query and hit, if both images can be read."""
        ours = self.query.fine_tokens
        if ours is None:
            return None
        try:
            theirs = self.query.extract_fine(self.read())
        except ImageError:  # gone, or where it must not be read from
            return None
        return None if theirs is None else (ours, theirs)

    def explain(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Draw query and hit with the parts they share, and write the figure as PNG.

        A hit of a region is drawn with its box.

        A file that clearvit did not write, such as the query itself, is replaced only with
        `overwrite`.
        """
        from clearvit.report.figure import save_figure
        from clearvit.retrieval.explanations.explanation_figure import draw_explanation
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
            region = {"box": list(hit.box), "stands_out": hit.stands_out} if hit.box else {}
            listed.append({name: getattr(hit, name) for name in fields} | region)
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
