"""The docs site builds strictly, without the network, and loads nothing from elsewhere."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from browser import Browser, Tab

ROOT = Path(__file__).parents[2]
# What a browser fetches by itself; links that a reader follows are no trouble.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\b(?:src|srcset)=[\"']?(?:https?:)?//[^>]*>"
    r"|<link\b[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon)\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*>"
    r"|@import\s+[^;]*//|url\(\s*[\"']?(?:https?:)?//[^)]*\)"
)


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    built = tmp_path_factory.mktemp("site")
    # An unreachable proxy: whatever asks the network fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)]
    environment = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return built


def test_every_page_is_built(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file(), page.name
    assert not (site / "tools").exists()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for file in [*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]:
        found = FETCHED.search(file.read_text(encoding="utf-8"))
        assert found is None, f"{file.name} fetches {found and found[0]}"


def test_the_front_page_is_the_readme(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert 'id="two-commands"' in text
    for name in re.findall(r'src="(pictures/[^"#]+)', text):
        assert (site / name).is_file(), name
    assert "#only-dark" in text


def test_the_reference_shows_docstrings_not_their_markup(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in ("CellGraph", "ScreenLoader", "PerturbedGraphs", "NodeMask", "GINConv", "HeteroCellModel"):
        assert re.search(rf'id="knockgraph\.[a-z_.]*{name}"', text), name
    assert "<math" in text
    assert not re.search(r":(?:math|class|func|meth|data|attr|mod):|\.\. math::", text)


SEARCH = """new Promise(done => {
  const field = document.querySelector('.md-search__input');
  field.focus();
  field.value = 'keep-vector';
  field.dispatchEvent(new KeyboardEvent('keyup'));
  const start = Date.now();
  const look = () => {
    const found = [...document.querySelectorAll('.md-search-result__item a')].map(link => link.href);
    if (found.length || Date.now() - start > 20000) done([field.getClientRects().length, found]);
    else setTimeout(look, 100);
  };
  look();
})"""


def test_the_search_works_from_the_disk(site: Path, browser: Browser) -> None:
    seen, found = Tab(browser, site / "start.html", 1280, "light").evaluate(SEARCH)
    assert seen
    assert any("api.html#knockgraph.PerturbedGraphs" in link for link in found)
    assert all(link.startswith(site.resolve().as_uri()) for link in found)


def test_tags_of_the_tests_are_not_shown(site: Path) -> None:
    text = (site / "profile.html").read_text(encoding="utf-8")
    assert "bash slow" not in text
    assert "bash gpu" not in text


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("latex2mathml", reason="the docs extra is not installed")
    markdown = tool("docstrings").markdown
    assert markdown("See :class:`~knockgraph.Screen`, ``keep``.") == "See `knockgraph.Screen`, `keep`."
    inline = markdown("with :math:`m_i` kept")
    assert inline.startswith("with <math")
    assert inline.endswith("</math> kept")
    block = markdown("Sum.\n\n    .. math::\n        a &= b \\\\\n        c &= d\n\n    Args:\n        x: 1.")
    assert block.startswith('Sum.\n\n    <div class="formula"><math')
    assert block.endswith("</math></div>\n\n    Args:\n        x: 1.")
    assert "<mtable" in block
    assert "&=" not in block
    assert markdown("of `Xu <https://x.org/a>`_,") == "of [Xu](https://x.org/a),"
    assert markdown("One.\n\n>>> f()\n1\n\nTwo.") == "One.\n\n```pycon\n>>> f()\n1\n```\n\nTwo."


def test_pictures_are_what_the_script_draws(tmp_path: Path) -> None:
    tool("pictures").draw(tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert drawn
    for file in drawn:
        assert file.read_text() == (ROOT / "docs" / "pictures" / file.name).read_text(), f"{file.name}: run pictures.py"


def test_example_tables_are_what_the_script_writes(tmp_path: Path) -> None:
    tool("example").write(tmp_path)
    written = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    assert written
    for file in written:
        kept = ROOT / "docs" / "example" / file.relative_to(tmp_path)
        assert file.read_text() == kept.read_text(), f"{kept.name}: run docs/tools/example.py"


def test_results_are_what_the_benchmark_wrote() -> None:
    figures = json.loads((ROOT / "docs" / "results.json").read_text(encoding="utf-8"))
    shown = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert tool("results").page(shown, figures) == shown, "results.md: run docs/tools/results.py"
    means = [row["mean"]["value"] for table in figures["tables"] for row in table["rows"] if row["default"]]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pearson, precision = means[:4], means[5::2]
    for value in (*pearson, *precision):
        assert f"**{value:.3f}**" in readme, f"README.md: {value:.3f} is missing"
