"""The strategy benchmark as a table and as a page."""

from __future__ import annotations

from html import escape
from typing import Any

from knockgraph.html.page import figure, numbers, page, table
from knockgraph.html.plots import stacked_bars

HEADINGS = (
    "strategy",
    "collate ms",
    "moved MB",
    "transfer ms",
    "masks ms",
    "forward ms",
    "backward ms",
    "layer vs lazy-mask",
    "samples/s",
    "tables MB",
    "peak GB",
    "host syncs",
)


def label(report: dict[str, Any], result: dict[str, Any]) -> str:
    """What a result is called: its strategy and, where there are several, its samples × deletions."""
    name = str(result["name"])
    return f"{name} {result['samples']}×{result['deletions']}" if _several(report["conditions"]) else name


def _several(c: dict[str, Any]) -> bool:
    return len(c.get("samples", ())) * len(c.get("deletions", ())) > 1


def tables(report: dict[str, Any]) -> list[str]:
    """The tables on the device by what they hold, of strategies that have several; each strategy once."""
    lines: dict[str, str] = {}
    for r in report["results"]:
        if len(r.get("tables", {})) > 1:
            parts = ", ".join(f"{part} {n / 1e6:,.1f} MB" for part, n in r["tables"].items())
            lines[r["name"]] = f"{r['name']}, tables: {parts}"
    return list(lines.values())


def rows(report: dict[str, Any]) -> list[list[str]]:
    """One row of text per strategy, under :data:`HEADINGS`."""
    shown = []
    for r in report["results"]:
        if "skipped" in r:
            shown.append([label(report, r), f"skipped: {r['skipped']}"])
            continue
        milliseconds = {key: f"{1e3 * r[key]:,.2f}" for key in r if key.endswith("_s") and key != "samples_per_s"}
        relative = r.get("layer_relative_to_lazy_mask")
        shown.append(
            [
                label(report, r) + ("" if r["exact"] else " (approximate)"),
                milliseconds["collate_s"],
                f"{r['bytes_moved'] / 1e6:,.3f}",
                milliseconds["transfer_s"],
                milliseconds["masks_s"],
                milliseconds["forward_s"],
                milliseconds["backward_s"],
                "–" if relative is None else f"{relative:,.1f}×",
                f"{r['samples_per_s']:,.0f}",
                f"{sum(r['memory'].get(part, 0) for part in ('device tables', 'dense relations')) / 1e6:,.1f}",
                f"{r['peak_bytes'] / 1e9:,.2f}",
                "–" if r["host_syncs"] is None else str(r["host_syncs"]),
            ]
        )
    return shown


def conditions(report: dict[str, Any]) -> str:
    """What was measured, in one sentence."""
    c, machine = report["conditions"], report["machine"]
    place = machine["cuda_devices"][0] if c["device"] == "cuda" else f"{machine['cores']} CPU cores"
    return (
        f"{c['genes']:,} genes, {c['relations']} relation{'s' * (c['relations'] > 1)}, "
        f"{c['edges']:,} edges; batch {_batches(c)}"
        f"{' (the wild type included)' if c['wild_type_included'] else ''}, {c['channels']} channels, {c['dtype']}; "
        f"{place}, torch {machine['torch']}{'; samples × deletions behind each name' if _several(c) else ''}"
    )


def _batches(c: dict[str, Any]) -> str:
    sizes = [n + c["wild_type_included"] for n in c["samples"]] if "samples" in c else [c["batch"]]
    return " and ".join(map(str, sizes))


def disk(report: dict[str, Any]) -> list[str]:
    """What the stored strategies would take on disk for a full screen."""
    return [
        f"{label(report, r)}: {r['memory']['disk'] / 1e6:,.1f} MB on disk for this batch, "
        f"{r['disk_bytes_full_screen_extrapolated'] / 1e9:,.1f} GB for 332,313 experiments (extrapolated)"
        for r in report["results"]
        if "disk_bytes_full_screen_extrapolated" in r
    ]


def errors(report: dict[str, Any]) -> list[str]:
    """How far the approximate strategies are from the exact result."""
    return [
        f"{label(report, r)} is exact only for models that reach no further than its hops: "
        "error relative to the effect of the deletions "
        + ", ".join(f"{error:.1%} after {layers}" for layers, error in r["relative_error"].items())
        for r in report["results"]
        if "relative_error" in r
    ]


def picture(report: dict[str, Any]) -> str:
    """Bars of the layer's time by phase; SVG text."""
    bars = {
        label(report, r): {phase: 1e3 * r[f"{phase}_s"] for phase in ("masks", "forward", "backward")}
        for r in report["results"]
        if "skipped" not in r
    }
    return stacked_bars(bars, "milliseconds", "One layer")


def html(report: dict[str, Any]) -> str:
    """The self-contained page."""
    measured = [row for row in rows(report) if len(row) == len(HEADINGS)]
    skipped = "".join(f"<p>{escape(row[0])}: {escape(row[1])}</p>" for row in rows(report) if len(row) != len(HEADINGS))
    notes = "".join(f"<p>{escape(line)}</p>" for line in [*tables(report), *disk(report), *errors(report)])
    return page(
        "Strategies side by side",
        conditions(report),
        [
            (
                "Time of one layer",
                figure(picture(report), "Milliseconds of one layer by phase, for each strategy")
                + numbers("the numbers", report["results"]),
            ),
            ("Table", table(HEADINGS, measured) + skipped + notes),
            ("Conditions", numbers("all conditions", {**report["conditions"], **report["machine"]})),
        ],
    )
