"""Plots as SVG text, ready to stand in a page; matplotlib is imported when the first one is drawn."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

PALETTE = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#9c6b4e", "#97bbf5")


def stacked_bars(rows: Mapping[str, Mapping[str, float]], unit: str, title: str, log: bool = False) -> str:
    """Horizontal stacked bars, one per row, the parts in their order; SVG text.

    Args:
        rows: Row label → part → value.
        unit: Of the values.
        title: Above the picture.
        log: Logarithmic axis: then only the totals are drawn, because parts of a bar cannot be read on it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    labels = list(rows)
    parts: Sequence[str] = list(dict.fromkeys(part for row in rows.values() for part in row))
    figure, axes = plt.subplots(figsize=(8.5, 0.42 * len(labels) + 1.3), layout="constrained")
    totals = [sum(rows[label].values()) for label in labels]
    if log:
        axes.barh(labels, totals, color=PALETTE[0])
        axes.set_xscale("log")
    else:
        left = [0.0] * len(labels)
        for part, color in zip(parts, PALETTE, strict=False):
            width = [rows[label].get(part, 0.0) for label in labels]
            axes.barh(labels, width, left=left, color=color, label=part)
            left = [a + b for a, b in zip(left, width, strict=True)]
        axes.legend(frameon=False, loc="lower right")
    for place, total in enumerate(totals):
        axes.annotate(f" {total:,.3g}", (total, place), va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
