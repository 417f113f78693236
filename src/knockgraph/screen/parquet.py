"""A screen on disk: one Parquet file that any Parquet reader opens.

Columns: ``genotype`` (list of strings, ``NAME``, or ``NAME=VALUE`` of a gene that is not deleted; an empty list is the
wild type), one float column per phenotype (null = not measured), ``PHENOTYPE.STATISTIC`` columns, ``source``. The
schema's metadata key ``knockgraph`` holds a JSON object with ``format``, ``version``, ``phenotypes``, ``statistics``,
``content_hash``.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knockgraph.arrow import check_rows, encoded
from knockgraph.errors import FileFormatError, ScreenError
from knockgraph.files import atomic_write
from knockgraph.screen.genotypes import Genotypes
from knockgraph.screen.screen import Screen

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "knockgraph.screen"
VERSION = 2  # 1 has no values; screens without values are still written as 1
_KEY = b"knockgraph"


def write(screen: Screen, path: str | os.PathLike[str]) -> None:
    """Write ``screen`` to ``path`` atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    entries, codes = screen.genotypes.entries()
    genes = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(entries, pa.string()))
    big = screen.genotypes.ptr[-1] >= 2**31
    make = pa.LargeListArray if big else pa.ListArray
    offsets = pa.array(screen.genotypes.ptr, pa.int64() if big else pa.int32())
    columns: dict[str, pa.Array] = {"genotype": make.from_arrays(offsets, genes)}
    for name, values in _numbers(screen).items():
        columns[name] = pa.array(values, from_pandas=True)  # NaN becomes null
    columns["source"] = pa.DictionaryArray.from_arrays(
        pa.array(screen.source_codes), pa.array(screen.source_names, pa.string())
    )
    about = {
        "format": FORMAT,
        "version": 1 if screen.genotypes.values is None else VERSION,
        "phenotypes": list(screen.phenotypes),
        "statistics": {name: list(kinds) for name, kinds in screen.statistics.items()},
        "content_hash": _content_hash(screen),
    }
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about)})
    with atomic_write(path) as part:
        pq.write_table(table, part, compression="zstd", write_page_checksum=True)


def read(path: str | os.PathLike[str]) -> Screen:
    """Read and verify a screen."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = Path(path)
    try:
        if not source.is_file():
            raise FileFormatError(f"cannot read {source}: there is no such file")
        check_rows(source)
        table = pq.read_table(source, page_checksum_verification=True, use_threads=True)
        table.validate(full=True)
        about = _about(table, source)
        screen = _screen(table, about)
        verified = _content_hash(screen) == about.get("content_hash")
    except FileFormatError:
        raise
    except (pa.ArrowException, OSError, UnicodeError) as error:
        detail = str(error).splitlines()[0]
        if isinstance(error, pa.ArrowInvalid) and not str(source).endswith(".parquet"):
            raise FileFormatError(
                f"{source} is not a readable screen, which is a Parquet file; if it is a table, make a screen of it: "
                f"knockgraph screen import table --from {source} -o {Path(source).stem}.parquet"
            ) from error
        raise FileFormatError(
            f"{source} is not a readable screen ({detail}): it is truncated, damaged or of another format; "
            "import it again"
        ) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a damaged footer can say anything
        raise FileFormatError(f"{source} does not describe a valid screen: {error}") from error
    if not verified:
        raise FileFormatError(
            f"the content of {source} does not match its content hash: it was damaged or changed by another program; "
            "import it again"
        )
    return screen


def _about(table: pa.Table, source: Path) -> dict[str, Any]:
    text = (table.schema.metadata or {}).get(_KEY)
    try:
        about: dict[str, Any] = json.loads(text) if text else {}
        version = int(about.get("version", -1))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"the header of {source} is damaged ({error}); import the screen again") from error
    if about.get("format") != FORMAT:
        raise FileFormatError(
            f"{source} is a Parquet file, but not a knockgraph screen; turn a table into one with "
            f"'knockgraph screen import table --from {source} -o FILE'"
        )
    if version > VERSION:
        raise FileFormatError(
            f"{source} has screen format version {version}, newer than the {VERSION} this release reads; "
            "upgrade knockgraph"
        )
    if version < 1:
        raise FileFormatError(f"{source} has the unknown screen format version {about.get('version')!r}")
    return about


def _screen(table: pa.Table, about: dict[str, Any]) -> Screen:
    column = {name: table.column(name).to_numpy() for name in table.column_names if name not in ("genotype", "source")}
    if table.column("source").null_count:
        raise ScreenError("an experiment has no source; an empty text means that it is not known")
    names, codes = encoded(table.column("source"))
    return Screen(
        genotypes(table.column("genotype")),
        {name: column[name] for name in about["phenotypes"]},
        {name: {kind: column[f"{name}.{kind}"] for kind in kinds} for name, kinds in about["statistics"].items()},
        (names, codes),
    )


def genotypes(column: pa.ChunkedArray) -> Genotypes:
    """Genotypes of a column of lists of strings; a null is an error, because it is not the wild type."""
    import pyarrow as pa

    if not _is_list_of_texts(column.type):
        raise ScreenError(f"the genotype column holds {column.type}, but lists of gene names are needed")
    if column.null_count:
        row = column.is_null().to_numpy().argmax()
        raise ScreenError(f"the genotype of experiment {row} is missing; an empty list means the wild type")
    ptr = np.zeros(len(column) + 1, dtype=np.int64)
    lengths = [chunk.value_lengths().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    np.cumsum(np.concatenate([*lengths, np.empty(0, dtype=np.int64)]), out=ptr[1:])
    flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], type=column.type.value_type)
    if flat.null_count:
        entry = flat.is_null().to_numpy().argmax()
        row = int(np.searchsorted(ptr, entry, side="right")) - 1
        raise ScreenError(f"the genotype of experiment {row} holds a missing gene name")
    names, codes = encoded(flat)
    return Genotypes.from_entries(names, codes, ptr)


def _is_list_of_texts(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    inner = kind.value_type
    inner = inner.value_type if pa.types.is_dictionary(inner) else inner
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


def _numbers(screen: Screen) -> dict[str, np.ndarray[Any, Any]]:
    columns: dict[str, np.ndarray[Any, Any]] = dict(screen.phenotypes)
    for name, kinds in screen.statistics.items():
        columns |= {f"{name}.{kind}": values for kind, values in kinds.items()}
    return columns


def _content_hash(screen: Screen) -> str:
    """SHA-256 of everything the screen says."""
    statistics = {name: list(kinds) for name, kinds in screen.statistics.items()}
    about = [screen.genotypes.hash, list(screen.phenotypes), statistics, screen.source_names]
    h = hashlib.sha256(json.dumps(about).encode())
    for values in _numbers(screen).values():
        # Every NaN counts as the same missing value, whatever its bits.
        h.update(np.where(np.isnan(values), np.nan, values).tobytes())
    h.update(screen.source_codes.tobytes())
    return h.hexdigest()
