"""Aggregation over the shared graph with each sample's own deleted genes left out: ``m ⊙ A(m ⊙ x)``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.ops.backends.choice import resolve_backend
from knockgraph.ops.masked_extreme import masked_extreme
from knockgraph.ops.masked_sum import masked_sum
from knockgraph.ops.operator import CsrTable, SparseOperator
from knockgraph.ops.precision import accumulator, autocast_input
from knockgraph.ops.split_sum import split_sum

Reduce = Literal["sum", "mean", "max", "min"]


def spmm(
    operator: SparseOperator,
    x: Tensor,
    *,
    scale_in: Tensor | None = None,
    scale_out: Tensor | None = None,
    reduce: Reduce = "sum",
    degree: Tensor | None = None,
    weighted: bool = True,
    backend: str = "auto",
) -> Tensor:
    r"""``y = scale_out ⊙ A(scale_in ⊙ x)``, one pass for all samples, differentiable in ``x``.

    With the keep-vector on both sides this is message passing on each sample's own graph; on the output side alone
    only the incoming edges of deleted genes are removed. Entries whose scale is zero are left out entirely: their
    values (even NaN) do not reach any other gene, and their rows of ``y`` and of the gradient are exact zeros.

    ``mean`` divides by ``clamp(degree, 1)``, the number of kept neighbours. ``max`` and ``min`` run over the kept
    neighbours' :math:`w_{ji} x_j` and give 0 where there is none (a neighbour at ∓inf counts as none); on ties the
    gradient goes to the first neighbour in order of source index.

    Sums are accumulated in float32 (float64 for float64), in a fixed order for the ``cpu``, ``torch`` and ``triton``
    backends, so that equal inputs give equal bits. Under autocast ``x`` is cast down like the operand of a matrix
    product. Edge weights and scales get no gradient; ``max`` and ``min`` can be differentiated once.

    In half precision on a GPU, relations with more than 1.25 % of all possible edges (and 100,000) are multiplied as
    dense matrices, 87 MB each with 6,607 genes. A NaN in one kept gene's state then reaches all genes of its sample,
    not only its neighbours.

    Shapes:
        x [num_sources, batch, channels] -> y [num_destinations, batch, channels], or
        [num_relations, num_destinations, batch, channels] if the operator is stacked.

    Args:
        operator: The shared graph.
        x: Floating point features.
        scale_in: Bool keep-vector, or factors, [num_sources, batch]; None keeps everything.
        scale_out: The same on the side of the result, [num_destinations, batch], or per relation
            [num_relations, num_destinations, batch]. ``max`` and ``min`` only ask which scales are zero.
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        degree: For ``mean``, what :func:`masked_degree` gave for these scales, so that it is computed once per batch
            and used by all layers.
        weighted: False leaves the edge weights out of a sum.
        backend: ``auto``, ``cpu``, ``cusparse``, ``triton`` or ``torch``.

    Example:
        >>> operator = SparseOperator.from_edge_index(torch.tensor([[0, 1], [1, 2]]), num_sources=3)
        >>> keep = torch.tensor([[True, False], [True, True], [True, True]])
        >>> spmm(operator, torch.ones(3, 2, 1), scale_in=keep, scale_out=keep).squeeze(-1)
        tensor([[0., 0.],
                [1., 0.],
                [1., 1.]])
    """
    check_operands(operator, x, scale_in, scale_out)
    x = autocast_input(x)
    backend = resolve_backend(backend, x.device, sums=reduce in ("sum", "mean"))
    flat_out = None if scale_out is None else scale_out.flatten(0, -2)
    if reduce in ("max", "min"):
        keep_in = None if scale_in is None else scale_in != 0
        keep_out = None if flat_out is None else flat_out != 0
        y = masked_extreme(operator.by_destination, operator.by_source, x, keep_in, keep_out, reduce == "max", backend)
        return relation_axis(operator, y)
    if reduce == "mean":
        if degree is None:
            every = x.new_ones(x.shape[:2], dtype=torch.bool)
            degree = masked_degree(operator, every if scale_in is None else scale_in, scale_out, backend=backend)
        factor = 1.0 / degree.to(accumulator(x.dtype)).clamp(min=1.0)
        flat_out = (factor if scale_out is None else factor * scale_out).flatten(0, -2)
    elif reduce != "sum":
        raise StrategyError(f"Unknown reduction {reduce!r}; choose sum, mean, max or min.")
    split = operator.split_for(x) if backend == "triton" and x.is_cuda and x.numel() and weighted else None
    if split is not None:
        return relation_axis(operator, split_sum(split, x, scale_in, flat_out, backend))
    table, transposed = operator.by_destination, transposed_table(operator, backend)
    if not weighted:
        table, transposed = table._replace(weight=None), transposed._replace(weight=None)
    y = masked_sum(table, transposed, x, scale_in, flat_out, backend)
    return relation_axis(operator, y)


def masked_degree(
    operator: SparseOperator,
    keep_in: Tensor,
    keep_out: Tensor | None = None,
    *,
    weighted: bool = False,
    dtype: torch.dtype = torch.float32,
    backend: str = "auto",
) -> Tensor:
    """``keep_out ⊙ A keep_in``: each gene's number of kept neighbours in each sample.

    Shapes:
        keep_in [num_sources, batch] -> [num_destinations, batch], or [num_relations, num_destinations, batch].

    Args:
        operator: The shared graph.
        keep_in: Which sources are kept; zero means deleted.
        keep_out: Which destinations are kept, [num_destinations, batch]; None keeps all.
        weighted: Sum the edge weights instead of counting.
        dtype: Of the result; float32 counts exactly up to 16.7 million.
        backend: As for :func:`spmm`.
    """
    table, transposed = operator.by_destination, operator.by_source
    if not weighted:
        table, transposed = table._replace(weight=None), transposed._replace(weight=None)
    kept = (keep_in != 0).to(dtype).unsqueeze(-1)
    flat_out = None if keep_out is None else (keep_out != 0).flatten(0, -2)
    check_operands(operator, kept, None, keep_out)
    backend = resolve_backend(backend, kept.device)
    return relation_axis(operator, masked_sum(table, transposed, kept, None, flat_out, backend)).squeeze(-1)


def transposed_table(operator: SparseOperator, backend: str) -> CsrTable:
    """The form of the transpose that the backend reads fastest."""
    return operator.by_source_in_panels if backend in ("cpu", "torch") else operator.by_source


def check_operands(operator: SparseOperator, x: Tensor, scale_in: Tensor | None, scale_out: Tensor | None) -> None:
    """Refuse shapes that do not fit: the kernels would read out of bounds."""
    if x.dim() != 3 or x.shape[0] != operator.num_sources or not x.is_floating_point():
        raise StrategyError(
            f"x must be floating point [num_sources={operator.num_sources}, batch, channels], "
            f"not {x.dtype} {list(x.shape)}."
        )
    batch = x.shape[1]
    if scale_in is not None and scale_in.shape != (operator.num_sources, batch):
        raise StrategyError(
            f"The scale of the sources must be [{operator.num_sources}, {batch}], not {list(scale_in.shape)}."
        )
    shapes = [(operator.num_destinations, batch)]
    if operator.stacked:
        shapes.append((operator.num_relations, operator.num_destinations, batch))  # type: ignore[arg-type]
    if scale_out is not None and tuple(scale_out.shape) not in shapes:
        raise StrategyError(
            f"The scale of the destinations must be {' or '.join(str(list(s)) for s in shapes)}, "
            f"not {list(scale_out.shape)}."
        )


def relation_axis(operator: SparseOperator, y: Tensor) -> Tensor:
    """Rows of a stacked operator as [num_relations, num_destinations]."""
    if not operator.stacked:
        return y
    return y.view(operator.num_relations, operator.num_destinations, *y.shape[1:])
