"""The model hub, where there is one."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

TIMEOUT = 5.0  # seconds; a machine without a hub should lose no more


def unreachable(url: str) -> str:
    """Say why an address cannot be reached; empty if it can, whatever it answers."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        urllib.request.urlopen(request, timeout=TIMEOUT).close()
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if not isinstance(reason, ssl.SSLError):  # the hub library may know other certificates
            return str(reason) or type(reason).__name__
    return ""


@contextmanager
def cached_if_offline() -> Iterator[None]:
    """Let the hub library use its cache only while the hub cannot be reached.

    Left alone, it asks five times and waits in between, up to a minute for one model.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or not unreachable(constants.ENDPOINT):
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False
