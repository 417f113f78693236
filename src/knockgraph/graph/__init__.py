"""The cell graph: genes, relations, metabolism."""

from knockgraph.graph.cell_graph import CellGraph
from knockgraph.graph.genes import GeneNames
from knockgraph.graph.metabolism import Metabolism
from knockgraph.graph.reaction import Reaction
from knockgraph.graph.relation import Csr, Relation

__all__ = ["CellGraph", "Csr", "GeneNames", "Metabolism", "Reaction", "Relation"]
