"""A cell graph in tables and pictures."""

from __future__ import annotations

import itertools
from typing import Any

from knockgraph.graph import CellGraph
from knockgraph.graph.summary import degree_counts
from knockgraph.html import page, plots

HEADINGS = (
    "relation",
    "genes touched",
    "edges",
    "symmetric",
    "self loops",
    "median degree",
    "max in",
    "max out",
    "components",
    "largest",
)


def rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row per relation under :data:`HEADINGS`."""
    return [
        (
            name,
            f"{r['genes_touched']:,}",
            f"{r['edges']:,}",
            "yes" if r["symmetric"] else "no",
            f"{r['self_loops']:,}",
            f"{r['degree_median']:g}",
            f"{r['in_degree_max']:,}",
            f"{r['out_degree_max']:,}",
            f"{r['components']['count']:,}",
            f"{r['components']['largest']:,}",
        )
        for name, r in summary["relations"].items()
    ]


def overlap_rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row per relation: its name, and with every relation the shared pairs as a share of its own pairs."""
    found = []
    for name, others in summary["overlap"].items():
        own = others[name]["pairs"]
        found.append((name, *(f"{o['pairs'] / own:.0%}" if own else "–" for o in others.values())))
    return found


def html(graph: CellGraph, summary: dict[str, Any], title: str) -> str:
    """The page."""
    names = list(summary["relations"])
    counts = {name: degree_counts(relation) for name, relation in graph.relations.items()}
    sections = [("Relations", page.table(HEADINGS, rows(summary)))]
    if names:
        sections += [
            (
                "Degrees",
                page.figure(_degrees(counts), "Share of genes with at least so many neighbours, for each relation")
                + page.numbers("genes per number of neighbours", counts),
            ),
            (
                "Overlap",
                "<p>Share of the row's gene pairs that the column's relation has too.</p>"
                + page.figure(_overlap(summary), "Share of the gene pairs of each relation that another one has, too")
                + page.table(("relation", *names), overlap_rows(summary))
                + page.numbers("shared pairs and Jaccard index", summary["overlap"]),
            ),
        ]
    m = summary["metabolism"]
    if m:
        sections.append(
            ("Metabolism", page.table(("what", "count"), [(k.replace("_", " "), f"{v:,}") for k, v in m.items()]))
        )
    if summary["features"]:
        sections.append(
            ("Features", page.table(("feature", "columns"), [(k, str(v)) for k, v in summary["features"].items()]))
        )
    lead = f"{summary['genes']:,} genes, {len(names)} relations, {summary['edges']:,} edges"
    return page.page(title, lead, sections)


def _degrees(counts: dict[str, list[tuple[int, int]]]) -> str:
    """Share of genes with at least so many neighbours, on logarithmic axes; SVG text."""
    from matplotlib import pyplot as plt

    figure, axes = plots._axes(4.2)
    for (name, points), color in zip(counts.items(), itertools.cycle(plots.PALETTE), strict=False):
        if not points:
            continue
        total = sum(genes for _, genes in points)
        left, at_least = total, []
        for _, genes in points:
            at_least.append(left / total)
            left -= genes
        axes.loglog([d for d, _ in points], at_least, drawstyle="steps-pre", color=color, label=plots.plain(name))
    axes.set_xlabel("neighbours")
    axes.set_ylabel("share of genes with at least so many")
    axes.legend(frameon=False, fontsize=9)
    return plots._svg(figure, plt)


def _overlap(summary: dict[str, Any]) -> str:
    """The table of shares as a heat map; SVG text."""
    from matplotlib import pyplot as plt

    names = [plots.plain(name) for name in summary["overlap"]]
    share = [
        [(o["pairs"] / others[name]["pairs"] if others[name]["pairs"] else 0.0) for o in others.values()]
        for name, others in summary["overlap"].items()
    ]
    figure, axes = plots._axes(0.45 * len(names) + 2.2)
    # One colour, more or less transparent: the page shines through where nothing is shared, light or dark.
    blue = [int(plots.PALETTE[0][i : i + 2], 16) / 255 for i in (1, 3, 5)]
    axes.imshow([[(*blue, value) for value in row] for row in share], aspect="auto")
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=9)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    for i, row in enumerate(share):
        for j, value in enumerate(row):
            axes.annotate(
                f"{value:.0%}", (j, i), ha="center", va="center", fontsize=9, color="white" if value > 0.6 else "black"
            )
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return plots._svg(figure, plt)
