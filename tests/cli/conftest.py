import pytest

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from tests.conftest import tiny_network
from tests.helpers.pages import made_images


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved model with registers."""
    network = tiny_network(reg_tokens=2, no_embed_class=True)
    return f"dir:{save(load(network), tmp_path_factory.mktemp('model'))}"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two saved models, the second with registers."""
    networks = (tiny_network(), tiny_network(reg_tokens=2, no_embed_class=True))
    folder = tmp_path_factory.mktemp("models")
    return [f"dir:{save(load(n), folder / str(i))}" for i, n in enumerate(networks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("photos")
    for i, image in enumerate(made_images(3)):
        image.save(made / f"{i}.png")
    return made
