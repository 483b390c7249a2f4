import pytest
from PIL import Image

from clearvit.datasets.voc import has_voc_boxes, read_voc_boxes
from clearvit.errors import ImageError
from tests.helpers.made_data import VOC_BOX, voc_folder, voc_object


def test_boxes_start_at_zero_and_keep_their_classes(tmp_path):
    two = voc_object(1, 1, 40, 30) + voc_object(
        11, 6, 20.5, 15, name="dog", marks="<difficult>1</difficult>"
    )
    voc_folder(tmp_path, {"a": two, "b": voc_object(3, 4, 5, 6)})
    assert has_voc_boxes(tmp_path) and not has_voc_boxes(tmp_path / "JPEGImages")
    found = read_voc_boxes(tmp_path)
    assert [one.name for one in found.images] == ["a", "b"] and not found.skipped
    assert found.images[0].boxes.tolist() == [[0, 0, 40, 30], [10, 5, 20.5, 15]]
    assert found.images[0].classes == ("cat", "dog")
    easy = read_voc_boxes(tmp_path, difficult=False)
    assert easy.images[0].classes == ("cat",)


def test_parts_of_an_object_are_no_objects(tmp_path):
    head = f"<part><name>head</name>{VOC_BOX.format(2, 2, 4, 4)}</part>"
    body = f"<object><name>person</name>{VOC_BOX.format(1, 1, 9, 9)}{head}</object>"
    voc_folder(tmp_path, {"a": body})
    assert read_voc_boxes(tmp_path).images[0].boxes.tolist() == [[0, 0, 9, 9]]


BROKEN = {
    "empty": ("", "no boxes"),
    "words": (voc_object("x", 1, 2, 3), "not four numbers"),
    "short": ("<object><bndbox><xmin>1</xmin></bndbox></object>", "not four numbers"),
    "inverted": (voc_object(9, 1, 3, 5), "is empty or outside"),
    "endless": (voc_object(1, 1, "nan", 5), "is empty or outside"),
    "unclosed": ("<object>", "cannot be read"),
    "absent": (None, "cannot be read"),
    "imageless": (voc_object(1, 1, 2, 2), "no image"),
    "../a": (None, "holds a path"),
}


def test_broken_annotations_are_listed_by_name(tmp_path):
    root = voc_folder(tmp_path, {"good": voc_object(1, 1, 9, 9)})
    names = ["good"]
    for name, (content, _) in BROKEN.items():
        names.append(name)
        if name not in ("imageless", "../a"):
            Image.new("RGB", (40, 30)).save(root / "JPEGImages" / f"{name}.jpg")
        if content is not None:
            text = f"<annotation>{content}</annotation>"
            (root / "Annotations" / f"{name}.xml").write_text(text)
    (root / "ImageSets/Main/trainval.txt").write_text("\n".join(names))
    found = read_voc_boxes(root)
    assert [one.name for one in found.images] == ["good"]
    assert [bad.name for bad in found.skipped] == list(BROKEN)
    for bad in found.skipped:
        assert BROKEN[bad.name][1] in bad.reason


def test_splits_that_cannot_be_used(tmp_path):
    voc_folder(tmp_path, {"a": ""})
    with pytest.raises(ImageError, match="lists there: trainval"):
        read_voc_boxes(tmp_path, split="val")
    with pytest.raises(ImageError, match=r"can be used: a: .*no boxes"):
        read_voc_boxes(tmp_path)
    (tmp_path / "ImageSets/Main/val.txt").write_text("\n")
    with pytest.raises(ImageError, match="lists no images"):
        read_voc_boxes(tmp_path, split="val")


def test_lists_of_one_class_have_a_second_column(tmp_path):
    voc_folder(tmp_path, {"a": voc_object(1, 1, 2, 2)})
    (tmp_path / "ImageSets/Main/cat_val.txt").write_text("a  1\n")
    assert len(read_voc_boxes(tmp_path, split="cat_val").images) == 1
