"""The Hugging Face hub where it cannot be reached: one short question instead of many retries.

The hub library takes cached files by itself when there is no connection. For a file it does not
have it asks six times with pauses, half a minute per file, so we ask once before a first download.
"""

from __future__ import annotations

from pathlib import Path

from clearvit.errors import ModelError

TIMEOUT = 5.0  # seconds


def why_unreachable(repository: str) -> str:
    """Say why the hub gives no answer about a repository; empty if it gives any, even a refusal."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        get_hf_file_metadata(hf_hub_url(repository, "config.json"), timeout=TIMEOUT)
    except (HfHubHTTPError, HFValidationError):
        return ""
    except Exception as error:  # of the connection; which class depends on the hub's HTTP library
        return (str(error).splitlines() or [type(error).__name__])[0]
    return ""


def check_reachable(repository: str) -> None:
    """Raise at once if a repository is neither in the cache nor within reach."""
    from huggingface_hub import constants

    cached = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    if cached.is_dir():
        return
    if reason := why_unreachable(repository):
        raise ModelError(
            f"'{repository}' is not in the cache and the hub is out of reach: {reason}"
        )
