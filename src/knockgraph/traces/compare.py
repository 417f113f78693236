"""Comparison of traces: two with differences and ratios, or one per rank with the spread between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CONDITIONS = {
    "devices": "device",
    "device_events": "GPU events in the trace",
    "steps": "number of steps",
    "world_size": "number of processes",
    "shapes_recorded": "shapes recorded",
    "memory_recorded": "memory recorded",
    "stacks_recorded": "Python stacks recorded",
}


def are_ranks(summaries: Sequence[dict[str, Any]]) -> bool:
    """Whether traces are the processes of one run, rather than two runs to compare."""
    ranks = [s["conditions"]["rank"] for s in summaries]
    worlds = {s["conditions"]["world_size"] for s in summaries}
    of_one_run = (
        None not in ranks and len(set(ranks)) == len(ranks) and len(worlds) == 1 and worlds.pop() not in (None, 1)
    )
    return len(summaries) > 2 or (len(summaries) == 2 and of_one_run)


def compare(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Two traces: the difference is ``b`` minus ``a``, the ratio ``b`` over ``a``; per step where both have steps.

    Args:
        a: Summary of the first.
        b: Summary of the second.
    """
    per_step = bool(a["steps"] and b["steps"])
    by = [s["steps"]["count"] if per_step else 1 for s in (a, b)]

    def rows(pairs: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
        made = [_row(name, x / by[0], y / by[1]) for name, (x, y) in pairs.items() if x or y]
        return sorted(made, key=lambda row: -abs(row["difference_ns"]))

    def operators(kind: str) -> list[dict[str, Any]]:
        both = [{row["name"]: row for row in s[f"{kind}_operators"]} for s in (a, b)]
        made = rows({n: tuple(s.get(n, {}).get("self_ns", 0) for s in both) for n in {**both[0], **both[1]}})
        for row in made:
            row["a_count"], row["b_count"] = (s.get(row["name"], {}).get("count", 0) for s in both)
        return made

    def pairs(key: str) -> dict[str, tuple[float, float]]:
        return {name: (a[key].get(name, 0), b[key].get(name, 0)) for name in {**a[key], **b[key]}}

    times = {"span": (a["span_ns"], b["span_ns"])}
    result: dict[str, Any] = {
        "a": a["file"],
        "b": b["file"],
        "labels": labels([a["file"], b["file"]]),
        "unequal_conditions": unequal(a, b),
        "per": "step" if per_step else "trace",
        "span": rows(times)[0] if a["span_ns"] or b["span_ns"] else _row("span", 0, 0),
        "wall": rows(pairs("wall_ns")),
        "host": rows(pairs("host")),
        "device": rows(pairs("device")),
        "host_operators": operators("host"),
        "device_operators": operators("device"),
        "other": [_figure(name, x, y) for name, x, y in _figures(a, b, by)],
    }
    if per_step:
        mean = [s["steps"]["mean_ns"] for s in (a, b)]
        result["step"] = _row("step", mean[0], mean[1])
    result["answer"] = _answer(result)
    return result


def unequal(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """What differs in the conditions of two traces, one sentence each."""
    found = []
    for key, words in _CONDITIONS.items():
        x, y = a["conditions"][key], b["conditions"][key]
        if x != y:
            found.append(f"{words}: {_shown(x)} against {_shown(y)}")
    return found


def spread(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One trace per rank: the figures of each, and for every category the fastest and the slowest rank.

    Args:
        summaries: One per rank.
    """
    names = rank_names(summaries)
    per_step = all(s["steps"] for s in summaries)
    by = [s["steps"]["count"] if per_step else 1 for s in summaries]
    categories = list(dict.fromkeys(name for s in summaries for name in s["wall_ns"]))
    values = {name: [s["wall_ns"].get(name, 0) / n for s, n in zip(summaries, by, strict=True)] for name in categories}
    values = {
        "span": [s["span_ns"] / n for s, n in zip(summaries, by, strict=True)],
        **values,
        "GPU busy": [
            sum(d["busy_ns"] for d in s["gpu"]["devices"]) / n if s["gpu"] else 0
            for s, n in zip(summaries, by, strict=True)
        ],
    }
    rows = []
    for name, each in values.items():
        if not any(each):
            continue
        low, high = min(each), max(each)
        rows.append(
            {
                "name": name,
                "values_ns": each,
                "fastest": names[each.index(low)],
                "slowest": names[each.index(high)],
                "spread_ns": high - low,
                "ratio": high / low if low else None,
            }
        )
    first = summaries[0]
    differences = {text for other in summaries[1:] for text in unequal(first, other)}
    return {
        "ranks": names,
        "per": "step" if per_step else "trace",
        "rows": rows,
        "unequal_conditions": sorted(differences),
    }


def rank_names(summaries: Sequence[dict[str, Any]]) -> list[str]:
    """The name of each trace: its rank if all ranks are distinct, else its file."""
    ranks = [s["conditions"]["rank"] for s in summaries]
    if None not in ranks and len(set(ranks)) == len(ranks):
        return [f"rank {rank}" for rank in ranks]
    return labels([s["file"] for s in summaries])


def labels(files: Sequence[str]) -> list[str]:
    """The shortest path endings that distinguish the files; a repeated file gets a number.

    >>> labels(["runs/a/trace.json", "runs/b/trace.json"]), labels(["x.json", "x.json"])
    (['a/trace.json', 'b/trace.json'], ['x.json (1)', 'x.json (2)'])
    """
    parts = [Path(file).parts for file in files]
    for depth in range(1, max(map(len, parts)) + 1):
        ends = [str(Path(*p[-depth:])) for p in parts]
        if len(set(ends)) == len(ends):
            return ends
    return [f"{Path(file).name} ({i})" for i, file in enumerate(files, 1)]


def _row(name: str, a: float, b: float) -> dict[str, Any]:
    return {"name": name, "a_ns": a, "b_ns": b, "difference_ns": b - a, "ratio": b / a if a else None}


def _figure(name: str, a: float | None, b: float | None) -> dict[str, Any]:
    known = a is not None and b is not None
    return {
        "name": name,
        "a": a,
        "b": b,
        "difference": b - a if a is not None and b is not None else None,
        "ratio": b / a if known and a and b is not None else None,
    }


def _figures(a: dict[str, Any], b: dict[str, Any], by: list[int]) -> list[tuple[str, float | None, float | None]]:
    def pick(get: Any) -> list[float | None]:
        return [get(s, n) for s, n in zip((a, b), by, strict=True)]

    def copied(s: dict[str, Any], n: int) -> float:
        return float(sum(row["bytes"] for row in s["copies"] if "HtoD" in row["direction"])) / n

    figures = {
        "GPU busy share": pick(lambda s, n: s["gpu"]["busy_share"] if s["gpu"] else None),
        "kernels": pick(lambda s, n: s["gpu"]["kernels"]["count"] / n if s["gpu"] else None),
        "syncs": pick(lambda s, n: s["syncs"]["count"] / n),
        "values read to the host": pick(lambda s, n: s["syncs"]["values_read"] / n),
        "bytes host to device": pick(copied),
        "host events": pick(lambda s, n: sum(row["count"] for row in s["host_operators"]) / n),
    }
    for device in sorted({*a["memory"], *b["memory"]}):
        figures[f"peak bytes, {device}"] = pick(lambda s, n, d=device: s["memory"].get(d, {}).get("peak_bytes"))
    return [(name, x, y) for name, (x, y) in figures.items() if x or y]


def _answer(result: dict[str, Any]) -> str:
    row = result.get("step", result["span"])
    first, second = result["labels"]
    what = "a step" if "step" in result else "the trace"
    if not row["a_ns"]:
        return f"{first} has no duration, so there is nothing to compare."
    start = (
        f"In {second}, {what} takes {row['b_ns'] / 1e6:,.3f} ms against {row['a_ns'] / 1e6:,.3f} ms in {first}: "
        f"{row['ratio']:.2f} times as long"
    )
    same_way = [r for r in result["wall"] if r["difference_ns"] * row["difference_ns"] > 0]
    if not same_way:
        return start + "."
    largest = same_way[0]
    return (
        f"{start}; the largest part of the difference is {largest['name']}, "
        f"{largest['difference_ns'] / 1e6:+,.3f} ms of the wall clock."
    )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)
