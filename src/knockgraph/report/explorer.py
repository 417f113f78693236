"""The explorer: one self-contained page on which a gene's partners are looked up."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from knockgraph.errors import KnockgraphError
from knockgraph.explain import explain
from knockgraph.files import atomic_write, check_writable
from knockgraph.graph import CellGraph
from knockgraph.html.page import page
from knockgraph.predict import Floats, Genotype, Progress, RunPredictor
from knockgraph.screen.ragged import Ints

PAIRS = 100_000
"""Pairs that are predicted unless more are asked for."""
MOST_PAIRS = 2_000_000
"""Pairs at most: the page then has about 10 MB."""
PARTNERS = 40
MOST_PARTNERS = 100
EXPLAINED = 20
MOST_EXPLAINED = 200
_NEIGHBOURS = 100  # of a gene, over all relations
_PARTS = 8  # of an explanation, of each kind

_STYLE = """<style>
input[type=search] { font: inherit; padding: .45rem .7rem; border: 1px solid var(--line); border-radius: 8px;
  width: min(22rem, 100%); box-sizing: border-box; background: var(--paper); color: var(--ink) }
form#search { display: flex; gap: .5rem; flex-wrap: wrap; align-items: center }
form#search button { font: inherit; padding: .45rem 1rem; border-radius: 8px; border: 1px solid var(--line);
  background: var(--card); color: var(--ink); cursor: pointer }
button.gene, button.sort { font: inherit; border: 0; background: none; color: var(--link); padding: 0;
  cursor: pointer; text-align: inherit }
button.sort { color: inherit; font-weight: inherit }
:root { --link: #0b57c2 } @media (prefers-color-scheme: dark) { :root { --link: #8ab4ff } }
#suggestions { list-style: none; padding: 0; margin: .4rem 0; display: flex; flex-wrap: wrap; gap: .3rem }
#suggestions li { background: var(--card); border-radius: 8px; padding: .15rem .6rem }
.kinds { display: flex; gap: 1rem; margin: .5rem 0 }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 0 2rem }
#why:not(:empty) { background: var(--card); border-radius: 8px; padding: .1rem 1rem 1rem; margin: 1rem 0 }
#why td:first-child { background: var(--card); white-space: normal; overflow-wrap: anywhere }
#why h2 { margin-top: .8rem } h3 { font-size: 1rem; margin: .8rem 0 .3rem }
@media (max-width: 40rem) { td .systematic { display: none } }
#answer, #message { overflow-wrap: anywhere } th { overflow-wrap: normal } noscript { display: block }
</style>"""


def write_explorer(
    predictor: RunPredictor,
    path: Path,
    genes: Sequence[int] | None = None,
    phenotype: str | None = None,
    pairs: int = PAIRS,
    partners: int = PARTNERS,
    explained: int = EXPLAINED,
    progress: Progress | None = None,
) -> Path:
    """Write the page of a run.

    Args:
        predictor: The run.
        path: The ``.html`` file.
        genes: Rows of the genes whose pairs are predicted. The other arguments are those of
            :meth:`Fitted.explorer <knockgraph.fitted.Fitted.explorer>`.
    """
    for name, value, least, most in (
        ("pairs", pairs, 1, MOST_PAIRS),
        ("partners", partners, 1, MOST_PARTNERS),
        ("explained", explained, 0, MOST_EXPLAINED),
    ):
        if not least <= value <= most:
            raise KnockgraphError(f"cannot explore with {name} = {value:,}: choose a number from {least} to {most:,}")
    if path.suffix != ".html":
        raise KnockgraphError(f"cannot write {path}: the name must end in .html")
    check_writable(path)
    page_data = _Explorer(predictor, genes, phenotype, pairs, partners, progress).data(explained)
    with atomic_write(path) as part:
        part.write_text(html(page_data), encoding="utf-8")
    return path


def html(data: dict[str, Any]) -> str:
    """The page of what :class:`_Explorer` found."""
    # No text of the data can end the element that holds it.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    search = (
        f'{_STYLE}<form id="search" role="search"><label for="gene">Gene</label><input id="gene" type="search" '
        'autocomplete="off" spellcheck="false" placeholder="systematic or standard name"><button>Show</button></form>'
        '<ul id="suggestions"></ul><p id="message" role="status"></p><noscript>This page needs JavaScript, which is '
        'switched off; it fetches nothing.</noscript><div id="answer"></div><div id="why"></div>'
    )
    top = f'<div id="top"><p class="dim">{escape(data["note"])}</p></div>'
    held = f'<script type="application/json" id="data">{text}</script>'
    script = files("knockgraph.report").joinpath("explorer.js").read_text(encoding="utf-8")
    sections = [("Look up a gene", search), ("The most extreme new pairs", top + held)]
    return page(data["title"], data["lead"], sections, script=script)


class _Explorer:
    """What the page holds."""

    def __init__(
        self,
        predictor: RunPredictor,
        genes: Sequence[int] | None,
        phenotype: str | None,
        pairs: int,
        partners: int,
        progress: Progress | None,
    ) -> None:
        self.predictor, self.graph, self.partners, self.progress = predictor, predictor.graph, partners, progress
        task = predictor.task
        self.column, self.centre = predictor.centre(phenotype)
        self.phenotype = task.phenotypes[self.column]
        if bool(task.by_definition(torch.tensor([2]))[0, self.column]):
            raise KnockgraphError(f"there is nothing to explore: {self.phenotype} of a pair is 0 by its definition")
        self.measured = _Measured(predictor, self.column)
        self.chosen = self._chosen(genes, pairs)
        self.place = {int(g): k for k, g in enumerate(self.chosen)}
        self.predicted, self.width = self._predict_all()

    def _chosen(self, genes: Sequence[int] | None, pairs: int) -> Ints:
        total = self.graph.num_genes
        chosen = np.arange(total) if genes is None else np.array(sorted(set(genes)), dtype=np.int64)
        if len(chosen) < 2:
            raise KnockgraphError("give at least two genes to explore")
        if math.comb(len(chosen), 2) <= pairs:
            return chosen
        most = int((1 + math.isqrt(1 + 8 * pairs)) // 2)
        if genes is not None:
            raise KnockgraphError(
                f"{len(chosen):,} genes make {math.comb(len(chosen), 2):,} pairs, but only {pairs:,} are predicted; "
                f"name at most {most:,} genes, or allow more pairs (up to {MOST_PAIRS:,})"
            )
        count = np.bincount(self.measured.pair.ravel(), minlength=total)
        return np.sort(np.argsort(-count, kind="stable")[:most])

    def _predict_all(self) -> tuple[Floats, Floats]:
        """Predictions of all pairs of the chosen genes and half widths of their intervals, ``[chosen, chosen]``; NaN on
        the diagonal, and where there are no intervals.
        """
        n = len(self.chosen)
        first, second = np.triu_indices(n, 1)
        found = np.full((2, n, n), np.nan)
        found[:, first, second] = self._predict(np.stack([self.chosen[first], self.chosen[second]], 1))
        found[:, second, first] = found[:, first, second]
        return found[0], found[1]

    def _predict(self, rows: Ints) -> Floats:
        """Predictions and half widths of genotypes, each a row of as many genes, ``[2, genotypes]``."""
        parts = [np.empty((2, 0))]
        genotypes = (Genotype(tuple(row)) for row in rows.tolist())
        for found in self.predictor(genotypes, len(rows), progress=self.progress):
            value = found.values[:, self.column]
            width = np.full(len(value), np.nan) if found.upper is None else found.upper[:, self.column] - value
            parts.append(np.stack([value, width]))
        return np.concatenate(parts, 1)

    def data(self, explained: int) -> dict[str, Any]:
        """JSON-safe."""
        top = self._top(max(explained, 20))
        why, no_why = self._explanations(top[:explained])
        intervals, graph = self.predictor.intervals, self.graph
        alike = intervals is not None and not intervals.scaled
        width = float(intervals.half_width(self.predictor.coverage)[self.column]) if intervals and alike else None
        model, run = self.predictor.config.model.name, self.predictor.directory.resolve().name
        return {
            "title": f"{self.phenotype}, gene by gene",
            "lead": f"{self._lead(model, run)} {self._never_deleted()} {no_why}".strip(),
            "note": "Farthest from the prediction for the wild type first; measured pairs are left out.",
            "elsewhere": self._elsewhere(),
            "coverage": f"{100 * self.predictor.coverage:g} %",
            "half_width": width if width is not None and math.isfinite(width) else None,
            "widths": intervals is not None and intervals.scaled,  # each row has its own
            "wild_type": _short(self.centre),
            "parts": self.measured.parts,
            "relations": list(graph.relations),
            "genes": [[name, *self._other_names(name)] for name in graph.genes.names],
            "shown": self._shown(),
            "top": [[a, b, _short(p), self._short_width(self.width[self.place[a], self.place[b]])] for a, b, p in top],
            "why": why,
        }

    def _other_names(self, name: str) -> list[str]:
        others = self.graph.genes.aliases.get(name, ())
        return ["" if others[:1] == (name,) else others[0], *others[1:]] if others else []

    def _short_width(self, width: float) -> float | None:
        """Half a width for the page, where each row has its own."""
        intervals = self.predictor.intervals
        return _short(width) if intervals is not None and intervals.scaled and math.isfinite(width) else None

    def _lead(self, model: str, run: str) -> str:
        shown, total = len(self.chosen), self.graph.num_genes
        some = "all" if shown == total else f"{shown:,} of"
        return (
            f"Run {run}, {model}: what it predicts for deletions of two genes, beside what was measured. "
            f"{math.comb(shown, 2):,} pairs of {some} {total:,} genes were predicted; a gene's {self.partners} most "
            "extreme measured and new partners are listed. Pairs used for training or validation are no test of it."
        )

    def _never_deleted(self) -> str:
        text = self.predictor.task.never_deleted(self.chosen.tolist())
        return "" if text is None else f"{text}."

    def _elsewhere(self) -> str:
        return (
            "GENE is in the graph, but its pairs were not predicted for this page, which is kept small; make one that "
            "has it with knockgraph explore RUN --genes GENE,… -o FILE."
        )

    def _top(self, most: int) -> list[tuple[int, int, float]]:
        """The new pairs farthest from the wild type."""
        n = len(self.chosen)
        first, second = np.triu_indices(n, 1)
        value = self.predicted[first, second]
        a, b = self.chosen[first], self.chosen[second]
        new = ~np.isin(a * self.graph.num_genes + b, self.measured.key)
        a, b, value = a[new], b[new], value[new]
        order = np.argsort(-np.abs(value - self.centre), kind="stable")[:most]
        return [(int(a[k]), int(b[k]), float(value[k])) for k in order]

    def _explanations(self, top: Sequence[tuple[int, int, float]]) -> tuple[list[dict[str, Any]], str]:
        """Of the first pairs, and why there are none where the model cannot be explained."""
        found: list[dict[str, Any]] = []
        for a, b, _ in top:
            try:
                one = explain(self.predictor.task, [a, b], self.phenotype)
            except KnockgraphError as error:
                return [], f"There are no explanations: {error}."
            name = one.standard.get
            by = list(one.sums("gene", "relation").items())[:_PARTS]
            near = [part for part in one.rows if part.neighbour][:_PARTS]
            found.append(
                {
                    "pair": [a, b],
                    "words": one.in_words(),
                    "by": [[name(gene, gene), relation, _short(v)] for (gene, relation), v in by],
                    "near": [
                        [name(p.neighbour, p.neighbour), p.relation, name(p.gene, p.gene), _short(p.value)]
                        for p in near
                    ],
                }
            )
        return found, ""

    def _shown(self) -> dict[int, dict[str, Any]]:
        kept = {int(g): self.measured.of(int(g), self.centre, self.partners) for g in self.chosen}
        self._complete(kept)
        alone = self._predict(self.chosen[:, None])[0]
        near = _Neighbours(self.graph)
        found = {}
        for k, g in enumerate(self.chosen.tolist()):
            rows, total = kept[g]
            new, unmeasured = self._new(g, k)
            measured = [
                [int(o), _short(y), _short(p), int(part), int(n), self._short_width(w)]
                for o, y, p, part, n, w in zip(*rows, strict=True)
            ]
            unknown = [
                [int(self.chosen[o]), None, _short(self.predicted[k, o]), 0, 0, self._short_width(self.width[k, o])]
                for o in new
            ]
            whole = len(measured) == total and len(new) == unmeasured
            some = f"the {len(measured):,} and {len(new):,} most extreme ones are listed"
            found[g] = {
                "partners": measured + unknown,
                "single": [self.measured.single.get(g), _short(alone[k])],
                "measured": total,
                "predicted": unmeasured,
                "cut": "all are listed" if whole else some,
                "near": near.of(g),
            }
        return found

    def _new(self, gene: int, place: int) -> tuple[list[int], int]:
        """Places of the most extreme partners that were not measured, and how many there are."""
        others = np.delete(np.arange(len(self.chosen)), place)
        others = others[~np.isin(self.chosen[others], self.measured.partners(gene))]
        far = np.abs(self.predicted[place, others] - self.centre)
        return others[np.argsort(-far, kind="stable")[: self.partners]].tolist(), len(others)

    def _complete(self, kept: dict[int, tuple[list[npt.NDArray[Any]], int]]) -> None:
        """Fill in the predictions of the measured pairs, those with genes that were not chosen in one go."""
        missing = sorted(
            {(min(g, o), max(g, o)) for g, (rows, _) in kept.items() for o in rows[0].tolist() if o not in self.place}
        )
        found = self._predict(np.array(missing, dtype=np.int64).reshape(-1, 2))
        of_pair = dict(zip(missing, found.T.tolist(), strict=True))
        for g, (rows, _) in kept.items():
            for k, other in enumerate(rows[0].tolist()):
                there, here = self.place.get(other), self.place[g]
                if there is None:
                    rows[2][k], rows[5][k] = of_pair[min(g, other), max(g, other)]
                else:
                    rows[2][k], rows[5][k] = self.predicted[here, there], self.width[here, there]


class _Measured:
    """Measured deletions of one and of two genes: the mean where there are several experiments."""

    def __init__(self, predictor: RunPredictor, column: int) -> None:
        from knockgraph.train.data import TrainingData  # it imports Lightning

        data = TrainingData.from_directory(predictor.config, predictor.directory)
        bound, total = data.bound, predictor.graph.num_genes
        value = bound.values[:, column].double().numpy()
        ptr, genes = bound.host_ptr, bound.indices.cpu().numpy().astype(np.int64)
        size = np.diff(ptr)
        usable = ~np.isnan(value)
        if bound.doses is not None:
            dosed = np.append(0, np.cumsum(bound.doses.cpu().numpy() != 0))
            usable &= dosed[ptr[1:]] == dosed[ptr[:-1]]
        self.parts = [*data.rows, "nothing"]
        part = np.full(len(value), len(self.parts) - 1)
        for k, rows in enumerate(data.rows.values()):
            part[rows] = k
        ones = np.flatnonzero(usable & (size == 1))
        alone, place = np.unique(genes[ptr[ones]], return_inverse=True)
        means = np.bincount(place, value[ones], len(alone)) / np.maximum(np.bincount(place, minlength=len(alone)), 1)
        self.single = {int(g): _short(float(mean)) for g, mean in zip(alone, means, strict=True)}
        twos = np.flatnonzero(usable & (size == 2))
        pairs = np.stack([genes[ptr[twos]], genes[ptr[twos] + 1]], 1)
        self.key, first, inverse = np.unique(pairs[:, 0] * total + pairs[:, 1], return_index=True, return_inverse=True)
        self.pair = pairs[first]
        self.count = np.bincount(inverse, minlength=len(self.key))
        self.value = np.bincount(inverse, value[twos], len(self.key)) / np.maximum(self.count, 1)
        self.part = part[twos][first]
        order = np.argsort(self.pair.T.ravel(), kind="stable")
        self._order = order % max(len(self.key), 1)
        self._side = order // max(len(self.key), 1)
        self._ptr = np.searchsorted(self.pair.T.ravel()[order], np.arange(total + 1))

    def _of(self, gene: int) -> tuple[Ints, Ints]:
        """Places of the gene's pairs, and the other gene of each."""
        part = slice(self._ptr[gene], self._ptr[gene + 1])
        places = self._order[part]
        return places, self.pair[places, 1 - self._side[part]]

    def partners(self, gene: int) -> Ints:
        """All that were measured with a gene."""
        return self._of(gene)[1]

    def of(self, gene: int, centre: float, most: int) -> tuple[list[npt.NDArray[Any]], int]:
        """Partner, value, room for a prediction, part, count and room for a width of the most extreme ones; how many
        there are.
        """
        places, other = self._of(gene)
        order = np.argsort(-np.abs(self.value[places] - centre), kind="stable")[:most]
        at = places[order]
        none = np.full(len(at), np.nan)
        columns = [other[order], self.value[at], none, self.part[at], self.count[at], none.copy()]
        return columns, len(places)


class _Neighbours:
    """The genes at the other ends of a gene's edges."""

    def __init__(self, graph: CellGraph) -> None:
        self.most = max(_NEIGHBOURS // max(len(graph.relations), 1), 2)
        self.tables = []
        for relation in graph.relations.values():
            source, target = relation.edge_index.cpu().numpy()
            ends, others = np.concatenate([source, target]), np.concatenate([target, source])
            order = np.argsort(ends, kind="stable")
            self.tables.append((others[order], np.searchsorted(ends[order], np.arange(graph.num_genes + 1))))

    def of(self, gene: int) -> list[list[Any]]:
        """For each relation: how many, and the first of them."""
        found = [np.unique(others[ptr[gene] : ptr[gene + 1]]) for others, ptr in self.tables]
        return [[len(some := one[one != gene]), some[: self.most].tolist()] for one in found]


def _short(value: float) -> float | None:
    """Four digits, so that the page stays small; ``None`` for NaN."""
    return None if math.isnan(value) else float(f"{value:.4g}")
