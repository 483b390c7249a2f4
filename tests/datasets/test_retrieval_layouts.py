import csv

import numpy as np
import pytest

from clearvit.datasets.retrieval_layouts import detect_retrieval_layout, read_retrieval
from clearvit.errors import ImageError
from tests.helpers.made_data import class_folder, cub, save_png

TINY = np.zeros((4, 4, 3), dtype=np.uint8)


def sop(root):
    lines = ["image_id class_id super_class_id path"]
    for i, kind in enumerate((11319, 11319, 11320)):
        path = f"bicycle_final/{kind}_{i}.JPG"
        save_png(root / path.replace("JPG", "png"), TINY)
        lines.append(f"{i} {kind} 1 {path.replace('JPG', 'png')}")
    (root / "Ebay_test.txt").write_text("\n".join(lines))
    return root


def write_table(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def msls(root, city="cph"):
    sides = {"query": [0.0, 100.0, 500.0], "database": [20.0, 26.0, 110.0, 5.0]}
    for side, eastings in sides.items():
        folder = root / "train_val" / city / side
        keys = [f"{side}{i}" for i in range(len(eastings))]
        for key in keys:
            save_png(folder / "images" / f"{key}.jpg", TINY)
        table = [
            {"key": key, "easting": x, "northing": 7.0, "unique_cluster": 0}
            for key, x in zip(keys, eastings, strict=True)
        ]
        write_table(folder / "postprocessed.csv", table)
        panos = [{"key": key, "pano": str(key == "database3")} for key in keys]
        write_table(folder / "raw.csv", panos)
    return root


def test_cub_gives_its_test_classes(tmp_path):
    found = read_retrieval(cub(tmp_path))
    assert found.layout == "cub" and found.labels == (101, 101, 200)
    assert [path.name for path in found.gallery] == ["c.jpg", "d.jpg", "e.jpg"]
    assert found.count_positives(np.arange(3)).tolist() == [1, 1, 0]


def test_sop_gives_the_images_of_its_test_list(tmp_path):
    found = read_retrieval(sop(tmp_path))
    assert found.layout == "sop" and found.labels == (11319, 11319, 11320)


@pytest.mark.parametrize("kind", ["csv", "mat"])
def test_cars_by_its_list(tmp_path, kind):
    rows = [("car_ims/000001.jpg", 1), ("car_ims/000002.jpg", 99), ("car_ims/000003.jpg", 196)]
    for path, _ in rows:
        save_png(tmp_path / path, TINY)
    if kind == "csv":
        table = [{"relative_im_path": path, "class": label, "test": 0} for path, label in rows]
        write_table(tmp_path / "cars_annos.csv", table)
    else:
        io = pytest.importorskip("scipy.io")
        form = [("relative_im_path", object), ("class", object)]
        io.savemat(tmp_path / "cars_annos.mat", {"annotations": np.array([rows], dtype=form)})
    found = read_retrieval(tmp_path)
    assert found.layout == "cars" and found.labels == (99, 196)
    assert [path.name for path in found.gallery] == ["000002.jpg", "000003.jpg"]


def test_cars_by_class_folders_numbers_them_by_name(tmp_path):
    for i in range(1, 197):
        save_png(tmp_path / f"train/class {i:03d}/a.png", TINY)
        save_png(tmp_path / f"test/class {i:03d}/b.png", TINY)
    found = read_retrieval(tmp_path, layout="cars")
    assert len(found.gallery) == 2 * 98 and set(found.labels) == set(range(99, 197))
    with pytest.raises(ImageError, match="layout 'folders'"):
        read_retrieval(class_folder(tmp_path / "few", each=1), layout="cars")


def test_msls_pairs_images_within_25_meters_and_leaves_out_panoramas(tmp_path):
    found = read_retrieval(msls(tmp_path))
    assert found.layout == "msls" and len(found.gallery) == 3
    assert [path.stem for path in found.queries] == ["query0", "query1"]  # the third is alone
    assert found.positives == ((0,), (2,))
    assert read_retrieval(tmp_path / "train_val/cph").positives == found.positives
    both = msls(tmp_path, "sf")
    assert read_retrieval(both).positives == ((0,), (2,), (3,), (5,))


def test_class_folders_with_and_without_splits(tmp_path):
    plain = class_folder(tmp_path / "plain", each=2)
    assert detect_retrieval_layout(plain) == "folders" and len(read_retrieval(plain).gallery) == 6
    split = class_folder(tmp_path / "split", each=2, splits=("train", "test"))
    assert all("test" in path.parts for path in read_retrieval(split).gallery)
    assert all("train" in p.parts for p in read_retrieval(split, split="train").gallery)


def test_lists_that_cannot_be_used(tmp_path):
    root = cub(tmp_path / "cub")
    (root / "images/101.C/c.jpg").unlink()
    with pytest.raises(ImageError, match=r"c\.jpg' is listed, but does not exist"):
        read_retrieval(root)
    (root / "images.txt").write_text("3 ../../secret.jpg\n")
    with pytest.raises(ImageError, match="leaves the folder"):
        read_retrieval(root)
    (root / "images.txt").write_text("99 a.jpg\n")
    with pytest.raises(ImageError, match="no class of image 99"):
        read_retrieval(root)
    (tmp_path / "Ebay_test.txt").write_text("heading\n1 2 3\n")
    with pytest.raises(ImageError, match="four columns"):
        read_retrieval(tmp_path)
    write_table(tmp_path / "cars/cars_annos.csv", [{"file": "a.jpg", "kind": 1}])
    with pytest.raises(ImageError, match="headings relative_im_path"):
        read_retrieval(tmp_path / "cars")
    with pytest.raises(ImageError, match="Closest: cub"):
        read_retrieval(root, layout="cubs")
