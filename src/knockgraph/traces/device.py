"""The device in a trace: how busy it was, what launched its work, what waited for it, and what was copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knockgraph.traces.analysis import Analysis, named
from knockgraph.traces.categories import IDLE
from knockgraph.traces.reader import NONE, Integers, Trace
from knockgraph.traces.self_time import union, while_idle

NO_LAUNCH = "launch not in the trace"


def device_work(analysis: Analysis) -> dict[str, Any] | None:
    """Busy time of each device and how it was spent; None if nothing ran on a device."""
    trace, names = analysis.trace, analysis.categories.names
    on_device = analysis.on_device()
    if not on_device.any():
        return None
    devices: dict[int | str, list[int]] = {}
    for i, track in enumerate(trace.tracks):
        if track.device and len(analysis.tracks[i].self_ns):
            devices.setdefault(track.process, []).append(i)
    rows, launcher = _launches(analysis, on_device)
    by_phase = np.zeros(len(names) + 1, np.int64)
    phase = np.where(launcher >= 0, analysis.category[launcher], len(names))
    np.add.at(by_phase, phase, analysis.self_ns[rows])
    kernel_labels = [i for i, (_, cat) in enumerate(trace.labels) if "kernel" in cat]
    kernels = rows[np.isin(trace.label[rows], kernel_labels)] if kernel_labels else rows[:0]
    per_device: list[dict[str, Any]] = []
    for device, tracks in sorted(devices.items(), key=lambda item: str(item[0])):
        busy = union([analysis.tracks[i].timeline for i in tracks])
        busy_ns = int(busy.totals(1)[0])
        idle = while_idle(busy, analysis.wall, analysis.first, analysis.last, len(names))
        per_device.append(
            {
                "device": f"GPU {device}",
                "streams": len(tracks),
                "busy_ns": busy_ns,
                "idle_ns": analysis.span - busy_ns,
                "busy_share": busy_ns / analysis.span if analysis.span else 0.0,
                "idle_while_host": {**named(names, idle[:-1]), IDLE: int(idle[-1])},
            }
        )
    return {
        "devices": per_device,
        "busy_share": sum(d["busy_share"] for d in per_device) / len(per_device),
        "kernels": {"count": len(kernels), "self_ns": int(analysis.self_ns[kernels].sum())},
        "self_ns": int(analysis.self_ns[rows].sum()),
        "by_host_category": {**named(names, by_phase[:-1]), NO_LAUNCH: int(by_phase[-1])},
    }


def _launches(analysis: Analysis, on_device: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """The device's events, and the host's event that launched each, or −1: by correlation, else by external id."""
    trace = analysis.trace
    device, host = np.flatnonzero(on_device), np.flatnonzero(~on_device)
    launcher = _look_up(trace.correlation, device, host)
    missing = launcher < 0
    launcher[missing] = _look_up(trace.external, device[missing], host)
    return device, launcher


def _look_up(ids: Integers, wanted: Integers, among: Integers) -> Integers:
    """For each wanted row the last row among the others with the same id, or −1."""
    among = among[ids[among] != NONE]
    result = np.full(len(wanted), -1, np.int64)
    if not len(among) or not len(wanted):
        return result
    order = among[np.argsort(ids[among], kind="stable")]
    place = np.searchsorted(ids[order], ids[wanted], side="right") - 1
    hit = (place >= 0) & (ids[wanted] != NONE)
    hit[hit] = ids[order[place[hit]]] == ids[wanted[hit]]
    result[hit] = order[place[hit]]
    return result


def launched_by_label(analysis: Analysis, on_device: NDArray[np.bool_]) -> dict[int, int]:
    """Device time by the operator of the host around the launch: the one with the same external id."""
    trace = analysis.trace
    device, host = np.flatnonzero(on_device), np.flatnonzero(~on_device)
    operators = {i for i, (_, cat) in enumerate(trace.labels) if cat in ("cpu_op", "operator")}
    host = host[np.isin(trace.label[host], list(operators))] if operators else host[:0]
    row = _look_up(trace.external, device, host)
    total = np.zeros(len(trace.labels), np.int64)
    np.add.at(total, trace.label[row[row >= 0]], trace.duration[device[row >= 0]])
    return {int(label): int(total[label]) for label in np.flatnonzero(total)}


def syncs(analysis: Analysis) -> dict[str, Any]:
    """Host calls that wait for the device; those inside steps are given separately."""
    trace = analysis.trace
    host_rows = np.flatnonzero(~analysis.on_device())
    used = set(np.unique(trace.label[host_rows]).tolist())
    inside = _inside_steps(trace)
    names: dict[str, dict[str, int]] = {}
    items = 0
    for label, (name, _) in enumerate(trace.labels):
        if label not in used:
            continue
        if analysis.categories.is_item(name):
            items += int((trace.label[host_rows] == label).sum())
        if analysis.categories.is_sync(name):
            rows = host_rows[trace.label[host_rows] == label]
            row = names.setdefault(name, {"count": 0, "in_steps": 0, "wait_ns": 0})
            row["count"] += len(rows)
            row["in_steps"] += int(inside(trace.start[rows]).sum())
            row["wait_ns"] += int(trace.duration[rows].sum())
    return {
        "count": sum(row["count"] for row in names.values()),
        "in_steps": sum(row["in_steps"] for row in names.values()),
        "wait_ns": sum(row["wait_ns"] for row in names.values()),
        "names": dict(sorted(names.items(), key=lambda item: (-item[1]["count"], item[0]))),
        "values_read": items,
    }


def _inside_steps(trace: Trace) -> Callable[[Integers], NDArray[np.bool_]]:
    starts = np.array([start for _, start, _ in trace.steps], np.int64)
    ends = np.array([start + duration for _, start, duration in trace.steps], np.int64)

    def inside(times: Integers) -> NDArray[np.bool_]:
        if not len(starts):
            return np.zeros(len(times), bool)
        place = np.searchsorted(starts, times, side="right") - 1
        return (place >= 0) & (times < ends[np.maximum(place, 0)])

    return inside


def copies_by_direction(trace: Trace) -> list[dict[str, Any]]:
    """Copies and fills on the device, by direction and kind of memory."""
    return [
        {
            "direction": name,
            "count": copies.count,
            "bytes": copies.bytes,
            "ns": copies.nanoseconds,
            "gb_per_s": copies.bytes / copies.nanoseconds if copies.nanoseconds else None,
        }
        for name, copies in sorted(trace.copies.items(), key=lambda item: (-item[1].bytes, item[0]))
    ]
