import io

import numpy as np
import pytest
from PIL import Image

from clearvit.comparison.pca_panels import SIDE, cells_png


@pytest.mark.parametrize("aspect", [0.5, 1.0, 1.6, 200.0])
def test_cells_have_the_shape_of_the_image_and_their_own_colors(aspect):
    colors = np.zeros((3, 4, 3))
    colors[1, 2] = (1.0, 0.2, 0.0)
    image = Image.open(io.BytesIO(cells_png(colors, aspect)))
    width, height = image.size
    assert max(width, height) == SIDE
    assert height / width == pytest.approx(aspect, rel=0.1)
    assert {color for _, color in image.getcolors()} <= {(0, 0, 0), (255, 51, 0)}
    if min(image.size) > 4:
        assert image.getpixel((int(width * 0.6), height // 2)) == (255, 51, 0)
