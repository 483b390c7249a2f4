from . import testing as testing
from .artifacts.config import DiagnoseConfig, LookConfig
from .artifacts.diagnosis import Diagnosis, diagnose
from .artifacts.report.look import look
from .backbones.backbone import Backbone
from .backbones.load import load
from .backbones.saved import save
from .backbones.tokens import Tokens
from .benchmarking.bench import bench
from .benchmarking.config import BenchConfig
from .comparison.compare import compare
from .comparison.config import CompareConfig, CurveConfig
from .comparison.curves import curve
from .cures.config import CureConfig
from .cures.cure import cure
from .cures.results.cure_file import apply
from .discovery.config import DiscoverConfig
from .discovery.discover import discover
from .errors import ClearvitError, ImageError, ModelError, OptionError, StoreError, TrainingError
from .evaluation.config import EvaluateConfig
from .evaluation.evaluate import evaluate
from .finetuning.config import FinetuneConfig
from .finetuning.metric_learning import finetune
from .formats.export import export
from .formats.push import push
from .microscopy.config import MicroscopeConfig
from .microscopy.microscope_page import microscope
from .microscopy.server.serving import serve
from .pruning.config import PruneConfig
from .pruning.prune import prune
from .retrieval.config import IndexConfig
from .retrieval.index.index import Index
from .segmentation.config import SegmentConfig
from .segmentation.segment import segment
from .shards.config import TokenConfig
from .shards.extract import save_tokens
from .shards.read import open_tokens
from .views.denoise import denoise

__version__: str

__all__ = [
    "Backbone",
    "BenchConfig",
    "ClearvitError",
    "CompareConfig",
    "CureConfig",
    "CurveConfig",
    "DiagnoseConfig",
    "Diagnosis",
    "DiscoverConfig",
    "EvaluateConfig",
    "FinetuneConfig",
    "ImageError",
    "Index",
    "IndexConfig",
    "LookConfig",
    "MicroscopeConfig",
    "ModelError",
    "OptionError",
    "PruneConfig",
    "SegmentConfig",
    "StoreError",
    "TokenConfig",
    "Tokens",
    "TrainingError",
    "apply",
    "bench",
    "compare",
    "cure",
    "curve",
    "denoise",
    "diagnose",
    "discover",
    "evaluate",
    "export",
    "finetune",
    "load",
    "look",
    "microscope",
    "open_tokens",
    "prune",
    "push",
    "save",
    "save_tokens",
    "segment",
    "serve",
    "testing",
]
