import math

import numpy as np
import pytest
import torch

from clearvit.artifacts.attention_sinks import (
    ROWS,
    AttentionStats,
    measure_attention,
    measure_rows,
)
from clearvit.artifacts.report.attention_section import draw_attention
from clearvit.images import find_images
from tests.helpers.photos import packaged_photos


def made_attention(heads=2, prefix=3, patches=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(heads, prefix + patches, prefix + patches, generator=generator)
    return (2 * scores).softmax(-1)


NAMES = ("class", "register", "register")
ARTIFACT = torch.tensor([0, 1, 0, 0, 1, 0], dtype=torch.bool)


def test_statistics_are_those_of_a_plain_loop():
    attention = made_attention()
    found = measure_rows(attention, ARTIFACT, NAMES)
    artifacts = [3 + i for i in range(6) if ARTIFACT[i]]
    rows = {"class": [0], "register": [1, 2], "patch": [3 + i for i in range(6) if not ARTIFACT[i]]}
    for head in range(2):
        values = attention[head].numpy().astype(float)
        for at, kind in enumerate(ROWS):
            drawn = np.mean([values[row, artifacts].sum() for row in rows[kind]])
            used = np.mean([values[row, [1, 2]].sum() for row in rows[kind]])
            assert float(found["to_artifacts"][at, head]) == pytest.approx(drawn)
            assert float(found["to_registers"][at, head]) == pytest.approx(used)
        for at, chosen in enumerate((rows["patch"], artifacts)):
            entropy = [-sum(v * math.log(v) for v in values[row]) / math.log(9) for row in chosen]
            assert float(found["entropy"][at, head]) == pytest.approx(np.mean(entropy))
            largest = np.mean([values[row].max() for row in chosen])
            assert float(found["concentration"][at, head]) == pytest.approx(largest)


def test_statistics_follow_a_permutation_of_the_patches():
    attention, order = made_attention(), torch.randperm(6)
    full = torch.cat([torch.arange(3), 3 + order])
    moved = measure_rows(attention[:, full][:, :, full], ARTIFACT[order], NAMES)
    for name, values in measure_rows(attention, ARTIFACT, NAMES).items():
        assert torch.allclose(values, moved[name])


def test_uniform_attention_has_entropy_one_and_draws_by_number():
    uniform = torch.full((1, 9, 9), 1 / 9)
    found = measure_rows(uniform, ARTIFACT, NAMES)
    assert torch.allclose(found["entropy"], torch.ones(2, 1, dtype=torch.float64))
    assert torch.allclose(found["to_artifacts"], torch.full((3, 1), 2 / 9, dtype=torch.float64))


def test_without_artifacts_their_numbers_are_unknown_and_nothing_is_claimed():
    found = measure_rows(made_attention(), torch.zeros(6, dtype=torch.bool), NAMES)
    assert found["entropy"][1].isnan().all() and not found["entropy"][0].isnan().any()
    assert float(found["to_artifacts"].abs().max()) == 0


def test_attention_equals_that_of_captured_maps(demo_backbone):
    backbone = demo_backbone.resized(56)
    images = find_images(packaged_photos()[:1])
    artifact = torch.zeros(1, 16, dtype=torch.bool)
    artifact[0, 5] = True
    stats = measure_attention(backbone, images, artifact, size=(56, 56))
    tokens = backbone.tokens([images[0].source], layers=range(12), capture="attention")
    drawn = tokens.attention[7][0, :, 0, 1 + 5]
    assert torch.allclose(stats.to_artifacts[0, 7].float(), drawn, atol=1e-5)


@pytest.mark.parametrize(("artifacts", "registers", "panels"), [(1, 1, 3), (1, 0, 2), (0, 1, 2)])
def test_every_kind_of_token_that_draws_attention_has_its_panel(artifacts, registers, panels):
    names = ("class", *("register",) * (2 * registers))
    flags = ARTIFACT if artifacts else torch.zeros(6, dtype=torch.bool)
    found = measure_rows(made_attention(prefix=len(names)), flags, names)
    stats = AttentionStats(
        images=1,
        fraction=2 / 9 * artifacts,
        register_fraction=2 / 9 * registers,
        **{name: values[:, None] for name, values in found.items()},
    )
    assert len(draw_attention(stats).axes) == panels
    assert ("registers" in str(stats)) == bool(registers)
