from .config import Matching, SearchConfig
from .explanations.explanation import Explanation, explain_pair
from .explanations.explanation_page import explain_page
from .gate import GateDecision, gate_reranking
from .index.hits import Hit, Hits
from .matching.optimal_transport import TransportResult, transport
from .matching.patch_matching import LocalFeatures, match
from .matching.pooling import pool_patches, pool_weights
from .patch_weights import class_attention, cross_correlation, official_rollout, rollout
from .ranking_metrics import RetrievalMetrics, retrieval_metrics
from .reranking import RerankResult, rerank
from .whitening import Whitening

__all__ = [
    "Explanation",
    "GateDecision",
    "Hit",
    "Hits",
    "LocalFeatures",
    "Matching",
    "RerankResult",
    "RetrievalMetrics",
    "SearchConfig",
    "TransportResult",
    "Whitening",
    "class_attention",
    "cross_correlation",
    "explain_page",
    "explain_pair",
    "gate_reranking",
    "match",
    "official_rollout",
    "pool_patches",
    "pool_weights",
    "rerank",
    "retrieval_metrics",
    "rollout",
    "transport",
]
