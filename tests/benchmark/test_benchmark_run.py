"""The benchmark on a small screen with planted modules: resumed, permuted, chosen by validation."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

from knockgraph import CellGraph, Screen
from knockgraph.benchmark.cells import run_all
from knockgraph.benchmark.files import as_screen_file
from knockgraph.benchmark.plan import TRAP, Cell, cells, own_screen
from knockgraph.benchmark.run import run
from knockgraph.errors import ConfigError
from knockgraph.evaluate import predict_rows


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """72 genes in 12 modules; a network connects a module, and interactions are those of the modules."""
    folder, random, n, modules = tmp_path_factory.mktemp("planted"), default_rng(0), 72, 12
    module = np.arange(n) % modules
    first, second = np.triu_indices(n, 1)
    inside = module[first] == module[second]
    edges = np.stack([first[inside], second[inside]])
    names = [f"G{k:02d}" for k in range(n)]
    CellGraph(names, {"module": np.concatenate([edges, edges[::-1]], 1)}).save(folder / "cell.cellgraph")
    block = random.normal(size=(modules, modules))
    block = block + block.T
    block = block - block.mean(0) - block.mean(1)[:, None] + block.mean()  # single genes have no effect
    y = block[module[first], module[second]] + 0.3 * random.normal(size=len(first))
    pairs = [[names[a], names[b]] for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    Screen(pairs, {"gene_interaction": y}).save(folder / "screen.parquet")
    return folder


BEST = "profile-propagation"


def measured(
    folder: Path,
    planted: Path,
    permute: str = "none",
    models: tuple[str, ...] = (BEST,),
    seeds: int = 1,
    splits: tuple[str, ...] = ("unseen genes", "random"),
) -> Any:
    said: list[str] = []
    own = {"planted": planted / "screen.parquet"}
    problems = run(
        folder,
        own=own,
        cell=planted / "cell.cellgraph",
        models=models,
        splits=splits,
        seeds=seeds,
        permute=permute,
        samples=50,
        say=said.append,
    )
    assert problems == []
    name = "benchmark" if permute == "none" else f"benchmark-{permute}"
    result = json.loads((folder / f"{name}.json").read_text())
    means = {(t["split"], row["model"]): row["mean"]["value"] for t in result["tables"] for row in t["rows"]}
    return means, result, said


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.full)])
def test_networks_give_the_gain_and_labels_everything(seeds: int, planted: Path, tmp_path: Path) -> None:
    means, result, said = measured(tmp_path, planted, models=("soft-impute", BEST), seeds=seeds)
    assert said[:2] == [
        "planted: gene_interaction is predicted, of 2,556 experiments",
        f"{4 * seeds} cells, 0 of them finished before",
    ]
    assert means["unseen genes", "profile-propagation"] > 0.7
    assert means["random", "profile-propagation"] > 0.8
    unseen = next(t for t in result["tables"] if t["split"] == "unseen genes")
    behind = next(row["less_than_best"] for row in unseen["rows"] if row["model"] == "soft-impute")
    assert behind["high"] < 0  # it knows nothing about unseen genes
    assert next(row for row in unseen["rows"] if row["default"])["model"] == "profile-propagation"
    text = (tmp_path / "benchmark.md").read_text()
    assert "### planted, unseen genes: Pearson's r" in text
    assert "| profile-propagation * |" in text
    train, val, test = (unseen["experiments"][part] for part in ("train", "val", "test"))
    parts = f"{train:,} experiments for training, {val:,} for validation, {test:,} in the test part"
    assert f"Predicted: gene_interaction. {parts}." in text
    best = f"**{means['unseen genes', 'profile-propagation']:.3f}**"
    assert best in text
    page = (tmp_path / "benchmark.html").read_text()
    assert '<tr class="marked"><td class="words">profile-propagation *</td>' in page
    assert best not in page
    # Permuted networks take the gain away, permuted labels everything.
    networks = measured(tmp_path, planted, "networks", splits=("unseen genes",))[0]
    assert networks["unseen genes", "profile-propagation"] < 0.3
    labels = measured(tmp_path, planted, "labels", splits=("random",))[0]
    assert abs(labels["random", "profile-propagation"]) < 0.15
    assert "CONTROL: labels" in (tmp_path / "benchmark-labels.md").read_text()
    # Nothing is run twice; controls are kept apart.
    again, _, said = measured(tmp_path, planted, models=("soft-impute", BEST), seeds=seeds)
    assert said[1] == f"{4 * seeds} cells, {4 * seeds} of them finished before"
    assert again == means


def test_a_row_whose_input_shares_errors_with_the_labels_is_not_ranked(planted: Path, tmp_path: Path) -> None:
    trap = f"soft-impute {TRAP}"
    _, result, _ = measured(tmp_path, planted, models=(trap, "additive"), splits=("random",))
    [table] = result["tables"]
    assert table["best"] == "additive"  # although it is worse
    shown = table["rows"][0]
    assert (shown["ranked"], shown["less_than_best"]["low"] > 0) == (False, True)
    text = (tmp_path / "benchmark.md").read_text()
    assert f"| {trap} † |" in text
    assert "† is shown but not ranked" in text
    _, alone, _ = measured(tmp_path, planted, models=("additive",), splits=("random",))
    assert [row["ranked"] for row in alone["tables"][0]["rows"]] == [True]
    assert "†" not in (tmp_path / "benchmark.md").read_text()


def test_candidates_are_chosen_by_validation(planted: Path, tmp_path: Path) -> None:
    screen = own_screen("planted", planted / "cell.cellgraph", planted / "screen.parquet")
    rows = cells([screen], ["soft-impute model.options.threshold=0.3,50"], ["random"], [0])
    assert len(rows) == 1
    assert run_all(tmp_path, rows, 1, lambda _: None) == []
    found = json.loads((tmp_path / rows[0].place / "cell.json").read_text())
    assert found["chosen_words"][-1] == "model.options.threshold=0.3"
    first, second = (one["mse"] for one in found["validation_of_candidates"])
    assert first < second
    assert not (tmp_path / rows[0].place / "run").exists()  # only the result and the predictions are kept


def test_a_result_belongs_to_its_files_and_overrides(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other labels under the same name, and a benchmark that goes on with other overrides: old figures were shown."""
    place = tmp_path / "it's [1]"  # a name that Hydra reads in quotes only
    place.mkdir()
    screen = Screen.load(planted / "screen.parquet")
    screen.save(place / "screen.parquet")

    def measure(*more: str) -> tuple[str, dict[str, Any]]:
        own, said = own_screen("planted", planted / "cell.cellgraph", place / "screen.parquet"), []
        rows = cells([own], ["mean"], ["random"], [0], more)
        assert run_all(place / "cells", rows, 1, said.append) == []
        return said[0], json.loads((place / "cells" / rows[0].place / "cell.json").read_text())

    before = measure()[1]
    assert measure()[0] == "1 cells, 1 of them finished before"
    Screen(screen.genotypes, {"gene_interaction": 2 * screen.phenotypes["gene_interaction"]}).save(
        place / "screen.parquet"
    )
    said, after = measure()
    assert said == "1 cells, 0 of them finished before"
    assert after["test"]["rmse_original"] == pytest.approx(2 * before["test"]["rmse_original"])

    (place / "cells" / "planted" / "random" / "seed0" / "mean" / "cell.json").write_text("[" * 100_000)
    with monkeypatch.context() as patch:  # killed after the run was validated
        patch.setattr("knockgraph.benchmark.cells.predict_rows", _killed)
        with pytest.raises(KeyboardInterrupt):
            measure()
    assert measure("data.split.fractions=[0.5,0.25,0.25]")[1]["experiments"]["test"] == round(len(screen) / 4)


def _killed(task: Any, data: Any, part: str) -> Any:
    if part == "test":
        raise KeyboardInterrupt
    return predict_rows(task, data, part)


def test_a_cell_that_fails_leaves_the_others(planted: Path, tmp_path: Path) -> None:
    screen = own_screen("planted", planted / "cell.cellgraph", planted / "screen.parquet")
    good = cells([screen], ["mean"], ["random"], [0])
    words = tuple(word.replace("screen.parquet", "none.parquet") for word in good[0].candidates[0])
    bad = Cell("planted", "random", 0, "bad", (words,))
    problems = run_all(tmp_path, [bad, *good], 1, lambda _: None)
    assert len(problems) == 1
    assert "none.parquet: there is no such file" in problems[0]
    assert (tmp_path / good[0].place / "cell.json").is_file()
    assert not (tmp_path / bad.place / "cell.json").exists()


def test_an_unexpected_error_of_a_cell_leaves_the_others(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = own_screen("planted", planted / "cell.cellgraph", planted / "screen.parquet")
    rows = cells([screen], ["additive", "mean"], ["random"], [0])

    def broken(self: Any, genotypes: Any, y: Any) -> None:
        raise RuntimeError("a kernel\nfailed")

    monkeypatch.setattr("knockgraph.models.baselines.ridge.Additive._fit", broken)
    problems = run_all(tmp_path, rows, 1, lambda _: None)
    path = tmp_path / rows[0].place / "error.txt"
    assert problems == [f"planted, random, seed 0, additive: RuntimeError: a kernel failed (all of it: {path})"]
    assert "in broken" in path.read_text()
    assert (tmp_path / rows[1].place / "cell.json").is_file()


def test_cells_of_an_earlier_method_are_run_again(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = own_screen("planted", planted / "cell.cellgraph", planted / "screen.parquet")
    rows, said = cells([screen], ["mean"], ["random"], [0]), []
    run_all(tmp_path, rows, 1, said.append)
    monkeypatch.setattr("knockgraph.benchmark.cells._METHOD", 99)
    run_all(tmp_path, rows, 1, said.append)
    assert "1 cell was made by an earlier version, with other results: run again" in said
    run_all(tmp_path, rows, 1, said.append)
    assert said[-1] == "1 cells, 1 of them finished before"


@pytest.mark.full
def test_processes_end_with_a_benchmark_that_is_killed(planted: Path, tmp_path: Path) -> None:
    """By SIGKILL, of which nobody is told."""
    command = [sys.executable, "-m", "knockgraph", "benchmark", "-o", str(tmp_path), "--jobs", "2", "--seeds", "1"]
    command += ["--own", f"planted={planted}/screen.parquet", "--cell", f"{planted}/cell.cellgraph"]
    command += [f"--model=tests.benchmark.endless:{name}" for name in ("Endless", "Other")]
    environment = {**os.environ, "ENDLESS": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    benchmark = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    children: list[int] = []
    try:
        children = _eventually(lambda: [int(path.suffix[1:]) for path in tmp_path.glob("endless.*")], 2)
        benchmark.kill()
        benchmark.wait()
        _eventually(lambda: [child for child in children if not _lives(child)], 2)
    finally:
        benchmark.kill()
        benchmark.wait()
        for child in filter(_lives, children):
            os.kill(child, signal.SIGKILL)


def _eventually(found: Callable[[], list[int]], number: int) -> list[int]:
    deadline = time.monotonic() + 120
    while len(seen := found()) < number:
        assert time.monotonic() < deadline, f"{len(seen)} of {number} after two minutes"
        time.sleep(0.05)
    return seen


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_cannot_be_measured_is_refused_before_anything_is_run(planted: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'colins2007': there is no such screen \(did you mean 'collins2007'\?\)"):
        run(tmp_path, screens=["colins2007"])
    with pytest.raises(ConfigError, match="public screens need --from DIR"):
        run(tmp_path, screens=["collins2007"])
    with pytest.raises(ConfigError, match=r"--own '\.\.': the name of a screen has letters"):
        run(tmp_path, own={"..": planted / "screen.parquet"}, cell=planted / "cell.cellgraph")
    with pytest.raises(ConfigError, match=r"--own needs --cell FILE.* or --from DIR"):
        run(tmp_path, own={"a": planted / "screen.parquet"})
    with pytest.raises(ConfigError, match="has no such split; it has random, unseen genes"):
        run(tmp_path, screens=["demo"], splits=["query pairs"])
    with pytest.raises(ConfigError, match=r"data\.permute"):
        run(tmp_path, screens=["demo"], permute="genes")
    pairs = [["G00", f"G{k:02d}"] for k in range(1, 40)] + [["G00", "REP1"]]
    Screen(pairs, {"epsilon": np.arange(40.0)}).save(tmp_path / "stray.parquet")
    stray = {"stray": tmp_path / "stray.parquet"}
    with pytest.raises(ConfigError, match=r"--own stray: .*'REP1'.*data\.unknown=drop.*--set KEY=VALUE"):
        run(tmp_path / "out", own=stray, cell=planted / "cell.cellgraph", more=["data.unknown=error"])
    assert not (tmp_path / "out").exists()


def test_a_row_with_many_overrides_has_a_folder(planted: Path, tmp_path: Path) -> None:
    """The name of its folder was too long for the file system, which ended the whole benchmark."""
    keys = ["lr=0.001", "weight_decay=0.001", "betas=[0.9,0.999]"]
    long = "soft-impute " + " ".join(f"optimizer.{key}" for key in keys) + " trainer.checkpoint_every_n_steps=100" * 6
    rows = [long, f"{long} optimizer.lr=0.002"]
    places = {Cell("a", "random", 0, row, ()).place for row in rows}
    assert len(places) == 2
    assert all(len(place.name) < 200 for place in places)
    means, _, _ = measured(tmp_path, planted, models=(*rows, "soft-impute"))
    assert means["random", long] == means["random", "soft-impute"]


def test_a_screen_of_ones_own_may_be_a_table(planted: Path, tmp_path: Path) -> None:
    screen = Screen.load(planted / "screen.parquet")
    y = screen.phenotypes["gene_interaction"]
    rows = "".join(f"{a};{b};{value!r}\n" for (a, b), value in zip(screen.genotypes, y.tolist(), strict=True))
    (tmp_path / "table.csv").write_text("gene_a;gene_b;score\n" + rows, encoding="utf-8")
    own, said = {"table": tmp_path / "table.csv", "screen": planted / "screen.parquet"}, []
    options: dict[str, Any] = {"cell": planted / "cell.cellgraph", "models": ["mean"], "splits": ["random"], "seeds": 1}
    assert run(tmp_path / "out", own=own, samples=5, say=said.append, **options) == []
    found = json.loads((tmp_path / "out" / "benchmark.json").read_text())["tables"]
    assert found[0]["experiments"] == found[1]["experiments"]
    assert Screen.load(tmp_path / "out" / "data" / "own-table.parquet").phenotypes["score"].tolist() == y.tolist()
    assert any(text.startswith("table: ") for text in said)


def test_a_screen_of_ones_own_may_be_a_matrix_of_other_genes_in_rows_than_in_columns(
    planted: Path, tmp_path: Path
) -> None:
    """Of pairs, so that columns of numbers beside one column of genes are genes, not phenotypes."""
    screen = Screen.load(planted / "screen.parquet")
    y = dict(zip(screen.genotypes, screen.phenotypes["gene_interaction"].tolist(), strict=True))
    genes = sorted({gene for pair in y for gene in pair})
    rows, columns = genes[::2], genes[1::2]
    lines = [["", *columns], *([a, *(y.get(tuple(sorted((a, b))), "") for b in columns)] for a in rows)]
    text = "\n".join("\t".join(map(str, line)) for line in lines)
    (tmp_path / "matrix.txt").write_text(text, encoding="utf-8")
    known = CellGraph.load(planted / "cell.cellgraph").genes
    made = as_screen_file("matrix", tmp_path / "matrix.txt", tmp_path, known, lambda _: None)
    found = Screen.load(made)
    wanted = {pair: value for pair, value in y.items() if (pair[0] in rows) != (pair[1] in rows)}
    assert dict(zip(found.genotypes, found.phenotypes["score"].tolist(), strict=True)) == wanted
    several = [f"{a}+{b}" + f"\t{value}" * 30 for (a, b), value in y.items()]  # thirty phenotypes of pairs
    header = "\t".join(["genotype", *(f"trait{k}" for k in range(30))])
    (tmp_path / "traits.txt").write_text("\n".join([header, *several]), encoding="utf-8")
    traits = as_screen_file("traits", tmp_path / "traits.txt", tmp_path, known, lambda _: None)
    assert len(Screen.load(traits).phenotypes) == 30
    few = [["Gene", *columns[:3]], *([a, *(y.get(tuple(sorted((a, b))), "") for b in columns[:3])] for a in rows)]
    (tmp_path / "few.csv").write_text("\n".join(",".join(map(str, line)) for line in few), encoding="utf-8")
    found = Screen.load(as_screen_file("few", tmp_path / "few.csv", tmp_path, known, lambda _: None))
    assert set(found.genotypes) == {pair for pair in wanted if set(pair) & set(columns[:3])}


def test_a_screen_of_ones_own_is_measured_on_the_public_cell_unless_another_is_given(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command: the cell graph had to be built before, by another."""

    def build(screens: Sequence[str], raw: Path, folder: Path, say: Callable[[str], None]) -> None:
        del say
        assert (list(screens), raw) == ([], tmp_path / "raw")
        folder.mkdir(parents=True)
        shutil.copy(planted / "cell.cellgraph", folder / "yeast-clean.cellgraph")

    monkeypatch.setattr("knockgraph.benchmark.run.build", build)
    own = {"planted": planted / "screen.parquet"}
    options: dict[str, Any] = {"models": [BEST], "splits": ["unseen genes"], "seeds": 1, "samples": 5}
    assert run(tmp_path / "out", raw=tmp_path / "raw", own=own, say=lambda _: None, **options) == []
    [table] = json.loads((tmp_path / "out" / "benchmark.json").read_text())["tables"]
    assert table["rows"][0]["mean"]["value"] > 0.7
    assert run(tmp_path / "out", own=own, say=lambda _: None, **options) == []  # it is there now


def test_a_screen_of_ones_own_may_name_its_phenotype_as_it_likes(planted: Path, tmp_path: Path) -> None:
    """All cells of a screen whose only phenotype was not 'gene_interaction' failed."""
    cell, first = planted / "cell.cellgraph", Screen.load(planted / "screen.parquet")
    y = first.phenotypes["gene_interaction"]
    tables = {"a": {"S score": y}, "b": {"fitness": 0 * y, "epsilon": y}, "c": {"fitness": y, "growth": y}}
    own = {name: tmp_path / f"{name}.parquet" for name in tables}
    for name, columns in tables.items():
        Screen(first.genotypes, columns).save(own[name])
    assert own_screen("a", cell, own["a"]).words[-1] == "data.phenotype='S score'"
    assert own_screen("b", cell, own["b"]).words[-1] == "data.phenotype=epsilon"
    options: dict[str, Any] = {"cell": cell, "models": ["soft-impute"], "splits": ["random"], "seeds": 2, "samples": 5}
    assert run(tmp_path / "out", own={"a": own["a"], "b": own["b"]}, say=lambda _: None, **options) == []
    found = json.loads((tmp_path / "out" / "benchmark.json").read_text())["tables"]
    assert found[0]["rows"][0]["seeds"] == found[1]["rows"][0]["seeds"]
    with pytest.raises(
        ConfigError, match=r"--own c: .* fitness and growth; choose one, as in --set data\.phenotype=fitness"
    ):
        run(tmp_path / "out", own={"c": own["c"]}, **options)
    options["more"] = ["data.phenotype=growth"]
    assert run(tmp_path / "out", own={"c": own["c"]}, say=lambda _: None, **options) == []


def test_labels_0_and_1_of_a_screen_of_ones_own_are_classes(planted: Path, tmp_path: Path) -> None:
    first = Screen.load(planted / "screen.parquet")
    y = (first.phenotypes["gene_interaction"] < -0.5).astype(np.float64)
    Screen(first.genotypes, {"interacts": y}).save(tmp_path / "s.parquet")
    said: list[str] = []
    options: dict[str, Any] = {"models": [BEST, "mean", "mean"], "splits": ["random"], "seeds": 1, "samples": 5}
    own, cell = {"s": tmp_path / "s.parquet"}, planted / "cell.cellgraph"
    assert run(tmp_path / "out", own=own, cell=cell, say=said.append, **options) == []
    assert said[:2] == [
        "s: interacts is predicted, the classes 0 and 1, of 2,556 experiments",
        "2 cells, 0 of them finished before",  # a row that is named twice is one
    ]
    auroc = json.loads((tmp_path / "out" / "benchmark.json").read_text())["tables"][0]
    assert auroc["rows"][0]["default"]
    triples = [(*pair, "G71") for pair in first.genotypes if "G71" not in pair]
    Screen(triples, {"interacts": y[: len(triples)]}).save(tmp_path / "larger.parquet")
    assert own_screen("larger", cell, tmp_path / "larger.parquet").default == "boosting"
    Screen(triples, {"epsilon": np.arange(len(triples)) / 7}).save(tmp_path / "larger.parquet")
    assert own_screen("larger", cell, tmp_path / "larger.parquet").default == BEST
    assert (auroc["score"], auroc["phenotype"], auroc["best"]) == ("auroc", "interacts", BEST)
    assert auroc["rows"][0]["mean"]["value"] > 0.85


def test_experiments_with_unknown_genes_are_left_out_and_told_unless_they_are_many(
    planted: Path, tmp_path: Path
) -> None:
    first = Screen.load(planted / "screen.parquet")
    said: list[str] = []
    options: dict[str, Any] = {"models": ["mean"], "splits": ["random"], "seeds": 1, "samples": 5, "say": said.append}
    for strangers in (3, 1000):
        pairs = [*first.genotypes, *(("G00", f"REP{k}") for k in range(strangers))]
        y = np.append(first.phenotypes["gene_interaction"], np.zeros(strangers))
        Screen(pairs, {"epsilon": y}).save(tmp_path / f"{strangers}.parquet")
    options["cell"] = planted / "cell.cellgraph"
    assert run(tmp_path / "few", own={"few": tmp_path / "3.parquet"}, **options) == []
    assert said[1] == "few: left out 3 experiments with unknown genes (REP0, REP1 and REP2)"
    own = {"many": tmp_path / "1000.parquet"}
    with pytest.raises(ConfigError, match=r"1,000 of 3,556 experiments have unknown genes: .*--set data\.unknown=drop"):
        run(tmp_path / "many", own=own, **options)
    assert not (tmp_path / "many").exists()
    assert run(tmp_path / "many", own=own, more=["data.unknown=drop"], **options) == []


def test_screens_of_ones_own_that_are_none_of_interactions_are_refused(planted: Path, tmp_path: Path) -> None:
    cell = planted / "cell.cellgraph"
    with pytest.raises(ConfigError, match=r"--own 'demo' is the name of a public screen; give yours another one"):
        run(tmp_path / "out", own={"demo": planted / "screen.parquet"}, cell=cell)
    Screen([["G00"], ["G01"]], {"fitness": [1.0, 0.5]}).save(tmp_path / "single.parquet")
    with pytest.raises(ConfigError, match=r"--own single: no genotype of the screen has two genes"):
        run(tmp_path / "out", own={"single": tmp_path / "single.parquet"}, cell=cell)
    with pytest.raises(ConfigError, match=r"--own folder: .* is a folder; give a file"):
        run(tmp_path / "out", own={"folder": tmp_path}, cell=cell)
    (tmp_path / "p.csv").write_text("gene_a,gene_b,P value (two-sided)\nG00,G01,0.5\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"--own p: .* is a statistic; .* --phenotype COLUMN .*'knockgraph screen imp"
    ):
        run(tmp_path / "out", own={"p": tmp_path / "p.csv"}, cell=cell)
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_several_at_a_time_give_the_same(planted: Path, tmp_path: Path) -> None:
    own, cell = {"planted": planted / "screen.parquet"}, planted / "cell.cellgraph"
    found = []
    for jobs in (1, 2):
        run(tmp_path / str(jobs), own=own, cell=cell, models=["mean", "soft-impute"], seeds=1, jobs=jobs, samples=5)
        found.append(json.loads((tmp_path / str(jobs) / "benchmark.json").read_text())["tables"][0]["rows"][1]["seeds"])
    assert found[0] == pytest.approx(found[1], abs=1e-6)
