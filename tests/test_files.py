import json
import os
import signal
import threading

import pytest
import torch
from safetensors.torch import save_file

from clearvit.files import remove_leftovers, write_json, written_whole


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path):
    write_json(tmp_path / "a.json", {"old": True})
    with pytest.raises(RuntimeError), written_whole(tmp_path / "a.json") as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": True}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_the_name_appears_only_with_the_whole_content(tmp_path):
    with written_whole(tmp_path / "new" / "a.txt") as temporary:
        temporary.write_text("all")
        assert not (tmp_path / "new" / "a.txt").exists()
    assert (tmp_path / "new" / "a.txt").read_text() == "all"


def test_others_may_read_what_the_umask_lets_them(tmp_path):
    (tmp_path / "plain").touch()
    with written_whole(tmp_path / "model.safetensors") as temporary:
        save_file({"a": torch.zeros(1)}, temporary)
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitpid(dead, 0)
    for pid in (dead, os.getpid()):
        (tmp_path / f".a.json.{pid}.part").mkdir()
        (tmp_path / f".a.json.{pid}.part" / ".tmp3fWq").touch()  # of the library that wrote
    (tmp_path / f".b.json.{dead}.part").touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f".a.json.{os.getpid()}.part"]


def test_a_library_that_is_killed_while_it_writes_leaves_nothing_we_cannot_find(tmp_path):
    """Safetensors writes to a temporary file of its own, beside the one it was given."""
    pid = os.fork()
    if not pid:
        with written_whole(tmp_path / "model.safetensors") as temporary:
            (temporary.parent / ".tmp5e3m82").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert [path.name for path in tmp_path.iterdir()] == [f".model.safetensors.{pid}.part"]
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_safetensors_puts_nothing_beside_our_temporary_directory(tmp_path):
    seen, done = set(), threading.Event()

    def watch():
        while not done.is_set():
            seen.update(path.name for path in tmp_path.iterdir())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with written_whole(tmp_path / "a.safetensors") as temporary:
        save_file({"a": torch.zeros(10_000_000)}, temporary)
    done.set()
    watcher.join()
    assert seen <= {f".a.safetensors.{os.getpid()}.part", "a.safetensors"}
