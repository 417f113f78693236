"""Draws the pictures of the docs, each for light and dark pages: ``python docs/tools/pictures.py``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from xml.sax.saxutils import escape

THEMES = {
    "light": {"ink": "#1b2730", "soft": "#5c6b77", "line": "#aab6c0", "card": "#f3f6f8", "keep": "#0f766e",
              "on": "#ffffff", "gone": "#c2410c", "test": "#b45309"},
    "dark": {"ink": "#e8eef3", "soft": "#9fb0bd", "line": "#566675", "card": "#1d2731", "keep": "#2dd4bf",
             "on": "#0d1b20", "gone": "#fb923c", "test": "#fbbf24"},
}  # fmt: skip
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Noto Sans', 'DejaVu Sans', sans-serif"
GENES = [(0.10, 0.20), (0.50, 0.05), (0.92, 0.25), (0.20, 0.75), (0.60, 0.52), (0.88, 0.92)]
EDGES = [(0, 1), (0, 3), (1, 2), (1, 4), (3, 4), (2, 4), (4, 5), (2, 5)]
SAMPLES: list[tuple[str, tuple[int, ...]]] = [("Δ2", (1,)), ("Δ1 Δ5", (0, 4)), ("Δ6", (5,)), ("wild type", ())]


class Picture:
    """An SVG of a given size; colours are names of a theme.

    Args:
        width, height: In pixels.
        title: What is seen, for readers who do not see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size = (width, height)
        self.title = title
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, size: float = 15, fill: str = "ink", at: str = "start",
             bold: bool = False) -> None:  # fmt: skip
        """One line of text; ``at`` is start, middle or end."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{{{fill}}}" text-anchor="{at}"{weight}>'
            f"{escape(words).replace('{', '(').replace('}', ')')}</text>"
        )

    def box(self, x: float, y: float, w: float, h: float, fill: str = "card", stroke: str = "", round_: float = 8,
            dash: bool = False) -> None:  # fmt: skip
        """A rectangle."""
        line = f' stroke="{{{stroke}}}" stroke-width="1.5"' if stroke else ""
        paint = f"{{{fill}}}" if fill else "none"
        broken = ' stroke-dasharray="4 3"' if dash else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round_:g}" fill="{paint}"{line}{broken}/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = "line", width: float = 2,
             dash: bool = False, arrow: bool = False) -> None:  # fmt: skip
        """A straight line."""
        extra = ' stroke-dasharray="3 4"' if dash else ""
        extra += ' marker-end="url(#tip)"' if arrow else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" '
            f'stroke="{{{stroke}}}" stroke-width="{width:g}"{extra}/>'
        )

    def path(self, points: Iterable[tuple[float, float]], stroke: str = "line", arrow: bool = True) -> None:
        """A broken line with a tip."""
        route = " L".join(f"{x:g} {y:g}" for x, y in points)
        tip = ' marker-end="url(#tip)"' if arrow else ""
        self.parts.append(f'<path d="M{route}" fill="none" stroke="{{{stroke}}}" stroke-width="2"{tip}/>')

    def dot(self, x: float, y: float, radius: float, fill: str, stroke: str = "", dash: bool = False) -> None:
        """A circle; without ``fill`` only its rim."""
        paint = f"{{{fill}}}" if fill else "none"
        line = f' stroke="{{{stroke}}}" stroke-width="1.8"' if stroke else ""
        broken = ' stroke-dasharray="3 2.5"' if dash else ""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{paint}"{line}{broken}/>')

    def card(self, x: float, y: float, w: float, h: float, lines: list[str], accent: bool = False) -> None:
        """A box with a bold first line and plain ones below, centred."""
        self.box(x, y, w, h, stroke="keep" if accent else "line")
        top = y + h / 2 - (len(lines) - 1) * 9.5 + 5
        for number, words in enumerate(lines):
            self.text(x + w / 2, top + 19 * number, words, 15 if number == 0 else 13.5,
                      "ink" if number == 0 else "soft", "middle", number == 0)  # fmt: skip

    def svg(self, theme: dict[str, str]) -> str:
        """The file's content."""
        width, height = self.size
        tip = (
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{line}"/></marker></defs>'
        )
        body = "\n".join([tip, *self.parts]).format(**theme)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="{FONT}">\n<title>{escape(self.title)}</title>\n{body}\n</svg>\n'
        )


def _graph(p: Picture, x: float, y: float, w: float, h: float, gone: tuple[int, ...] = (), radius: float = 15) -> None:
    place = [(x + u * w, y + v * h) for u, v in GENES]
    for a, b in EDGES:
        lost = a in gone or b in gone
        p.line(*place[a], *place[b], "gone" if lost else "soft", 1.3 if lost else 2, dash=lost)
    for gene, (cx, cy) in enumerate(place):
        if gene in gone:
            p.dot(cx, cy, radius, "card", "gone", dash=True)
            p.text(cx, cy + radius * 0.36, str(gene + 1), radius * 0.95, "gone", "middle")
        else:
            p.dot(cx, cy, radius, "keep")
            p.text(cx, cy + radius * 0.36, str(gene + 1), radius * 0.95, "on", "middle", bold=True)


def idea() -> Picture:
    """Shared graph, keep-vectors, one product."""
    p = Picture(960, 440, "One shared cell graph, a keep-vector per sample, one sparse product for the whole batch")
    p.box(8, 8, 272, 316)
    p.text(144, 38, "one cell graph A", 18, at="middle", bold=True)
    p.text(144, 60, "shared, stays on the device", 14.5, "soft", "middle")
    _graph(p, 42, 98, 205, 185, radius=19)

    p.box(312, 8, 262, 316)
    p.text(443, 38, "keep-vectors m", 18, at="middle", bold=True)
    p.text(443, 60, "one column per deletion strain", 14.5, "soft", "middle")
    for row in range(6):
        y = 96 + 33 * row
        p.text(342, y + 20, str(row + 1), 15, "soft", "middle")
        for column, (_, gone) in enumerate(SAMPLES):
            x, lost = 358 + 50 * column, row in gone
            p.box(x, y, 42, 28, "" if lost else "keep", "gone" if lost else "", 5, dash=lost)
            p.text(x + 21, y + 19.5, "0" if lost else "1", 15, "gone" if lost else "on", "middle", bold=True)
    for column, words in enumerate(("Δ2", "Δ1Δ5", "Δ6", "WT")):
        p.text(379 + 50 * column, 312, words, 14, "soft", "middle")

    p.box(606, 8, 346, 316)
    p.text(779, 38, "each strain's own graph", 18, at="middle", bold=True)
    p.text(779, 60, "exact: an edge lives if both ends do", 14.5, "soft", "middle")
    for number, (name, gone) in enumerate(SAMPLES):
        x, y = 642 + 160 * (number % 2), 82 + 124 * (number // 2)
        _graph(p, x, y, 116, 78, gone, 10.5)
        p.text(x + 58, y + 104, name, 14, "soft", "middle")
    p.line(283, 166, 307, 166, arrow=True)
    p.line(577, 166, 601, 166, arrow=True)

    p.box(8, 340, 944, 92, stroke="keep")
    p.text(480, 380, "aggregate(x)  =  m ⊙ A ( m ⊙ x )", 27, at="middle", bold=True)
    words = (
        "one sparse product for all strains and relations: no edge masks, no copies of the graph, forward and backward"
    )
    p.text(480, 413, words, 15, "soft", "middle")
    return p


def sizes() -> Picture:
    """What a layer holds with edge masks and with keep-vectors, areas to scale."""
    p = Picture(900, 372, "Messages 9.0 GB, edge masks 70 MB, keep-vectors 0.19 MB, drawn to scale")
    edges, genes, columns, channels = 2_423_370, 6_607, 29, 64
    p.text(20, 34, "What one layer needs beside its states – areas to scale", 18, bold=True)
    words = "nine relations of yeast: 2,423,370 edges, 6,607 genes, 28 strains and the wild type, 64 channels, bf16"
    p.text(20, 58, words, 14.5, "soft")
    side = 260.0
    largest = edges * columns * channels * 2
    p.box(40, 84, side, side, "card", "gone", 0)
    p.text(40 + side / 2, 208, "messages", 18, at="middle", bold=True)
    p.text(40 + side / 2, 232, "[edges, batch, channels]", 14.5, "soft", "middle")
    p.text(40 + side / 2, 256, f"{largest / 1e9:.1f} GB", 18, "gone", "middle", bold=True)
    mask = side * (edges * columns / largest) ** 0.5
    p.box(400, 84 + side - mask, mask, mask, "gone", round_=0)
    p.text(400, 262, "edge masks", 18, bold=True)
    p.text(400, 283, "[edges, batch]", 14.5, "soft")
    p.text(400, 304, f"{edges * columns / 1e6:.0f} MB", 16, "gone", bold=True)
    keep = side * (genes * columns / largest) ** 0.5
    p.box(650, 84 + side - keep, keep, keep, "keep", round_=0)
    p.line(672, 318, 656, 338, "keep", 1.5)
    p.text(650, 262, "keep-vectors", 18, bold=True)
    p.text(650, 283, "[genes, batch]: all that is needed", 14.5, "soft")
    p.text(650, 304, f"{genes * columns / 1e6:.2f} MB", 16, "keep", bold=True)
    p.text(400, 130, "Edge masks: made for every batch, and every", 15)
    p.text(400, 152, "edge sends a message for every strain.", 15)
    p.text(400, 184, "Keep-vectors: rows of the states are masked", 15)
    p.text(400, 206, "before and after one product with A.", 15)
    return p


def flow() -> Picture:
    """From files to a result."""
    p = Picture(
        960, 300, "From files to a result: graph and screen meet in the batch, the strategy makes perturbed graphs"
    )
    top, low, h = 24, 176, 76
    p.card(12, top, 150, h, ["tables", "genes, edges"])
    p.card(202, top, 150, h, ["CellGraph", ".cellgraph"])
    p.card(12, low, 150, h, ["tables", "genotypes, values"])
    p.card(202, low, 150, h, ["Screen", "Parquet; splits"])
    p.card(390, low, 156, h, ["ScreenLoader", "gene indices only"])
    p.card(580, low, 178, h, ["PerturbationBatch", "28 strains + wild type"])
    p.card(580, top, 178, h, ["strategy", "node-mask, …"], accent=True)
    p.card(790, top, 160, h, ["PerturbedGraphs", "aggregate(x)"], accent=True)
    p.card(790, low, 160, h, ["model → loss", "run directory"])
    for x1, y1, x2, y2 in (
        (162, top + 38, 199, top + 38), (352, top + 38, 577, top + 38), (162, low + 38, 199, low + 38),
        (352, low + 38, 387, low + 38), (546, low + 38, 577, low + 38), (669, low, 669, top + h + 3),
        (758, top + 38, 787, top + 38), (870, top + h, 870, low - 3),
    ):  # fmt: skip
        p.line(x1, y1, x2, y2, arrow=True)
    p.line(277, top + h, 277, low - 3, arrow=True)
    p.text(287, 143, "names → rows (bind)", 14, "soft")
    p.text(464, top + 28, "once, to the device", 14, "soft", "middle")
    p.text(679, 143, "every step", 14, "soft")
    p.text(
        480,
        286,
        "files  →  graph and screen  →  batches  →  each strain's own graph  →  prediction",
        15,
        "soft",
        "middle",
    )
    return p


def model() -> Picture:
    """The hetero cell model."""
    p = Picture(960, 330, "The hetero cell model: wild type and strains in one pass, pooled, their difference predicts")
    p.card(12, 60, 130, 84, ["gene states", "learned or given", "[genes, H]"])
    layers = ["L layers", "for every relation: aggregate", "on each strain's own graph,", "MLP, norm;"]
    p.card(182, 20, 230, 164, [*layers, "relations mixed (pairs)"], accent=True)
    p.card(452, 24, 150, 66, ["z wild type", "pooled, all genes"])
    p.card(452, 114, 150, 66, ["z strain", "pooled, kept genes"])
    p.dot(662, 102, 19, "card", "keep")
    p.text(662, 108.5, "−", 20, "keep", "middle", bold=True)
    p.card(712, 68, 104, 66, ["global", "predictor"])
    p.card(452, 232, 364, 66, ["local predictor", "attention among the deleted genes' wild-type states"])
    p.card(852, 132, 98, 84, ["prediction", "gated sum"], accent=True)
    p.line(142, 102, 179, 102, arrow=True)
    p.path([(412, 57), (449, 57)])
    p.path([(412, 147), (449, 147)])
    p.path([(602, 57), (640, 57), (652, 83)])
    p.path([(602, 147), (640, 147), (652, 121)])
    p.line(681, 102, 709, 102, arrow=True)
    p.path([(816, 102), (901, 102), (901, 129)])
    p.path([(297, 184), (297, 265), (449, 265)])
    p.path([(816, 265), (901, 265), (901, 219)])
    p.text(297, 318, "the wild type is one more column of the batch: one pass, not two", 14.5, "soft", "middle")
    return p


def splits() -> Picture:
    """What two kinds of split ask."""
    p = Picture(820, 352, "Held-out genotypes lie among training pairs; unseen genes have no training pair at all")
    random = Random(3)  # noqa: S311 - no secret
    held = (2, 7)
    for number, (title, words) in enumerate((
        ("genotype", "a new pair of known genes"), ("unseen-genes", "a gene that no training strain deletes"),
    )):  # fmt: skip
        left = 30 + 400 * number
        p.text(left, 32, title, 18, bold=True)
        p.text(left, 54, words, 14.5, "soft")
        for row in range(10):
            for column in range(row):
                test = random.random() < 0.2 if number == 0 else row in held or column in held
                x, y = left + 26 * column, 74 + 26 * (row - 1)
                p.box(x, y, 22, 22, "test" if test else "keep", round_=4)
                if test:
                    p.dot(x + 11, y + 11, 3.5, "on")
    for number, (fill, words) in enumerate((("keep", "train"), ("test", "test"))):
        p.box(300 + 120 * number, 322, 18, 18, fill, round_=4)
        if fill == "test":
            p.dot(309 + 120 * number, 331, 3.2, "on")
        p.text(326 + 120 * number, 336, words, 14.5)
    return p


def draw(folder: Path) -> None:
    """Write every picture, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    for make in (idea, sizes, flow, model, splits):
        picture = make()
        for name, theme in THEMES.items():
            (folder / f"{make.__name__}-{name}.svg").write_text(picture.svg(theme), encoding="utf-8")


if __name__ == "__main__":
    draw(Path(__file__).parents[1] / "pictures")
