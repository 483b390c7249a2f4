import numpy as np
import pytest
from PIL import Image

from clearvit.backbones.load import load
from tests.conftest import tiny_network


@pytest.fixture(scope="module")
def backbone():
    return load(tiny_network(img_size=64))


@pytest.fixture
def photos():
    generator = np.random.default_rng(0)
    sizes = [(60, 80), (90, 50), (64, 64)]
    return [
        Image.fromarray(generator.integers(0, 255, (*s, 3), dtype=np.uint8), "RGB") for s in sizes
    ]
