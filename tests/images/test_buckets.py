"""Images in a bucket: the same calls, a local server that speaks S3."""

import http.server
import threading

import pytest

import clearvit as cv
from clearvit.errors import ImageError, StoreError
from clearvit.images import find_images, listing_of, read_image
from tests.helpers.made_photos import write_photos
from tests.helpers.place_files import contents, same_images, write_tar

pytest.importorskip("pyarrow")


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos", 6, seed=3)


@pytest.fixture
def filled(bucket, photos):
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", region_name="us-east-1")
    for name, content in contents(photos).items():
        client.put_object(Bucket="photos", Key=f"all/{name}", Body=content)
    tar = write_tar(photos.parent / "a.tar", contents(photos), [("bad.png", b"no")])
    client.put_object(Bucket="photos", Key="shards/a.tar", Body=tar.read_bytes())
    return client, bucket


def test_a_bucket_is_a_folder(filled, photos):
    client, url = filled
    found = find_images(f"{url}/all")
    assert [one.name for one in found] == [one.name for one in find_images(photos)]
    assert same_images(found, photos)
    before = listing_of(found)
    client.put_object(Bucket="photos", Key=f"all/{found[0].name}", Body=b"other")
    assert listing_of(find_images(f"{url}/all")) != before
    with pytest.raises(ImageError):
        read_image(f"{url}/all/{found[0].name}")


def test_tokens_of_a_bucket_resume_and_equal_those_of_the_folder(filled, photos, tiny, tmp_path):
    url = filled[1]
    for source, name in ((photos, "folder"), (f"{url}/shards", "bucket")):
        cv.save_tokens(tiny, source, out=tmp_path / name, shard=2)
    kept = sorted((tmp_path / "bucket").glob("shard-*"))
    content = kept[-1].read_bytes()
    kept[-1].unlink()
    (tmp_path / "bucket" / "index.json").unlink()
    cv.save_tokens(tiny, f"{url}/shards", out=tmp_path / "bucket", shard=2)
    assert kept[-1].read_bytes() == content
    one, other = (cv.open_tokens(tmp_path / name) for name in ("folder", "bucket"))
    assert (one[:].patches == other[:].patches).all() and len(other.skipped) == 1


def test_tables_in_a_bucket_are_images(filled, photos, tiny, tmp_path):
    pa, lancedb = pytest.importorskip("pyarrow"), pytest.importorskip("lancedb")
    from pyarrow import parquet

    client, url = filled
    table = pa.table({"jpg": [*contents(photos).values(), b"broken"]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    client.upload_file(str(tmp_path / "a.parquet"), "photos", "tables/a.parquet")
    lancedb.connect(f"{url}/lance").create_table("b", table)
    expected = cv.Index.build(tiny, photos, out=tmp_path / "folder")
    wanted = [entry.name for entry in expected.store.fetch(expected.names).entries]
    for place, name in (
        ("tables", "a.parquet"),
        ("lance", "b.lance"),
        ("lance/b.lance", "b.lance"),
    ):
        out = tmp_path / place.replace("/", "-")
        index = cv.Index.build(tiny, f"{url}/{place}", out=out, commit=2, batch=2)
        assert [bad.name for bad in index.changes.skipped] == [f"{name}/00000006"]
        hits = index.search([photos / one for one in wanted], k=1)
        assert [hit.names for hit in hits] == [[f"{name}/{row:08d}"] for row in range(6)]
        assert cv.Index.build(tiny, f"{url}/{place}", out=out).changes.unchanged == 6


@pytest.mark.slow
def test_a_cure_of_a_bucket_goes_on_and_equals_that_of_the_folder(filled, photos, tiny, tmp_path):
    options = {"views": 4, "epochs": 2, "batch": 2, "registers": 1, "precision": "no", "lr": 1e-3}
    options["keep_anyway"] = True
    shards = f"{filled[1]}/shards"

    def stop(stage, done, total, note=""):
        if stage.startswith("train") and done >= total // 2:
            raise InterruptedError(stage)

    with pytest.raises(InterruptedError):
        cv.cure(tiny, shards, out=tmp_path / "bucket", progress=stop, **options)
    cv.cure(tiny, shards, out=tmp_path / "bucket", **options)
    cv.cure(tiny, photos, out=tmp_path / "folder", **options)
    weights = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("folder", "bucket")]
    assert weights[0] == weights[1]  # the same images in the same order; the bad member is skipped
    with pytest.raises(StoreError, match="images"):
        cv.cure(tiny, f"{filled[1]}/all", out=tmp_path / "bucket", **options)


@pytest.mark.parametrize("path", ["nothing/here", "all/none.tar"])
def test_what_is_not_there_is_one_sentence(filled, path):
    with pytest.raises(ImageError) as caught:
        find_images(f"{filled[1]}/{path}")
    assert "\n" not in str(caught.value)


def test_a_bucket_that_is_not_there(filled):
    with pytest.raises(ImageError, match="no-such-bucket"):
        find_images("s3://no-such-bucket-at-all/x")


def test_an_index_of_a_bucket_draws_only_what_lies_in_a_store_the_user_named(
    filled, photos, tiny, tmp_path
):
    pytest.importorskip("lancedb")
    url = filled[1]
    index = cv.Index.build(tiny, f"{url}/all", out=tmp_path / "index")
    assert len(index) == 6
    assert cv.Index.build(tiny, f"{url}/all", out=tmp_path / "index").changes.unchanged == 6
    name = index.names[0]
    with pytest.raises(ImageError, match="same bucket"):
        index.search(photos / name, k=1)[0].explain(tmp_path / "why.png")
    index.search(f"{url}/all/{name}", k=1)[0].explain(tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 1000


class Refusing(http.server.BaseHTTPRequestHandler):
    """A store that lets nobody in."""

    def do_GET(self):
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_GET

    def log_message(self, *_):
        pass


def test_a_bucket_without_rights_is_one_sentence_and_not_called_empty(bucket, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for path in ("all", "all/*.jpg", "a.tar"):
            with pytest.raises(ImageError, match="no permission") as caught:
                find_images(f"s3://secret/{path}")
            assert str(caught.value).count("cannot be read") <= 1
        with pytest.raises(StoreError, match=r"refuses access; check the keys") as refused:
            cv.Index.open("s3://secret/index")
        assert len(str(refused.value)) < 200
        server.shutdown()
