"""What the deleted genes of each sample, and all their pairs, add up to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knockgraph.ops.backends.choice import fused


def pair_terms(
    x: Tensor, genes: Tensor, ptr: Tensor, sample: Tensor, weight: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    r"""Of the states of each sample's genes P, side by side,

    .. math:: \sum_{i \in P} x_i, \qquad \sum_{i < j \in P} x_i \odot x_j, \qquad \sum_{i < j \in P} (x_i - x_j)^2.

    With :math:`t = \sum x_i` and :math:`q = \sum x_i^2` the second is :math:`(t^2 - q) / 2` and the third
    :math:`|P|\, q - t^2`, so nothing is made per pair. Equal inputs give equal bits. A gene may count with a weight, a
    pair then with the product of the two; the fused kernels know no weights.

    Shapes:
        x ``[num_genes, channels]`` -> ``[samples, 3 · channels]``.

    Args:
        x: The states, float32 or float64.
        genes: The genes of all samples, one sample after the other.
        ptr: Where in ``genes`` each sample begins, ``[samples + 1]``.
        sample: The sample of each of ``genes``.
        weight: The weight of each of ``genes``; ``None``: 1.
        backend: ``auto``, ``triton`` or ``torch``.
    """
    if weight is None and fused(backend, x, x.shape[1]) and genes.numel():
        y: Tensor = _pair_terms(x, genes, ptr, sample)
        return y
    states = x[genes]
    # A product with the membership matrix sums in a fixed order; scattering would not.
    member = (torch.arange(len(ptr) - 1, device=x.device).unsqueeze(1) == sample).to(states.dtype)
    if weight is None:
        total, squares = (member @ torch.cat([states, states.square()], 1)).chunk(2, 1)
        size, own = ptr.diff().unsqueeze(1), squares
    else:
        w = weight.to(states.dtype).unsqueeze(1)
        parts = torch.cat([w * states, w * states.square(), (w * states).square()], 1)
        total, squares, own = (member @ parts).chunk(3, 1)
        size = member @ w
    common, apart = (total.square() - own) / 2, size * squares - total.square()
    return torch.cat([total, common, apart], 1)


@torch.library.custom_op("knockgraph::pair_terms", mutates_args=())
def _pair_terms(x: Tensor, genes: Tensor, ptr: Tensor, sample: Tensor) -> Tensor:
    from knockgraph.ops.triton import pair_terms as pair_terms_triton

    return pair_terms_triton.forward(x, genes, ptr)


@_pair_terms.register_fake
def _(x: Tensor, genes: Tensor, ptr: Tensor, sample: Tensor) -> Tensor:
    return x.new_empty(ptr.shape[0] - 1, 3 * x.shape[1])


@torch.library.custom_op("knockgraph::pair_terms_grad", mutates_args=())
def _pair_terms_grad(x: Tensor, genes: Tensor, ptr: Tensor, sample: Tensor, y: Tensor, dy: Tensor) -> Tensor:
    from knockgraph.ops.triton import pair_terms as pair_terms_triton

    return pair_terms_triton.backward(x, genes, ptr, sample, y, dy)


@_pair_terms_grad.register_fake
def _(x: Tensor, *rest: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


_pair_terms.register_autograd(
    lambda ctx, dy: (_pair_terms_grad(*ctx.saved_tensors, dy.contiguous()), None, None, None),
    setup_context=_setup_context,
)
