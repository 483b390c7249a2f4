"""Real weights, real photos at 224 px: what the docs say about scorers and fills."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from clearvit.pruning.prune import prune


@pytest.fixture(scope="module")
def photos(demo_backbone):
    folder = Path(pytest.importorskip("skimage").__file__).parent / "data"
    names = ("astronaut.png", "chelsea.png", "coffee.png")
    return [Image.open(folder / name).convert("RGB") for name in names if (folder / name).is_file()]


@pytest.fixture(scope="module")
def dense(demo_backbone, photos):
    return demo_backbone.tokens(photos, size=224)


def similarities(pruned, photos, dense):
    """Mean cosine of class token and map to the dense model."""
    tokens = pruned.tokens(photos, size=224)
    pairs = ((tokens.cls, dense.cls), (tokens.patches, dense.patches))
    return [float(torch.cosine_similarity(a, b, dim=-1).mean()) for a, b in pairs]


def test_each_scorer_is_good_at_its_task(demo_backbone, photos, dense):
    found = {
        scorer: similarities(prune(demo_backbone, scorer=scorer), photos, dense)
        for scorer in ("class", "fuse", "merge", "random")
    }
    classes = {scorer: values[0] for scorer, values in found.items()}
    maps = {scorer: values[1] for scorer, values in found.items()}
    assert classes["class"] > 0.88 and classes["class"] > classes["random"] + 0.02
    assert classes["fuse"] > classes["random"] and classes["fuse"] > classes["merge"]
    assert maps["merge"] > 0.75 and maps["merge"] > maps["random"]
    assert maps["fuse"] > maps["class"] + 0.03


def test_copying_the_most_similar_patch_beats_the_mean(demo_backbone, photos, dense):
    found = {
        fill: similarities(prune(demo_backbone, fill=fill), photos, dense)
        for fill in ("similar", "delta", "mean")
    }
    assert found["similar"][1] > found["mean"][1] + 0.05
    assert found["delta"][1] > found["mean"][1] + 0.05
    assert found["similar"][0] == pytest.approx(found["mean"][0], abs=1e-5)
