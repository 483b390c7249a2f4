"""Nobody's files are lost: every verb leaves alone what it did not write."""

import json

import pytest
from PIL import Image

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.errors import StoreError
from tests.conftest import tiny_network
from tests.helpers.commands import invoke
from tests.helpers.made_training import paint

CURE = ("--views", 2, "--epochs", 1, "--batch", 2, "--registers", 1, "--keep-anyway")
SEGMENT = ("--method", "prototypes", "--scale", 1, "--refine", "none")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A saved model and a few images."""
    folder = tmp_path_factory.mktemp("place")
    save(load(tiny_network()), folder / "model")
    paint(folder / "images", 6)
    for name in ("images", "masks"):
        (folder / "examples" / name).mkdir(parents=True)
    with Image.open(folder / "images" / "00.png") as image:
        image.save(folder / "examples" / "images" / "a.png")
        halves = Image.new("L", image.size)
        halves.paste(1, (0, 0, image.width // 2, image.height))
        halves.save(folder / "examples" / "masks" / "a.png")
    return folder


@pytest.fixture
def mine(tmp_path):
    """A directory of somebody, with names that clearvit uses too."""
    folder = tmp_path / "mine"
    (folder / "training").mkdir(parents=True)
    for name in ("plan.json", "index.json", "config.json", "runtime.json", "training/run.json"):
        (folder / name).write_text('{"mine": true}')
    for name in ("README.md", "model.safetensors", "shard-00000.safetensors", "000000.safetensors"):
        (folder / name).write_text("mine")
    return folder


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(done):
    assert isinstance(done.exception, StoreError), (done.exception, done.output)


VERBS = {
    "tokens": ("tokens", "{model}", "{images}"),
    "cure": ("cure", "{model}", "{images}", *CURE),
    "cure without training": ("cure", "{model}", "{images}", "--method", "positional"),
    "prune": ("prune", "{model}"),
    "prune with images": ("prune", "{model}", "{images}", "--batch", 2),
    "export timm": ("export", "{model}", "--format", "timm"),
    "export hf": ("export", "{model}", "--format", "hf"),
    "export onnx": ("export", "{model}", "--format", "onnx"),
    "segment": ("segment", "{model}", "{images}", "--examples", "{examples}", *SEGMENT),
    "index": ("index", "{model}", "{images}"),
}
OVERWRITES = ("tokens", "cure", "prune with images", "segment", "index")


def words_of(verb, place):
    """The command line of a verb, without its output."""
    known = {"images": place / "images", "examples": place / "examples"}
    return [str(word).format(model=f"dir:{place / 'model'}", **known) for word in VERBS[verb]]


@pytest.mark.parametrize("verb", VERBS)
def test_a_directory_of_somebody_is_refused_and_stays(place, mine, verb):
    words = words_of(verb, place)
    before = contents(mine)
    for more in ((), ("--overwrite",)) if verb in OVERWRITES else ((),):
        refused(invoke(*words, "--out", mine, *more))
        assert contents(mine) == before


def test_targets_of_somebody_are_refused_and_stay(place, mine, tmp_path):
    before = contents(mine)
    done = invoke(
        "cure", f"dir:{place / 'model'}", place / "images", *CURE,
        *("--out", tmp_path / "cured", "--targets-dir", mine, "--overwrite"),
    )  # fmt: skip
    refused(done)
    assert contents(mine) == before


@pytest.fixture(scope="module")
def cured(place):
    """A finished cure."""
    done = invoke(
        "cure", f"dir:{place / 'model'}", place / "images", *CURE, "--out", place / "cured"
    )
    assert done.exit_code == 0, (done.exception, done.output)
    return place / "cured"


@pytest.mark.parametrize(
    "verb", ["prune", "export timm", "export hf", "export onnx", "tokens", "segment", "index"]
)
def test_a_finished_result_is_not_replaced_by_another_verb(place, cured, verb):
    words = words_of(verb, place)
    before = contents(cured)
    refused(invoke(*words, "--out", cured))
    assert contents(cured) == before


def test_a_cure_notices_that_the_model_is_not_the_one_it_wrote(place, cured):
    again = ("cure", f"dir:{place / 'model'}", place / "images", *CURE, "--out", cured)
    assert invoke(*again).exit_code == 0
    weights = cured / "model.safetensors"
    ours = weights.read_bytes()
    weights.write_bytes((place / "model" / "model.safetensors").read_bytes())
    refused(invoke(*again))
    weights.unlink()  # moved away, as the message says
    assert invoke(*again).exit_code == 0
    assert weights.read_bytes() == ours


def test_a_verb_may_replace_its_own(place, tmp_path):
    for _ in range(2):
        for format in ("timm", "onnx"):
            out = tmp_path / format
            done = invoke("export", f"dir:{place / 'model'}", "--format", format, "--out", out)
            assert done.exit_code == 0, (done.exception, done.output)
    (tmp_path / "onnx" / "notes.txt").write_text("mine")  # the whole directory would be replaced
    refused(invoke("export", f"dir:{place / 'model'}", "--format", "onnx", "--out", out))
    assert (tmp_path / "onnx" / "notes.txt").exists()


def test_pages_figures_and_tables_replace_their_own_only(place, tmp_path):
    model, images = f"dir:{place / 'model'}", place / "images"
    out = tmp_path / "look"
    for _ in range(2):
        assert invoke("look", model, images, "--out", out).exit_code == 0
    photo = Image.new("RGB", (9, 9))
    photo.save(out / "00.png")
    before = contents(out)
    refused(invoke("look", model, images, "--out", out))
    assert contents(out) == before
    for name in ("boxes.json", "compare.json", "report.html"):
        (tmp_path / name).write_text("mine")
    refused(invoke("discover", model, images, "--out", tmp_path))
    refused(invoke("compare", model, images, "--quick", "--out", tmp_path))
    refused(invoke("diagnose", model, images, "--quick", "--out", tmp_path))
    assert {(tmp_path / n).read_text() for n in ("boxes.json", "compare.json", "report.html")} == {
        "mine"
    }


def test_masks_are_replaced_by_segment_only(place, tmp_path):
    out = tmp_path / "masks"
    for more in ((), (), ("--overwrite",)):
        done = invoke(*words_of("segment", place), "--out", out, *more)
        assert done.exit_code == 0, (done.exception, done.output)
    (out / "notes.txt").write_text("mine")
    before = contents(out)
    for verb in ("tokens", "prune", "export timm", "index"):
        refused(invoke(*words_of(verb, place), "--out", out))
        assert contents(out) == before
    assert invoke(*words_of("segment", place), "--out", out, "--overwrite").exit_code == 0
    assert (out / "notes.txt").read_text() == "mine"


def test_a_microscope_page_replaces_only_its_own(place, tmp_path):
    line = ("microscope", f"dir:{place / 'model'}", place / "images", "--limit", 2, "--out")
    for _ in range(2):
        assert invoke(*line, tmp_path / "page.html").exit_code == 0
    photo = tmp_path / "photo.png"
    photo.write_bytes((place / "images" / "00.png").read_bytes())
    for target in (photo, tmp_path):
        before = contents(tmp_path)
        refused(invoke(*line, target))
        assert contents(tmp_path) == before


def test_explain_does_not_replace_the_query_unless_it_is_told(place, tmp_path):
    pytest.importorskip("lancedb")
    model = f"dir:{place / 'model'}"
    assert invoke("index", model, place / "images", "--out", tmp_path / "index").exit_code == 0
    query = tmp_path / "query.png"
    query.write_bytes((place / "images" / "00.png").read_bytes())
    line = ("explain", tmp_path / "index", query, "00.png", "--model", model, "--out", query)
    before = query.read_bytes()
    refused(invoke(*line))
    assert query.read_bytes() == before
    done = invoke(*line, "--overwrite")
    assert done.exit_code == 0, done.exception
    assert query.read_bytes() != before


def test_evaluate_refuses_before_the_work(place, tmp_path):
    out = tmp_path / "notes.json"
    out.write_text(json.dumps({"mine": True}))
    done = invoke("evaluate", "clustering", f"dir:{place / 'model'}", "--data", "x", "--out", out)
    refused(done)
    assert json.loads(out.read_text()) == {"mine": True}
