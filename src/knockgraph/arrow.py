"""Columns of Arrow tables, and Parquet files that are safe to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from knockgraph.errors import FileFormatError

if TYPE_CHECKING:
    import pyarrow as pa

_FREE_ROWS = 1 << 22  # that any file may hold
_MOST_ROWS_PER_BYTE = 10  # beyond that; screens have less than one, files made to fill the memory thousands


def check_rows(path: Path) -> None:
    """Refuse a small Parquet file that says it has more rows than the memory could hold."""
    import pyarrow.parquet as pq

    rows = pq.read_metadata(path).num_rows
    if rows > max(_FREE_ROWS, _MOST_ROWS_PER_BYTE * path.stat().st_size):
        raise FileFormatError(
            f"{path} has {rows:,} rows in {path.stat().st_size:,} bytes, as files do that are made to fill the memory; "
            "if it is sound, write it again without compression"
        )


def encoded(column: pa.Array | pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int32]]:
    """The distinct texts of a column and one code per row."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # no chunk at all
        return [], np.empty(0, dtype=np.int32)
    return column.dictionary.to_pylist(), column.indices.to_numpy(zero_copy_only=False).astype(np.int32)
