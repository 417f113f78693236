"""Genes → reactions and reactions ↔ metabolites against plain loops over genes, reactions and metabolites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import slow_reference as slow
import torch
from strategy_cases import VARIANTS, assert_close, cell, create, features, small_metabolism
from torch import Tensor

import knockgraph as kg
from knockgraph.nn import GeneToReaction, ReactionMetaboliteConv

N, CHANNELS = 7, 3
CHANNELS_OF_HEADS = 4
GENOTYPES = [[], [0], [2], [2, 3], [1, 6], [0, 2], list(range(N))]
SETS = [set(g) for g in GENOTYPES]


def _case(split: bool) -> tuple[kg.CellGraph, list[list[set[int]]]]:
    metabolism, rules = small_metabolism(N, split)
    return cell(N, metabolism, a=[[0, 1], [1, 2]]), rules


def _view(graph: kg.CellGraph) -> kg.PerturbedGraphs:
    return kg.strategies.create("node-mask", graph)(kg.PerturbationBatch.from_lists(GENOTYPES, N))


def genes_to_reactions(rules: list[list[set[int]]], x: Tensor) -> Tensor:
    """The mean of a living reaction's kept genes; 0 for dead reactions and those without genes."""
    columns = []
    for sample, deleted in enumerate(SETS):
        rows = []
        for rule in rules:
            lives = not rule or any(not complex_ & deleted for complex_ in rule)
            kept = sorted(set().union(*rule) - deleted)
            row = x[:, sample].sum(0) * 0
            for gene in kept if lives else []:
                row = row + x[gene, sample] / len(kept)
            rows.append(row)
        columns.append(torch.stack(rows))
    return torch.stack(columns, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("split", [True, False])
def test_gene_to_reaction(split: bool, dtype: torch.dtype) -> None:
    graph, rules = _case(split)
    layer = GeneToReaction(graph.metabolism, N)
    x = features((N, len(GENOTYPES), CHANNELS))
    upstream = features((len(rules), len(GENOTYPES), CHANNELS), seed=2)
    expected, (gradient,) = slow.value_and_gradients(lambda x: genes_to_reactions(rules, x), [x], upstream)
    leaf = x.to(dtype).requires_grad_()
    view = _view(graph)
    y = layer(view, leaf)
    (y * upstream.to(dtype)).sum().backward()
    assert y.dtype == dtype
    assert_close(y, expected, dtype)
    assert_close(leaf.grad, gradient, dtype)
    alive = slow.alive(rules, SETS)
    assert torch.equal(view.reactions_alive, alive)
    assert not bool(alive.all())
    assert not y[~alive].detach().any()
    assert not y[[not rule for rule in rules]].detach().any()
    assert layer.state_dict() == {}
    assert repr(layer) == f"GeneToReaction({N} genes, {len(rules)} reactions)"


def test_dead_reactions_differ_between_split_and_unsplit() -> None:
    """Losing one isozyme kills its node when split; unsplit, the reaction lives on with the other."""
    alive = {}
    for split in (True, False):
        graph, _ = _case(split)
        names, column = graph.metabolism.reactions, _view(graph).reactions_alive[:, GENOTYPES.index([2])]
        alive[split] = {name: bool(lives) for name, lives in zip(names, column, strict=True)}
    assert alive[True]["isozymes:g2"] is False
    assert alive[True]["isozymes:g3"] is True
    assert alive[False]["isozymes"] is True


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_strategy(variant: str, tmp_path: Path) -> None:
    graph, rules = _case(True)
    strategy = create(variant, graph, "both", GENOTYPES, tmp_path)
    x = features((N, len(GENOTYPES), CHANNELS))
    with strategy(kg.PerturbationBatch.from_lists(GENOTYPES, N)) as view:
        assert_close(GeneToReaction(graph.metabolism, N)(view, x), genes_to_reactions(rules, x), torch.float64)


@pytest.mark.parametrize("value", [1e9, float("nan")])
def test_deleted_genes_do_not_reach_reactions(value: float) -> None:
    graph, _ = _case(False)
    layer = GeneToReaction(graph.metabolism, N)
    view = _view(graph)
    x = features((N, len(GENOTYPES), CHANNELS))
    spoilt = torch.where(view.keep.unsqueeze(-1), x, torch.full_like(x, value))
    assert torch.equal(layer(view, spoilt), layer(view, x))


def reactions_and_metabolites(
    layer: ReactionMetaboliteConv, metabolism: kg.Metabolism, alive: Tensor, h: Tensor
) -> Tensor:
    """The formula of the docstring, entry by entry."""
    entries = list(zip(*metabolism.rmr_index.tolist(), metabolism.stoichiometry.tolist(), strict=True))

    def gate(mlp: torch.nn.Module, s: float) -> Tensor:
        given = torch.tensor([1.0 if s > 0 else -1.0, torch.tensor(abs(s)).double().log1p().item()]).double()
        given = given.float().double()  # the layer keeps them in float32
        return torch.sigmoid(mlp(given))

    columns = []
    if layer.heads:
        return with_attention(layer, metabolism, entries, gate, alive, h)
    for sample in range(h.shape[1]):
        nothing = h[:, sample].sum(0) * 0
        inbox = [nothing for _ in metabolism.metabolites]
        for reaction, metabolite, s in entries:
            if bool(alive[reaction, sample]):
                inbox[metabolite] = inbox[metabolite] + gate(layer.gate_out, s) * h[reaction, sample]
        u = []
        for total in inbox:
            v = layer.metabolite(total)
            v = (v - v.mean()) / (v.var(correction=0) + layer.norm.eps).sqrt() * layer.norm.weight + layer.norm.bias
            u.append(torch.nn.functional.gelu(v))
        rows = []
        for number in range(metabolism.num_reactions):
            update = nothing
            for reaction, metabolite, s in entries:
                if reaction == number:
                    update = update + gate(layer.gate_in, s) * u[metabolite]
            lives = bool(alive[number, sample])
            rows.append(h[number, sample] + layer.reaction(update) if lives else nothing)
        columns.append(torch.stack(rows))
    return torch.stack(columns, 1)


def with_attention(
    layer: ReactionMetaboliteConv,
    metabolism: kg.Metabolism,
    entries: list[tuple[int, int, float]],
    gate: Callable[[torch.nn.Module, float], Tensor],
    alive: Tensor,
    h: Tensor,
) -> Tensor:
    """The sums of the docstring with a share of each message: a softmax over a plain list of the living members."""
    d = CHANNELS_OF_HEADS // layer.heads

    def mixed(a: Tensor, asks: Tensor, sent: list[Tensor], gates: list[Tensor], nothing: Tensor) -> Tensor:
        parts = []
        for head in range(layer.heads):
            part = slice(head * d, (head + 1) * d)
            logits = [(torch.nn.functional.leaky_relu(s[part] + asks[part], 0.2) * a[head]).sum() for s in sent]
            total = nothing[part]
            if sent:
                shares = torch.stack(logits).softmax(0)
                total = sum((g * share * s[part] for g, share, s in zip(gates, shares, sent, strict=True)), total)
            parts.append(total)
        return torch.cat(parts)

    columns = []
    for sample in range(h.shape[1]):
        nothing = h[:, sample].sum(0) * 0
        lives = [bool(a) for a in alive[:, sample]]
        u = []
        for number in range(len(metabolism.metabolites)):
            members = [(r, s) for r, m, s in entries if m == number and lives[r]]
            sent = [layer.send_out(h[r, sample]) for r, _ in members]
            gates = [gate(layer.gate_out, s) for _, s in members]
            v = layer.metabolite(mixed(layer.attention_out, layer.query[number].flatten(), sent, gates, nothing))
            u.append(
                torch.nn.functional.gelu(torch.nn.functional.layer_norm(v, v.shape, layer.norm.weight, layer.norm.bias))
            )
        rows = []
        for number in range(metabolism.num_reactions):
            members = [(m, s) for r, m, s in entries if r == number]
            sent = [layer.send_in(u[m]) for m, _ in members]
            gates = [gate(layer.gate_in, s) for _, s in members]
            update = mixed(layer.attention_in, layer.ask(h[number, sample]), sent, gates, nothing)
            rows.append(h[number, sample] + layer.reaction(update) if lives[number] else nothing)
        columns.append(torch.stack(rows))
    return torch.stack(columns, 1)


@pytest.mark.parametrize("heads", [0, 1, 2])
@pytest.mark.parametrize("split", [True, False])
def test_reaction_metabolite_conv(split: bool, heads: int) -> None:
    graph, rules = _case(split)
    torch.manual_seed(0)
    channels = CHANNELS_OF_HEADS if heads else CHANNELS
    layer = ReactionMetaboliteConv(graph.metabolism, channels, gate_channels=5, heads=heads)
    layer = layer.double()
    view = _view(graph)
    alive = slow.alive(rules, SETS)
    h = features((len(rules), len(GENOTYPES), channels))
    upstream = features(tuple(h.shape), seed=2)
    results = []
    for run in (
        lambda leaf: reactions_and_metabolites(layer, graph.metabolism, alive, leaf),
        lambda leaf: layer(view, leaf),
    ):
        leaf = h.clone().requires_grad_()
        layer.zero_grad()
        y = run(leaf)
        (y * upstream).sum().backward()
        results.append([y.detach(), leaf.grad, *(p.grad.clone() for p in layer.parameters())])
    names = ["y", "h", *dict(layer.named_parameters())]
    for name, expected, actual in zip(names, *results, strict=True):
        assert_close(actual, expected, torch.float64, name, scale=1e-6)
    assert not results[1][0][~alive].any()
    assert float(results[1][0].norm()) > 0


@pytest.mark.parametrize("heads", [0, 1, 3])
@pytest.mark.parametrize("value", [1e9, float("nan")])
def test_dead_reactions_are_silent(value: float, heads: int) -> None:
    graph, _ = _case(True)
    torch.manual_seed(0)
    layer = ReactionMetaboliteConv(graph.metabolism, CHANNELS, heads=heads)
    view = _view(graph)
    alive = view.reactions_alive
    h = features((alive.shape[0], len(GENOTYPES), CHANNELS), torch.float32)
    spoilt = torch.where(alive.unsqueeze(-1), h, torch.full_like(h, value)).requires_grad_()
    y = layer(view, spoilt)
    y.square().sum().backward()
    assert torch.equal(y, layer(view, h))
    assert bool(spoilt.grad.isfinite().all())
    assert not spoilt.grad[~alive].any()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())
    assert "reactions" in repr(layer)
    assert not any("stoichiometry" in name or "to_" in name for name in layer.state_dict())


@pytest.mark.parametrize("size", [1e4, 1e18])
def test_attention_between_huge_states_is_finite(size: float) -> None:
    graph, _ = _case(True)
    torch.manual_seed(0)
    layer = ReactionMetaboliteConv(graph.metabolism, 4, heads=2)
    h = (size * features((graph.metabolism.num_reactions, len(GENOTYPES), 4), torch.float32)).requires_grad_()
    y = layer(_view(graph), h)
    y.sum().backward()
    assert bool(y.isfinite().all())
    assert bool(h.grad.isfinite().all())


@pytest.mark.parametrize("heads", [0, 2])
def test_bf16_autocast_stays_near_float32(heads: int) -> None:
    graph, _ = _case(True)
    torch.manual_seed(0)
    layer = ReactionMetaboliteConv(graph.metabolism, 4, heads=heads)
    h = features((graph.metabolism.num_reactions, len(GENOTYPES), 4), torch.float32)
    expected = layer(_view(graph), h)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(_view(graph), h)
    y.float().square().sum().backward()
    assert float((y.float() - expected).detach().norm() / expected.detach().norm()) < 0.05
    assert all(bool(p.grad.isfinite().all()) and p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("heads", [-1, 3])
def test_heads_that_do_not_fit(heads: int) -> None:
    graph, _ = _case(True)
    with pytest.raises(
        kg.ModelError, match=f"4 channels cannot be divided among {heads} heads; choose a divisor, or 0"
    ):
        ReactionMetaboliteConv(graph.metabolism, 4, heads=heads)
