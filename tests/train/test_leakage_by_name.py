"""Names are genes, from the table to the weights: spelling leaks nothing and changes nothing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from training_runs import LEAST, config, same, weights

import knockgraph as kg
from knockgraph.evaluate import compare_baselines
from knockgraph.run import train
from knockgraph.train.data import TrainingData

pytestmark = pytest.mark.usefixtures("no_page")

Command = Callable[..., tuple[str, str]]
DEMO = kg.demo_cell()


def spelled(names: list[str], seed: int) -> list[str]:
    """The demo cell's genes under other names: standard names, in any case."""
    random = np.random.default_rng(seed)
    aliases = DEMO.genes.aliases
    chosen = [str(random.choice([name, *filter(None, aliases.get(name, ()))])) for name in names]
    return [name.lower() if random.random() < 0.5 else name for name in chosen]


def of_files(cell: Path, screen: Path, *words: str) -> list[str]:
    return ["data=files", f"data.cell={cell}", f"data.screen={screen}", "data.phenotype=score", *words]


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cell") / "demo.cellgraph"
    DEMO.save(path)
    return path


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    """300 random pairs with labels of pure noise, each written twice: by systematic and by other names."""
    random = np.random.default_rng(0)
    genes = DEMO.genes.names
    rows = ["genotype,score"]
    for _ in range(300):
        pair = [genes[i] for i in random.choice(len(genes), 2, replace=False)]
        score = random.normal()
        rows += [f"{'+'.join(pair)},{score}", f"{'+'.join(spelled(pair, int(random.integers(2**31))))},{score}"]
    path = tmp_path / "noise.csv"
    path.write_text("\n".join(rows))
    return path


def test_noise_written_twice_cannot_be_learned(cell: Path, noise: Path, tmp_path: Path, command: Command) -> None:
    """Split by spelling, ridge on pairs reached a test Pearson of 0.848 here."""
    screen = tmp_path / "noise.parquet"
    command("screen", "import", "table", "--from", str(noise), "-o", str(screen))
    made = config(*of_files(cell, screen))
    made.data.experiments = None
    data = TrainingData.from_config(made)
    where = {part: {tuple(g) for g in data.bound.batch(rows).tolist()} for part, rows in data.rows.items()}
    assert not where["train"] & where["test"]
    found = compare_baselines(made, ["ridge-pairs"], "test", lambda _: None)
    assert abs(found["metrics"]["ridge-pairs"]["pearson"]) < 0.4


def test_unseen_genes_are_unseen_under_any_name(cell: Path, noise: Path, tmp_path: Path, command: Command) -> None:
    """All of 116 test strains had all their genes in training: ``ERG10`` was held out, ``erg10`` trained."""
    screen = tmp_path / "noise.parquet"
    command("screen", "import", "table", "--from", str(noise), "-o", str(screen))
    made = config(*of_files(cell, screen, "data.split.kind=unseen-genes", "data.split.held_out=0.2"))
    made.data.experiments = None
    data = TrainingData.from_config(made)
    known = data.deleted("train")
    for part in ("val", "test"):
        assert all(any(not known[gene] for gene in genes) for genes in data.bound.batch(data.rows[part]).tolist())


def test_a_split_file_of_names_as_written(cell: Path, noise: Path, tmp_path: Path, command: Command) -> None:
    screen, split = tmp_path / "noise.parquet", tmp_path / "noise.split"
    command("screen", "import", "table", "--from", str(noise), "-o", str(screen))
    _, err = command("screen", "split", str(screen), "-o", str(split), code=1)
    assert "seem to go by several names" in err
    assert "--graph" in err
    kg.splits.by_genotype(kg.Screen.load(screen)).save(split)
    made = config(*of_files(cell, screen, "data.split.kind=file", f"data.split.file={split}"))
    made.data.experiments = None
    with pytest.raises(kg.SplitError, match=r"names as written.*screen split --graph"):
        TrainingData.from_config(made)
    command("screen", "split", str(screen), "--graph", str(cell), "-o", str(split))
    assert len(TrainingData.from_config(made).rows["train"]) == 480


def test_spelling_changes_no_weight(cell: Path, tmp_path: Path) -> None:
    plain = kg.demo_screen(80)
    names = list(plain.genotypes.names)
    written = kg.Screen(
        [spelled(list(genes), row) for row, genes in enumerate(plain.genotypes)],
        plain.phenotypes,
        plain.statistics,
        (plain.source_names, plain.source_codes),
    )
    assert set(written.genotypes.names) != set(names)
    for name, screen in (("plain", plain), ("written", written)):
        screen.save(tmp_path / f"{name}.parquet")
        words = ["data=files", f"data.cell={cell}", f"data.screen={tmp_path / name}.parquet", *LEAST]
        words += ["data.phenotype=gene_interaction", f"run_dir={tmp_path / name}", "data.split.kind=unseen-genes"]
        made = config(*words, "data.split.held_out=0.2", "data.split.unseen=any", "data.genes=screened")
        made.data.experiments = None
        train(made, say=lambda _: None)
    a, b = tmp_path / "plain", tmp_path / "written"
    assert same(weights(a), weights(b))
    assert (a / "predictions.parquet").read_bytes() == (b / "predictions.parquet").read_bytes()
    assert kg.CellGraph.load(a / "cell.cellgraph") == kg.CellGraph.load(b / "cell.cellgraph")
    split, other = kg.Split.load(a / "data.split"), kg.Split.load(b / "data.split")
    assert (split.held_out, split.genotypes_hash) == (other.held_out, other.genotypes_hash)
    assert all(np.array_equal(split[part], other[part]) for part in split.parts)


def test_tables_by_gene(cell: Path, noise: Path, tmp_path: Path, command: Command) -> None:
    """With a gene list, two names of one gene are one at import: merges and counts see genes."""
    screen = tmp_path / "noise.parquet"
    _, err = command("screen", "import", "table", "--from", str(noise), "--merge", "mean", "-o", str(screen), code=1)
    assert "--genes" in err
    out, _ = command(
        *("screen", "import", "table", "--from", str(noise), "--genes", str(cell)),
        *("--merge", "mean", "-o", str(screen)),
    )
    merged = kg.Screen.load(screen)
    assert len(merged) == len(set(merged.genotypes)) <= 300
    assert set(merged.genotypes.names) <= set(DEMO.genes.names)
    noise.write_text(noise.read_text() + "\nnobody+erg10x,1.0\n")
    _, err = command("screen", "import", "table", "--from", str(noise), "--genes", str(cell), "-o", str(screen), code=1)
    assert "2 names do not resolve" in err
    out, _ = command(
        *("screen", "import", "table", "--from", str(noise), "--genes", str(cell)),
        *("--unknown", "drop", "-o", str(screen)),
    )
    assert f"dropped 1: a name that {cell} does not have" in " ".join(out.split())
    assert len(kg.Screen.load(screen)) == 600
    out, _ = command("screen", "info", str(screen), "--graph", str(cell))
    assert f"600 experiments on {len(merged.genotypes.names)} genes" in out


def test_what_is_left_out_is_said_and_nothing_else(cell: Path, tmp_path: Path) -> None:
    """ "left out 0 experiments with unknown genes ()" was said of a screen without labels."""
    screen = kg.demo_screen(80)
    labels = screen.phenotypes["gene_interaction"].copy()
    labels[3] = np.nan
    kg.Screen(screen.genotypes, {"gene_interaction": labels}).save(tmp_path / "s.parquet")
    words = ["data=files", f"data.cell={cell}", f"data.screen={tmp_path}/s.parquet", "data.phenotype=gene_interaction"]
    made = config(*words, *LEAST, f"run_dir={tmp_path}/run", "data.missing=drop")
    made.data.experiments = None
    said: list[str] = []
    train(made, say=said.append)
    assert [line for line in said if "left out" in line] == ["note: left out 1 experiment without a label"]
