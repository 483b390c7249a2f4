import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from timm.layers import resample_abs_pos_embed

from clearvit.backbones.positions import RULES, check_rule, resample_positions
from clearvit.errors import ModelError

grids = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(old=grids, new=grids, rule=st.sampled_from(RULES), prefix=st.integers(0, 3))
def test_shape_prefix_and_constants_survive(old, new, rule, prefix):
    table = torch.full((1, prefix + old[0] * old[1], 2), 0.5)
    table[:, :prefix] = torch.arange(prefix)[:, None].float()
    resized = resample_positions(table, old, new, rule, prefix=prefix)
    assert resized.shape == (1, prefix + new[0] * new[1], 2)
    assert torch.equal(resized[:, :prefix], table[:, :prefix])
    assert torch.allclose(resized[:, prefix:], torch.tensor(0.5), atol=1e-5)


@given(grid=grids, rule=st.sampled_from(RULES))
def test_the_native_grid_is_returned_as_it_is(grid, rule):
    table = torch.randn(1, grid[0] * grid[1], 3)
    assert resample_positions(table, grid, grid, rule) is table


@pytest.mark.parametrize("new", [(16, 16), (5, 9), (40, 20)])
def test_timm_rule_is_timms(new):
    table = torch.randn(1, 1 + 37 * 37, 4)
    theirs = resample_abs_pos_embed(table, list(new), [37, 37], num_prefix_tokens=1)
    assert torch.equal(
        resample_positions(table, (37, 37), new, "bicubic-antialias", prefix=1), theirs
    )


def test_offset_rule_is_the_formula_of_dinov2():
    table = torch.randn(1, 37 * 37, 4)
    image = table.reshape(1, 37, 37, 4).permute(0, 3, 1, 2)
    scale = (16.1 / 37, 16.1 / 37)
    theirs = F.interpolate(image, scale_factor=scale, mode="bicubic").permute(0, 2, 3, 1)
    ours = resample_positions(table, (37, 37), (16, 16), "bicubic-offset")
    assert torch.equal(ours, theirs.reshape(1, 256, 4))


def test_the_rules_differ_where_it_matters():
    table = torch.randn(1, 37 * 37, 4)
    results = [resample_positions(table, (37, 37), (16, 16), rule) for rule in RULES]
    for i, first in enumerate(results):
        for second in results[i + 1 :]:
            assert (first - second).abs().max() > 1e-3


def test_half_precision_tables_are_resized_in_float32():
    table = torch.randn(1, 64, 4, dtype=torch.bfloat16)
    ours = resample_positions(table, (8, 8), (5, 5), "bicubic")
    exact = resample_positions(table.float(), (8, 8), (5, 5), "bicubic")
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, exact.to(torch.bfloat16))


def test_unknown_rule_names_the_rules():
    with pytest.raises(ModelError, match=r"bicubic-antialias.*Closest: bicubic"):
        check_rule("bicubik")
