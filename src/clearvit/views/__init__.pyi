from .denoised import DenoisedBackbone
from .gathering import Gathered, gather
from .guidance import refine_by_image
from .sampling import Views, all_views, lattice_views, official_views
from .shifting import apply_view, shift_targets

__all__ = [
    "DenoisedBackbone",
    "Gathered",
    "Views",
    "all_views",
    "apply_view",
    "gather",
    "lattice_views",
    "official_views",
    "refine_by_image",
    "shift_targets",
]
