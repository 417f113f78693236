import copy
import gzip
import json
import os
import pickle
import re
import time
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from knockgraph import CellGraph
from knockgraph.errors import GraphError, UnknownGeneError
from knockgraph.graph.metabolism import Metabolism
from knockgraph.graph.reaction import Reaction

GENES = ["A", "B", "C", "D", "E"]
INDEX = {name: i for i, name in enumerate(GENES)}

# A rule as a tree: a gene name, or ("and" | "or", [trees]).
Tree = str | tuple[str, list["Tree"]]


def trees() -> st.SearchStrategy[Tree]:
    return st.recursive(
        st.sampled_from(GENES),
        lambda inner: st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3)),
        max_leaves=7,
    )


def text(tree: Tree | None) -> str:
    if tree is None:
        return ""
    return tree if isinstance(tree, str) else "(" + f" {tree[0]} ".join(map(text, tree[1])) + ")"


def satisfied(tree: Tree | None, kept: set[str]) -> bool:
    """Slow independent reference: walk the tree on a set of kept genes."""
    if tree is None:
        return True
    if isinstance(tree, str):
        return tree in kept
    return (all if tree[0] == "and" else any)(satisfied(part, kept) for part in tree[1])


def example() -> Metabolism:
    return Metabolism.from_reactions(
        [
            Reaction("r1", {"x": -1, "y": 2}, lower_bound=-1000, gene_rule="(A and B) or C"),
            Reaction("r2", {"y": -1.5}, lower_bound=-10, upper_bound=0, gene_rule="D"),
            Reaction("r3", {"z": 1, "x": -1}, growth=True),
        ],
        INDEX,
    )


def all_keeps() -> Tensor:
    """Every set of kept genes: [genes, 2^genes]."""
    return (torch.arange(2 ** len(GENES))[None] >> torch.arange(len(GENES))[:, None]) % 2 == 1


def origin(node: str) -> str:
    return node.split(":")[0].removesuffix("_rev")


# Nodes


def test_nodes_of_the_example() -> None:
    m = example()
    assert m.reactions == ("r1:A+B", "r1:C", "r1_rev:A+B", "r1_rev:C", "r2_rev", "r3")
    assert m.metabolites == ("x", "y", "z")
    assert m.complex_reaction.tolist() == [0, 1, 2, 3, 4]
    assert m.gpr_index.tolist() == [[0, 1, 2, 0, 1, 2, 3], [0, 0, 1, 2, 2, 3, 4]]
    assert m.gpr_complex.tolist() == [0, 0, 1, 2, 2, 3, 4]
    assert m.rmr_index.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 5], [0, 1, 0, 1, 0, 1, 0, 1, 1, 2, 0]]
    assert m.stoichiometry.tolist() == [-1, 2, -1, 2, 1, -2, 1, -2, 1.5, 1, -1]
    assert m.w_growth.tolist() == [0, 0, 0, 0, 0, 1]
    assert (m.num_reactions, m.num_reactions_with_genes, m.num_metabolites) == (6, 5, 3)
    assert (m.num_gpr, m.num_rmr, m.num_genes_required) == (7, 11, 4)
    assert repr(m) == "Metabolism(reactions=6, with_genes=5, metabolites=3, gpr=7, rmr=11)"


def test_unsplit_is_one_node_per_reaction() -> None:
    reactions = [
        Reaction("r1", {"x": -1, "y": 2}, lower_bound=-1000, gene_rule="(A and B) or C"),
        Reaction("r2", {"y": -1.5}, lower_bound=-10, upper_bound=0, gene_rule="D"),
    ]
    m = Metabolism.from_reactions(reactions, INDEX, split=False)
    assert m.reactions == ("r1", "r2_rev")
    assert m.complex_reaction.tolist() == [0, 0, 1]
    assert m.gpr_complex.tolist() == [0, 0, 1, 2]
    assert m.stoichiometry.tolist() == [-1, 2, 1.5]


@pytest.mark.parametrize(
    ("lower", "upper", "directions"),
    [
        (0, 1000, (1,)),
        (0.7, 0.7, (1,)),
        (0, 0, (1,)),  # blocked in this medium, still a reaction of the cell
        (-1000, 1000, (1, -1)),
        (-1, float("inf"), (1, -1)),
        (-1000, 0, (-1,)),
        (-1000, -1, (-1,)),
    ],
)
def test_directions(lower: float, upper: float, directions: tuple[int, ...]) -> None:
    assert Reaction("r", {}, lower, upper).directions() == directions


def test_a_callable_resolves_genes() -> None:
    reactions = [Reaction("r", {"x": 1}, gene_rule="A and E")]
    assert Metabolism.from_reactions(reactions, INDEX.get) == Metabolism.from_reactions(reactions, INDEX)


def test_two_names_of_one_gene_count_once_in_a_complex() -> None:
    m = Metabolism.from_reactions([Reaction("r", {}, gene_rule="A and alias")], {"A": 0, "alias": 0})
    assert m.gpr_index.tolist() == [[0], [0]]


def test_unknown_genes_are_listed_all_at_once() -> None:
    reactions = [Reaction("r1", {}, gene_rule="A and X"), Reaction("r2", {}, gene_rule="X or Z"), Reaction("r3", {})]
    match = r"2 gene\(s\) of the gene rules are not in the gene list: X, Z; .* pass unknown='drop'"
    with pytest.raises(UnknownGeneError, match=match) as error:
        Metabolism.from_reactions(reactions, INDEX)
    assert error.value.names == ("X", "Z")


def test_dropped_genes_count_as_always_kept() -> None:
    reactions = [
        Reaction("r1", {}, gene_rule="A and X"),
        Reaction("r2", {}, gene_rule="B or X"),
        Reaction("r3", {}, gene_rule="(A and X) or (A and Z)"),
    ]
    m = Metabolism.from_reactions(reactions, INDEX, unknown="drop")
    assert m.reactions == ("r1", "r2:B", "r2:X", "r3:A+X", "r3:A+Z")
    nothing = torch.zeros(2, 1, dtype=torch.bool)
    assert m.reactions_alive(nothing)[:, 0].tolist() == [False, False, True, False, False]
    whole = Metabolism.from_reactions(reactions, INDEX, split=False, unknown="drop")
    assert whole.reactions_alive(nothing)[:, 0].tolist() == [False, True, False]


def test_bad_reactions() -> None:
    with pytest.raises(GraphError, match=r"reaction 'r' occurs twice; give every reaction its own id"):
        Metabolism.from_reactions([Reaction("r", {}), Reaction("r", {})], INDEX)
    with pytest.raises(GraphError, match=r"reaction 'r': gene rule 'A and': at its end"):
        Metabolism.from_reactions([Reaction("r", {}, gene_rule="A and")], INDEX)
    with pytest.raises(GraphError, match=r"name 'r_rev' occurs twice; make the names unique"):
        Metabolism.from_reactions([Reaction("r", {}, -1, 1), Reaction("r_rev", {})], INDEX)
    for value in (0.0, float("nan"), float("inf"), 1e300, 1e-300):
        with pytest.raises(GraphError, match=r"metabolite 'x' in reaction 'r' is .*, expected finite and not zero"):
            Metabolism.from_reactions([Reaction("r", {"x": value})], INDEX)
    with pytest.raises(GraphError, match=r"gpr_index\[0\] entry 0 is -1, but gene numbers run from 0; correct it"):
        Metabolism.from_reactions([Reaction("r", {}, gene_rule="A")], {"A": -1})
    with pytest.raises(GraphError, match=r"unknown='ignore' is not an option; use 'error' or 'drop'"):
        Metabolism.from_reactions([], INDEX, unknown="ignore")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"'r': lower bound 1 is not below or equal to its upper bound 0"):
        Reaction("r", {}, 1, 0)
    with pytest.raises(GraphError, match=r"lower bound nan is not below"):
        Reaction("r", {}, float("nan"), 0)
    with pytest.raises(GraphError, match=r"a reaction has an empty id"):
        Reaction("", {})


# Survival


@settings(deadline=None)
@given(st.lists(st.none() | trees(), max_size=5), st.sampled_from([torch.bool, torch.float32, torch.int64]))
def test_survival_equals_the_rules_evaluated_on_sets(rules: list[Tree | None], dtype: torch.dtype) -> None:
    reactions = [Reaction(f"r{i}", {"x": 1}, -(i % 2), gene_rule=text(rule)) for i, rule in enumerate(rules)]
    keep = all_keeps()
    before = keep.clone()
    split = Metabolism.from_reactions(reactions, INDEX)
    unsplit = Metabolism.from_reactions(reactions, INDEX, split=False)
    split_alive = split.reactions_alive(keep.to(dtype))
    unsplit_alive = unsplit.reactions_alive(keep.to(dtype))
    assert torch.equal(keep, before)
    assert split_alive.dtype == unsplit_alive.dtype == torch.bool
    assert split_alive.shape == (split.num_reactions, keep.size(1))
    assert unsplit.reactions == tuple(r.id for r in reactions)
    for i, rule in enumerate(rules):
        nodes = [n for n, name in enumerate(split.reactions) if origin(name) == f"r{i}"]
        assert torch.equal(unsplit_alive[i], split_alive[nodes].any(0))
        for sample in range(keep.size(1)):
            kept = {gene for gene, is_kept in zip(GENES, keep[:, sample].tolist(), strict=True) if is_kept}
            assert bool(unsplit_alive[i, sample]) == satisfied(rule, kept)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 9), st.randoms(use_true_random=False))
def test_survival_does_not_depend_on_the_order_of_entries(num_complexes: int, extra: int, random) -> None:
    """Complexes of any size, several per reaction, entries in any order."""
    num_genes, num_reactions = 9, 4
    owners = [random.randrange(num_reactions) for _ in range(num_complexes)]
    members = [random.sample(range(num_genes), random.randint(1, num_genes)) for _ in owners]
    entries = [(gene, owners[c], c) for c, genes in enumerate(members) for gene in genes]
    random.shuffle(entries)
    gpr = torch.tensor(entries).T
    m = Metabolism(
        reactions=tuple("abcd"),
        metabolites=(),
        complex_reaction=torch.tensor(owners),
        gpr_index=gpr[:2],
        gpr_complex=gpr[2],
        rmr_index=torch.zeros(2, 0, dtype=torch.int64),
        stoichiometry=torch.zeros(0),
        w_growth=torch.zeros(num_reactions),
    )
    keep = torch.rand(num_genes + extra, 16, generator=torch.Generator().manual_seed(random.randrange(1000))) < 0.8
    alive = m.reactions_alive(keep)
    for r in range(num_reactions):
        own = [genes for owner, genes in zip(owners, members, strict=True) if owner == r]
        for sample in range(16):
            expected = not own or any(all(bool(keep[g, sample]) for g in genes) for genes in own)
            assert bool(alive[r, sample]) == expected


def test_survival_of_nothing() -> None:
    empty = Metabolism.from_reactions([], INDEX)
    assert empty.reactions_alive(torch.ones(3, 2)).shape == (0, 2)
    without_genes = Metabolism.from_reactions([Reaction("r", {"x": 1})], INDEX)
    assert without_genes.reactions_alive(torch.zeros(0, 2)).tolist() == [[True, True]]
    assert example().reactions_alive(torch.ones(5, 0)).shape == (6, 0)


def test_survival_needs_no_host_synchronisation() -> None:
    """A meta tensor has no values: whatever would read one on the host (.item(), boolean indexing) raises here."""
    m = example().to("meta")
    for dtype in (torch.bool, torch.float32):
        alive = m.reactions_alive(torch.ones(5, 7, dtype=dtype, device="meta"))
        assert alive.shape == (6, 7)
        assert alive.dtype == torch.bool


def test_bad_keep() -> None:
    with pytest.raises(GraphError, match=r"keep has shape \[3, 2\], expected \[genes, batch\] with at least 4 genes"):
        example().reactions_alive(torch.ones(3, 2))
    with pytest.raises(GraphError, match=r"keep has shape \[5\], expected"):
        example().reactions_alive(torch.ones(5))
    with pytest.raises(GraphError, match=r"keep is on meta, the metabolism on cpu; move one with \.to\(\)"):
        example().reactions_alive(torch.ones(5, 1, device="meta"))


# The object


def test_store_and_restore() -> None:
    m = example()
    document = json.loads(json.dumps(m.document()))
    again = Metabolism.from_tensors(document, {name: tensor.clone() for name, tensor in m.tensors().items()})
    assert again == m
    assert all(tensor.is_contiguous() for tensor in m.tensors().values())
    assert pickle.loads(pickle.dumps(m)) == copy.deepcopy(m) == m
    keep = all_keeps()
    assert torch.equal(again.reactions_alive(keep), m.reactions_alive(keep))


def test_restoring_what_is_incomplete() -> None:
    m = example()
    tensors = m.tensors()
    del tensors["gpr_complex"]
    with pytest.raises(GraphError, match=r"metabolism lacks metabolites, gpr_complex; store all of document\(\)"):
        Metabolism.from_tensors({"reactions": []}, tensors)
    for bad in (7, "abc", None):
        with pytest.raises(GraphError, match=r"the reaction names are .*; give a list of strings"):
            Metabolism.from_tensors({**m.document(), "reactions": bad}, m.tensors())


def test_equality_is_by_content() -> None:
    assert example() == example()
    assert example() != "something else"
    changed = example().tensors()
    changed["w_growth"] = changed["w_growth"] + 1
    assert Metabolism.from_tensors(example().document(), changed) != example()
    renamed = {**example().document(), "metabolites": ["x", "y", "other"]}
    assert Metabolism.from_tensors(renamed, example().tensors()) != example()


def test_immutable_and_own_copies() -> None:
    m = example()
    with pytest.raises(FrozenInstanceError):
        m.reactions = ()  # type: ignore[misc]
    tensors = {name: tensor.clone() for name, tensor in m.tensors().items()}
    other = Metabolism.from_tensors(m.document(), tensors)
    tensors["stoichiometry"].zero_()
    assert other == m


def test_to_device() -> None:
    m = example()
    assert m.to("cpu") is m
    moved = m.to("meta")
    assert {tensor.device.type for tensor in moved.tensors().values()} == {"meta"}
    assert m.device.type == "cpu"
    assert moved.reactions == m.reactions


def long(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"reactions": ("a", "a")}, r"reaction name 'a' occurs twice"),
        ({"reactions": ("a", "")}, r"reaction name '' is not a non-empty string"),
        ({"metabolites": ("x", 3)}, r"metabolite name 3 is not a non-empty string"),
        ({"complex_reaction": [0, 1]}, r"complex_reaction is list, expected a tensor of torch.int64"),
        ({"gpr_complex": long(0, 0, 1).int()}, r"gpr_complex is torch.int32, expected a tensor of torch.int64"),
        ({"stoichiometry": torch.ones(2).double()}, r"stoichiometry is torch.float64, expected .* torch.float32"),
        ({"gpr_index": long(0, 1, 2)}, r"gpr_index has shape \[3\], expected \[2, any\]"),
        ({"rmr_index": torch.zeros(3, 2, dtype=torch.int64)}, r"rmr_index has shape \[3, 2\], expected \[2, any\]"),
        ({"w_growth": torch.ones(3)}, r"w_growth has shape \[3\], expected \[2\]"),
        ({"w_growth": torch.ones(2, device="meta")}, r"w_growth is on meta, complex_reaction on cpu"),
        ({"gpr_complex": long(0, 0)}, r"gpr_index has 3 entries but gpr_complex has 2; give one per entry"),
        ({"stoichiometry": torch.ones(3)}, r"rmr_index has 2 entries but stoichiometry has 3"),
        ({"complex_reaction": long(0, 2)}, r"complex_reaction entry 1 is 2, but reaction numbers run from 0 to 1"),
        ({"complex_reaction": long()}, r"gpr_complex entry 0 is 0, but there is no complex"),
        ({"gpr_complex": long(0, 0, -1)}, r"gpr_complex entry 2 is -1, but complex numbers run from 0 to 1"),
        ({"gpr_index": torch.stack([long(0, 1, 2), long(0, 0, 9)])}, r"gpr_index\[1\] entry 2 is 9"),
        ({"rmr_index": torch.stack([long(0, 9), long(0, 1)])}, r"rmr_index\[0\] entry 1 is 9"),
        ({"rmr_index": torch.stack([long(0, 1), long(0, 9)])}, r"rmr_index\[1\] entry 1 is 9, but metabolite numbers"),
        ({"complex_reaction": long(0, 1, 1)}, r"complex 2 of reaction 'b' has no genes; leave it out"),
        (
            {"gpr_index": torch.stack([long(0, 1, 2), long(0, 1, 1)])},
            r"gpr entry 1 puts complex 0 on reaction 'b', but it belongs to 'a'",
        ),
        (
            {"gpr_index": torch.stack([long(0, 0, 2), long(0, 0, 1)])},
            r"gpr entry 1 repeats gene 0 in complex 0 of reaction 'a'; list every gene of a complex once",
        ),
        (
            {"rmr_index": torch.stack([long(0, 0), long(1, 1)])},
            r"rmr entry 1 repeats metabolite 'y' in reaction 'a'; add up its coefficients",
        ),
        ({"stoichiometry": torch.tensor([1.0, 0.0])}, r"metabolite 'y' in reaction 'b' is 0.0, expected finite"),
        ({"stoichiometry": torch.tensor([1.0, torch.nan])}, r"metabolite 'y' in reaction 'b' is nan"),
        ({"w_growth": torch.tensor([torch.inf, 0])}, r"w_growth of reaction 'a' is inf; use 1 for growth reactions"),
    ],
)
def test_tensors_that_do_not_fit(change: dict[str, object], match: str) -> None:
    arguments = {
        "reactions": ("a", "b"),
        "metabolites": ("x", "y"),
        "complex_reaction": long(0, 1),
        "gpr_index": torch.stack([long(0, 1, 2), long(0, 0, 1)]),
        "gpr_complex": long(0, 0, 1),
        "rmr_index": torch.stack([long(0, 1), long(0, 1)]),
        "stoichiometry": torch.tensor([1.0, -1.0]),
        "w_growth": torch.zeros(2),
    }
    Metabolism(**arguments)
    with pytest.raises(GraphError, match=match):
        Metabolism(**{**arguments, **change})


# The published yeast model


def yeast_gem() -> list[Reaction]:
    """Reactions of the published YAML, whose lines are so regular that their indentation tells what they are."""
    directory = Path(os.environ.get("KNOCKGRAPH_DATA", Path(__file__).parents[3] / "shared" / "data"))
    path = directory / "metabolism" / "yeast-GEM-9.0.2.yml.gz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there; set KNOCKGRAPH_DATA to the folder that holds metabolism/{path.name}")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return list(read_reactions(lines))


def read_reactions(lines: Iterator[str]) -> Iterator[Reaction]:
    section, key = "", ""
    biomass: set[str] = set()
    record: dict[str, str] = {}
    stoichiometry: dict[str, float] = {}
    growth = False
    for line in lines:
        content = line.strip().removeprefix("- ")
        name, _, value = (part.strip(' "') for part in content.partition(":"))
        indent = len(line) - len(line.lstrip())
        starts_record = indent == 4 and content == "!!omap"
        if (starts_record or indent == 0) and section == "reactions" and record:
            bounds = float(record["lower_bound"]), float(record["upper_bound"])
            rule = record.get("gene_reaction_rule", "")
            growth = growth or not biomass.isdisjoint(stoichiometry)
            yield Reaction(record["id"], stoichiometry, *bounds, rule, growth)
        if starts_record or indent == 0:
            record, stoichiometry, growth = {}, {}, False
        if indent == 0:
            section = name
        elif indent == 6:
            key = name
            record[key] = value
            if section == "metabolites" and key == "name" and value == "biomass":
                biomass.add(record["id"])
        elif indent == 10 and section == "reactions" and key == "metabolites":
            stoichiometry[name] = float(value)
        elif indent == 10 and section == "reactions" and key == "subsystem":
            growth = growth or content.strip('"') == "Growth"


def test_yeast_gem_has_the_published_sizes() -> None:
    start = time.perf_counter()
    reactions = yeast_gem()
    assert time.perf_counter() - start < 30  # seconds; about one on an idle core
    assert len(reactions) == 4131
    genes = sorted({name for r in reactions for name in re.findall(r"[^\s()]+", r.gene_rule)} - {"and", "or"})
    index = {name: i for i, name in enumerate(genes)}
    m = Metabolism.from_reactions(reactions, index)
    assert m.num_reactions == 7122
    assert m.num_reactions_with_genes == 4881
    assert m.num_gpr == 5450
    data = CellGraph(genes, {}, m).to_hetero_data()
    assert data["gene", "gpr", "reaction"].num_edges == 4881
    assert len(data["reaction", "rmr", "metabolite"].reaction_to_genes) == 4881
    assert m.num_metabolites == 2806
    assert m.num_rmr == 26325
    assert m.num_genes_required == len(genes) == 1161

    growth = {name for name, w in zip(m.reactions, m.w_growth.tolist(), strict=True) if w}
    subsystem = {"r_2108", "r_4041", "r_4046", "r_4047", "r_4048", "r_4049", "r_4050", "r_4598", "r_4599"}
    assert growth == subsystem | {"r_2111"}  # r_2111 takes biomass out of the cell

    whole = Metabolism.from_reactions(reactions, index, split=False)
    assert whole.num_reactions == len(reactions)
    keep = torch.rand(len(genes), 32, generator=torch.Generator().manual_seed(0)) > 0.1
    alive = whole.reactions_alive(keep)
    row = {origin(name): i for i, name in enumerate(whole.reactions)}
    any_node = torch.zeros_like(alive, dtype=torch.int64)
    any_node.index_add_(0, torch.tensor([row[origin(n)] for n in m.reactions]), m.reactions_alive(keep).long())
    assert torch.equal(alive, any_node > 0)

    kept = {name for name in genes if keep[index[name], 0]}
    for reaction, survives in zip(reactions, alive[:, 0].tolist(), strict=True):
        assert survives == rule_holds(reaction.gene_rule, kept), reaction.id


def rule_holds(rule: str, kept: set[str]) -> bool:
    """The published rule, evaluated by Python itself on truth values."""
    words = re.findall(r"[()]|[^\s()]+", rule)
    values = [word if word in ("and", "or", "(", ")") else str(word in kept) for word in words]
    return not rule or bool(eval(" ".join(values)))
