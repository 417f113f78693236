"""Effects of three genes beyond those of their pairs."""

from __future__ import annotations

import torch
from torch import Tensor

_RANK = 32


class TripleTerm:
    r""":math:`t_P = \sum_c \beta_c\, e_3(\phi_{gc} : g \in P)`, :math:`e_3` the sum over all triples of the product.

    :math:`\phi` are the leading directions of the pair process's kernel, so genes that are similar take part in similar
    triples; :math:`\beta` is a ridge regression on what the pairs leave unexplained.

    Args:
        direction: :math:`\phi`, ``[genes, rank]``.
        weight: :math:`\beta`, ``[rank]``.
        ridge: In units of the mean square of the features; larger values trust the triples less.
    """

    def __init__(self, direction: Tensor, weight: Tensor, ridge: float = 0.01) -> None:
        self.direction = direction
        self.weight = weight
        self.ridge = ridge

    @staticmethod
    def of(kernel: Tensor, ridge: float = 0.01) -> TripleTerm:
        """With the leading directions of K, symmetric ``[genes, genes]``, and the weights 0."""
        value, vector = torch.linalg.eigh(kernel)
        rank = min(_RANK, len(kernel))
        direction = vector[:, -rank:] * value[-rank:].clamp(min=0).sqrt()
        return TripleTerm(direction, torch.zeros(rank, device=kernel.device, dtype=kernel.dtype), ridge)

    def features(self, row: Tensor, gene: Tensor, num_rows: int) -> Tensor:
        """:math:`e_3`, ``[rows, rank]``, by power sums; entry e says that ``row[e]`` deletes ``gene[e]``."""
        phi = self.direction[gene]
        one, two, three = (phi.new_zeros(num_rows, phi.shape[1]).index_add(0, row, phi**k) for k in (1, 2, 3))
        triples: Tensor = (one**3 - 3 * one * two + 2 * three) / 6
        return triples

    def fit(self, features: Tensor, left: Tensor) -> None:
        """β, by what is left of the labels, ``[rows]``."""
        gram = features.T @ features
        penalty = self.ridge * len(left) * gram.diagonal().mean() / max(len(left), 1)
        eye = torch.eye(len(gram), device=gram.device, dtype=gram.dtype)
        self.weight = torch.linalg.solve(gram + (penalty + 1e-9) * eye, features.T @ left)
