"""bfloat16 where the hardware has it: what "auto" means, what is said, and that quality stays."""

import pytest
import torch
import torch.nn.functional as F

import clearvit as cv
from clearvit.precision import uses_bf16
from tests.helpers.made_data import voc_masks
from tests.helpers.photos import soft_photos

CPU = torch.device("cpu")


@pytest.fixture
def made_for_bf16(monkeypatch):
    monkeypatch.setattr("clearvit.precision.cpu_computes_bf16", lambda: True)


def test_auto_asks_the_processor(made_for_bf16, monkeypatch):
    assert uses_bf16(CPU, "auto") and uses_bf16(CPU, "bf16") and not uses_bf16(CPU, "no")
    monkeypatch.setattr("clearvit.precision.cpu_computes_bf16", lambda: False)
    assert not uses_bf16(CPU, "auto") and uses_bf16(CPU, "bf16")


def test_views_in_bf16_are_those_in_float32_to_a_thousandth(demo_backbone, made_for_bf16, tmp_path):
    photos = soft_photos(tmp_path, 2)
    plain, half = (
        cv.denoise(demo_backbone, photos, views=4, size=56, precision=p) for p in ("no", "auto")
    )
    assert half.patches.dtype == half.prefix.dtype == torch.float32
    assert not torch.equal(half.patches, plain.patches)
    assert F.cosine_similarity(half.patches, plain.patches, dim=-1).min() > 0.999
    assert torch.equal(half.counts, plain.counts)  # gathered in float32


def test_tokens_of_views_name_their_number_format(tiny, made_for_bf16, tmp_path):
    (tmp_path / "photos").mkdir()
    photos = soft_photos(tmp_path / "photos", 3)
    stored = cv.save_tokens(tiny, photos, out=tmp_path / "tokens", views=4)
    expected = cv.denoise(tiny, photos, views=4)
    assert torch.allclose(stored.read(range(3)).patches.float(), expected.patches, atol=2e-3)
    model = cv.cure(tiny, method="denoise", views=4)
    half = model.fingerprint()
    object.__setattr__(model.config, "precision", "no")
    assert model.fingerprint() != half


def test_a_task_says_what_it_used_and_finds_the_same(demo_backbone, made_for_bf16, tmp_path):
    voc = voc_masks(tmp_path)
    options = {"task": "knn-segmentation", "data": voc, "size": 112, "cache": tmp_path / "kept"}
    half = cv.evaluate(demo_backbone, **options)
    plain = cv.evaluate(demo_backbone, precision="no", **options)
    assert half.protocol["precision"] == ["bf16"] and plain.protocol["precision"] == ["float32"]
    assert half.rows[0]["mIoU"].mean == pytest.approx(plain.rows[0]["mIoU"].mean, abs=2)
    assert len(list((tmp_path / "kept").iterdir())) == 4  # one number format never reads another's


def test_tasks_of_an_index_stay_in_float32(tiny, made_for_bf16, tmp_path):
    from tests.helpers.made_data import class_folder

    folder = class_folder(tmp_path)
    table = cv.evaluate(tiny, task="retrieval", data=folder)
    assert table.protocol["precision"] == ["float32"]
