"""From a folder of public files to a cell graph or a screen, in one call each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from knockgraph.errors import FileFormatError, KnockgraphError, ScreenError
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
from knockgraph.sources.sga import LinkedPolicy
from knockgraph.sources.sgd import Linkage

Edges = Tensor | tuple[Tensor, Tensor]
Preset = Literal["yeast", "yeast-lite", "yeast-clean"]
Study = Literal["collins2007", "costanzo2016", "kuzmin2018"]
Table = Literal["auto", "scores", "trigenic-calls", "digenic-calls"]

BUILT = {
    "yeast.cellgraph": "knockgraph graph build --preset yeast --from DIR -o {}",
    "yeast-lite.cellgraph": "knockgraph graph build --preset yeast-lite --from DIR -o {}",
    "yeast-clean.cellgraph": "knockgraph graph build --preset yeast-clean --from DIR -o {}",
    "collins2007.parquet": "knockgraph screen import collins2007 --from DIR -o {}",
    "costanzo2016.parquet": "knockgraph screen import costanzo2016 --from DIR -o {}",
    "kuzmin2018.parquet": "knockgraph screen import kuzmin2018 --table trigenic-calls --from DIR -o {}",
    "kuzmin2018-scores.parquet": "knockgraph screen import kuzmin2018 --table scores --from DIR -o {}",
}
"""Files that config groups name → the command that makes them."""


def how_to_build(path: Path) -> str:
    """The command for a missing file of a config group, as the end of a sentence; blank for other files."""
    command = BUILT.get(path.name)
    return f"; make it with '{command.format(path)}'" if command else ""


@dataclass(frozen=True)
class GraphOptions:
    """What may be chosen when a graph is built from public files.

    Attributes:
        unknown: Edges with a name outside the gene list: ``drop`` leaves them out and reports, ``error`` refuses.
        cutoff: Least STRING score, for all channels or per channel.
        merged: One relation of all STRING channels instead of one each.
        weighted: Whether STRING edges carry their score as weight.
        metabolism: Whether yeast-GEM is read.
        plasmid: Whether the four genes of the 2-micron plasmid belong to the cell.
        features: Structural features to add, see :mod:`knockgraph.graph.structural_features`.
        phenotypes: Whether ``yeast-clean`` reads YeastPhenome's files as gene features where they are.
    """

    unknown: Policy = "drop"
    cutoff: int | Mapping[str, int] = 1
    merged: bool = False
    weighted: bool = False
    metabolism: bool = True
    plasmid: bool = False
    features: Sequence[str] = ()
    phenotypes: bool = True


def build_graph(preset: Preset, folder: Path, options: GraphOptions | None = None) -> tuple[CellGraph, ImportReport]:
    """The cell graph of yeast from the files in ``folder``, and a report of what was read and dropped.

    ``yeast``: regulatory (YEASTRACT), physical (BioGRID), tflink, the six channels of STRING 12.0, metabolism.
    ``yeast-lite``: regulatory, physical, the physical network of STRING 12.0, six channels of STRING 11.5, metabolism.
    ``yeast-clean``: nothing that contains genetic interactions: regulatory, physical, the physical network of STRING
    12.0 with scores as weights, complex (CYC2008), metabolism, and the features ``go`` (Gene Ontology) and
    ``phenotypes`` (YeastPhenome) where their files are in the folder.
    """
    options = options or GraphOptions()
    wanted = [f for f in chosen([preset]) if options.metabolism or f.name != "yeast-gem"]
    path = gather(folder, wanted)
    report = ImportReport(preset)
    genes, elsewhere, _ = read_gene_list(folder, report, options.plasmid)
    resolve = NameResolver(genes, elsewhere, options.unknown)
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
            weighted=options.weighted or preset == "yeast-clean",
        )
        relations["string12_0_physical"] = found["merged"]
    if "cyc2008" in path:
        relations["complex"] = cyc2008.read_complexes(
            path["cyc2008"], resolve, report.file("complexes", path["cyc2008"])
        )
    for channels in (p for name, p in path.items() if name.endswith("-channels")):
        relations |= _channels(channels, resolve, report, options)
    features = _given_features(folder, resolve, report, options.phenotypes) if preset == "yeast-clean" else {}
    metabolism = None
    if options.metabolism:
        metabolism = _metabolism(path["yeast-gem"], genes, report, options.unknown)
    graph = CellGraph(genes, relations, metabolism, features)
    return (with_structural_features(graph, options.features) if options.features else graph), report


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
    """``go`` and ``phenotypes``, where their files are; phenotypes of one table or of the owner's files by paper."""
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
    """The gene list of SGD's files in a folder, what other names mean, and where the genes lie."""
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


@dataclass(frozen=True)
class ScreenOptions:
    """What may be chosen when a screen is imported from public files.

    Attributes:
        unknown: Experiments with a name outside the gene list: ``drop`` leaves them out and reports, ``error`` refuses.
        linked: Crosses of linked genes: ``drop``, or ``mark`` with 1 in the statistic ``linked``.
        table: Which table of Kuzmin's; ``auto`` takes the scores if they are there, else the trigenic calls.
        genes: Where the gene list comes from: a folder with SGD's files or a cell graph; by default the folder itself.
    """

    unknown: Policy = "drop"
    linked: LinkedPolicy = "drop"
    table: Table = "auto"
    genes: Path | None = None


_TABLES: dict[str, tuple[str, ...]] = {
    "scores": (*public_file("kuzmin2018").patterns, "tau_sga*"),
    "trigenic-calls": ("kuzmin2018_trigenic_calls*",),
    "digenic-calls": ("kuzmin2018_digenic_calls*",),
}


def import_screen(study: Study, source: Path, options: ScreenOptions | None = None) -> tuple[Screen, ImportReport]:
    """A published screen from a folder of files or one file, and a report of what was read and dropped."""
    options = options or ScreenOptions()
    report = ImportReport(study)
    resolve, linkage = _resolver(source, options, report)
    if study == "collins2007":
        path = source if source.is_file() else gather(source, [public_file(study)])[study]
        return collins.read_collins(path, resolve, report.file("E-MAP", path)), report
    if study == "costanzo2016":
        paths = [source] if source.is_file() else _costanzo_files(source)
        return costanzo.read_costanzo(paths, resolve, report, linkage, options.linked), report
    table, path = _kuzmin_table(source, options.table)
    if table == "trigenic-calls":
        file = report.file("trigenic calls", path)
        return kuzmin.read_trigenic_calls(path, resolve, file, options.linked), report
    if table == "digenic-calls":
        return kuzmin.read_digenic_calls(path, resolve, report.file("digenic calls", path)), report
    study_of_file = "kuzmin2020" if path.name.lower().startswith("aaz5667") else study
    return kuzmin.read_scores([path], resolve, report, linkage, options.linked, study_of_file), report


def _resolver(source: Path, options: ScreenOptions, report: ImportReport) -> tuple[NameResolver, Linkage | None]:
    where = options.genes or (source if source.is_dir() else source.parent)
    if where.is_file():
        return NameResolver(CellGraph.load(where).genes, None, options.unknown), None
    if options.genes is None and locate(listing(where), public_file("sgd-features").patterns) is None:
        note = report.file("genes", where)
        note.notes.append(
            "names were taken as written: there is no SGD_features.tab here; give a folder that has it, or a cell "
            "graph, with --genes"
        )
        return AsWritten(), None
    genes, elsewhere, linkage = read_gene_list(where, report)
    return NameResolver(genes, elsewhere, options.unknown), linkage


def resolver_of(genes: Path, unknown: Policy = "drop") -> NameResolver:
    """Names as a cell graph, or the SGD files of a folder, have them."""
    if genes.is_file():
        return NameResolver(CellGraph.load(genes).genes, None, unknown)
    names, elsewhere, _ = read_gene_list(genes, ImportReport("genes"))
    return NameResolver(names, elsewhere, unknown)


def with_systematic_names(screen: Screen, genes: Path, unknown: Policy, what: str) -> tuple[Screen, FileReport]:
    """A screen by systematic names instead of those that were written, and what was dropped for an unknown one."""
    resolve = resolver_of(genes, unknown)
    names, codes, ptr = screen.genotypes.names, screen.genotypes.codes, screen.genotypes.ptr
    gene = resolve.many(names, codes)
    report = FileReport("names", genes, read=len(screen))
    report.unresolved = resolve.finish(what)
    known = np.ones(len(screen), dtype=bool)
    known[ragged.row_of_entry(ptr)[gene < 0]] = False
    report.drop("a name outside the gene list", int((~known).sum()))
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
        # The sample of scores that comes with the τ-SGA software is not the study: only if asked for by name.
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
