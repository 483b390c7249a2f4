from .bench import BenchEntry
from .bench_table import Bench, BenchRow

__all__ = ["Bench", "BenchEntry", "BenchRow"]
