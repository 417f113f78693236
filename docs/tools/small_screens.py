"""Small screens cut from the public ones, as tables: ``python docs/tools/small_screens.py RAW FOLDER``.

They show how models do on screens that are small, noisy or laid out in their own way (docs/results.md).
"""

from __future__ import annotations

import gzip
import lzma
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

Rows = list[Sequence[str]]


def read(raw: Path, pattern: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a packed file."""
    [path] = raw.rglob(pattern)
    unpack = lzma.open if path.suffix == ".xz" else gzip.open
    with unpack(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    return lines[0], lines[1:]


def cuts_of_collins(raw: Path, chance: random.Random) -> Iterator[tuple[str, Rows]]:
    """A matrix of 120 × 300 genes, the pairs of 250 genes by their standard names, and a matrix of 220 genes."""
    pairs = [row for row in read(raw, "collins2007_emap.tsv.gz")[1] if row[2] not in ("", "NA")]
    score = {tuple(sorted(row[:2])): row[2] for row in pairs}
    genes = sorted({gene for row in pairs for gene in row[:2] if gene.startswith("Y")})
    chance.shuffle(genes)
    rows, columns = sorted(genes[:120]), sorted(genes[120:420])
    yield (
        "matrix.txt",
        [["Gene", *columns], *([a, *(score.get(tuple(sorted((a, b))), "") for b in columns)] for a in rows)],
    )
    standard = {row[3]: row[4] or row[3] for row in read(raw, "SGD_features.tab.gz")[1] if row[3].startswith("Y")}
    some = set(genes[:250])
    long = [
        [standard.get(a, a), standard.get(b, b), value, f"{chance.random():.3f}"]
        for (a, b), value in score.items()
        if a in some and b in some
    ]
    yield "long.csv", [["Gene 1", "Gene 2", "S-score", "P value (two-sided)"], *long]
    some_more = genes[300:520]
    square = [[a, *("" if a == b else score.get(tuple(sorted((a, b))), "") for b in some_more)] for a in some_more]
    yield "square.csv", [["", *some_more], *square]


def cut_of_kuzmin(raw: Path, chance: random.Random) -> Iterator[tuple[str, Rows]]:
    """30,000 trigenic calls of 60 query pairs."""
    header, rows = read(raw, "kuzmin2018_trigenic_calls.tsv.xz")
    queries = sorted({(row[0], row[1]) for row in rows})
    chance.shuffle(queries)
    some = set(queries[:60])
    found = [row for row in rows if (row[0], row[1]) in some]
    chance.shuffle(found)
    yield "calls.tsv", [header[:4], *(row[:4] for row in found[:30_000])]


def cuts_of_costanzo(raw: Path, chance: random.Random) -> Iterator[tuple[str, Rows]]:
    """9,000 of the pairs; all pairs as classes, interaction below −0.08."""
    rows = read(raw, "costanzo2016_subset.tsv.gz")[1]
    classes = [[*row[:2], str(int(float(row[2]) < -0.08))] for row in rows if row[2]]
    yield "classes.tsv", [["Query ORF", "Array ORF", "negative interaction"], *classes]
    chance.shuffle(rows)
    yield "half.tsv", [["Query ORF", "Array ORF", "Genetic interaction score (ε)"], *rows[:9_000]]


def samples_of_tau(raw: Path) -> Iterator[tuple[str, Rows]]:
    """A sample of Kuzmin's scored crosses, if the folder has one: pairs and triples; and the triples alone."""
    if list(raw.rglob("tau_sga_scored_sample.tsv.gz")):
        header, rows = read(raw, "tau_sga_scored_sample.tsv.gz")
        yield "crosses.txt", [header, *rows]
        yield "triples.txt", [header, *(row for row in rows if "YDL227C" not in row[0])]


def write(raw: Path, folder: Path) -> None:
    """All tables, the same in every run."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)  # noqa: S311 - no secret
    for cuts in (cuts_of_collins(raw, chance), cut_of_kuzmin(raw, chance), cuts_of_costanzo(raw, chance)):
        for name, rows in cuts:
            _table(folder / name, rows)
    for name, rows in samples_of_tau(raw):
        _table(folder / name, rows)


def _table(path: Path, rows: Rows) -> None:
    sign = "," if path.suffix == ".csv" else "\t"
    path.write_text("".join(f"{sign.join(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
