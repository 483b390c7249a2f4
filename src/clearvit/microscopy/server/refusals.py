"""Requests that are not done, each with a status of HTTP and one sentence for the page."""

from __future__ import annotations

from clearvit.errors import ClearvitError


class Refused(ClearvitError):
    """A request that the server does not do; the message is shown in the page."""

    status = 400


class NotFound(Refused):
    """What was asked for is not there, or not in the folders that are served."""

    status = 404


class TooLarge(Refused):
    """More bytes than the server takes."""

    status = 413


class TooBusy(Refused):
    """More requests than the server does at once."""

    status = 503


class TooSlow(Refused):
    """A client that sent nothing for a while."""

    status = 408
