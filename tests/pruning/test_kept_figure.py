import numpy as np
import pytest
import torch
from PIL import Image

from clearvit.errors import ModelError
from clearvit.pruning import kept_figure
from clearvit.pruning.kept_figure import darken_dropped, draw_kept
from clearvit.pruning.prune import prune


def test_dropped_patches_are_dark_and_kept_ones_as_they_were():
    image = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    mask = np.array([[True, False, True], [False, False, True]])
    drawn = darken_dropped(image, mask)
    assert np.allclose(drawn[:10, :10], image[:10, :10] / 255)
    assert np.allclose(drawn[10:, 20:], image[10:, 20:] / 255)
    assert (drawn[:10, 10:20] <= kept_figure.DARK).all() and (
        drawn[10:, :20] <= kept_figure.DARK
    ).all()


def test_one_figure_per_image_with_a_row_per_model(tiny, tmp_path, monkeypatch):
    seen = []
    right = kept_figure.draw_panels
    monkeypatch.setattr(
        kept_figure, "draw_panels", lambda rows, **o: seen.append(rows) or right(rows, **o)
    )
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (40, 60, 3), dtype=np.uint8)) for _ in range(2)]
    models = [prune(tiny, keep=0.5), prune(tiny, keep=0.25, stages=[2], scorer="merge")]
    paths = draw_kept(models, images, out=tmp_path / "out")
    assert len(paths) == 2 and all(Image.open(path).width == 1600 for path in paths)
    first, second = seen[0]
    assert [panel.note for panel in first[1:]] == ["8 of 16 (50 %)", "4 of 16 (25 %)"]
    assert [panel.title for panel in second] == ["keep 0.25", "block 2"]
    mask = models[0].tokens(images[0]).kept_stages[1][0].reshape(4, 4).numpy()
    assert np.allclose(first[1].image, darken_dropped(np.asarray(images[0]), mask))


def test_only_pruned_models_and_images(tmp_path, tiny):
    with pytest.raises(ModelError, match="only pruned models"):
        draw_kept([], [Image.new("RGB", (9, 9))], out=tmp_path)
    with pytest.raises(ModelError, match="paths or PIL images"):
        draw_kept([prune(tiny)], torch.zeros(1, 3, 32, 32), out=tmp_path)
