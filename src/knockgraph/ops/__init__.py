"""Sparse products on the shared graph and the kernels behind them; each has a slow reference in ``ops.reference``."""

from knockgraph.ops.attention import attend
from knockgraph.ops.attention_pool import attention_pool
from knockgraph.ops.backends.choice import BACKENDS, fused
from knockgraph.ops.distinct_rows import DistinctRows, touched_rows
from knockgraph.ops.dosed import dosed_logits
from knockgraph.ops.first_call import without_compiler
from knockgraph.ops.gated import GatedOperator, gated_dot, gated_spmm
from knockgraph.ops.gated_attention import gated_attend
from knockgraph.ops.norm_gelu import norm_gelu
from knockgraph.ops.operator import CsrTable, SparseOperator
from knockgraph.ops.pair_terms import pair_terms
from knockgraph.ops.pairwise import mix_pairs, pair_tables
from knockgraph.ops.precision import accumulator, at_least_float32, autocast_input, wide_and_narrow
from knockgraph.ops.relation_attention import mix_relations
from knockgraph.ops.relation_mlp import relation_mlp
from knockgraph.ops.row_norm import row_norm
from knockgraph.ops.shared_input import spmm_shared, spmm_shared_rows
from knockgraph.ops.spmm import Reduce, masked_degree, spmm

__all__ = [
    "BACKENDS",
    "CsrTable",
    "DistinctRows",
    "GatedOperator",
    "Reduce",
    "SparseOperator",
    "accumulator",
    "at_least_float32",
    "attend",
    "attention_pool",
    "autocast_input",
    "dosed_logits",
    "fused",
    "gated_attend",
    "gated_dot",
    "gated_spmm",
    "masked_degree",
    "mix_pairs",
    "mix_relations",
    "norm_gelu",
    "pair_tables",
    "pair_terms",
    "relation_mlp",
    "row_norm",
    "spmm",
    "spmm_shared",
    "spmm_shared_rows",
    "touched_rows",
    "wide_and_narrow",
]

without_compiler()
