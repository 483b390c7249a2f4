"""Classes as texts: prompts around their names, embedded by the text tower of a CLIP-like model.

The ensemble is that of Radford et al., "Learning Transferable Visual Models From Natural Language
Supervision", ICML 2021: each prompt is embedded, the unit embeddings of a name are averaged, and
the average is normalized again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.backbone import TextTower
from clearvit.datasets.splits import read_lines
from clearvit.errors import ImageError, ModelError

BATCH = 256  # texts embedded at a time


@dataclass(frozen=True)
class TextClasses:
    """Classes as directions in the joint space; a class may have several words."""

    directions: Tensor  # (Q, D), unit length, one per word
    class_index: Tensor  # (Q,), the class of each word, ascending
    count: int  # number of classes K

    def __call__(self, tokens: Tensor) -> Tensor:
        """Cosine of tokens (N, D) with each word, (N, Q)."""
        return F.normalize(tokens.float(), dim=-1) @ self.directions.to(tokens.device).T

    def class_scores(self, cosines: Tensor) -> Tensor:
        """Score a class by the nearest of its words, (N, Q) -> (N, K)."""
        index = self.class_index.to(cosines.device).expand(len(cosines), -1)
        empty = cosines.new_full((len(cosines), self.count), -torch.inf)
        return empty.scatter_reduce(1, index, cosines, "amax")

    def labels(self, cosines: Tensor, *, scale: float = 40.0, threshold: float = 0.0) -> Tensor:
        """Choose the class of each pixel, (Q, height, width) -> (height, width).

        Args:
            cosines: Upsampled cosine of each word.
            scale: Factor that turns cosines into logits of the softmax over all words.
            threshold: Pixels whose largest probability is below become class 0, the background.
        """
        best, word = cosines.max(0)
        chosen = self.class_index.to(cosines.device)[word]
        if threshold <= 0:
            return chosen
        probability = 1 / (scale * (cosines - best)).exp().sum(0)
        return chosen.where(probability >= threshold, torch.zeros_like(chosen))


def embed_classes(
    text: TextTower, words: Sequence[Sequence[str]], prompts: Sequence[str]
) -> TextClasses:
    """Embed the words of each class with all prompts.

    Args:
        text: The text tower.
        words: At least one for each class.
        prompts: Each with `{}` where the word is inserted.
    """
    check_prompts(prompts)
    empty = next((i for i, some in enumerate(words) if not some), None)
    if empty is not None:
        raise ModelError(f"class {empty} has no name; give each class at least one word.")
    flat = [word for some in words for word in some]
    texts = [prompt.format(word) for word in flat for prompt in prompts]
    parts = [text.encode(texts[i : i + BATCH]).float() for i in range(0, len(texts), BATCH)]
    unit = F.normalize(torch.cat(parts), dim=-1).unflatten(0, (len(flat), len(prompts)))
    directions = F.normalize(unit.mean(1), dim=-1).cpu()
    class_index = [index for index, some in enumerate(words) for _ in some]
    return TextClasses(directions, torch.tensor(class_index), len(words))


def check_prompts(prompts: Sequence[str]) -> None:
    """Refuse prompts without exactly one `{}`."""
    for prompt in prompts:
        try:
            fits = prompt.format("\0").count("\0") == 1
        except (IndexError, KeyError, ValueError):
            fits = False
        if not fits:
            raise ModelError(
                f"the prompt '{prompt}' needs one {{}} for the name, as 'a photo of a {{}}.'"
            )


def read_class_words(path: str | Path, classes: int) -> tuple[tuple[str, ...], ...]:
    """Read the words of each class from a file: one line per class, words separated by commas."""
    lines = [line.strip() for line in read_lines(Path(path)) if line.strip()]
    if len(lines) != classes:
        raise ImageError(f"'{path}' names {len(lines)} classes, the data has {classes}.")
    words = tuple(tuple(w.strip() for w in line.split(",") if w.strip()) for line in lines)
    if not all(words):
        raise ImageError(f"'{path}' has a line without a word.")
    return words
