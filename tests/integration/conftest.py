"""What several integration tests share."""

from collections.abc import Iterator

import pytest
from browser import Browser, chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A real browser; each test opens pages in tabs of its own."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium: install it (Debian: chromium), or name it in KNOCKGRAPH_CHROMIUM")
    with Browser(program, tmp_path_factory.mktemp("chromium")) as started:
        yield started
