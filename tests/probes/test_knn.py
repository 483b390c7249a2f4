import pytest
import torch
import torch.nn.functional as F

from clearvit.probes.knn import find_neighbors, fit_knn


@pytest.mark.parametrize(("k", "chunk"), [(3, 4), (5, 100), (40, 7), (1, 1)])
def test_chunks_find_what_one_product_finds(k, chunk):
    queries, bank = torch.randn(6, 5), torch.randn(23, 5)
    values, rows = find_neighbors(queries, bank, k, chunk=chunk)
    expected = (queries @ bank.T).topk(min(k, 23), dim=1)
    assert torch.allclose(values, expected.values, atol=1e-5)
    assert torch.equal(rows, expected.indices)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_no_row_is_its_own_neighbor(chunk):
    bank = torch.randn(11, 5)
    _, rows = find_neighbors(bank, bank, 20, exclude_self=True, chunk=chunk)
    for i, row in enumerate(rows.tolist()):
        assert sorted(row) == [j for j in range(11) if j != i]


def test_votes_by_hand():
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    for labels in (torch.tensor([0, 1]), torch.eye(2)):
        found = fit_knn(bank, labels, k=2, temperature=0.5)(torch.tensor([[3.0, 4.0]]))
        assert torch.allclose(found, torch.tensor([[0.6, 0.8]]).div(0.5).softmax(1))


def test_leaving_one_out_is_the_bank_without_the_row():
    bank, labels = torch.randn(12, 5).double(), torch.arange(12) % 3
    found = fit_knn(bank, labels, k=4, temperature=0.1).leave_one_out()
    for i in range(12):
        rest = torch.arange(12) != i
        one = fit_knn(bank[rest], labels[rest], classes=3, k=4, temperature=0.1)(bank[i : i + 1])
        assert torch.allclose(found[i], one[0])


def test_a_bank_knows_its_own_patches():
    tokens, labels = torch.randn(30, 8), F.one_hot(torch.arange(30) % 4).float()
    bank = fit_knn(tokens, labels, k=5, temperature=0.01)
    assert torch.equal(bank(tokens * 7).argmax(1), torch.arange(30) % 4)
    assert torch.allclose(bank(torch.randn(9, 8)).sum(1), torch.ones(9), atol=1e-5)
