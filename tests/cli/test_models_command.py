import json

import pytest

from tests.helpers.commands import invoke


def test_without_a_pattern_the_kinds_of_names_are_explained():
    done = invoke("models")
    assert done.exit_code == 0
    assert all(word in done.stdout for word in ("timm:ARCH@FILE", "hf:", "openclip:", "dir:"))
    assert "demo" in json.loads(invoke("models", "--json").stdout)["prefixes"]


def test_names_by_pattern_or_part():
    names = invoke("models", "vit_small*dinov2*").stdout.split()
    assert "timm:vit_small_patch14_dinov2.lvd142m" in names
    assert set(names) <= set(invoke("models", "dinov2").stdout.split())
    listed = json.loads(invoke("models", "timm:convnext_tiny", "--json").stdout)["models"]
    assert listed and {one["tokens"] for one in listed} == {"grid"}


def test_a_kind_is_what_the_network_is():
    from clearvit.backbones.guarded_timm import timm
    from clearvit.backbones.sources.model_names import list_names
    from clearvit.backbones.vit import is_vit

    for pattern in ("test_vit*", "eva02_tiny_patch14_224*", "test_convnext", "test_resnet*"):
        for name, kind in list_names(f"timm:{pattern}", untrained=True).items():
            network = timm.create_model(name.removeprefix("timm:"))
            assert kind == ("blocks" if is_vit(network) else "grid"), name


@pytest.mark.parametrize("pattern", ["nothing-like-this", "timm:[[["])
def test_no_match_says_how_to_search(pattern):
    done = invoke("models", pattern)
    assert done.exit_code == 1 and "wildcards" in done.output
