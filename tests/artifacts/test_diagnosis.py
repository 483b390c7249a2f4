import copy
import json
import warnings

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import clearvit as cv
from clearvit.artifacts.attention_sinks import SINK
from clearvit.artifacts.diagnosis import passes_needed
from clearvit.artifacts.norms import border_preference
from clearvit.artifacts.verdict import next_command
from clearvit.backbones.load import load
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ImageError, ModelError
from tests.conftest import tiny_network
from tests.helpers.photos import packaged_photos

ONLY_NORMS = cv.DiagnoseConfig(equivariance=False, experiments=False)


def sources(count=8, seed=0):
    """Smooth random images with some flat background, as photos have."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        coarse = random.integers(0, 255, (7, 9, 3), dtype=np.uint8)
        source = np.array(Image.fromarray(coarse).resize((192, 160), Image.Resampling.BICUBIC))
        top = random.integers(0, 100)
        source[top : top + 60] = source[top : top + 60] // 8 + 90
        noise = random.integers(0, 12, source.shape)
        made.append(Image.fromarray(np.clip(source + noise, 0, 255).astype(np.uint8)))
    return made


@pytest.fixture(scope="module")
def base():
    """A ViT with random weights."""
    return load(tiny_network(img_size=96, embed_dim=48, depth=4, num_heads=3))


@pytest.fixture(scope="module")
def healthy(demo_backbone):
    """Half of the demo model: trained features without artifacts, on 24 x 24 patches."""
    half = copy.deepcopy(demo_backbone.resized(336))
    half.network.blocks = half.network.blocks[:6]
    return VitBackbone(half.network, half.preprocessing, name="half of the demo")


@pytest.fixture(scope="module")
def real_photos():
    return packaged_photos()


@pytest.fixture(scope="module")
def photos():
    return sources()


def f1(found, truth):
    return float(2 * (found & truth).sum() / (found.sum() + truth.sum()))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
@pytest.mark.parametrize("fraction", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("kind", ["high-norm", "low-norm", "positional"])
def test_planted_artifacts_get_their_verdict(healthy, real_photos, kind, fraction, seed):
    sick, mask = cv.testing.planted(healthy, kind, fraction, seed, block=3)
    result = cv.diagnose(sick, real_photos, config=ONLY_NORMS)
    truth = mask(real_photos)
    assert result.verdict == kind
    if kind == "positional":
        assert f1(result.observations.position_stats.find(), truth[0]) >= 0.8
        return
    assert f1(result.outlier_mask(), truth) >= 0.95
    assert result.onset == 3
    low, high = result.findings[0].interval
    assert low <= truth.float().mean() <= high


def quarters(path):
    """Four different images out of one photo."""
    photo = Image.open(path).convert("RGB")
    w, h = photo.width // 2, photo.height // 2
    return [photo.crop((x, y, x + w, y + h)) for x in (0, w) for y in (0, h)]


def test_experiments_on_planted_artifacts_move_the_way_of_the_paper(healthy, real_photos):
    sick, _ = cv.testing.planted(healthy, "high-norm", 0.05, 0, block=3)
    images = [quarter for path in real_photos for quarter in quarters(path)]
    config = cv.DiagnoseConfig(size=168, equivariance=False)
    found = cv.diagnose(sick, images, config=config).experiments
    assert found.redundancy.conclusive and found.redundancy.interval[0] > 0
    assert found.redundancy.auroc > 0.6  # outliers sit at redundant patches
    for probe, sign in ((found.position, 1), (found.pixels, -1)):  # top-1 falls, the error rises
        assert probe.conclusive
        normal, outlier = probe.row("normal"), probe.row("outlier")
        assert sign * (normal.means[0] - outlier.means[0]) > 0
    assert found.position.row("outlier").means[1] > found.position.row("normal").means[1]


def test_the_healthy_half_of_the_demo_is_called_healthy(healthy, real_photos):
    assert cv.diagnose(healthy, real_photos, config=ONLY_NORMS).verdict == "none"


def test_the_demo_has_artifacts_inside_and_none_at_its_output(demo_backbone, real_photos):
    result = cv.diagnose(demo_backbone, real_photos, config=ONLY_NORMS)
    assert result.verdict == "high-norm"
    assert result.onset in (6, 7)  # counted from 0
    assert set(range(7, 11)) <= set(result.findings[0].blocks)
    assert 0.003 < result.fraction < 0.02
    assert result.blocks[-1].high is None  # the output looks normal
    assert result.after_norm is None  # and so it does after the final norm
    assert result.blocks[result.peak].recurring >= 3 / 7  # the same places in several photos
    attention = result.attention
    assert 0 < attention.fraction < 0.03 and attention.register_fraction == 0
    assert attention.to_artifacts.shape == (3, 12, 6) and attention.to_artifacts[1].isnan().all()
    assert float(attention.lift[2].max()) > SINK  # patches look at them
    assert str(attention) in str(result)


@pytest.mark.parametrize("seed", range(20))
def test_no_false_alarm_on_random_weights(photos, seed):
    torch.manual_seed(seed)
    arguments = {"img_size": 128, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3}
    network = timm.create_model("vit_tiny_patch16_224", num_classes=0, **arguments)
    assert cv.diagnose(load(network), photos[:4], config=ONLY_NORMS).verdict == "none"


def test_the_verdict_none_has_no_cutoff_and_a_next_command(base, photos):
    result = cv.diagnose(base, photos, config=ONLY_NORMS)
    assert (result.verdict, result.cutoff, result.onset, result.fraction) == ("none", None, None, 0)
    assert result.next_command.startswith("clearvit tokens")
    assert not result.outlier_mask().any()


def test_batch_and_order_change_nothing(base, photos):
    sick, _ = cv.testing.planted(base, "high-norm", 0.02, 0)
    one = cv.diagnose(sick, photos, config=ONLY_NORMS)
    other_config = cv.DiagnoseConfig(equivariance=False, experiments=False, batch=1)
    other = cv.diagnose(sick, photos[::-1], config=other_config)
    assert torch.equal(one.outlier_mask(), other.outlier_mask().flip(0))
    assert one.cutoff == pytest.approx(other.cutoff, rel=0.011)


def test_one_image_is_enough_for_norms_and_says_nothing_of_places(base, photos):
    sick, mask = cv.testing.planted(base, "high-norm", 0.02, 0)
    result = cv.diagnose(sick, photos[0], config=ONLY_NORMS)
    assert result.verdict == "high-norm"
    assert f1(result.outlier_mask(), mask(photos[0])) == 1
    positional, _ = cv.testing.planted(base, "positional", 0.02, 0)
    assert cv.diagnose(positional, photos[0], config=ONLY_NORMS).verdict == "none"


def test_models_without_class_token_and_with_registers(photos):
    bare = load(tiny_network(img_size=64, class_token=False, global_pool="avg"))
    assert cv.diagnose(bare, photos, config=ONLY_NORMS).observations.attention is None
    network = tiny_network(img_size=64, reg_tokens=3, no_embed_class=True)
    with_registers = cv.diagnose(load(network), photos, config=ONLY_NORMS)
    assert len(with_registers.blocks[0].register_norms) == 3
    assert with_registers.observations.register_attention.shape == (8, 3, 64)


def test_blocks_without_plain_attention_are_diagnosed_without_it(photos):
    network = timm.create_model("vit_small_patch16_18x2_224", depth=2, embed_dim=48, num_heads=3)
    result = cv.diagnose(load(network, size=64), photos, config=ONLY_NORMS)
    assert result.observations.attention is None


def test_grid_backbones_say_why_not(photos):
    with pytest.raises(ModelError, match=r"grid-only.*clearvit look"):
        cv.diagnose(load(timm.create_model("resnet18")), photos)


def test_mixed_sizes_bad_files_and_limits(base, photos, tmp_path):
    for i, photo in enumerate(photos):
        photo.resize((40 + 30 * i, 50)).save(tmp_path / f"{i}.png")
    (tmp_path / "3.png").write_bytes(b"broken")
    result = cv.diagnose(base, tmp_path, config=ONLY_NORMS)
    assert len(result.observations.names) == 7
    assert [bad.name for bad in result.observations.skipped] == ["3.png"]
    few = cv.diagnose(
        base, tmp_path, config=cv.DiagnoseConfig(limit=2, equivariance=False, experiments=False)
    )
    assert len(few.observations.names) + len(few.observations.skipped) == 2
    with pytest.raises(cv.OptionError, match="limit is 0"):
        cv.diagnose(base, tmp_path, config=cv.DiagnoseConfig(limit=0))


def test_only_broken_images_are_an_error(base, tmp_path):
    (tmp_path / "a.png").write_bytes(b"broken")
    with pytest.raises(ImageError, match="none of 1 images could be read"):
        cv.diagnose(base, tmp_path, config=ONLY_NORMS)


def test_images_of_one_color_get_no_verdict_and_no_advice(base, photos):
    black = [Image.new("RGB", (120, 90)) for _ in range(3)]
    with pytest.raises(ImageError, match="one color"):
        cv.diagnose(base, black, config=ONLY_NORMS)
    assert len(cv.diagnose(base, [*black, photos[0]], config=ONLY_NORMS).observations.names) == 4


def test_class_attention_and_border_preference(base, photos):
    sick, _ = cv.testing.planted(base, "high-norm", 0.05, 0)
    report = cv.diagnose(sick, photos, config=ONLY_NORMS).blocks[-1]
    assert 0 < report.attention < 1
    mask = torch.zeros(10, 8, 8, dtype=torch.bool)
    mask[:, 0, :4] = True  # 40 of 280 border cells
    mask[:, 3, 3] = True  # 10 of 360 inner cells
    ratio = border_preference(mask.flatten(1), (8, 8))
    assert ratio == pytest.approx((40.5 / 280) / (10.5 / 360))
    assert border_preference(torch.zeros(2, 9, dtype=torch.bool), (3, 3)) is None


def test_equivariance_is_found_where_positions_rule(base, photos):
    network = tiny_network(img_size=64, embed_dim=48)
    calm = cv.diagnose(load(network), photos, config=cv.DiagnoseConfig(experiments=False))
    with torch.no_grad():
        network.pos_embed.mul_(0).add_(torch.randn_like(network.pos_embed))
    loud = cv.diagnose(load(network), photos, config=cv.DiagnoseConfig(experiments=False))
    assert loud.equivariance.ratio > 2 * calm.equivariance.ratio
    assert "non-equivariant" in [finding.kind for finding in loud.findings]


def test_a_network_without_positions_moves_with_the_picture(photos):
    network = tiny_network(img_size=64, depth=1, pos_embed="none")
    for block in network.blocks:  # no attention to the context: tokens depend on their patch alone
        torch.nn.init.zeros_(block.attn.proj.weight)
    result = cv.diagnose(load(network), photos, config=cv.DiagnoseConfig(experiments=False))
    assert max(result.equivariance.shift) < 1e-4
    assert result.verdict == "none"


def test_progress_counts_every_pass_once(base, photos):
    seen = []
    config = cv.DiagnoseConfig(shifted=2, batch=4, experiments=False)
    cv.diagnose(base, photos, config=config, progress=lambda *a: seen.append(a))
    assert seen[-1][1:3] == (26, 26) and passes_needed(8, config) == 26  # 8, 2 x 3, 4 drawn, 8
    done = [one[1] for one in seen]
    assert done == sorted(done)


def test_json_holds_the_same_numbers(base, photos):
    sick, _ = cv.testing.planted(base, "low-norm", 0.02, 0)
    result = cv.diagnose(sick, photos, config=cv.DiagnoseConfig(shifted=2, experiments=False))
    content = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert content["verdict"] == "low-norm" == result.verdict
    assert content["onset"] == result.onset and content["cutoff"] == result.cutoff
    assert len(content["blocks"]) == base.depth
    assert np.allclose(content["position_map"], result.position_map().numpy(), atol=1e-4)


def test_norms_after_the_final_norm_warn(base, photos):
    with pytest.warns(UserWarning, match="norm=False"):
        _ = base.tokens(photos[0]).norms
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = base.tokens(photos[0], norm=False).norms


def test_positional_artifacts_name_the_projection_as_the_next_command():
    assert "--method positional" in next_command("positional", "demo")
    assert "--method" not in next_command("high-norm", "demo")
