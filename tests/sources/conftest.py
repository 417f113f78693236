"""What the tests of sources share: names, and the real files where they are."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from knockgraph.graph import GeneNames
from knockgraph.sources.names import NameResolver, Policy

GENES = ["YAL001C", "YAL002W", "YAL003W", "YBR004C", "YDL227C"]
ALIASES = {"YAL001C": ["TFC3", "FUN24"], "YAL002W": ["VPS8"], "YAL003W": ["EFB1", "TEF5"], "YDL227C": ["HO"]}


@pytest.fixture
def resolver() -> Callable[..., NameResolver]:
    def make(unknown: Policy = "error", elsewhere: dict[str, str] | None = None) -> NameResolver:
        return NameResolver(GeneNames(GENES, ALIASES), elsewhere, unknown)

    return make


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of real public files, for tests that count them."""
    folder = Path(os.environ.get("KNOCKGRAPH_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (folder / "genes" / "SGD_features.tab.gz").is_file():
        pytest.skip("the real yeast files are not here; set KNOCKGRAPH_DATA to the folder that holds genes/, string/ …")
    return folder
