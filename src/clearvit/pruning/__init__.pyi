from .cost import Macs, macs
from .dynamicvit import import_dynamicvit
from .kept_figure import draw_kept
from .modules import LearnedFill, Predictors
from .pruned import PrunedBackbone
from .pruning_plan import Plan, make_plan
from .training.train import TrainingReport

__all__ = [
    "LearnedFill",
    "Macs",
    "Plan",
    "Predictors",
    "PrunedBackbone",
    "TrainingReport",
    "draw_kept",
    "import_dynamicvit",
    "macs",
    "make_plan",
]
