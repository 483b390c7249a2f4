import numpy as np
import pytest
from PIL import Image

from clearvit.datasets.class_ids import cityscapes_ids, coco_stuff_ids
from clearvit.datasets.folders import find_label_splits, read_depths, read_labels
from clearvit.datasets.masks import detect_layout, read_masks
from clearvit.datasets.splits import VOID
from clearvit.errors import ImageError
from tests.helpers.made_data import class_folder, colour_image, depth_folder, save_png, voc_masks


def numbers(*values):
    return np.array([values, values], dtype=np.uint8)


def photo(width, height=2):
    return np.zeros((height, width, 3), dtype=np.uint8)


def test_voc(tmp_path):
    root = voc_masks(tmp_path)
    assert detect_layout(root) == "voc"
    train, val = (read_masks(root, split=split) for split in ("train", "val"))
    assert (len(train), len(val), len(train.classes)) == (6, 4, 21)
    mask = train.read(0)
    assert (mask[:, 0] == VOID).all()
    assert (mask[:, 1:] == colour_image(0)[1][:, 1:]).all()
    assert train.sources[0].name == "JPEGImages/000000.png"
    assert train.select([2]).masks == (train.masks[2],)


def test_voc_masks_may_have_a_palette(tmp_path):
    root = voc_masks(tmp_path, train=1, val=1)
    mask = Image.fromarray(np.full((32, 32), 20, dtype=np.uint8)).convert("P")
    mask.putpalette([7] * 768)
    mask.putdata([20] * 1024)
    mask.save(root / "SegmentationClass/000000.png")
    assert (read_masks(root, split="train").read(0) == 20).all()


def test_ade20k_counts_from_one(tmp_path):
    for split in ("training", "validation"):
        save_png(tmp_path / f"images/{split}/a.jpg", photo(3))
        save_png(tmp_path / f"annotations/{split}/a.png", numbers(0, 1, 150))
    found = read_masks(tmp_path, split="val")
    assert detect_layout(tmp_path) == "ade20k" and len(found.classes) == 150
    assert found.read(0)[0].tolist() == [VOID, 0, 149]


def test_cityscapes_label_ids_become_train_ids(tmp_path):
    save_png(tmp_path / "leftImg8bit/train/ulm/ulm_0_leftImg8bit.png", photo(4))
    save_png(tmp_path / "gtFine/train/ulm/ulm_0_gtFine_labelIds.png", numbers(0, 7, 26, 33))
    found = read_masks(tmp_path, split="train")
    assert detect_layout(tmp_path) == "cityscapes"
    assert found.read(0)[0].tolist() == [VOID, 0, 13, 18]
    assert found.classes[13] == "car"
    assert sorted({c for _, c in cityscapes_ids()}) == [VOID, *range(19)]


def test_coco_stuff_in_both_numberings(tmp_path):
    save_png(tmp_path / "images/train2017/1.jpg", photo(4))
    save_png(tmp_path / "annotations/train2017/1.png", numbers(0, 12, 181, 255))
    found = read_masks(tmp_path, split="train")
    assert detect_layout(tmp_path) == "coco-stuff" and len(found.classes) == 171
    assert found.read(0)[0].tolist() == [0, 11, 170, VOID]
    assert sorted({c for _, c in coco_stuff_ids()}) == [VOID, *range(171)]
    save_png(tmp_path / "annotations/train2017/1_labelTrainIds.png", numbers(0, 12, 170, 255))
    assert read_masks(tmp_path, split="train").read(0)[0].tolist() == [0, 12, 170, VOID]


def test_pascal_context_with_and_without_background(tmp_path):
    save_png(tmp_path / "JPEGImages/a.jpg", photo(3))
    save_png(tmp_path / "SegmentationClassContext/a.png", numbers(0, 1, 59))
    (tmp_path / "ImageSets/SegmentationContext").mkdir(parents=True)
    (tmp_path / "ImageSets/SegmentationContext/val.txt").write_text("a\n")
    found = read_masks(tmp_path, split="val")
    assert detect_layout(tmp_path) == "pascal-context" and len(found.classes) == 60
    assert found.read(0)[0].tolist() == [0, 1, 59]
    other = read_masks(tmp_path, split="val", layout="pascal-context-59")
    assert other.read(0)[0].tolist() == [VOID, 0, 58] and len(other.classes) == 59


@pytest.mark.parametrize("shape", ["{split}/{kind}", "{kind}/{split}"])
def test_folders_with_splits(tmp_path, shape):
    for split, highest in (("train", 4), ("val", 2)):
        save_png(tmp_path / shape.format(split=split, kind="images") / "sub/a.png", photo(3))
        save_png(
            tmp_path / shape.format(split=split, kind="masks") / "sub/a.png",
            numbers(0, highest, 255),
        )
    assert detect_layout(tmp_path) == "folders"
    found = read_masks(tmp_path, split="val")
    assert len(found.classes) == 5 and found.read(0)[0].tolist() == [0, 2, VOID]
    (tmp_path / "classes.txt").write_text("wall\nsky\n")
    assert read_masks(tmp_path, split="val").classes == ("wall", "sky")
    with pytest.raises(ImageError, match=r"a\.png' holds the class number 4"):
        read_masks(tmp_path, split="train").read(0)


def test_folders_without_splits_keep_every_fifth_for_testing(tmp_path):
    for i in range(10):
        save_png(tmp_path / f"images/{i}.png", photo(2))
        save_png(tmp_path / f"masks/{i}.png", numbers(0, 1))
    train, val = (read_masks(tmp_path, split=split) for split in ("train", "val"))
    assert [p.stem for p in val.images] == ["4", "9"] and len(train) == 8
    assert not set(train.images) & set(val.images)


def test_what_is_wrong_is_named(tmp_path):
    root = voc_masks(tmp_path, train=5, val=1)
    masks = root / "SegmentationClass"
    save_png(masks / "000000.png", np.full((32, 32), 21, dtype=np.uint8))
    save_png(masks / "000001.png", np.zeros((30, 32), dtype=np.uint8))
    save_png(masks / "000002.png", np.zeros((32, 32, 3), dtype=np.uint8))
    (masks / "000003.png").write_bytes(b"no image")
    train = read_masks(root, split="train")
    for index, message in enumerate(
        (
            "000000.png' holds the class number 21",
            "000001.png' has 30 x 32 pixels .* has 32 x 32",
            "000002.png' is an image of mode RGB",
            "000003.png' cannot be read",
        )
    ):
        with pytest.raises(ImageError, match=message):
            train.read(index)
    (masks / "000004.png").unlink()
    with pytest.raises(ImageError, match=r"000004\.png' has no '.*SegmentationClass.*000004\.png"):
        read_masks(root, split="train")


def test_splits_and_layouts_that_are_not_there(tmp_path):
    root = voc_masks(tmp_path / "voc", train=1, val=1)
    with pytest.raises(ImageError, match="lists there: train, val"):
        read_masks(root, split="test")
    (root / "ImageSets/Segmentation/val.txt").write_text("\n")
    with pytest.raises(ImageError, match="lists no images"):
        read_masks(root, split="val")
    (root / "ImageSets/Segmentation/val.txt").write_text("../a\n")
    with pytest.raises(ImageError, match="only plain names"):
        read_masks(root, split="val")
    with pytest.raises(ImageError, match="none of the known layouts"):
        detect_layout(tmp_path)
    with pytest.raises(ImageError, match="Closest: cityscapes"):
        read_masks(root, split="val", layout="cityscape")
    with pytest.raises(ImageError, match="is no folder"):
        detect_layout(tmp_path / "nowhere")


def test_depth_in_millimeters_and_meters(tmp_path):
    root = depth_folder(tmp_path)
    found = read_depths(root, split="train")
    depth = found.read(0)
    assert len(found) == 6 and (depth[0] == 0).all()
    assert set(np.unique(depth[1:])) <= {2.0, 4.0}
    assert (found.read(0)[1:] == np.where(colour_image(0)[1] == 1, 2.0, 4.0)[1:]).all()
    near = read_depths(root, split="val", limits=(1e-3, 3.0))
    assert near.name == "val" and set(np.unique(near.read(0))) == {0.0, 2.0}
    np.save(root / "train/depth/0000.npy", np.full((32, 32), 1.5, dtype=np.float32))
    (root / "train/depth/0000.png").unlink()
    assert (read_depths(root, split="train", unit="meters").read(0) == 1.5).all()
    with pytest.raises(ImageError, match="Is the unit meters"):
        read_depths(root, split="train", unit="meters").read(1)


def test_fractions_of_a_meter_survive(tmp_path):
    root = depth_folder(tmp_path, train=1, test=1)
    (root / "train/depth/0000.png").unlink()
    values = np.full((32, 32), 1.25, dtype=np.float32)
    values[0, 0] = np.nan
    Image.fromarray(values).save(root / "train/depth/0000.tif")
    depth = read_depths(root, split="train", unit="meters").read(0)
    assert depth[0, 0] == 0 and (depth.ravel()[1:] == 1.25).all()


def test_nyu_lists_and_scenes(tmp_path):
    pixels, depth = photo(4), np.full((2, 4), 1000, dtype=np.uint16)
    save_png(tmp_path / "train/den/rgb_00001.jpg", pixels)
    save_png(tmp_path / "train/den/sync_depth_00001.png", depth)
    assert (read_depths(tmp_path, split="train").read(0) == 1).all()
    lines = "/train/den/rgb_00001.jpg /train/den/sync_depth_00001.png 518.8\n/x.jpg None 518.8\n"
    (tmp_path / "nyu_test.txt").write_text(lines)
    assert len(read_depths(tmp_path, split="test")) == 1
    (tmp_path / "nyu_test.txt").write_text("/train/den/rgb_00009.jpg /a.png\n")
    with pytest.raises(ImageError, match=r"rgb_00009\.jpg' is in .*nyu_test\.txt"):
        read_depths(tmp_path, split="test")
    (tmp_path / "nyu_test.txt").write_text("../a.jpg ../b.png\n")
    with pytest.raises(ImageError, match="a line is an image and a depth map"):
        read_depths(tmp_path, split="test")
    with pytest.raises(ImageError, match="no split 'other'"):
        read_depths(tmp_path, split="other")
    save_png(tmp_path / "train/den/sync_depth_00001.png", depth[:, :2])
    with pytest.raises(ImageError, match="is not the shape of its image"):
        read_depths(tmp_path, split="train").read(0)


def test_class_folders(tmp_path):
    plain = class_folder(tmp_path / "plain", each=2)
    found = read_labels(plain)
    assert found.classes == ("blue", "green", "red") and found.labels == (0, 0, 1, 1, 2, 2)
    assert find_label_splits(plain) is None
    split = class_folder(tmp_path / "split", each=1, splits=("train", "test"))
    assert find_label_splits(split) == ("train", "test")
    assert len(read_labels(split, split="test")) == 3
    save_png(plain / "loose.png", photo(2))
    with pytest.raises(ImageError, match=r"loose\.png' lies beside"):
        read_labels(plain)
    with pytest.raises(ImageError, match="holds one class, 'red'"):
        class_folder(tmp_path / "one", each=1)
        for kind in ("blue", "green"):
            (tmp_path / "one" / kind / "0.png").unlink()
        read_labels(tmp_path / "one")
