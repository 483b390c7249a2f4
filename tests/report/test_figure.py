import threading
import warnings

import matplotlib
import numpy as np
import pytest
from PIL import Image

from clearvit.errors import StoreError
from clearvit.report.figure import DPI, WIDTH, Panel, draw_panels, save_figure, shared_limits

PHOTO = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
VALUES = np.arange(12.0).reshape(3, 4)


def pixels(figure):
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3]


def test_kinds_and_shapes_follow_from_the_content():
    assert Panel("t", PHOTO).kind == "image"
    assert Panel("t", values=VALUES).kind == "heat"
    assert Panel("t", PHOTO, VALUES).kind == "overlay"
    assert Panel("t", note="nothing to see").kind == "text"
    assert Panel("t", PHOTO, VALUES).shape == pytest.approx(2 / 3)
    assert Panel("t", values=VALUES, aspect=2.0).shape == 2.0


def test_every_kind_draws_at_full_width(tmp_path):
    rows = [
        [Panel("photo", PHOTO), Panel("both", PHOTO, VALUES, label="unit")],
        [],
        [Panel("heat", values=VALUES, limits=(0, 5)), Panel("text", note="no class token")],
    ]
    path = save_figure(draw_panels(rows, "title", "caption"), tmp_path / "new" / "figure.png")
    with Image.open(path) as image:
        assert image.width == WIDTH * DPI
    assert [p.name for p in path.parent.iterdir()] == ["figure.png"]


def test_tokens_have_sharp_edges():
    values = np.array([[0.0, 1.0], [1.0, 0.0]])
    figure = draw_panels([[Panel("", values=values, cmap="gray")]])
    box = figure.axes[0].get_window_extent()
    picture = pixels(figure)
    height = picture.shape[0]
    inside = picture[
        height - int(box.y1) + 2 : height - int(box.y0) - 2, int(box.x0) + 2 : int(box.x1) - 2, 0
    ]
    assert set(np.unique(inside)) == {0, 255}


def test_panels_stay_inside_the_figure():
    rows = [[Panel(str(i), PHOTO, VALUES) for i in range(n)] for n in (1, 3, 6)]
    rows.append([Panel("tall", np.zeros((90, 30, 3)), aspect=3.0)])
    figure = draw_panels(rows, "title", "caption")
    for axes in figure.axes:
        box = axes.get_position()
        assert box.x0 >= 0 and box.x1 <= 1 and box.y0 >= 0 and box.y1 <= 1


@pytest.mark.parametrize("values", [np.zeros((2, 2)), np.full((2, 2), np.nan), np.ones((1, 1))])
def test_flat_or_missing_values_still_draw(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels(draw_panels([[Panel("t", values=values), Panel("t", PHOTO, values)]]))


def test_shared_limits():
    assert shared_limits([VALUES, VALUES + 10]) == (0, 21)
    assert shared_limits([VALUES], low=-1, top=0.5) == (-1, 5.5)
    assert shared_limits([np.array([[np.nan, 2.0, np.inf]])], low=0.0) == (0, 2)
    low, high = shared_limits([np.ones((2, 2))])
    assert high > low


def test_any_file_name_can_be_a_title(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for title in ("a$b$c_{^.jpg", "写真.jpg", "x" * 500, "%d\\n.png"):
            save_figure(draw_panels([[Panel(title[:20], PHOTO)]], title), tmp_path / "f.png")


def test_settings_of_matplotlib_are_left_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    save_figure(draw_panels([[Panel("t", PHOTO, VALUES)]]), tmp_path / "f.png")
    assert dict(matplotlib.rcParams) == before  # the backend is one of them


def test_threads_may_draw(tmp_path):
    def draw(i):
        save_figure(draw_panels([[Panel("t", values=VALUES)]]), tmp_path / f"{i}.png")

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({p.read_bytes() for p in tmp_path.iterdir()}) == 1  # and the same bytes each time


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        save_figure(draw_panels([[Panel("t", PHOTO)]]), tmp_path / "file" / "f.png")


def test_a_long_caption_stays_inside_the_figure():
    figure = draw_panels([[Panel("", values=np.ones((4, 4)))]], "title", "some long name " * 40)
    renderer = figure.canvas.get_renderer()
    for text in figure.texts:
        box = text.get_window_extent(renderer)
        assert box.x1 <= figure.bbox.x1 and box.y0 >= 0
