import pytest
import torch
import torch.nn.functional as F

from clearvit.backbones.load import load
from clearvit.errors import ImageError, ModelError, StoreError
from clearvit.pruning.prune import prune
from clearvit.retrieval.index.index import Index
from tests.conftest import tiny_network
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), 9)


@pytest.fixture(scope="module")
def index(tiny, photos, tmp_path_factory):
    """Never written to by a test."""
    return Index.build(tiny, photos, out=tmp_path_factory.mktemp("index") / "index")


def test_texts_need_a_joint_space(index):
    with pytest.raises(ModelError, match="CLIP"):
        index.search_text("a red car")


def test_text_queries_of_a_model_with_a_text_tower(photos, tmp_path):
    backbone = load(tiny_network(num_classes=12))
    embedded = backbone.network.forward_head  # the projection of CLIP-like models

    class Tower:
        def encode(self, texts):
            pixels = next(backbone.pixels([photos / text for text in texts]))
            with torch.no_grad():
                return F.normalize(embedded(backbone.network.forward_features(pixels)), dim=-1)

        def to(self, device):
            return self

    backbone.text = Tower()
    index = Index.build(backbone, photos, out=tmp_path / "index")
    assert index.spec.descriptor == "joint" and index.spec.channels == 12
    hits = index.search_text("cats/5.png", k=2)
    assert hits.names[0] == "cats/5.png" and hits[0].score == pytest.approx(1, abs=1e-4)
    with pytest.raises(ImageError, match="text has no patches"):
        hits[0].explanation()
    with pytest.raises(ModelError, match="descriptors"):
        index.search(photos / "cats/5.png", rerank=2, weight=1, cross="correlation")


def other_weights():
    other = load(tiny_network())
    with torch.no_grad():
        other.network.cls_token.add_(1)
    return other


def test_another_model_may_neither_continue_nor_ask(index, photos, tiny, tmp_path):
    other = other_weights()
    with pytest.raises(StoreError, match="overwrite"):
        Index.build(other, photos, out=index.store.location)
    with pytest.raises(StoreError, match="other_model=True"):
        Index.open(index.store.location, other)
    with pytest.raises(StoreError, match="32 channels"):
        Index.open(index.store.location, load(tiny_network(embed_dim=32, num_heads=2)))
    with pytest.raises(StoreError, match="grid: "):
        Index.build(tiny, photos, out=index.store.location, grid=2)
    with pytest.warns(UserWarning, match="one model"):
        allowed = Index.open(index.store.location, other, other_model=True)
    assert "one model" in allowed.search(photos / "dogs/0.png").note
    with pytest.raises(StoreError, match="not write"):
        allowed.add(photos)
    with pytest.raises(ModelError, match=r"Index\.open\(path, clearvit.load"):
        Index.open(index.store.location).search(photos / "dogs/0.png")


def test_a_pruned_copy_of_the_model_may_ask(index, tiny, photos):
    pruned = prune(tiny, keep=0.7)
    opened = Index.open(index.store.location, pruned)
    assert "pruned" in opened.note
    hits = opened.search(photos / "dogs/0.png", rerank=3, weight=1.0)
    again = index.search(photos / "dogs/0.png", rerank=3, weight=1.0, backbone=pruned)
    assert hits.names[0] == "dogs/0.png" and again.names == hits.names
    assert "pruned" in again.note and "pruned" not in index.search(photos / "dogs/0.png").note
    score = index.explain(photos / "dogs/0.png", "dogs/0.png", backbone=pruned).score
    assert (
        score == pytest.approx(again[0].global_similarity, abs=1e-4) and score < 1 - 1e-5
    )  # half precision
    with pytest.raises(StoreError, match="other_model=True"):
        index.search(photos / "dogs/0.png", backbone=other_weights())


def test_the_default_size_of_the_model_does_not_matter(index, tiny, photos):
    assert Index.open(index.store.location, tiny.resized(64)).note == ""


def test_models_without_class_token_use_the_mean(photos, tmp_path):
    backbone = load(tiny_network(class_token=False, global_pool="avg"))
    index = Index.build(backbone, photos, out=tmp_path / "index")
    assert (index.spec.descriptor, index.spec.patch_weights) == ("mean", "uniform")
    assert index.search(photos / "cats/7.png", rerank=4, weight=1.0).names[0] == "cats/7.png"


def test_rollout_weights_do_not_depend_on_the_batch(tiny, photos, tmp_path):
    one, many = (
        Index.build(
            tiny,
            photos,
            out=tmp_path / str(batch),
            patch_weights="rollout",
            batch=batch,
            grid=2,
        )
        for batch in (1, 9)
    )
    ours, theirs = (i.store.fetch(one.names).features.weights for i in (one, many))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.sum(1), torch.ones(9))


def deit(folder):
    import timm

    options = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    return timm.create_model("deit_tiny_distilled_patch16_224", **options)


def swin(folder):
    import timm

    options = {"img_size": 64, "window_size": 2, "embed_dim": 8, "depths": (1, 1, 1, 1)}
    return timm.create_model("swin_tiny_patch4_window7_224", num_heads=(1, 1, 2, 2), **options)


def dinov2(folder):
    import timm

    options = {"img_size": 28, "embed_dim": 24, "depth": 2, "num_heads": 3}
    return timm.create_model("vit_small_patch14_reg4_dinov2", **options)


def cvt(folder):
    transformers = pytest.importorskip("transformers")
    stages = {"embed_dim": [8, 16, 24], "num_heads": [1, 2, 3], "depth": [1, 2, 3]}
    transformers.CvtModel(transformers.CvtConfig(**stages)).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize(
    ("family", "descriptor", "weights"),
    [
        (deit, "class", "attention"),
        (swin, "mean", "uniform"),
        (cvt, "class", "uniform"),
        (dinov2, "class", "attention"),
    ],
    ids=["deit", "swin", "cvt", "dinov2"],
)
def test_families_are_searched_and_explained(photos, tmp_path, family, descriptor, weights):
    backbone = load(family(tmp_path / "model"))
    index = Index.build(backbone, photos, out=tmp_path / "index", grid=2, size=64)
    assert (index.spec.descriptor, index.spec.patch_weights) == (descriptor, weights)
    for matching in ({"mass": "auto"}, {"cross": "correlation"}, {"method": "mutual"}):
        hits = index.search(photos / "cats/7.png", rerank=4, weight=0.5, **matching)
        assert hits.names[0] == "cats/7.png"
        assert hits[0].explanation().score == pytest.approx(hits[0].score, abs=1e-3)
    if weights == "uniform":
        with pytest.raises(ModelError, match="uniform"):
            Index.build(backbone, photos, out=tmp_path / "other", patch_weights="without-artifacts")


def planted(position=5):
    """A network whose patches at one position have twenty times the norm of the others."""
    network = tiny_network()
    with torch.no_grad():
        network.pos_embed[:, 1 + position] *= 1000
    return load(network)


def test_weights_without_artifacts_leave_outliers_out(photos, tmp_path, monkeypatch):
    backbone = planted()
    paths = sorted(photos.rglob("*.png"))

    def mask(norms):  # 16 patches are too few for the definition of an outlier
        return norms > 2 * norms.median(1, keepdim=True).values

    monkeypatch.setattr("clearvit.retrieval.image_features.outlier_mask", mask)
    found = mask(backbone.tokens(paths, norm=False).norms)
    assert found[:, 5].all() and found.sum() == len(paths)
    index, plain = (
        Index.build(backbone, photos, out=tmp_path / m, patch_weights=m)
        for m in ("without-artifacts", "attention")
    )
    ours, theirs = (i.store.fetch(i.names).features for i in (index, plain))
    assert (ours.weights[:, 5] == 0).all() and (theirs.weights[:, 5] > 0).all()
    kept = theirs.weights.clone()
    kept[:, 5] = 0
    torch.testing.assert_close(ours.weights, kept / kept.sum(1, keepdim=True), atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.patches[:, :5], theirs.patches[:, :5], atol=2e-3, rtol=0)
    hit = index.explain(paths[0], index.names[3])
    explanation = hit.explanation()
    assert explanation.contributions[5].abs().sum() == 0
    assert explanation.query_weights[5] == explanation.hit_weights[5] == 0
    coarse = {"patch_weights": "without-artifacts", "grid": 2}
    pooled = Index.build(backbone, photos, out=tmp_path / "coarse", **coarse)
    found = pooled.store.fetch(pooled.names).features.patches[:, 0]
    tokens = backbone.tokens([photos / name for name in pooled.names]).patches
    expected = F.normalize(tokens[:, [0, 1, 4]].mean(1), dim=-1)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
