from .fine_head import FineReport
from .official import import_official
from .positional import OutputReport, positional_basis
from .registers import with_registers
from .results.cure_report import CureReport, EpochResult
from .test_time import Neuron, RegisterNeurons, find_neurons, with_neurons

__all__ = [
    "CureReport",
    "EpochResult",
    "FineReport",
    "Neuron",
    "OutputReport",
    "RegisterNeurons",
    "find_neurons",
    "import_official",
    "positional_basis",
    "with_neurons",
    "with_registers",
]
