"""Uploading, against a small server that speaks as much of the hub's HTTP as is needed."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import clearvit as cv
from clearvit.errors import ModelError, OptionError
from clearvit.formats import push as module
from clearvit.pruning.modules import LearnedFill
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruning_plan import make_plan
from clearvit.views.denoised import with_views
from tests.helpers.commands import invoke


class Hub(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.calls.append((self.path, self.headers.get("Authorization"), body))
        answer = {"url": f"{self.server.url}/user/name", "name": "user/name"}
        if self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            answer = {"files": [{"path": one["path"], **plain} for one in files]}
        elif "/commit/" in self.path:
            answer = {"commitOid": "0" * 40, "commitUrl": f"{self.server.url}/user/name/commit/0"}
        self.reply(answer, 403 if self.server.refuse else 200)

    def do_GET(self):
        self.reply({"id": "user/name", "sha": "0" * 40, "siblings": []}, 200)

    def reply(self, content, code):
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.calls, server.refuse = [], False
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def saved(tiny, tmp_path):
    folder = cv.save(tiny, tmp_path / "saved")
    (folder / "state.safetensors").write_bytes(b"optimizer")
    (folder / ".secret").write_text("mine")
    return folder


def uploaded(server):
    body = next(body for path, _, body in server.calls if "/commit/" in path)
    lines = [json.loads(line) for line in body.splitlines()]
    files = [line["value"] for line in lines if line["key"] == "file"]
    return {one["path"]: base64.b64decode(one["content"]) for one in files}


def test_model_and_card_are_uploaded_and_nothing_else(hub, saved):
    done = cv.push(saved, "user/name", token="hf_test")
    found = uploaded(hub)
    assert set(found) == set(done.files) == {p for p in module.FILES if (saved / p).is_file()}
    assert found["model.safetensors"] == (saved / "model.safetensors").read_bytes()
    head = found["README.md"].decode().split("---")[1]
    assert "library_name: timm" in head and "- clearvit" in head
    assert {call[1] for call in hub.calls} == {"Bearer hf_test"}


def test_whatever_a_saved_model_needs_is_uploaded(tiny, tmp_path):
    """The learned fill of a pruned model was left at home, and the copy did not load."""
    plan = make_plan(tiny.depth, keep=(0.5,), stages=(1,), scorer="class", fill="learned")
    pruned = PrunedBackbone(tiny, plan, None, LearnedFill(tiny.width))
    for backbone in (pruned, with_views(tiny, 4, 1)):
        folder = cv.save(backbone, tmp_path / type(backbone).__name__)
        needed = {path.name for path in folder.glob("[!.]*")}
        assert needed <= set(cv.push(folder, "user/name", dry_run=True).files)


def test_a_dry_run_connects_to_nothing(hub, saved):
    done = cv.push(saved, "user/name", dry_run=True)
    assert done.dry_run and "model.safetensors" in done.files and not hub.calls
    said = invoke("push", saved, "user/name", "--dry-run", "--json")
    assert json.loads(said.stdout)["files"] == list(done.files)


def test_a_token_is_asked_for_at_a_terminal_only(hub, saved, monkeypatch):
    with pytest.raises(OptionError, match="token"):
        cv.push(saved, "user/name")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: "hf_typed")
    cv.push(saved, "user/name")
    assert hub.calls[0][1] == "Bearer hf_typed"


def test_an_own_card_is_kept(hub, saved):
    (saved / "README.md").write_text("# Mine\n")
    cv.push(saved, "user/name", dry_run=True)
    assert (saved / "README.md").read_text() == "# Mine\n"
    for _ in range(2):
        hub.calls.clear()
        cv.push(saved, "user/name", token="hf_test")
        text = uploaded(hub)["README.md"].decode()
        assert text.startswith("---\nlibrary_name: timm") and text.endswith("# Mine\n")
        assert text.count("library_name") == 1


def test_what_is_no_model_is_not_uploaded(hub, saved):
    (saved / "model.safetensors").write_text("mine")
    with pytest.raises(ModelError, match="cannot read"):
        cv.push(saved, "user/name", token="hf_test")
    with pytest.raises(ModelError, match="holds no model"):
        cv.push("x" * 5000, "user/name", token="hf_test")
    assert not hub.calls


def test_what_can_go_wrong_is_one_sentence(hub, saved, tmp_path):
    with pytest.raises(ModelError, match="holds no model"):
        cv.push(tmp_path, "user/name", dry_run=True)
    with pytest.raises(OptionError, match="USER/NAME"):
        cv.push(saved, "name", dry_run=True)
    hub.refuse = True
    with pytest.raises(ModelError, match="could not be uploaded"):
        cv.push(saved, "user/name", token="hf_test")
