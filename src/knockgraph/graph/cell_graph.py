"""The cell graph: one immutable, validated graph that every experiment shares."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from knockgraph.container import read_container, write_container
from knockgraph.errors import FileFormatError, GraphError
from knockgraph.graph.genes import GeneNames
from knockgraph.graph.merge import merge_relations
from knockgraph.graph.metabolism import Metabolism
from knockgraph.graph.relation import Relation
from knockgraph.html.notebook import card

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

FORMAT = "knockgraph.cellgraph"
VERSION = 1

EdgesLike = Tensor | tuple[Tensor, Tensor] | Relation


class CellGraph:
    """Genes, the relations between them, optional gene features and metabolism. Immutable.

    Args:
        genes: Systematic gene names, unique, or a ready :class:`GeneNames`.
        relations: Relation name → integer ``edge_index [2, num_edges]``, or ``(edge_index, weight)``,
            or a :class:`Relation`. Their order is the order of every stacked result.
        metabolism: Reaction nodes on top of the genes, see :class:`Metabolism`.
        features: Feature name → float ``[num_genes, d]``.
        aliases: Other names of the genes, see :class:`GeneNames`.

    >>> graph = CellGraph(["YAL001C", "YBR002C"], {"physical": torch.tensor([[0, 1], [1, 0]])})
    >>> graph
    CellGraph(2 genes, 1 relation, 2 edges)
    """

    __slots__ = ("_frozen", "features", "genes", "metabolism", "relations")

    genes: GeneNames
    relations: Mapping[str, Relation]
    metabolism: Metabolism | None
    features: Mapping[str, Tensor]

    def __init__(
        self,
        genes: Iterable[str] | GeneNames,
        relations: Mapping[str, EdgesLike],
        metabolism: Metabolism | None = None,
        features: Mapping[str, Tensor] | None = None,
        aliases: Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        if isinstance(genes, GeneNames) and aliases is not None:
            raise GraphError("give aliases either inside GeneNames or as aliases=, not both")
        self.genes = genes if isinstance(genes, GeneNames) else GeneNames(genes, aliases)
        n = len(self.genes)
        if n == 0:
            raise GraphError("a cell graph needs at least one gene")
        self.relations = MappingProxyType({name: _relation(name, edges, n) for name, edges in relations.items()})
        self.features = MappingProxyType({name: _feature(name, x, n) for name, x in (features or {}).items()})
        if metabolism is not None and metabolism.gpr_index.numel() and int(metabolism.gpr_index[0].max()) >= n:
            raise GraphError(
                f"the metabolism refers to gene {int(metabolism.gpr_index[0].max())}, but this graph has genes "
                f"0 to {n - 1}; build both from the same gene list"
            )
        self.metabolism = metabolism
        self._frozen = True

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, "_frozen"):
            raise AttributeError(f"a CellGraph is immutable; build a new one instead of setting {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a CellGraph is immutable; {name!r} cannot be deleted")

    def __reduce__(self) -> tuple[Any, ...]:
        # Lets a loader's spawned workers receive the graph (a MappingProxyType cannot be pickled).
        return CellGraph, (self.genes, dict(self.relations), self.metabolism, dict(self.features))

    @property
    def num_genes(self) -> int:
        """Number of genes; the rows of every gene tensor."""
        return len(self.genes)

    @property
    def num_edges(self) -> int:
        """Edges over all relations."""
        return sum(r.num_edges for r in self.relations.values())

    @property
    def gene_list_hash(self) -> str:
        """SHA-256 of the ordered gene names."""
        return self.genes.hash

    def gene_index(self, names: Iterable[str]) -> Tensor:
        """Rows of the named genes, int64; :class:`UnknownGeneError` lists every name that does not resolve."""
        return self.genes.index(names)

    def fingerprint(self) -> str:
        """SHA-256 of everything that a model uses: genes, edges, weights, features, metabolism."""
        h = hashlib.sha256(self.gene_list_hash.encode())
        tensors: dict[str, Tensor] = {f"feature/{name}": x for name, x in self.features.items()}
        for name, relation in self.relations.items():
            tensors[f"edges/{name}"] = relation.edge_index
            if relation.weight is not None:
                tensors[f"weight/{name}"] = relation.weight
        if self.metabolism is not None:
            tensors |= {f"metabolism/{name}": t for name, t in self.metabolism.tensors().items()}
        for name, t in tensors.items():
            h.update(f"{name}{t.dtype}{list(t.shape)}".encode())
            h.update(t.contiguous().numpy().data)
        return h.hexdigest()

    def merged(self, groups: Mapping[str, Sequence[str]]) -> CellGraph:
        """The graph with each group of relations merged into one, the union of their edges, e.g. all channels of
        STRING.

        An edge keeps its largest weight; edges of a relation without weights count as 1.

        Args:
            groups: New name → names of relations, or patterns with ``*``, ``?`` and ``[…]``.

        >>> edges = torch.tensor([[0, 1], [1, 0]])
        >>> graph = CellGraph(["a", "b"], {"string_fusion": edges[:, :1], "string_database": edges, "physical": edges})
        >>> {name: r.num_edges for name, r in graph.merged({"string": ["string_*"]}).relations.items()}
        {'string': 2, 'physical': 2}
        """
        relations = merge_relations(self.relations, groups, self.num_genes)
        return CellGraph(self.genes, relations, self.metabolism, self.features)

    def restricted(self, genes: Iterable[str]) -> CellGraph:
        """The graph of some of the genes, in this graph's order, with the edges among them; without metabolism.

        Args:
            genes: Names, in any order; unknown ones raise :class:`UnknownGeneError`.

        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> graph = CellGraph(["a", "b", "c"], {"physical": edges}).restricted(["c", "b"])
        >>> graph.genes.names, graph.relations["physical"].edge_index.tolist()
        (('b', 'c'), [[0], [1]])
        """
        kept = torch.zeros(self.num_genes, dtype=torch.bool)
        kept[self.gene_index(genes)] = True
        place = kept.cumsum(0) - 1
        names = [name for name, stays in zip(self.genes.names, kept.tolist(), strict=True) if stays]
        relations = {}
        for name, relation in self.relations.items():
            among = kept[relation.edge_index].all(0)
            weight = None if relation.weight is None else relation.weight[among]
            relations[name] = Relation(place[relation.edge_index[:, among]], len(names), weight, name)
        aliases = {name: self.genes.aliases[name] for name in names if name in self.genes.aliases}
        return CellGraph(
            GeneNames(names, aliases), relations, features={name: x[kept] for name, x in self.features.items()}
        )

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the graph to one file, atomically, and return its content hash."""
        tensors: dict[str, Tensor] = {}
        for name, relation in self.relations.items():
            tensors[f"relation/{name}/edge_index"] = relation.edge_index.int()
            if relation.weight is not None:
                tensors[f"relation/{name}/weight"] = relation.weight
        for name, x in self.features.items():
            tensors[f"feature/{name}"] = x
        document: dict[str, Any] = {
            "genes": list(self.genes.names),
            "aliases": {name: list(others) for name, others in self.genes.aliases.items()},
            "gene_list_hash": self.gene_list_hash,
            "relations": [[name, r.num_edges, r.num_duplicates] for name, r in self.relations.items()],
            "features": list(self.features),
            "metabolism": None,
        }
        if self.metabolism is not None:
            document["metabolism"] = self.metabolism.document()
            tensors |= {f"metabolism/{name}": t for name, t in self.metabolism.tensors().items()}
        return write_container(path, FORMAT, VERSION, document, tensors)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> CellGraph:
        """Read a graph written by :meth:`save`; format version, content hash and every record are verified."""
        contents = read_container(path, FORMAT, range(1, VERSION + 1), _describe)
        document, tensors = contents.document, contents.tensors
        try:
            genes = GeneNames(document["genes"], document["aliases"])
            if genes.hash != document["gene_list_hash"]:
                raise GraphError("the gene-list hash does not match the gene list")
            relations: dict[str, EdgesLike] = {}
            for name, num_edges, num_duplicates in document["relations"]:
                relation = Relation(
                    tensors[f"relation/{name}/edge_index"],
                    len(genes),
                    tensors.get(f"relation/{name}/weight"),
                    name,
                )
                if relation.num_edges != num_edges:
                    raise GraphError(f"relation {name!r} holds {relation.num_edges} edges instead of {num_edges}")
                relation.num_duplicates = num_duplicates
                relations[name] = relation
            metabolism = None
            if document["metabolism"] is not None:
                prefix = "metabolism/"
                own = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
                metabolism = Metabolism.from_tensors(document["metabolism"], own)
            features = {name: tensors[f"feature/{name}"] for name in document["features"]}
            return CellGraph(genes, relations, metabolism, features)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The hashes are correct, so another or a faulty program wrote the file this way.
            raise FileFormatError(f"{os.fspath(path)} does not describe a valid cell graph: {error}") from error

    def to_hetero_data(self) -> HeteroData:
        """The graph as PyG ``HeteroData`` with the names listed in the docs (``["gene"].node_ids`` …)."""
        from knockgraph.graph.hetero import to_hetero_data

        return to_hetero_data(self)

    @staticmethod
    def from_hetero_data(data: HeteroData) -> CellGraph:
        """The inverse of :meth:`to_hetero_data`; also reads data from other programs that use these names."""
        from knockgraph.graph.hetero import from_hetero_data

        return from_hetero_data(data)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CellGraph)
            and self.genes == other.genes
            and list(self.relations.items()) == list(other.relations.items())
            and list(self.features) == list(other.features)
            and all(torch.equal(x, other.features[name]) for name, x in self.features.items())
            and self.metabolism == other.metabolism
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        parts = [f"{self.num_genes} genes"]
        parts.append(f"{len(self.relations)} relation{'s' * (len(self.relations) != 1)}")
        parts.append(f"{self.num_edges} edges")
        if self.features:
            parts.append(f"features {', '.join(self.features)}")
        if self.metabolism is not None:
            parts.append(f"{self.metabolism.num_reactions} reactions")
        return f"CellGraph({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = [
            [name, r.num_edges, "symmetric" if r.symmetric else "directed", "yes" if r.weight is not None else "no"]
            for name, r in self.relations.items()
        ]
        return card(repr(self), ["relation", "edges", "direction", "weights"], rows)


def _relation(name: str, edges: EdgesLike, num_genes: int) -> Relation:
    if not isinstance(name, str) or not name or "/" in name or "." in name:
        raise GraphError(f"{name!r} cannot name a relation: use a non-empty string without '/' and '.'")
    if isinstance(edges, Relation):
        if edges.num_genes != num_genes:
            raise GraphError(f"relation {name!r} was built for {edges.num_genes} genes, but the graph has {num_genes}")
        return edges
    if isinstance(edges, tuple):
        if len(edges) != 2:
            raise GraphError(f"relation {name!r}: give edge_index or the pair (edge_index, weight)")
        return Relation(edges[0], num_genes, edges[1], name)
    return Relation(edges, num_genes, name=name)


def _feature(name: str, x: Tensor, num_genes: int) -> Tensor:
    x = torch.as_tensor(x)
    if x.dim() != 2 or x.shape[0] != num_genes or x.shape[1] == 0:
        raise GraphError(f"feature {name!r} has shape {list(x.shape)}, but it needs [{num_genes}, d] with d ≥ 1")
    if not x.dtype.is_floating_point:
        raise GraphError(f"feature {name!r} has dtype {x.dtype}, but features are floating point; convert it")
    if not bool(x.isfinite().all()):
        gene = int((~x.isfinite()).any(1).nonzero()[0])
        raise GraphError(f"feature {name!r} is not finite at gene {gene}; fill or drop missing features first")
    return x.detach().to("cpu", copy=True).contiguous()


def _describe(record: str) -> str:
    kind, _, name = record.partition("/")
    return f"{kind} {name.split('/')[0]!r}"
