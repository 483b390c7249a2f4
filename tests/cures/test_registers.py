import pytest
import timm
import torch

import clearvit as cv
from clearvit.cures.config import CureConfig
from clearvit.cures.registers import initial_registers, registers_for, with_registers
from clearvit.errors import ModelError
from tests.conftest import randomised


def pictures(backbone, count=3, size=None):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, 3, *(size or backbone.preprocessing.size), generator=generator)


@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
def test_a_student_is_a_plain_timm_network(tiny, size):
    student = with_registers(tiny, torch.randn(5, 24))
    pixels = pictures(tiny, size=size)
    assert student.prefix_names == ("class", *["register"] * 5)
    assert student.network.no_embed_class and student.network.num_reg_tokens == 5
    ours = student.tokens(pixels)
    with torch.no_grad():
        theirs = student.network.forward_features(pixels)
    assert torch.allclose(torch.cat([ours.prefix, ours.patches], 1), theirs, atol=1e-5)


def test_registers_take_part_and_leave_the_original_alone(tiny):
    before = tiny.fingerprint()
    pixels = pictures(tiny)
    student = with_registers(tiny, torch.randn(2, 24))
    assert not torch.allclose(student.tokens(pixels).patches, tiny.tokens(pixels).patches)
    assert tiny.fingerprint() == before and tiny.prefix_names == ("class",)


def test_no_registers_is_a_plain_copy(tiny):
    student = with_registers(tiny, torch.empty(0, 24))
    pixels = pictures(tiny)
    assert torch.equal(student.tokens(pixels).patches, tiny.tokens(pixels).patches)
    assert student.network is not tiny.network


def test_where_registers_stand_does_not_matter(tiny):
    """The published code puts them first; attention does not care."""
    registers = torch.randn(3, 24)
    student = with_registers(tiny, registers)
    pixels = pictures(tiny)
    sequence = tiny.embed_pixels(pixels).sequence
    x = torch.cat([registers.expand(3, -1, -1), sequence], 1)
    with torch.no_grad():
        for block in tiny.network.blocks:
            x = block(x)
        patches = tiny.network.norm(x)[:, 4:]
    assert torch.allclose(student.tokens(pixels).patches, patches, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_small_patch16_dinov3", {"use_rope": True}),
        ("vit_base_patch16_siglip_224", {}),
        ("vit_base_patch16_clip_224", {}),
        ("eva02_tiny_patch14_224", {}),
    ],
)
def test_families_that_can_hold_registers(name, options):
    options = {key: value for key, value in options.items() if key != "use_rope"}
    network = timm.create_model(
        name, img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=2, **options
    )
    backbone = cv.load(randomised(network))
    if "register" in backbone.prefix_names:
        with pytest.raises(ModelError, match="registers already"):
            with_registers(backbone, torch.randn(2, 48))
        return
    student = with_registers(backbone, torch.randn(2, 48))
    assert student.tokens(pictures(backbone)).registers.shape == (3, 2, 48)
    assert student.prefix_names == (*backbone.prefix_names, "register", "register")


def test_a_distillation_token_is_refused_with_the_remedy():
    network = timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=24, num_heads=3
    )
    with pytest.raises(ModelError, match="registers=0"):
        with_registers(cv.load(network), torch.randn(1, 24))


def test_a_cured_model_is_refused_with_the_remedy(tiny):
    cured = with_registers(tiny, torch.randn(2, 24))
    with pytest.raises(ModelError, match=r"has 2 registers already.*registers=0"):
        with_registers(cured, torch.randn(2, 24))


def test_as_many_as_wanted_are_added_where_there_is_a_place_for_them(tiny):
    assert registers_for(tiny, 3) == (3, "") and registers_for(tiny, 0) == (0, "")
    cured = with_registers(tiny, torch.randn(2, 24))
    count, reason = registers_for(cured, None)
    assert count == 0 and "has 2 registers already" in reason
    with pytest.raises(ModelError, match="has 2 registers already"):
        registers_for(cured, 3)


@pytest.mark.parametrize("name", ["timm", "hf"])
def test_none_are_added_that_the_class_of_transformers_could_not_hold(name):
    """A default cure must not shut the way to transformers."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    plain, dino, other = (
        cv.load(timm.create_model(name, **sizes))
        for name in (
            "vit_tiny_patch16_224",
            "vit_small_patch14_dinov2",
            "vit_wee_patch16_reg1_gap_256",
        )
    )
    for backbone in (plain, dino):
        backbone.name = f"{name}:model"
    assert registers_for(dino, None) == (16, "")
    count, reason = registers_for(plain, None)
    assert count == 0 and f"no Hugging Face class could hold '{name}:model'" in reason
    assert registers_for(plain, 4) == (4, "")
    assert "registers already" in registers_for(other, None)[1]


def test_initial_values(tiny):
    pixels = pictures(tiny)
    normal = initial_registers(tiny, CureConfig(registers=4000, register_init="normal"), pixels)
    assert normal.std() == pytest.approx(24**-0.5, rel=0.02)
    near = initial_registers(tiny, CureConfig(registers=4), pixels)
    prefix = len(tiny.prefix_names)
    with torch.no_grad():
        patches = tiny.embed_pixels(pixels).sequence[:, prefix:].flatten(0, 1)
    assert (near - patches.mean(0)).abs().max() < 0.1 * patches.std(0).max()
    assert torch.equal(near, initial_registers(tiny, CureConfig(registers=4), pixels))
    assert not torch.equal(near, initial_registers(tiny, CureConfig(registers=4, seed=1), pixels))


@pytest.mark.parametrize(("init", "starts_at_teacher"), [("mean-patch", True), ("normal", False)])
def test_the_default_starts_where_the_teacher_is(demo_backbone, init, starts_at_teacher):
    """Untrained, on real photos: patch cosine at least 0.98, where the official start has 0.4."""
    from skimage import data

    backbone = demo_backbone.resized(224)
    images = [data.astronaut(), data.chelsea(), data.coffee()]
    from PIL import Image

    pixels = torch.cat(list(backbone.pixels([Image.fromarray(image) for image in images])))
    config = CureConfig(registers=16, register_init=init)
    student = with_registers(backbone, initial_registers(backbone, config, pixels))
    before, after = backbone.tokens(pixels), student.tokens(pixels)
    cosine = torch.cosine_similarity(before.patches, after.patches, dim=-1).mean()
    assert (cosine >= 0.98) == starts_at_teacher
    if starts_at_teacher:
        assert torch.cosine_similarity(before.cls, after.cls, dim=-1).mean() > 0.98
