"""Integrated gradients from the wild type to a deletion."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from knockgraph.errors import KnockgraphError, NoDosesError, StrategyError
from knockgraph.explain.explanation import LEFT_OUT, LOCAL, MODEL, NAMED, POOLING, REACTIONS, Explanation, Part
from knockgraph.graph import CellGraph
from knockgraph.models.fitted import FittedModel
from knockgraph.models.hetero import HeteroCellModel
from knockgraph.models.model import CellModel
from knockgraph.nn.hyper_sagnn import HyperSAGNN
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.node_mask import NodeMask
from knockgraph.strategies.partly_cut import CutEdges, PartlyCutGraphs
from knockgraph.train.predictor import Predictor
from knockgraph.words import listed

_NODES = 8  # of each piece of the path
_HALVINGS = 10  # of a piece, at most
_ENOUGH = 1e-5  # of the change: the numerical error at which the path is fine enough
_ROUNDING = 1e-13
_ALMOST = 1e-9  # the end of the path, before anything is gone
_NUMBERS = 1e8  # of one chunk of the path: genes × columns × channels × relations
_NOTHING = 1e-7  # of the prediction: jumps below it are rounding


def explain(task: Predictor, genes: Sequence[int], phenotype: str | None = None) -> Explanation:
    """Explain the prediction for a set of deleted genes, in float64 on the host; see :class:`Explanation`.

    Args:
        task: The trained model.
        genes: Rows of the deleted genes.
        phenotype: Which one, where there are several.
    """
    column = _column(tuple(task.phenotypes), phenotype)
    deleted = sorted(set(genes))
    exact = task.by_definition(torch.tensor([0, len(deleted)]))[:, column].tolist()
    if not deleted or exact[1]:
        what = "the wild type has no deleted genes" if not deleted else "its value follows from its definition"
        raise KnockgraphError(f"there is nothing to explain: {what}")
    if isinstance(task.model, FittedModel):
        raise KnockgraphError(
            f"the predictions of {task.config.model.name} cannot be explained: it is fitted at once and has no "
            "gradients; train the hetero model, or a module of your own"
        )
    path = _Path(task, deleted)
    factor, zero = _units(task, column)
    changed, model_wild = path.exact()[:, column].tolist()
    found, before, after = path.integrated(column)
    prediction, told = factor * changed + zero, factor * model_wild + zero
    wild_type = 0.0 if exact[0] else told
    jumps = [
        Part("", NAMED, "", factor * (before - model_wild)),
        Part("", LEFT_OUT, "", factor * (changed - after)),
        Part("", MODEL, "", told - wild_type),
    ]
    size = max(abs(prediction), abs(wild_type), abs(told))
    both_ways: dict[tuple[str, str, str], list[float]] = {}
    for part in found:
        both_ways.setdefault(part[:3], []).append(factor * part.value)
    parts = [Part(*key, math.fsum(values)) for key, values in both_ways.items()]
    parts += [jump for jump in jumps if abs(jump.value) > _NOTHING * size]
    parts.sort(key=lambda part: -abs(part.value))
    return Explanation(
        tuple(path.graph.genes[gene] for gene in deleted),
        task.phenotypes[column],
        "logit" if task.classes else "original",
        prediction,
        wild_type,
        tuple(parts),
        prediction - wild_type - math.fsum(part.value for part in parts),
        {name: path.graph.genes.standard(row) for name, row in path.named.items()},
    )


def _column(names: tuple[str, ...], phenotype: str | None) -> int:
    if phenotype is None and len(names) > 1:
        raise KnockgraphError(f"this run predicts {listed(names)}; say which one to explain, phenotype=NAME")
    if phenotype is not None and phenotype not in names:
        raise KnockgraphError(f"this run does not predict {phenotype!r}, but {listed(names)}")
    return 0 if phenotype is None else names.index(phenotype)


def _units(task: Predictor, column: int) -> tuple[float, float]:
    """Factor and shift from label units to those of the prediction; logits stay."""
    if task.classes:
        return 1.0, 0.0
    ends = torch.tensor([[0.0], [1.0]]).double().expand(2, len(task.phenotypes))
    zero, one = task.transform.invert(ends)[:, column].tolist()
    return one - zero, zero


def _chunks(values: Tensor, size: int) -> list[Tensor]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _halves(a: float, b: float) -> list[tuple[float, float]]:
    return [(a, (a + b) / 2), ((a + b) / 2, b)]


class _Leaves(NamedTuple):
    """What has a factor along the path, with a column for each point: edges, and three things of the deleted genes."""

    scale: list[Tensor]
    member: Tensor
    weight: Tensor
    activity: Tensor


class _Path:
    """The model along the path from the wild type to a deletion."""

    def __init__(self, task: Predictor, genes: list[int]) -> None:
        self.graph: CellGraph = task.graph
        self.genes = torch.tensor(genes)
        self.named = {self.graph.genes[gene]: gene for gene in genes}
        model = copy.deepcopy(task.model).cpu().double().eval()
        assert isinstance(model, CellModel)
        self.model = model.requires_grad_(False)
        direction = task.strategy.direction
        self.strategy = NodeMask(self.graph, direction).double()
        self.edges = [
            CutEdges.of(r.edge_index, r.weight, self.genes, self.graph.num_genes, direction == "in")
            for r in self.graph.relations.values()
        ]
        # Only this pooling takes numbers in place of the keep-vector.
        self.pools = isinstance(model, HeteroCellModel)
        channels = max((p.shape[-1] for p in model.parameters() if p.dim() > 1), default=1)
        self.columns = max(int(_NUMBERS / (self.graph.num_genes * channels * max(len(self.edges), 1))), 1)
        self.kinks: set[float] = set()

    def exact(self) -> Tensor:
        """What is predicted for the deletion and for the wild type, ``[2, outputs]``, in label units."""
        batch = PerturbationBatch.from_lists([self.genes.tolist(), []], self.graph.num_genes)
        with torch.no_grad(), self.strategy(self.model.columns(batch)) as view:
            values: Tensor = self.model(view, batch).values.detach()
        return values

    def integrated(self, column: int) -> tuple[list[Part], float, float]:
        """The parts, and the values at the start of the path and at its end, in label units.

        The path is cut into pieces, and those are halved whose slopes do not add up to their change.
        """
        before, after = self._values([1.0, _ALMOST], column)  # finds the kinks, too
        enough = _ENOUGH * max(abs(after - before), 1e-3)
        pieces, done = self._pieces(), []
        for left in reversed(range(_HALVINGS)):
            ends = dict(zip(cuts := sorted({*itertools.chain(*pieces)}), self._values(cuts, column), strict=True))
            slopes = self._slopes(pieces, column)
            error = [
                abs(ends[a] - ends[b] - float(total))
                for (a, b), total in zip(pieces, torch.cat(slopes).sum(0), strict=True)
            ]
            fine = torch.tensor(
                [left == 0 or e <= enough * (b - a) + _ROUNDING for e, (a, b) in zip(error, pieces, strict=True)]
            )
            done.append([slope[:, fine].sum(1) for slope in slopes])
            pieces = [half for p, ok in zip(pieces, fine.tolist(), strict=True) if not ok for half in _halves(*p)]
            if not pieces:
                break
        return list(self._named_parts([torch.stack(same).sum(0) for same in zip(*done, strict=True)])), before, after

    def _pieces(self) -> list[tuple[float, float]]:
        """Between the kinks: Hyper-SAGNN has one where the weights of the deleted genes, or of all but one, add up
        to 1, and means where the factors of all edges of a gene do.
        """
        size, scored = len(self.genes), any(isinstance(module, HyperSAGNN) for module in self.model.modules())
        cuts = sorted({_ALMOST, 1.0, *(1 - 1 / k for k in (size - 1, size) if scored and k > 1), *self.kinks})
        return list(itertools.pairwise(cuts))

    def _values(self, alpha: Sequence[float], column: int) -> list[float]:
        points = torch.tensor(alpha, dtype=torch.float64)
        with torch.no_grad():
            parts = [self._forward(self._leaves(chunk))[:, column] for chunk in _chunks(points, self.columns)]
        found: list[float] = torch.cat(parts).tolist()
        return found

    def _slopes(self, pieces: Sequence[tuple[float, float]], column: int) -> list[Tensor]:
        """Of each factor, minus the integral of its slope over each piece by Gauss–Legendre, ``[factors, pieces]``."""
        x, w = np.polynomial.legendre.leggauss(_NODES)
        points = np.concatenate([(a + b) / 2 + (b - a) / 2 * x for a, b in pieces])
        weight = torch.block_diag(*(torch.from_numpy((b - a) / 2 * w).unsqueeze(1) for a, b in pieces))  # type: ignore[no-untyped-call]
        total: list[Tensor] | None = None
        alphas = _chunks(torch.from_numpy(points), self.columns)
        for alpha, part in zip(alphas, _chunks(weight, self.columns), strict=True):
            found = [-(slope @ part) for slope in self._gradients(alpha, column)]
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
        assert total is not None
        return total

    def _gradients(self, alpha: Tensor, column: int) -> list[Tensor]:
        """Of each factor its slope at some points of the path, ``[factors, points]``."""
        leaves = self._leaves(alpha)
        flat = [*leaves.scale, leaves.member, leaves.weight, leaves.activity]
        for leaf in flat:
            leaf.requires_grad_()
        with torch.enable_grad():
            total = self._forward(leaves)[:, column].sum()
            slopes: Sequence[Tensor | None] = [None] * len(flat)
            if total.requires_grad:
                slopes = torch.autograd.grad(total, flat, allow_unused=True)
        return [torch.zeros_like(leaf) if slope is None else slope for leaf, slope in zip(flat, slopes, strict=True)]

    def _named_parts(self, sums: list[Tensor]) -> Iterable[Part]:
        *edges, member, weight, activity = (values.tolist() for values in sums)
        name, deleted = self.graph.genes, set(self.genes.tolist())
        for relation, cut, values in zip(self.graph.relations, self.edges, edges, strict=True):
            for source, target, value in zip(cut.source.tolist(), cut.target.tolist(), values, strict=True):
                if not value:
                    continue
                ends = {(gene, other) for gene, other in ((source, target), (target, source)) if gene in deleted}
                for gene, other in sorted(ends):
                    self.named[name[other]] = other
                    yield Part(name[gene], relation, name[other], value / len(ends))
        for through, values in ((POOLING, member), (LOCAL, weight), (REACTIONS, activity)):
            for gene, value in zip(self.genes.tolist(), values, strict=True):
                if value:
                    yield Part(name[gene], through, "", value)

    def _leaves(self, alpha: Tensor) -> _Leaves:
        def each(number: int) -> Tensor:
            return alpha.expand(number, -1).clone()

        return _Leaves([each(len(cut)) for cut in self.edges], *(each(len(self.genes)) for _ in range(3)))

    def _forward(self, leaves: _Leaves) -> Tensor:
        """Predictions ``[points, outputs]``, in label units."""
        points, genes, n = leaves.member.shape[1], self.genes, self.graph.num_genes
        batch = PerturbationBatch.from_lists([genes.tolist()] * points, n).with_values(leaves.weight.t().reshape(-1))
        values: Tensor
        if not self.model.perturbs:
            with self.strategy(batch.only_wild_type()) as plain:
                values = self.model(plain, batch).values
            return values
        ones = torch.ones(n, points + 1, dtype=torch.float64)

        def placed(factors: Tensor) -> Tensor:
            return ones.index_copy(0, genes, torch.nn.functional.pad(factors, (0, 1), value=1.0))

        keep = placed(leaves.member) if self.pools else ones.bool()
        view = PartlyCutGraphs(
            self.strategy, batch.with_wild_type(), self.edges, leaves.scale, keep, placed(leaves.activity)
        )
        try:
            values = self.model(view, batch).values
        except (StrategyError, NoDosesError) as error:
            raise KnockgraphError(f"this model cannot be explained: {error}") from error
        for r in view.clamped:
            self.kinks |= self.edges[r].vanishing()
        return values
