import pytest
import torch
import torch.nn.functional as F

from clearvit.dense.neighbours import Bank, nearest, vote


@pytest.mark.parametrize(("k", "chunk"), [(3, 4), (5, 100), (40, 7), (1, 1)])
def test_chunks_find_what_one_product_finds(k, chunk):
    queries, bank = torch.randn(6, 5), torch.randn(23, 5)
    values, places = nearest(queries, bank, k, chunk=chunk)
    expected = (queries @ bank.T).topk(min(k, 23), dim=1)
    assert torch.allclose(values, expected.values, atol=1e-5)
    assert torch.equal(places, expected.indices)


def test_votes_by_hand():
    labels = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    found = vote(torch.tensor([[0.2, 0.1]]), labels, temperature=0.1)
    share = torch.tensor(1.0).exp() / (1 + torch.tensor(1.0).exp())
    assert torch.allclose(found, torch.stack([share, 1 - share])[None])


def test_a_bank_knows_its_own_patches():
    tokens, labels = torch.randn(30, 8), F.one_hot(torch.arange(30) % 4).float()
    bank = Bank.build(tokens, labels, neighbours=5, temperature=0.01)
    assert torch.equal(bank(tokens * 7).argmax(1), torch.arange(30) % 4)
    assert torch.allclose(bank(torch.randn(9, 8)).sum(1), torch.ones(9), atol=1e-5)
