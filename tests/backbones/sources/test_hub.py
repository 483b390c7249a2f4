import http.server
import threading

import pytest
from huggingface_hub import constants, file_download

from clearvit.backbones.load import load
from clearvit.backbones.sources import hub
from clearvit.backbones.sources.hub import check_reachable, why_unreachable
from clearvit.errors import ModelError

ADDRESS = "/{repo_id}/resolve/{revision}/{filename}"


def use_hub(monkeypatch, port):
    address = f"http://127.0.0.1:{port}{ADDRESS}"
    for module in (constants, file_download):  # releases before 0.31 copy the name
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", address, raising=False)


def test_an_address_nobody_answers_is_unreachable(monkeypatch):
    use_hub(monkeypatch, 9)
    assert why_unreachable("some/model")


def test_whoever_answers_anything_is_reachable(monkeypatch):
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    use_hub(monkeypatch, server.server_port)
    threading.Thread(target=server.handle_request, daemon=True).start()
    assert not why_unreachable("some/model")  # 501: it knows no HEAD
    server.server_close()


def test_a_model_in_the_cache_asks_nobody(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "why_unreachable", lambda repository: "no route")
    with pytest.raises(ModelError, match="no route"):
        check_reachable("some/model")
    (tmp_path / "models--some--model").mkdir()
    check_reachable("some/model")


@pytest.mark.parametrize(
    "name", ["timm:vit_small_patch14_dinov2.lvd142m", "timm:hf-hub:some/model@main"]
)
def test_timm_model_out_of_reach_fails_at_once_with_a_remedy(monkeypatch, tmp_path, name):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "why_unreachable", lambda repository: "no route")
    monkeypatch.setattr("timm.create_model", lambda *names, **options: pytest.fail("tried"))
    with pytest.raises(ModelError, match=r"no route(.|\n)*local-dir:PATH"):
        load(name)


def test_the_hub_library_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    use_hub(monkeypatch, 9)
    with pytest.raises(ModelError):
        load("hf:some/model")
    assert constants.HF_HUB_OFFLINE is False
