"""Genotypes with values, from a table to a batch."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import knockgraph as kg
from knockgraph import splits
from knockgraph.models.baselines import Additive, LowRank, RidgePairs, Smoothing, reproducibility_ceiling
from knockgraph.screen.genotypes import Genotypes, as_text, entry, name_and_value, parse
from knockgraph.sources.tables import read_table

NAMES = ["A", "B", "C", "D", "E"]
GRAPH = kg.CellGraph(NAMES, {"r": torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])}, aliases={"A": ["Alpha"]})


def _table(folder: Path, *genotypes: str) -> Path:
    path = folder / "screen.csv"
    path.write_text("\n".join(["genotype,fitness", *(f'"{g}",{k / 4}' for k, g in enumerate(genotypes))]) + "\n")
    return path


@given(st.floats(0, 1e300, allow_subnormal=True))
def test_a_value_is_read_back_as_it_was_written(value: float) -> None:
    (text,) = parse(as_text([entry("YAL001C", value)]))
    assert name_and_value(text) == ("YAL001C", value)


def test_a_table(tmp_path: Path) -> None:
    screen = read_table(_table(tmp_path, "A=0.3+B", "B,A = 0.30", "A", "WT", "C=1|A=2", "A=0"))[0]
    expected = [("A=0.3", "B"), ("A=0.3", "B"), ("A",), (), ("A=2", "C=1"), ("A",)]
    assert list(screen.genotypes) == expected
    assert screen.duplicates().genotypes == 2
    assert list(screen.merge_duplicates().genotypes) == [("A=0.3", "B"), ("A",), (), ("A=2", "C=1")]
    screen.save(tmp_path / "x.parquet")
    assert kg.Screen.load(tmp_path / "x.parquet") == screen
    assert Genotypes.from_lists(list(screen.genotypes)) == screen.genotypes
    assert screen.genotypes != screen.take(np.array([0, 1, 2, 3, 4, 4])).genotypes


def test_without_values_nothing_changes(tmp_path: Path) -> None:
    plain = read_table(_table(tmp_path, "A+B", "C"))[0]
    zeros = read_table(_table(tmp_path, "A=0+B=0.0", "C=-0"))[0]
    assert plain.genotypes.values is None
    assert zeros == kg.Screen(plain.genotypes, plain.phenotypes, source="screen.csv")
    assert plain.genotypes.hash == zeros.genotypes.hash


@pytest.mark.parametrize(
    ("genotype", "why"),
    [
        ("A=x+B", r"data row 2: 'A=x' says 'x' where a value is expected; write GENE=VALUE"),
        ("A=-1", r"data row 2: gene 'A' has the value -1, but a value is finite and at least 0"),
        ("A=nan", r"data row 2: gene 'A' has the value nan, but"),
        ("A=inf", r"data row 2: gene 'A' has the value inf, but"),
        ("A=", r"data row 2: 'A=' says '' where a value is expected"),
        ("=3", r"data row 2: '=3' has a value but no gene"),
        ("A=0.3+A", r"experiment 1 gives gene 'A' two values, 0.3 and 0; give it one"),
    ],
)
def test_bad_values_in_a_table(genotype: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(kg.ScreenError, match=why):
        read_table(_table(tmp_path, "B=0.5", genotype))[0]


def _bound(unseen: bool = False) -> kg.BoundScreen:
    genotypes = [["A=0.3", "B"], ["B"], ["Alpha=0.3", "B"], [], ["C=1"], ["A=2", "C=1"]]
    return kg.Screen(genotypes, {"f": np.arange(6.0)}).bind(GRAPH)


def test_a_bound_screen_and_its_batches(tmp_path: Path) -> None:
    bound = _bound()
    assert bound.doses is not None
    assert bound.doses.tolist() == [np.float32(0.3), 0, 0, np.float32(0.3), 0, 1, 2, 1]
    assert bound.num_perturbed.tolist() == [2, 1, 2, 0, 0, 1]
    first, second, third = bound.batches(np.array([1, 3, 4, 3, 5, 0]), 2)
    assert (first.given_values, first.graded) == (None, False)  # nothing but deletions: as ever
    assert second.perturbation_values.tolist() == [1.0]
    assert not second.graded
    assert third.graded
    assert third.perturbation_values.tolist() == [2, 1, np.float32(0.3), 0]
    assert torch.equal(third.dose()[:, 0], torch.tensor([2.0, 1, 1, 1, 1]))
    loader = kg.ScreenLoader(bound, batch_size=6, shuffle=False)
    (batch,) = loader
    assert torch.equal(batch.perturbation_values, bound.doses)
    assert bound.content_hash != kg.Screen([["A", "B"]], {"f": [0.0]}).bind(GRAPH).content_hash


def test_two_names_of_a_gene_have_one_value() -> None:
    with pytest.raises(kg.ScreenError, match=r"experiment 0 gives gene 'A' two values, 0.3 and 0.5; give it one"):
        kg.Screen([["A=0.3", "Alpha=0.5"]], {"f": [0.0]}).bind(GRAPH)


def test_the_pyg_view_carries_values() -> None:
    from torch_geometric.loader import DataLoader

    bound = _bound()
    dataset = kg.PerturbationDataset(bound, GRAPH)
    assert dataset[0]["gene"].pert_mask.tolist() == [False, True, False, False, False]
    (made,) = DataLoader(dataset, batch_size=6, follow_batch=["perturbation_indices"])
    batch = kg.PerturbationBatch.from_hetero_batch(made)
    assert torch.equal(batch.perturbation_values, bound.doses)
    assert batch.graded


def test_a_gene_is_seen_whatever_its_dose() -> None:
    random = np.random.default_rng(0)
    names = [f"g{k}" for k in range(20)]
    genotypes = [[f"{g}={random.choice([0.1, 0.5, 2.0])}" for g in random.choice(names, 2, False)] for _ in range(300)]
    split = splits.unseen_genes(kg.Screen(genotypes, {"f": np.zeros(300)}), unseen="any")
    trained = {name_and_value(gene)[0] for row in split["train"] for gene in genotypes[row]}
    for part in ("val", "test"):
        assert not trained & set(split.held_out[part])


def _planted() -> tuple[kg.BoundScreen, np.ndarray]:
    """``y = Σ (1 - d) b + Σ (1 - d)(1 - d') p`` without noise."""
    random = np.random.default_rng(1)
    b, p = random.normal(size=5), random.normal(size=(5, 5))
    genotypes, y = [[]], [0.0]
    for _ in range(400):
        g, h = sorted(random.choice(5, 2, False).tolist())
        d, e = random.choice([0.0, 0.3, 0.5, 1.0, 2.0], 2).tolist()
        genotypes.append([entry(NAMES[g], d), entry(NAMES[h], e)])
        y.append((1 - d) * b[g] + (1 - e) * b[h] + (1 - d) * (1 - e) * p[g, h])
    screen = kg.Screen(genotypes, {"f": y}).bind(GRAPH)
    return screen, np.array(y)


def test_baselines_use_doses_or_say_that_they_cannot() -> None:
    screen, y = _planted()
    rows = np.arange(len(y))
    for baseline, least in ((RidgePairs(1e-6, 1e-6), 0.999), (LowRank(4, 1e-4, 1e-4, 300, 1e-9), 0.999)):
        found = baseline.fit(screen, rows, screen.values).predict(screen, rows)[:, 0].numpy()
        assert np.corrcoef(found, y)[0, 1] > least
    additive = Additive(1e-9).fit(screen, rows, screen.values)
    one = kg.Screen([["A"], ["A=0.5"], ["A=1"], []], {"f": [0.0] * 4}).bind(GRAPH)
    deleted, half, untouched, wild = additive.predict(one, np.arange(4))[:, 0].tolist()
    assert half == pytest.approx((deleted + wild) / 2, abs=1e-5)
    assert untouched == wild
    with pytest.raises(kg.NoDosesError, match=r"Smoothing knows deletions only.*use additive, ridge-pairs or low-rank"):
        Smoothing(GRAPH).fit(screen, rows, screen.values)


def test_ridge_by_rows_is_ridge_by_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, y = _planted()
    rows = np.arange(len(y))
    by_pairs = RidgePairs().fit(screen, rows, screen.values).predict(screen, rows)
    monkeypatch.setattr("knockgraph.models.baselines.ridge._MOST_PAIRS", 0)
    by_rows = RidgePairs().fit(screen, rows, screen.values).predict(screen, rows)
    assert torch.allclose(by_pairs, by_rows, atol=1e-4)


def test_other_doses_are_no_replicates() -> None:
    genotypes = [[f"{name}={dose}"] for name in NAMES for dose in (0.1, 0.2, 0.3, 0.4, 0.5)]
    values = np.arange(25.0)
    assert reproducibility_ceiling(kg.Screen(genotypes, {"f": values}).bind(GRAPH)) is None
    twice = kg.Screen([*genotypes, *genotypes], {"f": np.append(values, values)}).bind(GRAPH)
    assert reproducibility_ceiling(twice) == pytest.approx(1.0)


def test_a_gene_with_the_value_1_makes_no_other_genotype() -> None:
    """Pure noise, each pair also written with an untouched gene: 43 of 56 test genotypes were trained on."""
    random = np.random.default_rng(1)
    names = [f"G{k}" for k in range(40)]
    lists: list[list[str]] = []
    for _ in range(60):
        a, b, c = (names[k] for k in random.choice(40, 3, replace=False))
        lists += [[a, f"{b}=0.3"], [a, f"{b}=0.30000000001", f"{c}=1"], [f"{c}=1"]]
    screen = kg.Screen(lists, {"f": random.normal(size=len(lists))})
    distinct = screen.genotypes.group
    assert len(screen.merge_duplicates()) == len(set(distinct)) <= 61
    for split in (splits.by_genotype(screen), splits.k_fold(screen)):
        parts = [set(distinct[rows]) for rows in split.parts.values()]
        assert sum(map(len, parts)) == len(set.union(*parts))
    with pytest.raises(kg.SplitError, match="split by genotype"):
        splits.random(screen)


def test_an_unseen_gene_is_perturbed() -> None:
    lists = [[a, b, f"{c}=1"] for a, b, c in itertools.permutations("ABCDEFGHI", 3)]
    for unseen in ("one", "any", "all"):
        split = splits.unseen_genes(kg.Screen(lists, {"f": np.arange(len(lists))}), unseen, 0.2)  # type: ignore[arg-type]
        for part in ("val", "test"):
            held = set(split.held_out[part])
            assert all(held & set(lists[row][:2]) for row in split[part])
            assert not any(held & {*lists[row][:2], lists[row][2][0]} for row in split["train"])
