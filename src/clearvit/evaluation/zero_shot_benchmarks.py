"""How open-vocabulary segmentation is measured: eight benchmarks, with the sizes of the papers.

The protocol is that of NACLIP (Hajimiri et al., WACV 2025), which PH-Reg uses too: windows of a
resized image, cosines averaged where windows overlap, a softmax, and a threshold for the
background where it is a class.
"""

from __future__ import annotations

from dataclasses import dataclass

from clearvit.evaluation.config import ZeroShotSegmentationConfig
from clearvit.probes.segmentation import SlidingWindows

SCALE = 40.0  # of the cosines in the softmax
IMAGENET_CLASSES = 1000  # whose folders are named by numbers of WordNet


@dataclass(frozen=True)
class Benchmark:
    """What the protocol prescribes for one layout; sizes in pixels."""

    short_side: int | None = None  # of the image; None is the backbone's own size
    crop: int | None = None  # side of a window; None is the shorter side
    stride: int | None = None  # of windows; None is 341 / 518 of the crop
    threshold: float = 0.0  # smallest probability of a class that is not the background
    objects_only: bool = False  # the background is everything around the objects

    def windows(self, config: ZeroShotSegmentationConfig) -> SlidingWindows:
        """Give the windows: the options, else what is published; a given size is its own crop."""
        size, crop, stride, batch = config.size, config.crop, config.stride, config.batch
        if size is not None:
            return SlidingWindows(size, crop, stride, batch)
        return SlidingWindows(self.short_side, crop or self.crop, stride or self.stride, batch)


BENCHMARKS = {
    "voc": Benchmark(448, 336, 112, 0.1, True),
    "pascal-context": Benchmark(448, 336, 112, 0.1),
    "coco-object": Benchmark(336, 336, 112, 0.1, True),
    "voc20": Benchmark(336, 336, 112),
    "pascal-context-59": Benchmark(448, 336, 112),
    "coco-stuff": Benchmark(448, 336, 112),
    "cityscapes": Benchmark(560, 224, 112),
    "ade20k": Benchmark(448, 336, 112),
}


def find_benchmark(layout: str) -> Benchmark:
    """Find the protocol of a layout; plain folders have none of their own."""
    return BENCHMARKS.get(layout, Benchmark())
