"""Examples of every format give the same mask; what is wrong with a file is one sentence."""

import json
import warnings

import numpy as np
import pytest
from PIL import Image

from clearvit.datasets import VOID
from clearvit.errors import ImageError
from clearvit.images import find_images
from clearvit.segmentation import read_examples, write_strokes
from clearvit.segmentation.annotations.coco import write_coco
from clearvit.segmentation.annotations.drawing import encode_runs

SIZE = (30, 40)  # height, width
BOX = (slice(5, 20), slice(10, 30))  # of the dog


def truth():
    mask = np.zeros(SIZE, dtype=np.int64)
    mask[BOX] = 1
    return mask


def save_image(path, size=SIZE):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((*size, 3), np.uint8)).save(path)


def save_mask(path, mask, palette=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(mask.astype(np.uint8))
    if palette:
        image = image.convert("P")
        image.putdata(mask.astype(np.uint8).ravel().tolist())
        image.putpalette([0, 0, 0, 200, 30, 30])
    image.save(path)


def coco_file(path, segmentation, **changes):
    content = {
        "images": [{"id": 7, "file_name": "a.jpg", "width": 40, "height": 30}],
        "categories": [{"id": 18, "name": "dog"}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 18, "segmentation": segmentation}],
    }
    path.write_text(json.dumps(content | changes))


def labelme_file(path, shapes, **changes):
    content = {"imagePath": "a.jpg", "imageHeight": 30, "imageWidth": 40, "shapes": shapes}
    path.write_text(json.dumps(content | changes))


CORNERS = [[10, 5], [30, 5], [30, 20], [10, 20]]


def as_index_mask(folder):
    save_mask(folder / "a.png", truth())
    (folder / "classes.txt").write_text("background\ndog\n")


def as_palette_mask_in_folders(folder):
    (folder / "images").mkdir()
    (folder / "a.jpg").rename(folder / "images" / "a.jpg")
    save_mask(folder / "masks" / "a.png", truth(), palette=True)
    (folder / "classes.txt").write_text("background\ndog\n")


def as_binary_masks(folder):
    (folder / "images").mkdir()
    (folder / "a.jpg").rename(folder / "images" / "a.jpg")
    save_mask(folder / "masks" / "dog" / "a.png", 255 * truth())


def as_coco_polygon(folder):
    coco_file(folder / "coco.json", [[value for corner in CORNERS for value in corner]])


def as_coco_runs(folder):
    coco_file(folder / "coco.json", {"size": [30, 40], "counts": encode_runs(truth() == 1)})


def as_coco_of_our_own(folder):
    write_coco(folder / "coco.json", {0: "background", 1: "dog"}, [("a.jpg", truth())])


def as_labelme(folder):
    labelme_file(folder / "a.json", [{"label": "dog", "points": CORNERS, "shape_type": "polygon"}])


def as_labelme_rectangle(folder):
    shape = {"label": "dog", "points": [[10, 5], [30, 20]], "shape_type": "rectangle"}
    labelme_file(folder / "a.json", [shape], version="5", imageData=None)


FORMATS = [
    *(as_index_mask, as_palette_mask_in_folders, as_binary_masks, as_coco_polygon, as_coco_runs),
    *(as_coco_of_our_own, as_labelme, as_labelme_rectangle),
]


@pytest.fixture
def folder(tmp_path):
    save_image(tmp_path / "a.jpg")
    return tmp_path


@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
def test_every_format_gives_the_same_mask(folder, write):
    write(folder)
    examples = read_examples(folder)
    assert examples.classes == ("background", "dog") and examples.numbers == (0, 1)
    assert [image.name.rsplit("/", 1)[-1] for image in examples.sources] == ["a.jpg"]
    mask = examples.read(0)
    different = mask != truth()
    assert different.sum() <= 80  # Pillow draws the outline of polygons too
    edge = np.zeros(SIZE, dtype=bool)
    edge[4:21, 9:31] = True
    edge[7:18, 12:28] = False
    assert not (different & ~edge).any()
    assert examples.pixels == (tuple(np.bincount(mask.ravel()).tolist()),)


def test_exact_formats_are_exact(folder):
    for write in (as_index_mask, as_coco_runs):
        write(folder)
        assert np.array_equal(read_examples(folder).read(0), truth())
        for path in [*folder.glob("*.json"), *folder.glob("*.png"), *folder.glob("*.txt")]:
            path.unlink()


def strokes(**changes):
    row = {"image": "a.jpg", "width": 40, "height": 30, "strokes": []}
    row["strokes"] = [
        {"class": "dog", "points": [[12, 10], [26, 10]], "radius": 2},
        {"class": "background", "points": [[3, 25]], "radius": 2},
    ]
    return row | changes


def test_strokes_label_what_they_touch_and_nothing_else(folder):
    write_strokes(folder / "strokes.json", ["background", "dog"], [strokes()])
    mask = read_examples(folder).read(0)
    assert mask[10, 20] == 1 and mask[25, 3] == 0
    assert (mask == VOID).mean() > 0.8
    filled = read_examples(folder, unlabelled="background").read(0)
    assert (filled == 0).mean() > 0.8 and (filled == 1).sum() == (mask == 1).sum()


def test_strokes_of_a_smaller_copy_are_scaled(folder):
    half = strokes(width=20, height=15)
    half["strokes"] = [
        {"class": "dog", "points": [[10, 5]], "radius": 2},
        {"class": "background", "points": [[1, 13]]},
    ]
    write_strokes(folder / "strokes.json", ["background", "dog"], [half])
    mask = read_examples(folder).read(0)
    assert mask.shape == SIZE and mask[10, 20] == 1


def test_one_class_of_strokes_is_too_few_and_says_what_to_add(folder):
    row = strokes()
    row["strokes"] = row["strokes"][:1]
    write_strokes(folder / "strokes.json", ["dog"], [row])
    with pytest.raises(ImageError, match=r"only of 'dog'.*'background'"):
        read_examples(folder)
    assert read_examples(folder, unlabelled="background").classes == ("background", "dog")


def test_numbers_of_index_masks_are_kept(folder):
    mask = truth() * 17
    mask[0] = 255
    save_mask(folder / "a.png", mask)
    examples = read_examples(folder)
    assert examples.numbers == (0, 17) and examples.classes == ("background", "class 17")
    assert (examples.read(0)[0] == VOID).all() and examples.read(0)[6, 12] == 1


def test_a_corrected_mask_joins_strokes_by_the_numbers_of_their_classes(folder):
    """The image of the mask lies among the images to segment, so the mask alone is enough."""
    write_strokes(folder / "strokes.json", ["background", "dog"], [strokes()])
    save_image(folder.parent / "photos" / "sub" / "b.jpg")
    save_mask(folder / "sub" / "b.png", truth())
    found = find_images(folder.parent / "photos")
    examples = read_examples(folder, images=found)
    assert [one.name for one in examples.sources] == ["a.jpg", "sub/b.jpg"]
    assert np.array_equal(examples.read(1), truth())


def test_pairs_of_images_and_arrays(folder):
    photo = Image.open(folder / "a.jpg")
    examples = read_examples([(photo, truth()), (folder / "a.jpg", truth() == 1)])
    assert len(examples) == 2 and np.array_equal(examples.read(0), examples.read(1))
    with pytest.raises(ImageError, match="pairs"):
        read_examples([photo])
    with pytest.raises(ImageError, match=r"height, width"):
        read_examples([(photo, np.zeros((30, 40, 3)))])


def test_masks_beside_png_images(folder):
    save_image(folder / "b.png")
    save_mask(folder / "b_mask.png", truth())
    save_mask(folder / "a.jpg.png", truth())
    assert [one.name for one in read_examples(folder).sources] == ["a.jpg", "b.png"]


def test_a_png_image_with_json_labels_is_no_mask(folder):
    save_image(folder / "b.png")
    labelme_file(folder / "b.json", [{"label": "dog", "points": CORNERS}], imagePath="b.png")
    assert [one.name for one in read_examples(folder).sources] == ["b.png"]


def test_a_mask_of_another_size_is_resized_only_if_the_shape_agrees(folder):
    save_mask(folder / "a.png", truth()[::2, ::2])
    assert read_examples(folder).read(0).shape == SIZE
    save_mask(folder / "a.png", truth()[:, :30])
    with pytest.raises(ImageError, match=r"a\.png.*30 x 30.*30 x 40"):
        read_examples(folder)


def test_two_classes_on_one_pixel_are_ignored_with_a_warning(folder):
    shapes = [{"label": name, "points": CORNERS} for name in ("dog", "cat")]
    shapes[1]["points"] = [[20, 5], [40, 5], [40, 20], [20, 20]]
    labelme_file(folder / "a.json", shapes)
    with pytest.warns(UserWarning, match=r"a\.json.*'dog' and 'cat'"):
        examples = read_examples(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mask = examples.read(0)
    assert mask[10, 25] == VOID and mask[10, 12] == 1 and mask[10, 36] == 2


def test_a_class_without_a_pixel_is_named(folder):
    save_mask(folder / "a.png", truth())
    (folder / "classes.txt").write_text("background\ndog\ncow\n")
    with pytest.warns(UserWarning, match="'cow'"):
        assert read_examples(folder).classes == ("background", "dog")


def wrong_number(folder):
    save_mask(folder / "a.png", truth() * 9)
    (folder / "classes.txt").write_text("background\ndog\n")


def no_image(folder):
    save_mask(folder / "b.png", truth())


def no_image_of_strokes(folder):
    write_strokes(folder / "s.json", ["background", "dog"], [strokes(image="b.jpg")])


def unknown_class(folder):
    row = strokes()
    row["strokes"][0]["class"] = "cow"
    write_strokes(folder / "s.json", ["background", "dog"], [row])


def other_json(folder):
    (folder / "x.json").write_text('{"a": 1}')


def huge_radius(folder):
    write_strokes(folder / "s.json", ["background", "dog"], [strokes()])
    text = (folder / "s.json").read_text().replace('"radius": 2', '"radius": 1e9')
    (folder / "s.json").write_text(text)


def huge_image(folder):
    row = strokes(width=100_000, height=100_000)
    write_strokes(folder / "s.json", ["background", "dog"], [row])


def many_strokes(folder):
    row = strokes(width=8000, height=6000)
    row["strokes"] = [{"class": "dog", "points": [[9, 9]], "radius": 1}] * 500
    write_strokes(folder / "s.json", ["background", "dog"], [row])


def wide_strokes(folder):
    row = strokes(width=8000, height=6000)
    row["strokes"] = [{"class": "dog", "points": [[9, 9]] * 500, "radius": 16000}]
    write_strokes(folder / "s.json", ["background", "dog"], [row])


def many_polygons(folder):
    as_coco_polygon(folder)
    content = json.loads((folder / "coco.json").read_text())
    content["images"][0] |= {"width": 8000, "height": 6000}
    content["annotations"] *= 600
    (folder / "coco.json").write_text(json.dumps(content))


def many_shapes(folder):
    shapes = [{"label": "dog", "points": CORNERS}] * 600
    labelme_file(folder / "a.json", shapes, imageWidth=8000, imageHeight=6000)


def unprintable_class(folder):
    row = strokes()
    row["strokes"][0]["class"] = "do\ng"
    write_strokes(folder / "s.json", ["background", "do\ng", "dog"], [row])


def wrong_category(folder):
    as_coco_polygon(folder)
    text = (folder / "coco.json").read_text().replace('"category_id": 18', '"category_id": 5')
    (folder / "coco.json").write_text(text)


def wrong_runs(folder):
    coco_file(folder / "coco.json", {"size": [30, 40], "counts": [3, 4]})


def outside(folder):
    labelme_file(folder / "a.json", [{"label": "dog", "points": CORNERS}], imagePath="/etc/passwd")


def color_mask(folder):
    save_image(folder / "masks" / "a.png")
    (folder / "images").mkdir()
    (folder / "a.jpg").rename(folder / "images" / "a.jpg")


def three_values(folder):
    as_binary_masks(folder)
    save_mask(folder / "masks" / "dog" / "a.png", truth() * 3 + (np.indices(SIZE)[0] > 25))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (wrong_number, r"a\.png.*class number 9"),
        (no_image, r"b\.png.*without its image"),
        (no_image_of_strokes, r"s\.json.*'b\.jpg'"),
        (unknown_class, "class 'cow'"),
        (other_json, r"x\.json.*neither"),
        (huge_radius, r"s\.json.*"),
        (huge_image, "100000 x 100000"),
        (many_strokes, r"s\.json.*than can be drawn"),
        (wide_strokes, r"s\.json.*than can be drawn"),
        (many_polygons, r"coco\.json.*than can be drawn"),
        (many_shapes, r"a\.json.*than can be drawn"),
        (unprintable_class, "control character"),
        (wrong_category, r"coco\.json.*category 5"),
        (wrong_runs, r"coco\.json.*run lengths"),
        (outside, "passwd"),
        (color_mask, r"a\.png.*mode RGB"),
        (three_values, "more than two values"),
        (lambda folder: None, "holds no labels"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_the_file(folder, write, message):
    write(folder)
    with pytest.raises(ImageError, match=message) as error:
        read_examples(folder)
    assert len(str(error.value)) < 600


def test_an_edited_example_changes_the_digest(folder):
    as_index_mask(folder)
    before = read_examples(folder).digest()
    assert read_examples(folder).digest() == before
    mask = truth()
    mask[0, 0] = 1
    save_mask(folder / "a.png", mask)
    assert read_examples(folder).digest() != before


@pytest.mark.parametrize("seed", range(3))
def test_hostile_json_is_an_image_error(folder, seed):
    rng = np.random.default_rng(seed)
    for write in (as_coco_polygon, as_coco_runs, as_labelme):
        write(folder)
        path = next(folder.glob("*.json"))
        text = path.read_text()
        for _ in range(40):
            at, length = rng.integers(len(text)), rng.integers(1, 9)
            junk = "".join(rng.choice(list('0123456789"{}[],:eE-. null')) for _ in range(3))
            path.write_text(text[:at] + junk + text[at + length :])
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    read_examples(folder)
            except ImageError:
                pass
        path.unlink()
