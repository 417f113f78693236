"""What the columns of a table of experiments mean: by their names and by the first rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from knockgraph.errors import ScreenError
from knockgraph.graph.genes import BOTH_NAMES, DAMP, GeneNames
from knockgraph.options import did_you_mean
from knockgraph.words import listed

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "nd", "n.d.", "-", "--", "–", "."})
"""Cells, in lower case, that mean "not measured" among numbers, and "no gene" beside another gene."""

WILD_TYPES = frozenset({"wt", "wild type", "wildtype", "wild-type", "ctrl", "control"})
"""Cells, in lower case, that mean the wild type."""

JOINS = {"+": "[+,|;]", "space": r"\s+", "/": "/"}
"""Signs between the genes of one cell → the pattern that divides it; by default ``+``, ``,``, ``|`` or ``;``."""

Decimal = Literal["point", "comma"]
Sample = Mapping[str, Sequence[Any]]
Place = Callable[[int], str]

_NUMBER = re.compile(r"[+-]?(\d+(?P<mark>[.,]?)\d*|(?P<first>[.,])\d+)(e[+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_NOUNS_OF_GENES = frozenset({"gene", "g", "orf", "protein", "interactor", "mutant", "deletion", "ko", "knockout"})
_WORDS_OF_GENES = _NOUNS_OF_GENES | {
    "name",
    "symbol",
    "systematic",
    "standard",
    "official",
    "locus",
    "tag",
    "strain",
    "id",
}
_FAMILIES = (
    ("a", "b", "c", "d", "e"),
    ("1", "2", "3", "4", "5"),
    ("query", "query 1", "query 2", "array", "library"),
    ("first", "second"),
)
_ONE_COLUMN = (
    *("genotype", "genotypes", "perturbation", "perturbations", "perturbed genes", "deleted genes", "deleted gene"),
    *("deletions", "deletion", "mutant", "mutants", "knockouts", "knockout", "knock out", "ko", "genes"),
    *("orfs", "orf", "systematic name", "gene", "gene names", "gene name", "gene symbol", "gene id"),
    *("condition", "strain"),
)
_SOURCES = ("source", "study")
_NUMBERING = frozenset({"index", "id", "row", "nr", "no", "unnamed 0", "index level 0", "level 0"})
_STATISTICS = {
    "q_value": ("q", "qval", "q val", "q value", "fdr", "false discovery rate", "padj", "p adj", "adj p", "adjusted p"),
    "log_p_value": ("log 10 p", "log p"),
    "p_value": ("p", "pval", "p val", "pvalue", "p value"),
    "std": ("std", "sd", "stdev", "stddev", "std dev", "standard deviation"),
    "sem": ("sem", "se", "stderr", "std err", "standard error"),
    "variance": ("var", "variance"),
    "t_statistic": ("t", "t stat", "t statistic"),
    "count": ("n", "n replicates", "number of replicates", "number of colonies"),
}
"""Statistic → words that mean it alone and after the name of a phenotype; those of five letters or more, and those of
several words, anywhere."""
_NO_PHENOTYPE = "a statistic of which phenotype? name it PHENOTYPE.p_value or PHENOTYPE.std"
_REPLICATE = re.compile(
    r"(?P<before>.+?)[\W_]+(?:(?:bio|tech)\w*?[\W_]*)?rep(?:l|lica|licate|eat)?[\W_]*(?:\d+|[A-E])\W*"
    r"|rep(?:l|lica|licate|eat)?[\W_]*(?:\d+|[A-E])[\W_]+(?P<after>.+)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TableOptions:
    """What a user says about a table; the rest is found.

    Attributes:
        phenotypes: Columns that hold phenotypes; by default every column of numbers that is not a statistic.
        genes: Columns that hold genes: one column of genotypes, or one for each gene.
        join: What divides the genes of one cell: ``+`` (also ``,``, ``|`` and ``;``), ``space`` or ``/``.
        decimal: The sign in front of the decimals.
        delimiter: Of a text file: tab, comma, semicolon, pipe, space, or one character.
        sheet: Of an Excel workbook.
        matrix: The table has a gene per row and a gene per column. If their names are the same ones, this is found.
        missing: Experiments in which no phenotype was measured are left out and counted (``drop``), kept, or an
            ``error``. A label that is missing beside others stays missing.
        known: Names of genes, such as those of the cell graph: a table whose columns are mostly these is a matrix.
    """

    phenotypes: Sequence[str] = ()
    genes: Sequence[str] = ()
    join: str | None = None
    decimal: Decimal | None = None
    delimiter: str | None = None
    sheet: str | None = None
    missing: Literal["drop", "keep", "error"] = "drop"
    matrix: bool = False
    known: GeneNames | None = None


@dataclass(frozen=True)
class Layout:
    """What each column means.

    Attributes:
        genes: One column of genotypes, or one column per gene.
        phenotypes: Columns of labels.
        statistics: Column → its phenotype and the name of the statistic.
        replicates: Phenotype that no column has → the columns of which it is the mean.
        source: The column that says where an experiment comes from.
        aside: Column → why it is not used.
        join: One of :data:`JOINS`.
        decimal: The sign in front of the decimals.
    """

    genes: tuple[str, ...]
    phenotypes: tuple[str, ...]
    statistics: Mapping[str, tuple[str, str]]
    source: str | None
    aside: Mapping[str, str]
    join: str
    decimal: Decimal
    replicates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[str, ...]:
        """All columns of numbers."""
        return tuple(dict.fromkeys([*_columns_of(self.phenotypes, self.replicates), *self.statistics]))


def understand(
    where: str, columns: Sequence[str], sample: Sample, options: TableOptions, labels: bool = True, place: Place = str
) -> Layout:
    """The meaning of the columns.

    Args:
        where: The table, for errors.
        columns: All names.
        sample: Column → the first values: texts, numbers, lists of genes, or ``None``.
        options: What the user says.
        labels: Whether there must be a phenotype.
        place: From the number of a row of the sample to where it is.
    """
    genes = _chosen(where, "--gene-columns", options.genes, columns) or _columns_of_genes(where, columns)
    join = _join(where, [cell for name in genes for cell in sample[name]], options.join)
    means = replicates([name for name in columns if name not in genes])
    wanted = _chosen(where, "--phenotype", options.phenotypes, [*columns, *means])
    twice = sorted(set(wanted) & set(genes))
    if twice:
        raise ScreenError(f"{where}: column {twice[0]!r} cannot hold genes and a phenotype; choose another one")
    if not labels:
        return Layout(genes, (), {}, None, {}, join, options.decimal or "point")
    source = next((c for word in _SOURCES for c in columns if fold(c) == word and c not in (*genes, *wanted)), None)
    others = [c for c in columns if c not in genes and c != source]
    read = _columns_of(wanted, means)
    decimal = options.decimal or decimal_sign(where, {name: sample[name] for name in read or others})
    kinds = {name: _kind(sample[name], decimal) for name in others}
    if wanted:
        statistics = _statistics(wanted, [c for c in others if c not in read and kinds[c] in ("number", "empty")])
        aside = {c: "not chosen" for c in others if c not in read and c not in statistics}
        for name in read:
            if kinds[name] in ("mixed", "text"):
                row = _odd(sample[name], decimal)
                raise not_numeric(place(row), name, sample[name][row], "correct it or choose another column")
        return Layout(genes, wanted, statistics, source, aside, join, decimal, means)
    empty = {name for name, kind in kinds.items() if kind == "empty"}
    if "number" in kinds.values():
        kinds = {name: kind for name, kind in kinds.items() if name not in empty}
    phenotypes, statistics, aside = _by_kind(place, kinds, sample, decimal, means)
    rows = len(sample[genes[0]])
    aside |= {name: f"empty in the first {rows:,} rows" for name in columns if name in empty and name not in kinds}
    bare = [name for name, why in aside.items() if why is _NO_PHENOTYPE]
    if bare and not phenotypes:
        raise ScreenError(
            f"{where} has no phenotype: by {'its name' if len(bare) == 1 else 'their names'}, {listed(bare)} "
            f"{'is a statistic' if len(bare) == 1 else 'are statistics'}; if not, choose with --phenotype COLUMN"
        )
    if not phenotypes:
        texts = {name: next(filter(None, sample[name]), "") for name, why in aside.items() if why == "text"}
        shown = ", ".join(f"{name!r} holds {str(text)[:30]!r}" for name, text in list(texts.items())[:3])
        raise ScreenError(
            f"{where} has no phenotype, which is a column of numbers, e.g. 'fitness'{f' ({shown})' if shown else ''}; "
            "add one, or choose it with --phenotype COLUMN"
        )
    return Layout(genes, phenotypes, statistics, source, aside, join, decimal, means)


def replicates(columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Columns that measure the same several times, by what they measure; not where another column is called so, and
    not where one has a statistic of its own.

    >>> replicates(["Fitness rep 1", "fitness_rep2", "Fitness (replicate 3)", "rep1.size", "plate", "rep2.size"])
    {'Fitness': ('Fitness rep 1', 'fitness_rep2', 'Fitness (replicate 3)'), 'size': ('rep1.size', 'rep2.size')}
    """
    found: dict[str, list[str]] = {}
    for name in columns:
        mark = _REPLICATE.fullmatch(name)
        if mark is not None:
            found.setdefault(fold(mark["before"] or mark["after"]), []).append(name)
    taken = {fold(name) for name in columns}
    names = {}
    for words, members in found.items():
        own = any(name.startswith(f"{fold(member)} ") for name in taken for member in members)
        if len(members) > 1 and words not in taken and not own:
            mark = _REPLICATE.fullmatch(members[0])
            assert mark is not None
            names[mark["before"] or mark["after"]] = tuple(members)
    return names


def _columns_of(phenotypes: Sequence[str], means: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The columns that hold some phenotypes."""
    return tuple(column for name in phenotypes for column in means.get(name, (name,)))


def fold(name: str) -> str:
    """A column's name in lower case, its words divided by single spaces.

    >>> fold("Gene_A"), fold("geneB"), fold("ORF1"), fold("P-value"), fold("Query ORF")
    ('gene a', 'gene b', 'orf 1', 'p value', 'query orf')
    """
    parted = re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])", " ", name)
    words = " ".join(re.findall(r"[^\W_]+", parted)).casefold()
    return re.sub(r"^(gene|orf)([a-e])$", r"\1 \2", words)


def names_genes(columns: Sequence[str]) -> bool:
    """Whether a header has columns of genes.

    >>> names_genes(["Query ORF", "Array ORF", "score"]), names_genes(["x", "y"])
    (True, False)
    """
    folded = [fold(name) for name in columns]
    return any(name in _ONE_COLUMN for name in folded) or bool(gene_columns(columns))


def gene_columns(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Sets of columns that hold one gene each: gene_a,gene_b; gene1,gene2,gene3; query,array; query1,query2,array."""
    best: dict[str, tuple[int, str]] = {}
    for name in columns:
        words = fold(name).split()
        role = " ".join(word for word in words if word not in _WORDS_OF_GENES)
        if not any(role in family for family in _FAMILIES):
            continue
        if role not in _FAMILIES[2] and not _NOUNS_OF_GENES & set(words):
            continue
        rank = 0 if {"orf", "systematic"} & set(words) else 2 if {"name", "symbol", "standard"} & set(words) else 1
        rank = 3 if "id" in words else rank
        best[role] = min(best.get(role, (9, "")), (rank, name))
    families = [tuple(best[role][1] for role in family if role in best) for family in _FAMILIES]
    return [names for names in families if len(names) > 1]


def is_number(cell: str) -> bool:
    """Whether a cell is a number, with a decimal point or comma.

    >>> is_number("-0,31"), is_number(" 1e-5 "), is_number("1.2.3"), is_number("")
    (True, True, False, False)
    """
    return _NUMBER.fullmatch(cell.strip()) is not None


def is_missing(cell: Any) -> bool:
    """Whether a cell means "not measured"."""
    return cell is None or (isinstance(cell, float) and cell != cell) or str(cell).strip().casefold() in MISSING


def not_numeric(where: str, name: str, value: object, fix: str) -> ScreenError:
    """The error of a column that should hold numbers."""
    return ScreenError(f"{where}: column {name!r} is not numeric, it holds {str(value)[:60]!r}; {fix}")


# ── genes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _columns_of_genes(where: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of genes: ``genotype``, else one for each gene, else one by another name."""
    folded = {fold(name): name for name in reversed(columns)}
    if "genotype" in folded:
        return (folded["genotype"],)
    found = gene_columns(columns)
    if len(found) > 1:
        both = " or ".join(",".join(one) for one in found)
        raise ScreenError(f"{where} names its genes in several ways ({both}); choose with --gene-columns")
    if found:
        return found[0]
    one = next((folded[name] for name in _ONE_COLUMN if name in folded), None)
    if one is not None:
        # gene and gene2, or Gene and Gene.1, which is what pandas calls a second column Gene
        more = [name for name in columns if fold(name) in (f"{fold(one)} {end}" for end in ("1", "2", "3", "b", "c"))]
        return (one, *more)
    has = f"it has {', '.join(columns[:12])}{' …' if len(columns) > 12 else ''}"
    if any(is_number(name) for name in columns):
        raise ScreenError(f"{where} has no line with the names of its columns ({has}); add one, e.g. genotype,fitness")
    raise ScreenError(
        f"{where} has no column 'genotype', nor gene_a,gene_b or query,array; {has}; choose with "
        "--gene-columns COLUMN or COLUMN,COLUMN, or say --matrix if rows and columns are genes"
    )


def _join(where: str, cells: Sequence[Any], given: str | None) -> str:
    """What divides the genes of one cell."""
    if given is not None:
        if given not in JOINS:
            raise ScreenError(f"--join {given!r} is not known; use {' or '.join(JOINS)}")
        return given
    texts = [re.sub(BOTH_NAMES, r"\1", cell.strip()) for cell in cells if isinstance(cell, str)]
    texts = [re.sub(r"\s*=\s*", "=", re.sub(DAMP, "", text)) for text in texts]
    texts = [text for text in texts if text.casefold() not in WILD_TYPES | MISSING]
    if any(re.search(JOINS["+"], text) for text in texts):
        return "+"
    signs = [sign for sign in ("space", "/") if any(re.search(JOINS[sign], text) for text in texts)]
    if len(signs) == 2:
        shown = next(text for text in texts if re.search(r"[\s/]", text))
        raise ScreenError(f"{where}: it is unclear how {shown[:60]!r} divides into genes; say --join space or --join /")
    return signs[0] if signs else "+"


# ── phenotypes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _chosen(where: str, option: str, wanted: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that an option names, one by one or divided by commas."""
    names: list[str] = []
    for text in [wanted] if isinstance(wanted, str) else wanted:
        names += [text] if _find(text, columns) is not None else [part.strip() for part in text.split(",")]
    found = [_find(name, columns) for name in names]
    if None in found:
        name = names[found.index(None)]
        raise ScreenError(
            f"{where} has no column {name!r}{did_you_mean(name, columns)} for {option}; it has "
            f"{', '.join(columns[:12])}{' …' if len(columns) > 12 else ''}"
        )
    return tuple(dict.fromkeys(name for name in found if name is not None))


def _find(name: str, columns: Sequence[str]) -> str | None:
    """A column by its name, or by its words if only one has them."""
    if name in columns:
        return name
    alike = [column for column in columns if fold(column) == fold(name)]
    return alike[0] if len(alike) == 1 else None


def _by_kind(
    place: Place, kinds: Mapping[str, str], sample: Sample, decimal: Decimal, means: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], dict[str, tuple[str, str]], dict[str, str]]:
    """Phenotypes, statistics and the columns set aside, where the user did not choose."""
    aside: dict[str, str] = {}
    numbers: list[str] = []
    for name, kind in kinds.items():
        if kind == "text":
            aside[name] = "text"
        elif re.fullmatch(r"column \d+", name):
            aside[name] = "it has no name"
        elif fold(name) in _NUMBERING:
            aside[name] = "it numbers the rows"
        elif kind == "mixed":
            fix = "correct it, or choose the phenotypes with --phenotype"
            row = _odd(sample[name], decimal)
            raise not_numeric(place(row), name, sample[name][row], fix)
        else:
            numbers.append(name)
    mean_of = {column: name for name, columns in means.items() if set(columns) <= set(numbers) for column in columns}
    numbers = list(dict.fromkeys(mean_of.get(name, name) for name in numbers))
    bare = [name for name in numbers if not name.startswith(".") and _statistic_word(fold(name))]
    phenotypes = [name for name in numbers if name not in bare]
    statistics = _statistics(phenotypes, numbers)
    phenotypes = [name for name in phenotypes if name not in statistics]
    for name in bare:
        if name not in statistics and name not in phenotypes:
            aside[name] = _NO_PHENOTYPE
    return tuple(phenotypes), statistics, aside


def _statistics(phenotypes: Sequence[str], numbers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Column → its phenotype and statistic: ``score.std``, ``score_std``, ``p-value`` beside one phenotype."""
    found: dict[str, tuple[str, str]] = {}
    for name in numbers:
        dotted = next((p for p in phenotypes if name != p and name.startswith(f"{p}.")), None)
        if dotted is not None and len(name) > len(dotted) + 1:
            found[name] = (dotted, name[len(dotted) + 1 :])
    for name in numbers:
        for p in phenotypes:
            said = fold(name).removeprefix(f"{fold(p)} ")
            word = _statistic_word(said) if said != fold(name) else None
            if name not in found and p not in found and word and (p, word) not in found.values():
                found[name] = (p, word)
    own = [p for p in phenotypes if p not in found]
    for name in numbers:
        word = _statistic_word(fold(name))
        if len(own) == 1 and name not in (*found, *own) and word and (own[0], word) not in found.values():
            found[name] = (own[0], word)
    return found


def _statistic_word(words: str) -> str | None:
    """The statistic that a column holds by the words of its name.

    >>> [_statistic_word(words) for words in ("adj p val", "p value two sided", "interaction fdr bh", "log 10 p")]
    ['q_value', 'p_value', 'q_value', 'log_p_value']
    >>> [_statistic_word(words) for words in ("fitness sd", "sd of fitness", "epsilon variance", "sd units", "z score")]
    ['std', 'std', 'variance', None, None]
    """
    for kind, known in _STATISTICS.items():
        for one in known:
            anywhere = " " in one or len(one) > 4 or one == "fdr"
            inside = anywhere and f" {one} " in f" {words} "
            aside = len(one) > 1 and (words.endswith(f" {one}") or words.startswith(f"{one} of "))
            if words == one or inside or aside:
                return kind
    return None


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mark(cell: Any) -> str | None:
    """The decimal sign of a number, ``""`` for one without; ``None`` for anything else."""
    if isinstance(cell, bool) or not isinstance(cell, str):
        return "" if isinstance(cell, int | float) and not isinstance(cell, bool) else None
    found = _NUMBER.fullmatch(cell.strip())
    return None if found is None else found["mark"] or found["first"] or ""


def _kind(cells: Sequence[Any], decimal: Decimal) -> str:
    """``number``, ``text``, ``empty``, or ``mixed``: half of the cells or more are numbers, but not all."""
    measured = [cell for cell in cells if not is_missing(cell)]
    if not measured:
        return "empty"
    wrong = "," if decimal == "point" else "."
    numbers = sum(_mark(cell) not in (None, wrong) for cell in measured)
    return "number" if numbers == len(measured) else "mixed" if 2 * numbers >= len(measured) else "text"


def _odd(cells: Sequence[Any], decimal: Decimal) -> int:
    """The row of the first cell that is not a number."""
    wrong = "," if decimal == "point" else "."
    return next(row for row, cell in enumerate(cells) if not is_missing(cell) and _mark(cell) in (None, wrong))


def decimal_sign(where: str, sample: Sample) -> Decimal:
    """Point or comma in some columns, by the columns of which all cells are numbers one way or the other."""
    with_comma: dict[str, list[str]] = {}
    with_point: list[str] = []
    for name, cells in sample.items():
        marks = {_mark(cell) for cell in cells if not is_missing(cell)}
        if "," in marks and marks <= {",", ""}:
            with_comma[name] = [cell.strip() for cell in cells if _mark(cell) == ","]
        elif "." in marks and marks <= {".", ""}:
            with_point.append(name)
    if not with_comma:
        return "point"
    name, cells = next(iter(with_comma.items()))
    if with_point:
        raise ScreenError(
            f"{where}: column {name!r} is written with decimal commas ({cells[0]!r}) and {listed(with_point)} with "
            "decimal points; choose with --decimal comma or --decimal point, or choose the columns with --phenotype"
        )
    if all(_THOUSANDS.fullmatch(cell) for every in with_comma.values() for cell in every):
        raise ScreenError(
            f"{where}: column {name!r} holds {cells[0]!r}, which may be {cells[0].replace(',', '.')} or "
            f"{cells[0].replace(',', '')}; say --decimal comma, or take the commas out"
        )
    return "comma"
