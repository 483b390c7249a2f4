"""What the page holds: cosines, sizes, names."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.errors import StoreError
from clearvit.microscopy.channels import encode_channels, estimate_cosines, fit_basis, measure_error
from clearvit.microscopy.coding import encode_attention, encode_norms
from clearvit.microscopy.microscope_page import BUILT
from clearvit.microscopy.page_data import shown_names
from clearvit.microscopy.sight import pool_attention
from clearvit.views.denoised import with_views
from tests.helpers.commands import invoke


@pytest.fixture
def photos(tmp_path):
    generator = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "<img src=x onerror=alert(1)>.png", "c.png"):
        small = generator.integers(0, 255, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(small).resize((50, 40)).save(folder / name)
    return folder


def manifest_of(path):
    text = path.read_text("utf-8")
    return json.loads(re.search(r'id="clearvit-data">(.*?)</script>', text, re.DOTALL)[1])


def test_all_channels_give_the_cosines_themselves():
    tokens = [torch.randn(30, 12) + 1 for _ in range(3)]
    basis = fit_basis(tokens, 12)
    error = measure_error(tokens, basis)
    assert error.largest < 0.03 and error.rms <= error.most <= error.largest


def test_fewer_tokens_than_channels_are_exact_too():
    """The mean direction was once counted twice, and cosines were off by 0.47."""
    tokens = [torch.randn(16, 24) + 1]
    basis = fit_basis(tokens, 24)
    assert torch.allclose(basis.directions.T @ basis.directions, torch.eye(24).double(), atol=1e-9)
    assert measure_error(tokens, basis).largest < 0.03


def test_a_token_has_cosine_one_with_itself_however_few_channels():
    tokens = [torch.randn(40, 32) for _ in range(2)]
    coded = encode_channels(tokens[0], fit_basis(tokens, 4)).coordinates()
    assert torch.allclose(estimate_cosines(coded, coded).diagonal(), torch.ones(40).double())


def test_fewer_channels_state_a_larger_error():
    tokens = [torch.randn(60, 24) for _ in range(2)]
    errors = [measure_error(tokens, fit_basis(tokens, count)).rms for count in (4, 12, 24)]
    assert errors[0] > errors[1] > errors[2]


def test_codes_are_as_exact_as_stated():
    norms = torch.rand(3, 50) * 10 + 1
    content, medians = encode_norms(norms)
    codes = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(3, 50)
    decoded = 2 ** (codes / 255 * 8 - 4) * torch.tensor(medians)[:, None]
    assert ((decoded / norms - 1).abs() < 0.0115).all()
    attention = torch.rand(50) * 20 + 0.01
    codes = torch.frombuffer(bytearray(encode_attention(attention)), dtype=torch.uint8)
    decoded = 2 ** ((codes - 1.0) / 254 * 16 - 8)
    assert ((decoded / attention - 1).abs() < 0.0225).all()


def test_pooled_attention_is_the_mean_of_its_cells():
    attention = torch.rand(40 * 20, 40 * 20)
    pooled = pool_attention(attention, (40, 20))
    cells = attention.view(40, 20, 40, 20)
    assert pooled.shape == (14 * 7, 14 * 7)  # factor 3
    assert torch.allclose(pooled[0, 1], cells[:3, :3, :3, 3:6].mean())


def test_a_page_holds_every_part_of_every_kind_of_model(tiny, photos, tmp_path):
    pruned = cv.prune(tiny, keep=0.5, stages=(1,))
    several = with_views(tiny, 4, 2)
    page = cv.microscope([tiny, pruned, several], photos, out=tmp_path / "p.html", layers=(0, 1))
    found = manifest_of(page.path)
    assert [len(model["layers"]) for model in found["models"]] == [3, 3, 1]
    plain, short, fine = found["models"]
    assert set(plain["layers"][0]["facets"]) == {"token", "key", "query", "value"}
    assert plain["layers"][2]["patchAttention"] and plain["layers"][2]["prefixAttention"]
    assert short["layers"][2]["kept"] and fine["layers"][0]["facets"]["token"]["grid"] == [8, 8]
    assert page.left_out == () and fine["norms"] is None


def test_what_does_not_fit_is_left_out_and_listed(tiny, photos, tmp_path):
    page = cv.microscope([tiny], photos, out=tmp_path / "p.html", megabytes=0.01)
    found = manifest_of(page.path)
    assert len(found["models"][0]["layers"]) == 1 and found["leftOut"] == list(page.left_out)
    assert any("keys" in words for words in page.left_out)


def test_attention_that_would_not_fit_into_memory_is_left_out(tiny, photos, tmp_path, monkeypatch):
    cells = 16 + 1
    monkeypatch.setattr("clearvit.microscopy.page_plan.ATTENTION_BYTES", 4 * 3 * cells**2)
    page = cv.microscope([tiny], photos, out=tmp_path / "p.html", layers=(0,))
    layers = manifest_of(page.path)["models"][0]["layers"]
    assert layers[1]["patchAttention"] and not layers[0]["patchAttention"]
    assert page.left_out == ("attention of patches of block 0 (too many patches to compute it)",)


def test_names_stay_text_and_say_nothing_about_the_machine(tiny, photos, tmp_path):
    files = sorted(map(str, photos.iterdir()))
    page = cv.microscope([tiny], files, out=tmp_path / "p.html")
    text = page.path.read_text("utf-8")
    assert "<img src=x" not in text and str(tmp_path) not in text
    assert shown_names(["/x/a/1.jpg", "/x/2.jpg"]) == ["a/1.jpg", "2.jpg"]
    assert shown_names(["a/1.jpg", "a/2.jpg"]) == ["a/1.jpg", "a/2.jpg"]


def test_a_file_of_others_is_not_replaced(tiny, photos, tmp_path):
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine</p>")
    with pytest.raises(StoreError, match="not written by clearvit"):
        cv.microscope([tiny], photos, out=mine)
    assert cv.microscope([tiny], photos, out=mine, overwrite=True).path == mine
    cv.microscope([tiny], photos, out=mine)  # its own


def test_the_command_writes_the_page(tiny, photos, tmp_path):
    cv.save(tiny, tmp_path / "model")
    (photos / "bad.jpg").write_bytes(b"no image")
    out = tmp_path / "page.html"
    done = invoke("microscope", f"dir:{tmp_path / 'model'}", photos, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert out.stat().st_size > BUILT.stat().st_size and "bad.jpg" in done.output
