"""What doses add to operators that know keep-vectors only."""

from __future__ import annotations

import torch
from torch import Tensor

from knockgraph.ops.precision import accumulator


def dosed_logits(source: Tensor, target: Tensor, attention: Tensor, dose: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Two more channels of GATv2's operands that add :math:`\log d_j` to its logits, so that

    .. math:: \operatorname{softmax}_j(\mathrm{logit} + \log d_j) \propto d_j \exp(\mathrm{logit}).

    :math:`\log d = (1 + \max(\log d, 0)) - (1 + \max(-\log d, 0))`, and LeakyReLU leaves the two parts, which are
    positive, as they are. The operators need not know of it; the last two channels of their result mean nothing.

    A dose of 0 counts as a tiny one: next to a neighbour with a dose it has no share, but the derivative of
    the share is right, :math:`\exp(\mathrm{logit})` over the sum. Rows of which no neighbour has a dose are for the
    caller to leave out.

    Shapes:
        source [sources, batch, heads, channels], target [destinations, batch, heads, channels], attention [heads,
        channels], dose [sources, batch, 1, 1] -> the first three with two more channels, at least float32.
    """
    kind = accumulator(source.dtype)
    source, target, attention = source.to(kind), target.to(kind), attention.to(kind)
    log = (dose.to(kind) + 1e6 * torch.finfo(kind).tiny).log()
    # Of the two, clamp has the gradient at log 1 = 0 and relu has none, so that together they have it once.
    parts = 1 + torch.cat([log.relu(), (-log).clamp(min=0)], -1)
    source = torch.cat([source, parts.expand(*source.shape[:3], 2)], -1)
    target = torch.cat([target, target.new_zeros(*target.shape[:3], 2)], -1)
    sign = attention.new_tensor([1.0, -1.0]).expand(attention.shape[0], 2)
    return source, target, torch.cat([attention, sign], -1)
