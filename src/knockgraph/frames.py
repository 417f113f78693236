"""Dataframes out, in the library that the user works with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from knockgraph.errors import MissingPackageError

Library = Literal["pandas", "polars", "pyarrow"]


def library_of(table: object) -> Library:
    """The library of a table; pandas for anything that is not one of polars or Arrow.

    >>> library_of({"genotype": ["WT"]})
    'pandas'
    """
    module = type(table).__module__.partition(".")[0]
    return "polars" if module == "polars" else "pyarrow" if module == "pyarrow" else "pandas"


def frame(columns: Mapping[str, Sequence[Any]], library: Library, index: str | None = None) -> Any:
    """A dataframe.

    Args:
        columns: Name → values.
        library: Whose.
        index: The column that becomes the index of pandas; other libraries keep it as the first column.
    """
    if library == "pyarrow":
        import pyarrow as pa

        return pa.table(dict(columns))
    if library == "polars":
        import polars as pl

        return pl.DataFrame(dict(columns))
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError(
            "dataframes need pandas; install it with pip install pandas, or give polars or Arrow tables"
        ) from error
    made = pd.DataFrame(dict(columns))
    return made if index is None else made.set_index(index)
