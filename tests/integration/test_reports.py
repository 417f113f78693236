"""Every page that a command writes, opened in a real browser: laptop and phone, light and dark, offline."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Tab
from trace_cases import header, training, write
from training_runs import LEAST, run

import knockgraph as kg

SHORT = ["--steps", "3", "--warmup", "2", "--epoch-limit", "0"]
BENCH = ["--genes", "150", "--edges", "1500", "--relations", "2", "--repeats", "1", "--batch-size", "4"]
CLASSES = ["task=classification", "loss=bce", "data.threshold=-0.1", "data.experiments=300"]
STEPS = ["--channels", "8", "--layers", "1", "--only", "hetero", "--only", "metabolism"]
SMALL = [*LEAST, "model=hetero-small", "model.options.channels=8", "model.options.messages.layers=1"]
GENES = ["--genes", "+".join(kg.demo_cell().genes.names[:2])]
LEARN = ["--experiments", "200", "--epochs", "1", "--batch-size", "16", "--baseline", "additive", "--variant"]
LEARN += ["learner: model=additive", "--variant", "bad: model=hetero-pairs model.options.input.similar=diffusion"]
# Case → the commands, and the pages that they make with how many pictures each has.
CASES: dict[str, tuple[list[list[str]], dict[str, int]]] = {
    "training": (
        [["train", "run_dir=run", *LEAST], ["evaluate", "run", "--part", "val", "--html", "evaluation.html"]],
        {"run/report.html": 3, "evaluation.html": 1},
    ),
    "explanation": ([["train", "run_dir=run", *SMALL], ["explain", "run", *GENES, "-o", "why.html"]], {"why.html": 2}),
    "classes": ([["train", "run_dir=run", *LEAST, *CLASSES]], {"run/report.html": 2}),
    "strategies": ([["bench", "strategies", *BENCH, "--channels", "8", "--html", "page.html"]], {"page.html": 1}),
    "step": ([["bench", "step", *BENCH, *STEPS, "--html", "page.html"]], {"page.html": 1}),
    "learn": ([["bench", "learn", *LEARN, "--html", "page.html"]], {"page.html": 2}),
    "profile": ([["profile", *LEAST, *SHORT, "--html", "page.html"]], {"page.html": 2}),
    "compared": (
        [["profile", "--compare", "constant", "additive", *LEAST, *SHORT, "--html", "page.html"]],
        {"page.html": 3},
    ),
    "trace": ([["profile", "trace", "a.json", "--html", "page.html"]], {"page.html": 4}),
    "traces": ([["profile", "trace", "a.json", "b.json", "--html", "page.html"]], {"page.html": 7}),
    "graph": ([["graph", "info", "demo.cellgraph", "--html", "page.html"]], {"page.html": 2}),
}
WIDTHS = (1280, 390)  # a laptop, a phone
SCHEMES = ("light", "dark")

# Contrast after WCAG 2: relative luminance of sRGB; 4.5 is what small text needs.
LOOK = """(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => {
    const v = c[i] / 255; return sum + w * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4) }, 0);
  const contrast = (a, b) => { const [x, y] = [light(rgb(a)), light(rgb(b))].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05) };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if ((rgb(c)[3] ?? 1) > 0) return c } return 'rgb(255, 255, 255)' };
  const all = [...document.querySelectorAll('*')], visible = e => e.getClientRects().length > 0;
  const says = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  const texts = all.filter(e => e instanceof HTMLElement && says(e) && visible(e) && !e.closest('[aria-hidden]'));
  const pictures = [...document.querySelectorAll('figure svg')];
  const page = getComputedStyle(document.body).backgroundColor;
  return {
    title: document.title, heading: document.querySelector('h1').textContent, lang: document.documentElement.lang,
    tables: [...document.querySelectorAll('table')].map(t => [t.querySelectorAll('thead th').length, t.rows.length]),
    pictures: pictures.map(s => ({ name: s.getAttribute('aria-label'), role: s.getAttribute('role'),
      title: s.querySelector('title')?.textContent, width: s.getBoundingClientRect().width,
      height: s.getBoundingClientRect().height,
      scale: s.getBoundingClientRect().width / s.viewBox.baseVal.width,
      contrast: contrast(getComputedStyle(s).fill, behind(s)),
      numbers: s.closest('section').querySelector('details pre')?.textContent.length ?? 0 })),
    closed: document.querySelectorAll('details:not([open])').length,
    lowest: texts.map(e => [contrast(getComputedStyle(e).color, behind(e)), e.tagName, e.textContent.slice(0, 60)])
      .sort((a, b) => a[0] - b[0])[0],
    texts: texts.length, dark: light(rgb(page)) < 0.2,
    width: document.documentElement.scrollWidth, window: innerWidth,
    cut: [...document.querySelectorAll('.scroll, figure')].filter(e => e.scrollWidth > e.clientWidth)
      .map(e => e.textContent.slice(0, 60)),
    smallest: Math.min(...texts.map(e => parseFloat(getComputedStyle(e).fontSize))),
  }
})()"""
OPEN = "document.querySelectorAll('details > summary').forEach(s => s.click())"
SHOWN = "[...document.querySelectorAll('details pre')].every(p => p.getBoundingClientRect().height > 10)"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder in which the commands of a case have written their pages."""

    @cache
    def folder_of(case: str) -> Path:
        folder = tmp_path_factory.mktemp(case)
        write(folder / "a.json", training(3), header())
        write(folder / "b.json", training(2, 2), header())
        kg.demo_cell().save(folder / "demo.cellgraph")
        for command in CASES[case][0]:
            run(*command, cwd=folder)
        return folder

    return folder_of


@pytest.mark.parametrize("case", CASES)
def test_pages(browser: Browser, made: Callable[[str], Path], case: str) -> None:
    pages = CASES[case][1]
    for page, width, scheme in itertools.product(pages, WIDTHS, SCHEMES):
        tab = Tab(browser, made(case) / page, width, scheme)
        _look(tab, pages[page], width, scheme)
        assert tab.complaints() == []
        assert [url[:60] for url in tab.requests() if not url.startswith("data:")] == []
        tab.close()


def _look(tab: Tab, pictures: int, width: int, scheme: str) -> None:
    found: dict[str, Any] = tab.evaluate(LOOK)
    assert found["title"] == found["heading"] != ""
    assert found["lang"] == "en"
    assert found["tables"], "there is no table"
    assert all(headings > 1 and rows > 1 for headings, rows in found["tables"])
    assert len(found["pictures"]) == pictures
    for picture in found["pictures"]:
        assert picture["name"] == picture["title"] != ""
        assert picture["role"] == "img"
        assert picture["numbers"] > 10, f"no numbers behind {picture['name']}"
        assert picture["height"] > 50
        assert 10 * picture["scale"] >= 8.5, "its text, of 10 points, could not be read"
        assert picture["contrast"] >= 4.5
    assert found["dark"] == (scheme == "dark")
    assert found["lowest"][0] >= 4.5, found["lowest"]
    assert found["texts"] > 10
    assert found["smallest"] >= 12
    assert found["window"] == width
    assert found["width"] <= found["window"], "the page scrolls sideways"
    assert found["closed"] > 0
    tab.evaluate(OPEN)
    opened = tab.evaluate(LOOK)
    assert opened["closed"] == 0
    assert tab.evaluate(SHOWN), "the numbers do not show"
    assert opened["width"] <= opened["window"], "the page scrolls sideways with the numbers shown"
    assert opened["lowest"][0] >= 4.5, opened["lowest"]
    assert width < 600 or opened["cut"] == [], "a table or picture is cut at the width of a laptop"


def test_the_pictures_of_a_run_fit_a_phone(browser: Browser, made: Callable[[str], Path]) -> None:
    tab = Tab(browser, made("training") / "run" / "report.html", 390, "light")
    assert tab.evaluate("[...document.querySelectorAll('figure')].map(f => f.scrollWidth <= f.clientWidth)") == [
        True,
        True,
        True,
    ]
    said = tab.evaluate("document.querySelector('.said').textContent")
    assert "on the test part: Pearson" in said
    assert tab.evaluate("document.querySelectorAll('tr.marked').length") == 1
    tab.close()


def test_the_parts_of_an_explanation_fit_a_phone(browser: Browser, made: Callable[[str], Path]) -> None:
    tab = Tab(browser, made("explanation") / "why.html", 390, "light")
    assert tab.evaluate(LOOK)["cut"] == []
    tab.close()


def test_the_browser_would_complain(browser: Browser, tmp_path: Path) -> None:
    """The checks above see what they are looking for."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><title>t</title><h1>t</h1><p style='color:#aaa'>pale</p><img src='http://127.0.0.1:9/x.png'>"
        "<div style='width:2000px'>wide</div>"
        "<div class=scroll style='width:90px;overflow:auto'><p style='width:99px'>cut</div>"
        "<script>console.warn('careful'); undefined_name</script>"
    )
    tab = Tab(browser, page, 1280, "light")
    found = tab.evaluate(LOOK)
    assert found["lowest"][0] < 4.5
    assert found["width"] > found["window"]
    assert found["cut"] == ["cut"]
    complaints = " ".join(tab.complaints())
    assert "careful" in complaints
    assert "undefined_name is not defined" in complaints
    assert json.dumps(tab.requests()) == '["http://127.0.0.1:9/x.png"]'
    tab.close()
