"""A running server of the microscope, and a small client without any library."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time

from clearvit.microscopy.config import ServeConfig
from clearvit.microscopy.server.serving import bind_socket, make_server


class Client:
    """One user of a server at a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """Give status, headers and content of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def get(self, path, **headers):
        status, _, content = self.ask("GET", path, headers=headers)
        return status, json.loads(content)

    def post(self, path, body):
        status, _, content = self.ask(
            "POST", path, json.dumps(body), {"Content-Type": "application/json"}
        )
        return status, [json.loads(line) for line in content.decode().splitlines()]

    def upload(self, content, name="image.png"):
        status, _, answer = self.ask("POST", "/api/uploads", content, {"X-Name": name})
        return status, json.loads(answer)

    def look(self, images, models=(0,), **options):
        """Give the events of a page that was made."""
        body = {"images": images, "models": list(models), **options}
        status, events = self.post("/api/looks", body)
        assert status == 200, events
        return events


@contextlib.contextmanager
def running(backbones, folders=(), index=None, **options):
    """Run a server on a free port and give a client."""
    fixed = {"port": 0, "images": tuple(folders), "index": index}
    config = ServeConfig(**{"seconds": 5.0} | fixed | options)
    listener = bind_socket(config)
    server = make_server(backbones, config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Client(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()
