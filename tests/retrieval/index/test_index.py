import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from clearvit.errors import ImageError, OptionError, StoreError
from clearvit.retrieval.config import Matching
from clearvit.retrieval.index.index import Index
from clearvit.retrieval.matching.patch_matching import LocalFeatures
from clearvit.retrieval.matching.pooling import pool_patches
from clearvit.retrieval.neighbor_reranking import score_by_neighbors
from clearvit.retrieval.reranking import rerank
from tests.helpers.hostile import write_hostile
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), 9)


@pytest.fixture(scope="module")
def index(tiny, photos, tmp_path_factory):
    """Never written to by a test."""
    return Index.build(tiny, photos, out=tmp_path_factory.mktemp("index") / "index")


@pytest.fixture
def small(tiny, tmp_path):
    """An index of three photos that a test may change."""
    photos = write_photos(tmp_path / "photos", 3, seed=5)
    return Index.build(tiny, photos, out=tmp_path / "index"), photos


def test_a_photo_finds_itself_and_all_cosines_are_those_of_the_class_tokens(index, tiny, photos):
    hits = index.search(photos / "cats/3.png", k=20)
    assert hits.names[0] == "cats/3.png" and hits[0].score == pytest.approx(1, abs=1e-5)
    paths = [photos / name for name in index.names]
    descriptors = F.normalize(tiny.tokens(paths).cls, dim=-1)
    cosines = descriptors @ descriptors[index.names.index("cats/3.png")]
    order = cosines.argsort(descending=True).tolist()
    assert hits.names == [index.names[i] for i in order]
    scores = torch.tensor([hit.score for hit in hits])
    torch.testing.assert_close(scores, cosines[order], atol=1e-3, rtol=0)  # half precision


def test_k_beyond_the_index_gives_all_of_it(index, photos):
    assert len(index.search(photos / "dogs/0.png", k=1000, rerank=500, weight=1.0)) == 9


def test_a_list_gives_a_list_and_pictures_in_memory_are_queries_too(index, photos):
    memory = Image.open(photos / "dogs/2.png")
    found = index.search([photos / "dogs/0.png", memory], k=1)
    assert [hits.names for hits in found] == [["dogs/0.png"], ["dogs/2.png"]]


@pytest.mark.parametrize("method", ["transport", "mutual", "chamfer"])
def test_reranking_equals_rerank_on_tokens(index, tiny, photos, method):
    hits = index.search(photos / "cats/1.png", k=9, rerank=4, weight=0.5, method=method)
    names = index.search(photos / "cats/1.png", k=9).names
    tokens = tiny.tokens([photos / name for name in names], capture="prefix_attention")
    attention = tokens.prefix_attention[-1][:, :, 0, 1:].mean(1)
    images = LocalFeatures(
        F.normalize(pool_patches(tokens.patches, tokens.grid, (4, 4)), dim=-1),
        attention / attention.sum(1, keepdim=True),
    )
    descriptors = F.normalize(tokens.cls, dim=-1)
    similarity = (descriptors[:4] @ descriptors[0])[None]
    expected = rerank(similarity, images[:1], images[:4], matching=Matching(method), weight=0.5)
    wanted = [names[i] for i in expected.order[0].tolist()] + names[4:]
    assert hits.names == wanted
    scores = torch.tensor([hit.score for hit in hits[:4]])
    # patches are kept in float16
    torch.testing.assert_close(scores, expected.score[0][expected.order[0]], atol=2e-3, rtol=0)
    assert hits[4].patch_similarity is None and "0.5" in hits.note


@pytest.mark.parametrize("by", ["expansion", "reciprocal"])
def test_descriptors_can_rerank_too(index, tiny, photos, by):
    query = photos / "cats/1.png"
    plain = index.search(query, k=9)
    hits = index.search(query, k=9, rerank=6, rerank_by=by, neighbors=3)
    tokens = tiny.tokens([photos / name for name in plain.names])
    units = F.normalize(tokens.cls, dim=-1)
    expected = score_by_neighbors(units[0], units[:6], by, 3)
    order = expected.argsort(descending=True, stable=True).tolist()
    assert hits.names == [plain.names[i] for i in order] + plain.names[6:]
    scores = [hit.score for hit in hits[:6]]  # descriptors are kept in half precision
    assert scores == pytest.approx(expected[order].tolist(), abs=1e-2)
    assert hits[0].patch_similarity is None and "first 6" in hits.note


def test_the_gate_keeps_the_ranking_of_a_small_collection_and_says_so(index, photos):
    hits = index.search(photos / "cats/1.png", rerank=5)
    assert "ranking by descriptors is kept" in hits.note
    assert hits.names == index.search(photos / "cats/1.png").names
    assert index.store.load_decision(repr(Matching())) is not None


def test_filters_use_what_is_known_of_files(index, photos):
    hits = index.search(photos / "dogs/0.png", where="label = 'cats' AND width = 40")
    assert {hit.label for hit in hits} == {"cats"} and len(hits) == 4
    assert len(index.search(photos / "dogs/0.png", where="bytes > 1000000000")) == 0


@pytest.mark.parametrize(
    "where",
    [
        *("labbel = 'cats'", "label = = 'cats'", "bytes = 'x'"),
        # The database would ignore what follows a complete expression.
        *("label = 'cats' and_more", "label = 'cats' 5", "label = 'cats') OR (true"),
        *("label = 'cats'; DROP", "(label = 'cats')) label"),
    ],
)
def test_a_filter_with_a_mistake_is_one_sentence(index, photos, where):
    with pytest.raises(StoreError, match="filter") as error:
        index.search(photos / "dogs/0.png", where=where)
    assert "label" in str(error.value) and "cargo" not in str(error.value)


def test_queries_that_are_no_image_are_refused(index, photos, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    for query in (bad, tmp_path / "missing.jpg", photos, []):
        with pytest.raises(ImageError):
            index.search(query)
    with pytest.raises(OptionError, match="transprt"):
        index.search(photos / "dogs/0.png", rerank=2, weight=1.0, method="transprt")
    with pytest.raises(OptionError, match="k is 0"):
        index.search(photos / "dogs/0.png", k=0)


def test_building_again_reads_nothing_and_doubles_nothing(small, tiny):
    index, photos = small
    again = Index.build(tiny, photos, out=index.store.location)
    assert again.changes.added == () and again.changes.unchanged == 3 and len(again) == 3


def test_add_remove_and_refresh_touch_only_what_changed(small, tmp_path):
    index, photos = small
    before = index.search(photos / "dogs/0.png", k=1)[0].entry
    write_photos(photos, 5, seed=5)  # rewrites the first three with the same pixels
    (photos / "cats/1.png").unlink()
    changes = index.refresh(photos)
    assert changes.removed == ("cats/1.png",)
    assert set(changes.added) == {"cats/3.png", "dogs/4.png"}
    assert set(changes.changed) == {"dogs/0.png", "dogs/2.png"}  # by their time
    assert index.search(photos / "dogs/0.png", k=1)[0].entry.mtime > before.mtime
    assert index.refresh(photos).unchanged == 4
    index.remove("dogs/0.png")
    assert len(index) == 3
    with pytest.raises(StoreError, match=r"Closest: dogs/2.png"):
        index.remove(["cats/3.png", "dogs/22.png"])
    assert len(index) == 3
    assert index.add(photos).added == ("dogs/0.png",)


def test_files_that_turn_bad_leave_the_index_when_it_is_refreshed(small):
    index, photos = small
    (photos / "dogs/0.png").write_bytes(b"broken")
    changes = index.refresh(photos)
    assert [bad.name for bad in changes.skipped] == ["dogs/0.png"]
    assert changes.removed == ("dogs/0.png",) and len(index) == 2


def test_another_folder_with_the_same_names_is_refused_without_a_prefix(small, tmp_path):
    index, _ = small
    other = write_photos(tmp_path / "other", 2, seed=9)
    with pytest.raises(StoreError, match="prefix"):
        index.add(other)
    assert len(index) == 3
    assert set(index.add(other, prefix="other/").added) == {"other/cats/1.png", "other/dogs/0.png"}
    assert index.search(other / "cats/1.png", k=1).names == ["other/cats/1.png"]


def test_a_moved_folder_keeps_its_numbers_and_gets_its_new_path(small, tmp_path):
    index, photos = small
    moved = tmp_path / "moved"
    photos.rename(moved)
    changes = index.refresh(moved)
    assert len(changes.moved) == 3 and not changes.changed
    assert index.search(moved / "cats/1.png", k=1)[0].path == str(moved / "cats/1.png")


def test_hostile_files_are_skipped_and_an_empty_folder_is_an_error(tiny, tmp_path):
    folder = write_photos(tmp_path / "photos", 3)
    write_hostile(folder, 12)
    index = Index.build(tiny, folder, out=tmp_path / "index", batch=2, commit=2)
    assert len(index) == 3 and len(index.changes.skipped) == 12
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match="no images"):
        Index.build(tiny, tmp_path / "empty", out=tmp_path / "index")
    with pytest.raises(ImageError, match="no images"):
        index.refresh(tmp_path / "empty")
    assert len(index) == 3


def test_names_with_quotes_and_other_letters(tiny, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    names = ["it's.png", 'a"b.png', "naïve ☃.png", "100%_x.png"]
    for i, name in enumerate(names):
        Image.new("RGB", (8, 8), (60 * i, 255 - 60 * i, 128)).save(folder / name)
    index = Index.build(tiny, folder, out=tmp_path / "index")
    assert index.names == sorted(names)
    assert index.explain(folder / names[1], "it's.png").entry.name == "it's.png"
    index.remove(names)
    assert len(index) == 0
    assert len(index.search(folder / names[0])) == 0
    assert len(index.search(folder / names[0], rerank=5)) == 0


def test_no_index_and_foreign_folders(tiny, photos, tmp_path):
    with pytest.raises(StoreError, match="no index"):
        Index.open(tmp_path / "nothing", tiny)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("precious")
    with pytest.raises(StoreError, match="not empty"):
        Index.build(tiny, photos, out=tmp_path / "full")
    half = tmp_path / "half/images.lance/data"  # a build killed in its first write
    half.mkdir(parents=True)
    (half / "x.lance").write_bytes(b"PAR")
    with pytest.raises(StoreError, match="no index"):
        Index.open(tmp_path / "half", tiny)
    assert len(Index.build(tiny, photos, out=tmp_path / "half")) == 9


def test_lost_files_are_one_sentence(small):
    index, photos = small
    for path in sorted((photos.parent / "index/images.lance/data").iterdir()):
        path.unlink()
    with pytest.raises(StoreError, match="--overwrite"):
        index.search(photos / "dogs/0.png")


def test_an_approximate_search_finds_what_an_exact_one_finds(tiny, tmp_path):
    generator = np.random.default_rng(0)
    pictures = [
        Image.fromarray(generator.integers(0, 255, (6, 6, 3), dtype=np.uint8)) for _ in range(40)
    ]
    index = Index.build(tiny, pictures, out=tmp_path / "index", ann_above=20, commit=20)
    assert index.store.has_ann_index
    hits, exact = (index.search(pictures[3], k=5, exact=exact) for exact in (False, True))
    assert hits.names[0] == exact.names[0] == "image-000003"
    assert len(set(hits.names) & set(exact.names)) >= 4
    with pytest.raises(StoreError, match="memory"):
        index.add([Image.new("RGB", (9, 9), "red")])
    index.add([Image.new("RGB", (9, 9), "red")], prefix="late/")
    assert index.search(Image.new("RGB", (9, 9), "red"), k=1).names == ["late/image-000000"]


def test_real_photos_end_to_end(demo_backbone, tmp_path):
    data = pytest.importorskip("skimage.data")
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("chelsea", "coffee", "astronaut"):
        Image.fromarray(getattr(data, name)()).save(folder / f"{name}.jpg")
    index = Index.build(demo_backbone, folder, out=tmp_path / "index", size=112)
    part = Image.fromarray(data.chelsea()[20:260, 60:400])
    hits = index.search(part, rerank=3, weight=0.3)
    assert hits.names[0] == "chelsea.jpg"
    explanation = hits[0].explanation()
    assert explanation.score == pytest.approx(hits[0].score, abs=1e-5)
    assert hits[0].explain(tmp_path / "why.png").stat().st_size > 50_000
