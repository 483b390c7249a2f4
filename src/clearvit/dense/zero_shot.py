"""How open-vocabulary segmentation is measured: eight benchmarks, with the sizes of the papers.

The protocol is that of NACLIP (Hajimiri et al., WACV 2025), which PH-Reg uses too: windows of a
resized photo, cosines averaged where windows overlap, a softmax, and a threshold for the
background where it is a class.
"""

from __future__ import annotations

from dataclasses import dataclass

from clearvit.dense.windows import Sliding

SCALE = 40.0  # of the cosines in the softmax
WNIDS = 1000  # classes of ImageNet, whose folders are named by numbers of WordNet


@dataclass(frozen=True)
class Benchmark:
    """What the protocol prescribes for one layout; sizes in pixels."""

    name: str
    short: int | None  # shorter side of the photo; None is the backbone's own
    crop: int | None  # side of a window; None is the shorter side
    stride: int | None  # of windows; None is 341 / 518 of the crop
    threshold: float = 0.0  # least probability of a class that is not the background
    objects_only: bool = False  # the background is all that surrounds the objects

    def sliding(
        self, size: int | tuple[int, int] | None, crop: int | None, stride: int | None, batch: int
    ) -> Sliding:
        """Fill in what was not chosen; with a size of one's own the crop is that size too."""
        if size is not None:
            return Sliding(size, crop, stride, batch)
        return Sliding(self.short, crop or self.crop, stride or self.stride, batch)


BENCHMARKS = {
    "voc": Benchmark("VOC21", 448, 336, 112, 0.1, True),
    "pascal-context": Benchmark("PC60", 448, 336, 112, 0.1),
    "coco-object": Benchmark("Object", 336, 336, 112, 0.1, True),
    "voc20": Benchmark("VOC20", 336, 336, 112),
    "pascal-context-59": Benchmark("PC59", 448, 336, 112),
    "coco-stuff": Benchmark("Stuff", 448, 336, 112),
    "cityscapes": Benchmark("City", 560, 224, 112),
    "ade20k": Benchmark("ADE", 448, 336, 112),
}
OWN = Benchmark("folders", None, None, None)


def benchmark_of(layout: str) -> Benchmark:
    """Find the protocol of a layout; plain folders have none of their own."""
    return BENCHMARKS.get(layout, OWN)
