"""Eight clients and a few hostile ones on `clearvit serve`: what it answers, how its memory goes.

    python benchmarks/serve.py [--images $CLEARVIT_DATA/photos] [--requests 200] [--clients 8]

Starts the command in a process of its own with the demo model at 224 px. Clients list folders,
fetch thumbnails, upload, look and search; meanwhile a client hangs, and others send 100 MB, a bomb
image and paths with "..". Memory is the resident set of the server. Then one user asks for 24
images and a second one for a single image: how long does the second wait? Writes
benchmarks/results/serve.json and docs/results/serve.md.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from data import DATA, data_path
from evidence import write_result
from render import render

SIZE, WARM = 224, 40  # pixels; requests before memory is compared
KINDS = ("look", "look", "folder", "thumbnail", "thumbnail", "upload", "search", "outside")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--render", action="store_true", help="only write the page, from the JSON")
    options = parser.parse_args()
    if not options.render:
        found = measure(options.images, options.requests, options.clients)
        write_result("serve", found | {"size": SIZE}, data=["photos"], models=["demo"])
    render("serve")


def measure(images: Path, requests: int, clients: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, served(images, Path(folder)) as server:
        work = [(number, KINDS[number % len(KINDS)]) for number in range(requests + WARM)]
        memory, answers, seconds = [], Counter[str](), []
        with ThreadPoolExecutor(clients) as pool, server.hanging():
            hostile = [threading.Thread(target=server.hostile, args=(answers,)) for _ in range(2)]
            for number, done in enumerate(pool.map(server.request, work)):
                kind, status, took = done
                answers[f"{kind}: {status}"] += number >= WARM
                seconds += [took] if kind == "look" and number >= WARM else []
                if number == WARM:
                    for thread in hostile:
                        thread.start()
                if number >= WARM and number % 20 == 0:
                    memory.append(server.memory())
            for thread in hostile:
                thread.join()
        memory.append(server.memory())
        waits = server.fairness()
    return {
        "command": f"python benchmarks/serve.py --requests {requests} --clients {clients}",
        "date": time.strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
        "answers": dict(sorted(answers.items())),
        "megabytes": memory,
        "median seconds of a look": statistics.median(seconds),
        **waits,
    }


class Server:
    """A running server and what clients do to it."""

    def __init__(self, process: subprocess.Popen[str], port: int, images: Path) -> None:
        self.process, self.port = process, port
        self.folder, self.names = images.name, sorted(path.name for path in images.iterdir())
        self.content = (images / self.names[0]).read_bytes()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Give status and content of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def post(self, path: str, body: Any) -> tuple[int, bytes]:
        """Send JSON."""
        return self.ask("POST", path, json.dumps(body), **{"Content-Type": "application/json"})

    def look(self, names: list[str]) -> tuple[int, bytes]:
        """Have a page made."""
        images = [f"{self.folder}/{name}" for name in names]
        return self.post("/api/looks", {"images": images, "models": [0], "size": SIZE})

    def request(self, work: tuple[int, str]) -> tuple[str, int, float]:
        """Do one request; gives its kind, the status and seconds."""
        number, kind = work
        name = random.Random(number).choice(self.names)
        begun = time.perf_counter()
        if kind == "look":
            status, content = self.look([name])
            last = json.loads(content.splitlines()[-1])
            status = self.ask("GET", f"/api/pages/{last['page']}")[0] if "page" in last else status
        elif kind == "folder":
            status, _ = self.ask("GET", f"/api/folder?address={self.folder}&start={number}")
        elif kind == "thumbnail":
            status, _ = self.ask("GET", f"/api/thumbnail?address={self.folder}/{name}")
        elif kind == "upload":
            status, _ = self.ask("POST", "/api/uploads", self.content, **{"X-Name": name})
        elif kind == "search":
            status, _ = self.post("/api/search", {"image": f"{self.folder}/{name}"})
        else:
            status, _ = self.ask("GET", f"/api/thumbnail?address={self.folder}/../secret.png")
        return kind, status, time.perf_counter() - begun

    def hostile(self, answers: Counter[str]) -> None:
        """Send 100 MB, in one piece and in parts, and an image that would need gigabytes."""
        whole = self._large(b"Content-Length: 100000000\r\n", b"")
        parts = self._large(b"Transfer-Encoding: chunked\r\n", b"100000\r\n")
        answers[f"100 MB, length given: {whole}"] += 1
        answers[f"100 MB, length not given: {parts}"] += 1
        answers[f"bomb image: {self.ask('POST', '/api/uploads', bomb())[0]}"] += 1

    def _large(self, header: bytes, before: bytes) -> str:
        head = b"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header + b"\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            try:
                connection.sendall(head)
                for _ in range(100):
                    connection.sendall(before + bytes(1 << 20) + (b"\r\n" if before else b""))
            except OSError:
                pass  # the server has hung up; its answer is there
            with contextlib.suppress(OSError):
                return connection.recv(100).split(b" ")[1].decode()
        return "closed"

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Keep a client that says nothing, and one that sends half of what it promised."""
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))
            half = stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))
            half.sendall(
                b"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
            )
            yield

    def memory(self) -> float:
        """Resident set of the server, in MB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
        return round(int(line.split()[1]) / 1024, 1)

    def fairness(self) -> dict[str, float]:
        """Time one image alone and beside a page of 24, and one batch of that page."""
        alone = [self._time(self.names[30 + i : 31 + i]) for i in range(5)]
        beside = []
        for number in range(3):
            page = threading.Thread(target=self.look, args=(self.names[:24],))
            begun = time.perf_counter()
            page.start()
            time.sleep(1.5)  # it is at work
            beside.append(self._time(self.names[40 + number : 41 + number]))
            page.join()
            whole = time.perf_counter() - begun
        return {
            "seconds, one image alone": statistics.median(alone),
            "seconds, one image beside 24": statistics.median(beside),
            "seconds of the page of 24": whole,
        }

    def _time(self, names: list[str]) -> float:
        begun = time.perf_counter()
        self.look(names)
        return time.perf_counter() - begun


@contextlib.contextmanager
def served(images: Path, folder: Path) -> Iterator[Server]:
    """Index a hundred images and run the command until it is no longer needed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    base = [sys.executable, "-m", "clearvit"]
    small = folder / "some"
    small.mkdir()
    for path in sorted(images.iterdir())[:100]:
        (small / path.name).symlink_to(path)
    line = [*base, "index", "demo", str(small), "--out", str(folder / "index"), "--size", "224"]
    subprocess.run(line, check=True, env=environment)
    line = [*base, "serve", "demo", "--images", str(images), "--index", str(folder / "index")]
    line += ["--port", "0", "--json", "--threads", "1", "--seconds", "10"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    try:
        server = Server(process, int(address.rstrip("/").rsplit(":", 1)[1]), images)
        while True:
            with contextlib.suppress(OSError):
                server.ask("GET", "/")
                break
            time.sleep(0.1)
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def bomb() -> bytes:
    """Give a small PNG that says it has 50,000 x 50,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


if __name__ == "__main__":
    main()
