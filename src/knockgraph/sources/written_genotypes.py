"""Written genotypes of tables, collected block by block, so that the strings are never all in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from knockgraph.errors import ScreenError
from knockgraph.graph.genes import BOTH_NAMES, DAMP, WILD_TYPE, unmarked
from knockgraph.screen import Genotypes
from knockgraph.screen.genotypes import name_and_value, parse
from knockgraph.sources.table_layout import WILD_TYPES

if TYPE_CHECKING:
    import pyarrow as pa


class WrittenGenotypes:
    """Collects genotypes, given as strings (``A+B``, ``WT``) or as lists of names, as codes into one list of names.

    Args:
        join: What divides the genes of a string, one of :data:`JOINS`.
        control: A gene whose deletion has no effect, and which counts as none.

    Attributes:
        marked: Names that were written with the mark of a deletion, see :func:`unmarked`.
        controls: How many genotypes had the control.
    """

    def __init__(self, join: str = "+", control: str | None = None) -> None:
        self.marked: dict[str, None] = {}
        self.controls = 0
        self._control = control
        self._join = join
        self._code: dict[str, int] = {}
        self._codes: list[npt.NDArray[np.int32]] = []
        self._sizes: list[npt.NDArray[np.int32]] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, column: pa.Array) -> None:
        """The genotypes of some more experiments.

        Raises:
            ScreenError: A genotype or one of its genes is empty or missing; the message gives the row.
        """
        import pyarrow as pa

        kind = column.type
        if _is_list(kind) and (pa.types.is_fixed_size_list(kind) or pa.types.is_integer(kind.value_type)):
            column = column.cast(pa.large_list(pa.string()))
        elif pa.types.is_nested(kind) and not _is_list(kind):
            raise ScreenError(f"the column 'genotype' holds {kind}; give strings or lists of strings")
        lists = pa.types.is_nested(kind)
        if column.null_count:
            missing = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
            what = "missing; an empty list means" if lists else f"blank; write {WILD_TYPE} for"
            raise ScreenError(f"data row {self._rows + missing + 1}: the genotype is {what} the wild type")
        genes, sizes = (column.flatten(), column.value_lengths()) if lists else self._split(column)
        genes = genes.cast(pa.string()) if not pa.types.is_dictionary(genes.type) else genes
        genes = genes if pa.types.is_dictionary(genes.type) else genes.dictionary_encode()
        size = sizes.to_numpy(zero_copy_only=False).astype(np.int32)
        if genes.null_count:
            row = self._row_of(int(genes.is_null().to_numpy(zero_copy_only=False).argmax()), size)
            raise ScreenError(f"data row {row}: the genotype holds a missing gene name")
        names = genes.dictionary.cast(pa.string()).to_pylist()
        codes = genes.indices.to_numpy(zero_copy_only=False)
        if not lists:
            names = [name.strip() for name in names]
            codes, size = self._without_wild_type(column, names, codes, size)
        self.marked |= dict.fromkeys(name for name in names if unmarked(name) != name)
        names = [unmarked(name) for name in names]
        neutral = [code for code, name in enumerate(names) if name == self._control]
        if neutral:
            codes, size, rows = _without(neutral, codes, size)
            self.controls += rows
        for code, name in enumerate(names):
            if "=" in name and name not in self._code:
                self._check_value(name, code, codes, size)
        known = np.array([self._code.setdefault(name, len(self._code)) for name in names] or [0], dtype=np.int32)
        self._codes.append(known[codes])
        self._sizes.append(size)
        self._rows += len(column)

    def genotypes(self) -> Genotypes:
        """All genotypes, in the order in which they were added."""
        ptr = np.zeros(self._rows + 1, dtype=np.int64)
        at = 0
        for size in self._sizes:
            ptr[at + 1 : at + 1 + len(size)] = size
            at += len(size)
        np.cumsum(ptr, out=ptr)
        codes = np.concatenate([*self._codes, np.empty(0, dtype=np.int32)])
        self._codes.clear()
        return Genotypes.from_entries(tuple(self._code), codes, ptr)

    def repeated(self, genotypes: Genotypes) -> int:
        """How many of the genotypes name a gene more than once."""
        written = np.concatenate([*self._sizes, np.empty(0, dtype=np.int32)])
        return int((written > genotypes.size).sum())

    def _split(self, column: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The names of all genotypes in sequence, with surrounding spaces, and how many each genotype has."""
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = column.cast("string")
        if pc.any(pc.starts_with(texts, "'")).as_py():
            texts = pc.replace_substring_regex(texts, "^'([=+@'-])", "\\1")  # see as_text
        if self._join == "space":
            wild = pc.is_in(pc.utf8_lower(pc.utf8_trim_whitespace(texts)), pa.array(sorted(WILD_TYPES)))
            texts = pc.replace_substring_regex(texts, BOTH_NAMES, r"\1")
            texts = pc.replace_substring_regex(texts, DAMP, "-DAmP")  # without spaces
            texts = pc.if_else(wild, WILD_TYPE, pc.replace_substring_regex(texts, r"\s*=\s*", "="))
            texts = pc.replace_substring_regex(pc.utf8_trim_whitespace(texts), r"\s+", "+")
        elif self._join == "/" or pc.any(pc.match_substring_regex(texts, "[,|;]")).as_py():
            texts = pc.replace_substring_regex(texts, "/" if self._join == "/" else "[,|;]", "+")
        lists = pc.split_pattern(texts, "+")
        return lists.flatten(), lists.value_lengths()

    def _without_wild_type(
        self, column: pa.Array, names: list[str], codes: npt.NDArray[np.int32], size: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The same without the entries for the wild type; an empty one is refused."""
        blank = [code for code, name in enumerate(names) if not name]
        if blank:
            row = self._row_of(int(np.isin(codes, blank).argmax()), size)
            try:
                parse(column[row - 1 - self._rows].as_py())
            except ScreenError as error:
                raise ScreenError(f"data row {row}: {error}") from error
        none = [code for code, name in enumerate(names) if name.casefold() in WILD_TYPES]
        return _without(none, codes, size)[:2] if none else (codes, size)

    def _check_value(self, name: str, code: int, codes: npt.NDArray[np.int32], size: npt.NDArray[np.int32]) -> None:
        try:
            name_and_value(name)
        except ScreenError as error:
            row = self._row_of(int((codes == code).argmax()), size)
            raise ScreenError(f"data row {row}: {error}") from error

    def _row_of(self, entry: int, size: npt.NDArray[np.int32]) -> int:
        """The number, from 1, of the experiment that an entry of this block belongs to."""
        return self._rows + int(np.searchsorted(np.cumsum(size), entry, side="right")) + 1


def _without(
    none: list[int], codes: npt.NDArray[np.int32], size: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
    """Genotypes without some codes, and how many of them had one."""
    left_out = np.isin(codes, none)
    in_row = np.bincount(np.repeat(np.arange(len(size)), size)[left_out], minlength=len(size))
    return codes[~left_out], (size - in_row).astype(np.int32), int((in_row > 0).sum())


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
