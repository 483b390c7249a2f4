"""A wanted speed together with training; times come from the test."""

import json

import pytest

from clearvit.backbones.load import load
from clearvit.errors import TrainingError
from clearvit.pruning.config import PruneConfig
from clearvit.pruning.prune import prune
from clearvit.pruning.speed import Speed
from clearvit.pruning.training import trained_speed
from tests.conftest import tiny_network
from tests.helpers.made_training import paint

QUICK = PruneConfig(
    keep="2x", warmup_epochs=0, finetune_epochs=0, epochs=1, batch=4, held_out=0.2, patience=None
)


@pytest.fixture
def photos(tmp_path):
    paint(tmp_path / "photos", 10)
    return tmp_path / "photos"


def test_the_fraction_is_found_once_and_trained(photos, tmp_path, monkeypatch):
    asked = []

    def find(dense, keep, prune_to, *, stages):
        pruned = prune_to(0.6)
        asked.append((keep, stages, pruned.predictors is not None))
        return Speed(2.0, 0.6 + 0.1 * (len(asked) - 1), 2.1, dense.fitting_size(), 1)

    monkeypatch.setattr(trained_speed, "find_keep", find)
    backbone, out = load(tiny_network()), tmp_path / "out"
    pruned = prune(backbone, photos, out=out, config=QUICK)
    assert asked == [("2x", 2, True)]
    assert pruned.speed.keep == 0.6 and pruned.plan.keep[0] == pytest.approx(0.6)
    assert pruned.report is not None
    again = prune(backbone, photos, out=out, config=QUICK)  # as a resumed run does
    assert len(asked) == 1 and again.plan == pruned.plan
    anew = prune(backbone, photos, out=out, config=QUICK, overwrite=True)
    assert len(asked) == 2 and anew.plan.keep[0] == pytest.approx(0.7)


def test_a_broken_file_is_named(photos, tmp_path, monkeypatch):
    found = Speed(2.0, 0.6, 2.1, (32, 32), 1)
    monkeypatch.setattr(trained_speed, "find_keep", lambda *_, **__: found)
    out = tmp_path / "out"
    prune(load(tiny_network()), photos, out=out, config=QUICK)
    content = json.loads((out / trained_speed.SPEED).read_text())
    (out / trained_speed.SPEED).write_text(json.dumps({**content, "keep": "much"}))
    with pytest.raises(TrainingError, match=r"speed\.json"):
        prune(load(tiny_network()), photos, out=out, config=QUICK)
