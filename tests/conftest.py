import pytest
import torch

import clearvit.backbones.guarded_timm  # noqa: F401 - before any test imports timm
from clearvit.backbones.load import load
from tests.helpers.demo_model import demo_backbone  # noqa: F401 - a fixture

THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def seeded():
    """The same random numbers for every test, and the same threads: both decide the last bits."""
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    """The same number format on every machine; a test of bfloat16 asks for it."""
    monkeypatch.setattr("clearvit.precision.cpu_computes_bf16", lambda: False)


@pytest.fixture(scope="session")
def tiny():
    """A ViT of three blocks with random weights, 32 px, patch 8, a class token and no registers."""
    return load(tiny_network())


def tiny_network(**arguments):
    import timm

    torch.manual_seed(0)
    defaults = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3}
    network = timm.create_model(
        "vit_tiny_patch16_224", **(defaults | {"num_classes": 0} | arguments)
    )
    return randomised(network)


def randomised(network):
    """Give every weight a random value, so that a forgotten bias or norm shows."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return network.eval()
