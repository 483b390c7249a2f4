import pytest
import torch

from clearvit.segmentation.class_maps import enlarge


@pytest.mark.parametrize("classes", [1, 2, 9])
def test_a_mask_is_the_first_of_the_most_probable_classes(classes):
    generator = torch.Generator().manual_seed(classes)
    maps = torch.randint(0, 4, (classes, 6, 5), generator=generator) / 4  # many ties
    wanted = torch.tensor(
        [
            [min(range(classes), key=lambda k: (-column[k], k)) for column in row]
            for row in maps.permute(1, 2, 0).tolist()
        ]
    )
    assert torch.equal(torch.from_numpy(enlarge(maps, (6, 5))).long(), wanted)
