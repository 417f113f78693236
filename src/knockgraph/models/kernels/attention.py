"""Attention of genes to each other's interaction profiles, learned with each gene left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

STEPS = 90
_WIDTH = 24
_RATE = 1e-2
_DECAY = 1e-4
_CHECK = 15  # steps between two checks on the validation part
_MOST_GENES = 1500  # most genes that attend to each other during training: [genes, genes, width] must fit the memory


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
        x = ((similarity - self.center[:, None, None]) / self.scale[:, None, None]).permute(1, 2, 0)
        weight: Tensor = self.score(x)[..., 0].clamp(-15, 8).exp()
        if hidden:
            weight = weight * (1 - torch.eye(len(weight), device=weight.device))
        return weight / (weight.sum(1, keepdim=True) + self.nobody.exp())

    def learn(
        self,
        similarity: Tensor,
        profiles: Tensor,
        known: Tensor,
        steps: int = STEPS,
        check: Callable[[], float] | None = None,
    ) -> None:
        r"""Minimise :math:`\sum_\mathrm{measured} (F - A F)^2` with :math:`a_{ii} = 0`.

        Args:
            similarity: ``[tables, genes, genes]`` of seen genes.
            profiles: F, filled, ``[genes, columns]``.
            known: Which entries were measured, bool ``[genes, columns]``.
            steps: Of Adam.
            check: Scores the current weights from time to time; the best ones are kept.
        """
        chosen = torch.arange(len(profiles), device=profiles.device)
        if len(profiles) > _MOST_GENES:
            order = torch.randperm(len(profiles), generator=torch.Generator().manual_seed(0))
            chosen = order[:_MOST_GENES].sort().values.to(profiles.device)
        similarity = similarity[:, chosen][:, :, chosen]
        profiles, known = profiles[chosen], known[chosen]
        optimizer = torch.optim.Adam(self.parameters(), lr=_RATE, weight_decay=_DECAY)
        total = profiles.square()[known].sum().clamp(min=1e-12)
        best, kept = -float("inf"), {name: value.clone() for name, value in self.state_dict().items()}
        for step in range(1, steps + 1):
            missed = profiles - self(similarity, hidden=True) @ profiles
            loss = missed.square()[known].sum() / total
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % _CHECK == 0 or step == steps:
                with torch.no_grad():
                    score = check() if check is not None else float(step)
                if score > best:
                    best, kept = score, {name: value.clone() for name, value in self.state_dict().items()}
        self.load_state_dict(kept)
