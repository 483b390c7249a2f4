"""Images in a bucket: the same calls, a local server that speaks S3."""

import pytest

import clearvit as cv
from clearvit.errors import ImageError
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
