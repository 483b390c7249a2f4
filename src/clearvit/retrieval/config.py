"""Options of `cv.Index.build`, `index.search` and their commands, and of matching patches."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from clearvit.errors import OptionError
from clearvit.options import (
    Engine,
    Options,
    Size,
    batch_option,
    decoders_option,
    engine_option,
    option,
    overwrite_option,
    size_option,
    strict_option,
)

Method = Literal["chamfer", "transport", "mutual"]
Cross = Literal["none", "correlation", "inverse", "minus", "softmax"]
RerankBy = Literal["patches", "expansion", "reciprocal"]
ResolvedDescriptor = Literal["class", "mean", "joint", "embedding"]
Descriptor = Literal["auto"] | ResolvedDescriptor
ResolvedWeights = Literal["attention", "rollout", "rollout-min", "uniform", "without-artifacts"]
PatchWeights = Literal["auto"] | ResolvedWeights
PatchFormat = Literal["int8", "float16"]
Whiten = Literal["auto", "yes", "no"]
Region = tuple[int, ...]  # x0, y0, x1, y1 in pixels of the query image


@dataclass(frozen=True)
class Matching(Options):
    """How the patches of two images are compared."""

    method: Method = option(
        "chamfer",
        "Patches are matched by the nearest neighbor of each in the other image (chamfer), by"
        " optimal transport, or by mutual nearest neighbors.",
        panel="Patch-level re-ranking",
    )
    mass: float | Literal["auto"] = option(
        1.0,
        "Fraction of the patch weights that transport matches, above 0 to 1; 'auto' estimates it"
        " for each pair.",
        panel="Patch-level re-ranking",
        above=0,
        maximum=1,
    )
    cross: Cross = option(
        "none",
        "Multiply patch weights by a function of the cosine with the other image as a whole:"
        " 'correlation' as DIML does, 'inverse', 'minus' or 'softmax' as Zhang et al. do.",
        panel="Patch-level re-ranking",
    )
    cross_mean: bool = option(
        False,
        "Let the mean of its patches stand for the other image in cross weights, not its"
        " descriptor.",
        panel="Patch-level re-ranking",
        hidden=True,
    )
    epsilon: float = option(
        0.05,
        "Strength of the entropy in transport, in units of the cosine.",
        panel="Patch-level re-ranking",
        above=0,
        hidden=True,
    )


@dataclass(frozen=True)
class SearchConfig(Matching):
    """How to search an index."""

    k: int = option(
        10, "How many hits to return.", panel="Search", minimum=1, maximum=100_000, short="-k"
    )
    rerank: int | None = option(
        None,
        "How many of the nearest images to re-rank; 0 ranks by descriptors only.",
        panel="Patch-level re-ranking",
        minimum=0,
        maximum=100_000,
        shown="as the index chose when it was built: 100 by Chamfer, or 0",
    )
    region: Region | None = option(
        None,
        "Search for a part of the query image: x0,y0,x1,y1 in pixels from its top left corner.",
        panel="Search",
        minimum=0,
        shown="the whole image",
    )
    rerank_by: RerankBy = option(
        "patches",
        "What re-ranks the nearest images: their patches, a query expanded by its nearest"
        " descriptors (expansion), or neighbors that the images share (reciprocal).",
        panel="Patch-level re-ranking",
    )
    neighbors: int | None = option(
        None,
        "How many nearest descriptors expansion and reciprocal re-ranking look at.",
        panel="Patch-level re-ranking",
        minimum=1,
        maximum=1000,
        shown="5 for expansion, 20 for reciprocal",
    )
    weight: float | None = option(
        None,
        "Weight of the patch similarity in the score: global + weight x patch similarity.",
        panel="Patch-level re-ranking",
        minimum=0,
        shown="chosen by the gate",
    )
    where: str | None = option(
        None,
        "Filter as SQL over name, path, folder, label, bytes, mtime, width and height, such as"
        " \"label = 'cats' AND width > 500\".",
        panel="Search",
        shown="no filter",
    )
    exact: bool = option(
        False,
        "Compare with every image even where an approximate nearest-neighbor index exists.",
        panel="Search",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.region is not None and len(self.region) != 4:
            given = ",".join(map(str, self.region))
            raise OptionError(f"region is {given}; give four numbers, x0,y0,x1,y1.", "region")

    @property
    def matching(self) -> Matching:
        """The options of matching alone."""
        return Matching(**{field.name: getattr(self, field.name) for field in fields(Matching)})


@dataclass(frozen=True)
class IndexConfig(Options):
    """How to index a folder of images."""

    size: int | Size | None = size_option("Features")
    grid: int | Size = option(
        7,
        "Grid of patch vectors kept per image, 7 or 7x10; at most what the model makes. 7 x 7 of 64"
        " bytes are 3.1 kB.",
        panel="Features",
        minimum=1,
    )
    facet: str = option(
        "auto",
        "Vectors that stand for a patch: 'token' (final tokens), or query, key, value or token of a"
        " block, such as 'value:7'; 'auto' chooses on a sample of the images, without labels.",
        panel="Features",
    )
    channels: int = option(
        64,
        "Channels of a patch after whitening, which is fitted on the images; 0 keeps patches as"
        " they are.",
        panel="Features",
        minimum=0,
        maximum=4096,
    )
    patch_format: PatchFormat = option(
        "int8",
        "Number format of whitened patches; others are kept in float16.",
        panel="Features",
        hidden=True,
    )
    whiten: Whiten = option(
        "auto",
        "Whitening of the descriptor, fitted on the images; 'auto' uses it where neighbors then"
        " change less when an image is cropped, without labels.",
        panel="Features",
    )
    descriptor: Descriptor = option(
        "auto",
        "Global descriptor: class token, mean of the patches, the joint image-text space, or the"
        " projection that finetune trained (embedding); 'auto' is embedding or joint where there is"
        " one, else class, else mean.",
        panel="Features",
    )
    patch_weights: PatchWeights = option(
        "auto",
        "How much each patch counts in re-ranking; 'auto' chooses between the attention of the"
        " class token, where there is one, and uniform weights, on a sample of the images.",
        panel="Features",
    )
    batch: int = batch_option(16, "Input")
    strict: bool = strict_option("Input")
    decoders: int | None = decoders_option("Input")
    engine: Engine = engine_option("Run")
    refresh: bool = option(
        False, "Also remove images from the index whose files are gone.", panel="Output"
    )
    overwrite: bool = overwrite_option()
    commit: int = option(
        64,
        "Images per write; a killed build loses at most these. Raise it on an object store.",
        panel="Output",
        minimum=1,
    )
    ann_above: int = option(
        100_000,
        "Number of images above which an approximate nearest-neighbor index (HNSW) is built.",
        panel="Output",
        minimum=0,
        hidden=True,
    )
