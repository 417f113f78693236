"""torchcell's experiment stores, written by hand as its queries write them."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from knockgraph import FileFormatError, Screen, ScreenError
from knockgraph.sources.presets import import_screen
from knockgraph.sources.report import ImportReport

lmdb = pytest.importorskip("lmdb")


def experiment(genes, phenotype, dataset="one") -> dict:
    perturbations = [
        {"systematic_gene_name": gene, "perturbed_gene_name": gene.lower(), "perturbation_type": kind}
        for gene, kind in genes.items()
    ]
    return {
        "experiment": {
            "experiment_type": "any",
            "dataset_name": dataset,
            "genotype": {"perturbations": perturbations},
            "environment": {"media": {"name": "YPD", "state": "solid"}},
            "phenotype": {"graph_level": "global", **phenotype},
        },
        "experiment_reference": {"dataset_name": dataset},
    }


def fitness(value, deviation=None) -> dict:
    return {
        "label_name": "fitness",
        "label_statistic_name": "fitness_std",
        "fitness": value,
        "fitness_std": deviation,
    }


def interaction(value, p_value) -> dict:
    return {
        "label_name": "gene_interaction",
        "label_statistic_name": "gene_interaction_p_value",
        "gene_interaction": value,
        "gene_interaction_p_value": p_value,
    }


A, B = {"YAL001C": "deletion"}, {"YAL001C": "deletion", "YBR002W": "damp"}
RECORDS = {
    "0": [experiment(A, fitness(0.5, 0.125))],
    "2": [experiment(B, fitness(0.25)), experiment(B, interaction(-0.5, 0.0625), "two"), experiment(B, fitness(0.375))],
    "10": [experiment({}, fitness(1.0))],
}
EXPECTED = Screen(
    [["YAL001C"], ["YAL001C", "YBR002W"], ["YAL001C", "YBR002W"], []],
    {"fitness": [0.5, 0.25, 0.375, 1.0], "gene_interaction": [np.nan, -0.5, np.nan, np.nan]},
    {
        "fitness": {"std": [0.125, np.nan, np.nan, np.nan]},
        "gene_interaction": {"p_value": [np.nan, 0.0625, np.nan, np.nan]},
    },
    ["one", "one+two", "one", "one"],
)


def write(folder: Path, records: dict, encode=lambda text: text) -> Path:
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=2**20) as env, env.begin(write=True) as store:
        for key, record in records.items():
            text = record if isinstance(record, bytes) else json.dumps(record).encode()
            store.put(key.encode(), encode(text))
    return folder


def imported(path: Path) -> tuple[Screen, ImportReport]:
    return import_screen("torchcell", path)


@pytest.mark.parametrize("place", ["processed/lmdb", "lmdb", "deduplication/lmdb", "raw/lmdb", "."])
def test_types_statistics_and_repeated_measurements(place, tmp_path):
    write(tmp_path / "data" / place, RECORDS)
    screen, report = imported(tmp_path / "data")
    assert screen == EXPECTED
    assert report.files[0].read == 3
    assert report.files[0].notes == ["perturbations other than deletions count as deletions, as in torchcell: 3 damp"]


def test_single_experiments_under_other_keys_and_compressed_ones(tmp_path):
    write(tmp_path / "raw", {f"data_{i}": RECORDS["0"][0] for i in range(11)})
    assert len(imported(tmp_path / "raw")[0]) == 11
    folder = write(tmp_path / "pool", RECORDS, zlib.compress)
    (folder / "STORE.json").write_text(json.dumps({"codec": "zlib", "n_pool": 3}))
    assert imported(tmp_path / "pool")[0] == EXPECTED


def test_as_earlier_versions_spell_it(tmp_path):
    phenotype = {"label": "fitness", "label_error": "fitness_std", "fitness": 0.5, "fitness_std": 0.125}
    write(tmp_path / "x", {"0": [experiment(A, phenotype)]})
    assert imported(tmp_path / "x")[0] == Screen(
        [["YAL001C"]], {"fitness": [0.5]}, {"fitness": {"std": [0.125]}}, "one"
    )


def at(degrees, **one) -> dict:
    one["experiment"]["environment"]["temperature"] = {"value": degrees, "unit": "Celsius"}
    return one


def test_several_environments_are_told_apart_by_the_source(tmp_path):
    """They were merged in silence."""
    records = {
        "1": [at(30.0, **experiment(A, fitness(0.5))), at(37.0, **experiment(A, fitness(0.25)))],
        "0": [at(30.0, **experiment(B, interaction(0.5, None))), at(37.0, **experiment(B, fitness(0.125), "two"))],
    }
    write(tmp_path / "x", records)
    screen, report = imported(tmp_path / "x")
    warm, hot = "(YPD solid 30 Celsius)", "(YPD solid 37 Celsius)"
    assert screen == Screen(
        [[*B], [*A], [*A]],
        {"gene_interaction": [0.5, np.nan, np.nan], "fitness": [0.125, 0.5, 0.25]},
        source=[f"one {warm}+two {hot}", f"one {warm}", f"one {hot}"],
    )
    assert report.files[0].notes[1] == (
        "experiments of 2 environments share their columns, as in torchcell; the source of each says which it is: "
        "YPD solid 30 Celsius (2) and YPD solid 37 Celsius (2)"
    )


def test_statistics_that_are_undefined_or_of_nothing(tmp_path):
    """A standard error of one measurement is infinite in torchcell, and the import was refused."""
    table = {"label_name": "size", "label_statistic_name": "size_cv", "size": {"a": 2.0}, "size_cv": {"b": 0.5}}
    records = [
        experiment(A, fitness(0.5, float("inf"))),
        experiment(A, fitness(0.25, float("nan"))),
        experiment(A, {"label_name": "viable", "viable": True}),
        experiment(A, table),
    ]
    write(tmp_path / "x", {"7": records})
    screen, report = imported(tmp_path / "x")
    assert screen == Screen(
        [[*A], [*A]],
        {"fitness": [0.5, 0.25], "viable": [1.0, np.nan], "size_a": [2.0, np.nan]},
        {"fitness": {"std": [np.nan, np.nan]}},
        "one",
    )
    assert report.files[0].notes == [
        "infinite statistics are taken for missing: 1",
        "statistics of which no phenotype has the name are left out: 1",
    ]


def test_tables_of_numbers(tmp_path):
    morphology = {
        "label_name": "calmorph",
        "label_statistic_name": "calmorph_cv",
        "calmorph": {"size": 2.0, "ratio": 0.5},
        "calmorph_cv": {"size": 0.25},
    }
    write(tmp_path / "x", {"0": [experiment(A, morphology)]})
    assert imported(tmp_path / "x")[0] == Screen(
        [["YAL001C"]], {"calmorph_size": [2.0], "calmorph_ratio": [0.5]}, {"calmorph_size": {"cv": [0.25]}}, "one"
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"\x80\x04K\x01.", "holds pickles, which may run code and are never read; load the dataset in Python"),
        (b"PK\x03\x04", "holds pickles, which may run code and are never read"),
        (b"{", r"record 0 of .* is not JSON .*; copy the store again"),
        ({"experiment": {}}, "is not an experiment of torchcell: it has no 'genotype'"),
        (
            [experiment(A, fitness("high"))],
            "is not an experiment of torchcell: a phenotype is 'high', which is no number",
        ),
        ([experiment(A, fitness(1)), experiment(B, fitness(1))], "holds experiments on 2 genotypes; aggregate them by"),
        ([], "holds experiments on 0 genotypes"),
        ([experiment(A, fitness(float("inf")))], "column 'fitness' is infinite at experiment 0"),
    ],
)
def test_refused(record, message, tmp_path):
    write(tmp_path / "x", {"0": record})
    with pytest.raises((FileFormatError, ScreenError), match=message):
        imported(tmp_path / "x")


def test_no_store_and_a_damaged_one(tmp_path):
    with pytest.raises(FileFormatError, match=r"there is no data\.mdb in it, in lmdb/ or in processed/lmdb/"):
        imported(tmp_path)
    folder = write(tmp_path / "x", RECORDS)
    (folder / "STORE.json").write_text('{"codec": "lzma"}')
    with pytest.raises(FileFormatError, match="names the codec 'lzma', but only none and zlib are known"):
        imported(folder)
    (folder / "STORE.json").write_text("{}")
    with pytest.raises(FileFormatError, match="does not say how the records are stored"):
        imported(folder)
    (folder / "STORE.json").unlink()
    content = (folder / "data.mdb").read_bytes()
    (folder / "data.mdb").write_bytes(content[:8192])
    with pytest.raises(FileFormatError, match=r"data\.mdb is shorter than it says"):
        imported(folder)
    (folder / "data.mdb").write_bytes(b"x" * 100)
    with pytest.raises(FileFormatError, match="is not a readable LMDB store"):
        imported(folder)
    write(tmp_path / "empty", {})
    with pytest.raises(FileFormatError, match="holds no experiments; is it the right folder"):
        imported(tmp_path / "empty")


def test_the_command(command, tmp_path):
    write(tmp_path / "processed" / "lmdb", RECORDS)
    out, _ = command("screen", "import", "torchcell", "--from", tmp_path, "-o", tmp_path / "x.parquet")
    assert "3 rows of lmdb → 4 experiments" in out
    assert "perturbations other than deletions count as deletions, as in torchcell: 3 damp" in out
    assert Screen.load(tmp_path / "x.parquet") == EXPECTED
