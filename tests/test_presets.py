"""A published recipe names every option that decides the weights, so no default can change it."""

import dataclasses

import pytest

from clearvit.cures.config import CureConfig
from clearvit.options import Options
from clearvit.pruning.config import PruneConfig

OF_THE_MACHINE = {"grad_checkpointing", "target_cache_gb", "targets_dir"}  # same numbers either way
OF_THE_RUN = {"preset", "seed"}
UNUSED = {  # without effect in these recipes
    "rank",  # of low-rank factors
    "head_agreement",  # on held-out images, of which there are none
    "resize_positions",  # of DINOv2: its table has the size of the images
}


@pytest.mark.parametrize(
    ("config", "panels"),
    [(CureConfig, {"Targets", "Student", "Training"}), (PruneConfig, {"Training"})],
)
def test_a_preset_decides_every_option_of_the_training(config: type[Options], panels):
    for name, preset in config.presets.items():
        decisive = {
            field.name for field in dataclasses.fields(config) if field.metadata["panel"] in panels
        }
        machine = OF_THE_MACHINE | ({"micro_batch"} if config is CureConfig else set())
        assert decisive - set(preset) - machine - OF_THE_RUN - UNUSED == set(), name
