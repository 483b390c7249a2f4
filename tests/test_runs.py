"""Run directories: resumed by the same command, refused to another, overwritten with care."""

import json

import pytest

from clearvit.errors import StoreError
from clearvit.files import part_name, read_json
from clearvit.runs import PLAN, RECORD, claim, claim_files, output_directory

PLAN_A = {"model": "demo", "size": [32, 32]}


def take(folder, plan=PLAN_A, **options):
    claim(folder, plan, kind="tokens", files=["*.bin", "parts"], **options)


def test_a_new_directory_is_claimed_and_the_same_plan_resumes_it(tmp_path):
    out = tmp_path / "out"
    take(out)
    (out / "a.bin").touch()
    take(out, {"size": (32, 32), "model": "demo"})
    assert (out / "a.bin").exists()
    take(out, overwrite=True)  # the same plan, but from the start
    assert not (out / "a.bin").exists()
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


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_called_plan_json_makes_no_directory_ours(tmp_path, overwrite):
    """`cure --targets USERDIR --overwrite` deleted all of USERDIR."""
    for content in ('{"epochs": 3}', '{"clearvit": "training"}', "[]", "no JSON", ""):
        (tmp_path / PLAN).write_text(content)
        (tmp_path / "a.bin").touch()
        with pytest.raises(StoreError):
            take(tmp_path, overwrite=overwrite)
        assert (tmp_path / PLAN).read_text() == content and (tmp_path / "a.bin").exists()


def test_a_plan_that_lists_other_files_is_not_followed(tmp_path):
    take(tmp_path)
    plan = read_json(tmp_path / PLAN)
    (tmp_path / PLAN).write_text(json.dumps({**plan, "files": ["../*"], "size": 1}))
    (tmp_path / "a.bin").touch()
    with pytest.raises(StoreError, match="another version"):
        take(tmp_path, overwrite=True)
    assert (tmp_path / "a.bin").exists()


def test_two_runs_that_begin_at_once_do_not_refuse_each_other(tmp_path):
    (tmp_path / part_name(PLAN)).mkdir()  # the other is just writing its plan
    take(tmp_path)
    assert (tmp_path / PLAN).exists()


def test_results_are_replaced_by_the_verb_that_wrote_them_only(tmp_path):
    out = tmp_path / "out"
    claim_files(out, ["model.bin"], kind="cure")
    (out / "model.bin").write_text("cured")
    claim_files(out, ["model.bin", "README.md"], kind="cure")
    with pytest.raises(StoreError, match="holds a cure of clearvit"):
        claim_files(out, ["model.bin"], kind="prune")
    with pytest.raises(StoreError, match="holds a cure"):
        claim_files(out, ["other"], kind="export", strict=False)
    (out / "notes.txt").touch()
    with pytest.raises(StoreError, match=r"notes\.txt.*is no cure"):
        claim_files(out, ["notes.txt"], kind="cure")


@pytest.mark.parametrize("name", ["README.md", "training", "model.bin"])
def test_a_directory_of_somebody_else_is_not_taken(tmp_path, name):
    """A folder `training/` counted as proof of a cure."""
    (tmp_path / name).mkdir()
    with pytest.raises(StoreError, match="not empty"):
        claim_files(tmp_path, ["model.bin"], kind="cure")
    if name == "model.bin":
        with pytest.raises(StoreError, match="there already"):
            claim_files(tmp_path, ["model.bin"], kind="model", strict=False)
    for lie in ("[]", "{", '{"clearvit": 5, "format": 2, "files": []}', '{"clearvit": "cure"}'):
        (tmp_path / RECORD).write_text(lie)
        with pytest.raises(StoreError):
            claim_files(tmp_path, ["model.bin"], kind="cure")


def test_without_an_output_directory_there_is_one_that_vanishes(tmp_path):
    with output_directory(tmp_path / "out") as folder:
        assert folder == tmp_path / "out"
    with output_directory(None) as folder:
        (folder / "a").touch()
    assert not folder.exists()
