"""What sets the device strategies apart: buffers given back, sizes told, bytes moved, radius of recomputation."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from strategy_cases import CASES, DIRECTIONS, VARIANTS, assert_close, cell, create, features, relative
from toy_gin import ToyGIN

import knockgraph as kg
from knockgraph.strategies import device_cached
from knockgraph.strategies.device_inplace import DeviceInplace

CASE = CASES["random"]
GRAPH = CASE.graph
N = GRAPH.num_genes
RELATIONS = list(GRAPH.relations)

each_variant = pytest.mark.parametrize("variant", VARIANTS)


def batch_of(genotypes: list[list[int]], n: int = N) -> kg.PerturbationBatch:
    return kg.PerturbationBatch.from_lists(genotypes, n)


def restored(strategy: DeviceInplace) -> bool:
    masks = [b for name, b in strategy.named_buffers() if name.startswith("mask_")]
    assert len(masks) == len(RELATIONS)
    return not strategy.borrowed and all(bool(m.all()) for m in masks)


@pytest.fixture
def inplace() -> DeviceInplace:
    strategy = kg.strategies.create("device-inplace", GRAPH)
    assert isinstance(strategy, DeviceInplace)
    return strategy


def test_inplace_borrows_and_restores(inplace: DeviceInplace) -> None:
    batch = batch_of([[3], [7, 1, 5]])
    with inplace(batch) as view:
        assert not restored(inplace)
        buffer = inplace.buffer(0, 2)
        assert torch.equal(view.edge_mask("physical"), buffer)
        assert not bool(buffer.all())
        mask = view.edge_mask("physical")
        mask.fill_(True)  # a copy: the caller cannot spoil the buffer
        assert not bool(buffer.all())
    assert restored(inplace)
    assert inplace.buffer(0, 2) is buffer  # one persistent buffer, not a new one per batch


def test_inplace_restores_after_an_exception_in_the_forward_pass(inplace: DeviceInplace) -> None:
    def step() -> None:
        with inplace(batch_of([[3], []])) as view:
            view.aggregate("physical", torch.ones(N, 2, 1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()
    assert restored(inplace)
    with pytest.raises(kg.StrategyError, match="x has shape"), inplace(batch_of([[3], []])) as view:
        view.aggregate("physical", torch.ones(N, 5, 1))
    assert restored(inplace)


def test_inplace_restores_after_an_exception_in_the_backward_pass(inplace: DeviceInplace) -> None:
    def fail(gradient: torch.Tensor) -> None:
        raise ZeroDivisionError

    def step() -> None:
        with inplace(batch_of([[3], []])) as view:
            y = view.aggregate("physical", torch.ones(N, 2, 1, requires_grad=True))
            y.register_hook(fail)
            y.sum().backward()

    with pytest.raises(ZeroDivisionError):
        step()
    assert restored(inplace)


def test_inplace_restores_when_entering_fails(inplace: DeviceInplace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(DeviceInplace, "buffer", full)
        with pytest.raises(torch.OutOfMemoryError), inplace(batch_of([[3]])):
            pass
    with inplace(batch_of([[3]])):
        pass
    assert restored(inplace)


def test_inplace_second_view(inplace: DeviceInplace) -> None:
    waiting = inplace(batch_of([[1]]))
    with inplace(batch_of([[3]])) as view:
        with pytest.raises(kg.StrategyError, match="another view of it is still alive; leave its 'with' block first"):
            inplace(batch_of([[5]]))
        with pytest.raises(kg.StrategyError, match="another view of it is still alive"):
            waiting.__enter__()
        before = view.edge_mask("regulatory")
    with waiting:
        assert not torch.equal(waiting.edge_mask("regulatory"), before)
    assert restored(inplace)


def test_inplace_outside_with(inplace: DeviceInplace) -> None:
    view = inplace(batch_of([[3]]))
    x = torch.ones(N, 1, 1)
    message = "needs 'with strategy.batch. as view:' around the forward and backward pass"
    for use in (
        lambda: view.aggregate("physical", x),
        lambda: view.aggregate_all(x),
        lambda: view.edge_mask("physical"),
        lambda: view.degree("physical"),
        lambda: view.attend("physical", x.unsqueeze(-1), x.unsqueeze(-1), torch.ones(1, 1)),
    ):
        with pytest.raises(kg.StrategyError, match=message):
            use()
    with view:
        view.aggregate("physical", x)
    with pytest.raises(kg.StrategyError, match=message):
        view.aggregate("physical", x)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_inplace_backward_after_exit(reduce: str, inplace: DeviceInplace) -> None:
    """Too late: the buffer is whole again. An error, or the right gradient, but never that of another graph."""
    batch, other = batch_of([[3], [7, 1, 5]]), batch_of([[0], [2]])
    x = features((N, 2, 2)).requires_grad_()
    with inplace(batch) as view:
        y = view.aggregate("regulatory", x, reduce=reduce)
        (expected,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    with inplace(other):
        try:
            (late,) = torch.autograd.grad(y.sum(), x)
        except RuntimeError as error:
            late = None
            text = str(error)
    if late is None:
        assert "modified by an inplace operation" in text
    else:
        assert torch.equal(late, expected)


def test_inplace_changing_batch_size(inplace: DeviceInplace) -> None:
    reference = kg.strategies.create("node-mask", GRAPH)
    for genotypes in ([[3], [1, 2]], [[4]], [], [[0], [1], [2], [3, 4]], [[3], [1, 2]]):
        batch = batch_of(genotypes)
        with inplace(batch) as view:
            for name in RELATIONS:
                assert torch.equal(view.edge_mask(name), reference(batch).edge_mask(name))
        assert restored(inplace)
    batch = inplace.collate(batch_of([[3], [1, 2]])).with_wild_type()
    with inplace(batch) as view:
        assert bool(view.edge_mask("regulatory")[:, -1].all())
    assert restored(inplace)


def test_cached_tells_its_size_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> torch.Tensor:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(device_cached, "_cache", taken)
    needed = sum(N * -(-r.num_edges // 8) for r in GRAPH.relations.values())
    assert device_cached.cache_bytes(GRAPH) == needed
    message = (
        rf"device-cached needs .* GB \({N} genes × {GRAPH.num_edges} edges\), more than max_bytes=.*; raise max_byte"
    )
    with pytest.raises(kg.StrategyError, match=message):
        kg.strategies.create("device-cached", GRAPH, max_bytes=needed - 1)


def test_cached_takes_what_it_told() -> None:
    strategy = kg.strategies.create("device-cached", GRAPH, max_bytes=device_cached.cache_bytes(GRAPH))
    caches = {name: b for name, b in strategy.named_buffers() if name.startswith("cache_")}
    assert sum(b.nbytes for b in caches.values()) == device_cached.cache_bytes(GRAPH)
    assert all(b.dtype == torch.uint8 for b in caches.values())
    edges = sum(r.edge_index.nbytes + (0 if r.weight is None else r.weight.nbytes) for r in GRAPH.relations.values())
    assert strategy.memory()["device tables"] == device_cached.cache_bytes(GRAPH) + edges + 8


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_vectorized_with_and_without_counts(direction: str) -> None:
    ragged = create("device-vectorized", GRAPH, direction)
    padded = create("device-vectorized-padded", GRAPH, direction)
    batch = CASE.batch
    counted = ragged.collate(batch)
    expected = []
    for relation in GRAPH.relations.values():
        source, destination = relation.edge_index.tolist()
        expected.append(
            sum(
                sum(g in ((s, d) if direction == "both" else (d,)) for s, d in zip(source, destination, strict=True))
                for genotype in CASE.genotypes
                for g in genotype
            )
        )
    assert counted.payload.removed == expected
    assert padded.collate(batch).payload is None
    for name in RELATIONS:
        assert torch.equal(ragged(batch).edge_mask(name), ragged(counted).edge_mask(name))
        assert torch.equal(ragged(batch).edge_mask(name), padded(batch).edge_mask(name))
    most = [max(torch.bincount(r.edge_index.flatten(), minlength=N)) for r in GRAPH.relations.values()]
    if direction == "both":
        tables = [b for name, b in padded.named_buffers() if name.startswith("padded")]
        assert all(t.shape[0] == N and t.shape[1] <= m for t, m in zip(tables, most, strict=True))
    assert not any(name.startswith("incidence") for name, _ in padded.named_buffers())


# --- neighborhood ----------------------------------------------------------------------------------------------------

CHAIN = cell(
    24,
    chain=[[i, i + 1] for i in range(23)] + [[i + 1, i] for i in range(23)],
    skip=[[i, i + 2] for i in range(0, 20, 4)],
)
CHAIN_GENOTYPES = [[0], [11], [5, 17], []]


def run_toy(strategy: kg.strategies.Strategy, layers: int, genotypes: list[list[int]]) -> list[torch.Tensor]:
    """The model's result and the gradients of all of its parameters."""
    model = ToyGIN(features((CHAIN.num_genes, 3), seed=60), 2, layers)
    batch = batch_of(genotypes, CHAIN.num_genes).with_wild_type()
    with strategy(batch) as view:
        y = model(view)
        (y * features(tuple(y.shape), seed=61)).sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layers", [2, 3])
def test_neighborhood_is_exact_from_its_layers_on(layers: int, direction: str) -> None:
    expected = run_toy(kg.strategies.create("node-mask", CHAIN, direction=direction), layers, CHAIN_GENOTYPES)
    for hops in (layers, layers + 1):
        strategy = kg.strategies.create("neighborhood", CHAIN, direction=direction, hops=hops, layers=layers)
        assert strategy.exact
        for actual, wanted in zip(run_toy(strategy, layers, CHAIN_GENOTYPES), expected, strict=True):
            assert_close(actual, wanted, torch.float64)


@pytest.mark.parametrize("layers", [2, 3])
def test_neighborhood_says_that_it_is_approximate(layers: int) -> None:
    expected = run_toy(kg.strategies.create("node-mask", CHAIN), layers, CHAIN_GENOTYPES)[0]
    errors = []
    for hops in range(layers + 1):
        strategy = kg.strategies.create("neighborhood", CHAIN, hops=hops, layers=layers)
        assert strategy.exact == (hops >= layers)
        errors.append(relative(run_toy(strategy, layers, CHAIN_GENOTYPES)[0], expected))
    assert all(error > 1e-6 for error in errors[:-1])
    assert errors[-1] <= 1e-12
    assert sorted(errors, reverse=True) == errors
    unknown = kg.strategies.create("neighborhood", CHAIN, hops=9)
    assert not unknown.exact  # that depends on the model
    assert unknown.exact_for(9)
    assert not unknown.exact_for(10)
    assert not unknown.exact_for(None)
    assert kg.strategies.create("node-mask", CHAIN).exact_for(None)


@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.parametrize("where", ["everywhere", "two hops away", "one sample"])
def test_neighborhood_recomputes_samples_with_features_of_their_own(where: str, hops: int) -> None:
    """What differs from the wild type not because of a deletion cannot be borrowed from it."""
    batch = batch_of(CHAIN_GENOTYPES, CHAIN.num_genes).with_wild_type()
    x = features((CHAIN.num_genes, 1, 3)).repeat(1, batch.num_columns, 1)
    if where == "everywhere":
        x = features((CHAIN.num_genes, batch.num_columns, 3))
    elif where == "one sample":
        x[:, 2] += 1
    else:
        x[13, 1] += 1
    weights = features((3,))

    def after(name: str, **options: int) -> torch.Tensor:
        view = kg.strategies.create(name, CHAIN, **options)(batch)
        first = view.aggregate("chain", x, "mean")
        attended = view.attend("skip", x.unsqueeze(2), x.unsqueeze(2), weights.unsqueeze(0)).squeeze(2)
        return torch.stack([first, attended])

    expected, found = after("node-mask"), after("neighborhood", hops=hops)
    own = {"everywhere": slice(None), "one sample": [2, 4], "two hops away": [1, 4]}[where]
    assert_close(found[:, :, own], expected[:, :, own], torch.float64)


def test_neighborhood_borrows_where_samples_share_their_features() -> None:
    """Equal up to rounding is equal: no layer after the first makes a whole sample be recomputed."""
    model = ToyGIN(features((CHAIN.num_genes, 3), seed=60), 2, 3)
    view = kg.strategies.create("neighborhood", CHAIN, hops=2)(
        batch_of(CHAIN_GENOTYPES, CHAIN.num_genes).with_wild_type()
    )
    before = view.share_recomputed
    model(view)
    assert view.share_recomputed == before < 1


def test_neighborhood_recomputes_within_its_radius_only() -> None:
    edges = {tuple(e) for r in CHAIN.relations.values() for e in r.edge_index.T.tolist()}
    for hops in range(4):
        view = kg.strategies.create("neighborhood", CHAIN, hops=hops)(
            batch_of(CHAIN_GENOTYPES, CHAIN.num_genes).with_wild_type()
        )
        total = 0
        for sample, genotype in enumerate(CHAIN_GENOTYPES):
            reached = set(genotype)
            for _ in range(hops):
                reached |= {d for s, d in edges if s in reached}
            assert view.recomputed[:, sample].nonzero().flatten().tolist() == sorted(reached)
            total += len(reached)
        assert view.share_recomputed == pytest.approx(total / (len(CHAIN_GENOTYPES) * CHAIN.num_genes))
        assert bool(view.recomputed[:, -1].all())
    bare = kg.strategies.create("neighborhood", CHAIN, hops=0)(batch_of(CHAIN_GENOTYPES, CHAIN.num_genes))
    assert bare.share_recomputed == 1.0  # no wild type in the batch: nothing to borrow from


def test_neighborhood_and_the_degrees_of_gcn() -> None:
    """A GCN divides by its neighbours' degrees, so its first layer reaches two hops: one more than its layers."""
    from knockgraph.nn import GCNConv

    torch.manual_seed(0)
    conv = GCNConv(3, 3).double()
    batch = batch_of(CHAIN_GENOTYPES, CHAIN.num_genes).with_wild_type()
    x = features((CHAIN.num_genes, 3))
    with torch.no_grad():
        expected = conv(kg.strategies.create("node-mask", CHAIN)(batch), "chain", x)
        errors = [
            relative(conv(kg.strategies.create("neighborhood", CHAIN, hops=hops)(batch), "chain", x), expected)
            for hops in (1, 2)
        ]
    assert errors[0] > 1e-6
    assert errors[1] <= 1e-12


def test_neighborhood_options() -> None:
    with pytest.raises(kg.StrategyError, match="hops=-1, but it must be at least 0"):
        kg.strategies.create("neighborhood", CHAIN, hops=-1)


# --- what moves and what is held -------------------------------------------------------------------------------------


def index_bytes(batch: kg.PerturbationBatch) -> int:
    return 8 * (2 * batch.perturbation_indices.numel() + batch.num_columns + 1)


@each_variant
def test_bytes_moved(variant: str, tmp_path: Path) -> None:
    batch = CASE.batch
    strategy = create(variant, GRAPH, "both", batch, tmp_path)
    moved = strategy.bytes_moved(strategy.collate(batch))
    if strategy.placement == "device":
        assert moved == index_bytes(batch)
    elif strategy.name == "subgraph":
        nodes = int(batch.keep().sum())
        edges = [kg.strategies.create("lazy-mask", GRAPH)(batch).edge_mask(name).sum() for name in RELATIONS]
        weights = sum(
            int(e) * r.weight.element_size()
            for e, r in zip(edges, GRAPH.relations.values(), strict=True)
            if r.weight is not None
        )
        assert moved == index_bytes(batch) + 16 * nodes + 16 * int(sum(edges)) + weights
    else:
        assert moved == index_bytes(batch) + GRAPH.num_edges * batch.num_columns  # one byte per edge and sample


@each_variant
def test_memory(variant: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH, "both", CASE.batch, tmp_path)
    parts = strategy.memory()
    assert all(isinstance(size, int) and size >= 0 for size in parts.values())
    buffers = {b.data_ptr(): b.nbytes for b in strategy.buffers() if b.numel()}
    assert parts["device tables"] == sum(buffers.values())
    assert parts["metabolism"] == sum(t.nbytes for t in GRAPH.metabolism.tensors().values())
    edges, entries = GRAPH.num_edges, 4 * (N + 1)
    if strategy.name == "subgraph":
        assert parts["device tables"] == 0  # every batch brings its own edges
    elif strategy.name != "node-mask":
        assert parts["device tables"] >= 16 * edges
    if strategy.name == "node-mask":
        # At least CSR by destination of the stacked operator, at most three tables twice, with weights.
        assert 4 * edges < parts["device tables"] < 6 * (12 * edges + 2 * len(RELATIONS) * entries)
    assert ("disk" in parts) == (strategy.placement == "stored")
    if strategy.placement == "stored":
        assert parts["disk"] > 0
    if strategy.name == "lazy-mask":
        ends = sum(int((r.edge_index[0] != r.edge_index[1]).sum()) + r.num_edges for r in GRAPH.relations.values())
        assert parts["host incidence map"] == 4 * ends + len(RELATIONS) * entries


def test_yeast_tables_fit_50_megabytes() -> None:
    strategy = kg.strategies.create("node-mask", kg.yeast_scale_cell())
    on_cpu = strategy.memory()["device tables"]
    # The panels of the transpose serve the CPU's cache and are dropped on a GPU.
    panels = sum(b.nbytes for name, b in strategy.named_buffers() if "panel" in name)
    assert on_cpu <= 50e6
    assert (on_cpu - panels) + strategy.memory()["metabolism"] <= 50e6


# --- modules ---------------------------------------------------------------------------------------------------------


@each_variant
def test_is_a_module_without_state(variant: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH, "both", CASE.batch, tmp_path)
    assert strategy.state_dict() == {}
    assert list(strategy.parameters()) == []
    assert strategy.exact
    name, _ = VARIANTS[variant]
    assert strategy.name == name
    assert name in repr(strategy)
    assert strategy.relation_names == tuple(RELATIONS)
    model = torch.nn.ModuleDict({"strategy": strategy, "head": torch.nn.Linear(1, 1)})
    assert set(model.state_dict()) == {"head.weight", "head.bias"}


@each_variant
def test_moves_and_copies(variant: str, tmp_path: Path) -> None:
    """``.double()``, ``.float()`` and a deep copy change no result beyond the weights' own precision."""
    strategy = create(variant, GRAPH, "both", CASE.batch, tmp_path)
    x = features((N, len(CASE.genotypes), 2))
    with strategy(CASE.batch) as view:
        expected = view.aggregate_all(x)
    other = copy.deepcopy(strategy).to(torch.float64)
    assert other.device == torch.device("cpu")
    with other(CASE.batch) as view:
        assert_close(view.aggregate_all(x), expected, torch.float64)
        assert torch.equal(view.reactions_alive, CASES["random"].graph.metabolism.reactions_alive(CASE.batch.keep()))
    with pickle.loads(pickle.dumps(strategy))(CASE.batch) as view:
        assert torch.equal(view.aggregate_all(x), expected)


@each_variant
def test_prepare_is_harmless_for_the_others(variant: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH)
    strategy.prepare(CASE.batch, tmp_path / "store")
    assert (tmp_path / "store").exists() == (strategy.placement == "stored")


# --- errors ----------------------------------------------------------------------------------------------------------


def test_unknown_strategy() -> None:
    answer = r"'nodemask' \(did you mean 'node-mask' .*of subgraph, .*, node-mask,"
    with pytest.raises(kg.StrategyError, match=answer):
        kg.strategies.create("nodemask", GRAPH)


@pytest.mark.parametrize("name", kg.strategies.available())
def test_unknown_option_and_direction(name: str) -> None:
    with pytest.raises(kg.StrategyError, match=f"the strategy {name} has no option 'hop'"):
        kg.strategies.create(name, GRAPH, hop=2)
    with pytest.raises(kg.StrategyError, match="direction='out' is not known: use 'both' or 'in'"):
        kg.strategies.create(name, GRAPH, direction="out")


def test_unknown_layout_and_backend() -> None:
    with pytest.raises(kg.StrategyError, match="layout='dense' is not known: use 'ragged' or 'padded'"):
        kg.strategies.create("device-vectorized", GRAPH, layout="dense")
    with pytest.raises(kg.StrategyError, match="Unknown backend 'mkl'"):
        kg.strategies.create("node-mask", GRAPH, backend="mkl")(CASE.batch).aggregate_all(torch.ones(N, 6, 1))


@each_variant
def test_wrong_use_of_a_view(variant: str, tmp_path: Path) -> None:
    batch = batch_of([[3], [1, 2]])
    strategy = create(variant, GRAPH, "both", batch, tmp_path)
    good = torch.ones(N, 2, 3)
    with strategy(batch) as view:
        listed = "the graph has no relation 'phsyical'; it has physical, regulatory, weighted, precise, empty"
        for use in (
            lambda: view.aggregate("phsyical", good),
            lambda: view.aggregate("phsyical", good[:, 0]),
            lambda: view.edge_mask("phsyical"),
            lambda: view.degree("phsyical"),
            lambda: view.strength("phsyical"),
            lambda: view.attend("phsyical", good.unsqueeze(2), good.unsqueeze(2), torch.ones(1, 3)),
        ):
            with pytest.raises(kg.StrategyError, match=listed):
                use()
        for shape in ((N, 3, 3), (2, N, 3), (N - 1, 3), (N,), (N, 2, 3, 1), (N - 1, 2, 3)):
            for reduce in ("sum", "max"):
                for use in (view.aggregate_all, lambda x, reduce: view.aggregate("physical", x, reduce)):
                    with pytest.raises(kg.StrategyError, match=rf"x has shape .* needs \[{N}, 2, channels\]"):
                        use(torch.ones(shape), reduce)
        for x in (good, good[:, 0]):
            with pytest.raises(kg.StrategyError, match=r"(?i)unknown reduction 'median'"):
                view.aggregate("physical", x, reduce="median")


@each_variant
def test_no_metabolism(variant: str, tmp_path: Path) -> None:
    graph = cell(3, a=[[0, 1]])
    strategy = create(variant, graph, "both", [[0]], tmp_path)
    with strategy(batch_of([[0]], 3)) as view, pytest.raises(kg.StrategyError, match="has no metabolism"):
        _ = view.reactions_alive


@each_variant
def test_batch_of_another_gene_list(variant: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH, "both", [[3]], tmp_path)
    with pytest.raises(
        kg.GeneListMismatchError, match=rf"a different gene list \({N + 1} genes\).*\({N} genes\); bind"
    ):
        strategy(batch_of([[3]], N + 1))
    other = kg.CellGraph([f"h{i}" for i in range(N)], {"a": torch.tensor([[0], [1]])})
    batch = kg.Screen([["h3"]], {"fitness": [1.0]}).bind(other).batch([0])
    assert batch.num_genes == N
    with pytest.raises(kg.GeneListMismatchError, match="a different gene list"):
        strategy(batch)


# --- on a GPU --------------------------------------------------------------------------------------------------------

CASES_ON_GPU = ["random", "empty-batch", "hub", "one-gene", "all-neighbours-deleted"]


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", CASES_ON_GPU)
@each_variant
def test_cuda_equals_cpu(variant: str, name: str, direction: str, tmp_path: Path) -> None:
    if variant.startswith("stored"):
        pytest.importorskip("lmdb")
    case = CASES[name]
    batch = case.batch
    n, b = case.graph.num_genes, len(case.genotypes)
    x, shared = features((n, b, 4)), features((n, 4), seed=2)
    upstream = features((len(case.graph.relations), n, b, 4), seed=3)
    states = [features((n, b, 2, 4), seed=s) for s in (4, 5)]
    attention = features((2, 4), seed=6)
    results: dict[str, list[torch.Tensor]] = {"cpu": [], "cuda": []}
    for device, found in results.items():
        strategy = create(variant, case.graph, direction, batch, tmp_path).to(device)
        here = strategy.collate(batch).to(device)
        for reduce in ("sum", "mean", "max", "min"):
            for given in (x, shared):
                leaf = given.detach().to(device).requires_grad_()
                with strategy(here) as view:
                    y = view.aggregate_all(leaf, reduce=reduce)
                    (y * upstream.to(device)).sum().backward()
                found += [y, leaf.grad]
        leaves = [t.detach().to(device).requires_grad_() for t in (*states, attention)]
        for relation in case.graph.relations:
            with strategy(here) as view:
                y = view.attend(relation, *leaves)
                y.square().sum().backward()
                found += [y, view.degree(relation), view.strength(relation), view.edge_mask(relation)]
        found += [leaf.grad for leaf in leaves]
    for number, (gpu, cpu) in enumerate(zip(results["cuda"], results["cpu"], strict=True)):
        assert gpu.device.type == "cuda"
        if cpu.dtype == torch.bool:
            assert torch.equal(gpu.cpu(), cpu)
        else:
            kind = torch.float64 if cpu.dtype == torch.float64 else torch.float32
            assert_close(gpu, cpu, kind, number, scale=float(x.norm()) + float(shared.norm()) + 1)


def _cuda_step(strategy: kg.strategies.Strategy, batch: kg.PerturbationBatch, x: torch.Tensor) -> list[torch.Tensor]:
    leaf = x.detach().requires_grad_()
    with strategy(batch) as view:
        y = view.aggregate_all(leaf)
        y.backward(torch.ones_like(y))
        alive = view.reactions_alive
    return [y.detach(), leaf.grad, alive]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_host_sync(dtype: torch.dtype, shared: bool) -> None:
    """The strategy call, all aggregations and the gradient: nothing waits for the device."""
    graph = kg.demo_cell()
    strategy = kg.strategies.create("node-mask", graph).to("cuda")
    batch = kg.demo_screen().bind(graph).batch(range(28)).with_wild_type().to("cuda")
    shape = (graph.num_genes, 64) if shared else (graph.num_genes, 29, 64)
    x = torch.randn(shape, device="cuda", dtype=dtype)
    _cuda_step(strategy, batch, x)  # kernels are compiled
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _cuda_step(strategy, batch, x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bitwise_repeatable_on_cuda(dtype: torch.dtype) -> None:
    graph = kg.demo_cell()
    strategy = kg.strategies.create("node-mask", graph).to("cuda")
    batch = kg.demo_screen().bind(graph).batch(range(28)).with_wild_type().to("cuda")
    x = torch.randn(graph.num_genes, 29, 64, device="cuda", dtype=dtype)
    first, second = _cuda_step(strategy, batch, x), _cuda_step(strategy, batch, x)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.gpu
def test_yeast_tables_on_cuda() -> None:
    strategy = kg.strategies.create("node-mask", kg.yeast_scale_cell())
    before = torch.cuda.memory_allocated()
    strategy = strategy.to("cuda")
    assert torch.cuda.memory_allocated() - before <= 50e6
    assert sum(strategy.memory().values()) <= 50e6


@pytest.mark.gpu
def test_batch_on_another_device() -> None:
    strategy = kg.strategies.create("node-mask", GRAPH).to("cuda")
    with pytest.raises(kg.StrategyError, match="the batch is on cpu, the strategy on cuda:0; move one"):
        strategy(CASE.batch)
