from .boxes import GridObject, corloc, to_pixels
from .consensus_cut import consensus
from .discover import Discoveries, ImageObjects
from .discovery_page import draw_boxes
from .feature_choice import FeatureChoice, choose_features
from .normalized_cut import tokencut
from .seed_expansion import lost

__all__ = [
    "Discoveries",
    "FeatureChoice",
    "GridObject",
    "ImageObjects",
    "choose_features",
    "consensus",
    "corloc",
    "draw_boxes",
    "lost",
    "to_pixels",
    "tokencut",
]
