"""Everything that is chosen by name."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
import torch
from torch import nn

import knockgraph as kg
from knockgraph import models, registry
from knockgraph.models.baselines import Mean
from knockgraph.options import check_options


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_registered", {kind: {} for kind in registry.KINDS})
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()


class Mine(nn.Module):
    """The prediction is a weight for each deleted gene."""

    def __init__(self, graph: kg.CellGraph, width: int = 1, rows: int = 0) -> None:
        super().__init__()
        self.effect = nn.Parameter(torch.arange(float(graph.num_genes)))
        self.width, self.rows = width, rows

    def forward(self, view: kg.PerturbedGraphs, batch: kg.PerturbationBatch) -> Any:
        values = (~view.keep).float().T @ self.effect
        return values.unsqueeze(1).expand(-1, self.width)[: len(values) - self.rows]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in registry.BUILT_IN.items() for name in names]
)
def test_every_built_in_name_is_a_class_of_its_kind(kind: str, name: str) -> None:
    found = registry.find(kind, name)
    assert isinstance(found, type)
    assert f"{found.__module__}:{found.__name__}" == registry.BUILT_IN[kind][name]


def test_names_are_listed_without_importing_anything() -> None:
    program = (
        "import sys; from knockgraph import registry; [registry.available(kind) for kind in registry.KINDS]; "
        "print(*(m for m in sys.modules if m.startswith('knockgraph.') or m in ('torch', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"knockgraph.errors", "knockgraph.options", "knockgraph.registry"}


def test_registered_in_this_process() -> None:
    kg.register("model", "mine", Mine)
    assert "mine" in models.available()
    graph = kg.demo_cell()
    model, strategy = models.create("mine", graph), kg.strategies.create("node-mask", graph)
    batch = kg.PerturbationBatch.from_lists([[3, 4], [], [7]], graph.num_genes)
    assert model(strategy(model.columns(batch)), batch).values.tolist() == [[7.0], [0.0], [7.0]]
    assert models.create("mine", graph, width=2)(strategy(batch.with_wild_type()), batch).values.shape == (3, 2)
    one_less = models.create("mine", graph, rows=2)
    with pytest.raises(kg.ModelError, match=r"Mine\.forward\(view, batch\) gave \[2, 1\], but \[samples, outputs\]"):
        one_less(strategy(batch.with_wild_type()), batch)
    with pytest.raises(kg.ModelError, match=r"the model mine has no option 'widht' \(did you mean 'width'\?\)"):
        models.create("mine", graph, widht=2)


def test_a_name_is_given_once() -> None:
    kg.register("baseline", "mine", Mean)
    kg.register("baseline", "mine", Mean)  # a cell of a notebook is run again
    with pytest.raises(kg.RegistryError, match="there is already a baseline 'mine'; choose another name"):
        kg.register("baseline", "mine", registry.find("baseline", "additive"))
    with pytest.raises(kg.RegistryError, match="there is already a baseline 'mean'"):
        kg.register("baseline", "mean", Mean)


@pytest.mark.parametrize(
    ("kind", "name", "thing", "text"),
    [
        ("modle", "mine", Mine, "there is no kind 'modle'; use one of model, strategy"),
        ("model", "", Mine, "'' cannot be the name of a model"),
        ("model", "a:b", Mine, "'a:b' cannot be the name of a model: leave out spaces and any of : / = ,"),
        ("model", "a b", Mine, "'a b' cannot be"),
        ("loss", "mine", Mine, "the loss 'mine' cannot be used: it is not a class that derives from knockgraph.losses"),
        ("model", "mine", len, "the model 'mine' cannot be used: it is not a class that derives from torch.nn.Module"),
    ],
)
def test_what_cannot_be_registered(kind: str, name: str, thing: Any, text: str) -> None:
    with pytest.raises(kg.RegistryError, match=text):
        kg.register(kind, name, thing)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (
            "model",
            "heteroo",
            r"'heteroo' \(did you mean 'hetero'\?\); use one of .*, or package\.module:Class",
        ),
        ("strategy", "node_mask", r"\(did you mean 'node-mask'"),
        (
            "model",
            "no_such_package.models:Mine",
            "no module 'no_such_package'; install its package, or",
        ),
        ("model", "knockgraph.models.toy:Additiv", r"has no Additiv \(did you mean 'AdditiveModel'\?\)"),
        ("model", "knockgraph.models.toy:", "'knockgraph.models.toy:' is not of the form package.module:Class"),
        ("model", ":Mine", "is not of the form"),
        ("model", "../evil:Mine", "is not of the form"),
        ("model", "os:system", "it is not a class that derives from torch.nn.Module"),
        ("loss", "subprocess:Popen", "it is not a class that derives from knockgraph.losses.loss.Loss"),
        ("source", "torch.nn:Module", "it is not a class that derives from knockgraph.sources.source.Source"),
    ],
)
def test_what_cannot_be_found(kind: str, name: str, text: str) -> None:
    with pytest.raises(registry.KINDS[kind].error, match=text) as refused:
        registry.find(kind, name)
    assert "\n" not in str(refused.value)


def test_a_module_that_breaks(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_when_imported.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kg.LossError, match="breaks_when_imported raises ZeroDivisionError: division by zero"):
        registry.find("loss", "breaks_when_imported:Loss")


def test_two_packages_with_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("same", "first:Model", "knockgraph.models"),
        EntryPoint("same", "second:Model", "knockgraph.models"),
        EntryPoint("hetero", "third:Model", "knockgraph.models"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: EntryPoints(points).select(group=group))
    assert "same" in registry.available("model")
    with pytest.raises(kg.ModelError, match="several packages have a model 'same': first:Model and second"):
        registry.find("model", "same")
    with pytest.raises(kg.ModelError, match=r"have a model 'hetero': knockgraph and third:Model; .* choose by class"):
        registry.find("model", "hetero")
    assert registry.find("model", "dango").__name__ == "Dango"


def test_options_of_a_class_that_takes_any() -> None:
    class Takes:
        def __init__(self, first: "NotImported" = 1, **rest: int) -> None:  # type: ignore[name-defined]  # noqa: F821
            del first, rest

    check_options("it", Takes, {"first": "x", "second": 2}, kg.ModelError)


def test_a_source_without_a_screen() -> None:
    from knockgraph.sources.source import source_of

    with pytest.raises(kg.SourceError, match="the source 'yeast' has no screen; use one of demo, yeast-scale, table"):
        source_of("yeast", "screen")
    with pytest.raises(kg.SourceError, match="the source 'table' has no graph; use one of demo, yeast-scale, tab"):
        source_of("table", "graph")
