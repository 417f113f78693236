"""The reports of a training run and of its evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from knockgraph.comparison import beyond_chance, number, signed, verdict
from knockgraph.evaluate import by_phenotype, coverage_in_words
from knockgraph.files import atomic_write
from knockgraph.graph.genes import WILD_TYPE
from knockgraph.html.page import figure, numbers, page, table
from knockgraph.html.plots import lines, scatter
from knockgraph.train.metrics_file import curves
from knockgraph.train.predictor import MOST_NAMED
from knockgraph.train.schema import Config
from knockgraph.words import counted, listed

_MOST_SCATTERS = 4
_GENES = 8  # shown from each end


def write_report(directory: Path, config: Config, result: dict[str, Any]) -> None:
    """Write ``report.html`` into a run directory."""
    with atomic_write(directory / "report.html") as part:
        part.write_text(html(directory, config, result), encoding="utf-8")


def html(directory: Path, config: Config, result: dict[str, Any]) -> str:
    """The self-contained page of a run."""
    said = verdict(config.model.name, result, config.task == "classification")
    compared, *rest = _result(config, result)
    if "chosen" in result:  # fitted at once
        fitted = _warnings(result) + _fitted(result)
        sections = [compared, *rest, ("Fit", fitted), _run(config, result)]
    else:
        sections = [compared, *rest, ("Curves", _warnings(result) + _curves(directory, config)), _run(config, result)]
    return page(_title(config, result), _asked(config, result), sections, f"{said}.")


def _curves(directory: Path, config: Config) -> str:
    """Loss, score and what the model's states look like, over steps."""
    logged = curves(directory / "metrics.csv")
    score = _score(config)
    loss = {k: v for k, v in logged.items() if k in ("train/loss", "val/mse", "val/bce")}
    learned = {k: v for k, v in logged.items() if k == f"val/{score}" or k.startswith(f"val/{score}/")}
    return (
        figure(lines(loss, "step", "loss"), "Training and validation loss over steps")
        + figure(lines(learned, "step", score), f"Validation {score} over steps")
        + _states(logged)
        + numbers("the numbers", logged)
    )


def _fitted(result: dict[str, Any]) -> str:
    """How long a fit took, and what was chosen."""
    took = f"<p>Fitted and tested in {result['training_seconds']:.1f} s.</p>"
    if not result["chosen"]:
        return took
    rows = [[name, f"{value:.4g}"] for name, value in result["chosen"].items()]
    return took + "<p>Settings, chosen by the validation part:</p>" + table(["setting", "value"], rows)


def _warnings(result: dict[str, Any]) -> str:
    """What looked at the last validation as if the run had not learned."""
    return "".join(f"<p><strong>Warning:</strong> {escape(text)}.</p>" for text in result.get("warnings", ()))


def _states(logged: dict[str, list[tuple[int, float]]]) -> str:
    """How alike the genes' states are, layer by layer, and how noisy z_p is; nothing for models without layers."""
    shown = {name.removeprefix("learn/"): v for name, v in logged.items() if name.startswith("learn/")}
    if not shown:
        return ""
    named = {name.replace("_", " ").replace("z p", "z_p"): points for name, points in sorted(shown.items())}
    about = (
        "How alike the genes' states are: their mean cosine before the first layer and after each one (at 1 the model "
        "cannot tell one gene from another), and the share of z_p that is rounding (it should stay far below 1)."
    )
    return figure(lines(named, "step", "share"), "Likeness of the genes' states over steps") + f"<p>{about}</p>"


def evaluation_html(name: str, config: Config, result: dict[str, Any]) -> str:
    """The self-contained page of a run's evaluation on one part of its split.

    Args:
        name: Of the run.
        config: Of the run.
        result: What :func:`knockgraph.evaluate.evaluate` found.
    """
    title = f"{name}: {result['experiments']:,} experiments of the {result['part']} part"
    said = verdict(config.model.name, result, config.task == "classification")
    return page(title, _asked(config, result), [*_result(config, result), _run(config, result)], f"{said}.")


def _title(config: Config, result: dict[str, Any]) -> str:
    return f"{config.model.name} on {listed(_phenotypes(config, result))}"


def _asked(config: Config, result: dict[str, Any]) -> str:
    """What was asked, in one sentence."""
    about = result.get("about")
    what = f"How well does {config.model.name} predict {listed(_phenotypes(config, result))}"
    if about is None:  # earlier versions
        return f"{what} on the {result['part']} part?"
    sizes = about["sizes"]
    unseen = {
        "unseen-genes": "experiments with genes that it has never seen perturbed",
        "source": "experiments of another source",
    }.get(about["split"].get("kind", ""), "experiments that it has not seen")
    tested = unseen if result["part"] == "test" else f"the {result['part']} part"
    return (
        f"{what} in {tested}? Trained on {sizes['train']:,} experiments, with {sizes['val']:,} to choose the "
        f"checkpoint; measured here on {counted(result['experiments'], 'experiment')} of the {result['part']} part."
    )


def _run(config: Config, result: dict[str, Any]) -> tuple[str, str]:
    """Split, sizes, date, version, seed and the config."""
    about = result.get("about")
    behind = numbers("the resolved config", asdict(config))
    if about is None:
        return "This run", behind
    split = about["split"]
    options = ", ".join(f"{k} {v}" for k, v in split.items() if k != "kind" and isinstance(v, str | int | float))
    rows = [
        ["split", f"{split.get('kind', '?')}" + (f" ({options})" if options else "")],
        ["experiments", ", ".join(f"{part} {n:,}" for part, n in about["sizes"].items())],
        ["screen", f"{about['screen']}"],
        [
            "cell",
            f"{about['cell']}: {about['genes']:,} genes, {about['edges']:,} edges in {about['relations']} relations",
        ],
        ["strategy", config.strategy.name],
        ["seed", f"{about['seed']}"],
        ["date", about["date"].replace("T", " ").replace("+00:00", " UTC")],
        ["knockgraph", about["version"]],
    ]
    if "training_seconds" in result:
        rows.append(["trained and tested in", f"{result['training_seconds']:,.0f} s"])
    return "This run", table(["", "value"], rows) + behind


def _phenotypes(config: Config, result: dict[str, Any]) -> list[str]:
    return list(result.get("phenotypes", config.data.phenotypes))  # earlier versions had one, in the config


def _result(config: Config, result: dict[str, Any]) -> list[tuple[str, str]]:
    """The table against baselines, where the model is ahead, the largest errors and, of a regression, the points."""
    names = _phenotypes(config, result)
    sections = [("Against baselines", _compared(config, result))]
    if len(names) > 1:
        sections.append(("Phenotypes", _by_phenotype(result, _score(config))))
    if result.get("groups"):
        sections.append((f"Where {config.model.name} is ahead, and where not", _groups(config, result)))
    if result.get("by_gene"):
        sections.append(("Gene by gene", _by_gene(config, result)))
    if result.get("worst"):
        sections.append(("Largest errors", _worst(config, result)))
    if config.task != "classification":
        sections.append(("Predicted against measured", _scatter(names, result)))
    return sections


_FOUR = {  # heading of the table → key of one phenotype, of several
    "regression": {
        "Pearson": ("pearson", "pearson"),
        "Spearman": ("spearman", "spearman"),
        "RMSE": ("rmse_original", "rmse"),
    },
    "classification": {"AUROC": ("auroc", "auroc"), "average precision": ("average_precision", "average_precision")},
}


def _compared(config: Config, result: dict[str, Any]) -> str:
    """The model and the baselines, the winner marked; scores with intervals, and the model's lead."""
    metrics: dict[str, dict[str, float | None]] = result["metrics"]
    several, score, own = len(_phenotypes(config, result)) > 1, _score(config), config.model.name
    columns = {
        name: keys[several]
        for name, keys in _FOUR["classification" if config.task == "classification" else "regression"].items()
    }
    found = result.get("confidence") or {"lines": {}, "lead": {}}
    ranked = sorted(metrics, key=lambda line: -number(metrics[line][score]) if _known(metrics[line][score]) else 9.0)
    rows = []
    for line in ranked:
        cells = [_cell(metrics[line].get(key)) for key in columns.values()]
        ends, lead = found["lines"].get(line), found["lead"].get(line)
        cells.insert(1, f"{_cell(ends['low'])} to {_cell(ends['high'])}" if ends and _known(ends["low"]) else "–")
        if found["lead"]:
            cells.append(_lead(lead))
        rows.append([line + (" ★" if line == ranked[0] else ""), *cells])
    first, *others = columns
    headings = ["model", first, "95 % interval", *others] + ([f"lead of {own}"] if found["lead"] else [])
    text = table(headings, rows, 0 if _known(metrics[ranked[0]][score]) else None)
    return text + "".join(f"<p>{escape(note)}.</p>" for note in _notes(config, result)) + _all_metrics(result)


def _notes(config: Config, result: dict[str, Any]) -> Iterator[str]:
    found, names = result.get("confidence"), _phenotypes(config, result)
    if len(names) > 1:
        yield f"Means over {len(names):,} phenotypes, errors in label units"
    if found:
        yield (
            f"★ is the best {_score(config).replace('auroc', 'AUROC').replace('pearson', 'Pearson')}. Intervals are "
            f"those of {found['samples']} bootstrap samples of the {counted(found['experiments'], 'experiment')}; a "
            f"lead is paired, over the same samples, and beyond chance where its interval leaves out 0"
        )
    if result["ceiling"] is not None:
        yield f"Replicates and stated errors allow a Pearson of at most about {result['ceiling']:.3f}"
    if result.get("approximation"):
        yield result["approximation"].capitalize()
    if result.get("intervals"):
        yield coverage_in_words(result)


def _all_metrics(result: dict[str, Any]) -> str:
    """Every metric, folded, with what its name means."""
    metrics = result["metrics"]
    keys = list(dict.fromkeys(key for found in metrics.values() for key in found))
    rows = [[line, *(_cell(found.get(key)) for key in keys)] for line, found in metrics.items()]
    units = any(key.endswith("_original") for key in keys)
    note = "<p class=dim>mse and rmse are in units of the scaled labels, …_original in those of the screen.</p>"
    shown = table(["model", *keys], rows) + (note if units else "")
    return f"<details><summary>all metrics</summary>{shown}</details>"


def _lead(lead: dict[str, float | None] | None) -> str:
    if lead is None or not _known(lead["value"]):
        return "–"
    sure = {True: "", False: ", within chance", None: ""}[beyond_chance(lead)]
    return f"{signed(lead['value'])} ({signed(lead['low'])} to {signed(lead['high'])}{sure})"


def _groups(config: Config, result: dict[str, Any]) -> str:
    """Errors in groups of experiments, against the best baseline."""
    rows, kind = [], ""
    for group in result["groups"]:
        if group["kind"] != kind:
            kind = group["kind"]
            rows.append([kind, *[""] * (4 if result["rival"] else 2)])
        rows.append([f"  {group['group']}", f"{group['labels']:,}", *_errors(config, result, group)])
    return table([f"{result['part']} experiments", "labels", *_error_headings(config, result)], rows) + _fairness(
        result
    )


def _fairness(result: dict[str, Any]) -> str:
    if result["rival"] is None:
        return ""
    return (
        "<p class=dim>RMSE, smaller is better; ahead is who has the smaller error beyond chance (a paired 95 % "
        "interval for each row, so about one row in twenty has a winner by chance alone).</p>"
    )


def _error_headings(config: Config, result: dict[str, Any]) -> list[str]:
    return [config.model.name, *([result["rival"], "ahead"] if result["rival"] else [])]


def _errors(config: Config, result: dict[str, Any], found: dict[str, Any]) -> list[str]:
    if result["rival"] is None:
        return [_cell(found["rmse"])]
    who = {"model": config.model.name, "baseline": result["rival"], "level": "level"}[found["ahead"]]
    return [_cell(found["rmse"]), _cell(found["baseline_rmse"]), who]


def _by_gene(config: Config, result: dict[str, Any]) -> str:
    """How many genes are predicted better than by the best baseline, and those at both ends."""
    found, own, rival = result["by_gene"], config.model.name, result["rival"]
    if not found["rows"]:
        return f"<p>No gene has {found['enough']} labels of the {result['part']} part, so none is judged alone.</p>"
    genes = counted(found["genes"], "gene")
    said = f"{genes} {'has' if found['genes'] == 1 else 'have'} at least {found['enough']} labels of this part"
    if rival:
        said += (
            f"; {own} has the smaller error, beyond chance, on {found['ahead']:,} of them, {rival} on "
            f"{found['behind']:,}"
        )
    rows = found["rows"]
    ends = rows if len(rows) <= 2 * _GENES else [*rows[:_GENES], *rows[-_GENES:]]
    correlated = any(_known(r["pearson"]) for r in ends)  # not over the labels of several phenotypes
    body = [
        [
            _both(r["gene"], r["standard"]),
            f"{r['labels']:,}",
            *([_cell(r["pearson"])] if correlated else []),
            *_errors(config, result, r),
        ]
        for r in ends
    ]
    order = f"where {own} gains most over {rival} first" if rival else "the smallest error first"
    cut = f"the {_GENES} first and the {_GENES} last, " if len(ends) < len(rows) else ""
    shown = table(
        [
            "gene",
            "labels",
            *([f"Pearson {own}"] if correlated else []),
            *(f"RMSE {h}" if h != "ahead" else h for h in _error_headings(config, result)),
        ],
        body,
    )
    return f"<p>{escape(said)}. Shown: {escape(cut + order)}.</p>{shown}" + numbers("all of these genes", rows)


def _worst(config: Config, result: dict[str, Any]) -> str:
    """The experiments with the largest errors, by gene names."""
    several, intervals, rival = len(_phenotypes(config, result)) > 1, result.get("intervals"), result["rival"]
    headings = ["genotype", "names", *(["phenotype"] if several else []), "measured", "predicted"]
    headings += (["90 % interval"] if intervals else []) + ([rival] if rival else [])
    rows = []
    for one in result["worst"]:
        row = ["+".join(one["genotype"]) or WILD_TYPE, "+".join(one["standard"]) or "–"]
        row += [one["phenotype"]] if several else []
        row += [f"{one['measured']:.3g}", f"{one['predicted']:.3g}"]
        row += [f"{one['lower']:.3g} to {one['upper']:.3g}" if one["lower"] is not None else "–"] if intervals else []
        row += [f"{one['baseline']:.3g}"] if rival else []
        rows.append(row)
    return table(headings, rows)


def _both(name: str, standard: str) -> str:
    return name if name == standard else f"{standard} ({name})"


def _by_phenotype(result: dict[str, Any], score: str) -> str:
    """The score of each phenotype; of many how they are spread, from the lowest to the highest."""
    shown, each = table(*by_phenotype(result, score)), result["by_phenotype"]
    if len(result["phenotypes"]) <= MOST_NAMED:
        behind = {key: result[key] for key in ("phenotypes", "labels", "ceilings", "by_phenotype")}
        return shown + numbers("the numbers of each phenotype", behind)
    ranked = {line: sorted(v for v in found[score] if not math.isnan(v)) for line, found in each.items()}
    curves = {line: [(k + 1, v) for k, v in enumerate(values)] for line, values in ranked.items() if values}
    if curves:
        about = f"The {score} of every phenotype, from the lowest to the highest"
        shown += figure(lines(curves, "phenotypes", score), about)
    return shown + "<p class=dim>The figures of each phenotype are in result.json (evaluate: --json).</p>"


def _scatter(names: list[str], result: dict[str, Any]) -> str:
    """One picture for each of the first phenotypes."""
    measured, predicted = result["measured"], result["predicted"]
    if len(names) == 1:
        picture = scatter(measured, predicted, "measured", "predicted")
        behind = {"measured": measured, "predicted": predicted}
        return figure(picture, "Predicted against measured, one point per experiment") + numbers("the numbers", behind)
    drawn = ""
    behind = {name: {"measured": measured[name], "predicted": predicted[name]} for name in names[:_MOST_SCATTERS]}
    for name, points in behind.items():
        picture = scatter(points["measured"], points["predicted"], f"measured {name}", f"predicted {name}")
        drawn += figure(picture, f"Predicted against measured {name}, one point per experiment")
    if len(names) > _MOST_SCATTERS:
        drawn += f"<p class=dim>The first {_MOST_SCATTERS} of {len(names):,} phenotypes are drawn.</p>"
    return drawn + numbers("the numbers", behind)


def _score(config: Config) -> str:
    return "auroc" if config.task == "classification" else "pearson"


def _known(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _cell(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"
