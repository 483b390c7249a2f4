"""The server: what it answers, what it refuses, and who waits for whom."""

import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

import clearvit as cv
from clearvit.errors import ImageError, ModelError, OptionError
from clearvit.microscopy.config import ServeConfig
from clearvit.microscopy.server.refusals import NotFound
from clearvit.microscopy.server.served_folders import Folders
from clearvit.microscopy.server.serving import bind_socket
from clearvit.microscopy.turns import Workers
from tests.helpers.bombs import deep_png
from tests.helpers.commands import invoke
from tests.helpers.served import Client, running

pytest.importorskip("fastapi", reason="needs pip install 'clearvit[serve]'")


def png(seed=0, size=(40, 32)):
    small = np.random.default_rng(seed).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize(size).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images in a folder, beside a file that nobody may see."""
    top = tmp_path_factory.mktemp("serve")
    (top / "secret.png").write_bytes(png())
    photos = top / "photos"
    (photos / "summer").mkdir(parents=True)
    for number in range(5):
        (photos / f"{number}.png").write_bytes(png(number))
    (photos / "summer" / "6.png").write_bytes(png(6))
    (photos / "notes.txt").write_text("private")
    (photos / "broken.jpg").write_bytes(b"no image")
    (photos / ".hidden.png").write_bytes(png())
    (photos / "way-out.png").symlink_to(top / "secret.png")
    (photos / "up").symlink_to(top)
    return photos


@pytest.fixture(scope="module")
def client(tiny, folder):
    with running([tiny], [folder], megabytes=1) as client:
        yield client


def test_the_page_holds_what_the_server_has(client):
    status, headers, content = client.ask("GET", "/")
    assert status == 200 and headers["X-Frame-Options"] == "DENY"
    found = re.search(r'id="clearvit-server">(.*?)</script>', content.decode(), re.DOTALL)
    settings = json.loads(found[1])
    assert settings["folders"] == ["photos"] and len(settings["models"]) == 1
    assert "connect-src 'self'" in content.decode()


def test_folders_list_images_and_folders_only(client):
    status, listing = client.get("/api/folder?address=photos")
    assert status == 200 and listing["total"] == 7  # the links are listed, not followed
    assert "photos/notes.txt" not in listing["images"]
    assert "photos/summer" in listing["folders"]
    assert client.get("/api/folder?address=photos/summer")[1]["images"] == ["photos/summer/6.png"]
    assert client.get("/api/folder?address=photos&start=6")[1]["images"] == ["photos/way-out.png"]


@pytest.mark.parametrize(
    "address",
    [
        *("photos/../secret.png", "photos/%2e%2e/secret.png", "..%2Fsecret.png", "secret.png"),
        *("photos/way-out.png", "photos/up/secret.png", "photos/.hidden.png", "photos/notes.txt"),
        *("%2Fetc%2Fpasswd", "photos//etc/passwd", "photos\\..\\secret.png", "photos/%00.png"),
    ],
)
def test_nothing_outside_the_folders_is_read(client, address):
    status, answer = client.get(f"/api/thumbnail?address={address}")
    assert status == 404 and "not in the folders" in answer["error"]
    assert client.post("/api/looks", {"images": [address], "models": [0]})[0] == 404


def test_a_link_of_an_index_that_leads_out_has_no_address(folder):
    served = Folders([folder])
    assert served.address_of(str(folder / "summer" / "6.png")) == "photos/summer/6.png"
    assert served.address_of(str(folder.parent / "secret.png")) is None
    assert served.address_of(str(folder / "way-out.png")) is None
    with pytest.raises(NotFound):
        served.find("photos/way-out.png")
    with pytest.raises(ImageError, match="not a folder"):
        Folders([folder / "1.png"])


def test_a_look_tells_how_far_it_is_and_gives_the_page_of_microscope(client, tiny, folder):
    events = client.look(["photos/1.png", "photos/2.png"], scale=2, views=4)
    assert [e["done"] for e in events if e.get("total")] == list(range(1, 7))
    assert "page of about" in events[0]["note"]
    key = events[-1]["page"]
    content = client.get(f"/api/pages/{key}")[1]
    labels = [model["name"] for model in content["manifest"]["models"]]
    assert len(labels) == 3 and "4 views" in labels[1] and "scale 2" in labels[2]
    assert [i["name"] for i in content["manifest"]["images"]] == events[-1]["names"]
    status, headers, page = client.ask("GET", f"/api/pages/{key}/microscope.html")
    assert status == 200 and "attachment" in headers["Content-Disposition"]
    assert b"clearvit-data" in page and b"connect-src" not in page.split(b"<script")[0]


def test_an_upload_is_seen_like_a_file(client):
    status, answer = client.upload(png(3), "C:\\me\\my%20cat.png")
    assert status == 200 and answer["name"] == "my cat.png"
    events = client.look([answer["address"], "photos/broken.jpg"])
    assert events[-1]["skipped"] == ["photos/broken.jpg: not an image"]
    assert client.ask("GET", f"/api/thumbnail?address={answer['address']}")[0] == 200


def test_bad_uploads_are_refused_with_a_sentence(client):
    status, answer = client.upload(bytes(2_000_000), "large.png")
    assert status == 413 and answer["error"] == "'large.png' is larger than 1 MB, the limit here."
    status, answer = client.upload(deep_png(60_000), "bomb.png")
    assert status == 400 and "too large" in answer["error"]
    status, answer = client.upload(b"no image", "words.png")
    assert status == 400 and answer["error"] == "'words.png' cannot be used: not an image."
    assert client.upload(b"")[0] == 400


def test_an_upload_of_unknown_length_is_cut_off(client):
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(
            b"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        part = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        sent = 0
        try:
            while sent < 200:  # 13 MB, if nobody stops us
                connection.sendall(part)
                sent += 1
        except OSError:
            pass
        answer = connection.recv(100) if sent == 200 else b" 413 "
    assert b" 413 " in answer


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"images": [], "models": [0]}, "choose 1 to"),
        ({"images": ["photos/1.png"], "models": [7]}, "choose models"),
        ({"images": ["photos/1.png"], "models": [0], "size": 5000}, "at most 672 px"),
        ({"images": ["photos/1.png"], "models": [0], "scale": 99}, "scale"),
        ({"images": ["upload:abc"], "models": [0]}, "drop the image again"),
        ({"images": ["photos/broken.jpg"], "models": [0]}, "could be read"),
        ({"images": ["photos/1.png"], "models": [0], "code": "x"}, "code"),
    ],
)
def test_wrong_requests_are_answered_with_a_sentence(client, body, message):
    _, events = client.post("/api/looks", body)
    assert message in events[-1]["error"]


def test_pages_of_other_sites_are_refused(client):
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        status, _, content = client.ask("GET", "/api/folder", headers=headers)
        assert status == 403 and b"answers to its" in content
    own = {"Origin": f"http://127.0.0.1:{client.port}"}
    assert client.ask("GET", "/api/folder", headers=own)[0] == 200
    assert client.ask("GET", "/api/folder", headers={"Host": "localhost"})[0] == 200


def test_a_client_that_hangs_is_let_go_and_others_are_served(tiny, folder):
    with running([tiny], [folder], seconds=1) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as hanging:
            head = "POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n"
            hanging.sendall(head.encode() + b"a few bytes and then nothing")
            assert "page" in client.look(["photos/1.png"])[-1]
            answer = b"".join(iter(lambda: hanging.recv(4096), b""))  # until it is closed
            assert b" 408 " in answer and b"nothing arrived for 1 seconds" in answer


class Gate:
    """A backbone's turn that a test can hold."""

    def __init__(self, backbone, monkeypatch):
        self.open, self.entered, self.batches = threading.Event(), threading.Event(), 0
        forward = type(backbone).forward

        def gated(model, *arguments, **options):
            self.entered.set()
            assert self.open.wait(60)
            self.batches += 1
            return forward(model, *arguments, **options)

        monkeypatch.setattr(type(backbone), "forward", gated)


def test_a_client_that_leaves_ends_its_work(tiny, folder, monkeypatch):
    with running([tiny], [folder]) as client:
        gate = Gate(tiny, monkeypatch)
        body = json.dumps({"images": [f"photos/{i}.png" for i in range(5)], "models": [0]})
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as leaving:
            head = "POST /api/looks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json"
            leaving.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            assert gate.entered.wait(60)
        client.get("/api/folder")  # after it, the server has noticed
        gate.open.set()
        assert "page" in client.look(["photos/1.png"])[-1]
        assert gate.batches < 8  # 1 + 1 of the one who stayed, 6 of the other one had it gone on


def test_too_many_pages_are_asked_to_come_back(tiny, folder, monkeypatch):
    with running([tiny], [folder], at_once=1, waiting=0) as client:
        gate = Gate(tiny, monkeypatch)
        found = []
        first = threading.Thread(target=lambda: found.extend(client.look(["photos/1.png"])))
        first.start()
        assert gate.entered.wait(60)
        status, events = client.post("/api/looks", {"images": ["photos/2.png"], "models": [0]})
        gate.open.set()
        first.join(60)
        assert status == 503 and "try again" in events[0]["error"]
        assert "page" in found[-1]


def test_batches_of_two_users_take_turns(tiny):
    """Ten batches of one user and two of another: the second waits for one batch of the first."""
    workers, order = Workers([tiny]), []
    begun, second = threading.Event(), threading.Event()

    def user(name, count):
        for number in range(count):

            def batch(number=number):
                if name == "first" and not number:
                    begun.set()
                    assert second.wait(60)  # the other one waits behind this batch
                order.append(name)

            if name == "second" and not number:
                threading.Timer(0.2, second.set).start()
            workers.run(tiny, batch)

    threads = [threading.Thread(target=user, args=("first", 10))]
    threads[0].start()
    assert begun.wait(60)
    threads.append(threading.Thread(target=user, args=("second", 2)))
    threads[1].start()
    for thread in threads:
        thread.join(60)
    workers.close()
    assert len(order) == 12 and order.index("second") == 1


def test_an_index_is_searched_and_its_hits_can_be_looked_at(tiny, folder, tmp_path):
    cv.Index.build(tiny, folder / "summer", out=tmp_path / "index")
    with running([tiny], [folder], tmp_path / "index") as client:
        status, (answer,) = client.post("/api/search", {"image": "photos/summer/6.png"})
        assert status == 200
        (hit,) = answer["hits"]
        assert hit["address"] == "photos/summer/6.png" and hit["score"] == pytest.approx(
            1, abs=0.01
        )


def test_a_region_is_searched_for(tiny, folder, tmp_path):
    cv.Index.build(tiny, folder / "summer", out=tmp_path / "index")
    body = {"image": "photos/summer/6.png", "region": [4, 4, 24, 20]}
    with running([tiny], [folder], tmp_path / "index") as client:
        status, (answer,) = client.post("/api/search", body)
        assert status == 200, answer
        left, top, right, bottom = answer["hits"][0]["box"]
        assert 0 <= left < right <= 40 and 0 <= top < bottom <= 32
        status, (answer,) = client.post("/api/search", body | {"region": [30, 4, 900, 20]})
        assert status == 422 and "does not lie in" in answer["error"]


def test_without_an_index_search_says_how_to_have_one(client):
    status, (answer,) = client.post("/api/search", {"image": "photos/1.png"})
    assert status == 400 and "--index" in answer["error"]


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=rf"127.0.0.1:{port} cannot be used"):
            bind_socket(ServeConfig(port=port))


def test_the_command_serves_until_it_is_interrupted(tiny, folder, tmp_path):
    cv.save(tiny, tmp_path / "model")
    words = ["serve", f"dir:{tmp_path / 'model'}", "--images", folder, "--port", "0", "--json"]
    line = [sys.executable, "-m", "clearvit", *map(str, words)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            address = json.loads(run.stdout.readline())["address"]
            client = Client(int(address.rstrip("/").rsplit(":", 1)[1]))
            assert client.get("/api/folder")[1]["folders"] == ["photos"]
            run.send_signal(signal.SIGINT)
            assert run.wait(120) == 0
            assert "Traceback" not in run.stderr.read()
        finally:
            run.kill()


def test_without_the_extra_the_command_says_how_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    done = invoke("serve", "demo")
    assert isinstance(done.exception, ModelError)
    assert "pip install 'clearvit[serve]'" in str(done.exception)


def test_nobody_is_served_without_a_model():
    with pytest.raises(ModelError, match="at least one"):
        cv.serve([], port=0)
