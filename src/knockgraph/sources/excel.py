"""Excel workbooks, read by python-calamine where it is installed."""

from __future__ import annotations

import datetime
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from knockgraph.errors import FileFormatError
from knockgraph.sources.delimited import members
from knockgraph.sources.table_layout import names_genes
from knockgraph.words import listed

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_BYTES = 1 << 30  # of the unpacked workbook; a full sheet of a million rows has less
_MOST_CELLS = 50_000_000  # of the rectangle around all cells of a sheet, which calamine holds in memory
_AT_ONCE = 1 << 22
_PLACE = re.compile(rb"""\sr\s*=\s*["']([A-Za-z]*)([0-9]+)["']""")
_UNPLACED = re.compile(rb"""<c(?=[\s/>])(?![^>]*\sr\s*=)""")


def is_workbook(file: Path) -> bool:
    """Whether a file is an Excel workbook, by its content."""
    if file.suffix.lower() == ".xls":
        return True
    return "xl/workbook.xml" in (members(file) or ())


def read_workbook(file: Path, sheet: str | None) -> tuple[str, dict[str, pa.Array]]:
    """Which sheet it is, in words, and its columns.

    Args:
        file: The workbook.
        sheet: Which sheet; by default the only one that holds anything, or the only one with columns of genes.

    Numbers stay numbers in columns that hold nothing else; other columns are texts. A date is refused: most likely it
    was a gene name, such as OCT1, before the spreadsheet saw it.
    """
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError as error:
        raise FileFormatError(
            f"{file} is an Excel workbook; save its sheet as CSV and give that, or pip install 'knockgraph[excel]'"
        ) from error
    _refuse_huge(file)
    try:
        book = CalamineWorkbook.from_path(file)
        filled = {name: rows for name in book.sheet_names if (rows := book.get_sheet_by_name(name).to_python())}
    except (CalamineError, OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {file}: {str(error).splitlines()[0]}") from error
    why = ""
    if sheet is None:
        tables = [name for name, rows in filled.items() if len(filled) == 1 or names_genes(_below_title(rows)[0])]
        if len(tables) == 1:
            sheet = tables[0]
            why = f", the only one of {len(filled)} with columns of genes" if len(filled) > 1 else ""
    if sheet is None or sheet not in filled:
        what = f"has no sheet {sheet!r}" if sheet is not None else "has several sheets"
        what = what if filled else "holds nothing"
        raise FileFormatError(f"{file} {what}; choose with --sheet: {listed(list(filled), 'or', 10) or 'none'}")
    return f"sheet {sheet!r} of an Excel workbook{why}", _columns(file, filled[sheet])


def _columns(file: Path, rows: list[list[Any]]) -> dict[str, pa.Array]:
    import pyarrow as pa

    names, body = _below_title(rows)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise FileFormatError(f"{file} has more than one column {', '.join(map(repr, repeated))}; rename or remove one")
    columns = {}
    for at, name in enumerate(names):
        cells = [row[at] for row in body]
        dated = next((n for n, cell in enumerate(cells) if isinstance(cell, datetime.date | datetime.time)), None)
        if dated is not None and any(isinstance(cell, str) and cell for cell in cells):
            raise FileFormatError(
                f"{file}, column {name!r}, data row {dated + 1}: the spreadsheet holds the date {cells[dated]}; if it "
                "was a gene name, write it again as text"
            )
        if all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells if cell != ""):
            columns[name] = pa.array([None if cell == "" else float(cell) for cell in cells], pa.float64())
        else:
            columns[name] = pa.array([_text(cell) for cell in cells], pa.string())
    return columns


def _below_title(rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """The names of the columns, and the rows under them."""
    rows = [row for row in rows if any(cell != "" for cell in row)]
    while len(rows) > 1 and (str(rows[0][0]).startswith(("#", "%")) or _is_title(rows[0], rows[1])):
        rows = rows[1:]
    header, *body = rows or [[]]
    return [_text(cell).strip() or f"column {at + 1}" for at, cell in enumerate(header)], body


def _is_title(first: list[Any], second: list[Any]) -> bool:
    """Whether a row is a title above the header: one cell, where the next row has several."""
    first_cells, second_cells = (sum(1 for cell in row if cell != "") for row in (first, second))
    return first_cells == 1 < second_cells


def _text(cell: Any) -> str:
    """A cell as text; Excel has no integers."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _refuse_huge(file: Path) -> None:
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if size > _MOST_BYTES:
            raise FileFormatError(f"{file} unpacks to {size:,} bytes; save its sheet as CSV and give that")
        for name in archive.namelist():
            rows, columns = _extent(archive, name) if "/worksheets/" in name else (0, 0)
            if rows * columns > _MOST_CELLS:
                raise FileFormatError(
                    f"{file} has a sheet of {rows:,} × {columns:,} cells ({name}); delete the cells far from "
                    "the table, or save the sheet as CSV and give that"
                )


def _extent(archive: zipfile.ZipFile, name: str) -> tuple[int, int]:
    """Rows and columns from the first cell of a sheet to its last, at most; a cell may leave out its place."""
    rows = columns = 0
    with archive.open(name) as sheet:
        for text in _rows(sheet):
            placed = _PLACE.findall(text)
            rows = max([rows, *(int(number) for _, number in placed)])
            last = max((_column(letters) for letters, _ in placed), default=0)
            columns = max(columns, last + len(_UNPLACED.findall(text)))
    return rows, columns


def _rows(sheet: IO[bytes]) -> Iterator[bytes]:
    """The text of each row of a sheet."""
    rest = b""
    while block := sheet.read(_AT_ONCE):
        *whole, rest = (rest + block).split(b"<row")
        yield from whole
    yield rest


def _column(letters: bytes) -> int:
    """``A`` is 1, ``Z`` 26, ``AA`` 27."""
    number = 0
    for letter in letters.upper():
        number = 26 * number + letter - 64
    return number
