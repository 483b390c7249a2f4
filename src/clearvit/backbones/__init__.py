"""A name, a directory or an nn.Module -> Backbone.

torchvision is mended here, once, because every module of this room imports timm and timm
imports torchvision.
"""

from clearvit.backbones.torchvision_guard import import_torchvision

import_torchvision()
