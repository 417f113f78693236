"""Hyper-SAGNN: how much the genes that a sample deletes mean to each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError, PerturbationError
from knockgraph.ops import at_least_float32
from knockgraph.screen import PerturbationBatch


class HyperSAGNN(nn.Module):
    r"""The hyperedge scorer of `Zhang et al. <https://arxiv.org/abs/1911.02613>`_ on each sample's deleted genes P,

    .. math::
        s_i &= \mathrm{ReLU}(W x_i + b), \qquad
        d^{(0)}_i = x_i, \qquad
        d^{(l)}_i = d^{(l-1)}_i + \beta_l\, \mathrm{attention}_l\bigl(d^{(l-1)}_i;\ P \setminus \{i\}\bigr), \\
        y &= \frac{1}{\max(|P|, 1)} \sum_{i \in P} \bigl(u^\top (d^{(L)}_i - s_i)^2 + c\bigr),

    with several heads and learned factors :math:`\beta` (ReZero) that start at 1: from 0 attention takes hundreds of
    steps to begin. To a single gene attention adds nothing; without a gene y is 0. The order of the genes does not
    matter.

    Genes with values count with :math:`w_i = 1 - d_i`: y is :math:`\sum_i w_i (\dots)` over
    :math:`\max(\sum_i |w_i|, 1)`, the weights of the attention are proportional to :math:`|w_j|`, and what it adds is
    multiplied by :math:`\min(\sum_{j \ne i} |w_j|, 1)`, so that a gene that is left untouched counts for nothing.

    All samples are worked on at once, exactly, whatever their sizes. On the CPU they are laid out as
    ``[samples, largest genotype]``. On a device nothing may wait for the largest size: without ``most_deletions`` all
    deletions of the batch lie in one row, and attention between samples is masked (``total²`` weights: nothing at 256
    triple deletions, slow at tens of thousands); with it the layout is ``[samples, most_deletions]``.

    Args:
        channels: Channels of x, a multiple of ``heads``.
        heads: Number of heads.
        layers: Number of attention layers L.
        outputs: Scores per sample.
        most_deletions: An upper bound of the genotypes' size, or ``None``. A batch that breaks it is refused where that
            can be seen without waiting for a device (on the CPU); on a device the scores of the samples that are too
            large are NaN.

    Shapes:
        x ``[num_genes, channels]`` -> ``[samples, outputs]``, float32 under autocast.
    """

    def __init__(
        self, channels: int, heads: int = 4, layers: int = 2, outputs: int = 1, most_deletions: int | None = None
    ) -> None:
        super().__init__()
        if channels % heads:
            raise ModelError(f"{channels} channels cannot be divided among {heads} heads; choose a divisor")
        if most_deletions is not None and most_deletions < 1:
            raise ModelError(f"most_deletions={most_deletions}, but it must be at least 1, or None for any size")
        self.heads = heads
        self.most_deletions = most_deletions
        self.static = nn.Sequential(nn.Linear(channels, channels), nn.ReLU())
        self.qkv = nn.ModuleList(nn.Linear(channels, 3 * channels) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(channels, channels) for _ in range(layers))
        self.rezero = nn.Parameter(torch.ones(layers))
        self.score = nn.Linear(channels, outputs)

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        nn.init.ones_(self.rezero)

    def forward(self, x: Tensor, batch: PerturbationBatch) -> Tensor:
        batch, weight = batch.effects()
        ptr, sample = batch.perturbation_indices_ptr, batch.perturbation_indices_batch
        samples, total = batch.num_columns, len(sample)
        width = self._width(batch)
        groups = 1 if width is None else samples
        if width is None:
            width = slots = total
            slot = torch.arange(total, device=sample.device)
        else:
            slots = groups * width
            position = torch.arange(total, device=sample.device) - ptr[sample]
            # What does not fit goes to one more slot, which is cut off again.
            slot = torch.where(position < width, sample * width + position, slots)
        owner = torch.full((slots + 1,), -1, device=sample.device).index_copy(0, slot, sample)[:-1]
        genes = x[batch.perturbation_indices]
        dynamic = genes.new_zeros(slots + 1, x.shape[1]).index_copy(0, slot, genes)[:-1]

        owner, dynamic = owner.view(groups, width), dynamic.view(groups, width, x.shape[1])
        other = owner.unsqueeze(2) == owner.unsqueeze(1)
        other = other & ~torch.eye(width, dtype=torch.bool, device=x.device) & (owner >= 0).unsqueeze(2)
        static = self.static(dynamic)
        strength = None
        if weight is not None:
            weight = at_least_float32(weight).to(at_least_float32(x).dtype)
            placed = weight.new_zeros(slots + 1).index_copy(0, slot, weight)[:-1].view(groups, width)
            strength = placed.abs()
        for layer, (qkv, out) in enumerate(zip(self.qkv, self.out, strict=True)):
            dynamic = dynamic + self.rezero[layer] * self._attend(qkv(dynamic), other, out, strength)

        score = at_least_float32(self.score((at_least_float32(dynamic) - static) ** 2))
        score = score.masked_fill((owner < 0).unsqueeze(-1), 0.0)
        if weight is not None:
            score = score * placed.unsqueeze(-1)
        if groups == samples:
            y = score.sum(1)
        else:
            # A product with the membership matrix sums in a fixed order; scattering would not.
            member = torch.arange(samples, device=x.device).unsqueeze(1) == owner
            with torch.autocast(x.device.type, enabled=False):
                y = member.to(score.dtype) @ score[0]
        size = ptr.diff().unsqueeze(1)
        if weight is None:
            y = y / size.clamp(min=1)
        else:
            y = y / weight.new_zeros(samples).index_add(0, sample, weight.abs()).clamp(min=1).unsqueeze(1)
        return y if groups != samples else y.masked_fill(size > width, math.nan)

    def _attend(self, qkv: Tensor, other: Tensor, out: nn.Module, strength: Tensor | None) -> Tensor:
        """Attention among the genes of the same sample, itself excluded; 0 for a gene that is alone."""
        groups, width, channels = qkv.shape
        # [3, groups, heads, width, d]
        q, k, v = qkv.view(groups, width, 3, self.heads, channels // (3 * self.heads)).permute(2, 0, 3, 1, 4).unbind(0)
        logits = at_least_float32(q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        reach = None
        if strength is not None:
            logits = logits + (strength + torch.finfo(strength.dtype).tiny).log()[:, None, None]
            reach = (other * strength.unsqueeze(1)).sum(-1).clamp(max=1).unsqueeze(-1)
        other = other.unsqueeze(1)
        logits = logits.masked_fill(~other, torch.finfo(logits.dtype).min)
        weight = torch.where(other, logits.softmax(-1), logits.new_zeros(()))
        mixed = (weight.to(v.dtype) @ v).transpose(1, 2).flatten(2)
        # A lone gene skips the output projection, bias included.
        added = out(mixed) if reach is None else reach * out(mixed)
        return torch.where(other.any(-1).transpose(1, 2), added, added.new_zeros(()))

    def _width(self, batch: PerturbationBatch) -> int | None:
        """Slots per sample, or ``None`` where that is not known on the host."""
        total, most = len(batch.perturbation_indices), self.most_deletions
        if batch.device.type == "cpu" and not torch.compiler.is_compiling():
            size = batch.perturbation_indices_ptr.diff()
            largest = int(size.max()) if len(size) else 0
            if most is not None and largest > most:
                raise PerturbationError(
                    f"sample {int(size.argmax())} deletes {largest} genes, but this model was told that there are at "
                    f"most {most}; raise its most_deletions, or leave it out"
                )
            return largest
        return None if most is None else min(most, total)

    def extra_repr(self) -> str:
        """Shown by ``repr``."""
        return f"heads={self.heads}, most_deletions={self.most_deletions}"
