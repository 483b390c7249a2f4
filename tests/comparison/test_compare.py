import json
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import clearvit as cv
from clearvit.backbones.backbone import Backbone
from clearvit.backbones.load import load
from clearvit.comparison.compare import compare, number_names
from clearvit.comparison.comparison_table import table_cells
from clearvit.comparison.config import CompareConfig
from clearvit.comparison.pca_panels import color_maps
from clearvit.comparison.rows import cosine_distances, gap_closed, knn_accuracy, mean_cosine
from clearvit.comparison.study import time_models
from clearvit.errors import ImageError, ModelError, OptionError, StoreError
from clearvit.images import find_images
from clearvit.views.denoise import denoise
from tests.conftest import tiny_network
from tests.helpers.pages import check
from tests.helpers.pages import made_images as photos

FEW = {"shifted_images": 2, "reference_images": 2, "views": 12, "shown_images": 2, "rounds": 1}
CONFIG = CompareConfig(size=64, **FEW)


class Averaged(Backbone):
    """A backbone that is no ViT: the mean of a image's tokens and those of its mirror image."""

    def __init__(self, inner):
        super().__init__(inner.network, inner.preprocessing, name=f"{inner.name} averaged")
        self.inner, self.patch, self.width = inner, inner.patch, inner.width
        self.prefix_names = inner.prefix_names

    def forward(self, pixels, *, layers=None, norm=True, capture=()):
        tokens = self.inner.forward(pixels)
        mirrored = self.inner.forward(pixels.flip(3)).map.flip(3).flatten(2).transpose(1, 2)
        return cv.Tokens(
            patches=(tokens.patches + mirrored) / 2,
            prefix=tokens.prefix,
            grid=tokens.grid,
            prefix_names=tokens.prefix_names,
        )


@pytest.fixture(scope="module")
def base():
    return load(tiny_network())


@pytest.fixture(scope="module")
def sick(base):
    return cv.testing.planted(base, "high-norm", 0.05, block=1).backbone


@pytest.fixture(scope="module")
def planted_and_base(base, sick):
    return compare([sick, base], photos(12), config=CONFIG)


def vectors(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_distances_against_numpy():
    a, b = vectors(3, 5, 7), vectors(3, 5, 7, seed=1)
    x, y = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    cosine = (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
    np.testing.assert_allclose(cosine_distances(a, b).numpy(), 1 - cosine.mean(1), rtol=1e-12)
    assert mean_cosine(a[0], b[0]) == pytest.approx(cosine[0].mean())


def test_gap_closed_arithmetic():
    assert gap_closed(0.08, 0.08, 0.03) == 0
    assert gap_closed(0.08, 0.03, 0.03) == 1
    assert gap_closed(0.08, 0.05, 0.03) == pytest.approx(0.6)
    assert gap_closed(0.08, 0.09, 0.03) == pytest.approx(-0.2)
    assert gap_closed(0.03, 0.05, 0.03) is None and gap_closed(0.02, 0.05, 0.03) is None


@given(st.floats(0.1, 1), st.floats(0.01, 0.99), st.floats(-1, 2))
def test_gap_closed_undoes_a_mixture(raw, fraction, closed):
    target = raw * fraction
    model = raw + closed * (target - raw)
    assert gap_closed(raw, model, target) == pytest.approx(closed, abs=1e-9)


def slow_accuracy(points, labels, k):
    right = 0
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    for i in range(len(unit)):
        others = [j for j in range(len(unit)) if j != i]
        others.sort(key=lambda j: -(unit[i] @ unit[j]))
        votes = {}
        for j in others[:k]:
            votes[labels[j]] = votes.get(labels[j], 0) + np.exp(unit[i] @ unit[j] / 0.07)
        right += max(votes, key=votes.get) == labels[i]
    return right / len(unit)


@pytest.mark.parametrize("k", [1, 3, 50])
def test_neighbors_against_a_slow_loop(k):
    labels = torch.arange(30) % 3
    points = vectors(30, 6) + 0.8 * vectors(3, 6, seed=1)[labels]
    expected = slow_accuracy(points.double().numpy(), labels.tolist(), k)
    assert knn_accuracy(points, labels, k) == pytest.approx(expected)


def test_no_image_votes_for_itself():
    points = torch.eye(4)[:, [0, 1, 2, 3]]
    points = torch.cat([points, points + 0.01])  # the nearest other is the twin
    assert knn_accuracy(points, torch.tensor([0, 1, 2, 3] * 2)) == 1
    assert knn_accuracy(points, torch.arange(8)) == 0


def test_a_model_compared_with_itself(base):
    result = compare([base, base], photos(6), config=CONFIG)
    first, second = result.rows
    assert second.model == f"{first.model} #2"
    assert second.class_similarity == pytest.approx(1) and first.class_similarity == pytest.approx(
        1
    )
    assert second.distance == first.distance == pytest.approx(result.gap.raw)
    assert first.cost_ratio == 1 and first.gap_closed == second.gap_closed
    if first.gap_closed is not None:
        assert first.gap_closed == pytest.approx(0, abs=1e-9)
    for row in result.panel_rows:
        np.testing.assert_array_equal(row.colors[0], row.colors[1])


@pytest.mark.parametrize("sampler", ["lattice", "whole"])
def test_the_reference_is_the_average_of_views(base, sampler):
    images = photos(2)
    result = compare(base, images, config=replace(CONFIG, sampler=sampler))
    many = denoise(base, images, views=12, sampler=sampler, size=64).patches
    few = denoise(base, images, views=10, sampler=sampler, size=64).patches
    one = base.tokens(images, size=64).patches
    assert result.gap.views == 12
    for found, patches in ((result.gap.raw, one), (result.gap.few, few)):
        expected = float(cosine_distances(patches, many).mean())
        assert found == pytest.approx(expected, rel=1e-4)
    assert result.rows[0].distances == pytest.approx(cosine_distances(one, many).tolist(), rel=1e-4)


def test_all_views_when_more_are_wanted_than_there_are(base):
    config = CompareConfig(size=64, rounds=1, shown_images=0)
    result = compare(base, photos(1), config=config)
    assert result.gap.views == 72  # 8 x 8 patches: shifts of -1, 0, 1 twice, four phases, mirrored
    assert compare(base, photos(1), config=replace(config, sampler="whole")).gap.views == 18
    assert result.panel_rows == ()


def test_tokens_are_counted_where_the_raw_model_has_artifacts(planted_and_base, sick):
    raw, healthy = planted_and_base.rows
    rule = planted_and_base.rule
    assert rule.model == sick.name and rule.blocks == (1, 2) and rule.side == "high"
    assert raw.verdict == "high-norm" and healthy.verdict != "high-norm"
    assert raw.peak_fraction == pytest.approx(3 / 64)  # 5 % of 64 patches
    assert healthy.peak_fraction == 0 and healthy.worst_fraction == 0
    assert raw.extreme_norm > 4 > healthy.extreme_norm


def test_artifacts_of_a_later_model_show_too(base, sick):
    raw, worse = compare([base, sick], photos(6), config=CONFIG).rows
    assert worse.peak_fraction > raw.peak_fraction
    assert worse.class_similarity < 1


def test_other_widths_depths_and_grids_leave_cells_empty(base):
    wide = load(tiny_network(embed_dim=48))
    coarse = load(tiny_network(patch_size=16))
    deep = load(tiny_network(depth=4))
    sick = cv.testing.planted(base, "high-norm", 0.05, block=1).backbone
    result = compare([sick, wide, coarse, deep], photos(6), config=CONFIG)
    _, wider, coarser, deeper = result.rows
    assert (
        wider.distance is None
        and wider.class_similarity is None
        and "48 channels" in wider.notes[0]
    )
    assert coarser.distance is None and coarser.class_similarity is not None
    assert "4 x 4" in coarser.notes[0]
    assert (
        deeper.outlier_fractions is None
        and deeper.distance is not None
        and "4 blocks" in deeper.notes[0]
    )
    assert result.panel_rows[0].colors[2].shape == (4, 4, 3)
    header, rows = table_cells(result)
    index = next(i for i, title in enumerate(header) if title.startswith("distance"))
    assert rows[1][index] is None and rows[0][index] is not None


def test_backbones_that_are_no_vit(base):
    resnet = load(timm.create_model("resnet18", num_classes=0))
    result = compare([base, Averaged(base), resnet], photos(4), config=CONFIG)
    _, averaged, grid = result.rows
    assert averaged.verdict is None and averaged.outlier_fractions is None
    assert averaged.distance is not None and averaged.equivariance is not None
    assert averaged.class_similarity == pytest.approx(1)
    assert grid.verdict is None and grid.distance is None and len(grid.notes) == 2
    first = compare([resnet], photos(2), config=CONFIG)
    assert first.rows[0].distance == pytest.approx(first.gap.raw)


def test_registers_are_reported(base):
    sick = cv.testing.planted(base, "high-norm", 0.05, block=1).backbone
    other = load(tiny_network(reg_tokens=2, no_embed_class=True))
    result = compare([sick, other], photos(6), config=CONFIG)
    assert len(result.rows[1].register_norms) == 2 and result.rows[0].register_norms == ()


def test_models_without_class_token_are_described_by_their_patches():
    bare = load(tiny_network(class_token=False, global_pool="avg"))
    with_class = load(tiny_network())
    result = compare([bare, bare, with_class], photos(3), config=CONFIG)
    assert result.rows[1].class_similarity == pytest.approx(1)
    assert result.rows[2].class_similarity is None and result.rows[2].distance is not None


def class_folders(folder):
    """Two classes that differ in brightness."""
    for i, image in enumerate(photos(8)):
        kind = "bright" if i % 2 else "dark"
        (folder / kind).mkdir(exist_ok=True, parents=True)
        image.point(lambda v, b=i % 2: v // 4 + 180 * b).save(folder / kind / f"{i}.png")
    return folder


def test_class_folders_give_labels(base, tmp_path):
    folder = class_folders(tmp_path / "classes")
    assert compare(base, folder, config=CONFIG).rows[0].knn_accuracy == 1
    apart = CompareConfig(size=64, labels=folder, **FEW)
    result = compare(base, photos(2), config=apart)
    assert result.rows[0].knn_accuracy == 1 and result.labeled == 8
    assert compare(base, photos(2), config=CONFIG).rows[0].knn_accuracy is None
    with pytest.raises(ImageError, match="one folder per class"):
        compare(base, photos(2), config=CompareConfig(labels=folder / "dark"))


def test_bad_files_are_skipped_and_listed(base, tmp_path):
    for i, image in enumerate(photos(3)):
        image.save(tmp_path / f"{i}.png")
    (tmp_path / "1.png").write_bytes(b"broken")
    result = compare(base, tmp_path, config=CONFIG)
    assert result.images == ("0.png", "2.png")
    assert [bad.name for bad in result.skipped] == ["1.png"]


def test_nothing_to_compare(base, tmp_path):
    with pytest.raises(ImageError, match="no images"):
        compare(base, tmp_path)
    (tmp_path / "a.png").write_bytes(b"broken")
    with pytest.raises(ImageError, match="none of 1 images could be read"):
        compare(base, tmp_path)
    with pytest.raises(ModelError, match="at least one model"):
        compare([], photos(1))
    with pytest.raises(OptionError, match="rounds is 0; give at least 1"):
        CompareConfig(rounds=0)


def test_the_reference_is_kept_and_used_again(base, tmp_path, monkeypatch):
    config = CompareConfig(size=64, cache=tmp_path, **FEW)
    before = compare(base, photos(2), config=config)
    kept = {path.name for path in tmp_path.iterdir()}
    assert len(kept) == 2
    monkeypatch.setattr("clearvit.comparison.reference.denoise_pixels", None)  # not called again
    again = compare(base, photos(2), config=config)
    assert again.gap == before.gap
    assert {path.name for path in tmp_path.iterdir()} == kept
    other = load(tiny_network(depth=2))
    with pytest.raises(TypeError):  # another model has another reference
        compare(other, photos(2), config=config)


def test_progress_rises_to_the_total_without_a_jump_at_the_end(base, sick):
    seen = []
    averaged = Averaged(base)
    compare([base, sick, averaged], photos(5), config=CONFIG, progress=lambda *a: seen.append(a))
    done = [now for _, now, _ in seen]
    assert done == sorted(done) and {total for *_, total in seen} == {seen[0][2]}
    assert done[-1] == seen[-1][2]
    assert done[-1] - done[-2] <= 2  # the images drawn, two of them


def test_files_on_disk(planted_and_base, tmp_path):
    page = planted_and_base.save(tmp_path / "out")
    assert page == tmp_path / "out" / "compare.html"
    check(page.read_text("utf-8"))
    with Image.open(tmp_path / "out" / "pca.png") as image:
        assert image.width > 800

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = (tmp_path / "out" / "compare.json").read_text("utf-8")
    numbers = json.loads(text, parse_constant=refuse)
    assert [row["model"] for row in numbers["rows"]] == [r.model for r in planted_and_base.rows]
    assert numbers["rows"][0]["peak_fraction"] == planted_and_base.rows[0].peak_fraction
    assert numbers["rule"]["blocks"] == [1, 2]
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is no directory"):
        planted_and_base.save(tmp_path / "file")


def test_names_with_markup_are_escaped(base, tmp_path):
    other = load(tiny_network())
    other.name = "<b>$x$[red]"
    compare([base, other], photos(1), config=CONFIG).save(tmp_path)
    text = (tmp_path / "compare.html").read_text("utf-8")
    assert "<b>$x$" not in text and "&lt;b&gt;$x$[red]" in text


def test_colors_are_those_of_the_first_column():
    first, second, wide = vectors(4, 3, 3), vectors(4, 3, 3, seed=1), vectors(6, 2, 2, seed=2)
    one, two, other = color_maps([[first], [second], [wide]])
    alone = color_maps([[second]])[0]
    assert two[0].shape == (3, 3, 3) and other[0].shape == (2, 2, 3)
    assert not np.allclose(two[0], alone[0])
    np.testing.assert_array_equal(color_maps([[first], [first]])[1][0], one[0])


def test_models_are_timed_round_by_round(base):
    pixels = torch.zeros(1, 3, 32, 32)
    times = time_models([base, base], [pixels, pixels], rounds=3)
    assert [len(own) for own in times] == [3, 3]
    assert all(milliseconds > 0 for own in times for milliseconds in own)


def test_names_are_unique():
    assert number_names(["a", "b", "a", "a"]) == ["a", "b", "a #2", "a #3"]


def test_quick_only_lowers():
    quick = CompareConfig(quick=True, reference_images=2).effective()
    assert (quick.limit, quick.reference_images, quick.views) == (16, 2, 50)
    assert CompareConfig().effective().views == 200


def test_the_verb_is_a_root_name(base):
    import clearvit

    assert clearvit.compare(base, photos(1), config=CONFIG).rows[0].model == base.name


def test_the_demo_end_to_end(demo_backbone, tmp_path):
    raw = demo_backbone.resized(126)
    images = find_images(photos(2))
    sick = cv.testing.planted(raw, "high-norm", 0.02, block=8).backbone
    few = {"shifted_images": 1, "reference_images": 1, "views": 12, "shown_images": 1}
    config = CompareConfig(**few, sampler="whole", rounds=1, limit=2)  # artifacts by position only
    result = compare([raw, sick], images, config=config)
    first, second = result.rows
    assert result.size == (126, 126) and result.gap.views == 12
    assert 0 < result.gap.few < result.gap.raw  # ten views are nearer than one
    assert first.gap_closed == pytest.approx(0, abs=1e-6)
    assert second.distance > first.distance and second.gap_closed < 0
    assert second.peak_fraction > first.peak_fraction
    check(result.save(tmp_path).read_text("utf-8"))
