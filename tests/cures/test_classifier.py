"""A cure of a model with a classifier: what its own head predicts is measured, and must stay."""

import dataclasses

import pytest
import torch

import clearvit as cv
from clearvit.cures.classifier import has_head, predict_classes
from clearvit.cures.config import CureConfig
from clearvit.errors import TrainingError
from tests.conftest import tiny_network
from tests.helpers.photos import soft_photos

CONFIG = CureConfig(epochs=2, lr=1e-3, held_out=0.4, views=4, precision="no", registers=0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 15)


@pytest.mark.parametrize("pool", ["token", "avg", "map"])
def test_predictions_are_those_of_the_network(pool):
    backbone = cv.load(tiny_network(num_classes=7, global_pool=pool))
    pixels = torch.randn(5, 3, 32, 32)
    assert has_head(backbone) and not has_head(cv.load(tiny_network()))
    expected = backbone.network(pixels).argmax(1)
    assert torch.equal(predict_classes(backbone, pixels), expected)


def test_the_report_tells_how_often_the_head_predicts_the_same(photos, tiny):
    classifier = cv.load(tiny_network(num_classes=5))
    config = dataclasses.replace(CONFIG, head_agreement=0.0)
    notes = []
    watch = lambda stage, done, total, note="": notes.append(note)  # noqa: E731
    report = cv.cure(classifier, photos, config=config, progress=watch).report
    assert any("classifier on top" in note for note in notes)
    first, *_ = report.epochs
    assert first.agreement == 1.0 and 0 <= report.agreement <= 1
    assert "same class" in str(report)
    assert cv.cure(tiny, photos, config=config).report.agreement is None


def test_a_cure_that_changes_the_predictions_is_not_kept(photos, tmp_path):
    classifier = cv.load(tiny_network(num_classes=900))
    with torch.no_grad():  # a head that any change of the class token sends elsewhere
        classifier.network.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    config = dataclasses.replace(CONFIG, lr=0.02, class_weight=0.0, head_agreement=1.0)
    with pytest.raises(TrainingError, match=r"head would no longer predict .* --head-agreement 0"):
        cv.cure(classifier, photos, out=tmp_path / "out", config=config)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    kept = dataclasses.replace(config, head_agreement=0.0, overwrite=True)
    cured = cv.cure(classifier, photos, out=tmp_path / "out", config=kept)
    assert cured.report.agreement < 1 and cured.report.after < cured.report.before
