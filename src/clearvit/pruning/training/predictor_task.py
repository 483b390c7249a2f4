"""The task of predictor training: the batch of each step, and a held-out score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from clearvit.images import ImageSource, read_image
from clearvit.options import Size
from clearvit.pruning.config import PruneConfig
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.training.augmentation import deit_transform, make_mixup, seeded
from clearvit.pruning.training.folder_labels import soft_labels
from clearvit.pruning.training.masked import gumbel_noise
from clearvit.pruning.training.masked_student import (
    MaskedStudent,
    TrainingBatch,
    image_output,
    teacher_outputs,
)
from clearvit.training.order import seeded_generator


@dataclass(frozen=True)
class TrainingImages:
    """Images to train on, and images held out."""

    sources: Sequence[ImageSource]
    labels: Sequence[int] | None
    training: Sequence[int]  # indices of sources
    held_out: Sequence[int]  # indices of sources; may be empty
    size: Size  # (height, width) in pixels


class PredictorTask:
    """Train a masked student; all randomness is a function of the step and the image.

    Args:
        student: What is trained.
        images: The images.
        config: Learning rates, weight decay, augmentation.
        freeze_steps: Steps before an unfrozen backbone begins to train.
        warmup_steps: Steps at the beginning that predict the attention of later blocks.
        device: Where the student works.
    """

    def __init__(
        self,
        student: MaskedStudent,
        images: TrainingImages,
        config: PruneConfig,
        *,
        freeze_steps: int,
        warmup_steps: int,
        device: torch.device,
    ) -> None:
        self.module: nn.Module = student.to(device)
        self.student, self.images, self.config = student, images, config
        self.freeze_steps, self.warmup_steps, self.device = freeze_steps, warmup_steps, device
        patch = student.teacher.patch
        self.patches = images.size[0] // patch[0] * (images.size[1] // patch[1])
        self.classes = int(student.teacher.network.num_classes)
        self.mixup = make_mixup(config, max(1, self.classes))
        self.transform = deit_transform(student.teacher.preprocessing, images.size)

    @property
    def rate(self) -> float:
        """Full learning rate of the predictors."""
        config = self.config
        return config.lr * (config.batch / config.lr_batch if config.lr_batch else 1)

    def param_groups(self) -> list[dict[str, Any]]:
        """Give predictors the full learning rate, a backbone a small part of it, and later."""
        config = self.config
        found = decay_groups(self.student.predictors, self.rate, config.weight_decay, "predictors")
        slow = self.rate * config.backbone_lr_scale
        for group in decay_groups(self.student.network, slow, config.weight_decay, "backbone"):
            found.append({**group, "begin": self.freeze_steps})
        return found

    def load_batch(self, images: Sequence[int], step: int) -> TrainingBatch:
        """Load augmented training images, with the noise of this step."""
        indices = [self.images.training[i] for i in images]
        first = step * len(self.images.training)  # belongs to an image, however a step is cut
        pixels, labels = self._mix(self._augmented(images, step), indices, first + images[0])
        shape = (len(self.student.plan.stages), self.patches, 2)
        seed = self.config.seed + 2
        noise = [gumbel_noise(shape, seeded_generator(seed, first + i)) for i in images]
        stacked = torch.stack(noise).to(self.device)
        return TrainingBatch(pixels, stacked, labels, warmup=step < self.warmup_steps)

    def evaluate(self, module: nn.Module) -> dict[str, float]:
        """Evaluate the hard-pruned model on held-out images; empty without any."""
        assert isinstance(module, MaskedStudent)
        return self.compare_to_dense(module.pruned())

    @torch.no_grad()
    def compare_to_dense(self, pruned: PrunedBackbone) -> dict[str, float]:
        """Compare a pruned model with the dense one on the held-out images.

        Returns:
            "output" and "map": mean cosine of logits, class token or pooled patches, and of the
            full grid, to the dense model's. With labels "accuracy" and "cross_entropy" too. "score"
            is the cosine of the output or, with labels, the negative cross-entropy.
        """
        rows: list[dict[str, Tensor]] = []
        for indices in self._chunks(self.images.held_out):
            pixels = self._pixels(indices)
            tokens = pruned.forward(pixels)
            ours = image_output(pruned, torch.cat([tokens.prefix, tokens.patches], 1))
            theirs, patches = teacher_outputs(self.student.teacher, pixels)
            row = {
                "output": F.cosine_similarity(ours.float(), theirs.float()),
                "map": F.cosine_similarity(tokens.patches.float(), patches.float(), dim=-1).mean(1),
            }
            rows.append(row | self._classified(ours, indices))
        if not rows:
            return {}
        means = {name: torch.cat([row[name] for row in rows]).mean().item() for name in rows[0]}
        score = -means["cross_entropy"] if "cross_entropy" in means else means["output"]
        return {"score": score, **means}

    def image_names(self, images: Sequence[int]) -> list[str]:
        """Name some training images."""
        return [self.images.sources[self.images.training[i]].name for i in images]

    def preprocess(self, image: Image.Image) -> Tensor:
        """Turn an image into normalized pixels (3, height, width)."""
        return self.student.teacher.preprocessing(image, self.images.size)

    def _augmented(self, images: Sequence[int], step: int) -> Tensor:
        """Pixels (B, 3, height, width) of training images in the augmentation of this step."""
        config, training = self.config, self.images.training
        if config.augmentation == "deit":
            pixels = []
            for image in images:
                source = self.images.sources[training[image]].source
                with seeded(config.seed + 1, step * len(training) + image):
                    pixels.append(self.transform(read_image(source)))
            return torch.stack(pixels).to(self.device, self.student.teacher.dtype)
        stacked = self._pixels([training[i] for i in images])
        if config.augmentation == "none":
            return stacked
        numbers = torch.rand(len(training), generator=seeded_generator(config.seed + 1, step))
        flipped = (numbers[list(images)] < 0.5).to(self.device)
        return torch.where(flipped[:, None, None, None], stacked.flip(-1), stacked)

    def _mix(
        self, pixels: Tensor, indices: Sequence[int], number: int
    ) -> tuple[Tensor, Tensor | None]:
        """Mix the images of a forward pass as Mixup or CutMix does, and make their soft labels."""
        labels = self.images.labels
        numbers = [0 if labels is None else labels[index] for index in indices]
        if self.mixup is not None:
            with seeded(self.config.seed + 5, number):
                pixels, soft = self.mixup(pixels, torch.tensor(numbers, device=self.device))
        elif labels is not None:
            soft = soft_labels(numbers, self.classes, self.config.smoothing).to(self.device)
        return pixels, None if labels is None else soft

    def _classified(self, logits: Tensor, indices: Sequence[int]) -> dict[str, Tensor]:
        """Whether and how well each image is classified, (B,), if there are labels."""
        if self.images.labels is None:
            return {}
        right = torch.tensor([self.images.labels[index] for index in indices], device=self.device)
        entropy = F.cross_entropy(logits.float(), right, reduction="none")
        return {"accuracy": (logits.argmax(dim=-1) == right).float(), "cross_entropy": entropy}

    def _pixels(self, indices: Sequence[int]) -> Tensor:
        images = [read_image(self.images.sources[index].source) for index in indices]
        stacked = torch.stack([self.preprocess(image) for image in images])
        return stacked.to(self.device, self.student.teacher.dtype)

    def _chunks(self, indices: Sequence[int]) -> Iterator[Sequence[int]]:
        most = self.config.micro_batch or self.config.batch
        return (indices[i : i + most] for i in range(0, len(indices), most))


def decay_groups(module: nn.Module, rate: float, decay: float, name: str) -> list[dict[str, Any]]:
    """Sort trainable parameters into those with weight decay, matrices, and the others."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    matrices, others = ([p for p in trainable if (p.ndim > 1) is many] for many in (True, False))
    return [
        {"params": parameters, "lr": rate, "weight_decay": weight, "name": name}
        for parameters, weight in ((matrices, decay), (others, 0.0))
        if parameters
    ]
