"""Slow, obvious versions of the operators, in the precision of their input: what the fast ones are tested against.

They know nothing of CSR tables, keep-vectors inside sums or columns side by side. Each sample's edges are really
filtered, and messages are really sent along the edges that are left.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kept_edges(edge_index: Tensor, keep_source: Tensor | None, keep_destination: Tensor | None) -> Tensor:
    """Bool [E]: the edges of one sample whose ends are both kept.

    Args:
        edge_index: int64 [2, E].
        keep_source: Bool [num_sources], or None for all.
        keep_destination: Bool [num_destinations], or None for all.
    """
    mask = []
    for source, destination in edge_index.t().tolist():
        sends = keep_source is None or bool(keep_source[source])
        receives = keep_destination is None or bool(keep_destination[destination])
        mask.append(sends and receives)
    return torch.tensor(mask, dtype=torch.bool)


def aggregate(
    edge_index: Tensor,
    x: Tensor,
    num_destinations: int,
    *,
    weight: Tensor | None = None,
    keep_in: Tensor | None = None,
    keep_out: Tensor | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduce over the messages of each sample's own edges, one destination at a time; 0 without a message.

    Args:
        edge_index: int64 [2, E], row 0 source, row 1 destination.
        x: [num_sources, batch, channels].
        num_destinations: Rows of the result [num_destinations, batch, channels].
        weight: [E] or None.
        keep_in: Bool [num_sources, batch] or None.
        keep_out: Bool [num_destinations, batch] or None.
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
    """
    by_source = edge_index[0].argsort(stable=True)  # ties of max and min go to the first source
    samples = []
    for sample in range(x.shape[1]):
        mask = kept_edges(
            edge_index,
            None if keep_in is None else keep_in[:, sample],
            None if keep_out is None else keep_out[:, sample],
        )
        messages_of: list[list[Tensor]] = [[] for _ in range(num_destinations)]
        for edge in by_source[mask[by_source]].tolist():
            source, destination = edge_index[:, edge].tolist()
            messages_of[destination].append(x[source, sample] * (1.0 if weight is None else weight[edge]))
        nothing = x[:0, sample].sum(0)  # zeros that know of x, so that a gradient exists without any edge
        rows = [_reduce(messages, reduce) if messages else nothing for messages in messages_of]
        samples.append(torch.stack(rows))
    return torch.stack(samples, dim=1) if samples else x[:0].sum(0).expand(num_destinations, -1, -1)


def _reduce(messages: list[Tensor], reduce: str) -> Tensor:
    result = messages[0]
    for message in messages[1:]:
        if reduce == "max":
            result = torch.where(message > result, message, result)
        elif reduce == "min":
            result = torch.where(message < result, message, result)
        else:
            result = result + message
    return result / len(messages) if reduce == "mean" else result


def attend(
    edge_index: Tensor,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    *,
    slope: float = 0.2,
    keep_in: Tensor | None = None,
    keep_out: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor:
    """Softmax attention over each sample's own edges, one destination at a time; 0 without a message.

    Args:
        edge_index: int64 [2, E], row 0 source, row 1 destination.
        source: [num_sources, batch, heads, channels].
        target: [num_destinations, batch, heads, channels].
        attention: [heads, channels].
        slope: Of the LeakyReLU for negative inputs.
        keep_in: Bool [num_sources, batch] or None.
        keep_out: Bool [num_destinations, batch] or None.
        gate: [E], factors of the messages, or None.
    """
    samples = []
    for sample in range(source.shape[1]):
        mask = kept_edges(
            edge_index,
            None if keep_in is None else keep_in[:, sample],
            None if keep_out is None else keep_out[:, sample],
        )
        kept = edge_index[:, mask]
        factor = source.new_ones(kept.shape[1]) if gate is None else gate[mask]
        # Zeros that know of every operand, so that a gradient exists without any edge.
        nothing = source[:0, sample].sum(0) + target[:0, sample].sum(0) + attention[:0].sum()
        rows = []
        for destination in range(target.shape[0]):
            here = kept[1] == destination
            sent = source[kept[0, here], sample]
            logit = (torch.nn.functional.leaky_relu(sent + target[destination, sample], slope) * attention).sum(-1)
            share = logit.softmax(0) * factor[here].unsqueeze(-1)
            rows.append((share.unsqueeze(-1) * sent).sum(0) if len(sent) else nothing)
        samples.append(torch.stack(rows))
    return torch.stack(samples, dim=1) if samples else target * attention.sum() + source.sum()
