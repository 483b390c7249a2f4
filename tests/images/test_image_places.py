"""Images in tars, tables and buckets are listed, read and resumed like files."""

import functools
import http.server
import tarfile
import threading

import numpy as np
import pytest
from PIL import Image

import clearvit as cv
from clearvit.errors import ImageError
from clearvit.images import batches, find_images, listing_of, read_image
from clearvit.images.image_places import absolute_place, is_plain_file, read_place, split_place
from tests.helpers.made_photos import write_photos
from tests.helpers.place_files import contents, pixels, same_images, write_tar


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos", 6, seed=3)


def test_a_tar_holds_the_images_of_its_folder(photos, tmp_path):
    tar = write_tar(tmp_path / "a.tar", contents(photos), [("x.json", b"{}"), ("y.txt", b"no")])
    found = find_images(tar)
    assert [one.name for one in found] == [f"a.tar/{one.name}" for one in find_images(photos)]
    assert same_images(found, photos)
    assert pixels(find_images(found[2].source)[0]).shape == pixels(found[2]).shape


def test_shards_of_a_folder_a_pattern_a_range_and_a_list_are_the_same(photos, tmp_path):
    files = list(contents(photos).items())
    (tmp_path / "shards").mkdir()
    for number in range(3):
        part = dict(files[2 * number : 2 * number + 2])
        write_tar(tmp_path / "shards" / f"s-{number:03d}.tar", part)
    ways = (tmp_path / "shards", tmp_path / "shards/*.tar", tmp_path / "shards/s-{000..002}.tar")
    for way in ways:
        found = find_images(str(way))
        assert len(found) == 6 and same_images(found, photos)
    (tmp_path / "shards" / "own.png").write_bytes(files[0][1])
    assert [one.name for one in find_images(tmp_path / "shards")] == ["own.png"]


def test_broken_members_are_reported_and_the_rest_is_read(photos, tmp_path):
    files = contents(photos)
    bad = tmp_path / "bad"
    bad.mkdir()
    whole = write_tar(bad / "a.tar", files, [("broken.png", b"no image")]).read_bytes()
    second = 512 + -(-len(next(iter(files.values()))) // 512) * 512
    (bad / "b.tar").write_bytes(whole[:second] + b"\xff" * 512 + whole[second + 512 :])
    (bad / "c.tar").write_bytes(whole[: second + 700])
    (bad / "d.tar").write_bytes(b"this is no tar at all" * 99)
    names, skipped = [], []
    for batch in batches(find_images(tmp_path / "bad"), lambda image: image.size, size=4):
        names += batch.names
        skipped += batch.skipped
    assert {name for name in names if name.startswith("a.tar/")} == {f"a.tar/{n}" for n in files}
    assert len([name for name in names if name.startswith("b.tar/")]) == 1
    reasons = {one.name: one.reason for one in skipped}
    ends = {"a.tar/broken.png", *(f"{letter}.tar/(unreadable)" for letter in "bcd")}
    assert set(reasons) >= ends and all("\n" not in reason for reason in reasons.values())
    assert "damaged" in reasons["b.tar/(unreadable)"]
    with pytest.raises(ImageError, match="cannot be read"):
        find_images(bad / "d.tar")


def test_a_member_that_names_another_place_is_only_a_name(photos, tmp_path):
    content = next(iter(contents(photos).values()))
    tar = write_tar(tmp_path / "a.tar", {"../../etc/x.png": content, "/abs.png": content})
    with tarfile.open(tar, "a") as more:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        more.addfile(link)
    found = find_images(tar)
    assert len(found) == 2 and pixels(found[0]).shape == pixels(found[1]).shape
    with pytest.raises(ImageError, match="no such member"):
        read_place(f"{tar}::link.png")


def test_a_changed_tar_is_noticed(photos, tmp_path):
    files = contents(photos)
    tar = write_tar(tmp_path / "a.tar", files)
    before = listing_of(find_images(tar))
    assert listing_of(find_images(tar)) == before
    first, second = list(files)[:2]
    write_tar(tar, {**files, first: files[second]})
    found = find_images(tar)
    assert listing_of(found) != before
    assert np.array_equal(pixels(found[0]), pixels(found[1]))


def tables(photos, folder):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import ipc, parquet

    files = contents(photos)
    struct = [{"bytes": content, "path": name} for name, content in files.items()]
    table = pa.table({"label": list(range(len(files))), "image": struct})
    parquet.write_table(table, folder / "a.parquet", row_group_size=4)
    plain = pa.table({"name": list(files), "jpg": list(files.values())})
    with ipc.new_stream(folder / "b.arrow", plain.schema) as stream:
        stream.write_table(plain)
    (folder / "dataset").mkdir()
    with ipc.new_stream(folder / "dataset/data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    (folder / "dataset/dataset_info.json").write_text("{}")
    (folder / "dataset/cache-1.arrow").write_bytes(b"other")
    return {"a.parquet": plain, "b.arrow": plain, "dataset": plain}


def test_rows_of_tables_are_images(photos, tmp_path):
    for name in tables(photos, tmp_path):
        found = find_images(tmp_path / name)
        assert same_images(found, photos), name
        assert len({one.name for one in found}) == 6
    with pytest.raises(ImageError, match="no row 17"):
        read_image(f"{tmp_path / 'a.parquet'}::17")


def test_rows_of_lance_are_images(photos, tmp_path):
    lancedb = pytest.importorskip("lancedb")
    plain = tables(photos, tmp_path)["a.parquet"]
    lancedb.connect(tmp_path / "db").create_table("t", plain)
    for way in (tmp_path / "db" / "t.lance", tmp_path / "db", tmp_path / "db" / "*.lance"):
        assert same_images(find_images(way), photos)


def test_a_table_without_images_says_which_columns_it_has(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(ImageError, match="among a, b"):
        find_images(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"no table")
    with pytest.raises(ImageError, match="cannot be read"):
        find_images(tmp_path / "b.parquet")


def test_threads_read_one_table_without_mixing_rows(photos, tmp_path):
    tables(photos, tmp_path)
    found = find_images(tmp_path / "a.parquet") * 8
    expected = [pixels(one) for one in found]
    wrong = []

    def read(start):
        for number in range(start, len(found), 4):
            if not np.array_equal(pixels(found[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert split_place("a.tar::b/c.jpg") == ("a.tar", "b/c.jpg")
    assert split_place("a::b.jpg") == ("a::b.jpg", "")
    assert absolute_place("a.tar::b.jpg") == f"{tmp_path}/a.tar::b.jpg"
    assert absolute_place("s3://bucket/a.jpg") == "s3://bucket/a.jpg"
    assert not is_plain_file("s3://bucket/a.jpg") and is_plain_file("a::b.jpg")
    Image.new("RGB", (9, 9)).save("x.tar::y.png")
    assert is_plain_file("x.tar::y.png") and read_image("x.tar::y.png").size == (9, 9)
    with pytest.raises(ImageError, match=r"there is nothing at|cannot be"):
        find_images("memory://nowhere/at/all")


def test_a_url_of_fsspec_is_a_folder(photos):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name, content in contents(photos).items():
        memory.pipe(f"/photos/{name}", content)
    found = find_images("memory://photos")
    assert [one.name for one in found] == [one.name for one in find_images(photos)]
    assert same_images(found, photos)
    memory.pipe("/photos/dogs/0.png", b"broken")
    with pytest.raises(ImageError):
        read_image("memory://photos/dogs/0.png")


def test_patterns_and_ranges_of_urls(photos, tmp_path):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    files = list(contents(photos).items())
    for number in range(3):
        tar = write_tar(tmp_path / "a.tar", dict(files[2 * number : 2 * number + 2]))
        memory.pipe(f"/shards/s-{number:03d}.tar", tar.read_bytes())
    ways = ("memory://shards", "memory://shards/*.tar", "memory://shards/s-{000..002}.tar")
    for way in ways:
        found = find_images(way)
        assert len({one.name for one in found}) == 6 and same_images(found, photos)
    with pytest.raises(ImageError, match="there is nothing at"):
        find_images("memory://shards/*.parquet")


def test_a_web_server_is_a_folder(photos):
    pytest.importorskip("aiohttp")
    handler = functools.partial(Quiet, directory=str(photos.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/photos"
        assert same_images(find_images(f"{url}/"), photos)
        assert read_image(f"{url}/dogs/0.png").size == read_image(photos / "dogs/0.png").size
        with pytest.raises(ImageError, match="there is nothing at"):
            find_images(f"{url}/none.png")
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_what_cannot_be_listed_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(ImageError, match="more than"):
        find_images("x-{0..99999999999}.tar")
    (tmp_path / "a.tar.gz").write_bytes(b"packed")
    for path in (tmp_path, tmp_path / "a.tar.gz"):
        with pytest.raises(ImageError, match="unpack it"):
            find_images(path)
    memory = pytest.importorskip("fsspec").filesystem("memory")

    def refuse(*_, **__):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(type(memory), "find", refuse)
    with pytest.raises(ImageError, match="no permission; check the keys"):
        find_images("memory://secret/photos")


def test_a_row_that_names_a_file_does_not_read_it(photos, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": None, "path": str(photos / "dogs/0.png")}]
    table = pa.table({"image": rows}, schema=pa.schema([("image", kind)]))
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ImageError, match="not its bytes"):
        read_image(f"{tmp_path / 'a.parquet'}::0")


def test_tokens_and_index_of_a_tar_equal_those_of_the_folder(photos, tmp_path, tiny):
    pytest.importorskip("lancedb")
    tar = write_tar(tmp_path / "a.tar", contents(photos), [("bad.png", b"no")])
    for source, name in ((photos, "folder"), (tar, "tar")):
        cv.save_tokens(tiny, source, out=tmp_path / name, shard=2)
    one, other = (cv.open_tokens(tmp_path / name) for name in ("folder", "tar"))
    assert [f"a.tar/{key}" for key in one.names] == list(other.names)
    assert (one[:].patches == other[:].patches).all()
    index = cv.Index.build(tiny, tar, out=tmp_path / "index")
    assert len(index) == 6 and len(index.changes.skipped) == 1
    again = cv.Index.build(tiny, tar, out=tmp_path / "index")
    assert again.changes.unchanged == 6
    hits = again.search(photos / "dogs/0.png", k=1)
    hits[0].explain(tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 1000
