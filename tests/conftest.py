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


@pytest.fixture(autouse=True, scope="session")
def float32():
    """The same number format on every machine, in fixtures too; a test of bfloat16 asks for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clearvit.precision.cpu_computes_bf16", lambda: False)
        yield


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


@pytest.fixture(scope="session")
def endpoint():
    """A local server that speaks S3."""
    server = pytest.importorskip("moto.server", reason="needs moto: pip install 'moto[server,s3]'")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch):
    """The settings of a user of the store, and an empty bucket."""
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="photos")
    yield "s3://photos"
    for found in client.list_objects_v2(Bucket="photos").get("Contents", ()):
        client.delete_object(Bucket="photos", Key=found["Key"])
    client.delete_bucket(Bucket="photos")
