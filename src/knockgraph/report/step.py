"""The step benchmark as a table and as a page."""

from __future__ import annotations

from html import escape
from typing import Any

from knockgraph.bench.step import PARTS
from knockgraph.html.page import figure, numbers, page, table
from knockgraph.html.plots import stacked_bars

HEADINGS = (
    "variant",
    "batch",
    "step ms",
    *(f"{part} ms" for part in PARTS),
    "it/s",
    "samples/s",
    "peak GB",
    "host syncs",
    "vs edge masks",
)


def rows(report: dict[str, Any]) -> list[list[str]]:
    """One row of text per variant, under :data:`HEADINGS`; what was skipped has the reason in the third place."""
    shown = []
    for r in report["results"]:
        if "skipped" in r:
            shown.append([r["name"], f"batch {r['batch']}", f"skipped: {r['skipped']}"])
            continue
        relative = r.get("speed_relative_to_edge_masks")
        shown.append(
            [
                r["name"],
                str(r["batch"]),
                f"{r['step_ms']:,.1f}",
                *(f"{r['parts_ms'][part]:,.1f}" for part in PARTS),
                f"{r['it_per_s']:,.1f}",
                f"{r['samples_per_s']:,.0f}",
                "–" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 1e9:,.2f}",
                "–" if r["host_syncs"] is None else str(r["host_syncs"]),
                "–" if relative is None else f"{relative:,.1f}×",
            ]
        )
    return shown


def conditions(report: dict[str, Any]) -> str:
    """What was measured, in one sentence."""
    c, machine = report["conditions"], report["machine"]
    place = machine["cuda_devices"][0] if c["device"] == "cuda" else f"{machine['cores']} CPU cores"
    return (
        f"{c['genes']:,} genes, {c['relations']} relation{'s' * (c['relations'] > 1)}, "
        f"{c['edges']:,} edges; {c['channels']} channels, "
        f"{c['layers']} layers; {place}, torch {machine['torch']}"
    )


def limits(report: dict[str, Any]) -> str:
    """The ceilings of the device and the floor they imply, in one sentence."""
    c, f = report["ceilings"], report["floor"]
    fastest = next((r for r in report["results"] if r["name"] == "hetero" and "step_ms" in r), None)
    counted = fastest is not None and f["floor_ms"] > 0  # a single layer counts as nothing
    distance = f"; the step takes {fastest['step_ms'] / f['floor_ms']:,.1f} times that" if fastest and counted else ""
    return (
        f"ceilings: {c['copy_bytes_per_s'] / 1e9:,.0f} GB/s copied, {c['matmul_flops_per_s'] / 1e12:,.3g} TFLOP/s; "
        f"floor of the reference settings: {f['floor_ms']:,.1f} ms ({f['flops'] / 1e12:,.3g} TFLOP: "
        f"{f['flops_ms']:,.1f} ms, {f['bytes'] / 1e9:,.3g} GB: {f['bytes_ms']:,.1f} ms){distance}"
    )


def predictions(report: dict[str, Any]) -> list[str]:
    """Predicted against measured memory."""
    return [
        f"memory at batch {r['batch']}: predicted {r['predicted_bytes'] / 1e9:,.2f} GB, measured "
        f"{r['peak_bytes'] / 1e9:,.2f} GB ({r['predicted_bytes'] / r['peak_bytes'] - 1:+.1%})"
        for r in report["results"]
        if "predicted_bytes" in r
    ]


def exchanges(report: dict[str, Any]) -> list[str]:
    """What the exchange of gradients adds to a step."""
    return [
        f"{r['name']} at batch {r['batch']}: {r['step_relative_to_no_exchange']:.3f} times the step without the "
        f"exchange of {r['exchanged_bytes'] / 1e6:,.1f} MB of gradients, in a process group of one"
        for r in report["results"]
        if "exchanged_bytes" in r
    ]


def html(report: dict[str, Any]) -> str:
    """A self-contained page."""
    done = [r for r in report["results"] if "step_ms" in r]
    bars = {f"{r['name']}, {r['batch']}": {part: r["parts_ms"][part] for part in PARTS} for r in done}
    shown = [row for row in rows(report) if len(row) == len(HEADINGS)]
    skipped = "".join(f"<p>{escape(', '.join(row))}</p>" for row in rows(report) if len(row) < len(HEADINGS))
    picture = stacked_bars(bars, "ms", "Time of a step, by part")
    return page(
        "Training steps, side by side",
        conditions(report),
        [
            (
                "Milliseconds per step",
                figure(picture, "Milliseconds of a step by part, for each variant and batch size")
                + numbers("the numbers", bars)
                + f"<p>{limits(report)}</p>",
            ),
            ("Table", table(HEADINGS, shown) + skipped),
            ("Numbers", numbers("all numbers of this run", report)),
        ],
    )
