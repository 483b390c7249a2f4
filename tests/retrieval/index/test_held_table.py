import shutil

import pytest

from clearvit.retrieval.index import held_table
from clearvit.retrieval.index.index import Index
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")

SEARCHES = [{}, {"rerank": 5, "weight": 1.0}, {"region": (2, 2, 30, 30)}, {"k": 50}]


@pytest.fixture
def small(tiny, tmp_path):
    """An index of six photos that a test may change."""
    photos = write_photos(tmp_path / "photos", 6, seed=5)
    return Index.build(tiny, photos, out=tmp_path / "index"), photos


def is_held(index):
    return index.store._holder._held is not None


def search_often(index, photo, **options):
    """Search until the table is in memory; gives the last result."""
    for _ in range(3):
        hits = index.search(photo, **options)
    assert is_held(index)
    return hits


@pytest.mark.parametrize("options", SEARCHES)
def test_searches_in_memory_find_what_the_database_finds(small, monkeypatch, options):
    index, photos = small
    again = search_often(index, photos / "cats/1.png", **options)
    monkeypatch.setattr(held_table, "LARGEST", 0)
    other = Index.open(index.store.location, index.backbone)
    plain = [other.search(photos / "cats/1.png", **options) for _ in range(3)][-1]
    assert not is_held(other)
    assert again.names == plain.names
    assert [hit.entry for hit in again] == [hit.entry for hit in plain]
    assert [hit.score for hit in again] == pytest.approx([hit.score for hit in plain], abs=2e-3)


def test_a_single_search_does_not_read_the_whole_table(small):
    index, photos = small
    index.search(photos / "cats/1.png", rerank=5, weight=1.0)
    assert not is_held(index)


def test_what_another_process_adds_and_removes_is_seen(small, tiny, tmp_path):
    index, photos = small
    search_often(index, photos / "cats/1.png")
    more = write_photos(tmp_path / "more", 2, seed=9)
    other = Index.open(index.store.location, tiny)
    other.add(more, prefix="more/")
    added = next(name for name in other.names if name.startswith("more/"))
    found = search_often(index, more / added.removeprefix("more/"))
    assert found.names[0] == added
    other.remove(added)
    assert added not in index.search(photos / "cats/1.png", k=50).names


def test_an_index_that_was_deleted_and_made_again_is_read_again(small, tiny, tmp_path):
    index, photos = small
    search_often(index, photos / "cats/1.png")
    shutil.rmtree(index.store.location)
    other = write_photos(tmp_path / "other", 6, seed=11)
    (other / "cats").rename(other / "birds")
    Index.build(tiny, other, out=index.store.location)
    names = index.search(other / "birds/1.png", k=50).names
    assert names[0] == "birds/1.png" and not any(name.startswith("cats") for name in names)


def test_a_filter_is_never_answered_from_memory(small):
    index, photos = small
    search_often(index, photos / "cats/1.png")
    assert set(index.search(photos / "cats/1.png", where="label = 'dogs'").names) == {
        name for name in index.names if name.startswith("dogs/")
    }


def test_tables_in_a_bucket_are_not_held(small):
    store = small[0].store
    assert held_table.Holder("s3://bucket/index/images.lance", store.spec).find(None, list) is None
