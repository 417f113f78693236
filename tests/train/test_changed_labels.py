"""A run is measured on the labels that it was trained on, or not at all."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from training_runs import LEAST, config

import knockgraph as kg
from knockgraph.run import train

Command = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    kg.demo_cell().save(folder / "demo.cellgraph")
    kg.demo_screen(80).save(folder / "demo.parquet")
    words = ["data=files", f"data.cell={folder}/demo.cellgraph", f"data.screen={folder}/demo.parquet", *LEAST]
    made = config(*words, "data.phenotype=gene_interaction", f"run_dir={folder}/run")
    made.data.experiments = None
    train(made, say=lambda _: None)
    return folder


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rescaled": lambda y: y * 10 + 3,
    "shuffled": lambda y: np.random.default_rng(0).permutation(y),
    "one of them": lambda y: np.where(np.arange(len(y)) == 7, y + 0.01, y),
    "negated": np.negative,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_labels_are_refused(change: str, trained: Path, command: Command) -> None:
    screen = kg.demo_screen(80)
    phenotypes = {**screen.phenotypes, "gene_interaction": CHANGES[change](screen.phenotypes["gene_interaction"])}
    kg.Screen(screen.genotypes, phenotypes).save(trained / "demo.parquet")
    _, err = command("evaluate", str(trained / "run"), code=1)
    assert "are not those that" in err
    _, err = command("train", f"run_dir={trained / 'run'}", "resume=true", "trainer.max_epochs=2", code=1)
    assert "are not those that" in err


def test_what_a_run_did_not_see_may_change(trained: Path, command: Command) -> None:
    """Another phenotype, another source, other names of the same genes."""
    screen = kg.demo_screen(80)
    aliases = kg.demo_cell().genes.aliases
    written = [
        [next(filter(None, aliases.get(gene, ())), gene).lower() for gene in genes] for genes in screen.genotypes
    ]
    phenotypes = {"gene_interaction": screen.phenotypes["gene_interaction"], "other": np.arange(80.0)}
    kg.Screen(written, phenotypes, source="elsewhere").save(trained / "demo.parquet")
    out, _ = command("evaluate", str(trained / "run"))
    assert "note:" not in out
