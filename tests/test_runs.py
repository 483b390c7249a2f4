"""Run directories: resumed by the same command, refused to another, overwritten with care."""

import pytest

from clearvit.errors import StoreError
from clearvit.files import read_json
from clearvit.runs import PLAN, claim, output_directory

PLAN_A = {"model": "demo", "size": [32, 32]}


def take(folder, plan=PLAN_A, **options):
    claim(folder, plan, kind="tokens", files=["*.bin", "parts"], **options)


def test_a_new_directory_is_claimed_and_the_same_plan_resumes_it(tmp_path):
    out = tmp_path / "out"
    take(out)
    (out / "a.bin").touch()
    take(out, {"size": (32, 32), "model": "demo"})
    take(out, overwrite=True)  # the same plan: nothing is thrown away
    assert (out / "a.bin").exists()
    assert read_json(out / PLAN)["model"] == "demo"


def test_another_plan_is_refused_with_what_differs(tmp_path):
    take(tmp_path)
    with pytest.raises(StoreError, match=r"size was \[32, 32\], now \[64, 64\].*--overwrite"):
        take(tmp_path, PLAN_A | {"size": [64, 64]})
    with pytest.raises(StoreError, match="own words about size"):
        take(
            tmp_path,
            PLAN_A | {"size": 1},
            describe=lambda keys, theirs, ours: f"own words about {keys[0]}",
        )
    assert read_json(tmp_path / PLAN)["size"] == [32, 32]


def test_overwrite_removes_only_the_files_of_such_a_run(tmp_path):
    take(tmp_path)
    for name in ("a.bin", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "1").touch()
    take(tmp_path, PLAN_A | {"model": "other"}, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", PLAN]
    assert read_json(tmp_path / PLAN)["model"] == "other"


@pytest.mark.parametrize("overwrite", [False, True])
def test_directories_of_other_things_are_refused(tmp_path, overwrite):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.bin").touch()
    with pytest.raises(StoreError, match="not empty"):
        take(tmp_path / "mine", overwrite=overwrite)
    claim(tmp_path / "cure", PLAN_A, kind="cure", files=[])
    with pytest.raises(StoreError, match="no tokens"):
        take(tmp_path / "cure", overwrite=overwrite)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file"):
        take(tmp_path / "file", overwrite=overwrite)
    assert (tmp_path / "mine" / "a.bin").exists()


def test_without_an_output_directory_there_is_one_that_vanishes(tmp_path):
    with output_directory(tmp_path / "out") as folder:
        assert folder == tmp_path / "out"
    with output_directory(None) as folder:
        (folder / "a").touch()
    assert not folder.exists()
