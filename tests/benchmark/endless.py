"""Baselines whose fit does not end, for a test that kills a benchmark."""

import os
import time
from pathlib import Path

from knockgraph.models.baselines.baseline import Floats, GenotypeRows, Mean


class Endless(Mean):
    """Writes the id of its process down, and waits."""

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        Path(os.environ["ENDLESS"], f"endless.{os.getpid()}").touch()
        time.sleep(600)


class Other(Endless):
    """Another one, for another process."""
