"""A wanted speed together with training: the fraction is found once and written down."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from clearvit.backbones.vit import VitBackbone
from clearvit.errors import TrainingError
from clearvit.files import write_json
from clearvit.pruning.config import PruneConfig, speed_target
from clearvit.pruning.modules import Predictors
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruning_plan import make_plan
from clearvit.pruning.speed import Speed, find_keep
from clearvit.runs import claim_files
from clearvit.schema import Rule, list_of, number, read_checked, whole
from clearvit.training.loop import accelerator_for

SPEED = "speed.json"
RULES: dict[str, Rule] = {
    "target": number(1, 1e6),
    "keep": number(0, 1),
    "ratio": number(0, 1e6),
    "size": list_of(whole(1, 65536), 2, 2),
    "threads": whole(1, 65536),
}


def find_speed(dense: VitBackbone, config: PruneConfig, folder: Path) -> Speed:
    """Find the fraction that reaches the wanted speed, or read what an earlier call found.

    Predictors that are not trained yet cost what trained ones do. A resumed training would measure
    something else on a machine that is busier now, so the first result stays.
    """
    accelerator = accelerator_for(dense.device)
    if accelerator.is_main_process:
        claim_files(folder, (SPEED,), kind="prune")
        known = None if config.overwrite else _read(folder)
        asked = (speed_target(str(config.keep)), dense.fitting_size())
        if known is None or (known.target, known.size) != asked:
            write_json(folder / SPEED, dataclasses.asdict(_measure(dense, config)))
    accelerator.wait_for_everyone()
    found = _read(folder)
    if found is None:
        raise TrainingError(f"'{folder / SPEED}' was removed; start again.")
    return found


def _read(folder: Path) -> Speed | None:
    path = folder / SPEED
    if not path.is_file():
        return None
    content = read_checked(path, RULES, error=TrainingError)
    return Speed(**{**content, "size": tuple(content["size"])})


def _measure(dense: VitBackbone, config: PruneConfig) -> Speed:
    def pruned(keep: float) -> PrunedBackbone:
        plan = make_plan(
            dense.depth, keep=keep, stages=config.stages, scorer=None, fill=config.fill
        )
        return PrunedBackbone(dense, plan, Predictors(dense.width, len(plan.stages)))

    stages = len(make_plan(dense.depth, stages=config.stages).stages)
    return find_keep(dense, str(config.keep), pruned, stages=stages)
