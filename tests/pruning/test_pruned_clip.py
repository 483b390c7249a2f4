"""A pruned CLIP: zero-shot classification through the same verbs, training by its embedding."""

import pytest
import torch
import torch.nn.functional as F

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.evaluation.evaluate import evaluate
from clearvit.pruning.config import PruneConfig
from clearvit.pruning.prune import prune
from tests.helpers.folder_clip import FEW, random_clip, write_model
from tests.helpers.made_data import class_folder
from tests.helpers.made_training import paint

pytest.importorskip("open_clip")

QUICK = PruneConfig(
    keep=0.5, warmup_epochs=0, epochs=6, finetune_epochs=6, unfreeze=True, batch=4, lr=1e-2,
    backbone_lr_scale=0.1, held_out=0.2, patience=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    return f"openclip:{write_model(random_clip(), tmp_path_factory.mktemp('clip') / 'model')}"


@pytest.fixture(scope="module")
def clip(name):
    return load(name)


def test_zero_shot_classification_runs_on_the_pruned_model_and_on_its_saved_copy(
    clip, name, tmp_path
):
    root = class_folder(tmp_path / "data", each=4)
    dense = evaluate(clip, task="zero-shot-classification", data=root, **FEW)
    whole = evaluate(prune(clip, keep=1.0), task="zero-shot-classification", data=root, **FEW)
    assert whole.rows[0]["top-1"] == dense.rows[0]["top-1"]
    pruned = prune(clip, keep=0.5)
    table = evaluate(pruned, task="zero-shot-classification", data=root, **FEW)
    assert table.rows[0].num_tested == 12 and 0 <= table.rows[0]["top-1"].mean <= 100
    pixels = torch.randn(2, 3, *clip.fitting_size())
    assert pruned.embed(pixels).shape == clip.embed(pixels).shape
    assert not torch.allclose(pruned.embed(pixels), clip.embed(pixels), atol=1e-4)
    again = cv.load(f"dir:{cv.save(pruned, tmp_path / 'saved')}")  # the image tower alone
    options = {**FEW, "text_model": name}
    saved = evaluate(again, task="zero-shot-classification", data=root, **options)
    assert saved.rows[0]["top-1"] == table.rows[0]["top-1"]


def test_training_without_labels_follows_the_image_embedding(clip, tmp_path):
    paint(tmp_path / "photos", 20)
    said = []
    pruned = prune(clip, tmp_path / "photos", config=QUICK, progress=lambda *c: said.append(c[3:]))
    assert any("image embedding" in "".join(words) for words in said)
    pixels = torch.cat(list(clip.pixels(tmp_path / "photos")))
    untrained = prune(clip, keep=0.5)
    near = [
        F.cosine_similarity(m.embed(pixels), clip.embed(pixels)).mean() for m in (untrained, pruned)
    ]
    assert near[1] > near[0]
