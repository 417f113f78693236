"""A self-contained HTML page: nothing is fetched; for light and dark mode, laptop and phone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --dim: #59636e; --paper: #ffffff; --line: #d1d9e0; --card: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #f0f6fc; --dim: #9198a1; --paper: #0d1117; --line: #3d444d; --card: #161b22 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       max-width: 74rem; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.6rem; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem } p { margin: .4rem 0 }
h1, h2, p { overflow-wrap: anywhere }
.dim { color: var(--dim) }
.scroll { overflow-x: auto; /* a shade at the right where there is more to scroll to */
          background: linear-gradient(to left, var(--paper) 40%, transparent) right / 3rem 100% no-repeat local,
                      linear-gradient(to left, var(--line), transparent) right / 1rem 100% no-repeat scroll }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left; padding-left: 0; position: sticky; left: 0;
                                 background: var(--paper) }
th { white-space: normal; vertical-align: bottom }
th.words, td.words { text-align: left }
td.long { white-space: normal; min-width: 16rem }
figure { margin: .5rem 0; background: var(--card); border-radius: 8px; padding: .6rem; overflow-x: auto }
figure svg { width: 100%; max-width: 60rem; height: auto; display: block; fill: currentColor }
figure.small { max-width: 42rem }
th:nth-child(2):last-child, td:nth-child(2):last-child { text-align: left; white-space: normal }
.said { border-left: 4px solid #4269d0; background: var(--card); border-radius: 0 8px 8px 0; padding: .7rem 1rem;
        margin: 1rem 0; font-size: 1.05rem }
tr.marked td { font-weight: 600; background: var(--card) }
details { margin: .6rem 0 } summary { cursor: pointer; color: var(--dim) }
pre { overflow: auto; max-height: 30rem; font-size: .8rem; background: var(--card); padding: .8rem; border-radius: 8px }
@media (max-width: 40rem) { /* a phone: wide pictures keep a size that can be read and scroll, names of rows wrap */
  figure:not(.small) svg { width: 36rem }
  figure { padding: .3rem }
  table { font-size: .8rem }
  th, td { padding: .3rem }
  th:first-child, td:first-child { white-space: normal; overflow-wrap: break-word; min-width: 4.5rem; max-width: 38vw }
}
"""


_SMALL = 400  # points
_LONG = 48  # characters: a longer cell may take several lines


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], marked: int | None = None) -> str:
    """An HTML table; the first column is text, indented by leading spaces, the others are words, which are aligned at
    their left, or numbers.

    Args:
        headings: Of the columns.
        rows: Their texts.
        marked: A row that stands out.
    """
    words = [_is_words([row[at] for row in rows if at < len(row)]) for at in range(len(headings))]
    head = "".join(f"<th{' class=words' * left}>{escape(h)}</th>" for h, left in zip(headings, words, strict=True))
    start = ['<tr class="marked">' if k == marked else "<tr>" for k in range(len(rows))]
    body = "".join(tr + "".join(map(_cell, row, words)) + "</tr>" for tr, row in zip(start, rows, strict=True))
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _is_words(cells: Sequence[str]) -> bool:
    filled = [cell.strip() for cell in cells if cell.strip() not in ("", "–")]
    return bool(filled) and all(cell[0].isalpha() for cell in filled)


def _cell(text: str, words: bool) -> str:
    kinds = [kind for kind, so in (("long", len(text) > _LONG), ("words", words)) if so]
    start = f'<td class="{" ".join(kinds)}">' if kinds else "<td>"
    shown = re.sub(r"(?<=\w)\+(?=\w)", "+<wbr>", escape(text.lstrip()))  # a genotype breaks between its genes
    return f"{start}{'&nbsp;' * (len(text) - len(text.lstrip()))}{shown}</td>"


def figure(svg: str, about: str) -> str:
    """A plot made by :mod:`knockgraph.html.plots`.

    Args:
        svg: Its text.
        about: What it shows, as alternative text and tooltip.
    """
    said = escape(about)
    named = svg.replace("<svg ", f'<svg role="img" aria-label="{said}" ', 1)
    head, end, rest = named.partition(">")
    wide = re.search(r'width="([\d.]+)pt"', head)
    kind = ' class="small"' if wide and float(wide[1]) <= _SMALL else ""  # its text can be read on a phone
    return f"<figure{kind}>{head}{end}<title>{said}</title>{rest}</figure>"


def numbers(summary: str, data: Any) -> str:
    """The numbers behind a plot, folded."""
    text = escape(json.dumps(data, indent=1, ensure_ascii=False))
    return f"<details><summary>{escape(summary)}</summary><pre>{text}</pre></details>"


def page(title: str, lead: str, sections: Sequence[tuple[str, str]], said: str = "", script: str = "") -> str:
    """The page.

    Args:
        title: Its title.
        lead: One sentence under it.
        sections: Heading and HTML of each section.
        said: What it comes to, in one sentence that stands out.
        script: JavaScript at its end.
    """
    body = "".join(f"<section><h2>{escape(heading)}</h2>{content}</section>" for heading, content in sections)
    told = f'<p class="said">{escape(said)}</p>' if said else ""
    end = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f'<body><h1>{escape(title)}</h1><p class="dim">{escape(lead)}</p>{told}{body}{end}</body></html>\n'
    )
