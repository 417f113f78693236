"""Docstrings as the site wants them: Sphinx roles become Markdown, formulas become MathML (no script, no network)."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

BLOCK = re.compile(r"^([ \t]*)\.\. math::[ ]?(.*(?:\n(?:\1[ \t]+\S.*|[ \t]*(?=\n\1[ \t]+\S)))*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?\.?([^`]+)`")
LINK = re.compile(r"`([^`<]+?)\s+<(https?://[^>]+)>`_")
EXAMPLE = re.compile(r"^([ \t]*)>>> .*(?:\n\1\S.*)*", re.MULTILINE)
DOUBLE = re.compile(r"``([^`]+)``")


class RestToMarkdown(griffe.Extension):
    """Rewrites every docstring as it is collected."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """One docstring.

    >>> markdown("See :class:`Strategy` and ``keep``.")
    'See `Strategy` and `keep`.'
    """
    text = LINK.sub(r"[\1](\2)", text)
    text = BLOCK.sub(_block, text)
    text = INLINE.sub(lambda found: _math(found[1], "inline"), text)
    text = DOUBLE.sub(r"`\1`", ROLE.sub(r"`\1`", text))
    return EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)


def _block(found: re.Match[str]) -> str:
    indent = found[1]
    formula = textwrap.dedent(found[2]).strip()
    if "&=" in formula or formula.startswith("&"):
        formula = f"\\begin{{align*}}{formula}\\end{{align*}}"
    return f'{indent}<div class="formula">{_math(formula, "block")}</div>'


def _math(formula: str, display: str) -> str:
    return convert(" ".join(formula.split()), display=display)
