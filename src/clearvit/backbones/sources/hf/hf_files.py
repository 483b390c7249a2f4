"""The files of a Hugging Face model, from a local directory or the hub. No pickle is ever read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors as hub_errors
from torch import Tensor

from clearvit.backbones.sources.hub import why_unreachable
from clearvit.errors import ModelError, StoreError
from clearvit.files import read_json, read_tensors

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Files:
    """A local directory, or a repository of the hub at some revision."""

    name: str
    folder: Path | None = None
    revision: str | None = None

    def find(self, filename: str) -> Path | None:
        """Give the local path of a file, downloading it if need be; None if there is none."""
        if self.folder is not None:
            path = self.folder / filename
            return path if path.is_file() else None
        try:
            known = huggingface_hub.try_to_load_from_cache(
                self.name, filename, revision=self.revision
            )
            if known is None and (reason := why_unreachable(self.name)):
                raise hub_errors.LocalEntryNotFoundError(reason)
            found = huggingface_hub.hf_hub_download(self.name, filename, revision=self.revision)
        except hub_errors.GatedRepoError as error:
            raise ModelError(
                f"'{self.name}' is gated: accept its terms on huggingface.co, then run"
                " 'hf auth login'."
            ) from error
        except hub_errors.RevisionNotFoundError as error:
            raise ModelError(f"'{self.name}' has no revision '{self.revision}'.") from error
        except (hub_errors.RepositoryNotFoundError, hub_errors.HFValidationError) as error:
            raise ModelError(
                f"the hub has no model '{self.name}'. Check the id (OWNER/NAME), or give a local"
                " directory."
            ) from error
        except hub_errors.LocalEntryNotFoundError as error:
            # Offline: some files may be in the cache, and only config.json is in every model.
            if filename != "config.json":
                return None
            raise ModelError(self._unreachable(error)) from error
        except hub_errors.EntryNotFoundError:
            return None
        except OSError as error:  # whatever else the connection raises
            raise ModelError(self._unreachable(error)) from error
        return Path(found)

    def _unreachable(self, error: Exception) -> str:
        return (
            f"cannot fetch '{self.name}' from the hub ({type(error).__name__}). Check the id and"
            " the connection, give a local directory, or start with the model 'demo'."
        )

    def json(self, filename: str) -> Mapping[str, Any] | None:
        """Read a JSON object; None if there is no such file."""
        path = self.find(filename)
        if path is None:
            return None
        try:
            return read_json(path)
        except StoreError as error:
            raise ModelError(f"'{filename}' of '{self.name}' is malformed: {error}.") from error

    def weights(self) -> dict[str, Tensor]:
        """Read every tensor, half precision as float32."""
        state: dict[str, Tensor] = {}
        for path in self._shards():
            try:
                state |= read_tensors(path)
            except StoreError as error:
                raise ModelError(f"{error}. The file is damaged; download it again.") from error
        return {key: t.float() if t.is_floating_point() else t for key, t in state.items()}

    def _shards(self) -> list[Path]:
        whole = self.find(WEIGHTS)
        if whole is not None:
            return [whole]
        index = self.json(INDEX)
        if index is None:
            raise ModelError(self._no_weights())
        listed = index.get("weight_map")
        parts = sorted({str(part) for part in listed.values()}) if isinstance(listed, dict) else []
        paths = {part: self.find(part) for part in parts if Path(part).name == part}
        lost = [part for part in parts if paths.get(part) is None]
        if lost or not parts:
            raise ModelError(f"'{self.name}' lacks {', '.join(lost) or 'a weight_map'} ({INDEX}).")
        return [path for path in paths.values() if path is not None]

    def _no_weights(self) -> str:
        if any(self.find(pickle) for pickle in PICKLES):
            return (
                f"'{self.name}' has only pickled weights (.bin), which can run any code, so"
                " clearvit never loads them. Convert them: in transformers,"
                " Model.from_pretrained(...).save_pretrained(DIR) writes safetensors."
            )
        return f"'{self.name}' has no {WEIGHTS}; check that the download is complete."


def files_of(name: str) -> Files:
    """Tell a local directory from an id of the hub, which may end in @REVISION."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return Files(name, folder)
    repository, _, revision = name.partition("@")
    if name.startswith((".", "/", "~")) or repository.count("/") > 1:
        raise ModelError(f"the directory '{name}' does not exist.")
    return Files(repository, revision=revision or None)
