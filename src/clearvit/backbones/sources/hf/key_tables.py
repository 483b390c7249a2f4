"""Where every tensor of a Hugging Face vision tower stands in timm's network, family by family.

Names of theirs are those of published checkpoints. transformers 5 renames modules in memory but
reads and writes these.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearvit.backbones.sources.hf.hf_config import Settings
from clearvit.backbones.sources.hf.renaming import (
    Rule,
    fused,
    layer,
    same,
    shaped,
    unbiased,
    unused,
)


def _attention(theirs: Sequence[str], bias: bool) -> list[Rule]:
    return [
        fused(f"blocks.{{}}.attn.qkv.{kind}", [f"{name}.{kind}" for name in theirs])
        for kind in (("weight", "bias") if bias else ("weight",))
    ]


def _classic_attention(bias: bool) -> list[Rule]:
    inside = "encoder.layer.{}.attention"
    return [
        *_attention([f"{inside}.attention.{part}" for part in ("query", "key", "value")], bias),
        *layer("blocks.{}.attn.proj", f"{inside}.output.dense"),
    ]


def vit_rules(s: Settings) -> list[Rule]:
    """Map ViT and the encoder of ViT-MAE."""
    return [
        same("cls_token", "embeddings.cls_token"),
        same("pos_embed", "embeddings.position_embeddings"),
        *layer("patch_embed.proj", "embeddings.patch_embeddings.projection"),
        *layer("blocks.{}.norm1", "encoder.layer.{}.layernorm_before"),
        *_classic_attention(s.qkv_bias),
        *layer("blocks.{}.norm2", "encoder.layer.{}.layernorm_after"),
        *layer("blocks.{}.mlp.fc1", "encoder.layer.{}.intermediate.dense"),
        *layer("blocks.{}.mlp.fc2", "encoder.layer.{}.output.dense"),
        *layer("norm", "layernorm"),
    ]


def deit_rules(s: Settings) -> list[Rule]:
    """Map DeiT, which always has a distillation token."""
    return [same("dist_token", "embeddings.distillation_token"), *vit_rules(s)]


def dinov2_rules(s: Settings) -> list[Rule]:
    """Map DINOv2."""
    return [
        same("cls_token", "embeddings.cls_token"),
        same("pos_embed", "embeddings.position_embeddings"),
        *_dinov2_trunk(s),
    ]


def dinov2_registers_rules(s: Settings) -> list[Rule]:
    """Map DINOv2 with registers."""
    return [_folded_class(), _registers(s), *_dinov2_trunk(s)]


def _dinov2_trunk(s: Settings) -> list[Rule]:
    block, mlp = "encoder.layer.{}", ("weights_in", "weights_out") if s.gated else ("fc1", "fc2")
    return [
        unused("embeddings.mask_token", (1, s.width)),
        *layer("patch_embed.proj", "embeddings.patch_embeddings.projection"),
        *layer("blocks.{}.norm1", f"{block}.norm1"),
        *_classic_attention(s.qkv_bias),
        same("blocks.{}.ls1.gamma", f"{block}.layer_scale1.lambda1"),
        *layer("blocks.{}.norm2", f"{block}.norm2"),
        *layer("blocks.{}.mlp.fc1", f"{block}.mlp.{mlp[0]}"),
        *layer("blocks.{}.mlp.fc2", f"{block}.mlp.{mlp[1]}"),
        same("blocks.{}.ls2.gamma", f"{block}.layer_scale2.lambda1"),
        *layer("norm", "layernorm"),
    ]


def _registers(s: Settings) -> Rule:
    name = "embeddings.register_tokens"
    return same("reg_token", name) if s.registers else unused(name, (1, 0, s.width))


def _folded_class() -> Rule:
    """Fold the position of the class token into the token: timm gives positions to patches only."""

    def inward(token: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        return token + table[:, :1], table[:, 1:].contiguous()

    def outward(token: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        return token, torch.cat([torch.zeros_like(token), table], dim=1)

    theirs = ("embeddings.cls_token", "embeddings.position_embeddings")
    return Rule(("cls_token", "pos_embed"), theirs, inward, outward)


def _clip_trunk() -> list[Rule]:
    block = "encoder.layers.{}"
    return [
        *layer("blocks.{}.norm1", f"{block}.layer_norm1"),
        *_attention([f"{block}.self_attn.{part}_proj" for part in "qkv"], bias=True),
        *layer("blocks.{}.attn.proj", f"{block}.self_attn.out_proj"),
        *layer("blocks.{}.norm2", f"{block}.layer_norm2"),
        *layer("blocks.{}.mlp.fc1", f"{block}.mlp.fc1"),
        *layer("blocks.{}.mlp.fc2", f"{block}.mlp.fc2"),
        *layer("norm", "post_layernorm"),
    ]


def clip_rules(s: Settings) -> list[Rule]:
    """Map the vision tower of CLIP; its projection becomes timm's head."""
    return [
        shaped("cls_token", "embeddings.class_embedding", (1, 1, s.width), (s.width,)),
        _position_table(s),
        *layer("patch_embed.proj", "embeddings.patch_embedding", bias=False),
        *layer("norm_pre", "pre_layrnorm"),  # sic
        *_clip_trunk(),
        unbiased("head", "/visual_projection.weight", optional=True),
    ]


def _position_table(s: Settings) -> Rule:
    into, back = (1, -1, s.width), (-1, s.width)
    return shaped("pos_embed", "embeddings.position_embedding.weight", into, back)


def siglip_rules(s: Settings) -> list[Rule]:
    """Map SigLIP, and SigLIP 2 of fixed size; the pooling head is timm's `map` pooling."""
    return [
        _position_table(s),
        *layer("patch_embed.proj", "embeddings.patch_embedding"),
        *_clip_trunk(),
        *_pooling_head(),
    ]


def siglip2_rules(s: Settings) -> list[Rule]:
    """Map SigLIP 2 with native aspect ratio."""
    (height, width), name = s.patch, "patch_embed.proj.weight"
    patch = Rule(  # a linear layer over pixels laid out as rows, columns, colors
        (name,),
        ("embeddings.patch_embedding.weight",),
        lambda t: (t.reshape(-1, height, width, 3).permute(0, 3, 1, 2).contiguous(),),
        lambda t: (t.permute(0, 2, 3, 1).flatten(1).contiguous(),),
    )
    return [patch, *(rule for rule in siglip_rules(s) if name not in rule.ours)]


def _pooling_head() -> list[Rule]:
    """Attention pooling with a learned query; a checkpoint may come without it."""

    def inward(stack: Tensor) -> tuple[Tensor, ...]:
        query, key, value = stack.chunk(3)
        return query.contiguous(), torch.cat([key, value])

    def outward(query: Tensor, key_value: Tensor) -> tuple[Tensor, ...]:
        return (torch.cat([query, key_value]),)

    projections = [
        Rule(
            (f"attn_pool.q.{kind}", f"attn_pool.kv.{kind}"),
            (f"head.attention.in_proj_{kind}",),
            inward,
            outward,
            optional=True,
        )
        for kind in ("weight", "bias")
    ]
    return [
        same("attn_pool.latent", "head.probe", optional=True),
        *projections,
        *layer("attn_pool.proj", "head.attention.out_proj", optional=True),
        *layer("attn_pool.norm", "head.layernorm", optional=True),
        *layer("attn_pool.mlp.fc1", "head.mlp.fc1", optional=True),
        *layer("attn_pool.mlp.fc2", "head.mlp.fc2", optional=True),
    ]


def dinov3_rules(s: Settings) -> list[Rule]:
    """Map DINOv3 onto timm's Eva."""
    block = "layer.{}"
    into = ("fc1_g", "fc1_x") if s.gated else ("fc1",)
    names = ("gate_proj", "up_proj") if s.gated else ("up_proj",)
    inside = [
        rule
        for ours, theirs in zip(into, names, strict=True)
        for rule in layer(f"blocks.{{}}.mlp.{ours}", f"{block}.mlp.{theirs}")
    ]
    biases = [
        same(f"blocks.{{}}.attn.{part}_bias", f"{block}.attention.{part}_proj.bias")
        for part in ("qv" if s.qkv_bias else "")
    ]
    return [
        same("cls_token", "embeddings.cls_token"),
        unused("embeddings.mask_token", (1, 1, s.width)),
        _registers(s),
        *layer("patch_embed.proj", "embeddings.patch_embeddings"),
        *layer("blocks.{}.norm1", f"{block}.norm1"),
        *_attention([f"{block}.attention.{part}_proj" for part in "qkv"], bias=False),
        *biases,
        *layer("blocks.{}.attn.proj", f"{block}.attention.o_proj"),
        same("blocks.{}.gamma_1", f"{block}.layer_scale1.lambda1"),
        *layer("blocks.{}.norm2", f"{block}.norm2"),
        *inside,
        *layer("blocks.{}.mlp.fc2", f"{block}.mlp.down_proj"),
        same("blocks.{}.gamma_2", f"{block}.layer_scale2.lambda1"),
        *layer("norm", "norm"),
    ]
