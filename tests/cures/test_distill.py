"""Targets, losses, trainable weights and batches; the preset against PH-Reg's recipe in plain."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import clearvit as cv
from clearvit.backbones.output import positional_basis, remove_directions
from clearvit.cures.config import CureConfig
from clearvit.cures.distill import (
    Batch,
    Distillation,
    Student,
    cosine,
    distances,
    shift_batch,
)
from clearvit.cures.registers import (
    with_position_grid,
    with_registers,
)
from clearvit.cures.teacher import Teacher, directions_for, random_crop, read_tokens
from clearvit.errors import OptionError
from clearvit.images import find_images, read_image
from clearvit.training.held_out import split_held_out
from clearvit.training.loop import FitConfig, lr_factor
from clearvit.training.order import seeded_generator
from clearvit.views.sampling import Views, official_views
from tests.helpers.photos import soft_photos

PUBLISHED = ("registers", "positions", "patches", "last")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 15)


@pytest.fixture
def student(tiny):
    return with_registers(tiny, torch.randn(2, 24))


def tokens(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


def task_for(backbone, photos, folder, config, student=None):
    teacher = Teacher(backbone, config)
    cache = teacher.cache(find_images(photos), folder)
    cache.prepare()
    return Distillation(student or backbone, teacher, cache, cache.split_readable()[0], CPU)


# --- losses -------------------------------------------------------------------------------------


def test_the_loss_is_that_of_the_paper(tiny):
    """(1 - mean cosine) + mean squared error over batch, patches and channels, in plain numpy."""
    pixels, target = tokens(2, 3, 32, 32), tokens(2, 16, 24)
    config = CureConfig(class_weight=0)
    shown = torch.ones(2, 16, dtype=torch.bool)
    with torch.no_grad():
        found = Student(tiny, config)([Batch(pixels, target, torch.zeros(2, 0), shown)])["loss"]
    s, t = tiny.tokens(pixels).patches.double().numpy(), target.double().numpy()
    norms = (np.linalg.norm(s, axis=-1) + 1e-8) * (np.linalg.norm(t, axis=-1) + 1e-8)
    expected = (1 - ((s * t).sum(-1) / norms).mean()) + ((s - t) ** 2).mean()
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_padding_does_not_count(tiny):
    pixels, target = tokens(1, 3, 32, 32), tokens(1, 16, 24)
    shown = torch.ones(1, 16, dtype=torch.bool)
    shown[0, 3] = False
    config = CureConfig(class_weight=0)
    cls = torch.zeros(1, 0)
    with torch.no_grad():
        one = Student(tiny, config)([Batch(pixels, target, cls, shown)])["loss"]
        target[0, 3] += 100
        other = Student(tiny, config)([Batch(pixels, target, cls, shown)])["loss"]
    assert torch.equal(one, other)


def test_distances_are_zero_for_equal_tokens_and_grow_with_the_error():
    one = tokens(2, 5, 7)
    assert distances(one, one, 1.0).abs().max() < 1e-6
    assert torch.allclose(cosine(one, -one), -torch.ones(2, 5), atol=1e-6)
    assert (distances(one, 2 * one, 1.0) > 0).all() and (distances(one, 2 * one, 0.0) < 1e-6).all()


def test_the_class_token_is_kept(tiny):
    pixels = tokens(1, 3, 32, 32)
    found = tiny.tokens(pixels)
    shown = torch.ones(1, 16, dtype=torch.bool)
    batch = Batch(pixels, found.patches, found.cls + 1.0, shown)
    with torch.no_grad():
        losses = Student(tiny, CureConfig(class_weight=0.5))([batch])
        without = Student(tiny, CureConfig(class_weight=0.0))([batch])
    assert float(losses["patches"]) == pytest.approx(0, abs=1e-5)
    assert float(losses["loss"]) == pytest.approx(0.5 * float(losses["class"]), rel=1e-5)
    assert "class" not in without


# --- targets and batches ------------------------------------------------------------------------


@given(dy=st.integers(-2, 2), dx=st.integers(-1, 1), flip=st.booleans())
def test_targets_move_with_their_image(dy, dx, flip):
    """A linear patch embedding commutes with every view, so it can stand for clean tokens."""
    pixels, grid = tokens(1, 3, 32, 16), (4, 2)

    def clean(images):
        return F.avg_pool2d(images, 8).flatten(2).transpose(1, 2)

    views = Views(torch.tensor([[dy, dx]]), torch.tensor([flip]))
    batch = Batch(pixels, clean(pixels), torch.zeros(1, 3), torch.ones(1, 8) > 0)
    moved = shift_batch(batch, views, grid, torch.zeros(3))
    assert torch.allclose(moved.patches, clean(moved.pixels), atol=1e-6)
    assert int(moved.shown.sum()) == (4 - abs(dy)) * (2 - abs(dx))


def test_targets_are_the_denoised_tokens(tiny, photos, tmp_path):
    config = CureConfig(size=32, views=6, precision="no")
    cache = Teacher(tiny, config).cache(find_images(photos)[:2], tmp_path)
    cache.prepare()
    for number in range(2):
        pixels = tiny.preprocessing.normalize(cache[number].image)[None]
        assert torch.equal(pixels, next(tiny.pixels(find_images(photos)[number].source, size=32)))
        clean = cv.denoise(tiny, pixels, views=6, seed=number)
        assert torch.allclose(cache[number].patches.float(), clean.patches[0], atol=2e-3)
        assert torch.equal(cache[number].cls, tiny.tokens(pixels).cls[0].half())
    sizes = [path.stat().st_size for path in (tmp_path / "targets").iterdir()]
    assert len(sizes) == 2 and max(sizes) <= cache.bytes_each


@pytest.mark.parametrize("sampler", ["lattice", "whole", "official"])
def test_the_teacher_is_made_of_parts(tiny, photos, sampler):
    """Views of any kind, and positions removed from their average."""
    image = read_image(find_images(photos)[0].source)
    plain, projected = (
        Teacher(tiny, CureConfig(size=64, sampler=sampler, directions=k, precision="no"))
        for k in (0, 5)
    )
    clean, less = (teacher.target(image, 3).patches.float() for teacher in (plain, projected))
    pixels = plain.preprocessing(image, (64, 64))[None]
    expected = cv.denoise(tiny, pixels, views=10, sampler=sampler, seed=3).patches[0]
    assert torch.allclose(clean, expected, atol=2e-3)
    basis = positional_basis(tiny, 5, (64, 64))
    assert torch.allclose(less, remove_directions(expected, basis), atol=4e-3)


def test_directions_are_chosen_with_none_among_them(tiny, photos):
    sources = find_images(photos)
    for options, expected in (({}, {0}), ({"directions": 7}, {7}), ({"directions": "auto"}, None)):
        count, why = directions_for(tiny, sources, CureConfig(size=64, **options))
        assert count in (expected or {0, 5, 20, 50}) and bool(why) == (expected is None)
    assert directions_for(tiny, sources[:5], CureConfig(size=64, directions="auto"))[0] == 0


def test_a_teacher_in_half_precision_says_almost_the_same(tiny, photos, tmp_path):
    image = read_image(find_images(photos)[0].source)
    exact, half = (
        Teacher(tiny, CureConfig(size=32, precision=precision)).target(image, 0).patches
        for precision in ("no", "bf16")
    )
    assert F.cosine_similarity(exact.float(), half.float(), dim=-1).min() > 0.999
    assert not torch.equal(exact, half) and half.dtype == torch.float16


@pytest.mark.parametrize("augment", ["none", "shift-flip"])
def test_what_the_student_sees(tiny, photos, tmp_path, augment):
    config = CureConfig(augment=augment, size=64, views=4, held_out=0.2)
    task = task_for(tiny, photos, tmp_path, config)
    batches = [task.load_batch([1, 2, 3, 4], step)[0] for step in range(8)]
    shifted = torch.stack([~batch.shown.all(1) for batch in batches])
    assert shifted.any() == (augment == "shift-flip") and not shifted.all()
    (again,) = task.load_batch([2], 5)  # depends on the step and the image, on nothing else
    assert torch.equal(again.pixels[0], batches[5].pixels[1])
    plain = task.teacher.pixels(task.cache, task.training[1])
    assert all(torch.equal(b.pixels[0], plain) for b in batches) == (augment == "none")


def test_held_out_images_are_spread_and_never_trained_on():
    training, held = split_held_out(480, 0.1)
    assert len(held) == 48 and not set(training) & set(held)
    assert len(set(training) | set(held)) == 480
    assert split_held_out(2, 0.1) == ([1], [0]) and split_held_out(3, 0.0) == ([0, 1, 2], [])


# --- the preset ---------------------------------------------------------------------------------


def small(name, **options):
    """Give the preset on a machine of today: small images, few epochs, float32."""
    return CureConfig(preset=name, **{"size": 32, "batch": 4, "precision": "no", **options})


@pytest.mark.parametrize(
    ("name", "start", "end", "batch", "size"),
    [("ph-reg", 1e-4, 5e-6, 4 * 8, 518), ("ph-reg-clip", 3e-4, 1e-5, 4 * 16, 448)],
)
def test_the_preset_has_the_published_numbers(name, start, end, batch, size):
    config = CureConfig(preset=name)
    assert (config.lr, config.lr_end, config.batch, config.size) == (start, end, batch, size)
    assert (config.views, config.fraction, config.sampler) == (10, 0.15, "official")
    assert (config.registers, config.register_init, config.epochs) == (16, "normal", 100)
    assert (config.held_out, config.patience, config.ema_decay) == (0, None, 0)
    assert (config.clip_norm, config.warmup_steps, config.weight_decay) == (None, 0, 1e-2)
    assert (config.mse_weight, config.class_weight, config.augment) == (1, 0, "none")
    assert config.decay_all and config.fresh_targets and config.precision == "bf16"
    steps, rate, expected = 3, start, []
    for epoch in range(1, 101):  # the rate is set after each step, with the epoch counted from 1
        for _ in range(steps):
            expected.append(rate)
            rate = start * (end / start) ** (epoch / 100)
    fitting = FitConfig(100, 1, schedule=config.schedule, end_factor=end / start)
    assert [start * lr_factor(s, steps, fitting) for s in range(300)] == pytest.approx(expected)
    assert rate == pytest.approx(end)


@pytest.mark.parametrize(("width", "height"), [(90, 40), (40, 90), (20, 20)])
def test_images_are_cropped_not_squashed(width, height):
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    short = min(width, height)
    full = image.resize((width * 32 // short, height * 32 // short), Image.Resampling.BICUBIC)
    whole = np.array(full)
    starts = set()
    for seed in range(12):
        found = np.array(random_crop(image, (32, 32), seeded_generator(0, seed)))
        assert found.shape == (32, 32, 3)
        long = whole if width >= height else whole.transpose(1, 0, 2)
        crop = found if width >= height else found.transpose(1, 0, 2)
        matches = [x for x in range(long.shape[1] - 31) if (long[:, x : x + 32] == crop).all()]
        assert matches
        starts.add(matches[0])
    assert len(starts) > 1 or width == height


def test_crops_and_views_are_fresh_every_epoch(tiny, photos, tmp_path):
    config = small("ph-reg")
    task = task_for(tiny, photos, tmp_path, config)
    assert not list(tmp_path.rglob("*.safetensors")) and not task.held_out
    first, later, again = (task.load_batch([1], step)[0] for step in (0, 3, 3))
    assert torch.equal(again.patches, later.patches)  # resumes to the same
    assert not torch.equal(first.patches, later.patches) and first.shown.all()


def test_fresh_targets_are_the_official_average(tiny, photos, tmp_path):
    """Crop, farthest-point views, white padding, mean over the views that show a patch."""
    config = small("ph-reg", size=64)
    image = read_image(find_images(photos)[0].source)
    pixels, found = Teacher(tiny, config).fresh_target(image, (64, 64), seeded_generator(1, 2))
    rng = seeded_generator(1, 2)
    crop = random_crop(image, (64, 64), rng)
    assert torch.equal(pixels, tiny.preprocessing(crop, (64, 64)))
    seed = int(torch.randint(2**31, (1,), generator=rng))
    views = official_views((8, 8), 10, patch=(8, 8), seed=seed)
    white = (1 - torch.tensor(tiny.preprocessing.mean)) / torch.tensor(tiny.preprocessing.std)
    total, count = torch.zeros(8, 8, 24), torch.zeros(8, 8, 1)
    for (dy, dx), flip in zip((views.offsets // 8).tolist(), views.flips.tolist(), strict=True):
        view = white[:, None, None].expand(3, 64, 64).clone()
        index = torch.full((8, 8, 2), -1)
        for row in range(8):
            for column in range(8):
                y, x = row - dy, column - dx
                if 0 <= y < 8 and 0 <= x < 8:
                    source = pixels[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
                    view[:, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8] = source
                    index[y, x] = torch.tensor([row, column])
        if flip:
            view, index = view.flip(2), index.flip(1)
        features = tiny.tokens(view[None]).patches[0].unflatten(0, (8, 8))
        for y in range(8):
            for x in range(8):
                row, column = index[y, x].tolist()
                if row >= 0:
                    total[row, column] += features[y, x]
                    count[row, column] += 1
    assert torch.allclose(found, (total / count).flatten(0, 1), atol=1e-4)


def test_the_preset_trains_what_was_published(tiny, photos):
    cured = cv.cure(tiny, photos, config=small("ph-reg", epochs=1, registers=2))
    report = cured.report
    assert report.before is None and report.after is None and report.best_epoch == 1
    assert "none held out" in str(report)
    old, new = tiny.network.state_dict(), cured.network.state_dict()
    moved = {name for name in new if name in old and not torch.equal(old[name], new[name])}
    assert {name.split(".")[0] for name in moved} == {
        *("cls_token", "pos_embed", "patch_embed", "blocks")  # the token carries its position
    }
    assert all(n.startswith("blocks.2.") for n in moved if n.startswith("blocks"))


def test_clip_owns_a_position_table_of_the_size(tiny):
    larger = with_position_grid(tiny, (48, 64))
    assert larger.network.pos_embed.shape == (1, 1 + 6 * 8, 24)
    pixels = tokens(1, 3, 48, 64)
    assert torch.allclose(larger.tokens(pixels).patches, tiny.tokens(pixels).patches, atol=1e-5)
    assert with_position_grid(tiny, (32, 32)) is tiny


def test_clip_needs_its_own_preset(tiny, photos):
    clip = cv.load(tiny.network)
    clip.text = object()
    with pytest.raises(OptionError, match="ph-reg-clip"):
        cv.cure(clip, photos, config=small("ph-reg"))


def test_the_class_token_of_a_dense_head_is_that_of_the_network():
    from clearvit.backbones.clip_heads import dense_clip
    from tests.conftest import tiny_network

    clip = cv.load(tiny_network(num_classes=20, global_pool="token", pre_norm=True))
    pixels = tokens(2, 3, 32, 32)
    with torch.no_grad():
        patches, cls = read_tokens(dense_clip(clip, "maskclip"), pixels, with_class=True)
    assert torch.allclose(cls, clip.tokens(pixels).cls, atol=1e-5) and patches.shape[-1] == 20


# --- several sizes --------------------------------------------------------------------------------


def test_every_size_has_its_part_of_training_and_held_out_images(tiny):
    teacher = Teacher(tiny, CureConfig(sizes=(32, 32, 48)))
    training, held_out = split_held_out(480, 0.1)
    for numbers in (training, held_out):
        large = sum(teacher.size_of(number) == (48, 48) for number in numbers)
        assert large / len(numbers) == pytest.approx(1 / 3, abs=0.05)


def test_a_step_has_one_batch_for_each_size_with_its_own_targets(tiny, photos, tmp_path):
    config = CureConfig(sizes=(32, 48), views=4, augment="none", precision="no", directions=2)
    task = task_for(tiny, photos, tmp_path, config)
    images = list(range(8))
    batches = task.load_batch(images, 0)
    assert {tuple(batch.pixels.shape[2:]) for batch in batches} == {(32, 32), (48, 48)}
    assert sum(len(batch.pixels) for batch in batches) == 8
    teacher, number = task.teacher, task.training[0]
    size = teacher.size_of(number)
    alone = Teacher(tiny, CureConfig(size=size, views=4, precision="no", directions=2))
    expected = alone.target(task.cache.read(number), number).patches.float()
    grid = teacher.grid_of(size)
    (own,) = (batch for batch in batches if batch.patches.shape[1] == grid[0] * grid[1])
    assert torch.equal(own.patches[0], expected)


def test_the_loss_of_several_sizes_is_the_mean_over_images(tiny, photos, tmp_path):
    task = task_for(tiny, photos, tmp_path, CureConfig(sizes=(32, 48), views=4, precision="no"))
    batches = task.load_batch(list(range(8)), 0)
    with torch.no_grad():
        whole = task.student(batches)
        parts = [task.student([batch]) for batch in batches]
    for name, value in whole.items():
        mean = sum(p[name] * len(b.pixels) for p, b in zip(parts, batches, strict=True)) / 8
        assert float(value) == pytest.approx(float(mean), rel=1e-5)
