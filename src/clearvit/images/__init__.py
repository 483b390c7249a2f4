"""Files to batches of decoded pictures; bad files are reported, never fatal."""

from clearvit.images.batches import Batch, Skipped, batches
from clearvit.images.decode import read_image
from clearvit.images.find import Picture, find_images, spread

__all__ = ["Batch", "Picture", "Skipped", "batches", "find_images", "read_image", "spread"]
