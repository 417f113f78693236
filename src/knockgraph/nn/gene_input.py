"""What a model knows about a gene before it looks at the graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.graph import CellGraph
from knockgraph.graph.structural_features import FEATURES

_START = 0.01  # size of the state before it is normalised
_START_WITHOUT_NORM = 0.03
_SHARPNESS = 20.0  # T at the start


class GeneInput(nn.Module):
    r"""Learned embedding, given features, or both, through two layers,

    .. math:: u = e + F f, \qquad x = \mathrm{norm}\bigl(u + W_2\, \mathrm{GELU}(W_1 u + b_1) + b_2\bigr).

    The two layers start as the identity (:math:`W_2 = 0`), and e and F start small. Interactions are products of gene
    states, and these are learned one direction after another: a random map in front of them, or an embedding that a few
    hundred steps cannot turn round, leaves the states with a single direction for long. On the demo cell two plain
    layers stayed near a held-out correlation of 0.57 (one direction), these go on.

    A learned embedding says nothing about genes that no training sample deletes or reaches; those need features.
    Features are standardised per column; they belong to the cell graph and are not part of a checkpoint.

    With ``similar`` a gene that no training sample deletes borrows the embedding of those that are,

    .. math:: e_g = \sum_{h\ \mathrm{known}} \mathrm{softmax}_h\bigl(T \cos(s_g, s_h)\bigr)\, e_h, \qquad h \neq g,

    by a feature s, with a learned T; or by several similarities c, with a learned weight of each,

    .. math:: e_g = \sum_{h\ \mathrm{known}} \mathrm{softmax}_h\Bigl(\sum_r T_r\, c_r(g, h)\Bigr)\, e_h, \quad h \neq g.

    ``embedding_dropout`` makes some known genes borrow in every training step, so that the model learns T, and to
    predict with embeddings such as it will meet; without ``similar`` their e is 0, and only the features f tell them
    apart. Borrowing takes memory for a few times ``num_genes²`` numbers, and for that many of each similarity.

    Args:
        graph: The cell graph.
        channels: Channels of x and of the embedding.
        embedding: Whether there is a learned embedding e.
        features: Names of the graph's features to use as f.
        embedding_dropout: Share of the genes that do without an e of their own in a training step.
        similar: Name of the feature s; or similarities c, ``[similarities, num_genes, num_genes]``, which belong to the
            cell graph and are not part of a checkpoint; or ``None``: nothing is borrowed.
        norm: Whether there is a LayerNorm. Without one, weight decay keeps the states of genes small of which little is
            known, so that with a residual path the layers, which are shared by all genes, do most of the work. A
            LayerNorm makes all states equally large, and the embeddings soon fit the noise.

    Attributes:
        known: bool [num_genes], the genes with an embedding of their own; see :meth:`set_known`.

    Shapes:
        nothing -> ``[num_genes, channels]``.
    """

    features: Tensor | None
    direction: Tensor | None
    similarity: Tensor | None
    known: Tensor

    def __init__(
        self,
        graph: CellGraph,
        channels: int,
        embedding: bool = True,
        features: Sequence[str] = (),
        embedding_dropout: float = 0.0,
        similar: str | Tensor | None = None,
        norm: bool = True,
    ) -> None:
        super().__init__()
        instead = bool(features) or similar is not None
        if not 0 <= embedding_dropout < 1 or (embedding_dropout and not (embedding and instead)):
            raise ModelError(
                f"embedding_dropout={embedding_dropout}, but it must be in [0, 1), and above 0 it needs an embedding "
                "and something to use instead: features=[…] or similar=…"
            )
        if similar is not None and not embedding:
            raise ModelError("similar=… borrows embeddings, but embedding=False; leave one of them out")
        self.embedding_dropout = embedding_dropout
        asked = (*features, similar) if isinstance(similar, str) else features
        unknown = [name for name in asked if name not in graph.features]
        if unknown:
            known = ", ".join(graph.features) or "none"
            makes = "; knockgraph graph build --features makes it" if unknown[0] in FEATURES else ""
            raise ModelError(f"the graph has no gene feature {unknown[0]!r}; it has {known}{makes}")
        if not embedding and not features:
            raise ModelError("genes need an input: embedding=True, features=[…], or both")
        self.embedding = nn.Parameter(torch.empty(graph.num_genes, channels)) if embedding else None
        given = torch.cat([graph.features[name].double() for name in features], 1) if features else None
        self.register_buffer("features", None if given is None else _standardised(given).float(), persistent=False)
        self.project = None if given is None else nn.Linear(given.shape[1], channels, bias=False)
        self.register_buffer("direction", None, persistent=False)
        self.register_buffer("similarity", None, persistent=False)
        self.borrows = similar is not None
        if similar is not None:
            if isinstance(similar, str):
                self.direction = nn.functional.normalize(graph.features[similar].float(), dim=1)
            else:
                self.similarity = similar
            self.sharpness = nn.Parameter(torch.empty(() if isinstance(similar, str) else len(similar)))
            self.register_buffer("known", torch.ones(graph.num_genes, dtype=torch.bool))
        self.first = nn.Linear(channels, channels)
        self.second = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels) if norm else nn.Identity()
        self.start = _START if norm else _START_WITHOUT_NORM
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        if self.embedding is not None:
            nn.init.normal_(self.embedding, std=self.start)
        if self.project is not None:
            nn.init.normal_(self.project.weight, std=self.start / math.sqrt(self.project.in_features))
        if self.borrows:
            nn.init.constant_(self.sharpness, math.log(_SHARPNESS / self.sharpness.numel()))
        self.first.reset_parameters()
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)
        if isinstance(self.norm, nn.LayerNorm):
            self.norm.reset_parameters()

    def set_known(self, genes: Tensor) -> None:
        """Say which genes training samples delete, bool [num_genes]; all are taken to be known until then."""
        if self.borrows and bool(genes.any()):
            self.known.copy_(genes)

    @torch.no_grad()
    def add_to_embedding(self, states: Tensor) -> None:
        """Let the embeddings start from ``states``, ``[num_genes, channels]``, beside their random start."""
        assert self.embedding is not None
        self.embedding.add_(states)

    def forward(self) -> Tensor:
        u: Tensor | None = self.embedding
        if u is not None:
            own = self.known if self.borrows else None
            if self.training and self.embedding_dropout > 0:
                stays = torch.rand(len(u), device=u.device) >= self.embedding_dropout
                own = stays if own is None else own & stays
            if own is not None:
                instead = self._borrowed(u) if self.borrows else u.new_zeros(())
                u = torch.where(own.unsqueeze(1), u, instead)
        if self.project is not None:
            projected = self.project(self.features)
            u = projected if u is None else u + projected
        x: Tensor = self.norm(u + self.second(nn.functional.gelu(self.first(u))))
        return x

    def _borrowed(self, embedding: Tensor) -> Tensor:
        with torch.autocast(embedding.device.type, enabled=False):
            if self.similarity is None:
                assert self.direction is not None
                closeness = self.sharpness.exp() * (self.direction @ self.direction.t())
            else:
                closeness = torch.tensordot(self.sharpness.exp(), self.similarity, 1)
            nobody = ~self.known | torch.eye(len(embedding), dtype=torch.bool, device=embedding.device)
            share: Tensor = closeness.masked_fill(nobody, torch.finfo(closeness.dtype).min).softmax(1)
            return share @ embedding


def _standardised(x: Tensor) -> Tensor:
    """Columns with mean 0 and standard deviation 1; a constant column becomes 0."""
    centred = x - x.mean(0)
    deviation = centred.square().mean(0).sqrt()
    return centred / torch.where(deviation > 0, deviation, torch.ones_like(deviation))
