import json
import subprocess
import sys

import pytest
import torch

from clearvit.backbones.load import load
from clearvit.errors import ClearvitError
from clearvit.shards.read import open_tokens
from tests.helpers.commands import clearvit, invoke
from tests.helpers.hostile import write_good, write_hostile


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    write_good(folder, 20)
    write_hostile(folder, 60)
    return folder


def test_sixty_hostile_files_among_twenty_good_ones(model, photos, tmp_path):
    done = clearvit("tokens", model, photos, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["images"] == 20
    assert len(result["skipped"]) == 60
    assert all(bad["reason"] for bad in result["skipped"])
    assert "60 files were skipped" in done.stderr
    store = open_tokens(tmp_path / "out")
    assert len(store) == 20
    assert store[:].patches.isfinite().all()


def test_strict_makes_a_hostile_file_an_error_without_traceback(model, photos, tmp_path):
    done = clearvit("tokens", model, photos, "--out", tmp_path / "out", "--strict")
    assert done.returncode == 1
    assert "error:" in done.stderr and "Traceback" not in done.stderr


def test_debug_shows_the_traceback(tmp_path):
    done = clearvit("--debug", "tokens", "demoo", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "Closest: demo" in done.stderr


def test_tokens_writes_what_the_backbone_computes(model, photos, tmp_path):
    out = tmp_path / "out"
    options = ["--size", "24x40", "--layers", "0,-1", "--dtype", "float32", "--no-norm"]
    done = invoke("tokens", model, photos, "--out", out, *options)
    assert done.exit_code == 0, done.output
    store = open_tokens(out)
    assert store.grid == (3, 5) and store.layers == (0, 2)
    expected = load(model).tokens(photos / store.names[3], size=(24, 40), norm=False)
    assert torch.allclose(store[3].patches, expected.patches, atol=1e-5)
    assert torch.allclose(store[3].registers, expected.registers, atol=1e-5)


def test_a_folder_without_a_readable_image_is_an_error(model, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(b"")
    assert invoke("tokens", model, tmp_path / "in", "--out", tmp_path / "out").exit_code == 1


def test_an_empty_folder_is_a_clear_error(model, tmp_path):
    (tmp_path / "in").mkdir()
    done = invoke("tokens", model, tmp_path / "in", "--out", tmp_path / "out")
    assert isinstance(done.exception, ClearvitError) and "no images" in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options", [["--size", "big"], ["--size", "0"], ["--layers", "a,b"], ["--dtype", "int8"]]
)
def test_wrong_options_are_usage_errors(model, photos, tmp_path, options):
    assert invoke("tokens", model, photos, "--out", tmp_path / "out", *options).exit_code == 2


def test_look_draws_one_picture_per_image(model, photos, tmp_path):
    good = [path for path in sorted(photos.iterdir()) if path.suffix == ".png"]
    readable = [path for path in good if _readable(path)][:2]
    done = invoke("look", model, *readable, "--out", tmp_path / "look", "--json")
    assert done.exit_code == 0, done.output
    images = json.loads(done.stdout)["images"]
    assert len(images) == 2
    for picture in images:
        with open(picture, "rb") as file:
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def _readable(path):
    from clearvit.images import read_image

    try:
        read_image(path)
    except ClearvitError:
        return False
    return True


@pytest.mark.parametrize("verb", ["tokens", "look"])
def test_help_teaches_with_an_example(verb):
    done = invoke(verb, "--help")
    assert done.exit_code == 0
    assert f"clearvit {verb} demo" in done.output


def test_version_and_import_cost():
    done = clearvit("--version")
    assert done.returncode == 0 and done.stdout.startswith("clearvit 0.")
    code = "import sys, clearvit.cli; print([m for m in ('torch', 'timm') if m in sys.modules])"
    quick = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert quick.stdout.strip() == "[]"


def test_every_public_name_exists():
    import clearvit as cv

    for name in cv.__all__:
        assert getattr(cv, name) is not None
    with pytest.raises(AttributeError, match="lod"):
        _ = cv.lod
