"""Somebody else's package adds one of each kind; everything of it is used from the command line."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import knockgraph as kg
from knockgraph import registry

OTHER = Path(__file__).parents[1] / "other_package"
NAMES = {
    "model": ["other-model"],
    "convolution": ["other-conv"],
    "loss": ["other-classes", "other-loss"],
    "strategy": ["other-strategy"],
    "baseline": ["other-baseline"],
    "source": ["other-ring", "other-source"],
}
SHORT = ("data.experiments=200", "trainer.progress_bar=false", "trainer.max_epochs=1")
Command = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, installed by pip."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(OTHER, folder / "other_package")  # setuptools writes into the folder that it builds
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    words = [sys.executable, "-m", "pip", "install", *options, "--target", folder / "site", folder / "other_package"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture
def installed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same on the path of this process, for as long as a test takes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(site))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "kg_other"]:
        del sys.modules[name]


def test_its_names_are_ours(installed: Path) -> None:
    for kind, names in NAMES.items():
        own = [*registry.BUILT_IN[kind], *names]
        assert registry.available(kind)[: len(own)] == own  # the names of models are followed by those of baselines
    assert "kg_other.model" not in sys.modules  # listing imports nothing
    assert registry.find("model", "other-model").__module__ == "kg_other.model"


def test_without_it_they_are_not() -> None:
    for kind, names in NAMES.items():
        assert not set(names) & set(registry.available(kind))
    with pytest.raises(kg.ModelError, match="there is no model 'other-model'; use one of hetero"):
        registry.find("model", "other-model")


def test_trained_resumed_evaluated_predicted(installed: Path, command: Command) -> None:
    """Model, loss, strategy and baseline, each by the name that its package gave it."""
    chosen = ("model=other-model", "loss=other-loss", "loss.options.delta=0.5", "strategy=other-strategy")
    others = "trainer.baselines=[mean,other-baseline]"
    out, _ = command("train", *chosen, others, *SHORT, "model.options.channels=4", "run_dir=run")
    assert "model other-model" in out
    assert "strategy other-strategy" in out
    result = json.loads(Path("run/result.json").read_text())
    assert set(result["metrics"]) == {"other-model", "mean", "other-baseline"}
    out, _ = command("train", "run_dir=run", "resume=true", "trainer.max_epochs=2")
    assert "resuming from" in out
    command("evaluate", "run", "--part", "val", "--json", "found.json")
    assert set(json.loads(Path("found.json").read_text())["metrics"]) == {"other-model", "mean", "other-baseline"}
    genotypes = ("--genes", "YAA001W", "--genes", "YAA001W,YAA010C")
    command("predict", "run", *genotypes, "-o", "own.parquet")
    command("predict", "run", *genotypes, "-o", "ours.parquet", "--strategy", "node-mask")
    own, ours = (
        pq.read_table(f"{name}.parquet").column("predicted_gene_interaction").to_pylist() for name in ("own", "ours")
    )
    assert own == pytest.approx(ours, rel=1e-5)
    assert own[0] != own[1]


def test_by_class_and_with_a_convolution(installed: Path, command: Command) -> None:
    small = ("model.options.channels=4", "model.options.messages.conv=other-conv", "loss.name=kg_other.loss:FocalLoss")
    classes = ("task=classification", "data.threshold=-0.1", "strategy.name=kg_other.strategy:KeepMask")
    command("train", *small, *classes, "trainer.baselines=[kg_other.baseline:Median]", *SHORT, "run_dir=run")
    config = Path("run/config.yaml").read_text()
    assert "conv: other-conv" in config
    assert "name: kg_other.loss:FocalLoss" in config
    assert "name: kg_other.strategy:KeepMask" in config
    assert set(json.loads(Path("run/result.json").read_text())["metrics"]) == {"hetero", "kg_other.baseline:Median"}


def test_a_model_by_class_has_no_options_of_the_default_one(installed: Path, command: Command) -> None:
    out, _ = command("train", "model.name=kg_other.model:PooledModel", "model.options.channels=2", "--cfg")
    assert "name: kg_other.model:PooledModel\n  options:\n    channels: 2\n" in out
    _, err = command("train", "model.name=kg_other.model:PooledModel", "model.options.layers=2", *SHORT, code=1)
    assert "the model kg_other.model:PooledModel has no option 'layers'; it has channels" in err
    _, err = command("train", "model.name=kg_other.model:PoledModel", *SHORT, code=1)
    assert "kg_other.model has no PoledModel (did you mean 'PooledModel'?)" in err
    _, err = command("train", "strategy=other-stratgy", code=1)
    assert "did you mean 'other-strategy'" in err


def test_sources(installed: Path, command: Command) -> None:
    Path("pairs.txt").write_text("".join(f"A{i} A{(i * 7 + 3) % 30} {i % 5}\n" for i in range(30)))
    out, _ = command("graph", "build", "--preset", "other-source", "--from", "pairs.txt", "-o", "pairs.cellgraph")
    assert "pairs: 30 rows of pairs.txt" in out
    command("screen", "import", "other-source", "--from", "pairs.txt", "-o", "pairs.parquet")
    assert len(kg.Screen.load("pairs.parquet")) == 30
    _, err = command("graph", "build", "--preset", "other-source", "-o", "x.cellgraph", code=1)
    assert "the preset other-source needs --from: the file of gene pairs" in err
    _, err = command("train", "data=files", "data.cell=other-source", "data.screen=pairs.parquet", code=1)
    assert "config key 'data.cell': the source 'other-source' reads files; make a file of it" in err
    named = ("data=files", "data.cell=other-ring", "data.screen=kg_other.source:Ring", "data.phenotype=fitness")
    command("train", *named, "model=additive", *SHORT, "trainer.baselines=[]", "run_dir=run")
    assert kg.CellGraph.load("run/cell.cellgraph").num_genes == 40


def test_a_run_without_its_package(installed: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command("train", "model=other-model", *SHORT, "trainer.baselines=[]", "run_dir=run")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not entry.endswith("site")])
    _, err = command("predict", "run", "--genes", "YAA001W", code=1)
    assert "there is no model 'other-model'" in err


@pytest.mark.full
def test_in_a_process_of_its_own(site: Path, tmp_path: Path) -> None:
    """The real command line, and nothing that this process has already looked up."""
    command = [sys.executable, "-W", "ignore", "-m", "knockgraph"]
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    chosen = ["model=other-model", "loss=other-loss", "strategy=other-strategy", "trainer.baselines=[other-baseline]"]
    for words in (
        ["train", *chosen, *SHORT, "run_dir=run"],
        ["train", "model.options.messages.conv=other-conv", *SHORT, "run_dir=conv"],
        ["evaluate", "run"],
        ["predict", "run", "--genes", "YAA001W"],
        ["bench", "strategies", "--only", "other-strategy", "--repeats", "1"],
        ["baselines", "--only", "other-baseline", "data.experiments=200"],
        ["train", "-m", "strategy=other-strategy,node-mask", "model=other-model", *SHORT],
    ):
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
