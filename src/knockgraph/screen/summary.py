"""A screen in figures: what ``knockgraph screen info`` shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from knockgraph.screen.screen import Screen


def summarise(screen: Screen) -> dict[str, Any]:
    """Sizes, genotype sizes, phenotypes, sources, duplicates; JSON-safe."""
    size, count = np.unique(screen.genotypes.size, return_counts=True)
    sources = np.bincount(screen.source_codes, minlength=len(screen.source_names))
    duplicates = screen.duplicates()
    valued = np.empty(0) if screen.genotypes.values is None else screen.genotypes.values[screen.genotypes.values != 0]
    doses = {"entries": len(valued), "min": float(valued.min()), "max": float(valued.max())} if len(valued) else None
    return {
        "experiments": len(screen),
        "genes": len(screen.genotypes.names),
        "deletions": {int(s): int(c) for s, c in zip(size, count, strict=True)},
        "doses": doses,
        "phenotypes": {
            name: {**_figures(values), "statistics": list(screen.statistics.get(name, {}))}
            for name, values in screen.phenotypes.items()
        },
        "sources": {name: int(c) for name, c in zip(screen.source_names, sources, strict=True)},
        "duplicates": {
            "genotypes": duplicates.genotypes,
            "experiments": duplicates.experiments,
            "most": duplicates.most,
        },
        "genotypes_hash": screen.genotypes.hash,
    }


def _figures(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    measured = values[~np.isnan(values)]
    figures: dict[str, Any] = {"measured": len(measured), "missing": len(values) - len(measured)}
    if len(measured):
        figures |= {"mean": measured.mean(), "std": measured.std(), "min": measured.min(), "max": measured.max()}
    return {name: v if isinstance(v, int) else float(v) for name, v in figures.items()}
