"""A screen of somebody else's PyG dataset: samples with the genes they perturb and their phenotypes.

===============================================  =======================================================================
a sample's attribute                             content
===============================================  =======================================================================
``perturbed_genes`` or ``ids_pert``              names of the perturbed genes, or instead of them
``perturbation_indices``                         their rows in a list of gene names, see :func:`screen_from_pyg`
``perturbation_values``                          where they are not all deleted: one value per gene
``phenotype_values``                             all numbers that were measured; where a transform has changed them,
                                                 ``phenotype_values_original`` instead
``phenotype_type_indices``, ``phenotype_types``  which phenotype each of them is; without indices, in the order of the
                                                 types
``phenotype_sample_indices``                     which measurement each belongs to, where phenotypes were measured
                                                 repeatedly
``phenotype_stat_values``, …                     the same for statistics, called ``PHENOTYPE_STATISTIC``; a sample
                                                 without any may lack these
===============================================  =======================================================================

They are attributes of ``sample["gene"]``, or of the sample itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import ScreenError
from knockgraph.screen import ragged
from knockgraph.screen.coordinates import Coordinates, as_columns, nth
from knockgraph.screen.genotypes import Genotypes
from knockgraph.screen.screen import Screen

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph, GeneNames

_NAMES = ("perturbed_genes", "ids_pert")
_LABELS = tuple(
    f"{prefix}_{what}"
    for prefix in ("phenotype", "phenotype_stat")
    for what in ("values", "type_indices", "sample_indices", "types")
)
_ORIGINAL = "phenotype_values_original"
ATTRIBUTES = (*_NAMES, "perturbation_indices", "perturbation_values", *_LABELS, _ORIGINAL)
"""What is read of a sample."""


class _Attribute:
    """One attribute of all samples: the entries one after another, and where those of each sample start."""

    def __init__(self, flat: Sequence[Any] | npt.NDArray[Any], ptr: npt.NDArray[np.int64]) -> None:
        self.flat = flat
        self.ptr = ptr

    @staticmethod
    def of_lists(lists: Iterable[Any]) -> _Attribute:
        rows = [_entries(row) for row in lists]
        ptr = np.concatenate([[0], np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))]).astype(np.int64)
        return _Attribute(list(itertools.chain.from_iterable(rows)), ptr)

    @staticmethod
    def of_collated(value: Any, cut: Any) -> _Attribute:
        """As PyG's in-memory datasets keep it: one tensor or one list for all samples."""
        if not hasattr(value, "numpy"):
            return _Attribute.of_lists(value)
        ptr = np.asarray(cut, dtype=np.int64)
        if ptr.ndim != 1 or len(ptr) == 0 or ptr[0] < 0 or ptr[-1] > len(value) or bool((np.diff(ptr) < 0).any()):
            raise ScreenError(f"the slices of the dataset do not fit its {len(value)} values; save it again")
        width = value[:1].numel() if value.dim() > 1 else 1
        return _Attribute(value[int(ptr[0]) : int(ptr[-1])].flatten().numpy(), (ptr - ptr[0]) * width)


def screen_from_pyg(
    dataset: Any, genes: CellGraph | GeneNames | Sequence[str] | None = None, source: str = ""
) -> Screen:
    """See :meth:`Screen.from_pyg`."""
    found = _collated(dataset)
    if found is None:
        found = _collected(dataset)
    counts = {len(attribute.ptr) - 1 for attribute in found.values()}
    if len(counts) > 1:
        raise ScreenError(
            f"the attributes are those of different numbers of samples ({counts}); save the dataset again"
        )
    samples = counts.pop() if counts else 0
    if samples == 0:
        raise ScreenError("the dataset has no samples with perturbed genes; is it the right one?")
    if "phenotype_values" not in found:
        raise ScreenError(
            "the samples have no phenotype_values; give each the numbers that were measured, with phenotype_types, as "
            "kg.PerturbationDataset does"
        )
    if _ORIGINAL in found:
        found["phenotype_values"] = found.pop(_ORIGINAL)
    if genes is None:
        genes = _gene_names_of(dataset)
    genotypes = _genotypes(found, genes)
    made = as_columns(samples, _coordinates(found, "phenotype"), _coordinates(found, "phenotype_stat"))
    return Screen(genotypes.take(made.sample), made.phenotypes, made.statistics, source)


def _gene_names_of(dataset: Any) -> Any:
    """The gene list of a dataset that has a cell graph of its own."""
    cell = getattr(dataset, "cell_graph", None)
    return None if cell is None else cell["gene"].node_ids


def _collated(dataset: Any) -> dict[str, _Attribute] | None:
    """The attributes of a whole in-memory dataset, without a look at its samples; ``None`` for any other."""
    data, slices = getattr(dataset, "_data", None), getattr(dataset, "slices", None)
    plain = getattr(dataset, "_indices", None) is None and getattr(dataset, "transform", None) is None
    if data is None or slices is None or not plain:
        return None
    grouped = "gene" in getattr(data, "node_types", ())
    return collated(data["gene"] if grouped else data, slices["gene"] if grouped else slices)


def collated(store: Any, slices: Mapping[str, Any]) -> dict[str, _Attribute]:
    """The attributes that PyG has collated, as :class:`InMemoryDataset` keeps them and saves them."""
    names = [name for name in ATTRIBUTES if name in store and name in slices]
    return {name: _Attribute.of_collated(store[name], slices[name]) for name in names}


def _collected(samples: Iterable[Any]) -> dict[str, _Attribute]:
    """The attributes of samples that are looked at one by one."""
    lists: dict[str, list[Any]] = {}
    for number, sample in enumerate(samples):
        if sample is None:  # what torchcell's datasets return for a record that is not there
            raise ScreenError(f"sample {number} of the dataset is missing; leave it out, or process the dataset again")
        store = sample["gene"] if "gene" in getattr(sample, "node_types", ()) else sample
        for name in ATTRIBUTES:
            if name in store:
                if name not in lists:
                    lists[name] = [_absent(name, before, number) for before in range(number)]
                lists[name].append(store[name])
            elif name in lists:
                lists[name].append(_absent(name, number, 0))
    return {name: _Attribute.of_lists(rows) for name, rows in lists.items()}


def _absent(name: str, sample: int, other: int) -> tuple[()]:
    """What stands for an attribute that a sample lacks and another has."""
    if name.startswith("phenotype_stat_"):
        return ()
    raise ScreenError(f"sample {sample} has no {name}, but sample {other} has; give it to every sample, or to none")


def _entries(value: Any) -> list[Any]:
    if hasattr(value, "flatten"):
        value = value.flatten().tolist()
    return [value] if isinstance(value, (str, int, float)) else list(value)


def _genotypes(found: Mapping[str, _Attribute], genes: Any) -> Genotypes:
    """The perturbed genes by name."""
    named = next((found[name] for name in _NAMES if name in found), None)
    indexed = found.get("perturbation_indices")
    if named is None and indexed is None:
        raise ScreenError(
            "the samples have neither perturbed_genes (names) nor perturbation_indices (rows of a gene list); give "
            'each sample one of them, in sample["gene"]'
        )
    if named is not None:
        names = sorted(set(named.flat))
        wrong = next((name for name in names if not isinstance(name, str)), None)
        if wrong is not None:
            raise ScreenError(f"perturbed_genes holds {wrong!r}; every gene needs a name, as text")
        code = {name: i for i, name in enumerate(names)}
        codes = np.fromiter((code[name] for name in named.flat), np.int32, len(named.flat))
        chosen, names_of = named, tuple(names)
    else:
        assert indexed is not None
        chosen, names_of = indexed, _gene_list(genes)
        codes = np.asarray(indexed.flat, dtype=np.int64)
        outside = np.flatnonzero((codes < 0) | (codes >= len(names_of)))
        if len(outside):
            sample = int(np.searchsorted(indexed.ptr, outside[0], side="right")) - 1
            raise ScreenError(
                f"sample {sample} perturbs gene {int(codes[outside[0]])}, but there are {len(names_of)} gene names; "
                "give the gene list that the indices were made for"
            )
    values = found.get("perturbation_values")
    if values is not None and not np.array_equal(values.ptr, chosen.ptr):
        raise ScreenError("perturbation_values needs one value for each perturbed gene of each sample")
    return Genotypes(names_of, codes, chosen.ptr, None if values is None else np.asarray(values.flat, np.float64))


def _gene_list(genes: Any) -> tuple[str, ...]:
    if genes is None:
        raise ScreenError(
            "the samples have perturbation_indices but no perturbed_genes, so the genes have no names; say which they "
            "are: genes=GRAPH in Python, --genes FILE.cellgraph on the command line"
        )
    names = getattr(genes, "genes", genes)  # a cell graph's
    return tuple(getattr(names, "names", names))


def _coordinates(found: Mapping[str, _Attribute], prefix: str) -> Coordinates:
    values = found.get(f"{prefix}_values")
    if values is None:
        none = np.zeros(0, dtype=np.int64)
        return Coordinates(none, none, none, np.zeros(0), ())
    sample = ragged.row_of_entry(values.ptr)
    kind, names = _kinds(found, prefix, values)
    item = _aligned(found, f"{prefix}_sample_indices", values)
    if item is None:
        item = nth(sample * max(len(names), 1) + kind)
    return Coordinates(sample, kind, item, np.asarray(values.flat, dtype=np.float64), names)


def _kinds(
    found: Mapping[str, _Attribute], prefix: str, values: _Attribute
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Which type each value is, and the names of the types in the order in which they come."""
    types = found.get(f"{prefix}_types")
    indices = _aligned(found, f"{prefix}_type_indices", values)
    within = np.arange(values.ptr[-1]) - np.repeat(values.ptr[:-1], np.diff(values.ptr))
    local = within if indices is None else indices
    if types is None:
        return local, tuple(f"{prefix}_{i}" for i in range(int(local.max(initial=-1)) + 1))
    code = {name: i for i, name in enumerate(dict.fromkeys(map(str, types.flat)))}
    flat = np.fromiter((code[str(name)] for name in types.flat), np.int64, len(types.flat))
    sample = ragged.row_of_entry(values.ptr)
    outside = np.flatnonzero((local < 0) | (local >= np.diff(types.ptr)[sample]))
    if len(outside):
        at = int(sample[outside[0]])
        known = [str(name) for name in types.flat[types.ptr[at] : types.ptr[at + 1]]]
        raise ScreenError(
            f"sample {at} has a value of type {int(local[outside[0]])}, but its {prefix}_types are {known}; correct "
            f"its {prefix}_type_indices"
        )
    return flat[types.ptr[sample] + local] if len(sample) else local, tuple(code)


def _aligned(found: Mapping[str, _Attribute], name: str, values: _Attribute) -> npt.NDArray[np.int64] | None:
    """An attribute with one entry for each value."""
    given = found.get(name)
    if given is None:
        return None
    unequal = np.flatnonzero(np.diff(given.ptr) != np.diff(values.ptr))
    if len(unequal):
        at = int(unequal[0])
        raise ScreenError(
            f"sample {at} has {int(np.diff(values.ptr)[at])} values, but {int(np.diff(given.ptr)[at])} entries in "
            f"{name}; give one for each"
        )
    return np.asarray(given.flat, dtype=np.int64)
