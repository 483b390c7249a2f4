"""What a server serves: models, folders, uploads and an index, and what clients ask of them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ImageError, StoreError
from clearvit.images import ImageSource, read_image
from clearvit.microscopy.coding import encode_photo
from clearvit.microscopy.config import MicroscopeConfig, ServeConfig
from clearvit.microscopy.page_data import short_labels
from clearvit.microscopy.server.looks import LookRequest
from clearvit.microscopy.server.refusals import Refused
from clearvit.microscopy.server.served_folders import Folders
from clearvit.microscopy.server.uploads import Uploads
from clearvit.microscopy.turns import Workers

if TYPE_CHECKING:
    from clearvit.retrieval.index.hits import Hit, Hits
    from clearvit.retrieval.index.index import Index

UPLOAD = "upload:"
THUMBNAIL = 192  # pixels of the longer side
Region = tuple[int, int, int, int]  # left, top, right, bottom, in pixels of the image


class Library:
    """The things that one server holds."""

    def __init__(
        self,
        backbones: Sequence[Backbone],
        index: Index | None,
        config: ServeConfig,
    ) -> None:
        self.backbones, self.index, self.config = list(backbones), index, config
        self.folders = Folders(config.images)
        self.uploads = Uploads(round(config.megabytes * 1e6))
        owners = [*self.backbones, *([index.backbone] if index else [])]
        self.workers = Workers(owners)

    def describe(self) -> dict[str, Any]:
        """Give what the page has to know."""
        names = [backbone.name for backbone in self.backbones]
        labels = short_labels(names)
        sizes = [backbone.fitting_size(None) for backbone in self.backbones]
        models = [
            {"name": name, "label": label, "size": list(size)}
            for name, label, size in zip(names, labels, sizes, strict=True)
        ]
        index = None
        if self.index is not None:
            index = {"images": len(self.index), "model": self.index.spec.model}
        return {
            "models": models,
            "folders": list(self.folders.names),
            "index": index,
            "megabytes": self.config.megabytes,
            "images": self.config.images_at_once,
            "largest": self.config.largest,
        }

    def find(self, address: str) -> ImageSource:
        """Give the image at an address, of a folder or of an upload."""
        if address.startswith(UPLOAD):
            upload = self.uploads.find(address.removeprefix(UPLOAD))
            return ImageSource(upload.name, upload.path)
        return ImageSource(address, self.folders.find_image(address))

    def thumbnail(self, address: str) -> bytes:
        """Give an image as a small JPEG."""
        source = self.find(address)
        try:
            image = read_image(source.source)
        except ImageError as error:
            raise Refused(f"'{source.name}' cannot be shown: {error}.") from error
        image = image.copy()
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        return base64.b64decode(encode_photo(image, 1))

    def request(
        self, models: Sequence[int], images: Sequence[str], config: MicroscopeConfig
    ) -> LookRequest:
        """Check what a client wants to see."""
        most, largest = self.config.images_at_once, self.config.largest
        if not 1 <= len(images) <= most:
            raise Refused(f"choose 1 to {most} images.")
        if not models or not all(0 <= number < len(self.backbones) for number in models):
            raise Refused(f"choose models by their numbers, 0 to {len(self.backbones) - 1}.")
        size = config.size if isinstance(config.size, tuple) else (config.size or 0,)
        if max(size) > largest:
            raise Refused(f"the size is at most {largest} px here (clearvit serve --largest).")
        chosen = [self.backbones[number] for number in dict.fromkeys(models)]
        found = [self.find(address) for address in dict.fromkeys(images)]
        return LookRequest(chosen, _unique(found), config)

    def search(self, address: str, k: int, region: Region | None) -> dict[str, Any]:
        """Find the images of the index that are most similar to an image, or to a part of it."""
        if self.index is None:
            raise Refused("there is no index to search; start with clearvit serve --index DIR.")
        index, source = self.index, self.find(address)
        options: dict[str, Any] = {"k": k, **({} if region is None else {"region": region})}
        hits: Hits = self.workers.run(index.backbone, lambda: index.search(source, **options))
        return {"note": hits.note, "hits": [self._hit(hit) for hit in hits]}

    def close(self) -> None:
        """End threads and remove uploads."""
        self.workers.close()
        self.uploads.close()

    def _hit(self, hit: Hit) -> dict[str, Any]:
        box = hit.box if hit.stands_out else None
        return {
            "name": hit.name,
            "score": hit.score,
            "address": self.folders.address_of(hit.path),
            "box": None if box is None else list(box),
            "width": hit.entry.width,
            "height": hit.entry.height,
        }


def open_index(path: str | Path, backbones: Sequence[Backbone], device: str | None) -> Index:
    """Open an index with the model that made it: one of those served, or else its own.

    Raises:
        StoreError: There is no index.
    """
    from clearvit.retrieval.index.index import Index

    for backbone in backbones:
        try:
            return Index.open(path, backbone)
        except StoreError as error:
            if "was made by" not in str(error):
                raise
    index = Index.open(path, device=device)
    index.backbone  # noqa: B018 - loaded now, not with the first query
    return index


def _unique(sources: Sequence[ImageSource]) -> list[ImageSource]:
    """Tell uploads of one name apart; images of a page are known by their names."""
    seen: dict[str, int] = {}
    result = []
    for source in sources:
        seen[source.name] = count = seen.get(source.name, 0) + 1
        name = source.name if count == 1 else f"{source.name} ({count})"
        result.append(replace(source, name=name))
    return result
