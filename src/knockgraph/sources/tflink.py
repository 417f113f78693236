"""TFLink's simple format: transcription factor → target gene, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from knockgraph.sources.delimited import DelimitedFile
from knockgraph.sources.edges import EdgeCollector, distinct
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport


def read_tflink(path: Path, resolve: NameResolver, report: FileReport, small_scale_only: bool = False) -> Tensor:
    """Directed edges factor → target, ``[2, edges]``; a cell with several names (``A;B``) stands for an edge each.

    Args:
        path: ``TFLink_Saccharomyces_cerevisiae_interactions_All_simpleFormat_v1.0.tsv``, also compressed.
        resolve: Resolves the names.
        report: Records what was read and dropped.
        small_scale_only: Only edges with small-scale evidence.
    """
    file = DelimitedFile(path, "\t")
    factor, target = file.need("Name.TF"), file.need("Name.Target")
    evidence = file.need("Small-scale.evidence") if small_scale_only else None
    collected = EdgeCollector(len(resolve.genes), directed=True)
    for batch in file.batches(dict.fromkeys([factor, target, *([evidence] if evidence else [])], "text")):
        report.read += len(batch)
        if evidence:
            small = np.array([text.strip().lower() == "yes" for text in batch.column(evidence).to_pylist()], bool)
            report.drop("no small-scale evidence", int((~small).sum()))
            batch = batch.filter(small)
        (left, a), (right, b) = distinct(batch.column(factor)), distinct(batch.column(target))
        parts = [[[p.strip() for p in name.split(";")] for name in names] for names in (left, right)]
        if all(len(p) == 1 for side in parts for p in side):
            source, aim = resolve.many(left, a), resolve.many(right, b)
        else:
            pairs = [(f, t) for i, j in zip(a, b, strict=True) for f in parts[0][i] for t in parts[1][j]]
            names = sorted({name for pair in pairs for name in pair})
            code = {name: k for k, name in enumerate(names)}
            source, aim = (resolve.many(names, np.array([code[p[side]] for p in pairs], np.int64)) for side in (0, 1))
        known = (source >= 0) & (aim >= 0)
        report.drop("a name does not resolve", int((~known).sum()))
        collected.add(source[known], aim[known])
    report.unresolved = resolve.finish(str(path))
    collected.tell(report)
    edges = collected.result()
    assert isinstance(edges, Tensor)
    return edges
