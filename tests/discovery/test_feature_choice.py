import numpy as np
import pytest
import torch

from clearvit.discovery import choose_features
from clearvit.discovery.feature_choice import MeanCorrelation
from clearvit.errors import ImageError


def test_correlations_are_averaged_over_pairs():
    matrices = torch.rand(4, 5, 5)
    seen = MeanCorrelation()
    for matrix in matrices:
        seen.add(matrix)
    table = np.corrcoef(matrices.flatten(1).numpy())
    assert seen.mean() == pytest.approx(table[~np.eye(4, dtype=bool)].mean(), abs=1e-5)


def test_the_choice_keeps_the_features_that_depend_least_on_the_position(backbone, photos):
    choice = choose_features(backbone, photos)
    least = min(choice.correlations, key=choice.correlations.__getitem__)
    most = max(choice.correlations, key=choice.correlations.__getitem__)
    assert choice.features[0] == least and most not in choice.features
    with pytest.raises(ImageError, match="two or more"):
        choose_features(backbone, photos[:1])
