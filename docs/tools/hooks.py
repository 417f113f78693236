"""What the site does to pages before they are rendered: the README is its front page, test tags stay out of sight."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PICTURE = re.compile(r'<picture>.*?<img alt="([^"]*)" src="docs/([^"]*)-light\.svg".*?</picture>', re.DOTALL)
TAG = re.compile(r"^```(bash|python) (slow|gpu)$", re.MULTILINE)  # what tests/integration/test_docs.py goes by


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Markdown as written for a repository → as the site wants it."""
    source = page.file.src_uri
    if source == "index.md":
        markdown = front_page((ROOT / "README.md").read_text(encoding="utf-8"))
    elif source in ("contributing.md", "changelog.md"):
        markdown = (ROOT / source.upper().replace(".MD", ".md")).read_text(encoding="utf-8").replace("](docs/", "](")
    return TAG.sub(r"```\1", markdown)


def front_page(readme: str) -> str:
    """The README with its links and pictures as seen from ``docs/``."""
    readme = PICTURE.sub(r"![\1](\2-light.svg#only-light)\n![\1](\2-dark.svg#only-dark)", readme)
    readme = readme.replace("](docs/", "](").replace("[CITATION.cff](CITATION.cff)", "`CITATION.cff`")
    return readme.replace("](CONTRIBUTING.md", "](contributing.md").replace("](CHANGELOG.md", "](changelog.md")
