"""What a linear model of pairs leaves unexplained, learned from predictions that were made out of fold."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from knockgraph.models.kernels.measured import PairRows

FEATURES = (
    "prediction",
    "sum of effects",
    "difference of effects",
    "product of sizes",
    "difference of sizes",
    "cosine",
)
"""Columns of :func:`pair_features`."""
_WIDTH = 32
_EPOCHS = 10
_BATCH = (32, 1024)  # smallest and largest
_BATCHES = 100  # an epoch of a small screen has about as many
_RATE = 1e-2
_DECAY = 1e-2
_FAR = 8.0  # standard deviations beyond which a feature grows no more


class Profiles(NamedTuple):
    """What :func:`pair_features` needs of profiles."""

    size: Tensor  #: n, the root mean square of each, ``[genes]``
    unit: Tensor  #: Each divided by its length, ``[genes, columns]``

    @staticmethod
    def of(profiles: Tensor) -> Profiles:
        """Those of :math:`\\hat Y_g`, ``[genes, columns]``."""
        return Profiles(profiles.square().mean(1).sqrt(), nn.functional.normalize(profiles, dim=1))


def pair_features(predicted: Tensor, effect: Tensor, profiles: Profiles, first: Tensor, second: Tensor) -> Tensor:
    r"""Symmetric features of pairs of genes, ``[pairs, 6]``: the prediction :math:`\hat y_{gh}`, :math:`b_g + b_h`,
    :math:`|b_g - b_h|`, :math:`n_g n_h`, :math:`|n_g - n_h|` and :math:`\cos(\hat Y_g, \hat Y_h)`, with the size
    :math:`n_g` of a profile, its root mean square.

    Args:
        predicted: ``[pairs]``.
        effect: b, ``[genes]``.
        profiles: Of the genes.
        first: Genes of the pairs, int64 ``[pairs]``.
        second: The others.
    """
    size, unit = profiles
    pairs = PairRows(torch.arange(len(first), device=first.device), first, second, len(first), len(unit))
    cosine = pairs.collect_product(unit, unit.T)
    b, c, m, n = effect[first], effect[second], size[first], size[second]
    return torch.stack([predicted, b + c, (b - c).abs(), m * n, (m - n).abs(), cosine], 1)


class PairCorrection(nn.Module):
    r""":math:`\delta = u\, \mathrm{MLP}((x - \mu) / s)`, 0 before it is learned.

    Args:
        center: :math:`\mu`, ``[features]``.
        scale: s.
        unit: u, the unit of what is left, a number.
        seed: Of the first weights.
    """

    def __init__(self, center: Tensor, scale: Tensor, unit: Tensor, seed: int = 0) -> None:
        super().__init__()
        self.center = center
        self.scale = scale
        self.unit = unit
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers = [nn.Linear(a, b) for a, b in itertools.pairwise([len(center), _WIDTH, _WIDTH, 1])]
        nn.init.zeros_(layers[-1].weight)
        nn.init.zeros_(layers[-1].bias)
        self.network = nn.Sequential(layers[0], nn.SiLU(), layers[1], nn.SiLU(), layers[2]).to(center.device)

    @staticmethod
    def learned(features: Tensor, left: Tensor, seed: int = 0) -> PairCorrection:
        r"""The one of least :math:`\sum (y - \hat y - \delta)^2` over pairs that were predicted out of fold.

        Args:
            features: ``[pairs, features]``.
            left: :math:`y - \hat y`, ``[pairs]``.
            seed: Of the first weights and of the order of the pairs.
        """
        unit = left.square().mean().sqrt().clamp(min=1e-12)
        found = PairCorrection(features.mean(0), features.std(0).clamp(min=1e-12), unit, seed)
        batch = min(max(len(left) // _BATCHES, _BATCH[0]), _BATCH[1])
        steps = _EPOCHS * -(-len(left) // batch)
        optimizer = torch.optim.AdamW(found.parameters(), lr=_RATE, weight_decay=_DECAY)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps + 1)
        generator = torch.Generator().manual_seed(seed)  # on the host: the same order on every device
        for _ in range(_EPOCHS):
            for some in torch.split(torch.randperm(len(left), generator=generator).to(left.device), batch):
                loss = (found(features[some]) - left[some]).div(unit).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        return found

    def forward(self, features: Tensor) -> Tensor:
        """δ, ``[pairs]``."""
        x = ((features - self.center) / self.scale).clamp(-_FAR, _FAR)
        found: Tensor = self.unit * self.network(x)[:, 0]
        return found
