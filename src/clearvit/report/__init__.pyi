from .combine import combine_pages, find_pages
from .figure import Panel, draw_panels, save_figure
from .page import write_page
from .pca import PCA
from .text_table import render_table

__all__ = [
    "PCA",
    "Panel",
    "combine_pages",
    "draw_panels",
    "find_pages",
    "render_table",
    "save_figure",
    "write_page",
]
