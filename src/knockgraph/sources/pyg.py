"""Files of PyG datasets of perturbed samples, see :mod:`knockgraph.screen.from_pyg` for what a sample holds.

A folder of a dataset has its files in ``processed/``: one of an in-memory dataset (``data.pt``: all samples collated,
as PyG saves them), or one for each sample (``data_0.pt``, ``data_1.pt``, …). A file may also hold a list of samples.

Such a file is a pickle. It is read with torch's restricted reader, which makes tensors, plain Python values and PyG's
own containers and runs nothing else; a file that needs more is refused.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from knockgraph.errors import FileFormatError, ScreenError, SourceError
from knockgraph.graph import CellGraph
from knockgraph.screen import Screen
from knockgraph.screen.from_pyg import screen_from_pyg
from knockgraph.sources.report import ImportReport
from knockgraph.sources.source import ScreenOptions, Source

_NOT_SAMPLES = ("pre_filter.pt", "pre_transform.pt")


class Pyg(Source):
    """The source ``pyg``."""

    reads = "the dataset's folder, or one of its .pt files"

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """See above; ``options.genes`` also says what ``perturbation_indices`` mean."""
        files = sample_files(path)
        genes = CellGraph.load(options.genes) if options.genes is not None and options.genes.is_file() else None
        try:
            samples = _Collated(files[0]) if len(files) == 1 else _samples(files)
            return screen_from_pyg(samples, genes, path.resolve().name)
        except ScreenError as error:
            raise ScreenError(f"{path}: {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            raise FileFormatError(
                f"{path} does not hold valid samples ({str(error).splitlines()[0][:200]!r}); save the dataset again"
            ) from error


def sample_files(path: Path) -> list[Path]:
    """The files that hold samples, in the order of their numbers."""
    if path.is_file():
        return [path]
    folder = path / "processed" if (path / "processed").is_dir() else path
    if (folder / "lmdb").exists() or (folder / "data.mdb").exists():
        raise SourceError(
            f"{path} holds experiments in LMDB; read it with 'knockgraph screen import torchcell --from {path}'"
        )
    files = [file for file in folder.glob("*.pt") if file.name not in _NOT_SAMPLES]
    if not files:
        raise FileFormatError(f"{folder} holds no .pt file; give the folder of a PyG dataset, or one of its files")
    numbered = {file: re.search(r"(\d+)\.pt$", file.name) for file in files}
    if len(files) > 1 and None in numbered.values():
        names = ", ".join(sorted(file.name for file in files)[:5])
        raise SourceError(f"{folder} holds several .pt files ({names}); give the one with the samples")
    return sorted(files, key=lambda file: int(found[1]) if (found := numbered[file]) else 0)


class _Collated:
    """A file as PyG's in-memory datasets have their samples: all attributes collated. Others: one sample after another.

    Args:
        file: What PyG saved: ``(data, slices)``, ``(dictionary, slices, class)``, a list of samples, or one sample.
    """

    def __init__(self, file: Path) -> None:
        found = _read(file)
        self._data: Any = None
        self.slices: Any = None
        self.samples: Sequence[Any] = ()
        if isinstance(found, tuple) and len(found) in (2, 3) and isinstance(found[1], dict):
            self._data, self.slices = found[0], found[1]
            if isinstance(found[0], dict):
                self._data = found[2].from_dict(found[0])
        elif isinstance(found, list):
            self.samples = found
        elif hasattr(found, "node_types") or hasattr(found, "perturbation_indices"):
            self.samples = [found]
        else:
            raise FileFormatError(
                f"{file} holds {type(found).__name__}, but samples are needed: an in-memory dataset's file, or a "
                "list of samples"
            )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


def _samples(files: Sequence[Path]) -> Iterator[Any]:
    for file in files:
        yield _read(file)


def _read(file: Path) -> Any:
    """What a file holds, if torch's restricted reader and PyG's containers are enough."""
    known = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _containers()}
    # torchcell's own subclass only says how to batch.
    known["torchcell.data.hetero_data.HeteroData"] = known["torch_geometric.data.hetero_data.HeteroData"]
    try:
        with torch.serialization.safe_globals([(kind, name) for name, kind in known.items()]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise FileFormatError(f"cannot read {file}: {error.strerror or error}") from error
    except Exception as error:  # torch raises anything for a damaged file
        needs = sorted(_named(file) - set(known))
        if needs:
            raise FileFormatError(
                f"{file} cannot be read without running code of {', '.join(needs[:3])}; load the dataset in Python "
                "with its own package, and use kg.Screen.from_pyg(dataset)"
            ) from error
        raise FileFormatError(f"{file} is not a readable file of torch.save; save the dataset again") from error


def _containers() -> list[type]:
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.feature_store import TensorAttr
    from torch_geometric.data.graph_store import EdgeAttr
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    from knockgraph.screen.pyg import PerturbedSample

    stores = [BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    return [Data, HeteroData, DataEdgeAttr, DataTensorAttr, TensorAttr, EdgeAttr, *stores, PerturbedSample]


def _named(file: Path) -> set[str]:
    """The classes and functions that a file names, beside those that torch's reader knows; nothing is run."""
    found = set()
    try:
        with zipfile.ZipFile(file) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
            strings: list[str] = []
            for operation, argument, _ in pickletools.genops(archive.read(name)):
                if operation.name == "GLOBAL":
                    found.add(str(argument).replace(" ", "."))
                elif operation.name == "STACK_GLOBAL":
                    found.add(".".join(strings[-2:]))
                elif isinstance(argument, str):
                    strings.append(argument)
    except (OSError, ValueError, zipfile.BadZipFile):
        return set()
    return {
        name for name in found if not name.startswith(("torch.", "collections.")) or name.startswith("torch._dynamo")
    }
