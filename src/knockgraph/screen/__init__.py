"""Experiments: from tables to batches of perturbations."""

from knockgraph.screen import splits
from knockgraph.screen.batch import PerturbationBatch
from knockgraph.screen.bound import BindReport, BoundScreen
from knockgraph.screen.genotypes import Genotypes
from knockgraph.screen.labels import LabelTransform
from knockgraph.screen.loader import ScreenLoader
from knockgraph.screen.order import EpochOrder
from knockgraph.screen.screen import Duplicates, Screen
from knockgraph.screen.splits import Split

__all__ = [
    "BindReport",
    "BoundScreen",
    "Duplicates",
    "EpochOrder",
    "Genotypes",
    "LabelTransform",
    "PerturbationBatch",
    "Screen",
    "ScreenLoader",
    "Split",
    "splits",
]
