"""Attention of genes to each other's interaction profiles, learned with each gene left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from knockgraph.models.kernels.propagation import LeftOut

STEPS = 90
_WIDTH = 24
_RATE = 1e-2
_DECAY = 1e-4
_CHECK = 15  # steps between two checks on the validation part
_PAIRS = {
    "cpu": 2**15,
    "cuda": 2**22,
}  # pairs of genes at once: hidden units stay in the cache, or on the GPU


class ProfileAttention(nn.Module):
    r"""How much gene i takes of gene k's profile, from their similarities c by every network and feature,

    .. math:: w_{ik} = e^{\mathrm{MLP}(c_1(i, k), \dots, c_R(i, k))}, \qquad
        a_{ik} = \frac{w_{ik}}{e^\ell + \sum_{k'} w_{ik'}} .

    The constant :math:`e^\ell` lets a gene that is similar to no other take nothing.

    Args:
        center: Of each table, ``[tables]``; with the scale it standardises the input.
        scale: Of each table.
        seed: Of the first weights.
    """

    def __init__(self, center: Tensor, scale: Tensor, seed: int = 0) -> None:
        super().__init__()
        self.center = center
        self.scale = scale
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            sizes = [len(center), _WIDTH, _WIDTH, 1]
            layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
            self.score = nn.Sequential(layers[0], nn.SiLU(), layers[1], nn.SiLU(), layers[2]).to(center.device)
        self.nobody = nn.Parameter(torch.zeros((), device=center.device))

    @staticmethod
    def of(similarity: Tensor, seed: int = 0) -> ProfileAttention:
        """Standardised by mean and spread of the similarities of seen genes, ``[tables, genes, genes]``."""
        return ProfileAttention(similarity.mean((1, 2)), similarity.std((1, 2)).clamp(min=1e-6), seed)

    def forward(self, similarity: Tensor, hidden: bool = False) -> Tensor:
        """The weights a, ``[first, second]``.

        Args:
            similarity: ``[tables, first, second]``.
            hidden: Whether the genes are the same and none may take from itself.
        """
        blocks = [block for _, block in self._blocks(similarity, hidden)]
        return torch.cat([similarity.new_zeros(0, similarity.shape[2]), *blocks])

    def _blocks(self, similarity: Tensor, hidden: bool) -> Iterator[tuple[slice, Tensor]]:
        """Rows of the weights, a few genes at a time, and which they are."""
        _, first, second = similarity.shape
        rows = max(1, _PAIRS.get(similarity.device.type, _PAIRS["cpu"]) // max(second, 1))
        for start in range(0, first, rows):
            part = slice(start, min(start + rows, first))
            weight = self._scores(similarity[:, part].flatten(1)).view(-1, second).clamp(-15, 8).exp()
            if hidden:
                weight = weight.masked_fill(_same(part, second, weight.device), 0.0)
            yield part, weight / (weight.sum(1, keepdim=True) + self.nobody.exp())

    def _scores(self, x: Tensor) -> Tensor:
        """The MLP of standardised columns, ``[pairs]``, of ``[tables, pairs]``: as they lie in memory."""
        found = (x - self.center[:, None]) / self.scale[:, None]
        for layer in self.score:
            if isinstance(layer, nn.Linear):
                found = torch.addmm(layer.bias[:, None], layer.weight, found)
            else:
                found = layer(found)
        return found[0]

    def learn(
        self,
        similarity: Tensor,
        profiles: Tensor,
        known: Tensor,
        steps: int = STEPS,
        check: Callable[[], float] | None = None,
    ) -> int:
        r"""Minimise :math:`\sum_\mathrm{measured} (F - A F)^2` with :math:`a_{ii} = 0`; returns the step whose weights
        are kept.

        Args:
            similarity: ``[tables, genes, genes]`` of seen genes.
            profiles: F, filled, ``[genes, columns]``.
            known: Which entries were measured, bool ``[genes, columns]``.
            steps: Of Adam.
            check: Scores the current weights from time to time; the best ones are kept.
        """
        left_out = LeftOut(similarity, profiles, known)
        measured = left_out.profiles[left_out.known]
        optimizer = torch.optim.Adam(self.parameters(), lr=_RATE, weight_decay=_DECAY)
        chosen, best, kept = 0, -float("inf"), self._weights()
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            for part, shares in self._blocks(left_out.similarity, hidden=True):
                missed = measured[left_out.entries(part)] - left_out.product(shares, part)
                torch.autograd.backward(missed.square().sum() / left_out.total)
            optimizer.step()
            if step % _CHECK == 0 or step == steps:
                with torch.no_grad():
                    score = check() if check is not None else float(step)
                if score > best:
                    chosen, best, kept = step, score, self._weights()
        self.load_state_dict(kept)
        return chosen

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.state_dict().items()}


def _same(part: slice, columns: int, device: torch.device) -> Tensor:
    """Where a row and a column are the same gene, bool ``[rows, columns]``."""
    rows = torch.arange(part.start, part.stop, device=device)
    return rows[:, None] == torch.arange(columns, device=device)
