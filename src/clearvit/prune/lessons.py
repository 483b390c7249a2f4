"""The task of the training loop: pictures, noise and labels of each step, and a held-out score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from clearvit.backbones.preprocessing import Size
from clearvit.images import Picture, read_image
from clearvit.prune.config import PruneConfig
from clearvit.prune.masked import gumbel
from clearvit.prune.pictures import soft_labels
from clearvit.prune.pruned import PrunedBackbone
from clearvit.prune.pupil import Lesson, Pupil, taught, vector_of
from clearvit.training.order import generator


@dataclass(frozen=True)
class Class:
    """Pictures to learn from, and pictures to be judged by."""

    pictures: Sequence[Picture]
    labels: Sequence[int] | None
    training: Sequence[int]  # which of the pictures
    held: Sequence[int]
    size: Size  # (height, width) in pixels


class Lessons:
    """Teach a pupil; all chance is a function of the step and the picture.

    Args:
        pupil: What learns.
        taken: The pictures.
        config: Rates, decay, mirroring.
        begin: Step from which an unlocked backbone changes.
        foreseeing: Steps at the beginning that teach foresight.
        device: Where the pupil works.
    """

    def __init__(
        self,
        pupil: Pupil,
        taken: Class,
        config: PruneConfig,
        *,
        begin: int,
        foreseeing: int,
        device: torch.device,
    ) -> None:
        self.module: nn.Module = pupil.to(device)
        self.pupil, self.taken, self.config, self.begin = pupil, taken, config, begin
        self.foreseeing, self.device = foreseeing, device
        patch = pupil.teacher.patch
        self.patches = taken.size[0] // patch[0] * (taken.size[1] // patch[1])

    def groups(self) -> list[dict[str, Any]]:
        """Give predictors the full rate, a backbone a small share of it and a late beginning."""
        rate = self.config.lr
        found = by_decay(self.pupil.predictors, rate, self.config.decay, "predictors")
        slow = rate * self.config.backbone_lr
        for group in by_decay(self.pupil.network, slow, self.config.decay, "backbone"):
            found.append({**group, "begin": self.begin})
        return found

    def batch(self, images: Sequence[int], step: int) -> Lesson:
        """Load training pictures, half of them mirrored, with the noise of this step."""
        taken, config = self.taken, self.config
        numbers = [taken.training[i] for i in images]
        pixels = self._pixels(numbers)
        if config.mirror:
            drawn = torch.rand(len(taken.training), generator=generator(config.seed + 1, step))
            turned = (drawn[list(images)] < 0.5).to(self.device)
            pixels = torch.where(turned[:, None, None, None], pixels.flip(-1), pixels)
        shape = (len(self.pupil.plan.stages), self.patches, 2)
        first = step * len(taken.training)  # noise belongs to a picture, however a step is cut
        noise = [gumbel(shape, generator(config.seed + 2, first + i)) for i in images]
        chance = torch.stack(noise).to(self.device)
        return Lesson(pixels, chance, self._labels(numbers), foresee=step < self.foreseeing)

    def score(self, module: nn.Module) -> dict[str, float]:
        """Judge really pruned tokens of held-out pictures."""
        assert isinstance(module, Pupil)
        return self.judged(module.pruned())

    @torch.no_grad()
    def judged(self, pruned: PrunedBackbone) -> dict[str, float]:
        """Compare a pruned model with the dense one on the held-out pictures.

        Returns:
            "output" and "map": mean cosine of logits, class token or pooled patches, and of the
            full grid, to the dense model's. With labels "accuracy" and "entropy" too. "score" is
            the cosine of the output or, with labels, the negative cross-entropy.
        """
        rows: list[dict[str, Tensor]] = []
        for numbers in self._chunks(self.taken.held):
            pixels = self._pixels(numbers)
            tokens = pruned.forward(pixels)
            ours = vector_of(pruned, torch.cat([tokens.prefix, tokens.patches], 1))
            theirs, patches = taught(self.pupil.teacher, pixels)
            row = {
                "output": F.cosine_similarity(ours.float(), theirs.float()),
                "map": F.cosine_similarity(tokens.patches.float(), patches.float(), dim=-1).mean(1),
            }
            rows.append(row | self._graded(ours, numbers))
        means = {name: torch.cat([row[name] for row in rows]).mean().item() for name in rows[0]}
        score = -means["entropy"] if "entropy" in means else means["output"]
        return {"score": score, **means}

    def names(self, images: Sequence[int]) -> list[str]:
        """Name some training pictures."""
        return [self.taken.pictures[self.taken.training[i]].name for i in images]

    def _graded(self, logits: Tensor, numbers: Sequence[int]) -> dict[str, Tensor]:
        """Whether and how well each picture is classified, (B,), if there are labels."""
        if self.taken.labels is None:
            return {}
        right = torch.tensor([self.taken.labels[number] for number in numbers], device=self.device)
        entropy = F.cross_entropy(logits.float(), right, reduction="none")
        return {"accuracy": (logits.argmax(dim=-1) == right).float(), "entropy": entropy}

    def _labels(self, numbers: Sequence[int]) -> Tensor | None:
        if self.taken.labels is None:
            return None
        found = [self.taken.labels[number] for number in numbers]
        outputs = int(self.pupil.teacher.network.num_classes)
        return soft_labels(found, outputs, self.config.smoothing).to(self.device)

    def _pixels(self, numbers: Sequence[int]) -> Tensor:
        images = [read_image(self.taken.pictures[number].source) for number in numbers]
        stacked = torch.stack([self.prepared(image) for image in images])
        return stacked.to(self.device, self.pupil.teacher.dtype)

    def prepared(self, image: Image.Image) -> Tensor:
        """Turn a picture into normalised pixels (3, height, width)."""
        return self.pupil.teacher.preprocessing(image, self.taken.size)

    def _chunks(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        most = self.config.micro or self.config.batch
        return (numbers[i : i + most] for i in range(0, len(numbers), most))


def by_decay(module: nn.Module, rate: float, decay: float, name: str) -> list[dict[str, Any]]:
    """Sort unlocked parameters into those that decay, matrices, and the others."""
    unlocked = [p for p in module.parameters() if p.requires_grad]
    matrices, others = ([p for p in unlocked if (p.ndim > 1) is many] for many in (True, False))
    return [
        {"params": parameters, "lr": rate, "weight_decay": weight, "name": name}
        for parameters, weight in ((matrices, decay), (others, 0.0))
        if parameters
    ]
