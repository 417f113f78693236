"""Interaction profiles as the states that genes start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from knockgraph.models.baselines.baseline import GenotypeRows, sums
from knockgraph.models.baselines.pair_gp import PairGP

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph
    from knockgraph.screen import BoundScreen
    from knockgraph.screen.ragged import Ints


def profile_states(graph: CellGraph, screen: BoundScreen, rows: Ints, values: Tensor, channels: int) -> Tensor:
    r"""The leading columns of :math:`V |w|^{1/2}` of profiles :math:`F = V w V^\top`, ``[num_genes, channels]``.

    F is the posterior mean of all pairs of the genes that the rows delete
    (:class:`~knockgraph.models.baselines.pair_gp.PairGP`): residuals after the effects of genes, filled where nothing
    was measured. So two genes interact by about a weighted product of their states,
    :math:`F_{gh} \approx \sum_c \pm s_{gc} s_{hc}`, and a mixture of states belongs to a mixture of profiles. The root
    mean square of the states is 1. Genes that no row deletes have zeros; so have all where no row deletes two genes.

    Of several phenotypes each F counts the same, scaled to norm 1, and their leading columns share the channels. Rows
    in which a gene has a dose other than 0 and 1 are left out.

    Args:
        graph: The cell graph.
        screen: The experiments.
        rows: Positions of the training rows.
        values: Their labels, ``[rows, phenotypes]``, NaN where one is missing.
        channels: Columns to take.
    """
    deleted = _only_deletions(screen, rows)
    size, column = [torch.zeros(0)], [torch.zeros(graph.num_genes, 0)]
    for y in values.T:
        chosen = deleted & ~y.isnan().cpu().numpy()
        if not chosen.any():
            continue
        fitted = PairGP(graph).fit(screen, np.asarray(rows)[chosen], y[torch.from_numpy(chosen)][:, None])
        profiles = fitted.scores.double().cpu()
        value, vector = torch.linalg.eigh(profiles / profiles.norm().clamp(min=torch.finfo(torch.float64).tiny))
        states = torch.zeros(graph.num_genes, len(value), dtype=torch.float64)
        states[torch.from_numpy(fitted.seen)] = vector * value.abs().sqrt()
        size.append(value.abs().float())
        column.append(states.float())
    leading = torch.cat(size).argsort(descending=True, stable=True)[:channels]
    found = torch.cat(column, 1)[:, leading]
    number = max(int(found.any(1).sum()) * found.shape[1], 1)
    scale = (found.square().sum() / number).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    return torch.nn.functional.pad(found / scale, (0, channels - found.shape[1]))


def _only_deletions(screen: BoundScreen, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows have no gene with an effect other than that of a deletion."""
    genotypes = GenotypeRows.of(screen, rows)
    other = np.zeros(len(genotypes.genes)) if genotypes.effect is None else (genotypes.effect != 1).astype(np.float64)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = sums(genotypes.row, other, len(genotypes)) == 0
    return found
