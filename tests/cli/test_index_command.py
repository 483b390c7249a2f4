import json
import shlex

import pytest
from typer.testing import CliRunner

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.cli import app
from clearvit.errors import ImageError, ModelError, StoreError
from tests.conftest import tiny_network
from tests.helpers.hostile import write_good, write_hostile
from tests.helpers.place_files import write_tar

pytest.importorskip("lancedb")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, photos and an index of them."""
    folder = tmp_path_factory.mktemp("search")
    save(load(tiny_network()), folder / "model")
    write_good(folder / "photos", 6)
    write_hostile(folder / "photos", 5)
    done = invoke(
        "index", f"dir:{folder / 'model'}", folder / "photos", "--out", folder / "index", "--json"
    )
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["images"] == summary["added"] == 6 and len(summary["skipped"]) == 5
    assert not summary["moved"] and not summary["unchanged"]
    return folder


def by(place):
    """The user's word for the model; the index's own is not enough."""
    return "--model", f"dir:{place / 'model'}"


def a_photo(place):
    from clearvit.retrieval.index.index import Index

    return Index.open(place / "index").names[0]


def test_an_index_does_not_decide_which_model_is_loaded(place, monkeypatch):
    monkeypatch.setattr("clearvit.backbones.load.load", lambda *a, **o: pytest.fail("loaded"))
    done = invoke("search", place / "index", place / "photos" / a_photo(place))
    assert isinstance(done.exception, ModelError) and "--model dir:" in str(done.exception)


@pytest.mark.parametrize(
    "name",
    ["timm:hf-hub:evil/x", "timm:local-dir:/x", "hf:evil/x", "dir:x", "onnx:x", "openclip:ViT/x"],
)
def test_names_of_strangers_are_not_wellknown(name):
    from clearvit.retrieval.index.query_model import is_wellknown

    assert not is_wellknown(name)
    assert is_wellknown("demo") and is_wellknown("timm:vit_small_patch14_dinov2.lvd142m")


def test_the_photo_is_found_and_explained(place, tmp_path):
    name = a_photo(place)
    query = place / "photos" / name
    done = invoke("search", place / "index", query, "--k", 3, "--rerank", 5, "--json", *by(place))
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)
    assert result["hits"][0]["name"] == name and len(result["hits"]) == 3
    assert "ranking by descriptors is kept" in result["note"]
    page = tmp_path / "why.html"
    options = ("--weight", 0.5, "--rerank", 5, "--method", "mutual", "--out", page, *by(place))
    done = invoke("search", place / "index", query, *options)
    assert done.exit_code == 0 and "1\t" in done.stdout and page.exists()


def test_several_queries_and_a_filter(place):
    queries = [place / "photos" / a_photo(place)] * 2
    done = invoke("search", place / "index", *queries, "--where", "bytes < 0", "--json", *by(place))
    assert [result["hits"] for result in json.loads(done.stdout)] == [[], []]


def test_explain_draws_and_gives_numbers(place, tmp_path):
    name = a_photo(place)
    query, out = place / "photos" / name, tmp_path / "why.png"
    done = invoke("explain", place / "index", query, name, "--out", out, "--json", *by(place))
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (
        out.exists()
        and result["found"]
        and result["parts"]
        and result["lines"]
        and result["global_similarity"] == pytest.approx(1, abs=1e-3)
    )


def test_a_second_run_refreshes(place):
    model = f"dir:{place / 'model'}"
    (extra,) = write_good(place / "more", 1)
    target = place / "photos" / f"extra{extra.suffix}"
    target.write_bytes(extra.read_bytes())
    run = ("index", model, place / "photos", "--out", place / "index", "--json")
    assert json.loads(invoke(*run).stdout)["added"] == 1
    target.unlink()
    result = json.loads(invoke(*run, "--refresh").stdout)
    assert result["removed"] == 1 and result["images"] == 6


def test_mistakes_are_errors_a_user_can_mend(place, tmp_path):
    name = a_photo(place)
    done = invoke("search", tmp_path / "nothing", place / "photos" / name)
    assert isinstance(done.exception, StoreError)
    done = invoke("search", place / "index", tmp_path / "missing.jpg")
    assert isinstance(done.exception, ImageError)
    done = invoke("explain", place / "index", place / "photos" / name, "unknown.jpg")
    assert isinstance(done.exception, StoreError)
    (tmp_path / "empty").mkdir()
    done = invoke("index", "demo", tmp_path / "empty", "--out", tmp_path / "index")
    assert isinstance(done.exception, ImageError)


def test_a_region_is_searched_and_drawn(place, tmp_path):
    photo, page = place / "photos" / a_photo(place), tmp_path / "parts.html"
    region = ("--region", "0,0,16,12")
    done = invoke("search", place / "index", photo, *by(place), *region, "--json", "--out", page)
    assert done.exit_code == 0, done.output
    hits = json.loads(done.stdout)[0]["hits"]
    assert all(len(hit["box"]) == 4 for hit in hits) and page.stat().st_size > 10_000
    done = invoke("search", place / "index", photo, *by(place), "--region", "0,0,16")
    assert done.exit_code == 2 and "four" in done.output
    done = invoke("search", place / "index", photo, *by(place), "--region", "0,0,9000,90")
    assert isinstance(done.exception, ImageError) and "pixels" in str(done.exception)


def pasted(done):
    """Run the command after "next:", as a user does who pastes it."""
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("next: clearvit ")
    return invoke(*shlex.split(last)[2:])


def test_the_next_command_of_a_tar_can_be_pasted(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the last one writes why.png
    name = a_photo(place)
    good = {name: (place / "photos" / name).read_bytes()}
    tar = write_tar(tmp_path / "my shard.tar", {"0-broken.png": b"no image", **good})
    done = invoke("index", f"dir:{place / 'model'}", tar, "--out", tmp_path / "index")
    assert done.exit_code == 0, done.output
    done = pasted(done)
    assert done.exit_code == 0 and "1\t1.0000" in done.stdout, done.output
    assert pasted(done).exit_code == 0 and (tmp_path / "why.png").exists()


@pytest.mark.parametrize("verb", ["index", "tokens"])
def test_an_error_is_not_followed_by_a_next_command(place, tmp_path, verb):
    for name in "ab":
        (tmp_path / f"{name}.tar").write_bytes(b"no tar at all" * 100)
    done = invoke(verb, f"dir:{place / 'model'}", tmp_path, "--out", tmp_path / "out")
    assert done.exit_code == 1 and "no image could be read" in done.stderr
    assert "next:" not in done.stderr


def test_tokens_do_not_go_to_a_folder_named_like_a_bucket(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, photos = f"dir:{place / 'model'}", place / "photos"
    done = invoke("tokens", model, photos, "--out", "s3://bucket/tokens")
    assert isinstance(done.exception, StoreError) and "s3://bucket/tokens" in str(done.exception)
    assert not list(tmp_path.iterdir())
