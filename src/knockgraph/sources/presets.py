"""Building a cell graph or a screen from a source, and the sources that read public yeast files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from torch import Tensor

from knockgraph.errors import FileFormatError, KnockgraphError, ScreenError, SourceError
from knockgraph.graph import CellGraph, GeneNames, Metabolism
from knockgraph.graph.structural_features import with_structural_features
from knockgraph.screen import Screen, ragged
from knockgraph.sources import (
    biogrid,
    collins,
    costanzo,
    cyc2008,
    go,
    kuzmin,
    sgd,
    string,
    tflink,
    yeast_gem,
    yeastphenome,
    yeastract,
)
from knockgraph.sources.catalogue import SETS, chosen, public_file
from knockgraph.sources.folder import gather, listing, locate
from knockgraph.sources.names import AsWritten, NameResolver, Policy
from knockgraph.sources.report import FileReport, ImportReport
from knockgraph.sources.sgd import Linkage
from knockgraph.sources.source import GraphOptions, ScreenOptions, Source, Table, checked_path, source_of
from knockgraph.sources.table_layout import TableOptions

Edges = Tensor | tuple[Tensor, Tensor]

BUILT = {
    "yeast.cellgraph": "knockgraph graph build --preset yeast --from DIR -o {}",
    "yeast-lite.cellgraph": "knockgraph graph build --preset yeast-lite --from DIR -o {}",
    "yeast-clean.cellgraph": "knockgraph graph build --preset yeast-clean --from DIR -o {}",
    **{
        f"dango-string{v}.cellgraph": f"knockgraph graph build --preset dango-string{v} --from DIR -o {{}}"
        for v in ("9_1", "11_0", "12_0")
    },
    "collins2007.parquet": "knockgraph screen import collins2007 --from DIR -o {}",
    "costanzo2016.parquet": "knockgraph screen import costanzo2016 --from DIR -o {}",
    "kuzmin2018.parquet": "knockgraph screen import kuzmin2018 --table trigenic-calls --from DIR -o {}",
    "kuzmin2018-digenic.parquet": "knockgraph screen import kuzmin2018 --table digenic-calls --from DIR -o {}",
    "kuzmin2018-scores.parquet": "knockgraph screen import kuzmin2018 --table scores --from DIR -o {}",
}
"""Files named in config groups → the command that creates them."""


def how_to_build(path: Path) -> str:
    """The command that creates a missing file of a config group, as the end of a sentence; empty for other files."""
    command = BUILT.get(path.name)
    return f"; make it with '{command.format(path)}'" if command else ""


def build_graph(name: str, path: Path | None, options: GraphOptions | None = None) -> tuple[CellGraph, ImportReport]:
    """The cell graph of a source, and a report of what was read and dropped.

    Args:
        name: ``demo``, ``yeast-scale``, ``tables``, ``yeast``, ``yeast-lite``, ``yeast-clean``, or a source of another
            package.
        path: The folder to read, if it reads one.
        options: See :class:`GraphOptions`.
    """
    options, report = options or GraphOptions(), ImportReport(name)
    source = source_of(name, "graph")
    graph = source.graph(checked_path(source, path, f"the preset {name}"), options, report)
    return (with_structural_features(graph, options.features) if options.features else graph), report


class Yeast(Source):
    """Public networks of yeast: regulatory (YEASTRACT), physical (BioGRID), tflink, the six channels of STRING 12.0,
    metabolism (yeast-GEM).
    """

    reads = "the folder with the public files"
    files = ("yeast",)

    def graph(self, path: Path, options: GraphOptions, report: ImportReport) -> CellGraph:
        """From the files in a folder."""
        return yeast_graph(self.files, path, options, report)


class YeastLite(Yeast):
    """The same from smaller files: regulatory, physical, the physical network of STRING 12.0, six channels of
    STRING 11.5, metabolism.
    """

    files = ("yeast-lite",)


class YeastClean(Yeast):
    """Nothing that contains genetic interactions: regulatory, physical, the physical network of STRING 12.0 with scores
    as weights, complex (CYC2008), metabolism, and the features ``go`` (Gene Ontology) and ``phenotypes``
    (YeastPhenome) where their files are in the folder.
    """

    files = ("yeast-clean",)

    def graph(self, path: Path, options: GraphOptions, report: ImportReport) -> CellGraph:
        """From the files in a folder."""
        return yeast_graph(self.files, path, options, report, clean=True)


class DangoString9_1(Source):  # noqa: N801 - the release 9.1
    """DANGO's cell: the six channels of STRING 9.1 and nothing else."""

    reads = "the folder with STRING's detailed links and SGD's features"
    files = ("dango-string9_1",)

    def graph(self, path: Path, options: GraphOptions, report: ImportReport) -> CellGraph:
        """From the files in a folder; channels that the file lacks are left out and named."""
        (links,) = (name for name in SETS[self.files[0]] if name != "sgd-features")
        file = gather(path, chosen(self.files))[links]
        genes, elsewhere, _ = read_gene_list(path, report, options.plasmid)
        resolve = NameResolver(genes, elsewhere, options.unknown or "drop")
        relations = _channels(file, resolve, report, options)
        missing = [name for name in string.CHANNELS if name not in string.channels_of(file)]
        if missing:
            report.files[-1].notes.append(f"the file lacks {len(missing)} of the six channels: {', '.join(missing)}")
        return CellGraph(genes, relations)


class DangoString11_0(DangoString9_1):  # noqa: N801
    """The same with STRING 11.0."""

    files = ("dango-string11_0",)


class DangoString12_0(DangoString9_1):  # noqa: N801
    """The same with STRING 12.0."""

    files = ("dango-string12_0",)


def yeast_graph(
    files: Sequence[str], folder: Path, options: GraphOptions, report: ImportReport, clean: bool = False
) -> CellGraph:
    """The cell graph of those files of the catalogue that are networks of yeast.

    Args:
        files: Names of files and sets of the catalogue.
        folder: Where they are.
        options: See :class:`GraphOptions`.
        report: Records what was read and dropped.
        clean: Whether to weight STRING's physical network and to read features, see :class:`YeastClean`.
    """
    unknown = options.unknown or "drop"
    wanted = [f for f in chosen(files) if options.metabolism or f.name != "yeast-gem"]
    path = gather(folder, wanted)
    genes, elsewhere, _ = read_gene_list(folder, report, options.plasmid)
    resolve = NameResolver(genes, elsewhere, unknown)
    relations: dict[str, Edges] = {
        "regulatory": yeastract.read_regulations(
            path["yeastract"], resolve, report.file("regulatory", path["yeastract"])
        ),
        "physical": biogrid.read_biogrid(path["biogrid"], resolve, report.file("physical", path["biogrid"])),
    }
    if "tflink" in path:
        relations["tflink"] = tflink.read_tflink(path["tflink"], resolve, report.file("tflink", path["tflink"]))
    if "string12.0-physical" in path:
        file = path["string12.0-physical"]
        found = string.read_string(
            file,
            resolve,
            report.file("STRING 12.0 physical", file),
            merged=True,
            weighted=options.weighted or clean,
        )
        relations["string12_0_physical"] = found["merged"]
    if "cyc2008" in path:
        relations["complex"] = cyc2008.read_complexes(
            path["cyc2008"], resolve, report.file("complexes", path["cyc2008"])
        )
    for channels in (p for name, p in path.items() if name.endswith("-channels")):
        relations |= _channels(channels, resolve, report, options)
    features = _given_features(folder, resolve, report, options.phenotypes) if clean else {}
    metabolism = None
    if options.metabolism:
        metabolism = _metabolism(path["yeast-gem"], genes, report, unknown)
    return CellGraph(genes, relations, metabolism, features)


def _channels(path: Path, resolve: NameResolver, report: ImportReport, options: GraphOptions) -> dict[str, Edges]:
    found = string.read_string(
        path,
        resolve,
        report.file(f"STRING {string.string_version(path)} channels", path),
        None if not options.merged else [c for c in string.CHANNELS if c in string.channels_of(path)],
        options.cutoff,
        options.merged,
        options.weighted,
    )
    prefix = string.relation_prefix(path)
    return {f"{prefix}{name}": edges for name, edges in found.items()}


def _given_features(
    folder: Path, resolve: NameResolver, report: ImportReport, with_phenotypes: bool
) -> dict[str, Tensor]:
    """``go`` and ``phenotypes``, if their files exist; phenotypes come from one table or from files per paper."""
    files = listing(folder)
    found: dict[str, Tensor | None] = {}
    terms = locate(files, public_file("go").patterns)
    if terms:
        found["go"] = go.read_annotations(terms, resolve, report.file("Gene Ontology", terms))
    if with_phenotypes:
        table = locate(files, public_file("yeastphenome").patterns)
        papers = [table] if table else [f for f in files if fnmatch(f.name.lower(), "*_valuez.txt*")]
        found["phenotypes"] = yeastphenome.read_phenotypes(papers, resolve, report)
    return {name: x for name, x in found.items() if x is not None}


def read_gene_list(
    folder: Path, report: ImportReport, plasmid: bool = False
) -> tuple[GeneNames, dict[str, str], Linkage]:
    """The gene list of SGD's files in a folder, the meaning of other names, and the positions of the genes."""
    path = gather(folder, [public_file("sgd-features")])["sgd-features"]
    features = sgd.read_features(path)
    more = locate(listing(folder), public_file("sgd-aliases").patterns)
    aliases = sgd.read_aliases(more) if more else None
    genes = features.genes(plasmid, aliases)
    file = report.file("genes", path)
    file.read = features.rows
    file.kept = {"ORFs": len(features.orfs), "genes": len(genes)}
    file.drop("features that are not ORFs", features.rows - len(features.orfs))
    file.drop("ORFs of the 2-micron plasmid", len(features.orfs) - len(genes))
    if more and aliases is not None:
        table = report.file("other names", more)
        table.read = len(aliases)
        table.kept = {"genes with other names": sum(1 for name in genes.names if name in aliases)}
        table.drop("not in the gene list", len(set(aliases) - set(genes.names)))
    return genes, features.elsewhere(genes), features.linkage(genes)


def _metabolism(path: Path, genes: GeneNames, report: ImportReport, unknown: Policy) -> Metabolism:
    reactions = yeast_gem.read_model(path)
    rows = {name: found[0] for name in _rule_genes(reactions) if len(found := genes.find(name)) == 1}
    metabolism = Metabolism.from_reactions(reactions, rows, unknown=unknown)
    file = report.file("metabolism", path)
    file.read = len(reactions)
    file.kept = {
        "reaction nodes": metabolism.num_reactions,
        "metabolites": metabolism.num_metabolites,
        "gpr entries": metabolism.num_gpr,
        "rmr entries": metabolism.num_rmr,
    }
    strangers = sorted(set(_rule_genes(reactions)) - set(rows))
    if strangers:
        file.notes.append(
            f"genes of the model that are not in the gene list count as always kept: {', '.join(strangers)}"
        )
    return metabolism


def _rule_genes(reactions: Sequence[object]) -> list[str]:
    from knockgraph.graph.gene_rule import complexes

    return list(
        dict.fromkeys(gene for r in reactions for group in complexes(r.gene_rule) for gene in group)  # type: ignore[attr-defined]
    )


_TABLES: dict[str, tuple[str, ...]] = {
    "scores": (*public_file("kuzmin2018").patterns, "tau_sga*"),
    "trigenic-calls": ("kuzmin2018_trigenic_calls*",),
    "digenic-calls": ("kuzmin2018_digenic_calls*",),
}


def import_screen(name: str, path: Path | None, options: ScreenOptions | None = None) -> tuple[Screen, ImportReport]:
    """The screen of a source, and a report of what was read and dropped.

    Args:
        name: ``demo``, ``yeast-scale``, ``table``, ``pyg``, ``torchcell``, ``collins2007``, ``costanzo2016``,
            ``kuzmin2018``, or a source of another package.
        path: The folder or file to read, if it reads one.
        options: See :class:`ScreenOptions`.
    """
    options, report = options or ScreenOptions(), ImportReport(name)
    source = source_of(name, "screen")
    file = checked_path(source, path, f"the screen {name}")
    if source.resolves or options.genes is None:
        if not source.resolves and options.unknown is not None:
            raise SourceError("--unknown needs --genes: a cell graph, or a folder with SGD_features.tab")
        return source.screen(file, options, report), report
    resolve = resolver_of(options.genes, options.unknown or "error")
    reading = replace(options.reading or TableOptions(), known=resolve.genes)
    screen = source.screen(file, replace(options, reading=reading), report)
    screen, names = with_systematic_names(screen, resolve, str(path or "the table"), options.genes)
    report.files.append(names)
    return screen, report


class Study(Source):
    """A published screen whose names are resolved with SGD's files in the same folder."""

    reads = "the folder or file with the study's data"
    resolves = True


class Collins2007(Study):
    """An E-MAP of the genes of chromosome biology."""

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """See :mod:`knockgraph.sources.collins`."""
        resolve, _ = _resolver(path, options, report)
        file = path if path.is_file() else gather(path, [public_file("collins2007")])["collins2007"]
        return collins.read_collins(file, resolve, report.file("E-MAP", file))


class Costanzo2016(Study):
    """The global network of digenic interactions."""

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """See :mod:`knockgraph.sources.costanzo`."""
        resolve, linkage = _resolver(path, options, report)
        files = [path] if path.is_file() else _costanzo_files(path)
        return costanzo.read_costanzo(files, resolve, report, linkage, options.linked)


class Kuzmin2018(Study):
    """Trigenic interactions."""

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """See :mod:`knockgraph.sources.kuzmin`."""
        resolve, linkage = _resolver(path, options, report)
        table, file = _kuzmin_table(path, options.table)
        if table == "trigenic-calls":
            return kuzmin.read_trigenic_calls(file, resolve, report.file("trigenic calls", file), options.linked)
        if table == "digenic-calls":
            return kuzmin.read_digenic_calls(file, resolve, report.file("digenic calls", file))
        study = "kuzmin2020" if file.name.lower().startswith("aaz5667") else "kuzmin2018"
        return kuzmin.read_scores([file], resolve, report, linkage, options.linked, study)


def _resolver(source: Path, options: ScreenOptions, report: ImportReport) -> tuple[NameResolver, Linkage | None]:
    where, unknown = options.genes or (source if source.is_dir() else source.parent), options.unknown or "drop"
    if where.is_file():
        return NameResolver(CellGraph.load(where).genes, None, unknown), None
    if options.genes is None and locate(listing(where), public_file("sgd-features").patterns) is None:
        note = report.file("genes", where)
        note.notes.append(
            "names were taken as written: there is no SGD_features.tab here; give a folder that has it, or a cell "
            "graph, with --genes"
        )
        return AsWritten(), None
    genes, elsewhere, linkage = read_gene_list(where, report)
    return NameResolver(genes, elsewhere, unknown), linkage


def resolver_of(genes: Path, unknown: Policy = "drop") -> NameResolver:
    """The names of a cell graph, or of the SGD files in a folder."""
    if genes.is_file():
        return NameResolver(CellGraph.load(genes).genes, None, unknown)
    if not genes.exists():
        raise FileFormatError(
            f"cannot read {genes}: there is no such cell graph or folder; 'knockgraph graph build' makes one"
        )
    names, elsewhere, _ = read_gene_list(genes, ImportReport("genes"))
    return NameResolver(names, elsewhere, unknown)


def with_systematic_names(screen: Screen, resolve: NameResolver, what: str, genes: Path) -> tuple[Screen, FileReport]:
    """The screen with systematic names, and a report of the experiments dropped for unknown names.

    Args:
        screen: The screen.
        resolve: The names.
        what: Where the screen comes from.
        genes: Where the names come from.
    """
    names, codes, ptr = screen.genotypes.names, screen.genotypes.codes, screen.genotypes.ptr
    gene = resolve.many(names, codes)
    report = FileReport("names", Path(what), read=len(screen))
    report.unresolved = resolve.finish(what)
    known = np.ones(len(screen), dtype=bool)
    known[ragged.row_of_entry(ptr)[gene < 0]] = False
    report.drop(f"a name that {genes} does not have", int((~known).sum()))
    if 2 * int(known.sum()) < len(screen):
        report.notes.append(f"most experiments are dropped: does {genes} know the names that this table uses?")
    if not bool(known.any()) and len(screen):
        raise ScreenError(f"{what}: no experiment is left, every one names a gene that {genes} does not have")
    named = screen.resolved(resolve.genes)
    report.kept = {"experiments": int(known.sum())}
    return (named if bool(known.all()) else named.take(np.flatnonzero(known))), report


def _costanzo_files(folder: Path) -> list[Path]:
    files = listing(folder)
    tables = [path for name in costanzo.TABLES if (path := locate(files, (f"{name}.txt*",)))]
    return tables or [gather(folder, [public_file("costanzo2016")])["costanzo2016"]]


def _kuzmin_table(source: Path, table: Table) -> tuple[str, Path]:
    if source.is_file():
        return (table if table != "auto" else _kind_of(source)), source
    files = listing(source)
    wanted = ["scores", "trigenic-calls", "digenic-calls"] if table == "auto" else [table]
    for name in wanted:
        # The sample of scores that comes with the τ-SGA software is not the study: used only if requested by name.
        patterns = _TABLES[name][:-1] if table == "auto" and name == "scores" else _TABLES[name]
        path = locate(files, patterns)
        if path is not None:
            return name, path
    listed = ", ".join(pattern for name in wanted for pattern in _TABLES[name])
    raise FileFormatError(
        f"{source} holds no table of Kuzmin 2018 ({listed}); get it {public_file('kuzmin2018').where}"
    )


def _kind_of(path: Path) -> str:
    from knockgraph.sources.delimited import DelimitedFile

    file = DelimitedFile(path)
    if file.find("query_orf1"):
        return "trigenic-calls"
    return "digenic-calls" if file.find("sign") else "scores"


def check_names(names: Sequence[str]) -> None:
    """Refuse names of downloads that are not in the catalogue, before anything is fetched."""
    for name in names:
        if name not in SETS:
            try:
                public_file(name)
            except KnockgraphError as error:
                raise KnockgraphError(f"{error}, or one of the sets {', '.join(SETS)}") from error
