import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.datasets import class_names
from clearvit.datasets.class_ids import coco_object_ids
from clearvit.datasets.class_names import caption_words, text_queries
from clearvit.datasets.masks import read_masks
from clearvit.errors import ModelError
from clearvit.evaluation.zero_shot_benchmarks import BENCHMARKS
from clearvit.probes.prompts import TextClasses, embed_classes
from tests.helpers.made_data import save_png

COUNTS = {
    "VOC": 21,
    "CONTEXT": 60,
    "COCO_THINGS": 80,
    "COCO_STUFF": 171,
    "CITYSCAPES": 19,
    "ADE20K": 150,
}


class Letters:
    """A text tower that turns each text into a direction of its own."""

    def encode(self, texts):
        rows = [np.random.default_rng(list(text.encode())).normal(size=8) for text in texts]
        return F.normalize(torch.tensor(np.array(rows)).float(), dim=1)

    def to(self, device):
        return self


def test_the_lists_are_complete_and_have_no_doubles():
    for name, count in COUNTS.items():
        found = getattr(class_names, name)
        assert len(found) == len(set(found)) == count, name
        assert all(word == word.strip() and word for word in found)
    assert len(class_names.BACKGROUND_WORDS) == 26
    assert set(BENCHMARKS) == {
        *("voc", "voc20", "pascal-context", "pascal-context-59", "coco-stuff", "coco-object"),
        *("cityscapes", "ade20k"),
    }


def test_names_become_words():
    assert caption_words("wall-brick") == ("brick wall",) and caption_words("sky-other") == ("sky",)
    assert caption_words("window-blind") == ("window blind",) and caption_words("t-shirt") == (
        "t-shirt",
    )
    assert caption_words("red_circle, red disc") == ("red circle", "red disc")
    for name in COUNTS:
        words = text_queries(getattr(class_names, name))
        assert all(words) and not any("-" in w or "_" in w for some in words for w in some)


def test_the_background_is_what_surrounds_objects_and_never_a_class():
    classes = ("background", *class_names.COCO_THINGS)
    words = text_queries(classes, objects_only=True)
    assert "bed" not in words[0] and "sky" in words[0] and words[1] == ("person",)
    assert text_queries(classes)[0] == ("background",)


def test_directions_are_the_ensemble_of_the_prompts():
    prompts = ("a {}.", "no {}")
    found = embed_classes(Letters(), [("cat",), ("dog", "hound")], prompts)
    for row, word in zip(found.directions, ("cat", "dog", "hound"), strict=True):
        mean = Letters().encode([p.format(word) for p in prompts]).mean(0)
        assert torch.allclose(row, mean / mean.norm(), atol=1e-6)
    assert found.class_index.tolist() == [0, 1, 1] and found.count == 2
    with pytest.raises(ModelError, match="class 1 has no name"):
        embed_classes(Letters(), [("cat",), ()], prompts)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.floats(0, 1))
def test_labels_are_the_softmax_written_out(seed, classes, threshold):
    chance = np.random.default_rng(seed)
    owners = np.sort(np.concatenate([np.arange(classes), chance.integers(0, classes, 3)]))
    cosines = chance.uniform(-1, 1, (len(owners), 3, 4)).astype(np.float32)
    text = TextClasses(torch.zeros(len(owners), 2), torch.from_numpy(owners), classes)
    shares = np.exp(40 * cosines.astype(np.float64))
    shares /= shares.sum(0)
    best = np.stack([shares[owners == kind].max(0) for kind in range(classes)])
    expected = best.argmax(0)
    expected[best.max(0) < threshold] = 0
    edge = np.abs(best.max(0) - threshold) < 1e-4
    ours = text.labels(torch.from_numpy(cosines), threshold=threshold).numpy()
    assert ((ours == expected) | edge).all()
    scores = text.class_scores(torch.from_numpy(cosines).flatten(1).T)
    assert (scores.argmax(1).reshape(3, 4).numpy() == best.argmax(0)).all()


def test_coco_objects_in_all_numberings(tmp_path):
    values = np.array([[0, 12, 89, 100], [91, 181, 255, 255]], dtype=np.uint8)
    save_png(tmp_path / "images/val2017/1.jpg", np.zeros((2, 4, 3), dtype=np.uint8))
    save_png(tmp_path / "annotations/val2017/1.png", values)
    found = read_masks(tmp_path, split="val", layout="coco-object")
    assert found.classes[0] == "background" and len(found.classes) == 81
    assert found.read(0).tolist() == [[1, 12, 80, 0], [0, 0, 0, 0]]
    assert sorted({kind for _, kind in coco_object_ids(gaps=False)}) == list(range(81))
    save_png(tmp_path / "annotations/val2017/1_instanceTrainIds.png", values % 81)
    again = read_masks(tmp_path, split="val", layout="coco-object")
    assert again.read(0)[0].tolist() == [0, 12, 8, 19]
