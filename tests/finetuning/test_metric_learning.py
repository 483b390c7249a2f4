import json

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.miners import DistanceWeightedMiner

import clearvit as cv
from clearvit.backbones.guarded_timm import timm
from clearvit.backbones.load import load
from clearvit.errors import TrainingError
from clearvit.finetuning.labelled_images import ClassOrder
from clearvit.finetuning.metric_losses import BOUNDARY, MARGIN, EmbeddingLoss
from tests.conftest import tiny_network
from tests.helpers.class_folders import class_folders
from tests.helpers.commands import invoke

QUICK = {
    "size": 32,
    "epochs": 2,
    "classes": 2,
    "images_per_class": 2,
    "precision": "no",
    "dimension": 8,
}


def test_margin_loss_is_that_of_a_plain_loop():
    """Wu et al., ICCV 2017: [margin + D_ap - beta]+ and [margin - D_an + beta]+, active means."""
    torch.manual_seed(0)
    embeddings, labels = torch.randn(12, 8), torch.arange(12) % 3
    loss = EmbeddingLoss("margin", 3, 8)
    found = loss(embeddings, labels, seed=5).item()
    unit = F.normalize(embeddings, dim=1)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        anchors, positives, negatives = loss.miner(unit, labels)
    terms = []
    for a, p, n in zip(anchors.tolist(), positives.tolist(), negatives.tolist(), strict=True):
        near = float((unit[a] - unit[p]).norm()) - BOUNDARY + MARGIN
        far = BOUNDARY - float((unit[a] - unit[n]).norm()) + MARGIN
        terms += [max(0.0, near), max(0.0, far)]
    active = [term for term in terms if term > 0]
    assert found == pytest.approx(sum(active) / len(active), rel=1e-4)


def test_negatives_are_drawn_with_the_inverse_density_of_distances():
    """q(d) ~ d^(n-2) (1 - d^2/4)^((n-3)/2), cut at 0.5; farther than 1.4 is never drawn."""
    dims, cutoff, farthest = 16, 0.5, 1.4
    angles = torch.linspace(0.3, 1.4, 8)
    anchor = torch.zeros(1, dims)
    anchor[0, 0] = 1
    others = torch.zeros(8, dims)
    others[:, 0], others[:, 1] = angles.cos(), angles.sin()
    points = torch.cat([anchor, anchor, others])
    labels = torch.tensor([0, 0, *range(1, 9)])
    distances = (others - anchor).norm(dim=1).clamp(min=cutoff)
    log_density = (dims - 2) * distances.log() + (dims - 3) / 2 * (1 - distances**2 / 4).log()
    expected = torch.where(distances < farthest, (-log_density).exp(), 0)
    expected /= expected.sum()
    miner = DistanceWeightedMiner(cutoff=cutoff, nonzero_loss_cutoff=farthest)
    torch.manual_seed(0)
    drawn = torch.cat([miner(points, labels)[2] for _ in range(4000)]) - 2
    counts = torch.bincount(drawn, minlength=8).float()
    assert torch.allclose(counts / counts.sum(), expected.float(), atol=0.03)


def test_mining_is_a_function_of_the_seed():
    embeddings, labels = torch.randn(12, 8), torch.arange(12) % 3
    loss = EmbeddingLoss("margin", 3, 8)
    assert loss(embeddings, labels, 1).item() == loss(embeddings, labels, 1).item()
    losses = {round(loss(embeddings, labels, seed).item(), 6) for seed in range(5)}
    assert len(losses) > 1


@pytest.mark.parametrize("name", ["triplet", "contrastive", "multi-similarity", "proxy-anchor"])
def test_every_loss_has_a_gradient(name):
    embeddings = torch.randn(8, 6, requires_grad=True)
    EmbeddingLoss(name, 4, 6)(embeddings, torch.arange(8) % 4, 0).backward()
    assert embeddings.grad.abs().sum() > 0


def test_batches_hold_as_many_images_of_each_class():
    members = tuple(tuple(range(5 * c, 5 * c + 5)) for c in range(7))
    order = ClassOrder(32, 16, seed=1, images_of=members, per_class=4)
    for step in range(6):
        batch = order.images(step)
        counts = torch.bincount(torch.tensor(batch) // 5)
        assert len(batch) == 16 and set(counts.tolist()) <= {0, 4}
        assert batch == order.images(step)
    assert order.images(0) != order.images(1)


@pytest.mark.parametrize("unfreeze", ["low-rank", "last-2"])
def test_a_tuned_model_is_a_plain_timm_model_that_goes_on_after_a_kill(tmp_path, unfreeze):
    images = class_folders(tmp_path / "images")
    backbone = load(tiny_network())
    out = tmp_path / "out"
    options = {**QUICK, "unfreeze": unfreeze, "keep_anyway": True, "lr": 1e-3, "folds": 2}
    tuned = cv.finetune(backbone, images, out=out, **options)
    report = tuned.report
    assert report.groups == 6 and [row["epoch"] for row in report.epochs] == [-1, 0, 1, 2]
    saved = json.loads((out / "finetune.json").read_text("utf-8"))
    assert saved["after"] == report.after and saved["options"]["unfreeze"] == unfreeze
    photo = images / "class0" / "0.png"
    again = cv.load(f"dir:{out}")
    assert again.embedding == 8
    assert torch.allclose(again.embed(photo), tuned.embed(photo), atol=1e-5)
    resumed = cv.finetune(backbone, images, out=out, **options)
    assert torch.equal(resumed.embed(photo), tuned.embed(photo))


def test_plain_timm_gives_the_embedding(tmp_path):
    images = class_folders(tmp_path / "images")
    options = {**QUICK, "keep_anyway": True}
    tuned = cv.finetune(load(tiny_network()), images, out=tmp_path / "out", **options)
    network = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    pixels = next(tuned.pixels(images / "class1" / "0.png", size=32))
    with torch.no_grad():
        own = F.normalize(network(pixels), dim=-1)
    torch.testing.assert_close(own, tuned.embed(pixels), atol=1e-5, rtol=1e-4)


def test_a_tuned_model_indexes_reranks_and_exports_like_any_other(tmp_path):
    images = class_folders(tmp_path / "images")
    options = {**QUICK, "keep_anyway": True}
    tuned = cv.finetune(load(tiny_network()), images, out=tmp_path / "out", **options)
    plain = cv.Index.build(tuned, images, out=tmp_path / "plain", size=32, grid=2)
    assert plain.spec.descriptor == "embedding" and plain.spec.facet == "token"
    assert (plain.spec.channels, plain.spec.width) == (8, tuned.width)
    options = {"size": 32, "grid": 2, "facet": "projected", "channels": 0}
    index = cv.Index.build(tuned, images, out=tmp_path / "index", **options)
    assert (index.spec.channels, index.spec.width) == (8, 8) and index.spec.same_space
    hits = index.search(images / "class2" / "0.png", k=5, weight=1.0, method="transport")
    assert hits[0].entry.name == "class2/0.png" and hits[0].patch_similarity is not None
    cv.export(tuned, tmp_path / "onnx", format="onnx", size=32)
    again = cv.load(f"onnx:{tmp_path / 'onnx'}")
    photo = images / "class3" / "1.png"
    torch.testing.assert_close(
        again.embed(photo), tuned.embed(photo, size=32), atol=1e-4, rtol=1e-3
    )
    assert cv.export(tuned, tmp_path / "timm", format="timm").difference < 1e-4


def test_the_raw_model_is_a_candidate(tmp_path):
    images = class_folders(tmp_path / "images", noise=400)  # classes that nobody can tell apart
    with pytest.raises(TrainingError, match="did not help beyond noise"):
        cv.finetune(load(tiny_network()), images, out=tmp_path / "out", **QUICK)
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("classes", "each", "said"), [(1, 4, "one class"), (3, 4, "at least 4"), (5, 1, "one image")]
)
def test_too_little_data_is_refused_before_any_work(tmp_path, classes, each, said):
    images = class_folders(tmp_path / "images", classes, each)
    with pytest.raises(cv.ClearvitError, match=said):
        cv.finetune(load(tiny_network()), images, out=tmp_path / "out", **QUICK)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dimension": 0}, "nothing to train"),
        ({"loss": "distill"}, "need each other"),
        ({"teacher": "demo"}, "need each other"),
        ({"task": "places"}, "holds classes"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(tmp_path, options, said):
    images = class_folders(tmp_path / "images")
    with pytest.raises(cv.ClearvitError, match=said):
        cv.finetune(load(tiny_network()), images, out=tmp_path / "out", **{**QUICK, **options})


def test_published_layouts_give_their_training_classes(tmp_path):
    from clearvit.datasets.retrieval_layouts import read_retrieval

    root = class_folders(tmp_path / "cub" / "images", 4, 2).parent
    names = sorted(p.relative_to(root / "images").as_posix() for p in root.rglob("*.png"))
    (root / "images.txt").write_text("\n".join(f"{i} {n}" for i, n in enumerate(names)))
    classes = {"class0": 1, "class1": 100, "class2": 101, "class3": 200}
    rows = "\n".join(f"{i} {classes[n.split('/')[0]]}" for i, n in enumerate(names))
    (root / "image_class_labels.txt").write_text(rows)
    assert set(read_retrieval(root, training=True).labels) == {1, 100}
    assert set(read_retrieval(root).labels) == {101, 200}


def test_the_command_names_the_next_step(tmp_path):
    images = class_folders(tmp_path / "images", 4, 4)
    flags = ("--size", "28", "--dimension", "16")
    done = invoke(
        "finetune", "demo", str(images), "-o", str(tmp_path / "o"), *flags, "--keep-anyway"
    )
    assert done.exit_code == 0, done.output
    assert "held out in turn" in done.output and "clearvit index" in done.output
