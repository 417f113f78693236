"""Plots as SVG text for HTML pages; matplotlib is imported when the first one is drawn."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

PALETTE = (
    *("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#9c6b4e", "#97bbf5"),
    *("#e377c2", "#17808f", "#b5bd4c", "#a8527c", "#f0a58f", "#6b7b8b", "#c9a0dc", "#5f7f5f"),
)
_NARROW, _WIDE = 5.4, 8.5  # inches: one that a phone shows without scrolling, and one that has room for long labels
_LEGEND_INSIDE = 4  # more curves than this need lines of their own for their names
_LEGEND_BESIDE_TITLE = 3  # more parts than this need lines of their own


def plain(text: str) -> str:
    """A name for matplotlib, which reads text between dollars as mathematics and omits labels that start with _.

    >>> plain("_a$b$")
    ' _a\\\\$b\\\\$'
    """
    return (" " if text.startswith("_") else "") + text.replace("$", "\\$")


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x: str,
    y: str,
    levels: Mapping[str, float] | None = None,
    log: bool = False,
) -> str:
    """Curves over steps; SVG text.

    Args:
        series: Name → points.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        levels: Name → a value to compare with, drawn as a dashed line.
        log: Whether the horizontal axis is logarithmic.
    """
    return svg(lines_figure(series, x, y, levels, log))


def lines_figure(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x: str,
    y: str,
    levels: Mapping[str, float] | None = None,
    log: bool = False,
) -> Any:
    """The same as a figure of matplotlib."""
    beside = len(series) + len(levels or {}) > _LEGEND_INSIDE
    figure, axes = _axes(3.4 + (0.25 * -(-len(series) // 2) if beside else 0), _NARROW)
    for (name, points), color in zip(series.items(), itertools.cycle(PALETTE), strict=False):
        axes.plot(
            [p[0] for p in points],
            [p[1] for p in points],
            color=color,
            label=plain(name),
            marker="." if len(points) < 30 else "",
        )
    for (name, value), style in zip((levels or {}).items(), itertools.cycle(("--", ":", "-.")), strict=False):
        axes.axhline(value, color="#888888", linewidth=1.2, linestyle=style, label=plain(name))
    if log:
        axes.set_xscale("log")
    axes.ticklabel_format(axis="y" if log else "both", useOffset=False)  # no offsets such as "+5.001e-3" on the axis
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if beside:
        figure.legend(frameon=False, ncols=2, loc="outside lower center")
    elif series:
        axes.legend(frameon=False)
    return figure


def scatter(x: Sequence[float], y: Sequence[float], x_label: str, y_label: str) -> str:
    """Points and the diagonal; SVG text. Many points are rasterised, so that the page stays small."""
    return svg(scatter_figure(x, y, x_label, y_label))


def scatter_figure(x: Sequence[float], y: Sequence[float], x_label: str, y_label: str) -> Any:
    """The same as a figure of matplotlib."""
    figure, axes = _axes(4.6, _NARROW)
    axes.scatter(x, y, s=10, color=PALETTE[0], alpha=0.5, linewidths=0, rasterized=len(x) > 500)
    if len(x):
        low, high = min(min(x), min(y)), max(max(x), max(y))
        axes.plot([low, high], [low, high], color="#888888", linewidth=1)
    axes.set_xlabel(plain(x_label))
    axes.set_ylabel(plain(y_label))
    return figure


def svg(figure: Any) -> str:
    """A figure as SVG text; it is closed."""
    from matplotlib import pyplot as plt

    return _svg(figure, plt)


def _axes(height: float, width: float = _WIDE) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any, plt: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, dpi=150, metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    # Black takes the colour of the surrounding text, so that it is also visible on a dark page.
    return text[text.index("<svg") :].replace("#000000", "currentColor")


def stacked_bars(
    rows: Mapping[str, Mapping[str, float]], unit: str, title: str, colors: Mapping[str, str] | None = None
) -> str:
    """Horizontal stacked bars, one per row, with the totals at their ends; SVG text.

    Args:
        rows: Row label → part → value.
        unit: Of the values.
        title: Above the plot.
        colors: Part → colour; from the palette, in order, if left out.
    """
    from matplotlib import pyplot as plt

    labels = [plain(label) for label in rows]
    parts: Sequence[str] = list(dict.fromkeys(part for row in rows.values() for part in row))
    many = len(parts) > _LEGEND_BESIDE_TITLE
    figure, axes = _axes(0.42 * len(labels) + 1.3 + (0.25 * -(-len(parts) // 5) if many else 0))
    left = [0.0] * len(labels)
    for part, fallback in zip(parts, itertools.cycle(PALETTE), strict=False):
        color = (colors or {}).get(part, fallback)
        width = [row.get(part, 0.0) for row in rows.values()]
        axes.barh(labels, width, left=left, color=color, label=plain(part))
        left = [a + b for a, b in zip(left, width, strict=True)]
    for place, total in enumerate(left):
        axes.annotate(f" {_short(total)}", (total, place), va="center", fontsize=9)
    if many:
        figure.legend(frameon=False, ncols=5, loc="outside lower center")
    else:
        axes.legend(frameon=False, ncols=len(parts), loc="lower right", bbox_to_anchor=(1, 1))
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left", fontsize=11)
    axes.margins(x=0.1)
    return _svg(figure, plt)


def signed_bars(rows: Mapping[str, float], unit: str, title: str) -> str:
    """Horizontal bars to both sides of 0, one per row, with their values at their ends; SVG text.

    Args:
        rows: Label → value.
        unit: Of the values.
        title: Above the plot.
    """
    return svg(signed_bars_figure(rows, unit, title))


def signed_bars_figure(rows: Mapping[str, float], unit: str, title: str) -> Any:
    """The same as a figure of matplotlib."""
    figure, axes = _axes(0.32 * len(rows) + 1.3, _NARROW)
    places, values = range(len(rows)), list(rows.values())
    axes.barh(places, values, color=[PALETTE[2] if value < 0 else PALETTE[0] for value in values])
    for place, value in zip(places, values, strict=True):
        side = "right" if value < 0 else "left"
        axes.annotate(f" {value:+.3g} ".replace("-", "−"), (value, place), va="center", ha=side, fontsize=9)
    axes.set_yticks(places, [plain(label) for label in rows])
    axes.axvline(0, color="#888888", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel(plain(unit))
    axes.set_title(plain(title), loc="left", fontsize=11)
    low, high = min([0.0, *values]), max([0.0, *values])
    room = 0.36 * (high - low) or 1.0  # for the values at the ends of the bars
    axes.set_xlim(low - room * (low < 0), high + room * (high > 0 or low == high))
    axes.locator_params(axis="x", nbins=4)
    return figure


def _short(value: float) -> str:
    """Three digits, never in powers of ten.

    >>> _short(1561.7), _short(53.68), _short(0.0123)
    ('1,562', '53.7', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def timeline(rows: Sequence[tuple[str, Sequence[int]]], colors: Sequence[str], length: float, unit: str) -> str:
    """One line per track, coloured by what it does over time; SVG text.

    Args:
        rows: Label and, for each of equally long stretches of time, a number of a colour, −1 for nothing.
        colors: The colours.
        length: Of the whole line.
        unit: Of the length.
    """
    from matplotlib import pyplot as plt

    figure, axes = _axes(0.34 * len(rows) + 0.7)
    for place, (_, doing) in enumerate(rows):
        width = length / max(len(doing), 1)
        stretches = runs(doing)
        axes.broken_barh(
            [(a * width, (b - a) * width) for a, b in stretches],
            (place - 0.4, 0.8),
            facecolors=[colors[doing[a]] for a, _ in stretches],
            linewidth=0,
        )
    axes.set_yticks(range(len(rows)), [plain(label) for label, _ in rows])
    axes.set_xlim(0, length)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(unit)
    return _svg(figure, plt)


def runs(doing: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of equal values: start and end (exclusive) of each run; negative values are left out.

    >>> runs([-1, 2, 2, 2, 0])
    [(1, 4), (4, 5)]
    """
    edges = [0, *(i for i in range(1, len(doing)) if doing[i] != doing[i - 1]), len(doing)]
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a and doing[a] >= 0]
