import errno
import json
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from clearvit import files
from clearvit.errors import StoreError
from clearvit.files import (
    PART,
    check_place,
    check_replaceable,
    read_json,
    remove_leftovers,
    replace_file,
    replace_json,
    short_name,
    write_json,
    written_whole,
)
from clearvit.runs import claim, claim_files


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


def part_of(name, machine, pid, folder):
    part = folder / f".{name}.{machine}-{pid}-0123abcd.part"
    part.mkdir()
    (part / ".tmp3fWq").touch()  # of the library that wrote
    return part


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitpid(dead, 0)
    part_of("a.json", files._machine(), dead, tmp_path)
    living = part_of("a.json", files._machine(), os.getpid(), tmp_path)
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [living]


def test_parts_of_other_machines_stay_until_they_are_a_day_old(tmp_path):
    young, old = (part_of(name, "fedcba98", 1, tmp_path) for name in ("young", "old"))
    os.utime(old, (0, 0))
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [young]


@pytest.mark.parametrize("name", [".x.part", ".onnx.123.old.part", ".d.1.part", "a.part", ".part"])
def test_a_stray_part_of_somebody_else_is_left_alone(tmp_path, name):
    (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    write_json(tmp_path / "a.json", {})
    assert (tmp_path / name).exists()


def test_a_library_that_is_killed_while_it_writes_leaves_nothing_we_cannot_find(tmp_path):
    """Safetensors writes to a temporary file of its own, beside the one it was given."""
    pid = os.fork()
    if not pid:
        with written_whole(tmp_path / "model.safetensors") as temporary:
            (temporary.parent / ".tmp5e3m82").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (left,) = tmp_path.iterdir()
    assert PART.fullmatch(left.name)
    write_json(tmp_path / "other.json", {})  # whatever is written there next cleans up
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


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
    assert all(name == "a.safetensors" or PART.fullmatch(name) for name in seen)


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "place",
    ["file/a.json", "file/below/a.json", "loop/a.json", "x" * 300, "new/" + "y" * 300],
)
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for write in (lambda p: write_json(p, {}), check_place):
        with pytest.raises(StoreError, match=r"cannot be|no directory"):
            write(tmp_path / place)


def test_a_read_only_directory_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *arguments: False)  # root may write everywhere
    with pytest.raises(StoreError, match="permission"):
        check_place(tmp_path / "new" / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [full, SafetensorError("Io: os error 28")])
def test_a_disk_that_fills_up_is_one_sentence_and_leaves_nothing(tmp_path, error):
    with pytest.raises(StoreError, match="the disk is full"), written_whole(tmp_path / "a"):
        if isinstance(error, Exception):
            raise error
        error()
    assert not list(tmp_path.iterdir())


def test_the_longest_name_can_be_written(tmp_path):
    for letter in "xü":
        name = letter * (255 // len(letter.encode()))
        write_json(tmp_path / name, {})
        assert (tmp_path / name).exists()
    assert len(short_name("ü" * 250).encode()) <= 200
    assert short_name("a" * 250) != short_name("a" * 251) and short_name("a.png") == "a.png"


def test_only_files_with_our_mark_are_replaced(tmp_path):
    for name, content in {
        "mine.json": b'{"results": 1}',
        "photo.png": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "page.html": b"<html><head><title>clearvit</title>",
        "empty": b"",
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(StoreError, match="not written by clearvit"), replace_file(path) as new:
            new.write_text("ours")
        with pytest.raises(StoreError, match="not written by clearvit"):
            replace_json(path, {})
        assert path.read_bytes() == content
        replace_json(path, {"a": 1}, overwrite=True)
        replace_json(path, {"a": 2})  # which is ours now
        assert json.loads(path.read_text()) == {"made_by": "clearvit", "a": 2}
    with pytest.raises(StoreError):
        replace_json(tmp_path, {})


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "5", "\x00", '{"a": ' * 5000, ""])
def test_json_of_every_kind_is_one_sentence(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(StoreError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_json_that_is_a_pipe_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(StoreError, match="no regular file"):
        read_json(tmp_path / "a.json")


def test_a_place_below_a_file_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is no directory"):
        check_replaceable(tmp_path / "file" / "curve.png")
    check_replaceable(tmp_path / "new" / "curve.png")


@pytest.mark.parametrize("url", ["s3://bucket/out", "gs://bucket/a.json", "file:///tmp/a.json"])
def test_a_url_is_no_folder_of_this_machine(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    plan = {"kind": "tokens", "files": ()}
    for use in (
        check_place,
        check_replaceable,
        lambda p: write_json(p, {}),
        lambda p: claim(p, {}, **plan),
        lambda p: claim_files(p, ["a"], kind="cure"),
    ):
        with pytest.raises(StoreError, match="on this machine"):
            use(Path(url))
    assert not list(tmp_path.iterdir())
