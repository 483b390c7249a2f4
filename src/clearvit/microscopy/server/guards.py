"""What every request passes: the right host, one's own pages only, and nobody who hangs."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from clearvit.microscopy.server.refusals import TooSlow

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


class Guard:
    """Wraps an ASGI application.

    A page of another site cannot use the server: its name in the header "Host" (after its DNS entry
    was turned to this machine) or in the header "Origin" gives it away. A client that sends or
    takes nothing for `seconds` is let go.
    """

    def __init__(self, app: App, *, host: str, seconds: float) -> None:
        self.app, self.host, self.seconds = app, host, seconds

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        problem = self._problem(headers)
        if problem:
            return await _refuse(send, problem)
        guarded = _Guarded(receive, send, self.seconds)
        await self.app(scope, guarded.receive, guarded.send)

    def _problem(self, headers: dict[str, str]) -> str:
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname or ""
        if not (name in ("localhost", self.host) or _is_address(name)):
            return "this server answers to its address only, not to other names."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "this server answers to its own pages only."
        return ""


class _Guarded:
    """One request whose every step has to come in time."""

    def __init__(self, receive: Receive, send: Send, seconds: float) -> None:
        self._receive, self._send, self.seconds = receive, send, seconds
        self._whole = False  # the body has arrived; from then on only a disconnect can come

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self.seconds)
        except asyncio.TimeoutError:
            raise TooSlow(f"nothing arrived for {self.seconds:g} seconds.") from None
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        try:
            await asyncio.wait_for(self._send(message), self.seconds)
        except asyncio.TimeoutError as error:
            raise ConnectionAbortedError("the client takes nothing any more") from error


def _is_address(name: str) -> bool:
    """Tell whether a host is a number, which no DNS entry can turn."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(send: Send, sentence: str) -> None:
    content = f'{{"error": "{sentence}"}}'.encode()
    headers = [(b"content-type", b"application/json"), *HEADERS]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": content})
