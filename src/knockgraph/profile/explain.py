"""Where the time goes and what to change, in words, from the numbers alone."""

from __future__ import annotations

from typing import Any

from knockgraph import phases
from knockgraph.profile.compare import localised, per_step

_WORTH = 0.1  # a phase with a smaller fraction is not worth advice
_EXACT_AND_FAST = "node-mask"


def summary(result: dict[str, Any]) -> str:
    """One paragraph about one profile."""
    run, c = result["runs"]["full"], result["conditions"]
    spent = per_step(run)
    whole = sum(spent.values())
    order = sorted(spent, key=lambda name: -spent[name])
    shown = [name for name in order if spent[name] >= 0.03 * whole][:5] or order[:1]
    parts = ", ".join(f"{name} {spent[name] / whole:.0%} ({milliseconds(spent[name])})" for name in shown)
    seconds = run["seconds_per_step"]
    sentences = [
        f"A step of {result['setting']} takes {milliseconds(seconds)} ({1 / seconds:,.3g} steps/s, "
        f"{c['batch per process'] * c['processes'] / seconds:,.0f} samples/s, batch {c['batch per process']} × "
        f"{c['processes']}, {c['device']}): {parts}; the phases account for {run['accounted']:.1%} of the wall clock."
    ]
    found = localised(result["runs"])
    if found is not None:
        sentences.append(
            f"Everything but the model takes {milliseconds(found['empty'])} (empty task), and the model adds "
            f"{milliseconds(found['model'])} (measured alone, on a stored batch), which leaves "
            f"{milliseconds(found['unexplained'], sign=True)} ({found['unexplained'] / found['full']:+.0%}) "
            "unexplained."
        )
        again = result["runs"].get("full again")
        if again is not None:
            drift = again["seconds_per_step"] / seconds - 1
            sentences.append(
                f"The full run, made again at the end, took {milliseconds(again['seconds_per_step'])} a step "
                f"({drift:+.0%}): this is how much the speed of this machine varies."
            )
    e = result["epoch"]
    measured = "" if e["measured_seconds"] is None else f", measured {duration(e['measured_seconds'])}"
    sentences.append(
        f"An epoch is ceil({e['training_samples']:,} / ({e['batch']} × {e['processes']})) = {e['steps']:,} steps, "
        f"{duration(e['predicted_seconds'])} by this time per step{measured}."
    )
    told = advice(result)
    model = sum(spent.get(name, 0.0) for name in (phases.FORWARD, phases.BACKWARD, phases.COMPILED)) / whole
    if not told and model > 0.5:
        modules = result["runs"].get("model-only", {}).get("modules") or []
        most = f", most of it in {modules[0]['module']} ({modules[0]['kind']})" if modules else ""
        told = [f"nothing around the model; {model:.0%} is its forward and backward pass{most}"]
    sentences.append(f"What to change: {'; '.join(told)}." if told else "There is no obvious change to make.")
    return " ".join(sentences)


def advice(result: dict[str, Any], strategy_factor: float | None = None) -> list[str]:
    """What to change, most effective first; each with the fraction of the time that it concerns.

    Args:
        result: A profile.
        strategy_factor: How many times slower its strategy is than the other, if measured.
    """
    run, c = result["runs"]["full"], {**result["conditions"], "strategy factor": strategy_factor}
    spent = per_step(run)
    whole = sum(spent.values())
    shares = {name: seconds / whole for name, seconds in spent.items()}
    rules = (
        _waiting,
        _transfer,
        _masks,
        _model,
        _exchange,
        _optimizer,
        _logging,
        _remainder,
    )
    told = [(share, text) for rule in rules for share, text in rule(shares, run, c) if share >= _WORTH]
    return [text for _, text in sorted(told, key=lambda item: -item[0])]


Rule = list[tuple[float, str]]


def _waiting(shares: dict[str, float], run: dict[str, Any], c: dict[str, Any]) -> Rule:
    share = shares.get(phases.WAIT, 0.0)
    parts = run["parts"].get(phases.WAIT, {})
    collating = parts.get("collate", 0.0) / max(run["phases"].get(phases.WAIT, 0.0), 1e-12)
    if c["placement"] != "device":
        where = f"{collating:.0%} of it making masks" if collating > 0.5 else "its batches carry masks"
        text = (
            f"{share:.0%} waits for data ({where}): use strategy={_EXACT_AND_FAST}, which needs no edge masks, "
            f"or more workers than {c['workers']} (loader.num_workers)"
        )
    elif c["workers"]:
        text = (
            f"{share:.0%} waits for data: use loader.num_workers=0, because the flat loader is faster without workers"
        )
    else:
        text = f"{share:.0%} waits for data: keep the screen on the device (loader.resident=true), or use workers"
    return [(share, text)]


def _transfer(shares: dict[str, float], run: dict[str, Any], c: dict[str, Any]) -> Rule:
    share = shares.get(phases.TRANSFER, 0.0)
    if c["placement"] != "device":
        return [(share, f"{share:.0%} moves masks to the device: use strategy={_EXACT_AND_FAST}, which moves indices")]
    return [(share, f"{share:.0%} moves batches to the device: use loader.resident=true, or loader.pin_memory=true")]


def _masks(shares: dict[str, float], run: dict[str, Any], c: dict[str, Any]) -> Rule:
    share = shares.get(phases.MASKS, 0.0)
    if c["strategy"] == _EXACT_AND_FAST:
        return [(share, f"{share:.0%} makes keep-vectors: use a larger batch, which spreads the fixed cost")]
    return [(share, f"{share:.0%} perturbs graphs with {c['strategy']}: use strategy={_EXACT_AND_FAST}")]


def _model(shares: dict[str, float], run: dict[str, Any], c: dict[str, Any]) -> Rule:
    share = sum(shares.get(name, 0.0) for name in (phases.FORWARD, phases.BACKWARD, phases.COMPILED))
    blamed = c["strategy factor"] is None or c["strategy factor"] > 1.1
    if blamed and c["graphs per step"] > 1 and c["strategy"] not in (_EXACT_AND_FAST, "neighborhood"):
        return [
            (
                share,
                f"{share:.0%} is the model's forward and backward pass, and {c['strategy']} makes it send a message "
                f"along each of {c['edges']:,} edges for every sample: use strategy={_EXACT_AND_FAST}, one product "
                "with the shared graph",
            )
        ]
    told = []
    gpu = c["device"] != "cpu"
    if gpu and run.get("device_behind_share", 1.0) < 0.5:
        text = "the device waits for the host to launch its work: use a larger loader.batch_size"
        told.append((share, text + ("" if c["compiled"] else ", or trainer.compile=true")))
    if gpu and c["precision"] == "32-true":
        told.append((share, f"{share:.0%} is the model in float32: use trainer.precision=bf16-mixed"))
    return told


def _exchange(shares: dict[str, float], run: dict[str, Any], c: dict[str, Any]) -> Rule:
    share = shares.get(phases.SYNC, 0.0)
    text = f"{share:.0%} waits for the other ranks' gradients: use a larger batch per process, or trainer.accumulate"
    return [(share, text)]


def _optimizer(shares: dict[str, float], run: dict[str, Any], c: dict[str, Any]) -> Rule:
    share = shares.get(phases.OPTIMIZER, 0.0) + shares.get(phases.CLIPPING, 0.0)
    text = f"{share:.0%} is the optimizer on {c['parameters']:,} parameters: use larger batches, which need fewer steps"
    return [(share, text)]


def _logging(shares: dict[str, float], run: dict[str, Any], c: dict[str, Any]) -> Rule:
    share = shares.get(phases.LOGGING, 0.0)
    parts = run["parts"].get(phases.LOGGING, {})
    most = next(iter(parts), "itself")
    text = f"{share:.0%} is logging and callbacks, most of it {most}: use a larger trainer.log_every_n_steps than "
    return [(share, f"{text}{c['log every n steps']}, or fewer callbacks")]


def _remainder(shares: dict[str, float], run: dict[str, Any], c: dict[str, Any]) -> Rule:
    share = shares.get(phases.REMAINDER, 0.0)
    return [
        (
            share,
            f"{share:.0%} is Lightning's own work per step: use a larger loader.batch_size, which needs fewer steps",
        )
    ]


def comparison(result: dict[str, Any]) -> str:
    """One paragraph about two profiles."""
    a, b, d = result["a"], result["b"], result["decomposition"]
    left, right = a["setting"], b["setting"]
    names = [f"{x['condition']} ({shown(x['a'])} / {shown(x['b'])})" for x in result["differences"]]
    sentences = [f"Unequal conditions: {'; '.join(names)}." if names else "All conditions are equal."]
    factors = f"{d['more_steps']:.3g}× the steps × {d['slower_steps']:.3g}× the time per step"
    if d["unexplained"] is None:
        factors += "; predicted, because an epoch is too long to run here"
    else:
        factors += f" × {d['unexplained']:.3g} unexplained"
    sentences.append(f"An epoch of {right} takes {d['ratio']:.3g}× as long as one of {left}: {factors}.")
    spread = max(_spread(x["runs"]["full"]) for x in (a, b))
    if spread > 0.1:
        sentences.append(
            f"The speed of this machine changed by {spread:.0%} between the rounds (the fastest count): measure "
            "again where nothing else runs."
        )
    change = result["phase_differences"]
    total = sum(change.values())
    large = [name for name in change if abs(change[name]) >= 0.03 * abs(total)][:4]
    times = " and ".join(f"{milliseconds(x['runs']['full']['seconds_per_step'])} ({x['setting']})" for x in (a, b))
    listed = ", ".join(f"{name} {milliseconds(change[name], sign=True)}" for name in large)
    sentences.append(f"A step takes {times}; the difference of {milliseconds(total, sign=True)} is {listed}.")
    parts = [localised(x["runs"]) for x in (a, b)]
    if parts[0] is not None and parts[1] is not None:
        empty, model, rest = (
            " and ".join(milliseconds(found[key], sign=key == "unexplained") for found in parts if found is not None)
            for key in ("empty", "model", "unexplained")
        )
        sentences.append(
            f"Everything but the model takes {empty} (empty task), the model adds {model} (measured alone, on a stored "
            f"batch), and {rest} are unexplained."
        )
    if "slower_steps_by" in result:
        by = result["slower_steps_by"]
        sentences.append(
            f"With {a['conditions']['strategy']} {b['conditions']['model']} takes "
            f"{milliseconds(result['middle']['runs']['full']['seconds_per_step'])} a step: of the factor "
            f"{d['slower_steps']:.3g}, {by['model']:.3g}× is the model {b['conditions']['model']} and "
            f"{by['strategy']:.3g}× the strategy {b['conditions']['strategy']}."
        )
    graphs = [x["conditions"]["graphs per step"] for x in (a, b)]
    if graphs[0] != graphs[1] and 1 in graphs:
        once, each = (a, b) if graphs[0] == 1 else (b, a)
        sentences.append(
            f"{once['setting']} passes messages once per step, on the wild type; {each['setting']} does so on "
            f"{max(graphs)} graphs, each sample's own and the wild type."
        )
    slower = b if d["ratio"] >= 1 else a
    told = advice(slower, result.get("slower_steps_by", {}).get("strategy") if slower is b else None)
    if told:
        sentences.append(f"What to change in {slower['setting']}: {'; '.join(told)}.")
    return " ".join(sentences)


def _spread(run: dict[str, Any]) -> float:
    times = run.get("rounds_seconds_per_step", [1.0])
    return float(max(times) / min(times) - 1)


def shown(value: Any) -> str:
    """A condition as short text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return f"{len(value)}: {', '.join(map(str, value[:3]))}{', …' if len(value) > 3 else ''}" if value else "none"
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "default"
    return str(value)


def milliseconds(seconds: float, sign: bool = False) -> str:
    """
    >>> milliseconds(0.01234), milliseconds(1.5), milliseconds(-0.0021, sign=True)
    ('12.3 ms', '1,500 ms', '-2.1 ms')
    """
    ms = 1e3 * seconds
    digits = 0 if abs(ms) >= 100 else 1 if abs(ms) >= 10 else 2 if abs(ms) >= 1 else 3
    text = f"{ms:{'+' if sign else ''},.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} ms"


def duration(seconds: float) -> str:
    """Seconds in a readable unit.

    >>> duration(2.5), duration(400), duration(90_000)
    ('2.5 s', '6.67 min', '25 h')
    """
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
