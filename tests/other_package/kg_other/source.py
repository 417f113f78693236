"""Two sources: a file of pairs, and a cell that needs no file."""

import torch

import knockgraph as kg
from knockgraph.sources.source import Source


class PairFile(Source):
    reads = "the file of gene pairs"

    def graph(self, path, options, report):
        pairs = self._pairs(path, report)
        genes = sorted({gene for pair in pairs for gene in pair[:2]})
        edges = torch.tensor([[genes.index(a), genes.index(b)] for a, b, _ in pairs]).T
        return kg.CellGraph(genes=genes, relations={"pairs": edges})

    def screen(self, path, options, report):
        pairs = self._pairs(path, report)
        return kg.Screen([pair[:2] for pair in pairs], {"fitness": [float(pair[2]) for pair in pairs]})

    def _pairs(self, path, report):
        lines = [line.split() for line in path.read_text().splitlines()]
        report.file("pairs", path).read = len(lines)
        return lines


class Ring(Source):
    reads = None

    def graph(self, path, options, report):
        edges = torch.tensor([list(range(40)), [(i + 1) % 40 for i in range(40)]])
        return kg.CellGraph(genes=[f"G{i}" for i in range(40)], relations={"ring": edges})

    def screen(self, path, options, report):
        genotypes = [[f"G{i}", f"G{(i + k) % 40}"] for i in range(40) for k in (1, 2, 3)]
        values = [float((i + k) % 7) for i in range(40) for k in (1, 2, 3)]
        return kg.Screen(genotypes, {"fitness": values})
