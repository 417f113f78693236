"""The tables of docs/results.md, from what ``knockgraph benchmark`` wrote.

``python docs/tools/results.py FOLDER`` keeps the figures of FOLDER/benchmark.json in docs/results.json, without paths
and without times (of a machine that did other things, too), and writes the tables; without a folder it writes them
again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from knockgraph.report.benchmark import markdown

DOCS = Path(__file__).parents[1]
START, END = "<!-- tables of docs/results.json -->", "<!-- end of the tables -->"


def kept(result: dict[str, Any]) -> dict[str, Any]:
    """What is worth keeping of a benchmark."""
    tables = [
        {**table, "rows": [{**row, "seconds": None, "chosen": None} for row in table["rows"]]}
        for table in result["tables"]
    ]
    return {**result, "tables": tables}


def page(text: str, result: dict[str, Any]) -> str:
    """The page with these tables."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{markdown(result)}\n{END}{after}"


if __name__ == "__main__":
    figures, shown = DOCS / "results.json", DOCS / "results.md"
    if len(sys.argv) > 1:
        found = kept(json.loads((Path(sys.argv[1]) / "benchmark.json").read_text(encoding="utf-8")))
        figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = page(shown.read_text(encoding="utf-8"), json.loads(figures.read_text(encoding="utf-8")))
    shown.write_text(text, encoding="utf-8")
