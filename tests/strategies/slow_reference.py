"""An independent slow reference: every sample's edges are really filtered, and plain loops send the messages.

It shares no code with the package: a graph is a list of ``(source, destination)`` pairs, a genotype a set of genes.
Everything is float64; torch is used for arithmetic on single numbers and short rows, and for their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Edges = Sequence[tuple[int, int]]
Genotypes = Sequence[set[int]]


def edge_list(edge_index: Tensor) -> list[tuple[int, int]]:
    """``edge_index [2, E]`` as pairs."""
    return list(zip(edge_index[0].tolist(), edge_index[1].tolist(), strict=True))


def remaining(edges: Edges, deleted: set[int], direction: str) -> list[int]:
    """Positions of the edges that one sample has left."""
    left = []
    for position, (source, destination) in enumerate(edges):
        if destination in deleted:
            continue
        if direction == "both" and source in deleted:
            continue
        left.append(position)
    return left


def mask(edges: Edges, genotypes: Genotypes, direction: str) -> Tensor:
    """bool [E, batch]."""
    result = torch.zeros(len(edges), len(genotypes), dtype=torch.bool)
    for sample, deleted in enumerate(genotypes):
        for position in remaining(edges, deleted, direction):
            result[position, sample] = True
    return result


def degree(edges: Edges, num_genes: int, genotypes: Genotypes, direction: str) -> Tensor:
    """Remaining incoming edges, float64 [num_genes, batch]."""
    return strength(edges, [1.0] * len(edges), num_genes, genotypes, direction)


def strength(
    edges: Edges, weight: Sequence[float] | None, num_genes: int, genotypes: Genotypes, direction: str
) -> Tensor:
    """Weights of the remaining incoming edges, float64 [num_genes, batch]."""
    result = torch.zeros(num_genes, len(genotypes), dtype=torch.float64)
    for sample, deleted in enumerate(genotypes):
        into: dict[int, list[float]] = {}
        for position in remaining(edges, deleted, direction):
            into.setdefault(edges[position][1], []).append(1.0 if weight is None else weight[position])
        for gene, weights in into.items():
            result[gene, sample] = math.fsum(weights)
    return result


def alive(rules: Sequence[Sequence[set[int]]], genotypes: Genotypes) -> Tensor:
    """bool [reactions, batch]; a rule is the list of a reaction's complexes, each a set of genes."""
    columns = [[not rule or any(not (genes & deleted) for genes in rule) for rule in rules] for deleted in genotypes]
    return torch.tensor(columns, dtype=torch.bool).reshape(len(genotypes), len(rules)).T


def aggregate(
    edges: Edges, weight: Sequence[float] | None, x: Tensor, genotypes: Genotypes, reduce: str, direction: str
) -> Tensor:
    """Reduce over each sample's own incoming messages; x and the result float64 [num_genes, batch, channels].

    Of equal extremes the neighbour that comes first in the gene list gets the gradient.
    """
    num_genes, batch, channels = x.shape
    assert batch == len(genotypes)
    assert x.dtype == torch.float64
    rows = [row.unbind(0) for row in x.unbind(0)]
    zero = x.sum() * 0  # nothing, but with a gradient
    columns = []
    for sample, deleted in enumerate(genotypes):
        inbox: list[list[tuple[int, float]]] = [[] for _ in range(num_genes)]
        for position in remaining(edges, deleted, direction):
            source, destination = edges[position]
            inbox[destination].append((source, 1.0 if weight is None else weight[position]))
        column = []
        for messages in inbox:
            if not messages:
                column.append(zero.expand(channels))
            elif reduce in ("sum", "mean"):
                total = zero.expand(channels)
                for source, w in messages:
                    total = total + w * rows[source][sample]
                column.append(total / len(messages) if reduce == "mean" else total)
            else:
                sign = {"max": 1.0, "min": -1.0}[reduce]
                best = []
                for c in range(channels):
                    source, w = max(sorted(messages), key=lambda m, c=c: sign * m[1] * rows[m[0]][sample][c].item())
                    best.append(w * rows[source][sample][c])
                column.append(torch.stack(best) if best else zero.expand(0))
        columns.append(torch.stack(column))
    return torch.stack(columns, 1) if columns else x.new_zeros(x.shape) + zero


def attend(
    edges: Edges,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    genotypes: Genotypes,
    direction: str,
    slope: float = 0.2,
) -> Tensor:
    """GATv2 over each sample's own incoming edges; states float64 [num_genes, batch, heads, channels]."""
    num_genes, _, heads, channels = source.shape
    zero = (source.sum() + target.sum() + attention.sum()) * 0
    columns = []
    for sample, deleted in enumerate(genotypes):
        inbox: list[list[int]] = [[] for _ in range(num_genes)]
        for position in remaining(edges, deleted, direction):
            inbox[edges[position][1]].append(edges[position][0])
        column = []
        for gene, neighbours in enumerate(inbox):
            row = []
            for head in range(heads):
                if not neighbours:
                    row.append(zero.expand(channels))
                    continue
                logits = []
                for j in neighbours:
                    s = source[j, sample, head] + target[gene, sample, head]
                    bent = torch.stack([v if v.item() > 0 else slope * v for v in s.unbind()])
                    logits.append((bent * attention[head]).sum())
                exponentials = [(logit - max(one.item() for one in logits)).exp() for logit in logits]
                total = sum(exponentials[1:], exponentials[0])
                y = zero.expand(channels)
                for j, e in zip(neighbours, exponentials, strict=True):
                    y = y + e / total * source[j, sample, head]
                row.append(y)
            column.append(torch.stack(row))
        columns.append(torch.stack(column))
    return torch.stack(columns, 1) if columns else source.new_zeros(source.shape) + zero


def dosed_aggregate(
    edges: Edges, weight: Sequence[float] | None, x: Tensor, dose: Tensor, reduce: str, direction: str
) -> Tensor:
    """The same where genes have doses, float64 [num_genes, batch]: the table of formulas, one gene at a time."""
    columns = []
    for sample in range(x.shape[1]):
        column = []
        for gene in range(x.shape[0]):
            d = dose[gene, sample]
            nothing = x[gene, sample] * 0 * d
            inbox = [(j, 1.0 if weight is None else weight[p]) for p, (j, i) in enumerate(edges) if i == gene]
            sent = [(d.new_ones(()) if direction == "in" else dose[j, sample], w, x[j, sample]) for j, w in inbox]
            if reduce in ("sum", "mean"):
                total = sum((d_j * w * x_j for d_j, w, x_j in sent), nothing)
                size = d * sum((d_j for d_j, _, _ in sent), d * 0)
                if reduce == "mean":
                    column.append(d * total / size if size.item() > 0 else nothing)
                else:
                    column.append(d * total)
                continue
            there = [d_j * w * x_j for d_j, w, x_j in sent if d_j.item() > 0]
            pick = {"max": torch.amax, "min": torch.amin}[reduce]
            column.append(d * pick(torch.stack(there), 0) if there else nothing)
        columns.append(torch.stack(column))
    return torch.stack(columns, 1)


def dosed_attend(
    edges: Edges, source: Tensor, target: Tensor, attention: Tensor, dose: Tensor, direction: str, slope: float = 0.2
) -> Tensor:
    """GATv2 with shares proportional to ``d_j · exp(logit)``, the row times ``d_i``."""
    columns = []
    for sample in range(source.shape[1]):
        column = []
        for gene in range(source.shape[0]):
            neighbours = [j for j, i in edges if i == gene]
            own = [torch.ones_like(dose[j, sample]) if direction == "in" else dose[j, sample] for j in neighbours]
            if not any(d.item() > 0 for d in own):
                column.append(source[gene, sample] * 0 * dose[gene, sample])
                continue
            states = source[neighbours, sample]
            bent = torch.nn.functional.leaky_relu(states + target[gene, sample], slope)
            share = (bent * attention).sum(-1).exp() * torch.stack(own).unsqueeze(-1)
            share = share / share.sum(0)
            column.append(dose[gene, sample] * (share.unsqueeze(-1) * states).sum(0))
        columns.append(torch.stack(column))
    return torch.stack(columns, 1)


def value_and_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The function's value and the gradient of ``(value · upstream).sum()`` in each input."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    value = function(*leaves)
    (value * upstream).sum().backward()
    return value.detach(), [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
