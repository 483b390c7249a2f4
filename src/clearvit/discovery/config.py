"""Options of `cv.discover` and `clearvit discover`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clearvit.errors import OptionError
from clearvit.options import Options, Size, batch_option, option, size_option

Method = Literal["consensus", "lost", "tokencut"]
Feature = Literal["token", "query", "key", "value"]
FeatureOption = Literal["token", "query", "key", "value", "auto"]


@dataclass(frozen=True)
class DiscoverConfig(Options):
    """How to find objects."""

    method: Method = option(
        "consensus",
        "Discovery method: consensus has nothing to tune, lost and tokencut are as published.",
        panel="Method",
    )
    features: tuple[FeatureOption, ...] | None = option(
        None,
        "Features of the patches; auto chooses those that depend least on the position.",
        panel="Method",
        shown="token,value for consensus, key for lost and tokencut",
    )
    layers: tuple[int, ...] | None = option(
        None,
        "Blocks to read, counted from 0; -1 is the last.",
        panel="Method",
        minimum=-512,
        shown="the later half for consensus, -1 for lost and tokencut",
    )
    objects: int = option(
        1,
        "Maximum number of objects per image; only consensus finds several.",
        panel="Method",
        minimum=1,
    )
    size: int | Size | None = size_option("Input")
    batch: int = batch_option(8, "Input")

    def __post_init__(self) -> None:
        for name in ("features", "layers"):  # one value may be given without a tuple
            value = getattr(self, name)
            if isinstance(value, (str, int)):
                object.__setattr__(self, name, (value,))
        super().__post_init__()
        if self.features and "auto" in self.features and len(self.features) > 1:
            raise OptionError("features are auto and others; auto stands alone.", "features")
        if self.objects > 1 and self.method != "consensus":
            raise OptionError(
                f"objects is {self.objects}, but '{self.method}' finds just one. Use method"
                " 'consensus' for several.",
                "objects",
            )
