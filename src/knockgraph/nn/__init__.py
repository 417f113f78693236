"""Layers: message passing on each sample's own perturbed graph, written against ``PerturbedGraphs``."""

from knockgraph.nn.conv.gatv2 import GATv2Conv
from knockgraph.nn.conv.gcn import GCNConv
from knockgraph.nn.conv.gin import GINConv
from knockgraph.nn.conv.relation_conv import RelationConv
from knockgraph.nn.conv.sage import SAGEConv
from knockgraph.nn.gene_to_reaction import GeneToReaction
from knockgraph.nn.reaction_metabolite_conv import ReactionMetaboliteConv

__all__ = ["GATv2Conv", "GCNConv", "GINConv", "GeneToReaction", "ReactionMetaboliteConv", "RelationConv", "SAGEConv"]
