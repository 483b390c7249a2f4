"""Networks of timm that every part of clearvit must run."""

# name, prefix tokens as users know them: class, distillation, registers
ARCHITECTURES = {
    "deit_tiny_patch16_224": (1, 0, 0),
    "deit_tiny_distilled_patch16_224": (1, 1, 0),
    "deit3_small_patch16_224": (1, 0, 0),
    "vit_tiny_patch16_224": (1, 0, 0),  # AugReg
    "vit_small_patch8_224": (1, 0, 0),  # DINO
    "vit_base_patch16_224": (1, 0, 0),  # MAE
    "vit_small_patch14_dinov2": (1, 0, 0),
    "vit_small_patch14_reg4_dinov2": (1, 0, 4),
    "vit_xsmall_patch16_clip_224": (1, 0, 0),
    "vit_base_patch32_clip_quickgelu_224": (1, 0, 0),
    "vit_base_patch16_siglip_224": (0, 0, 0),
    "vit_base_patch32_siglip_256": (0, 0, 0),  # SigLIP 2
    "vit_medium_patch16_gap_240": (0, 0, 0),
    "vit_medium_patch16_reg4_gap_256": (0, 0, 4),
    "vit_small_patch16_18x2_224": (1, 0, 0),
    "vit_tiny_r_s16_p8_224": (1, 0, 0),  # hybrid
    "eva02_tiny_patch14_224": (1, 0, 0),
    "vit_small_patch16_dinov3": (1, 0, 4),
    "vit_small_patch16_rope_mixed_224": (1, 0, 0),
    "vit_pe_core_tiny_patch16_384": (1, 0, 0),
}
