import http.server
import threading

import pytest
from huggingface_hub import constants

from clearvit.backbones import hub
from clearvit.backbones.hub import cached_if_offline, unreachable


def test_an_address_nobody_answers_is_unreachable():
    assert unreachable("http://127.0.0.1:9/")
    assert unreachable("no address at all")


def test_whoever_answers_anything_is_reachable():
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.handle_request, daemon=True).start()
    assert not unreachable(f"http://127.0.0.1:{server.server_port}/")  # 501: no HEAD there
    server.server_close()


@pytest.mark.parametrize("reason", ["", "no route"])
def test_the_hub_library_is_offline_only_where_the_hub_is_out_of_reach(monkeypatch, reason):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "unreachable", lambda url: reason)
    with cached_if_offline():
        assert bool(reason) == constants.HF_HUB_OFFLINE
    assert constants.HF_HUB_OFFLINE is False


def test_the_switch_is_put_back_after_an_error(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "unreachable", lambda url: "no route")
    with pytest.raises(RuntimeError), cached_if_offline():
        raise RuntimeError
    assert constants.HF_HUB_OFFLINE is False


def test_an_offline_user_stays_offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with cached_if_offline():
        assert constants.HF_HUB_OFFLINE is True
    assert constants.HF_HUB_OFFLINE is True
