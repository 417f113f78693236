"""The tables of docs/start.md: 48 made-up genes in four pathways, their edges, every pair of deletions.

Pathways A and B do the same work, so do C and D. Genes of one pathway hold together physically and are expressed
together with those of the parallel one. Deleting genes of both parallel pathways is worse than the sum (negative
interaction), two of one pathway better (positive), anything else adds up. ``python docs/tools/example.py`` writes the
files anew.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from random import Random

PATHWAYS = "ABCD"
SIZE = 12
NOISE = 0.08
HERE = Path(__file__).parents[1] / "example"


def write(folder: Path) -> None:
    """All tables, the same in every run."""
    random = Random(0)  # noqa: S311 - no secret
    genes = [f"{pathway}{number:02}" for pathway in PATHWAYS for number in range(1, SIZE + 1)]
    _table(folder / "genes.csv", ("gene", "standard"), ((gene, f"PW{gene}") for gene in genes))

    physical, together = [], []
    for one, other in combinations(genes, 2):
        chance = random.random()
        if (one[0] == other[0] and chance < 0.35) or chance < 0.02:
            physical.append((one, other))
        elif (one[0] + other[0] in ("AB", "CD") and chance < 0.30) or chance < 0.04:
            together.append((one, other, f"{random.uniform(0.3, 1):.2f}"))
    _table(folder / "relations" / "physical.csv", ("gene_a", "gene_b"), physical)
    _table(folder / "relations" / "coexpression.csv", ("gene_a", "gene_b", "weight"), together)

    genotypes: list[Sequence[str]] = [(), *((gene,) for gene in genes), *combinations(genes, 2)]
    cost = {gene: random.uniform(0.0, 0.3) for gene in genes}
    rows = []
    for genotype in genotypes:
        interaction = planted(genotype) + random.gauss(0, NOISE) * (len(genotype) > 1)
        fitness = 1 - sum(cost[gene] for gene in genotype) + interaction
        rows.append(("+".join(genotype) or "WT", f"{fitness:.3f}", f"{interaction:.3f}"))
    _table(folder / "screen.csv", ("genotype", "fitness", "gene_interaction"), rows)

    new = [("A01+B01+C01",), ("A02+A03+B04",), ("C05+D06",), ("PWA07+PWD08",)]
    _table(folder / "new.csv", ("genotype",), new)


def planted(genotype: Sequence[str]) -> float:
    """The interaction of one or two deletions, without the error of the measurement."""
    if len(genotype) < 2:
        return 0.0
    pathways = "".join(sorted(gene[0] for gene in genotype))
    return -0.4 if pathways in ("AB", "CD") else 0.15 if pathways[0] == pathways[1] else 0.0


def _table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    write(HERE)
