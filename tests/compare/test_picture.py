import io

import numpy as np
import pytest
from PIL import Image

from clearvit.compare.picture import SIDE, cells_png


@pytest.mark.parametrize("aspect", [0.5, 1.0, 1.6, 200.0])
def test_cells_have_the_shape_of_the_photo_and_their_own_colours(aspect):
    colours = np.zeros((3, 4, 3))
    colours[1, 2] = (1.0, 0.2, 0.0)
    picture = Image.open(io.BytesIO(cells_png(colours, aspect)))
    width, height = picture.size
    assert max(width, height) == SIDE
    assert height / width == pytest.approx(aspect, rel=0.1)
    assert {colour for _, colour in picture.getcolors()} <= {(0, 0, 0), (255, 51, 0)}
    if min(picture.size) > 4:
        assert picture.getpixel((int(width * 0.6), height // 2)) == (255, 51, 0)
