"""Where the time of a trace goes, in sentences with their numbers."""

from __future__ import annotations

from typing import Any

from knockgraph.traces.categories import IDLE

BUSY = 0.8  # above this the device is the bottleneck
SYNC_SHARE = 0.02  # of the span: waits below this are not worth a sentence


def findings(report: dict[str, Any]) -> list[str]:
    """The sentences, the most important first.

    Args:
        report: A summary of :mod:`knockgraph.traces.summary`.
    """
    said = [_clock(report)]
    if report["gpu"] is not None:
        said.append(_device(report))
    return [*said, *_waits(report), *_pageable(report)]


def _clock(report: dict[str, Any]) -> str:
    span, steps = report["span_ns"], report["steps"]
    length = f"The trace spans {span / 1e6:,.3f} ms"
    if steps:
        length += f" with {steps['count']} steps of {steps['mean_ns'] / 1e6:,.3f} ms on average"
    largest = sorted(report["wall_ns"].items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{name} {ns / span:.0%}" for name, ns in largest if ns) if span else ""
    return f"{length}; the main thread's wall clock is {parts}." if parts else f"{length}."


def _device(report: dict[str, Any]) -> str:
    gpu = report["gpu"]
    share = gpu["busy_share"]
    if share >= BUSY:
        top = report["device_operators"][0]
        part = top["self_ns"] / gpu["self_ns"] if gpu["self_ns"] else 0.0
        return (
            f"The GPU is busy {share:.0%} of the time, so its kernels are the bottleneck; the largest is "
            f"{short(top['name'])} with {part:.0%} of the GPU time."
        )
    device = gpu["devices"][0]
    where, ns = max(device["idle_while_host"].items(), key=lambda item: item[1])
    doing = "nothing that was recorded" if where == IDLE else where
    part = ns / device["idle_ns"] if device["idle_ns"] else 0.0
    return (
        f"The GPU is busy only {share:.0%} of the time, so the host is the bottleneck; while {device['device']} is "
        f"idle, the host is mostly in {doing} ({part:.0%} of that time)."
    )


def _waits(report: dict[str, Any]) -> list[str]:
    syncs, steps = report["syncs"], report["steps"]
    if not syncs["count"] or (syncs["wait_ns"] < SYNC_SHARE * report["span_ns"] and not syncs["in_steps"]):
        return []
    often = f"{syncs['in_steps'] / steps['count']:,.1f} times a step" if steps else f"{syncs['count']:,} times"
    share = syncs["wait_ns"] / report["span_ns"] if report["span_ns"] else 0.0
    return [
        f"The host waits for the device {often}, {syncs['wait_ns'] / 1e6:,.3f} ms in all ({share:.1%} of the span)."
    ]


def _pageable(report: dict[str, Any]) -> list[str]:
    rows = [row for row in report["copies"] if "pageable" in row["direction"].lower() and "HtoD" in row["direction"]]
    if not rows or not (total := sum(row["bytes"] for row in rows)):
        return []
    return [f"{total / 1e6:,.3f} MB went to the device from pageable memory: pin it to avoid waits of the host."]


def short(name: str, length: int = 60) -> str:
    """A name cut to a length.

    >>> short("void at::native::kernel<float>", 12)
    'void at::na…'
    """
    return name if len(name) <= length else name[: length - 1] + "…"
