"""Small screens cut from the public ones, as tables: ``python docs/tools/small_screens.py RAW FOLDER``.

They show how models do on a screen that nobody looked at while choosing them (docs/results.md).
"""

from __future__ import annotations

import gzip
import lzma
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

RAW, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
Row = Sequence[str]


def rows_of(pattern: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a packed file."""
    [path] = RAW.rglob(pattern)
    unpack = lzma.open if path.suffix == ".xz" else gzip.open
    with unpack(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    return lines[0], lines[1:]


def write(name: str, rows: Iterable[Row], sign: str = "\t") -> None:
    """A table."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name).write_text("".join(f"{sign.join(row)}\n" for row in rows), encoding="utf-8")


def cuts_of_collins(chance: random.Random) -> None:
    """A matrix of 120 × 300 genes, the pairs of 250 genes by their standard names, and a matrix of 220 genes."""
    pairs = [row for row in rows_of("collins2007_emap.tsv.gz")[1] if row[2] not in ("", "NA")]
    score = {tuple(sorted(row[:2])): row[2] for row in pairs}
    genes = sorted({gene for row in pairs for gene in row[:2] if gene.startswith("Y")})
    chance.shuffle(genes)
    rows, columns = sorted(genes[:120]), sorted(genes[120:420])
    matrix = [[a, *(score.get(tuple(sorted((a, b))), "") for b in columns)] for a in rows]
    write("matrix.txt", [["Gene", *columns], *matrix])
    standard = {row[3]: row[4] or row[3] for row in rows_of("SGD_features.tab.gz")[1] if row[3].startswith("Y")}
    some = set(genes[:250])
    long = [
        [standard.get(a, a), standard.get(b, b), value, f"{chance.random():.3f}"]
        for (a, b), value in score.items()
        if a in some and b in some
    ]
    write("long.csv", [["Gene 1", "Gene 2", "S-score", "P value (two-sided)"], *long], ",")
    some_more = genes[300:520]
    square = [[a, *("" if a == b else score.get(tuple(sorted((a, b))), "") for b in some_more)] for a in some_more]
    write("square.csv", [["", *some_more], *square], ",")


def cut_of_kuzmin(chance: random.Random) -> None:
    """30,000 trigenic calls of 60 query pairs."""
    header, rows = rows_of("kuzmin2018_trigenic_calls.tsv.xz")
    queries = sorted({(row[0], row[1]) for row in rows})
    chance.shuffle(queries)
    some = set(queries[:60])
    found = [row for row in rows if (row[0], row[1]) in some]
    chance.shuffle(found)
    write("calls.tsv", [header[:4], *(row[:4] for row in found[:30_000])])


def cuts_of_costanzo(chance: random.Random) -> None:
    """9,000 of the pairs; all pairs as classes, interaction below −0.08."""
    rows = rows_of("costanzo2016_subset.tsv.gz")[1]
    classes = [[*row[:2], str(int(float(row[2]) < -0.08))] for row in rows if row[2]]
    write("classes.tsv", [["Query ORF", "Array ORF", "negative interaction"], *classes])
    chance.shuffle(rows)
    write("half.tsv", [["Query ORF", "Array ORF", "Genetic interaction score (ε)"], *rows[:9_000]])


def sample_of_tau() -> None:
    """A sample of Kuzmin's scored crosses, if the folder has one: pairs and triples; and the triples alone."""
    if not list(RAW.rglob("tau_sga_scored_sample.tsv.gz")):
        return
    header, rows = rows_of("tau_sga_scored_sample.tsv.gz")
    write("crosses.txt", [header, *rows])
    write("triples.txt", [header, *(row for row in rows if "YDL227C" not in row[0])])


if __name__ == "__main__":
    seeded = random.Random(0)  # noqa: S311
    cuts_of_collins(seeded)
    cut_of_kuzmin(seeded)
    cuts_of_costanzo(seeded)
    sample_of_tau()
