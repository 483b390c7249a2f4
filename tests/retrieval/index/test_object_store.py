"""An index on an object store: the same calls, a local server that speaks S3."""

import pytest
from PIL import Image

from clearvit.errors import StoreError
from clearvit.retrieval.index.index import Index
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")


def test_build_add_search_remove_and_open_again(tiny, bucket, tmp_path):
    photos = write_photos(tmp_path / "photos", 3)
    place = f"{bucket}/collections/holidays"
    index = Index.build(tiny, photos, out=place, batch=2, commit=2)
    assert len(index) == 3
    more = write_photos(tmp_path / "more", 1, seed=7)
    assert index.add(more, prefix="more/").added == ("more/dogs/0.png",)
    opened = Index.open(place, tiny)
    assert opened.names == index.names and len(opened) == 4
    hits = opened.search(more / "dogs/0.png", k=3, rerank=3, weight=0.5)
    assert hits.names[0] == "more/dogs/0.png"
    assert hits[0].explanation().score == pytest.approx(hits[0].score, abs=1e-3)
    opened.remove("more/dogs/0.png")
    assert len(index) == 3  # a reader that was open before sees it
    assert index.search(more / "dogs/0.png", k=1).names != ["more/dogs/0.png"]


@pytest.mark.slow
def test_build_again_refresh_and_remembered_decisions(tiny, bucket, tmp_path):
    photos = write_photos(tmp_path / "photos", 5)
    place = f"{bucket}/collections/holidays"
    with pytest.raises(StoreError, match="no index"):
        Index.open(place, tiny)
    index = Index.build(tiny, photos, out=place, batch=2, commit=2)
    assert Index.build(tiny, photos, out=place).changes.unchanged == 5
    assert "ranking by descriptors is kept" in index.search(photos / "cats/1.png", rerank=3).note
    (photos / "dogs/0.png").unlink()
    Image.new("RGB", (9, 9), "red").save(photos / "dogs/9.png")
    changes = index.refresh(photos)
    assert set(changes.added) == {"dogs/9.png"} and len(Index.open(place, tiny)) == 5


def test_options_can_be_given_instead_of_settings(tiny, bucket, endpoint, tmp_path, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    storage = {
        "endpoint": endpoint,
        "access_key_id": "test",
        "secret_access_key": "test",
        "region": "us-east-1",
        "allow_http": "true",
    }
    photos = write_photos(tmp_path / "photos", 2)
    index = Index.build(tiny, photos, out=f"{bucket}/two", storage=storage)
    assert len(Index.open(f"{bucket}/two", tiny, storage=storage)) == len(index) == 2


def test_a_store_that_is_not_there_is_one_sentence(tiny, bucket, tmp_path):
    photos = write_photos(tmp_path / "photos", 1)
    with pytest.raises(StoreError, match="missing"):
        Index.build(tiny, photos, out="s3://missing/index")
