"""Files of PyG datasets: read without running anything that they hold."""

import os
from pathlib import Path

import pytest
import torch
from torch_geometric.data import HeteroData, InMemoryDataset

import knockgraph as kg
from knockgraph import FileFormatError, Screen, ScreenError, SourceError
from knockgraph.sources.presets import import_screen
from knockgraph.sources.source import ScreenOptions


@pytest.fixture(scope="module")
def screen() -> Screen:
    return Screen(
        [["YAL001C", "YBR002W"], [], ["YAL001C"]],
        {"fitness": [0.5, 1.0, 0.75], "gene_interaction": [-0.25, 0.0, 0.5]},
        {"fitness": {"std": [0.125, 0.25, 0.5]}},
    )


@pytest.fixture(scope="module")
def graph() -> kg.CellGraph:
    return kg.CellGraph(["YAL001C", "YBR002W", "YCL003W"], {"physical": torch.tensor([[0], [1]])})


@pytest.fixture(scope="module")
def samples(screen: Screen, graph: kg.CellGraph) -> list[HeteroData]:
    return list(kg.PerturbationDataset(screen.bind(graph), graph))


def imported(path: Path, **options) -> Screen:
    return import_screen("pyg", path, ScreenOptions(**options))[0]


def same(found: Screen, screen: Screen) -> bool:
    return Screen(found.genotypes, found.phenotypes, found.statistics) == screen


def one_file(folder: Path, samples: list[HeteroData]) -> None:
    InMemoryDataset.save(samples, folder / "data.pt")


def collated(folder: Path, samples: list[HeteroData]) -> None:
    torch.save(InMemoryDataset.collate(samples), folder / "data.pt")


def as_list(folder: Path, samples: list[HeteroData]) -> None:
    torch.save(samples, folder / "samples.pt")


def one_file_each(folder: Path, samples: list[HeteroData]) -> None:
    for number in range(12):  # more than nine: in the order of their numbers
        torch.save(samples[number % 3], folder / f"data_{number}.pt")
    torch.save("whatever", folder / "pre_filter.pt")


@pytest.mark.parametrize("write", [one_file, collated, as_list, one_file_each])
def test_every_layout(write, samples, screen, tmp_path):
    (tmp_path / "processed").mkdir()
    write(tmp_path / "processed", samples)
    expected = screen.take(torch.arange(12).numpy() % 3) if write is one_file_each else screen
    assert same(imported(tmp_path), expected)
    assert imported(tmp_path / "processed").source_names == ("processed",)


def test_indices_by_the_genes_of_a_graph(samples, screen, graph, tmp_path):
    bare = [HeteroData.from_dict(s.to_dict()) for s in samples]
    for each in bare:
        del each["gene"].perturbed_genes
    torch.save(bare, tmp_path / "x.pt")
    graph.save(tmp_path / "x.cellgraph")
    with pytest.raises(
        ScreenError, match=r"x\.pt: the samples have perturbation_indices but no perturbed_genes.* --genes"
    ):
        imported(tmp_path / "x.pt")
    assert same(imported(tmp_path / "x.pt", genes=tmp_path / "x.cellgraph"), screen)


class Harmful:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, (os.environ["HARM"],))


def test_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HARM", str(tmp_path / "harm"))
    torch.save([Harmful()], tmp_path / "x.pt")
    with pytest.raises(
        FileFormatError, match=r"cannot be read without running code of posix\.mkdir; load the dataset in"
    ):
        imported(tmp_path / "x.pt")
    assert not (tmp_path / "harm").exists()


def test_a_class_of_another_package(tmp_path):
    torch.save([Path("x")], tmp_path / "x.pt")
    with pytest.raises(
        FileFormatError, match=r"without running code of pathlib\.PosixPath; load the dataset in Python"
    ):
        imported(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(3), "holds Tensor, but samples are needed"),
        ([], "the dataset has no samples"),
        ([{"gene": 3}], r"the dataset has no samples"),
        (({"a": 1}, {}), "does not hold valid samples"),
    ],
)
def test_other_content(content, message, tmp_path):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises((FileFormatError, ScreenError), match=message):
        imported(tmp_path / "x.pt")


def test_folders(tmp_path):
    with pytest.raises(FileFormatError, match=r"holds no \.pt file; give the folder of a PyG dataset"):
        imported(tmp_path)
    (tmp_path / "a.pt").touch()
    with pytest.raises(FileFormatError, match=r"a\.pt is not a readable file of torch\.save"):
        imported(tmp_path)
    (tmp_path / "b.pt").touch()
    with pytest.raises(SourceError, match=r"several \.pt files \(a\.pt, b\.pt\); give the one with the samples"):
        imported(tmp_path)
    (tmp_path / "processed" / "lmdb").mkdir(parents=True)
    with pytest.raises(SourceError, match="read it with 'knockgraph screen import torchcell --from "):
        imported(tmp_path)


def test_the_command(command, samples, screen, graph, tmp_path):
    one_file(tmp_path, samples)
    out, _ = command("screen", "import", "pyg", "--from", tmp_path, "-o", tmp_path / "x.parquet")
    assert "Screen(3 experiments, 2 gene names, phenotypes fitness and gene_interaction)" in out
    assert same(Screen.load(tmp_path / "x.parquet"), screen)
    torch.save([Path("x")], tmp_path / "data.pt")
    _, err = command("screen", "import", "pyg", "--from", tmp_path, "-o", tmp_path / "y.parquet", code=1)
    assert err.startswith("error: ")
    assert not (tmp_path / "y.parquet").exists()
