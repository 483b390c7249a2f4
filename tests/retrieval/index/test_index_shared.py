"""An index that several processes use at once, and filters that are wrong."""

import dataclasses
import json
import threading
from pathlib import Path

import pytest
import torch

from clearvit.backbones.load import load
from clearvit.errors import ClearvitError, StoreError
from clearvit.retrieval.image_features import FeatureSpec
from clearvit.retrieval.index import commits
from clearvit.retrieval.index import store as store_module
from clearvit.retrieval.index.index import Index
from tests.conftest import tiny_network
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")


@pytest.fixture
def small(tiny, tmp_path):
    photos = write_photos(tmp_path / "photos", 4, seed=5)
    return Index.build(tiny, photos, out=tmp_path / "index"), photos


@pytest.mark.parametrize(
    "where",
    [
        "width > 100 AN width > 1000000",
        "width > 100 garbage",
        "name = '000.png' , width > 9999999",
        "1=1; DROP TABLE images",
        "true) UNION SELECT (1",
        "1/0 = 1",
        "nothing = 1",
        "(width > 1",
        "name = 'x",
    ],
)
def test_a_filter_that_is_wrong_is_said_to_be_wrong(small, where):
    index, photos = small
    with pytest.raises(StoreError, match="the filter") as caught:
        index.search(photos / "dogs/0.png", where=where)
    assert "--overwrite" not in str(caught.value)
    assert len(index) == 4


def test_readers_see_the_old_index_until_the_new_one_is_whole(small, tiny, monkeypatch):
    index, photos = small
    where = index.store.location
    write_photos(photos, 6, seed=6)
    reader = Index.open(where, tiny)
    seen = []
    put = store_module.Store.put

    def watched(self, entries, features):
        seen.append((len(reader), len(reader.search(photos / "dogs/0.png", k=9))))
        put(self, entries, features)
        seen.append((len(reader), len(reader.search(photos / "dogs/0.png", k=9))))

    monkeypatch.setattr(store_module.Store, "put", watched)
    again = Index.build(tiny, photos, out=where, overwrite=True, commit=2, batch=2)
    assert set(seen) == {(4, 4)} and len(seen) >= 4
    assert len(again) == 6 and len(reader) == 6
    assert sorted(reader.search(photos / "dogs/0.png", k=9).names) == again.names
    assert again.store._database.list_tables().tables == ["images"]


def test_an_overwrite_that_was_killed_leaves_the_old_index_and_goes_on(small, tiny, monkeypatch):
    index, photos = small
    where = index.store.location
    write_photos(photos, 6, seed=6)
    place = store_module.Store.take_place
    monkeypatch.setattr(store_module.Store, "take_place", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Index.build(tiny, photos, out=where, overwrite=True)
    assert len(Index.open(where, tiny)) == 4
    monkeypatch.setattr(store_module.Store, "take_place", place)
    assert len(Index.build(tiny, photos, out=where, overwrite=True)) == 6
    assert len(Index.build(tiny, photos, out=where)) == 6


def test_searches_beside_an_overwrite_never_fail_and_are_never_empty(small, tiny):
    index, photos = small
    where, failures = index.store.location, []

    def rebuild():
        try:
            for _ in range(4):
                Index.build(tiny, photos, out=where, overwrite=True)
        except Exception as error:
            failures.append(error)

    writer = threading.Thread(target=rebuild)
    reader = Index.open(where, tiny)
    writer.start()
    count = 0
    while writer.is_alive():
        assert len(reader.search(photos / "dogs/0.png", k=9)) == 4
        count += 1
    writer.join()
    assert not failures and count > 3


@pytest.mark.parametrize("change", [{"grid": [0, 7]}, {"width": "x"}, {"extra": 1}, {"size": 5}])
def test_a_spec_of_a_stranger_is_checked(small, change):
    spec = dataclasses.asdict(small[0].spec)
    with pytest.raises(StoreError):
        FeatureSpec.from_json(json.dumps({**spec, **change}))


def test_what_two_writers_inserted_at_once_is_kept_once(small, tiny):
    """The soak found it: both merge into a table where the name is not there yet."""
    index, photos = small
    index.store._table.add(index.store._table.search().to_arrow())
    assert len(index) == 8
    again = Index.build(tiny, photos, out=index.store.location)
    assert len(again) == 4 and len(again.names) == 4
    assert len(again.search(photos / "dogs/0.png", k=9)) == 4


def test_a_writer_that_finds_the_table_just_begun_by_another_goes_on(small, tiny, monkeypatch):
    """Both saw no table; the second to make it must not fail."""
    index = small[0]
    where, opened = index.store.location, store_module.open_table
    seen = []  # the slower one looks before the other has made its table

    def late(*place):
        seen.append(place)
        return None if len(seen) == 1 else opened(*place)

    monkeypatch.setattr(store_module, "open_table", late)
    assert len(store_module.Store.create(where, index.spec, None)) == 4
    index.store.save_decision("a", "1")
    index.store.save_decision("a", "2")
    index.store.save_decision("b", "3")
    assert [index.store.load_decision(key) for key in "abc"] == ["2", "3", None]


def test_a_directory_with_a_line_break_in_its_name(small, tiny, tmp_path):
    with pytest.raises(StoreError, match="control character") as caught:
        Index.build(tiny, small[1], out=tmp_path / "a\nb")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_weights_that_give_no_descriptor_are_named(small, tmp_path, value):
    network = tiny_network()
    with torch.no_grad():
        for parameter in network.norm.parameters():
            parameter.fill_(value)
    with pytest.raises(ClearvitError, match="the weights are damaged"):
        Index.build(load(network), small[1], out=tmp_path / "damaged")


def leave_temporaries(index):
    """Leave what Lance leaves when its process is killed, and a file of somebody else."""
    table = Path(index.store.location) / "images.lance"
    left = [table / "data" / ".tmpAb12Cd", table / "_versions" / "7.manifest#1"]
    for path in left:
        path.write_bytes(b"half")
    (table / "data" / "notes.tmp").write_text("mine")
    commits.clean_once.cache_clear()  # as a new process would begin
    return left, table / "data" / "notes.tmp"


def test_the_next_run_removes_temporary_files_of_killed_ones(small, tiny):
    index, photos = small
    left, others = leave_temporaries(index)
    Index.build(tiny, photos, out=index.store.location)
    assert not any(path.exists() for path in left) and others.exists()
    assert len(index.search(photos / "dogs/0.png", k=9)) == 4


def test_temporary_files_stay_while_somebody_is_writing(small, tiny):
    index, photos = small
    left, _ = leave_temporaries(index)
    with commits.hold_directory(index.store.location):
        Index.build(tiny, photos, out=index.store.location)
    assert all(path.exists() for path in left)


def test_a_write_that_met_another_one_is_done_again(monkeypatch, tmp_path):
    monkeypatch.setattr(commits, "PAUSE", 0.0)
    seen = []

    def action():
        seen.append("write")
        if len(seen) < 6:
            raise RuntimeError("lance error: Retryable commit conflict for version 7")
        return "done"

    assert commits.write(str(tmp_path), action, lambda: seen.append("renew")) == "done"
    assert seen == ["write", "renew"] * 3 + ["write"]
    with pytest.raises(StoreError, match="disk is full"):
        commits.write(str(tmp_path), lambda: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(StoreError, match="conflict"):
        commits.write(str(tmp_path), lambda: (_ for _ in ()).throw(RuntimeError("conflict")))
