"""The parts of a prediction, as tables, text and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from knockgraph.errors import KnockgraphError
from knockgraph.files import atomic_write, check_writable
from knockgraph.frames import Library, frame
from knockgraph.html.notebook import card
from knockgraph.html.page import figure, numbers, page, table
from knockgraph.html.plots import signed_bars, signed_bars_figure
from knockgraph.screen.genotypes import as_cell
from knockgraph.words import counted

POOLING, LOCAL, REACTIONS = "pooling", "local predictor", "reactions"
LEFT_OUT, NAMED, MODEL = "left out at deletion", "being perturbed at all", "the model's wild type"
_BARS = 20
_WHAT = {
    POOLING: "the gene's own state leaves the pooled state of the cell",
    LOCAL: "what the states of the deleted genes in the wild type say; the perturbed graph has no part in it",
    REACTIONS: "the gene's enzyme works less",
    LEFT_OUT: "what changes only when the gene is gone altogether, such as a dead reaction",
    NAMED: "what changes as soon as a gene is perturbed, however little",
    MODEL: "what the model says of the wild type, whose value follows from its definition",
}


class Part(NamedTuple):
    """A part of the difference between a prediction and the wild type.

    Attributes:
        gene: The deleted gene that it belongs to; empty where it belongs to none alone.
        relation: The relation of an edge, or ``pooling``, ``local predictor``, ``reactions``, …
        neighbour: The gene at the other end of the edge; empty for anything but edges.
        value: In the units of the prediction.
    """

    gene: str
    relation: str
    neighbour: str
    value: float


@dataclass(frozen=True, repr=False)
class Explanation:
    r"""The parts of a prediction f for deleted genes P. With a factor v of its own for each thing that a deletion takes
    away, all of them going from 1 to 0 together,

    .. math:: f(P) - f(\text{wild type}) = -\sum_v \int_0^1 \frac{\partial f}{\partial v}\, d\alpha
        + \text{jumps} + \text{residual},

    where v runs over

    * the edges of the deleted genes, one by one (relation and neighbour);
    * the deleted genes' places in the pooled state (``pooling``);
    * their weights in the predictor that sees only the deleted genes (``local predictor``);
    * their activity in reactions (``reactions``).

    What does not change little by little is a part of its own: ``left out at deletion`` at the end of the path (dead
    reactions leave their pool; a model of your own that masks with ``view.keep``), ``being perturbed at all`` at its
    start, and ``the model's wild type`` where the value of the wild type follows from its definition and not from the
    model. Half of an edge between two deleted genes belongs to each of them.

    Attributes:
        genes: The deleted genes.
        phenotype: What is predicted.
        unit: ``original`` or, for classes, ``logit``.
        prediction: For the deletion, in float64.
        wild_type: For the wild type.
        rows: All parts, the largest first.
        residual: What is missing from the sum of the parts: the error of the numerical integration.
        standard: Systematic name → standard name, of all genes in the parts.
        library: Whose dataframes the tables are.
    """

    genes: tuple[str, ...]
    phenotype: str
    unit: str
    prediction: float
    wild_type: float
    rows: tuple[Part, ...]
    residual: float
    standard: dict[str, str]
    library: Library = "pandas"

    @cached_property
    def change(self) -> float:
        """Prediction minus wild type: what the parts and the residual add up to."""
        return self.prediction - self.wild_type

    @property
    def parts(self) -> Any:
        """A dataframe with ``gene``, ``relation``, ``neighbour``, their standard names, and ``part``."""
        return frame(
            {
                "gene": [part.gene for part in self.rows],
                "relation": [part.relation for part in self.rows],
                "neighbour": [part.neighbour for part in self.rows],
                "standard": [self.standard.get(part.gene, "") for part in self.rows],
                "neighbour_standard": [self.standard.get(part.neighbour, "") for part in self.rows],
                "part": [part.value for part in self.rows],
            },
            self.library,
        )

    def by_gene(self) -> Any:
        """The parts summed up for each deleted gene, a dataframe."""
        return self._summed("gene")

    def by_relation(self) -> Any:
        """The same for each relation, pooling, local predictor, …."""
        return self._summed("relation")

    def by_neighbour(self) -> Any:
        """The same for each neighbour of the deleted genes."""
        return self._summed("neighbour")

    def sums(self, *keys: str) -> dict[tuple[str, ...], float]:
        """The parts summed up by ``gene``, ``relation``, ``neighbour``, or several of them; the largest first."""
        found: dict[tuple[str, ...], list[float]] = {}
        for part in self.rows:
            found.setdefault(tuple(getattr(part, name) for name in keys), []).append(part.value)
        return dict(sorted(((key, math.fsum(v)) for key, v in found.items()), key=lambda item: -abs(item[1])))

    def in_library(self, library: Library) -> Explanation:
        """The same with dataframes of another library."""
        return replace(self, library=library)

    def save(self, path: str | Path) -> Path:
        """Write a page (``.html``), a picture (``.png``) or a table of all parts (``.csv``, ``.tsv``, ``.parquet``)."""
        target = Path(path)
        if target.suffix not in (".html", ".png", ".csv", ".tsv", ".parquet"):
            raise KnockgraphError(f"cannot write {target}: the name must end in .html, .png, .csv, .tsv or .parquet")
        check_writable(target)
        with atomic_write(target) as part:
            if target.suffix == ".html":
                part.write_text(self.html(), encoding="utf-8")
            elif target.suffix == ".png":
                _write_png(signed_bars_figure(self._bars("gene", "relation"), self._axis(), self._title()), part)
            else:
                _write_table(self.in_library("pyarrow").parts, part, target.suffix)
        return target

    def html(self) -> str:
        """A self-contained page: what the parts are, and how they add up."""
        bars = figure(
            signed_bars(self._bars("gene", "relation"), self._axis(), "by gene and relation"), "Parts by gene"
        )
        near = {key: v for key, v in self._bars("neighbour").items() if key}
        if near:
            nearest = figure(signed_bars(near, self._axis(), "by neighbour"), "Parts by neighbour")
            nearest += self._numbers("neighbour")
        else:
            nearest = "<p>No edge has a part: what the deletion changes in the graph does not matter to this model.</p>"
        behind = numbers("all parts", self.as_dict()["parts"])
        meaning = [[name, what] for name, what in _WHAT.items() if any(part.relation == name for part in self.rows)]
        sections = [
            ("How the parts add up", f"<p>{escape(self.in_words())}</p>{bars}{self._numbers('gene', 'relation')}"),
            ("Neighbours", nearest),
            ("All parts", table(["relation", "gene", "neighbour", "part"], self._texts(200)) + behind),
        ]
        if meaning:
            sections.append(("What is no edge", table(["part", "meaning"], meaning)))
        deleted = ", ".join(map(self._both, self.genes)) or "nothing"
        lead = f"Deleted: {deleted}. The parts add up; they describe the model, not the cell."
        return page(self._title(), lead, sections)

    def in_words(self) -> str:
        """The sum in one sentence."""
        unit = " (in logits)" if self.unit == "logit" else ""
        return (
            f"{self.phenotype} of {self._named()}{unit}: {self.prediction:.4g} = {self.wild_type:.4g} for the wild "
            f"type {'−' if self.change < 0 else '+'} {abs(self.change):.4g} in {counted(len(self.rows), 'part')} "
            f"(numerical error {self.residual:.0e})"
        )

    def lines(self, most: int = 20) -> list[str]:
        """The sums by gene and relation and the largest neighbours, as lines of text with tabs."""
        shown = [self.in_words(), "gene\trelation\tpart"]
        sums = self.sums("gene", "relation").items()
        shown += [f"{self._both(gene) or '–'}\t{relation}\t{v:+.6g}" for (gene, relation), v in sums]
        edges = [part for part in self.rows if part.neighbour]
        shown += ["neighbour\trelation\tgene\tpart"] if edges else []
        shown += [
            f"{self._both(part.neighbour)}\t{part.relation}\t{part.gene}\t{part.value:+.6g}" for part in edges[:most]
        ]
        if len(edges) > most:
            rest = math.fsum(part.value for part in edges[most:])
            shown.append(f"{counted(len(edges) - most, 'more edge')}\t\t\t{rest:+.6g}")
        return shown

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        about = {key: getattr(self, key) for key in ("phenotype", "unit", "prediction", "wild_type", "residual")}
        return {"genes": list(self.genes), **about, "parts": [part._asdict() for part in self.rows]}

    def _numbers(self, *keys: str) -> str:
        sums = self.sums(*keys).items()
        return numbers("the numbers", [dict(zip((*keys, "part"), (*key, v), strict=True)) for key, v in sums])

    def _summed(self, key: str) -> Any:
        sums = self.sums(key)
        return frame({key: [name for (name,) in sums], "part": list(sums.values())}, self.library)

    def _bars(self, *keys: str) -> dict[str, float]:
        """The largest sums by label, the others as one."""
        sums = list(self.sums(*keys).items())
        bars = {"  ".join(filter(None, (self.standard.get(name, name) for name in key))): v for key, v in sums[:_BARS]}
        if len(sums) > _BARS:
            bars[counted(len(sums) - _BARS, "other")] = math.fsum(v for _, v in sums[_BARS:])
        return bars

    def _texts(self, most: int) -> Sequence[Sequence[str]]:
        name = self.standard.get
        rows = [
            [p.relation, name(p.gene, p.gene) or "–", name(p.neighbour, p.neighbour) or "–", f"{p.value:+.4g}"]
            for p in self.rows[:most]
        ]
        rest = self.rows[most:]
        if rest:
            total = math.fsum(part.value for part in rest)
            rows.append([counted(len(rest), "other part"), "", "", f"{total:+.4g}"])
        return rows

    def _both(self, gene: str) -> str:
        other = self.standard.get(gene, gene)
        return gene if other == gene else f"{gene} ({other})"

    def _named(self) -> str:
        return "+".join(self.standard.get(gene, gene) for gene in self.genes)

    def _title(self) -> str:
        return f"Why {self.phenotype} of {self._named()} is predicted as {self.prediction:.3g}"

    def _axis(self) -> str:
        return f"part of {self.phenotype}" + (" (logit)" if self.unit == "logit" else "")

    def _repr_html_(self) -> str:
        rows = [[*self._texts(10)[k]] for k in range(min(len(self._texts(10)), 11))]
        return card(self.in_words(), ["relation", "gene", "neighbour", "part"], rows)

    def __repr__(self) -> str:
        return (
            f"Explanation({'+'.join(self.genes)}: {self.phenotype} {self.prediction:.4g} = {self.wild_type:.4g} (wild "
            f"type) {self.change:+.4g} in {counted(len(self.rows), 'part')}, residual {self.residual:.1g})"
        )


def _write_png(drawn: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    drawn.savefig(path, format="png", dpi=150)
    plt.close(drawn)


def _write_table(parts: Any, path: Path, suffix: str) -> None:
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    if suffix == ".parquet":
        pq.write_table(parts, path)
    else:
        for at, column in enumerate(parts.columns):
            if pa.types.is_string(column.type):
                cells = [None if text is None else as_cell(text) for text in column.to_pylist()]
                parts = parts.set_column(at, parts.column_names[at], pa.array(cells, pa.string()))
        csv.write_csv(parts, path, csv.WriteOptions(delimiter="," if suffix == ".csv" else "\t"))
