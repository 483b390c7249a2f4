"""For `torch.hub.load("clearvit/clearvit", "backbone", "demo")`."""

dependencies = ["torch", "torchvision", "timm", "safetensors", "huggingface_hub", "lazy_loader"]


def backbone(name="demo", **options):
    """Load a backbone; see `clearvit.load` for names and options."""
    return _clearvit().load(name, **options)


def demo(**options):
    """Load DINOv2 ViT-S/14, the model of the demo."""
    return backbone("demo", **options)


def demo_cured(**options):
    """Load the demo model with the cure that ships."""
    return backbone("demo-cured", **options)


def _clearvit():
    """Import the package from the clone that torch.hub made, if it is not installed."""
    import sys
    from pathlib import Path

    try:
        import clearvit
    except ImportError:
        sys.path.append(str(Path(__file__).parent / "src"))
        import clearvit
    return clearvit
