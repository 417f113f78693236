"""Files as their readers take them, and what can happen to the bytes of one: the cases of ``test_fuzz.py``."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import itertools
import json
import lzma
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch_geometric.data import InMemoryDataset

from knockgraph import CellGraph, Metabolism, PerturbationBatch, PerturbationDataset, Reaction, Screen, Split, splits
from knockgraph.graph import GeneNames
from knockgraph.predict import read_names
from knockgraph.profile.settings import read_profile
from knockgraph.sources import (
    biogrid,
    collins,
    costanzo,
    download,
    edge_list,
    graph_tables,
    kuzmin,
    sgd,
    string,
    tables,
    tflink,
    torchcell,
    yeast_gem,
    yeastract,
)
from knockgraph.sources.names import AsWritten, NameResolver
from knockgraph.sources.pyg import Pyg
from knockgraph.sources.report import FileReport, ImportReport
from knockgraph.sources.source import ScreenOptions
from knockgraph.strategies import create
from knockgraph.traces.categories import Categories
from knockgraph.traces.summary import summarise_file
from knockgraph.train import checkpoints, config, metrics_file, plain_config
from knockgraph.train.metrics_file import curves

# ── what happens to bytes ────────────────────────────────────────────────────────────────────────────────────────────

PIECES = [
    *(b"\t", b",", b";", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b'"', b"'", b"\0", b"|", b"+", b"_", b"-", b"#", b":"),
    *(b"0", b"-1", b"1.5", b"1e999", b"nan", b"inf", b"NA", b"1_0", b"9" * 20, b"9" * 400, "٣".encode(), b"0x1p9"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xc3", "ε".encode(), b"\xed\xa0\x80", b"\\ud800", b"\\", b"\x1f\x8b", b"PK\x03\x04"),
    *(b"{", b"}", b"[", b"]", b"[" * 1100, b"{'a':" * 600, b"null", b"true", b"${x}", b"&a *a", b"!!python/name:os."),
    *(b"<", b"</", b"<!DOCTYPE a>", b"&amp;", b"---", b"- ", b"? ", b"\n  - ", b"YAL001C", b"YDL227C", b"x" * 500),
]
"""Texts that mean something to one reader or another."""


@dataclass(frozen=True)
class Edit:
    """At a share of the file: how many bytes go, and what comes instead; or one bit; or the end of the file."""

    place: float
    drop: int
    piece: bytes
    kind: str  # edit | flip | cut | twice

    def apply(self, data: bytes) -> bytes:
        at = int(self.place * len(data))
        if self.kind == "cut":
            return data[:at]
        if self.kind == "flip":
            return data[:at] + bytes([data[at] ^ (1 << self.drop % 8)]) + data[at + 1 :] if at < len(data) else data
        if self.kind == "twice":
            return data[: at + self.drop] + data[at:]
        return data[:at] + self.piece + data[at + self.drop :]


EDITS = st.lists(
    st.builds(
        Edit,
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 40) | st.just(0),
        st.sampled_from(PIECES) | st.binary(max_size=4),
        st.sampled_from(["edit", "edit", "flip", "cut", "twice"]),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, edits: list[Edit]) -> bytes:
    for edit in edits:
        data = edit.apply(data)
    return data


PACKED = ("plain", "gzip", "xz", "bzip2", "zip")


def packed(data: bytes, how: str, name: str = "x.txt") -> bytes:
    if how == "zip":
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(zipfile.ZipInfo(name), data)
        return stream.getvalue()
    return {"plain": bytes, "gzip": gzip.compress, "xz": lzma.compress, "bzip2": bz2.compress}[how](data)


def resealed(data: bytes, edits: list[Edit]) -> bytes:
    """A container whose document was edited by someone who knows how to compute its hash."""
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    about = header["__metadata__"]
    about["document"] = damaged(about["document"].encode(), edits).decode("utf-8", "replace")
    digests = sorted(json.loads(about["digests"]).items())
    text = json.dumps([about["format"], int(about["version"]), about["document"], digests])
    about["content_hash"] = hashlib.sha256(text.encode()).hexdigest()
    new = json.dumps(header).encode()
    return struct.pack("<Q", len(new)) + new + data[end:]


# ── readers and what they read ───────────────────────────────────────────────────────────────────────────────────────

GENES = ["YAL001C", "YAL002W", "YAL003W", "YBR004C", "YDL227C"]


def resolver(unknown: str = "drop") -> NameResolver:
    return NameResolver(GeneNames(GENES, {"YAL001C": ["TFC3"], "YAL002W": ["VPS8"]}), None, unknown)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Reader:
    """What reads a file of this name, and its sound content.

    Args:
        file: Its name, perhaps with a folder.
        sound: The content as text, or what saves it to a path.
        read: The reader.
        packs: Whether the file may be compressed.
        member: Name of the file in a zip archive.
        beside: Writes what must lie beside the file.
    """

    file: str
    sound: str | Callable[[Path], Any]
    read: Callable[[Path], Any]
    packs: bool = False
    member: str = "x.txt"
    beside: Callable[[Path], Any] | None = None

    def write(self, path: Path) -> bytes:
        """Write the sound file, return its bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.beside is not None:
            self.beside(path)
        if isinstance(self.sound, str):
            path.write_text(self.sound, encoding="utf-8")
        else:
            self.sound(path)
        return path.read_bytes()


def text(file: str, content: str, read: Callable[[Path], Any], member: str = "x.txt") -> Reader:
    return Reader(file, content, read, packs=True, member=member)


BIOGRID = (
    "#BioGRID Interaction ID\tSystematic Name Interactor A\tSystematic Name Interactor B\tExperimental System Type\t"
    "Organism ID Interactor A\tOrganism ID Interactor B\n"
    "1\tYAL001C\tYAL002W\tphysical\t559292\t559292\n2\tYAL001C\tYAL003W\tgenetic\t559292\t559292\n"
)
SGA = (
    "Query strain ID\tQuery allele name\tArray strain ID\tArray allele name\tCombined mutant type\t"
    "Adjusted genetic interaction score (epsilon or tau)\tP-value\tCombined mutant fitness\t"
    "Combined mutant fitness standard deviation\n"
    "YAL001C+YDL227C_tm1\tq\tYAL003W_dma1\ta\tdigenic\t-0.5\t0.01\t0.9\t0.05\n"
    "YAL001C+YAL002W_tm2\tq\tYBR004C_dma2\ta\ttrigenic\t0.25\tNaN\t0.7\t0.1\n"
)
FEATURES = "\n".join(
    f"S{i}\tORF\tVerified\t{name}\tG{i}\tA{i}|B{i}\tchr 1\t\t1\t{i * 1000}\t{i * 1000 + 500}\tW\t\t\t\tsome words"
    for i, name in enumerate(GENES)
)
LINKAGE = sgd.Features(
    tuple(sgd.Feature(n, "ORF", "", "", (), "1", 300_000 * i, 300_000 * i + 9) for i, n in enumerate(GENES)), (), 5
).linkage(GeneNames(GENES))
YAML_MODEL = """---
!!omap
- metaData:
    id: "tiny"
- metabolites:
    - !!omap
      - id: s_1
      - name: glucose
      - compartment: c
- reactions:
    - !!omap
      - id: r_1
      - name: one
      - metabolites: !!omap
          - s_1: -1
      - lower_bound: -1000
      - upper_bound: 1000
      - gene_reaction_rule: (YAL001C and YAL002W) or YAL003W
      - subsystem:
          - Growth
- genes:
    - !!omap
      - id: YAL001C
- compartments: !!omap
    - c: cytoplasm
"""
SBML_MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core"
 xmlns:fbc="http://www.sbml.org/sbml/level3/version1/fbc/version2" level="3" version="1" fbc:required="false">
<model id="tiny" fbc:strict="true"><listOfCompartments><compartment id="c" constant="true"/></listOfCompartments>
<listOfSpecies><species id="M_s_1" compartment="c" hasOnlySubstanceUnits="false" boundaryCondition="false"
 constant="false"/></listOfSpecies><listOfParameters><parameter id="lb" value="-1000" constant="true"/>
<parameter id="ub" value="1000" constant="true"/></listOfParameters><listOfReactions><reaction id="R_r_1"
 reversible="true" fast="false" fbc:lowerFluxBound="lb" fbc:upperFluxBound="ub"><listOfReactants>
<speciesReference species="M_s_1" stoichiometry="1" constant="true"/></listOfReactants><fbc:geneProductAssociation>
<fbc:geneProductRef fbc:geneProduct="G_YAL001C"/></fbc:geneProductAssociation></reaction></listOfReactions>
<fbc:listOfGeneProducts><fbc:geneProduct fbc:id="G_YAL001C" fbc:label="YAL001C"/></fbc:listOfGeneProducts>
</model></sbml>
"""
TRACE = json.dumps(
    {
        "deviceProperties": [{"name": "GPU"}],
        "traceEvents": [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0.5, "dur": 90.5},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 20,
             "args": {"External id": 3}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 12, "dur": 2,
             "args": {"correlation": 7}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 30, "dur": 9,
             "args": {"correlation": 7, "device": 0, "stream": 7}},
            {"ph": "B", "name": "a", "pid": 1, "tid": 2, "ts": 1},
            {"ph": "E", "name": "a", "pid": 1, "tid": 2, "ts": 3},
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 15,
             "args": {"Device Type": 1, "Device Id": 0, "Total Allocated": 4096, "Total Reserved": 8192}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
        ],
    }
)  # fmt: skip
RULES = (
    'categories = ["forward", "loss"]\n[[rule]]\ncategory = "forward"\nname = ["^aten::(mm|add)"]\ncat = ["cpu_op"]\n'
)
FETCHED = {"x": {"name": "x", "file": "x", "url": "https://x", "bytes": 3, "sha256": "0", "retrieved": "2026"}}
PROFILE = {"profile": 1, "conditions": {}, "machine": {}, "epoch": {"steps": 3}, "runs": {"full": {"steps": 3}}}


def sample_graph() -> CellGraph:
    metabolism = Metabolism.from_reactions([Reaction("r1", {"x": -1.0, "y": 2.0}, gene_rule="YAL001C")], {"YAL001C": 0})
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    return CellGraph(GENES, {"physical": edges}, metabolism, {"length": torch.ones(5, 2)}, {"YAL001C": ["TFC3"]})


def sample_screen() -> Screen:
    genotypes = [[], ["YAL001C"], ["YAL001C", "YAL002W"], ["YBR004C"]]
    return Screen(genotypes, {"fitness": [1, 0.5, 0.25, float("nan")]}, {"fitness": {"std": [0.1] * 4}}, source="mine")


def sample_split() -> Split:
    return splits.random(sample_screen(), (0.5, 0.25, 0.25), seed=1)


def genes_beside(path: Path) -> None:
    (path.parent.parent / "genes.csv").write_text("gene,standard,aliases\n" + "".join(f"{g},,\n" for g in GENES))


def relation_beside(path: Path) -> None:
    (path.parent / "relations").mkdir(exist_ok=True)
    (path.parent / "relations" / "p.csv").write_text("source,target\nYAL001C,YAL002W\n")


def read_model(path: Path) -> Any:
    """Without the cache, which would grow by a file per example: a folder below a file cannot be made."""
    return yeast_gem.read_model(path, path / "cache")


def read_store(path: Path) -> Any:
    strategy = create("stored-masks", GRAPH, directory=path.parent)
    return strategy.collate(PerturbationBatch.from_lists([[0], []], len(GENES)))


def write_cached_reactions(path: Path) -> None:
    """As :func:`yeast_gem.read_model` keeps them."""
    cached = _cached(path)
    path.write_text(YAML_MODEL)
    yeast_gem.read_model(path, cached.parent.parent)
    path.write_bytes(cached.read_bytes())


def read_cached_reactions(path: Path) -> Any:
    """A damaged cache is passed over; what is read is of the right types."""
    model, cached = path.with_name("m.yml"), _cached(path)
    model.write_text(YAML_MODEL)
    cached.write_bytes(path.read_bytes())
    reactions = yeast_gem.read_model(model, cached.parent.parent)
    for r in reactions:
        assert (type(r.id), type(r.lower_bound), type(r.gene_rule), type(r.growth)) == (str, float, str, bool)
        assert all(type(name) is str and type(amount) is float for name, amount in r.stoichiometry.items())


def _cached(path: Path) -> Path:
    name = hashlib.sha256(YAML_MODEL.encode()).hexdigest()[:32]
    return path.parent / "cache" / "reactions" / f"{name}.safetensors"


def write_samples(path: Path) -> None:
    InMemoryDataset.save(
        list(PerturbationDataset(sample_screen().bind(GRAPH, unknown="drop", missing="drop"), GRAPH)), path
    )


def run_config(path: Path) -> None:
    path.write_text(config.dump(config.compose()))


GRAPH = sample_graph()
EMAP = "g1\tg2\tS\nYAL001C\tYAL002W\t-2.5\nYAL001C\tYAL003W\tNA\nYAL002W\tYBR004C\t1e-3\n"
CALLS = (
    "query_orf1\tquery_orf2\tarray_orf\tsig_neg_trigenic\twithin_200kb_of_a_query_gene\n"
    "YAL001C\tYBR004C\tYAL003W\t1\t0\nYAL001C\tYBR004C\tYAL002W\t0\t1\n"
)
SIGNS = "orf_a\torf_b\tsign\nYAL001C\tYAL002W\tnegative\nYAL001C\tYAL003W\tboth\n"
LINKS = "protein1 protein2 neighborhood coexpression experimental combined_score\n" + "".join(
    f"4932.{a} 4932.{b} 0 {100 * i} 900 950\n" for i, (a, b) in enumerate(itertools.pairwise(GENES))
)
FACTORS = "UniprotID.TF\tName.TF\tName.Target\tSmall-scale.evidence\nP1\tTFC3\tVPS8;YAL003W\tYes\nP1\tTFC3\tVPS8\tNo\n"
ALIASES = "systematic_name\tcommon_name\taliases\nYAL001C\tTFC3\tFUN24|x\nYAL002W\tVPS8\t\n"
EDGES = "gene_a,gene_b,weight\nYAL001C,YAL002W,0.5\nYAL002W,YAL003W,1e-3\n"
ARROWS = EDGES.replace("gene_a,gene_b", "source,target")
NAMED = "gene,standard,aliases\nYAL001C,TFC3,a|b\nYAL002W,,\n"
TABLE = "genotype,fitness,fitness.std,source\nWT,1.0,0.1,mine\nYAL001C+YAL002W,0.5,,mine\nYAL003W,0.25,0.2,other\n"
EXPERIMENT = {
    "experiment": {
        "dataset_name": "one",
        "genotype": {"perturbations": [{"systematic_gene_name": "YAL001C", "perturbation_type": "deletion"}]},
        "phenotype": {"label_name": "fitness", "label_statistic_name": "fitness_std", "fitness": 0.5, "fitness_std": 1},
    }
}
METRICS = "epoch,step,train/loss,val/mse\n0,0,0.5,\n0,1,0.25,\n0,1,,0.125\n"
STATE = {"epoch": 1, "lr": [0.5], "weights": {"w": GRAPH.features["length"]}}

READERS: dict[str, Reader] = {
    "STRING": text("4932.v12.0.txt", LINKS, lambda p: string.read_string(p, resolver(), FileReport("s", p))),
    "STRING, merged": text(
        "4932.v12.0.txt", LINKS, lambda p: string.read_string(p, resolver("error"), FileReport("s", p), merged=True)
    ),
    "BioGRID": text(
        "b.tab3.txt",
        BIOGRID,
        lambda p: biogrid.read_biogrid(p, resolver(), FileReport("b", p)),
        "BIOGRID-Saccharomyces_cerevisiae.txt",
    ),
    "TFLink": text("t.tsv", FACTORS, lambda p: tflink.read_tflink(p, resolver(), FileReport("t", p), True)),
    "YEASTRACT": text(
        "y.tsv", "TFC3;VPS8\nTFC3;YAL003W\n", lambda p: yeastract.read_regulations(p, resolver(), FileReport("y", p))
    ),
    "edge list": text("e.csv", EDGES, lambda p: edge_list.read_edge_list(p, resolver(), FileReport("e", p))),
    "SGD features": text("SGD_features.tab", FEATURES, lambda p: sgd.read_features(p).genes()),
    "SGD aliases": text("sgd_names_and_aliases.tsv", ALIASES, sgd.read_aliases),
    "yeast-GEM, YAML": text("m.yml", YAML_MODEL, read_model),
    "yeast-GEM, SBML": text("m.xml", SBML_MODEL, read_model),
    "yeast-GEM, cached": Reader("m.safetensors", write_cached_reactions, read_cached_reactions),
    "Collins": text("c.tsv", EMAP, lambda p: collins.read_collins(p, resolver(), FileReport("c", p))),
    "Collins, as written": text("c.tsv", EMAP, lambda p: collins.read_collins(p, AsWritten(), FileReport("c", p))),
    "Costanzo": text(
        "SGA_NxN.txt", SGA, lambda p: costanzo.read_costanzo([p], resolver(), ImportReport("c")), "SGA_NxN.txt"
    ),
    "Kuzmin, scores": text(
        "s1.tsv", SGA, lambda p: kuzmin.read_scores([p], resolver(), ImportReport("k"), LINKAGE), "data_s1.tsv"
    ),
    "Kuzmin, trigenic calls": text(
        "k.tsv", CALLS, lambda p: kuzmin.read_trigenic_calls(p, resolver(), FileReport("k", p))
    ),
    "Kuzmin, digenic calls": text(
        "k.tsv", SIGNS, lambda p: kuzmin.read_digenic_calls(p, resolver(), FileReport("k", p))
    ),
    "table of genes": Reader(
        "genes.csv", NAMED, lambda p: graph_tables.read_graph(p.parent), True, beside=relation_beside
    ),
    "table of edges": Reader(
        "relations/p.csv", ARROWS, lambda p: graph_tables.read_graph(p.parent.parent), True, beside=genes_beside
    ),
    "table of experiments": text("my.csv", TABLE, tables.read_table),
    "table of experiments, tabs": text("my.tsv", TABLE.replace(",", "\t"), tables.read_table),
    "table of genotypes": text("my.csv", TABLE, tables.read_genotypes),
    "PyG samples": Reader("x.pt", write_samples, lambda p: Pyg().screen(p, ScreenOptions(), ImportReport("pyg"))),
    "record of torchcell": Reader(
        "r.json",
        json.dumps(EXPERIMENT),
        lambda p: torchcell.screen_of([("0", p.read_bytes())], p.parent, FileReport("t", p)),
    ),
    "table in Parquet": Reader("my.parquet", lambda p: sample_screen().save(p), tables.read_table),
    "list of genes": Reader("genes.txt", "YAL001C\nYAL002W\n", read_names),
    "cell graph": Reader("x.cellgraph", GRAPH.save, CellGraph.load),
    "split": Reader("x.split", lambda p: sample_split().save(p), Split.load),
    "screen": Reader("x.parquet", lambda p: sample_screen().save(p), Screen.load),
    "checkpoint": Reader("x.ckpt", lambda p: checkpoints.save(p, STATE), checkpoints.load),
    "mask store": Reader(
        "store/manifest.json", lambda p: create("stored-masks", GRAPH).prepare([[0]], p.parent), read_store
    ),
    "config of a run": Reader("config.yaml", run_config, config.load),
    "config of a run, without Hydra": Reader("config.yaml", run_config, plain_config.load_plain),
    "metrics of a run, curves": Reader("metrics.csv", METRICS, curves),
    "metrics of a run, resumed": Reader("metrics.csv", METRICS, lambda p: metrics_file.cut(p, 1)),
    "trace": text("t.json", TRACE, lambda p: summarise_file(p, Categories())),
    "trace rules": Reader("rules.toml", RULES, Categories),
    "profile": Reader("p.json", json.dumps(PROFILE), read_profile),
    "list of downloads": Reader("downloads.json", json.dumps(FETCHED), download.read_manifest),
}
"""Every reader of files. The records of a mask store, where a wrong byte could end the process, are damaged in one of
their own by ``tests/strategies/test_worker_and_stored.py``."""

SEALED = ("cell graph", "split", "checkpoint", "yeast-GEM, cached")
"""Those whose content is hashed, so that damage is hardly ever seen by what reads the document."""
