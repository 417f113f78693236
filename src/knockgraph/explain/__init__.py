"""Which deleted genes, relations and neighbours carry a prediction."""

from knockgraph.explain.explanation import Explanation, Part
from knockgraph.explain.path import explain

__all__ = ["Explanation", "Part", "explain"]
