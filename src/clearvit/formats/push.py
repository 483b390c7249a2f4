"""A saved model on the Hugging Face hub: its files, a card, and nothing else."""

from __future__ import annotations

import getpass
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearvit.errors import ModelError, OptionError
from clearvit.files import check_tensors, read_json, written_whole

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
# All that is ever uploaded; training state, targets and whatever else lies there stays at home.
FILES = (
    WEIGHTS,
    CONFIG,
    CARD,
    "clearvit.json",
    "cure.safetensors",
    "fine_head.safetensors",
    "preprocessor_config.json",
    "pruned.json",
    "predictors.safetensors",
    "fill.safetensors",
    "denoised.json",
)
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
TAG = "clearvit"


@dataclass(frozen=True)
class Pushed:
    """What was uploaded, or would have been."""

    url: str
    files: tuple[str, ...]
    dry_run: bool

    def __str__(self) -> str:
        word = "would upload" if self.dry_run else "uploaded"
        return f"{word} {', '.join(self.files)} to {self.url}"


def push(
    folder: str | Path,
    repository: str,
    *,
    private: bool = False,
    dry_run: bool = False,
    token: str | None = None,
) -> Pushed:
    """Upload a model that `cure`, `save` or `export` wrote to the Hugging Face hub.

    A directory without a model card gets one, which names its library and the tag `clearvit`;
    `timm.create_model("hf-hub:USER/NAME", pretrained=True)` then loads it.

    Args:
        folder: The directory.
        repository: `USER/NAME`; it is created if it does not exist.
        private: Create it so that nobody else can see it.
        dry_run: Say what would be uploaded, without any connection; nothing is written.
        token: Access token with permission to write; else the one that `hf auth login` keeps or
            HF_TOKEN names, and if there is none it is asked for at the terminal.
    """
    place = Path(folder)
    library = _library_of(place)
    if not REPOSITORY.fullmatch(repository):
        raise OptionError(f"'{repository}' is no repository; write USER/NAME.", "repository")
    card = _complete_card(place, repository, library)
    files = tuple(name for name in FILES if name == CARD or (place / name).is_file())
    from huggingface_hub import HfApi, constants

    url = f"{constants.ENDPOINT}/{repository}"
    if dry_run:
        return Pushed(url, files, dry_run=True)
    api = HfApi(token=token or _find_token())
    if card:
        with written_whole(place / CARD) as temporary:
            temporary.write_text(card, "utf-8")
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=place,
            allow_patterns=list(files),
            commit_message="Upload a model made with clearvit",
        )
    except Exception as error:  # of the connection or the hub; which class depends on its library
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"'{repository}' could not be uploaded: {reason}\nCheck the name, the connection and"
            " that the token may write (https://huggingface.co/settings/tokens)."
        ) from error
    return Pushed(url, files, dry_run=False)


def _library_of(folder: Path) -> str:
    """Tell which library loads a directory; what cannot be loaded is not uploaded."""
    if not os.path.isfile(folder / WEIGHTS):  # which is False for any name that cannot exist
        raise ModelError(f"'{folder}' holds no model: {WEIGHTS} is missing.")
    check_tensors(folder / WEIGHTS, ModelError)
    if not (folder / CONFIG).is_file():
        return TAG  # an edit that timm cannot run; clearvit loads it
    content = read_json(folder / CONFIG, ModelError)
    return "transformers" if "model_type" in content else "timm"


def _complete_card(folder: Path, repository: str, library: str) -> str:
    """Give the text of a missing card, or one that lacks what the hub reads; else ""."""
    path = folder / CARD
    text = _text(repository, library)
    if path.is_file():
        text = path.read_text("utf-8", errors="replace")
    if text.startswith("---\n"):
        return ""
    head = ["---", f"library_name: {library}", "pipeline_tag: image-feature-extraction", "tags:"]
    tags = ("image-feature-extraction", "vision-transformer", TAG)
    return "\n".join([*head, *(f"- {tag}" for tag in tags), "---", "", text])


def _text(repository: str, library: str) -> str:
    loading = {
        "timm": f"import timm\n\nnetwork = timm.create_model({f'hf-hub:{repository}'!r},"
        " pretrained=True)",
        "transformers": "from transformers import AutoModel\n\n"
        f"model = AutoModel.from_pretrained({repository!r})",
    }.get(library, "# download the directory, then\nimport clearvit as cv\n\ncv.load('dir:PATH')")
    return (
        f"# {repository.partition('/')[2]}\n\nA Vision Transformer, saved by clearvit.\n\n"
        f"```python\n{loading}\n```\n\nThe weights stay under the license of the model they derive"
        " from.\n"
    )


def _find_token() -> str:
    from huggingface_hub import get_token

    known: Any = get_token()
    if known:
        return str(known)
    if sys.stdin.isatty():
        typed = getpass.getpass("Hugging Face access token (it is not shown): ").strip()
        if typed:
            return typed
    raise OptionError(
        "uploading needs an access token of the hub: run 'hf auth login' once, set HF_TOKEN, or"
        " pass token=.",
        "token",
    )
