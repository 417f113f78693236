"""Kernels of gene pairs against dense closed forms, and the models made of them on planted screens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from scipy.stats import pearsonr

from knockgraph import BoundScreen, CellGraph, Screen
from knockgraph.errors import LabelError, ModelError
from knockgraph.graph import Relation
from knockgraph.models import baselines
from knockgraph.models.baselines import BaselineError
from knockgraph.models.baselines.baseline import GenotypeRows
from knockgraph.models.kernels import attention as attention_module
from knockgraph.models.kernels import propagation
from knockgraph.models.kernels.attention import ProfileAttention
from knockgraph.models.kernels.beyond_pairs import TripleTerm
from knockgraph.models.kernels.measured import PairRows
from knockgraph.models.kernels.pair_process import PairProcess, ProcessSettings, conjugate_gradients, profile_kernel
from knockgraph.models.kernels.propagation import factorised, learned_kernel, ridge_mixture
from knockgraph.models.kernels.similarity import Similarities, kernel, walks
from knockgraph.models.kernels.soft_impute import soft_impute
from knockgraph.models.kernels.spread import GeneSpread


def random_kernel(n: int, seed: int = 0) -> torch.Tensor:
    x = torch.from_numpy(default_rng(seed).normal(size=(n, 2 * n)))
    return x @ x.T / (2 * n)


def some_rows(n: int = 7) -> PairRows:
    """Pairs, some of them twice, and triples."""
    sets = [(0, 1), (2, 5), (0, 1), (3, 4), (1, 6), (0, 2, 5), (1, 3, 4)]
    entries = [(row, *pair) for row, genes in enumerate(sets) for pair in itertools.combinations(genes, 2)]
    row, first, second = torch.tensor(entries).T
    return PairRows(row, first, second, len(sets), n)


def dense(rows: PairRows, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[tuple[int, int]]]:
    """The covariance of all pairs, and H."""
    pairs = list(itertools.combinations(range(rows.num_genes), 2))
    i, j = torch.tensor(pairs).T
    covariance = k[i][:, i] * k[j][:, j] + k[i][:, j] * k[j][:, i]
    h = torch.zeros(rows.num_rows, len(pairs), dtype=k.dtype)
    for r, a, b in zip(rows.row.tolist(), rows.first.tolist(), rows.second.tolist(), strict=True):
        h[r, pairs.index((a, b))] += 1
    return covariance, h, pairs


def test_the_posterior_is_that_of_the_dense_process() -> None:
    k, rows = random_kernel(7), some_rows()
    noise = torch.linspace(0.1, 0.7, 7).double()
    y = torch.from_numpy(default_rng(1).normal(size=7))
    variance = torch.tensor(1.7).double()
    process = PairProcess(k, rows, noise, variance, tolerance=1e-12, most_steps=200)
    covariance, h, pairs = dense(rows, k)
    prior = variance * covariance
    gain = prior @ h.T @ torch.linalg.inv(h @ prior @ h.T + noise.diag())
    mean, left = process.mean(y), prior - gain @ h @ prior
    i, j = torch.tensor(pairs).T
    torch.testing.assert_close(mean[i, j], gain @ y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mean, mean.T)
    sampled = process.spread(samples=2000)[i, j]
    torch.testing.assert_close(sampled, left.diagonal(), rtol=0.15, atol=0.01)


def test_few_pairs_are_computed_one_by_one() -> None:
    """The sparse product of a large screen with few pairs against the dense one."""
    n, random = 60, default_rng(3)
    k, chosen = random_kernel(n), random.permutation(n * (n - 1) // 2)[:50]
    first, second = (torch.from_numpy(x[chosen]) for x in np.triu_indices(n, 1))
    rows = PairRows(torch.arange(50), first, second, 50, n)
    alpha, noise = torch.from_numpy(random.normal(size=50)), torch.full((50,), 0.3).double()
    process = PairProcess(k, rows, noise, torch.tensor(1.3, dtype=torch.float64), tolerance=1e-12, most_steps=200)
    torch.testing.assert_close(process._seen_few(alpha), 1.3 * rows.collect(k @ rows.spread(alpha) @ k))
    torch.testing.assert_close(rows.spread_times(alpha, k), rows.spread(alpha) @ k)
    covariance = 1.3 * (k[first][:, first] * k[second][:, second] + k[first][:, second] * k[second][:, first])
    solved = torch.linalg.solve(covariance + noise.diag(), alpha)
    torch.testing.assert_close(process._solve(alpha, process._roughly_solved()), solved, rtol=1e-8, atol=1e-8)


@pytest.mark.gpu
def test_products_of_few_pairs_are_the_same_on_a_gpu() -> None:
    n, random = 60, default_rng(3)
    k, chosen = random_kernel(n).float(), random.permutation(n * (n - 1) // 2)[:50]
    first, second = (torch.from_numpy(x[chosen]) for x in np.triu_indices(n, 1))
    here = PairRows(torch.arange(50), first, second, 50, n)
    there = PairRows(torch.arange(50).cuda(), first.cuda(), second.cuda(), 50, n)
    alpha = torch.from_numpy(random.normal(size=50)).float()
    half = here.spread_times(alpha, k)
    torch.testing.assert_close(there.spread_times(alpha.cuda(), k.cuda()).cpu(), half, rtol=1e-4, atol=1e-5)
    found = there.collect_product(k.cuda(), half.cuda()).cpu()
    torch.testing.assert_close(found, here.collect_product(k, half), rtol=1e-4, atol=1e-5)
    f, similarity = grouped()
    known = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)) < 0.08
    weights = [
        learned_kernel(similarity.to(place), torch.tensor([5.0, 5.0]).to(place), f.to(place), known.to(place), steps=5)[
            0
        ]
        for place in ("cpu", "cuda")
    ]
    torch.testing.assert_close(weights[1].cpu(), weights[0], rtol=1e-3, atol=1e-4)


def test_leading_directions_make_it_quick() -> None:
    """A kernel with one direction that is much larger than all others, as networks have."""
    n, random = 80, default_rng(4)
    k = random_kernel(n).float() + 2 * torch.ones(n, n)
    first, second = (torch.from_numpy(x) for x in np.triu_indices(n, 1))
    chosen = torch.from_numpy(random.permutation(len(first))[:600])
    rows = PairRows(torch.arange(600), first[chosen], second[chosen], 600, n)
    y, one = torch.from_numpy(random.normal(size=600)).float(), torch.tensor(1.0)
    process = PairProcess(k, rows, torch.full((600,), 0.5), one)
    steps = []

    def product(a: torch.Tensor) -> torch.Tensor:
        steps[-1] += 1
        return process._seen_few(a) + process.noise * a

    for roughly_solved in (process._roughly_solved(), lambda a: a):
        steps.append(0)
        solved = conjugate_gradients(product, y, roughly_solved, 1e-3, 500)
        assert torch.linalg.norm(product(solved) - y) < 0.01 * torch.linalg.norm(y)
    assert steps[0] < 0.7 * steps[1]


def test_spread_and_collect_are_transposed() -> None:
    rows = some_rows()
    f, a = random_kernel(7), torch.from_numpy(default_rng(2).normal(size=7))
    torch.testing.assert_close(rows.collect(f) @ a, (rows.spread(a) * f).sum() / 2)
    assert rows.pairs(a).tolist() == [1, 1, 1, 1, 1, 3, 3]


def test_walks_with_restart_follow_the_weights() -> None:
    edges = torch.tensor([[0, 1, 1, 2, 3, 3], [1, 0, 2, 1, 2, 3]])  # 3 → 2 has no reverse; 3 → 3 is a loop
    weight = torch.tensor([1.0, 1.0, 3.0, 3.0, 0.5, 9.0])
    a = torch.tensor([[0, 1, 0, 0, 0], [1, 0, 3, 0, 0], [0, 3, 0, 0.5, 0], [0, 0, 0.5, 0, 0], [0, 0, 0, 0, 0]])
    step = a / a.sum(1, keepdim=True).clamp(min=1e-9)
    q = 0.5 * torch.linalg.inv(torch.eye(5) - 0.5 * step)
    found = walks(Relation(edges, 5, weight), torch.tensor([1, 3, 4]))
    torch.testing.assert_close(found, (5 * q[[1, 3, 4]]).log1p(), rtol=1e-4, atol=1e-4)


def test_soft_impute_is_a_fixed_point() -> None:
    u = default_rng(0).normal(size=(60, 3))
    truth = torch.from_numpy(u @ np.diag([1.0, -1.0, 0.7]) @ u.T)
    known = torch.from_numpy(default_rng(1).random((60, 60)) < 0.5)
    known = (known | known.T).fill_diagonal_(False)
    measured = torch.where(known, truth, 0.0)
    (x,) = soft_impute(measured, known, (0.1,), rounds=400)
    value, vector = torch.linalg.eigh(torch.where(known, measured, x))
    threshold = 0.1 * (measured.square().sum() / known.sum()).sqrt() * 60**0.5
    again = (vector * value.sign() * (value.abs() - threshold).clamp(min=0)) @ vector.T
    assert torch.linalg.norm(again - x) < 0.01 * torch.linalg.norm(x)
    hidden = ~known & ~torch.eye(60, dtype=torch.bool)
    assert pearsonr(x[hidden], truth[hidden]).statistic > 0.97


def test_the_error_of_leaving_a_gene_out_is_that_of_a_fit_without_it() -> None:
    """The formula that learned_kernel minimises."""
    k, f = random_kernel(8), random_kernel(8, 1)
    inverse = torch.linalg.inv(k + 0.3 * torch.eye(8))
    others = [0, 1, 2, 4, 5, 6, 7]
    mixture = ridge_mixture(factorised(k[others][:, others], 0.3), k[3:4, others])
    torch.testing.assert_close((inverse @ f)[3] / inverse[3, 3], f[3] - (mixture @ f[others])[0])


def grouped(n: int = 40, groups: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Profiles that genes of a group share, and similarities: one table that knows the groups, one of nonsense."""
    random = default_rng(seed)
    group = np.arange(n) % groups
    block = random.normal(size=(groups, groups))
    f = (block + block.T)[group][:, group] + 0.3 * random.normal(size=(n, n))
    nonsense = (random.permutation(group)[:, None] == random.permutation(group)[None]) * 0.9
    tables = np.stack([(group[:, None] == group[None]) * 0.9, (nonsense + nonsense.T) / 2])
    tables[:, np.arange(n), np.arange(n)] = 1.0
    return torch.from_numpy((f + f.T) / 2).float(), torch.from_numpy(tables).float()


def test_a_network_of_nonsense_loses_its_weight() -> None:
    f, similarity = grouped()
    weight, sharpness = learned_kernel(similarity, torch.tensor([5.0, 5.0]), f, torch.ones_like(f, dtype=torch.bool))
    assert float(weight.sum()) == pytest.approx(1.0)
    assert weight[0] > 0.8
    assert (sharpness > 0).all()


def test_a_few_genes_at_a_time_attend_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    f, similarity = grouped()
    known = torch.ones_like(f, dtype=torch.bool)
    learned = []
    for pairs in (len(f) ** 2, 3 * len(f)):
        monkeypatch.setattr(attention_module, "_PAIRS", {"cpu": pairs})
        learned.append(ProfileAttention.of(similarity))
        learned[-1].learn(similarity, f, known, steps=5)
    with torch.no_grad():
        torch.testing.assert_close(learned[0](similarity), learned[1](similarity), rtol=1e-4, atol=1e-6)
        assert learned[0](similarity[:, :0]).shape == (0, len(f))


def test_of_many_genes_some_are_left_out_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagation, "MOST_GENES", 30)
    f, similarity = grouped()
    known = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)) < 0.2
    known[:, 7] = True
    found = propagation.LeftOut(similarity, f, known)
    assert found.similarity.shape == (2, 30, 30)
    assert found.profiles.shape == found.known.shape == (30, 30)
    assert found.known.all(0).any()
    assert found.known.sum() > 0.8 * known.sum() * 30 / 40  # the columns with most measurements


def test_few_measured_entries_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    f, similarity = grouped()
    known = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)) < 0.08
    learned = []
    for share in (0.0, 0.1):
        monkeypatch.setattr(propagation, "_FEW", share)
        attention = ProfileAttention.of(similarity)
        attention.learn(similarity, f, known, steps=5)
        weight, _ = learned_kernel(similarity, torch.tensor([5.0, 5.0]), f, known, steps=5)
        learned.append((attention(similarity).detach(), weight))
    assert propagation.LeftOut(similarity, f, known).few
    for dense, few in zip(*learned, strict=True):
        torch.testing.assert_close(few, dense, rtol=1e-3, atol=1e-5)


def test_attention_hides_each_gene_from_itself_and_learns_the_groups() -> None:
    f, similarity = grouped()
    attention = ProfileAttention.of(similarity)
    known = torch.ones_like(f, dtype=torch.bool)
    before = (f - attention(similarity, hidden=True) @ f).square().mean()
    attention.learn(similarity, f, known)
    shares = attention(similarity, hidden=True)
    assert shares.diagonal().abs().max() == 0
    assert (f - shares @ f).square().mean() < 0.5 * before
    assert shares[0, 8::8].sum() > 10 * shares[0, 1::8].sum()  # 0, 8, 16 … are a group
    # The checks decide which weights stay.
    start = {name: value.clone() for name, value in attention.state_dict().items()}
    seen: list[float] = []
    attention.learn(similarity, f, known, steps=30, check=lambda: seen.append(0.0) or -len(seen))
    assert len(seen) == 2
    assert any(not torch.equal(value, start[name]) for name, value in attention.state_dict().items())


def test_profile_kernel() -> None:
    f = random_kernel(6) - 0.5 * torch.eye(6)
    squared = profile_kernel(f, power=2.0)
    torch.testing.assert_close(squared, f @ f / (f @ f).diagonal().mean())
    assert float(profile_kernel(f).diagonal().mean()) == pytest.approx(1.0)
    assert not profile_kernel(torch.zeros(3, 3)).any()


def test_settings_without_a_network_keep_the_profiles() -> None:
    profile, scale = random_kernel(5), torch.ones(5).double()
    found = ProcessSettings(own=0.0).kernel(profile, torch.zeros(5, 5).double(), scale)
    torch.testing.assert_close(found, profile)


def test_triples_are_sums_of_products() -> None:
    term = TripleTerm.of(random_kernel(5))
    row, gene = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 4, 3, 4])
    found = term.features(row, gene, 3)
    phi = term.direction
    expected = sum(phi[a] * phi[b] * phi[c] for a, b, c in itertools.combinations([0, 1, 2, 4], 3))
    torch.testing.assert_close(found[0], expected)
    assert found[1:].abs().max() < 1e-12  # a pair and the wild type have no triple


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────

NAMES = [f"G{k:02d}" for k in range(60)]


def planted(triples: bool = False) -> tuple[CellGraph, BoundScreen]:
    """Twelve groups of five genes: pairs interact as their groups do; a network joins the genes of a group."""
    random = default_rng(3)
    group = np.arange(60) % 12
    block = random.normal(size=(12, 12))
    truth = (block + block.T)[group][:, group]
    same = np.array([(i, j) for i in range(60) for j in range(60) if i != j and group[i] == group[j]]).T
    graph = CellGraph(NAMES, {"module": torch.from_numpy(same)})
    sets = list(itertools.combinations(range(60), 2))
    if triples:
        sets = [tuple(sorted(random.choice(60, 3, replace=False))) for _ in range(1500)]
    y = [sum(truth[g, h] for g, h in itertools.combinations(s, 2)) + 0.5 * random.normal() for s in sets]
    return graph, Screen([[NAMES[g] for g in s] for s in sets], {"f": y}).bind(graph)


def correlation(model: baselines.Baseline, screen: BoundScreen, rows: np.ndarray) -> float:
    return float(pearsonr(model.predict(screen, rows)[:, 0], screen.values[rows, 0]).statistic)


@pytest.mark.parametrize("triples", [False, True])
def test_pair_gp_on_random_genotypes(triples: bool) -> None:
    graph, screen = planted(triples)
    rows = default_rng(0).permutation(len(screen))
    train, val, test = np.split(rows, [len(rows) // 2, len(rows) // 2 + 200])
    score = {}
    for name in ("additive", "soft-impute", "pair-gp"):
        model = baselines.create(name, graph).fit(screen, train, screen.values[train], (val, screen.values[val]))
        score[name] = correlation(model, screen, test)
    assert score["additive"] < score["soft-impute"] < score["pair-gp"]
    assert score["pair-gp"] > 0.9


@pytest.mark.parametrize("name", ["pair-gp", "profile-propagation"])
def test_unseen_genes_take_the_profiles_of_their_neighbours(name: str) -> None:
    graph, screen = planted()
    genes = screen.indices.numpy().reshape(-1, 2)
    unseen = np.arange(0, 60, 7)
    new = np.isin(genes, unseen).any(1)
    train, rest = np.flatnonzero(~new), np.flatnonzero(new)
    model = baselines.create(name, graph).fit(screen, train, screen.values[train])
    assert correlation(model, screen, rest) > 0.85
    both = np.flatnonzero(np.isin(genes, unseen).all(1))
    assert correlation(model, screen, both) > 0.7
    shuffled = CellGraph([NAMES[k] for k in default_rng(0).permutation(60)], graph.relations)
    moved = Screen([[NAMES[g] for g in pair] for pair in genes], {"f": screen.values[:, 0].numpy()}).bind(shuffled)
    wrong = baselines.create(name, shuffled).fit(moved, train, moved.values[train])
    assert abs(correlation(wrong, moved, rest)) < 0.3  # networks given to permuted genes say nothing


def test_the_mean_posterior_variance_of_genes_is_that_of_the_dense_process() -> None:
    n = 12
    k = random_kernel(n)
    sets = [pair for pair in itertools.combinations(range(n), 2) if max(pair) < 8 or sum(pair) % 5 == 0]
    row, first, second = torch.tensor([(r, *pair) for r, pair in enumerate(sets)]).T
    rows = PairRows(row, first, second, len(sets), n)
    noise, variance = torch.full((len(sets),), 0.05).double(), torch.tensor(1.3).double()
    process = PairProcess(k, rows, noise, variance, tolerance=1e-10, most_steps=300)
    covariance, h, pairs = dense(rows, k)
    prior = variance * covariance
    explained = prior @ h.T @ torch.linalg.solve(h @ prior @ h.T + noise.diag(), h @ prior)
    exact = torch.zeros(n, dtype=k.dtype)
    for (i, j), left in zip(pairs, (prior - explained).diagonal(), strict=True):
        exact[i] += left / (n - 1)
        exact[j] += left / (n - 1)
    found = GeneSpread.of(process, torch.ones(n, dtype=k.dtype))
    assert torch.allclose(found.posterior, exact, rtol=0.35)
    assert found.posterior[8:].min() > 1.5 * found.posterior[:8].max()  # genes of which little was measured
    assert torch.allclose(found.prior.outer(found.prior)[0, 1], variance * k[0, 0] * k[1, 1])
    share = torch.tensor([[0.5, 1.5, *[0.0] * 9, -1.0], [0.0] * 12]).double()
    mixed = found.mixed(share).posterior
    assert mixed[0] == pytest.approx(float(0.25 * found.posterior[0] + 0.75 * found.posterior[1]))
    assert mixed[1] == pytest.approx(float(found.posterior.mean()))  # a mixture of none


def test_errors_are_expected_to_be_larger_where_less_was_measured() -> None:
    """Against the formula, written out for a wild type, single genes, pairs and triples."""
    graph, screen = planted()
    genes = screen.indices.numpy().reshape(-1, 2)
    train = np.flatnonzero((genes > 0).all(1) | (genes[:, 1] > 40))  # gene 0 is measured with few others
    train = train[(genes[train] != 7).all(1)]  # and gene 7 with none
    model = baselines.create("pair-gp", graph).fit(screen, train, screen.values[train])
    sets = [(), (3,), (0, 5), (3, 4), (3, 7), (2, 3, 5)]
    ptr = np.append(0, np.cumsum([len(s) for s in sets]))
    asked = GenotypeRows(np.array([g for s in sets for g in s]), ptr, screen.num_genes)
    assert model.spread_rows(asked) is None  # nobody has asked for it
    model.measure_spread()
    found = model.spread_rows(asked)
    assert found is not None
    spreads, unit = model.spreads, model.settings.noise * float(model.process.variance)
    of_7 = spreads.mixed(model._mixtures_of(np.array([7])).share)
    scale, posterior, prior = (
        [float(of_7[k][0]) if g == 7 else float(spreads[k][model.place[g]]) for g in range(8)] for k in range(3)
    )
    mean, u = float(spreads.posterior.mean()), model.settings.noise_power
    for genotype, s in zip(sets, found[:, 0], strict=True):
        pairs = list(itertools.combinations(genotype, 2))
        own = [prior[g] * prior[h] if 7 in (g, h) else posterior[g] * posterior[h] / mean for g, h in pairs]
        loud = [(scale[g] * scale[h]) ** u for g, h in pairs or [(g, g) for g in genotype]] or [1.0]
        assert s**2 == pytest.approx(sum(own) + unit * sum(loud) / len(loud), rel=1e-5)
    unknown = spreads.posterior / spreads.prior
    assert unknown[model.place[0]] > 1.1 * unknown.median()
    assert found[4] > found[3]
    again = baselines.create("pair-gp", graph).restore(model.state())
    assert np.allclose(again.spread_rows(asked), found)
    assert baselines.create("soft-impute", graph).fit(screen, train, screen.values[train]).spread_rows(asked) is None


def test_settings_are_chosen_by_the_validation_part_alone() -> None:
    graph, screen = planted()
    rows = default_rng(0).permutation(len(screen))
    train, val = rows[:800], rows[800:1000]
    fit = baselines.create("pair-gp", graph).fit
    chosen = fit(screen, train, screen.values[train], (val, screen.values[val]))
    default = baselines.create("pair-gp", graph).fit(screen, train, screen.values[train])
    assert default.settings == ProcessSettings()
    before = chosen.predict(screen, rest := rows[1000:])
    again = chosen.fit_again(screen, train, screen.values[train])
    torch.testing.assert_close(again.predict(screen, rest), before)  # no label of val was fitted
    assert correlation(chosen, screen, val) >= correlation(default, screen, val)
    with pytest.raises(LabelError, match="validation label 0 is nan"):
        fit(screen, train, screen.values[train], (val, torch.full((200, 1), float("nan"))))


@pytest.mark.parametrize(
    ("name", "unseen"),
    [
        *(("soft-impute", unseen) for unseen in (False, True)),
        *(("pair-gp", unseen) for unseen in (False, True)),
        pytest.param("profile-propagation", False, marks=pytest.mark.full),
        ("profile-propagation", True),
    ],
)
def test_a_second_fit_keeps_what_was_chosen(name: str, unseen: bool) -> None:
    """On the same rows it is the first fit again; with defaults it would not be."""
    graph, screen = planted()
    rows = default_rng(0).permutation(len(screen))
    train, val, rest = rows[:1400], rows[1400:1600], rows[1600:]
    if unseen:
        last = torch.zeros(len(screen), 60, dtype=torch.bool)
        last[torch.repeat_interleave(torch.arange(len(screen)), 2), screen.indices.long()] = True
        rows = np.arange(len(screen))
        new, newer = last[:, 50:55].any(1).numpy(), last[:, 55:].any(1).numpy()
        train, val, rest = rows[~new & ~newer], rows[new & ~newer], rows[newer]
    labels = -screen.values[val]  # the worst settings seem best
    model = baselines.create(name, graph).fit(screen, train, screen.values[train], (val, labels))
    before, plain = model.predict(screen, rest), baselines.create(name, graph).fit(screen, train, screen.values[train])
    model.fit_again(screen, train, screen.values[train])
    torch.testing.assert_close(model.predict(screen, rest), before)
    if (name, unseen) != ("soft-impute", True):  # that knows nothing of unseen genes, and chooses nothing
        assert not torch.allclose(plain.predict(screen, rest), before, rtol=1e-3)


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("name", ["pair-gp", "profile-propagation"])
def test_what_pairs_do_not_tell_is_left_to_single_genes(name: str, unseen: bool) -> None:
    """On a real screen of few query genes the default model was far behind the additive one."""
    graph, screen = planted()
    genes = screen.indices.long().reshape(-1, 2).numpy()
    rows = default_rng(0).permutation(len(screen))
    train, val, rest = rows[:1200], rows[1200:1500], rows[1500:]
    if unseen:
        new, newer = ((genes >= 48) & (genes < 54)).any(1), (genes >= 54).any(1)
        train, val, rest = (np.flatnonzero(some) for some in (~new & ~newer, new & ~newer, newer))
    effect, random = default_rng(1).normal(size=60), default_rng(5)
    alone = torch.from_numpy(effect[genes].sum(1) + random.normal(size=len(screen))).float()[:, None]
    model = baselines.create(name, graph).fit(screen, train, alone[train], (val, alone[val]))
    where = "unseen genes" if unseen else "seen genes"
    known = np.isin(genes, genes[train])
    expected = model.constant + (model.effect[genes] * known).sum(1)
    predicted, measured = model.predict(screen, rest)[:, 0].numpy(), alone[rest, 0].numpy()
    assert model.chosen()[f"share of pairs, {where}"] == 0
    assert model.chosen()[f"share of low-rank, {where}"] == unseen  # whose effects of single genes shrink less
    if unseen:
        assert np.corrcoef(predicted, measured)[0, 1] > np.corrcoef(expected[rest], measured)[0, 1] - 0.01
        low_rank = baselines.create("low-rank").fit(screen, train, alone[train])
        expected[rest] = low_rank.predict(screen, rest)[:, 0].numpy()
    np.testing.assert_allclose(predicted, expected[rest], rtol=1e-5, atol=1e-5)
    again = baselines.create(name, graph).restore(model.state())
    assert torch.equal(again.predict(screen, rest), model.predict(screen, rest))
    # What they do tell stays.
    model = baselines.create(name, graph).fit(screen, train, screen.values[train], (val, screen.values[val]))
    assert model.chosen()[f"share of pairs, {where}"] == 1


@pytest.mark.parametrize("name", ["pair-gp", pytest.param("profile-propagation", marks=pytest.mark.full)])
def test_low_rank_is_mixed_in_where_it_knows_more(name: str) -> None:
    """Profiles are hard to see in triples that were measured once: on a real screen low-rank was far ahead."""
    random = default_rng(3)
    names = [f"G{k}" for k in range(90)]
    graph = CellGraph(names, {"module": torch.tensor([[0, 1], [1, 0]])})
    factor = random.normal(size=(90, 4))
    truth = factor * [1, -1, 1, -1] @ factor.T
    sets = [random.choice(90, 3, replace=False) for _ in range(2200)]
    y = [sum(truth[g, h] for g, h in itertools.combinations(s, 2)) + 2 * random.normal() for s in sets]
    screen = Screen([[names[g] for g in s] for s in sets], {"f": y}).bind(graph)
    train, val, rest = np.split(np.arange(2200), [1400, 1800])
    model = baselines.create(name, graph).fit(screen, train, screen.values[train], (val, screen.values[val]))
    assert model.chosen()["share of low-rank, seen genes"] >= 0.5
    plain = baselines.create(name, graph).fit(screen, train, screen.values[train])  # nothing is chosen
    assert plain.chosen()["share of low-rank, seen genes"] == 0
    assert correlation(model, screen, rest) > correlation(plain, screen, rest) + 0.05
    again = baselines.create(name, graph).restore(model.state())
    assert torch.equal(again.predict(screen, rest), model.predict(screen, rest))
    # The second fit keeps the share.
    before = model.predict(screen, rest)
    model.fit_again(screen, train, screen.values[train])
    torch.testing.assert_close(model.predict(screen, rest), before)


def test_more_noise_is_taken_where_labels_are_noise() -> None:
    graph, screen = planted(triples=True)
    rows, noise = default_rng(0).permutation(len(screen)), default_rng(4).normal(size=(len(screen), 1))
    noisy = screen.values + 2 * screen.values.std() * torch.from_numpy(noise).float()
    train, val = rows[:1200], rows[1200:]
    model = baselines.create("pair-gp", graph).fit(screen, train, noisy[train], (val, screen.values[val]))
    assert model.chosen()["noise"] > 1
    given = baselines.create("pair-gp", graph, noise=0.5)
    assert given.fit(screen, train, noisy[train], (val, screen.values[val])).chosen()["noise"] == 0.5
    assert correlation(model, screen, val) > correlation(given, screen, val) + 0.02


def test_tables_of_similarities() -> None:
    graph, _ = planted()
    wide = torch.randn(60, 70)
    graph = CellGraph(graph.genes, graph.relations, features={"phenotypes": wide, "degree": torch.ones(60, 1)})
    found = Similarities.of(graph, torch.arange(10))
    assert found.names == ("module", "phenotypes", "phenotypes, 50 directions")
    own = found.to(found)
    torch.testing.assert_close(own.diagonal(dim1=1, dim2=2), torch.ones(3, 10))
    torch.testing.assert_close(own[1], torch.corrcoef(wide[:10]), atol=0.3, rtol=0.0)
    torch.testing.assert_close(kernel(own, found.sharpness).diagonal(), torch.ones(10))
    assert Similarities.of(graph, torch.arange(3), ["module"], []).names == ("module",)
    with pytest.raises(ModelError, match="the graph has no relation 'modul'; it has module"):
        Similarities.of(graph, torch.arange(3), ["modul"])
    with pytest.raises(ModelError, match="the graph has no feature 'x'; it has phenotypes, degree"):
        Similarities.of(graph, torch.arange(3), features=["x"])


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("pair-gp", {"network": 1.5}, "network is 1.5, but it must be between 0 and 1"),
        ("pair-gp", {"noise": -1.0}, "noise is -1.0, but it must be positive"),
        ("pair-gp", {"weights": "best"}, "weights is 'best'; use learned or mean"),
        ("profile-propagation", {"method": "all"}, "method is 'all'; use ridge, attention or both"),
        ("soft-impute", {"threshold": 0.0}, "threshold is 0.0, but it must be positive"),
        ("soft-impute", {"device": "tpu"}, "device is 'tpu'; use auto, cpu or cuda"),
    ],
)
def test_bad_options(name: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(BaselineError, match=text):
        baselines.create(name, planted()[0], **options)
