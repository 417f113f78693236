"""Prediction from a run directory: names, units, sources of genotypes, batches, strategies, refusals."""

import csv
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from training_runs import LEAST, Started, config

import knockgraph as kg
from knockgraph import predict
from knockgraph.run import train
from knockgraph.train import memory
from knockgraph.train.config import load
from knockgraph.train.data import TrainingData
from knockgraph.train.predictor import Predictor
from knockgraph.train.run import load_task

Command = Callable[..., tuple[str, str]]
GENES = kg.demo_cell().genes
A, B, C, D = GENES.names[3], GENES.names[40], GENES.names[100], GENES.names[200]
COLUMN = "predicted_gene_interaction"
ENDS = ["lower_gene_interaction", "upper_gene_interaction"]


def table(path: Path) -> list[tuple[list[str], float]]:
    read = pq.read_table(path)
    assert read.column_names == ["genotype", "standard", COLUMN, *ENDS]
    return list(zip(read["genotype"].to_pylist(), read[COLUMN].to_pylist(), strict=True))


def forward(directory: Path, genotypes: list[list[str]]) -> list[float]:
    """What the model itself says, in original units, one sample at a time; the interaction of the wild type is 0."""
    config, task = load_task(directory)
    values = []
    for genes in genotypes:
        batch = kg.PerturbationBatch.from_lists([GENES.index(genes).tolist()], len(GENES))
        with torch.no_grad():
            values.append(task(batch).values.double().item())
    values = [v * task.transform.scale.item() + task.transform.center.item() for v in values]
    known = config.data.phenotypes == ["gene_interaction"]
    return [0.0 if known and not g else v for g, v in zip(genotypes, values, strict=True)]


def printed(out: str) -> dict[str, float]:
    header, *lines = out.splitlines()
    assert header.split("\t")[0] == "genotype"
    return {line.split("\t")[0]: float(line.split("\t")[1]) for line in lines}


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("options", "zero"),
    [
        ((), (True, False, False)),
        (("data.zero_below=2",), (True, True, False)),
        (("data.zero_below=0",), (False, False, False)),
        (("data.phenotype=fitness",), (False, False, False)),
        (("task=classification", "loss=bce", "data.threshold=-0.1"), (False, False, False)),
    ],
)
def test_the_wild_type_does_not_interact(options: tuple[str, ...], zero: tuple[bool, ...], tmp_path: Path) -> None:
    """What is 0 by definition is predicted as exactly 0, in original units; training is as it was."""
    directory = train(config(f"run_dir={tmp_path / 'run'}", *options), say=lambda _: None)
    lines: list[str] = []
    predict.predict(directory, None, genes=["WT", A, f"{A},{B}"], say=lines.append)
    values = list(printed("\n".join(lines)).values())
    assert [value == 0.0 for value in values] == list(zero)


def test_named_genotypes(finished: Path, command: Command, tmp_path: Path) -> None:
    genotypes = [[A, B], [C], [], [A, B, C, D]]
    words = [word for genes in genotypes for word in ("--genes", ",".join(genes) or "WT")]
    command("predict", str(finished), *words, "-o", str(tmp_path / "out.parquet"), "--json", str(tmp_path / "out.json"))
    found = table(tmp_path / "out.parquet")
    assert [sorted(genes) for genes, _ in found] == [sorted(genes) for genes in genotypes]
    np.testing.assert_allclose([value for _, value in found], forward(finished, genotypes), rtol=1e-9)
    summary = json.loads((tmp_path / "out.json").read_text())
    about = {"genotypes": 4, "batch_size": 4, "column": COLUMN, "output": str(tmp_path / "out.parquet")}
    assert {key: summary[key] for key in about} == about
    assert summary["coverage"] == 0.9
    assert [one["prediction"] for one in summary["predictions"]] == [value for _, value in found]
    assert [sorted(one["genotype"]) for one in summary["predictions"]] == [sorted(genes) for genes in genotypes]
    shown = printed(command("predict", str(finished), *words)[0])
    assert list(shown) == [f"{A}+{B}", C, "WT", f"{A}+{B}+{C}+{D}"]
    np.testing.assert_allclose(list(shown.values()), [value for _, value in found], rtol=1e-5)


def test_original_units(finished: Path, tmp_path: Path) -> None:
    """The test part's predictions of training, in the phenotype's own units, are those of predict."""
    written = pq.read_table(finished / "predictions.parquet")
    out = tmp_path / "out.parquet"
    predict.predict(finished, out, screen=finished / "predictions.parquet", say=lambda _: None)
    assert [genes for genes, _ in table(out)] == written["genotype"].to_pylist()
    np.testing.assert_allclose([value for _, value in table(out)], written[COLUMN].to_numpy(), rtol=1e-9)
    screen = kg.demo_screen(160)
    measured = screen.phenotypes["gene_interaction"][written["experiment"].to_numpy()]
    np.testing.assert_allclose(written["measured_gene_interaction"].to_numpy(), measured, rtol=1e-6)
    for row, genes in zip(written["experiment"].to_pylist(), written["genotype"].to_pylist(), strict=True):
        assert list(screen.genotypes[row]) == genes


def test_names_of_genes(finished: Path, command: Command) -> None:
    other = next(name for name in GENES.names if GENES.aliases.get(name, ("",))[0])
    alias = GENES.aliases[other][0]
    expected = printed(command("predict", str(finished), "--genes", f"{A},{other}")[0])
    for text in (f"{A},{alias}", f"{A.lower()},{alias.lower()}", f" {other} , {A} ", f"{A},{other},{A},{alias}"):
        assert printed(command("predict", str(finished), "--genes", text)[0]) == expected, text


def test_unknown_genes_are_all_listed(finished: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    _, err = command("predict", str(finished), "--genes", f"{A},NOPE1", "--genes", "NOPE2", "-o", str(out), code=1)
    assert "'NOPE1'" in err
    assert "'NOPE2'" in err
    (tmp_path / "t.csv").write_text(f"genotype\n{A}+NOPE3\nNOPE4\n")
    _, err = command("predict", str(finished), "--screen", str(tmp_path / "t.csv"), "-o", str(out), code=1)
    assert "'NOPE3'" in err
    assert "'NOPE4'" in err
    (tmp_path / "genes.txt").write_text(f"{A}\nNOPE5\nNOPE6\n")
    _, err = command("predict", str(finished), "--all-pairs", str(tmp_path / "genes.txt"), "-o", str(out), code=1)
    assert "'NOPE5'" in err
    assert "'NOPE6'" in err
    assert not out.exists()


@pytest.mark.parametrize("text", ["", " ", ",", "A,", ",A", "A,,B"])
def test_an_empty_name_is_no_wild_type(finished: Path, command: Command, text: str) -> None:
    _, err = command("predict", str(finished), "--genes", text, code=1)
    assert "has an empty gene name" in err or "the genotype is empty" in err
    assert "WT" in err


def test_genes_are_joined_by_any_usual_sign(finished: Path, command: Command) -> None:
    lines = {command("predict", str(finished), "--genes", f"{A}{sign}{B}")[0] for sign in (",", "+", "|", " + ")}
    assert len(lines) == 1
    assert lines.pop().splitlines()[1].startswith("+".join(sorted([A, B], key=GENES.names.index)))


def test_one_genotype_is_one(finished: Path, command: Command, tmp_path: Path) -> None:
    out, _ = command("predict", str(finished), "--genes", A, "-o", str(tmp_path / "p.csv"))
    assert ": 1 genotype, column" in out


def test_two_names_of_a_gene_are_one_gene(finished: Path, command: Command, tmp_path: Path) -> None:
    other = next(name for name in GENES.aliases[A] if name)
    expected, _ = command("predict", str(finished), "--genes", A)
    assert command("predict", str(finished), "--genes", f"{A}+{other.lower()}")[0] == expected
    (tmp_path / "genes.txt").write_text(f"{A}\n{other}\n{other.lower()}\n{B}\n")
    out, _ = command("predict", str(finished), "--all-pairs", str(tmp_path / "genes.txt"))
    assert len(out.splitlines()) == 2
    (tmp_path / "s.csv").write_text(f"genotype\n{A}+{other}\n")
    assert command("predict", str(finished), "--screen", str(tmp_path / "s.csv"))[0] == expected


def test_exactly_one_source(finished: Path, command: Command, tmp_path: Path) -> None:
    for words in ([], ["--genes", A, "--screen", "x.csv"]):
        assert "give exactly one of --genes" in command("predict", str(finished), *words, code=1)[1]
    (tmp_path / "genes.txt").write_text("\n".join(GENES.names[:30]))
    _, err = command("predict", str(finished), "--all-pairs", str(tmp_path / "genes.txt"), code=1)
    assert "435 genotypes are too many to print; write them to a file with -o FILE" in err


def test_tables(finished: Path, tmp_path: Path) -> None:
    genotypes = [[A, B], [], [C], [A, B]]
    expected = forward(finished, genotypes)
    kg.Screen(genotypes, {"fitness": [1.0, 1.0, np.nan, 0.5]}).save(tmp_path / "screen.parquet")
    texts = ["+".join(genes) or "WT" for genes in genotypes]
    (tmp_path / "table.csv").write_text("note,genotype\n" + "".join(f"x,{text}\n" for text in texts))
    (tmp_path / "table.tsv").write_text("genotype\tfitness\n" + "".join(f"{text}\t1\n" for text in texts))
    pq.write_table(pa.table({"genotype": texts, "extra": [1, 2, 3, 4]}), tmp_path / "texts.parquet")
    pq.write_table(pa.table({"genotype": pa.array(genotypes, pa.list_(pa.string()))}), tmp_path / "lists.parquet")
    for name in ("screen.parquet", "table.csv", "table.tsv", "texts.parquet", "lists.parquet"):
        out = tmp_path / "out.parquet"
        predict.predict(finished, out, screen=tmp_path / name, say=lambda _: None)
        found = table(out)
        assert [sorted(genes) for genes, _ in found] == [sorted(genes) for genes in genotypes], name
        np.testing.assert_allclose([value for _, value in found], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("no.csv", None, "there is no such file"),
        ("no.parquet", None, "there is no such file"),
        ("bad.csv", "weight,fitness\nA,1\n", "has no column 'genotype'"),
        ("bad.csv", f"genotype\n{A}++{B}\n", "has an empty gene name"),
        ("bad.parquet", "text", "is not a readable screen"),
    ],
)
def test_bad_tables(
    finished: Path, command: Command, tmp_path: Path, name: str, content: str | None, text: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    _, err = command(
        "predict", str(finished), "--screen", str(tmp_path / name), "-o", str(tmp_path / "o.parquet"), code=1
    )
    assert text in err
    assert not (tmp_path / "o.parquet").exists()


@pytest.mark.parametrize(("option", "k"), [("--all-pairs", 2), ("--all-triples", 3)])
def test_all_combinations(finished: Path, command: Command, tmp_path: Path, option: str, k: int) -> None:
    chosen = [A, B, C, D, GENES.names[7]]
    (tmp_path / "genes.txt").write_text("\n".join([*chosen, "", A.lower(), "  "]))  # named twice, blank lines
    out = tmp_path / "out.parquet"
    command("predict", str(finished), option, str(tmp_path / "genes.txt"), "-o", str(out))
    found = table(out)
    assert len(found) == math.comb(5, k)
    assert {frozenset(genes) for genes, _ in found} == {frozenset(s) for s in itertools.combinations(chosen, k)}
    np.testing.assert_allclose(
        [value for _, value in found], forward(finished, [genes for genes, _ in found]), rtol=1e-9
    )
    (tmp_path / "genes.txt").write_text(A)
    _, err = command("predict", str(finished), option, str(tmp_path / "genes.txt"), "-o", str(out), code=1)
    assert f"names 1 genes, but {k} are needed" in err
    assert "no such file" in command("predict", str(finished), option, str(tmp_path / "no"), "-o", str(out), code=1)[1]


def test_combinations_are_lazy(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All triples of 360 genes are 7.7 million; nothing of that size is ever made, and batches are taken one by one."""
    (tmp_path / "genes.txt").write_text("\n".join(GENES.names))
    graph = kg.demo_cell()
    genotypes, total, dosed = predict._genotypes(graph, None, None, None, tmp_path / "genes.txt")
    assert (total, dosed) == (math.comb(360, 3), False)
    assert isinstance(genotypes, Iterator)
    assert next(iter(genotypes)) == ((0, 1, 2), None)

    waiting, asked = [], 0
    flush = predict._flush

    def watched(writer: Any, schema: Any, graph: Any, found: list[predict.Predicted]) -> int:
        waiting.append(sum(len(one.genotypes) for one in found))
        return flush(writer, schema, graph, found)

    def batches() -> predict.Batches:
        nonlocal asked
        for rows in itertools.batched(genotypes, 5000) if hasattr(itertools, "batched") else _batched(genotypes, 5000):
            asked += len(rows)
            assert asked - sum(waiting) <= 65_536 + 5000  # at most so many stand in memory
            yield predict.Predicted(list(rows), np.full((len(rows), 1), 0.5))
            if asked >= 200_000:
                return

    monkeypatch.setattr(predict, "_flush", watched)
    written = predict._stream(tmp_path / "out.parquet", graph, [COLUMN], batches())
    assert written == asked == sum(waiting) == pq.read_metadata(tmp_path / "out.parquet").num_rows
    assert len(waiting) == 3


def _batched(rows: Any, n: int) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(rows, n)):
        yield chunk


def test_doses(finished: Path, tmp_path: Path) -> None:
    """A run that was trained on deletions predicts any dose; the table that it writes is read again as the same."""
    said: list[str] = []
    predict.predict(finished, None, genes=[f"{A}=0.3,{B}", f"{A} + {B}", f"{A}=1+{B}+{C}"], say=said.append)
    found = printed("\n".join(said))
    batch = kg.PerturbationBatch.from_lists([GENES.index([A, B]).tolist()], len(GENES), values=[[0.3, 0.0]])
    _, task = load_task(finished)
    with torch.no_grad():
        expected = task(batch).values.double().item() * task.transform.scale.item() + task.transform.center.item()
    assert list(found) == [f"{A}=0.3+{B}", f"{A}+{B}", f"{A}=1+{B}+{C}"]
    assert found[f"{A}=0.3+{B}"] == pytest.approx(expected, abs=1e-5)
    assert found[f"{A}=0.3+{B}"] != pytest.approx(found[f"{A}+{B}"], abs=1e-5)
    assert found[f"{A}=1+{B}+{C}"] == pytest.approx(forward(finished, [[B, C]])[0], abs=1e-5)

    (tmp_path / "in.csv").write_text(f"genotype\n{A}=0.3+{B}\n{A}+{B}\n{A}=0.5\n{A}=1+{B}\n")
    for strategy in (None, "lazy-mask", "stored-masks"):
        out = tmp_path / "out.csv"
        predict.predict(finished, out, screen=tmp_path / "in.csv", strategy=strategy, say=lambda _: None)
        rows = list(csv.DictReader(out.read_text().splitlines()))
        assert [row["genotype"] for row in rows] == [f"{A}=0.3+{B}", f"{A}+{B}", f"{A}=0.5", f"{A}=1+{B}"]
        assert float(rows[0][COLUMN]) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(kg.StrategyError, match="the strategy neighborhood shows deletions only"):
        predict.predict(finished, None, genes=[f"{A}=0.3"], strategy="neighborhood", say=lambda _: None)
    for text, why in ((f"{A}=-1", "has the value -1, but a value is finite"), (f"{A}=0.3+{A}", "one gene two values")):
        with pytest.raises(kg.KnockgraphError, match=why):
            predict.predict(finished, None, genes=[text], say=lambda _: None)


def test_the_batch_size_does_not_matter(finished: Path, tmp_path: Path) -> None:
    found = {}
    for size in (None, 1, 7, 1000):
        out = tmp_path / "out.parquet"
        predict.predict(finished, out, screen=finished / "predictions.parquet", batch_size=size, say=lambda _: None)
        found[size] = [value for _, value in table(out)]
    for values in found.values():
        np.testing.assert_allclose(values, found[1], rtol=1e-9)


def test_the_batch_size_is_what_fits(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, task = load_task(finished)
    step = predict._step(task, len(GENES))
    sizes = []
    for share in (0.0, 1.0, 3.0, 20.0, 1e6):
        room = int(share * memory.predict_peak(step, 10))
        monkeypatch.setattr(memory, "available_bytes", lambda _, room=room: int(room / predict._SHARE_OF_MEMORY))
        sizes.append(predict.choose_batch_size(task, len(GENES), 10_000))
    assert sizes[0] == 1
    assert 8 <= sizes[1] <= 12
    assert sizes[1] < sizes[2] < sizes[3] < sizes[4] == 512
    assert predict.choose_batch_size(task, len(GENES), 3) == 3


@pytest.mark.parametrize("strategy", kg.strategies.available())
def test_any_strategy_predicts_the_same(finished: Path, strategy: str, tmp_path: Path) -> None:
    genotypes = [A, "WT", f"{A},{B},{C}", D]
    said: list[str] = []
    out = tmp_path / "out.parquet"
    predict.predict(finished, out, genes=genotypes, strategy=strategy, batch_size=3, say=said.append)
    expected = forward(finished, [[A], [], [A, B, C], [D]])
    np.testing.assert_allclose([value for _, value in table(out)], expected, rtol=1e-9)
    assert not any("approximate" in text for text in said)  # two layers, and neighborhood recomputes two hops


def test_an_approximate_strategy_says_so(tmp_path: Path, command: Callable[..., tuple[str, str]]) -> None:
    """Exactness is a property of strategy and model: told by training, evaluation and prediction, and in the report."""
    directory = tmp_path / "run"
    options = [
        "model=hetero-small",
        "model.options.channels=4",
        "model.options.messages.layers=2",
        "model.options.messages.conv=gcn",
    ]
    said: list[str] = []
    train(config(f"run_dir={directory}", *options, "strategy=neighborhood"), say=said.append)
    note = "the strategy neighborhood is approximate with these options: the model hetero reaches 3 hops"
    assert any(note in text for text in said)
    assert note in " ".join(command("evaluate", str(directory))[0].split())
    out, err = command("predict", str(directory), "--genes", A)
    assert note in " ".join(err.split())
    assert out.startswith("genotype\t")
    assert note.capitalize() in (directory / "report.html").read_text()
    assert json.loads((directory / "result.json").read_text())["approximation"].startswith(note)
    assert "approximate" not in command("predict", str(directory), "--genes", A, "--strategy", "node-mask")[0]


@pytest.mark.usefixtures("no_page")
def test_a_strategy_that_was_told_too_few_layers_is_refused(tmp_path: Path) -> None:
    options = [
        "model=hetero-small",
        "model.options.channels=4",
        "model.options.messages.layers=3",
        "strategy=neighborhood",
    ]
    options += ["strategy.options.hops=1", "strategy.options.layers=1"]
    with pytest.raises(kg.StrategyError, match=r"given layers=1, but this model reaches 3 hops.*set hops=3"):
        train(config(f"run_dir={tmp_path / 'run'}", *options), say=lambda _: None)


@pytest.mark.usefixtures("no_page")
def test_a_deletion_means_the_same_with_another_strategy(tmp_path: Path) -> None:
    """A model that trained with ``direction=in`` must not be asked about another kind of deletion."""
    options = [
        "model=hetero-small",
        "model.options.channels=4",
        "model.options.messages.layers=1",
        "strategy.options.direction=in",
    ]
    options += ["trainer.precision=64-true", "data.transform=none"]
    directory = train(config(f"run_dir={tmp_path}/run", *options), say=lambda _: None)
    found = []
    for strategy in (None, "lazy-mask"):
        predict.predict(directory, tmp_path / "o.parquet", genes=[f"{A},{B}"], strategy=strategy, say=lambda _: None)
        found.append(table(tmp_path / "o.parquet")[0][1])
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.usefixtures("no_page")
def test_a_run_of_a_stored_strategy_predicts(tmp_path: Path) -> None:
    options = [
        "model=hetero-small",
        "model.options.channels=4",
        "model.options.messages.layers=1",
        "strategy=stored-masks",
    ]
    options.append("trainer.precision=64-true")
    directory = train(config(f"run_dir={tmp_path}/run", *options), say=lambda _: None)
    shutil.rmtree(directory / "store")
    predict.predict(directory, tmp_path / "a.parquet", genes=[f"{A},{B}", "WT"], say=lambda _: None)
    predict.predict(
        directory, tmp_path / "b.parquet", genes=[f"{A},{B}", "WT"], strategy="node-mask", say=lambda _: None
    )
    values = [[value for _, value in table(tmp_path / name)] for name in ("a.parquet", "b.parquet")]
    np.testing.assert_allclose(*values, rtol=1e-9)


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("strategy", ["stored-indices", "stored-masks"])
def test_a_run_of_a_stored_strategy_without_perturbed_graphs(strategy: str, tmp_path: Path, command: Command) -> None:
    """The wild type alone is asked for in this process; the run was not prepared for that when it was tested."""
    train(config(f"run_dir={tmp_path}/run", f"strategy={strategy}"), say=lambda _: None)
    assert (tmp_path / "run" / "result.json").is_file()
    command("evaluate", str(tmp_path / "run"))
    assert command("predict", str(tmp_path / "run"), "--genes", "WT")[0].splitlines()[1].startswith("WT\t")


@pytest.mark.usefixtures("no_page")
def test_classes_are_probabilities(tmp_path: Path, command: Command) -> None:
    options = ["task=classification", "loss=bce", "data.threshold=-0.1", "data.experiments=300"]
    directory = train(config(f"run_dir={tmp_path}/run", *options), say=lambda _: None)
    command("predict", str(directory), "--genes", f"{A},{B}", "-o", str(tmp_path / "o.parquet"))
    read = pq.read_table(tmp_path / "o.parquet")
    assert read.column_names == ["genotype", "standard", f"{COLUMN}_probability"]
    batch = kg.PerturbationBatch.from_lists([GENES.index([A, B]).tolist()], len(GENES))
    logit = load_task(directory)[1](batch).values.item()
    assert read[f"{COLUMN}_probability"][0].as_py() == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-6)


def other_edges() -> kg.CellGraph:
    graph = kg.demo_cell()
    relations = {name: r.edge_index[:, : -2 if name == "physical" else None] for name, r in graph.relations.items()}
    return kg.CellGraph(graph.genes, relations, graph.metabolism, graph.features)


def other_genes() -> kg.CellGraph:
    graph = kg.demo_cell()
    names = [graph.genes.names[1], graph.genes.names[0], *graph.genes.names[2:]]
    relations = {name: r.edge_index for name, r in graph.relations.items()}
    return kg.CellGraph(names, relations, graph.metabolism, graph.features)


@pytest.mark.parametrize("make", [other_edges, other_genes])
def test_a_checkpoint_of_another_graph(finished: Path, tmp_path: Path, command: Command, make: Any) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    make().save(directory / "cell.cellgraph")
    for arguments in (
        ["predict", str(directory), "--genes", A],
        ["evaluate", str(directory)],
        ["train", f"run_dir={directory}", "resume=true", "trainer.max_epochs=3"],
    ):
        _, err = command(*arguments, code=1)
        assert "was trained on another cell graph" in err, arguments
        assert err.count("\n") == 1


def test_a_run_that_ended_before_its_first_validation_predicts_with_its_last_state(
    tmp_path: Path, command: Command
) -> None:
    directory, said = tmp_path / "run", []
    train(config(f"run_dir={directory}", *LEAST, "trainer.max_steps=2"), say=said.append)
    assert any("ended before its first validation, so its last state is tested" in text for text in said)
    out, err = command("predict", str(directory), "--genes", A)
    assert "has not validated, so there is no checkpoint best-error; its last state predicts" in " ".join(err.split())
    assert out.startswith("genotype\tgene_interaction\tlower\tupper\tstandard\n")  # with the intervals of that state
    assert command("predict", str(directory), "--genes", A, "--checkpoint", "last")[0] == out
    assert "has no checkpoint 'best-score'; it has last" in command(
        "predict", str(directory), "--genes", A, "--checkpoint", "best-score", code=1
    )[1].replace("and previous", "")
    command("evaluate", str(directory))
    command("explain", str(directory), "--genes", A)


def test_more_deletions_than_training_has(finished: Path, command: Command) -> None:
    """What a model says about them was never tested; what follows from a definition needs no test."""
    known = "training has only genotypes with 1, 2 and 3 deleted genes: expect less of predictions for"
    for genotypes, said in (([f"{A}+{B}", "WT"], None), ([f"{A}+{B}+{C}+{D}", A], f"note: {known} 4 genes")):
        words = [word for genotype in genotypes for word in ("--genes", genotype)]
        err = " ".join(command("predict", str(finished), *words)[1].split())
        assert "training has only" not in err if said is None else said in err


@pytest.mark.usefixtures("no_page")
def test_genes_that_training_never_deleted_are_named(tmp_path: Path, command: Command) -> None:
    directory = tmp_path / "run"
    train(config(f"run_dir={directory}", *LEAST), say=lambda _: None)
    data = TrainingData.from_directory(load(directory / "config.yaml"), directory)
    deleted = data.deleted("train").tolist()
    names, standard = data.graph.genes.names, data.graph.genes.standard
    known = [gene for gene, was in enumerate(deleted) if was]
    new = [gene for gene, was in enumerate(deleted) if not was]
    assert "never deleted" not in command("predict", str(directory), "--genes", names[known[0]])[1]
    genotype = f"{names[new[0]]}+{names[new[1]]}+{names[known[0]]}"
    for words in (("predict", str(directory), "--genes", genotype), ("explain", str(directory), "--genes", genotype)):
        err = " ".join(command(*words)[1].split())
        assert f"note: 2 genes were never deleted in training ({standard(new[0])} and {standard(new[1])})" in err
        assert "a run with the split unseen-genes says how good they are" in err
    fitted = kg.load(directory)
    with pytest.warns(UserWarning, match=rf"1 gene was never deleted in training \({standard(new[0])}\): expect less"):
        fitted.predict([[names[new[0]], names[known[0]]]])
    with pytest.warns(UserWarning, match=r"never deleted in training"):
        fitted.explain([names[new[0]]])
    with pytest.warns(UserWarning, match=r"3 genes were never deleted in training"):
        fitted.candidates(top=3, genes=[names[gene] for gene in new[:3]])


def test_unknown_names_of_a_table_can_be_left_out(finished: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "new.csv").write_text(f"gene_a,gene_b\n{A},{B}\n{A},YFG1\n{C},\n")
    words = ("predict", str(finished), "--screen", tmp_path / "new.csv")
    err = " ".join(command(*words, code=1)[1].split())
    assert "'YFG1'" in err
    assert "leave their genotypes out with --unknown drop" in err
    out, err = command(*words, "--unknown", "drop")
    assert list(printed(out)) == [f"{A}+{B}", C]
    assert "note: left out 1 genotype with unknown genes (YFG1)" in err
    assert "use error or drop" in command(*words, "--unknown", "skip", code=1)[1]
    (tmp_path / "new.csv").write_text("genotype\nYFG1\n")
    assert "nothing left to predict" in command(*words, "--unknown", "drop", code=1)[1]


def test_no_words_at_all(command: Command) -> None:
    _, err = command("predict", code=2)
    assert "Missing argument" in err


def test_missing_parts_of_a_run(finished: Path, tmp_path: Path, command: Command) -> None:
    assert "is not a run directory" in command("predict", str(tmp_path / "no"), "--genes", A, code=1)[1].replace(
        f"is {tmp_path / 'no'} a run", "is not a run"
    )
    _, err = command("predict", str(finished), "--genes", A, "--checkpoint", "best", code=1)
    assert "has no checkpoint 'best'; it has best-error, best-score, last" in err
    directory = shutil.copytree(finished, tmp_path / "run")
    (directory / "cell.cellgraph").unlink()
    assert "cannot read" in command("predict", str(directory), "--genes", A, code=1)[1]
    (directory / "checkpoints" / "best-error.ckpt").unlink()
    assert "has no checkpoint 'best-error'" in command("predict", str(directory), "--genes", A, code=1)[1]
    assert (
        "--device 'tpu' is not known" in command("predict", str(finished), "--genes", A, "--device", "tpu", code=1)[1]
    )
    assert (
        "there is no strategy 'fast'"
        in command("predict", str(finished), "--genes", A, "--strategy", "fast", code=1)[1]
    )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory(
    finished: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    whole = Predictor.forward

    def limited(self: Predictor, batch: kg.PerturbationBatch) -> Any:
        if batch.num_samples > 4:
            raise error
        return whole(self, batch)

    monkeypatch.setattr(Predictor, "forward", limited)
    out = tmp_path / "out.parquet"
    out.write_text("what was there before")
    words = ["--screen", str(finished / "predictions.parquet"), "-o", str(out), "--batch-size", "6"]
    _, err = command("predict", str(finished), *words, "--strategy", "lazy-mask", code=1)
    assert err.startswith("error: out of memory on cpu with batch size 6 and strategy lazy-mask, predicted ")
    assert err.count(" GB") == 2
    assert "available" in err
    assert "use a smaller batch size or the strategy node-mask" in err
    assert err.count("\n") == 1
    assert out.read_text() == "what was there before"
    assert [p.name for p in tmp_path.iterdir()] == ["out.parquet"]
    command("predict", str(finished), *words[:-1], "4")
    assert table(out)


def test_a_failure_leaves_no_half_written_file(
    finished: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    whole = Predictor.forward

    def failing(self: Predictor, batch: kg.PerturbationBatch) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("the third batch fails")
        return whole(self, batch)

    monkeypatch.setattr(Predictor, "forward", failing)
    words = ["--screen", str(finished / "predictions.parquet"), "--batch-size", "2"]
    _, err = command("predict", str(finished), *words, "-o", str(tmp_path / "out.parquet"), code=70)
    assert "the third batch fails" in err
    assert not list(tmp_path.iterdir())
    _, err = command("predict", str(finished), *words, "-o", str(tmp_path / "no" / "out.parquet"), code=1)
    assert "does not exist; create it first" in err


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_text_files(finished: Path, command: Command, tmp_path: Path, suffix: str, separator: str) -> None:
    """A name that ends in .csv once held Parquet."""
    graph = kg.CellGraph.load(finished / "cell.cellgraph")
    one, other = graph.genes.names[:2]
    out = tmp_path / f"out{suffix}"
    command("predict", str(finished), "--genes", f"{one},{other}", "--genes", other, "-o", str(out))
    lines = list(csv.reader(out.read_text().splitlines(), delimiter=separator))
    assert lines[0] == ["genotype", "standard", COLUMN, *ENDS]
    assert [line[0] for line in lines[1:]] == [f"{one}+{other}", other]
    assert [line[1] for line in lines[1:]] == ["+".join(map(graph.genes.standard, rows)) for rows in ((0, 1), (1,))]
    assert [float(line[2]) for line in lines[1:]] == pytest.approx(forward(finished, [[one, other], [other]]), rel=1e-5)
    again = tmp_path / "again.parquet"
    predict.predict(finished, again, screen=out, say=lambda _: None)  # and it is a table that can be predicted from
    assert [row for row, _ in table(again)] == [[one, other], [other]]


def test_a_name_says_what_is_written(finished: Path, command: Command, tmp_path: Path) -> None:
    _, err = command("predict", str(finished), "--genes", "WT", "-o", str(tmp_path / "out.xlsx"), code=1)
    assert "the name must end in .parquet, .csv or .tsv" in err
    assert not list(tmp_path.iterdir())


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("number", [4, pytest.param(20, marks=pytest.mark.full)])
def test_many_at_once(finished: Path, number: int, tmp_path: Path) -> None:
    """They read the run and write nothing there."""
    before = contents(finished)
    words = ["predict", str(finished), "--genes", f"{A},{B}", "-o"]
    started = [Started(*words, str(tmp_path / f"{i}.csv")) for i in range(number)]
    for process in started:
        process.wait()
    assert len({(tmp_path / f"{i}.csv").read_bytes() for i in range(number)}) == 1
    assert contents(finished) == before


def test_the_foremost_pairs(finished: Path, command: Command, tmp_path: Path) -> None:
    """Of all pairs, those farthest from the wild type, without the measured ones; the same as sorting everything."""
    chosen = list(GENES.names[:40])
    (tmp_path / "genes.txt").write_text("\n".join(chosen))
    out = tmp_path / "all.parquet"
    predict.predict(finished, out, all_pairs=tmp_path / "genes.txt", say=lambda _: None)
    measured = {frozenset(genes) for genes in kg.demo_screen(160).genotypes}
    every = [(frozenset(genes), value) for genes, value in table(out)]
    fresh = [pair for pair in every if pair[0] not in measured]
    assert 0 < len(fresh) < len(every)
    keys = {"extreme": lambda p: -abs(p[1]), "lowest": lambda p: p[1], "highest": lambda p: -p[1]}
    for order, key in keys.items():
        top = ["--top", "7", "--new", "--order", order, "--batch-size", "50", "-o", str(out)]
        command("predict", str(finished), "--all-pairs", str(tmp_path / "genes.txt"), *top)
        assert [(frozenset(genes), value) for genes, value in table(out)] == [
            (pair[0], pytest.approx(pair[1], rel=1e-9)) for pair in sorted(fresh, key=key)[:7]
        ]
    shown, _ = command("predict", str(finished), "--all-pairs", str(tmp_path / "genes.txt"), "--top", "30")
    assert len(shown.splitlines()) == 31


def test_pieces_of_another_prediction(
    finished: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prediction that was stopped takes up its pieces: not those of genes that the file named before."""
    words = ["predict", str(finished), "--all-pairs", str(tmp_path / "genes.txt"), "--batch-size", "50"]
    other, out = tmp_path / "other.parquet", tmp_path / "out.parquet"
    (tmp_path / "genes.txt").write_text("\n".join(GENES.names[10:26]))
    command(*words, "-o", str(other))
    monkeypatch.setattr(predict, "_PIECE", 50)
    whole, calls = predict._stream, itertools.count()

    def stopped(*given: Any) -> int:
        if next(calls) == 2:
            raise kg.KnockgraphError("stopped")
        return whole(*given)

    monkeypatch.setattr(predict, "_stream", stopped)
    (tmp_path / "genes.txt").write_text("\n".join(GENES.names[:16]))
    assert "stopped" in command(*words, "-o", str(out), code=1)[1]
    for option in (["--precision", "bf16"], ["--strategy", "neighborhood"], ["--coverage", "0.8"]):
        assert "holds pieces of another prediction" in command(*words, *option, "-o", str(out), code=1)[1]
    command(*words, "-o", str(out))
    assert next(calls) == 4  # two pieces were there, the third was left
    assert not (tmp_path / "out.parquet.parts").exists()
    folder = tmp_path / "out.parquet.parts"
    folder.mkdir()
    (folder / "about.json").write_text("{")
    assert "holds pieces of another prediction" in command(*words, "-o", str(out), code=1)[1]
    shutil.rmtree(folder)
    calls = itertools.count()
    assert "stopped" in command(*words, "-o", str(out), code=1)[1]
    (tmp_path / "genes.txt").write_text("\n".join(GENES.names[10:26]))
    command(*words, "-o", str(out))
    assert [genes for genes, _ in table(out)] == [genes for genes, _ in table(other)]


def test_all_pairs_of_the_graph(finished: Path, command: Command, tmp_path: Path) -> None:
    """Without a file, wherever the option stands on the line."""
    genotypes, total, _ = predict._genotypes(kg.demo_cell(), None, None, "graph", None)
    assert total == math.comb(360, 2)
    assert next(iter(genotypes)) == ((0, 1), None)
    for words in (["--all-pairs", "--top", "0"], ["--top", "0", "--all-pairs"]):
        assert "top is 0; ask for at least one" in command("predict", str(finished), *words, code=1)[1]
    assert "too many to print" in command("predict", str(finished), "--all-triples", code=1)[1]
    _, err = command("predict", str(finished), "--all-triples", "--json", str(tmp_path / "o.json"), code=1)
    assert "7,711,320 predictions are too many for --json" in err
    _, err = command("predict", str(finished), "--genes", A, "--top", "1", "--phenotype", "fitnes", code=1)
    assert "this run does not predict 'fitnes'" in err
    _, err = command("predict", str(finished), "--genes", A, "--top", "1", "--order", "best", code=1)
    assert "there is no order 'best'; use extreme, lowest, highest" in err


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_long_prediction_goes_on_where_it_stopped(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """In pieces, with an interruption, the file is the same; finished pieces are not predicted again."""
    (tmp_path / "genes.txt").write_text("\n".join(GENES.names[:12]))
    expected, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    options: dict[str, Any] = {"all_pairs": tmp_path / "genes.txt", "batch_size": 5, "say": lambda _: None}
    predict.predict(finished, expected, **options)
    monkeypatch.setattr(predict, "_PIECE", 25)
    asked: list[int] = []
    forward = predict._forward

    def stops(task: Any, batch: kg.PerturbationBatch) -> Any:
        asked.append(batch.num_samples)
        if sum(asked) == 45:
            raise KeyboardInterrupt
        return forward(task, batch)

    monkeypatch.setattr(predict, "_forward", stops)
    with pytest.raises(KeyboardInterrupt):
        predict.predict(finished, out, **options)
    assert not out.exists()
    with pytest.raises(kg.KnockgraphError, match="holds pieces of another prediction"):
        predict.predict(finished, out, **{**options, "new": True})
    asked.clear()
    monkeypatch.setattr(
        predict, "_forward", lambda task, batch: asked.append(batch.num_samples) or forward(task, batch)
    )
    predict.predict(finished, out, **options)
    assert sum(asked) == 66 - 25
    assert sorted(path.name for path in tmp_path.iterdir()) == ["genes.txt", out.name, expected.name]
    if suffix == ".parquet":
        assert pq.read_table(out).equals(pq.read_table(expected))
    else:
        assert out.read_text() == expected.read_text()
