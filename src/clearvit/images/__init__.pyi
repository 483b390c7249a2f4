from .batching import Batch, Skipped, batches
from .decode import read_image
from .find import ImageSource, find_images, listing_of, spread_evenly

__all__ = [
    "Batch",
    "ImageSource",
    "Skipped",
    "batches",
    "find_images",
    "listing_of",
    "read_image",
    "spread_evenly",
]
