"""The demo model as a fixture; conftest.py imports it."""

import os

import pytest

from clearvit.backbones.demo.demo_weights import demo_weights
from clearvit.backbones.load import load
from clearvit.errors import ModelError


@pytest.fixture(scope="session")
def demo_backbone():
    """DINOv2 ViT-S/14 with its real weights; skipped where they cannot be had, except in CI."""
    try:
        demo_weights()
    except ModelError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no demo weights: {error}")
    return load("demo")
