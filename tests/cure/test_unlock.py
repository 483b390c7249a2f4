import pytest
import torch

from clearvit.cure.registers import with_registers
from clearvit.cure.unlock import groups, unlock
from clearvit.errors import ModelError

RATES = {"registers": 1.0, "positions": 2.0, "patches": 3.0, "rest": 4.0}


@pytest.fixture
def student(tiny):
    return with_registers(tiny, torch.randn(2, 24))


def test_the_published_choice(student):
    names = unlock(student, ["registers", "positions", "patches", "last"])
    assert {name.split(".")[0] for name in names} == {
        "reg_token",
        "pos_embed",
        "patch_embed",
        "blocks",
    }
    assert all(n.startswith("blocks.2.") for n in names if n.startswith("blocks"))
    free = {n for n, p in student.network.named_parameters() if p.requires_grad}
    assert free == set(names)


@pytest.mark.parametrize(
    ("part", "blocks"),
    [("last", {"2"}), ("last-2", {"1", "2"}), ("last-4", {"0", "1", "2"})],
)
def test_last_blocks(student, part, blocks):
    assert {name.split(".")[1] for name in unlock(student, [part])} == blocks


def test_all_is_all_but_the_head(student):
    names = {n for n, _ in student.network.named_parameters() if not n.startswith("head")}
    assert set(unlock(student, ["all"])) == names


def test_words_that_do_not_exist_name_those_that_do(student):
    with pytest.raises(ModelError, match=r"no part 'lst'.*registers, positions"):
        unlock(student, ["lst"])
    with pytest.raises(ModelError, match="from 1"):
        unlock(student, ["last-0"])
    with pytest.raises(ModelError, match="nothing"):
        unlock(student, [])


def test_decay_and_rates(student):
    unlock(student, ["all"])
    found = {}
    for group in groups(student.network, RATES, decay=0.01):
        for parameter in group["params"]:
            found[id(parameter)] = (group["lr"], group["weight_decay"])
    for name, parameter in student.network.named_parameters():
        rate, decay = found[id(parameter)]
        first = name.split(".")[0]
        part = {"reg_token": 1.0, "pos_embed": 2.0, "patch_embed": 3.0}
        assert rate == part.get(first, 4.0)
        assert decay == (0.01 if name.endswith("weight") and parameter.ndim > 1 else 0.0)
    assert {
        g["weight_decay"] for g in groups(student.network, RATES, decay=0.01, decay_all=True)
    } == {0.01}
