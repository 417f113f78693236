"""Layers: message passing on each sample's own perturbed graph, written against ``PerturbedGraphs``."""

from knockgraph.nn.gatv2_conv import GATv2Conv
from knockgraph.nn.gcn_conv import GCNConv
from knockgraph.nn.gene_to_reaction import GeneToReaction
from knockgraph.nn.gin_conv import GINConv
from knockgraph.nn.reaction_metabolite_conv import ReactionMetaboliteConv
from knockgraph.nn.sage_conv import SAGEConv

__all__ = ["GATv2Conv", "GCNConv", "GINConv", "GeneToReaction", "ReactionMetaboliteConv", "SAGEConv"]
