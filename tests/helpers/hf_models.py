"""Tiny models of transformers with odd settings and random weights, and their tokens."""

import torch
import transformers

NATIVE, SMALLER, LARGER, OBLONG = (40, 40), (24, 24), (56, 56), (48, 72)

BASE = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "patch_size": 8}
VIT = {**BASE, "intermediate_size": 71, "image_size": 40}
DINO = {**BASE, "mlp_ratio": 3, "image_size": 40}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 99}
TEXT |= {"intermediate_size": 16, "bos_token_id": 1, "eos_token_id": 2}
NAFLEX = {**BASE, "intermediate_size": 71, "num_patches": 25}
DECODER = {"decoder_num_hidden_layers": 1, "decoder_hidden_size": 16}
DECODER |= {"decoder_intermediate_size": 16, "decoder_num_attention_heads": 2}
PAIR = {"text_config": TEXT, "projection_dim": 20}

# class, settings; the settings are odd on purpose
CASES = {
    "vit": ("ViTModel", {**VIT, "layer_norm_eps": 1e-3}),
    "vit-classifier": ("ViTForImageClassification", VIT),
    "vit-masked": ("ViTForMaskedImageModeling", {**VIT, "encoder_stride": 8}),
    "vit-no-bias-tanh": ("ViTModel", {**VIT, "qkv_bias": False, "hidden_act": "gelu_new"}),
    "vit-quick": ("ViTModel", {**VIT, "hidden_act": "quick_gelu"}),
    "vit-silu": ("ViTModel", {**VIT, "hidden_act": "silu"}),
    "deit": ("DeiTModel", VIT),
    "deit-teacher": ("DeiTForImageClassificationWithTeacher", VIT),
    "mae": ("ViTMAEModel", {**VIT, "mask_ratio": 0.0, **DECODER}),
    "mae-decoder": (
        "ViTMAEForPreTraining",
        {**VIT, "mask_ratio": 0.0, **DECODER, "norm_pix_loss": True},
    ),
    "dinov2": ("Dinov2Model", DINO),
    "dinov2-swiglu": ("Dinov2ForImageClassification", {**DINO, "use_swiglu_ffn": True}),
    "dinov2-registers": ("Dinov2WithRegistersModel", {**DINO, "num_register_tokens": 3}),
    "dinov2-registers-swiglu": (
        "Dinov2WithRegistersForImageClassification",
        {**DINO, "use_swiglu_ffn": True, "qkv_bias": False},
    ),
    "dinov2-no-registers": ("Dinov2WithRegistersModel", {**DINO, "num_register_tokens": 0}),
    "dinov3": ("DINOv3ViTModel", {**VIT, "num_register_tokens": 2, "rope_theta": 30.0}),
    "dinov3-gated": ("DINOv3ViTModel", {**VIT, "use_gated_mlp": True, "hidden_act": "silu"}),
    "dinov3-no-bias": ("DINOv3ViTModel", {**VIT, "query_bias": False, "value_bias": False}),
    "clip": ("CLIPVisionModel", VIT),
    "clip-projected": ("CLIPVisionModelWithProjection", {**VIT, "hidden_act": "gelu"}),
    "clip-pair": ("CLIPModel", {**PAIR, "vision_config": VIT}),
    "siglip": ("SiglipVisionModel", VIT),
    "siglip-no-head": ("SiglipVisionModel", {**VIT, "vision_use_head": False}),
    "siglip-pair": ("SiglipModel", {"text_config": TEXT, "vision_config": VIT}),
    "siglip2": ("Siglip2VisionModel", NAFLEX),
    "siglip2-pair": ("Siglip2Model", {"text_config": TEXT, "vision_config": NAFLEX}),
}


def randomised(model):
    """Give every weight a clearly random value: a forgotten bias or another GELU must show."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def saved_model(name, folder, **changes):
    """Write one of `CASES` to a folder and give it."""
    kind, settings = CASES[name]
    model_class = getattr(transformers, kind)
    model = randomised(model_class(model_class.config_class(**{**settings, **changes})))
    model.save_pretrained(folder)
    return model


def sequence(backbone, pixels):
    """Give all tokens of a backbone, (B, P + N, C)."""
    tokens = backbone.tokens(pixels)
    return torch.cat([tokens.prefix, tokens.patches], dim=1)
