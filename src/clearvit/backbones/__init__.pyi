from .backbone import Backbone
from .clip_heads import dense_clip
from .grid import GridBackbone
from .neurons import NeuronBackbone
from .preprocessing import Preprocessing
from .tokens import Tokens
from .vit import VitBackbone

__all__ = [
    "Backbone",
    "GridBackbone",
    "NeuronBackbone",
    "Preprocessing",
    "Tokens",
    "VitBackbone",
    "dense_clip",
]
