"""The explorer in a real browser: somebody types a gene and reads its partners, on a laptop and on a phone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Tab

import knockgraph as kg
from knockgraph.sources.demo import demo_cell, demo_screen

HOSTILE = "<img src=x onerror=alert(1)>"
ROWS = "[...document.querySelectorAll('#answer tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
FITS = "document.documentElement.scrollWidth <= innerWidth"
MESSAGE = "document.getElementById('message').textContent"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a tiny model; one gene is named with HTML."""
    folder = tmp_path_factory.mktemp("explorer")
    cell = demo_cell()
    names = cell.genes.names
    aliases = {**cell.genes.aliases, names[3]: (HOSTILE,), names[4]: ("ABC1", "TWICE"), names[5]: ("ABC2", "TWICE")}
    cell = kg.CellGraph(names, cell.relations, features=cell.features, aliases=aliases)
    options: dict[str, Any] = {"trainer.baselines": ["mean"], "trainer.accelerator": "cpu"}
    options["model.options.messages.layers"] = 1
    fitted = kg.fit(cell, demo_screen(300), epochs=1, verbose=False, channels=8, run_dir=folder / "run", **options)
    found: Path = fitted.explorer(folder / "explorer.html", genes=names[:40], partners=20, explained=2)
    return found


def typed(tab: Tab, text: str, enter: bool = True) -> None:
    """What a person does: click into the field, type, press Enter."""
    tab.evaluate("(() => { const g = document.getElementById('gene'); g.value = ''; g.focus() })()")
    tab.send("Input.insertText", text=text)
    if enter:
        for kind in ("keyDown", "keyUp"):
            tab.send(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
            )


def test_type_a_gene(browser: Browser, page: Path) -> None:
    for width, scheme in itertools.product((1280, 390), ("light", "dark")):
        tab = Tab(browser, page, width, scheme)
        assert tab.evaluate(FITS)
        assert tab.evaluate("document.querySelectorAll('#top tbody tr').length") == 20
        typed(tab, "abc", enter=False)
        offered = tab.evaluate("[...document.querySelectorAll('#suggestions button')].map(b => b.textContent)")
        names = demo_cell().genes.names
        assert offered[:2] == [f"ABC1 ({names[4]})", f"ABC2 ({names[5]})"]
        assert tab.evaluate(FITS)
        typed(tab, "abc1")
        assert tab.evaluate("document.querySelector('#answer h2').textContent") == f"ABC1 ({names[4]})"
        rows = tab.evaluate(ROWS)
        assert len(rows) >= 20
        far = [float(row[-1].replace("−", "-")) for row in rows]
        assert far == sorted(far, reverse=True)
        assert any(row[4] == "new" for row in rows)
        assert all(" to " in row[3] for row in rows)
        assert tab.evaluate("document.querySelector('#answer').textContent.includes('physical (')")
        assert tab.evaluate(FITS)
        typed(tab, often(names[:40]))
        measured = [row for row in tab.evaluate(ROWS) if row[1] != "–"]
        assert measured
        assert {row[4] for row in measured} <= {"train", "val", "test"}
        assert tab.evaluate(FITS)
        assert tab.complaints() == []
        assert tab.requests() == []
        tab.close()


def often(names: Sequence[str]) -> str:
    """The gene with the most measured pairs."""
    count = Counter(name for genotype in demo_screen(300).genotypes if len(genotype) == 2 for name in genotype)
    return max(names, key=lambda name: count[name])


def test_sort_filter_explain(browser: Browser, page: Path) -> None:
    tab = Tab(browser, page, 1280, "light")
    typed(tab, demo_cell().genes.names[0].lower())
    press = (
        "[...document.querySelectorAll('#answer th button')].find(b => b.textContent.startsWith('predicted')).click()"
    )
    for sign in (-1, 1):
        tab.evaluate(press)
        found = [float(row[2].removeprefix("why ").replace("−", "-")) for row in tab.evaluate(ROWS)]
        assert found == sorted(found, key=lambda v: sign * v)
    assert tab.evaluate("document.querySelectorAll('#answer th[aria-sort=ascending]').length") == 1
    tab.evaluate("document.querySelector('input[value=new]').click()")
    assert {row[4] for row in tab.evaluate(ROWS)} == {"new"}
    tab.evaluate("[...document.querySelectorAll('#top button')].find(b => b.textContent === 'why').click()")
    said = tab.evaluate("document.getElementById('why').textContent")
    assert "for the wild type" in said
    assert "By deleted gene and relation" in said
    assert tab.complaints() == []
    tab.close()


def test_bad_input_gets_one_sentence(browser: Browser, page: Path) -> None:
    tab = Tab(browser, page, 390, "light")
    typed(tab, "xyzzyx")
    assert tab.evaluate(MESSAGE) == "No gene is called “xyzzyx”; check the spelling."
    typed(tab, "ABD1")
    assert tab.evaluate(MESSAGE).startswith("No gene is called “ABD1”; did you mean: ABC1 (")
    typed(tab, "twice")
    assert tab.evaluate(MESSAGE).startswith("“twice” may mean several genes; choose one: ABC1 (")
    typed(tab, "   ")
    assert tab.evaluate(MESSAGE) == "Type the name of a gene."
    typed(tab, demo_cell().genes.names[200])
    assert "its pairs were not predicted for this page" in tab.evaluate("document.getElementById('answer').textContent")
    typed(tab, HOSTILE)
    assert tab.evaluate("document.querySelector('#answer h2').textContent").startswith(f"{HOSTILE} (")
    assert tab.evaluate("document.querySelector('img') === null")
    typed(tab, "a" * 500)
    assert tab.evaluate(FITS)
    assert tab.complaints() == []
    tab.close()
