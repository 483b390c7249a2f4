"""An index keeps whitened patches of a facet, and uses the same whitening for every query."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from clearvit.errors import ImageError, ModelError, OptionError, StoreError
from clearvit.retrieval.facets import planning
from clearvit.retrieval.image_features import FeatureSpec, extract_features
from clearvit.retrieval.index.index import Index
from clearvit.retrieval.matching.pooling import pool_patches
from clearvit.retrieval.regions.region_search import maxsim
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")


@pytest.fixture
def early(monkeypatch):
    """Fit on a few images."""
    monkeypatch.setattr(planning, "FEWEST", 10)


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos", 14)


def test_patches_are_whitened_values_of_the_block_in_one_byte(early, tiny, photos, tmp_path):
    options = {"facet": "value:1", "channels": 6, "whiten": "no"}
    index = Index.build(tiny, photos, out=tmp_path / "index", **options)
    spec = Index.open(tmp_path / "index", tiny).spec
    assert spec.facet == "value:1" and spec.width == 6 and spec.patch_format == "int8"
    assert str(index.store._table.schema.field("patches").type.value_type) == "int8"
    stored = index.store.fetch(index.names).features
    tokens = tiny.tokens([photos / name for name in index.names], layers=[1], capture="value")
    values = tokens.value[1][:, :, tokens.prefix.shape[1] :].transpose(1, 2).flatten(2)
    pooled = pool_patches(values, tokens.grid, spec.grid)
    expected = F.normalize(spec.whitenings["patches"](pooled), dim=-1)
    assert ((stored.patches * expected).sum(-1) > 0.999).all()
    assert spec.whitenings["patches"].matrix.shape == (24, 6)


def test_queries_use_the_whitening_of_the_table(early, tiny, photos, tmp_path):
    index = Index.build(tiny, photos, out=tmp_path / "index", whiten="no", channels=6)
    opened = Index.open(tmp_path / "index", tiny)
    query = photos / index.names[2]
    found = opened.search(query, k=14, rerank=14, weight=1.0, method="chamfer")
    pixels = next(tiny.pixels([query]))
    mine = extract_features(tiny, pixels, opened.spec)
    assert found.names[0] == index.names[2]
    assert found[0].patch_similarity == pytest.approx(1, abs=1e-3)
    assert mine.patches.shape == (1, 16, 6)


def test_few_images_stay_plain_and_say_so_until_the_collection_has_grown(
    early, tiny, tmp_path, monkeypatch
):
    photos = write_photos(tmp_path / "photos", 6)
    index = Index.build(tiny, photos, out=tmp_path / "index", channels=6)
    assert "too few" in index.spec.note and not index.spec.whitening and index.spec.width == 24
    write_photos(photos, 14)
    assert len(Index.build(tiny, photos, out=tmp_path / "index", channels=6)) == 14
    assert not index.spec.whitening  # build adds, refresh fits anew
    other = Index.open(tmp_path / "index", tiny)
    changes = other.refresh(photos)
    assert changes.refitted and not changes.added and len(other) == 14
    assert other.spec.whitening and other.spec.width == 6 and "Chosen on 14" in other.spec.note
    assert other.search(photos / other.names[3], k=1).names == [other.names[3]]
    again = Index.open(tmp_path / "index", tiny)
    assert not again.refresh(photos).refitted and again.spec == other.spec


def test_an_index_whose_weights_were_chosen_is_continued_and_asked(
    early, tiny, photos, tmp_path, monkeypatch
):
    chosen = planning.choose
    monkeypatch.setattr(planning, "choose", lambda *a, **k: replace(chosen(*a, **k), uniform=True))
    index = Index.build(tiny, photos, out=tmp_path / "index", channels=6)
    assert index.spec.patch_weights == "uniform" and "patch_weights=auto" in index.spec.asked
    features = index.store.fetch(index.names).features
    assert torch.allclose(features.weights, torch.tensor(1 / 16), atol=1e-4)
    again = Index.build(tiny, photos, out=tmp_path / "index", channels=6)
    assert again.changes.unchanged == 14
    with pytest.raises(StoreError, match="patch_weights=attention"):
        Index.build(tiny, photos, out=tmp_path / "index", channels=6, patch_weights="attention")


def test_an_index_from_before_weights_were_chosen_is_continued(early, tiny, photos, tmp_path):
    Index.build(tiny, photos, out=tmp_path / "index", channels=6, facet="value:1")
    store = Index.open(tmp_path / "index", tiny).store
    older = replace(
        store.spec, asked=store.spec.asked.rpartition(", ")[0], patch_weights="attention"
    )
    store.spec = older
    store.check_spec(replace(older, asked=f"{older.asked}, patch_weights=auto"))
    with pytest.raises(StoreError, match="patch_weights: attention before, now uniform"):
        store.check_spec(replace(older, patch_weights="uniform"))


def test_another_facet_cannot_continue_an_index(early, tiny, photos, tmp_path):
    Index.build(tiny, photos, out=tmp_path / "index", facet="value:1", channels=6)
    with pytest.raises(StoreError, match="facet=key:1"):
        Index.build(tiny, photos, out=tmp_path / "index", facet="key:1", channels=6)
    again = Index.build(tiny, photos, out=tmp_path / "index", facet="value:1", channels=6)
    assert again.changes.unchanged == 14
    with pytest.raises(ModelError, match="blocks 0 to 2"):
        Index.build(tiny, photos, out=tmp_path / "other", facet="value:9")
    with pytest.raises(OptionError, match="channels"):
        Index.build(tiny, photos, out=tmp_path / "other", channels=-1)


def test_a_damaged_or_missing_whitening_is_one_sentence(early, tiny, photos, tmp_path):
    index = Index.build(tiny, photos, out=tmp_path / "index", channels=6)
    table = index.store._database.open_table("whitenings")
    table.update(values={"value": b"nonsense"})
    with pytest.raises(StoreError, match="missing or damaged"):
        Index.open(tmp_path / "index", tiny)
    index.store._database.drop_table("whitenings")
    with pytest.raises(StoreError, match="missing or damaged"):
        Index.open(tmp_path / "index", tiny)


def test_a_spec_of_the_older_format_is_still_read():
    spec = FeatureSpec("demo", "x", (32, 32), (4, 4), (4, 4), "class", "uniform", 24, 24)
    content = json.loads(spec.to_json())
    for name in ("token_width", "facet", "patch_format", "weight", "whitening", "fitted"):
        del content[name]
    del content["asked"], content["note"]
    old = FeatureSpec.from_json(json.dumps(content | {"format": 2}))
    assert old == replace(spec, format=2)
    with pytest.raises(StoreError, match="missing"):
        FeatureSpec.from_json(json.dumps({**content, "format": 3}))


def test_maxsim_is_the_mean_of_the_best_cosines():
    generator = torch.Generator().manual_seed(0)
    part = F.normalize(torch.randn(3, 8, generator=generator), dim=-1)
    codes = torch.randint(-127, 128, (5, 4, 8), generator=generator, dtype=torch.int8)
    expected = [
        np.mean([max(float(F.cosine_similarity(p, c.float(), 0)) for c in image) for p in part])
        for image in codes
    ]
    torch.testing.assert_close(maxsim(part, codes), torch.tensor(expected).float())


@pytest.fixture(scope="module")
def real(demo_backbone, tmp_path_factory):
    """Three real photos and an index of them."""
    data = pytest.importorskip("skimage.data")
    folder = tmp_path_factory.mktemp("real")
    for name in ("chelsea", "coffee", "astronaut"):
        Image.fromarray(getattr(data, name)()).save(folder / f"{name}.jpg")
    index = Index.build(
        demo_backbone, folder, out=folder.parent / "real-index", size=112, facet="value:11"
    )
    return index, folder


def test_a_region_of_another_copy_is_found_and_boxed(real):
    index, folder = real
    image = Image.open(folder / "chelsea.jpg")  # 451 x 300
    copy = image.resize((300, 200)).convert("L").convert("RGB")
    hits = index.search(copy, region=(60, 40, 220, 150), k=3)
    assert hits.names[0] == "chelsea.jpg" and all(hit.box is not None for hit in hits)
    left, top, right, bottom = hits[0].box
    expected = (90, 60, 331, 225)
    across = min(right, expected[2]) - max(left, expected[0])
    down = min(bottom, expected[3]) - max(top, expected[1])
    together = (right - left) * (bottom - top) + 241 * 165 - across * down
    assert across * down / together > 0.5
    assert hits.to_json()["hits"][0]["box"] == list(hits[0].box)
    assert hits[0].explain(folder / "why.png").stat().st_size > 20_000
    assert "in all images" in hits.note


@pytest.mark.parametrize(
    "region",
    [(0, 0, 500, 100), (50, 50, 50, 90), (90, 10, 20, 60), (0, 0, 4, 4), (0, 400, 20, 500)],
)
def test_a_region_outside_the_image_is_refused(real, region):
    index, folder = real
    with pytest.raises(ImageError, match="region"):
        index.search(folder / "chelsea.jpg", region=region)
    with pytest.raises(OptionError, match="four"):
        index.search(folder / "chelsea.jpg", region=(1, 2, 3))


def test_a_large_index_compares_the_nearest_descriptors_only(real, monkeypatch):
    index, folder = real
    monkeypatch.setattr("clearvit.retrieval.regions.region_search.SCANNED", 1)
    monkeypatch.setattr("clearvit.retrieval.regions.region_search.SHORTLIST", 2)
    hits = index.search(folder / "coffee.jpg", region=(100, 50, 500, 350), k=2)
    assert hits.names[0] == "coffee.jpg" and "nearest descriptors" in hits.note
    assert len(index.search(folder / "coffee.jpg", region=(100, 50, 500, 350), exact=True)) == 3
