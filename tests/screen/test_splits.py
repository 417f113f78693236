import itertools
import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from screen_cases import examples

from knockgraph import FileFormatError, Screen, Split, SplitError, splits

NAMES = [f"G{i:02d}" for i in range(20)]


def distinct_screen(n: int, seed: int = 0) -> Screen:
    """A screen of ``n`` distinct genotypes, the wild type among them."""
    pool = [g for size in (0, 1, 2, 3) for g in itertools.combinations(NAMES[:12], size)]
    rows = np.random.default_rng(seed).permutation(len(pool) - 1)[: n - 1] + 1
    return Screen([pool[0], *(pool[row] for row in rows)][:n], {"fitness": np.arange(n)})


def repeated_screen(n: int, distinct: int, seed: int = 0) -> Screen:
    """``n`` experiments on at most ``distinct`` genotypes."""
    rows = np.random.default_rng(seed).integers(0, distinct, n)
    return distinct_screen(distinct, seed).take(rows)


def triple_screen(n: int, genes: int = 20, seed: int = 0) -> Screen:
    """``n`` distinct genotypes of one to three genes."""
    pool = [g for size in (1, 2, 3) for g in itertools.combinations(NAMES[:genes], size)]
    rows = np.random.default_rng(seed).permutation(len(pool))[:n]
    return Screen([pool[row] for row in rows], {"fitness": np.zeros(n)})


def all_rows(split: Split) -> list[int]:
    return sorted(row for part in ("train", "val", "test") for row in split[part].tolist())


def genotype_sets(screen: Screen, split: Split) -> dict[str, set[tuple[str, ...]]]:
    return {part: {screen.genotypes[row] for row in rows} for part, rows in split.parts.items()}


def assert_sound(split: Split, screen: Screen) -> None:
    assert list(split.parts) == ["train", "val", "test"]
    for rows in split.parts.values():
        assert rows.dtype == np.int64
        assert len(rows) > 0
        assert (np.diff(rows) > 0).all()
    assert len(set(all_rows(split))) == split.num_experiments  # no row in two parts
    assert split.about["left_out"] == len(screen) - split.num_experiments
    sets = genotype_sets(screen, split)
    for a, b in itertools.combinations(sets, 2):
        assert not sets[a] & sets[b]
    split.check(screen)
    json.dumps(split.about)


MAKERS = {
    "random": splits.random,
    "genotype": splits.by_genotype,
    "unseen-genes": lambda screen, **options: splits.unseen_genes(screen, "any", 0.2, **options),
    "k-fold": splits.k_fold,
}


@pytest.mark.parametrize("kind", MAKERS)
@given(n=st.integers(100, 160), seed=st.integers(-3, 1000))
@examples
def test_every_kind_is_sound_and_deterministic(kind, n, seed):
    screen = triple_screen(n)
    split, again = MAKERS[kind](screen, seed=seed), MAKERS[kind](screen, seed=seed)
    assert_sound(split, screen)
    assert split.about == again.about
    assert split.held_out == again.held_out
    for part in split.parts:
        assert split[part].tolist() == again[part].tolist()
    assert (split.about["kind"], split.about["seed"]) == (kind, seed)
    if kind != "unseen-genes":
        assert all_rows(split) == list(range(n))  # complete


@pytest.mark.parametrize("kind", MAKERS)
def test_seeds_differ(kind):
    screen = triple_screen(120)
    assert len({tuple(MAKERS[kind](screen, seed=seed)["test"].tolist()) for seed in range(5)}) == 5


@pytest.mark.parametrize("kind", MAKERS)
def test_by_kind(kind):
    screen = triple_screen(120)
    made, named = MAKERS[kind](screen, seed=3), splits.by_kind(screen, kind, unseen="any", held_out=0.2, seed=3)
    assert named.about == made.about
    assert [named[part].tolist() for part in named.parts] == [made[part].tolist() for part in made.parts]
    with pytest.raises(SplitError, match=r"no split .odd.; use random, source, genotype, unseen-genes or k-fold"):
        splits.by_kind(screen, "odd")


@given(st.integers(10, 120), st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.34, 0.33, 0.33)]))
@examples
def test_random_fractions(n, fractions):
    split = splits.random(distinct_screen(n), fractions, seed=n)
    for part, fraction in zip(splits.PARTS, fractions, strict=True):
        assert abs(len(split[part]) - fraction * n) <= 1
    assert split.about["fractions"] == list(fractions)


def test_random_refuses_a_genotype_that_would_stand_in_two_parts():
    screen = Screen([["a", "b"]] * 20, {"f": np.zeros(20)})
    with pytest.raises(SplitError, match=r"1 genotype would be in more than one part \(for instance a\+b\); split by"):
        splits.random(screen)
    wild = Screen([[]] * 20, {"f": np.zeros(20)})
    with pytest.raises(SplitError, match="for instance the wild type"):
        splits.random(wild)


def test_random_on_a_merged_screen():
    screen = repeated_screen(200, 60)
    with pytest.raises(SplitError, match="merge duplicated genotypes first"):
        splits.random(screen)
    merged = screen.merge_duplicates()
    assert_sound(splits.random(merged), merged)


@given(st.integers(30, 100), st.integers(12, 30), st.integers(0, 50))
@examples
def test_by_genotype_keeps_duplicates_together(n, distinct, seed):
    screen = repeated_screen(n, distinct, seed)
    split = splits.by_genotype(screen, (0.6, 0.2, 0.2), seed=seed)
    assert_sound(split, screen)
    assert all_rows(split) == list(range(n))
    used = len(set(screen.genotypes))
    for (part, genotypes), fraction in zip(genotype_sets(screen, split).items(), (0.6, 0.2, 0.2), strict=True):
        assert abs(len(genotypes) - fraction * used) <= 1, part  # the fractions are of genotypes


def slow_unseen(screen: Screen, held: dict[str, tuple[str, ...]], unseen: str) -> dict[str, list[int]]:
    val, test = set(held["val"]), set(held["test"])
    parts: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for row, genotype in enumerate(screen.genotypes):
        genes = set(genotype)
        in_val, in_test = genes & val, genes & test
        if not in_val and not in_test:
            parts["train"].append(row)
        elif in_val and in_test:
            continue
        else:
            part, mine = ("val", in_val) if in_val else ("test", in_test)
            fits = {"one": len(mine) == 1, "any": True, "all": mine == genes}[unseen]
            if fits:
                parts[part].append(row)
    return parts


@pytest.mark.parametrize("seed", range(10))
def test_by_source_keeps_sources_together(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 300
    sources = [f"query {i}" for i in random.integers(0, 40, n)]
    pool = [g for size in (1, 2, 3) for g in itertools.combinations(NAMES, size)]
    # A few genotypes are measured by several sources, which then belong together.
    chosen = random.permutation(len(pool))[:n]
    chosen[random.integers(0, n, 8)] = chosen[0]
    screen = Screen([pool[row] for row in chosen], {"fitness": np.zeros(n)}, source=sources)
    split = splits.by_source(screen, seed=seed)
    assert all_rows(split) == list(range(n))
    part = {row: name for name in ("train", "val", "test") for row in split[name].tolist()}
    by_source: dict[str, set[str]] = {}
    for row, source in enumerate(sources):
        by_source.setdefault(source, set()).add(part[row])
    assert all(len(parts) == 1 for parts in by_source.values())
    assert len({part[row] for row in np.flatnonzero(chosen == chosen[0]).tolist()}) == 1
    assert split.about["kind"] == "source"
    assert split.about["sources"] <= len(by_source)


def test_sources_joined_in_a_chain_are_one_group() -> None:
    genotypes = [["A"], ["A", "B"], ["A", "B"], ["C"], ["C"], ["D"], ["E"], ["F"], ["G"]]
    source = ["1", "1", "2", "2", "3", "3", "4", "5", "6"]
    screen = Screen(genotypes, {"fitness": np.zeros(9)}, source=source)
    split = splits.by_source(screen, (0.5, 0.25, 0.25), seed=1)
    assert split.about["sources"] == 4  # 1, 2 and 3 share genotypes
    assert any({0, 1, 2, 3, 4, 5} <= set(split[part].tolist()) for part in ("train", "val", "test"))
    with pytest.raises(SplitError, match="the source split leaves val and test empty"):
        splits.by_source(Screen(genotypes, {"fitness": np.zeros(9)}, source="one"))


@pytest.mark.parametrize("unseen", ["one", "any", "all"])
@given(
    n=st.integers(150, 290),
    genes=st.integers(12, 20),
    fraction=st.sampled_from([0.1, 0.2, 0.3]),
    seed=st.integers(0, 99),
)
@examples
def test_unseen_genes_against_slow_reference(unseen, n, genes, fraction, seed):
    screen = triple_screen(n, genes)
    names = screen.genotypes.names
    try:
        split = splits.unseen_genes(screen, unseen, fraction, seed)
    except SplitError:
        assert unseen == "all"  # few genotypes consist of held-out genes only, so a part may be empty
        assume(False)
    held = split.held_out
    assert len(held["val"]) == len(held["test"]) == round(fraction * len(names))
    assert not set(held["val"]) & set(held["test"])
    expected = slow_unseen(screen, held, unseen)
    assert {part: rows.tolist() for part, rows in split.parts.items()} == expected
    assert split.about["left_out"] == n - sum(map(len, expected.values()))
    training = {gene for row in split["train"] for gene in screen.genotypes[row]}
    assert not training & (set(held["val"]) | set(held["test"]))


def test_unseen_genes_by_hand():
    # Three genes, one held out for val and one for test; whichever they are, the parts follow.
    screen = Screen([[], ["a"], ["b"], ["c"], ["a", "b"], ["b", "c"], ["a", "c"], ["a", "b", "c"]], {"f": range(8)})
    for unseen, leave_out in (("one", 2), ("any", 2), ("all", 4)):
        split = splits.unseen_genes(screen, unseen, 0.34)
        (v,), (t,) = split.held_out["val"], split.held_out["test"]
        (other,) = {"a", "b", "c"} - {v, t}
        sets = genotype_sets(screen, split)
        pair = {"val": tuple(sorted([v, other])), "test": tuple(sorted([t, other]))}
        assert sets["train"] == {(), (other,)}
        assert sets["val"] == ({(v,)} if unseen == "all" else {(v,), pair["val"]})
        assert sets["test"] == ({(t,)} if unseen == "all" else {(t,), pair["test"]})
        assert split.about["left_out"] == leave_out


@pytest.mark.parametrize(("fraction", "held"), [(0.0, 0), (0.5, 10), (1.0, 20), (-0.1, -2), (0.01, 0)])
def test_unseen_fraction_out_of_range(fraction, held):
    with pytest.raises(SplitError, match=f"fraction={fraction} holds out {held} of 20 genes twice; choose another"):
        splits.unseen_genes(triple_screen(400), fraction=fraction)


def test_unseen_kind_is_known():
    with pytest.raises(SplitError, match="unseen='two' is not known: use one, any or all"):
        splits.unseen_genes(triple_screen(100), "two")


@given(st.integers(40, 90), st.integers(3, 7), st.integers(0, 50), st.booleans())
@examples
def test_k_fold_tests_every_experiment_exactly_once(n, folds, seed, repeated):
    screen = repeated_screen(n, 25, seed) if repeated else distinct_screen(n, seed)
    made = [splits.k_fold(screen, folds, fold, seed) for fold in range(folds)]
    for split in made:
        assert_sound(split, screen)
        assert all_rows(split) == list(range(n))
    assert sorted(row for split in made for row in split["test"].tolist()) == list(range(n))
    for fold, split in enumerate(made):
        assert split["val"].tolist() == made[(fold + 1) % folds]["test"].tolist()  # the next one validates
    sizes = [len({screen.genotypes[row] for row in split["test"]}) for split in made]
    assert max(sizes) - min(sizes) <= 1  # folds are equal in genotypes


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"folds": 2}, "folds=2, but train, val and test need at least 3"),
        ({"folds": 5, "fold": 5}, r"fold=5 does not exist among 5 folds \(0 … 4\)"),
        ({"folds": 5, "fold": -1}, "fold=-1 does not exist"),
    ],
)
def test_k_fold_options(options, text):
    with pytest.raises(SplitError, match=text):
        splits.k_fold(distinct_screen(30), **options)


@pytest.mark.parametrize("kind", MAKERS)
def test_subset(kind):
    screen = triple_screen(300)
    split = MAKERS[kind](screen, subset=110, seed=3)
    assert_sound(split, screen)
    assert split.about["subset"] == 110
    assert split.num_experiments == 110 or kind == "unseen-genes"
    assert split.num_experiments <= 110
    again = MAKERS[kind](screen, subset=110, seed=3)
    assert all_rows(split) == all_rows(again)
    assert all_rows(split) != all_rows(MAKERS[kind](screen, subset=110, seed=4))
    assert max(all_rows(split)) > 150  # drawn from everywhere, not the head of the table


def test_subset_of_everything_is_everything():
    screen = distinct_screen(50)
    assert all_rows(splits.random(screen, subset=50)) == list(range(50))


@pytest.mark.parametrize("subset", [0, -1, 51])
def test_subset_out_of_range(subset):
    with pytest.raises(SplitError, match=f"subset={subset}, but the screen has 50 experiments"):
        splits.random(distinct_screen(50), subset=subset)


@pytest.mark.parametrize(
    "fractions", [(0.8, 0.2), (0.8, 0.3, 0.1), (1.1, -0.1, 0.0), (0.25,) * 4, (float("nan"), 0.5, 0.5), (0.0, 0.0, 0.0)]
)
@pytest.mark.parametrize("maker", [splits.random, splits.by_genotype])
def test_fractions_that_are_none(maker, fractions):
    with pytest.raises(SplitError, match=r"must be three numbers ≥ 0 \(train, val, test\) that sum to 1"):
        maker(distinct_screen(50), fractions)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: splits.random(distinct_screen(50), (0.9, 0.1, 0.0)),
            r"the random split leaves test empty \(train 45, ",
        ),
        (lambda: splits.random(distinct_screen(3)), r"leaves test empty \(train 2, val 1, test 0 of 3 experiments\)"),
        (lambda: splits.random(distinct_screen(50), (0.0, 0.5, 0.5)), "leaves train empty"),
        (lambda: splits.by_genotype(repeated_screen(50, 2)), "the genotype split leaves .*empty"),
        (lambda: splits.k_fold(repeated_screen(50, 2), 5), "the k-fold split leaves .*empty"),
        (lambda: splits.random(Screen([], {"f": []})), "leaves train and val and test empty .* of 0 experiments"),
        (lambda: splits.by_genotype(Screen([], {"f": []})), "leaves train and val and test empty"),
        (lambda: splits.k_fold(Screen([], {"f": []})), "leaves train and val and test empty"),
        (lambda: splits.unseen_genes(Screen([], {"f": []})), "holds out 0 of 0 genes"),
        (
            lambda: splits.unseen_genes(Screen([["a"], ["b"], ["a", "b", "c"]], {"f": [1, 2, 3]}), "all", 0.34),
            "the unseen-genes split leaves .*empty .*use more experiments or other fractions",
        ),
    ],
)
def test_an_empty_part_is_an_error(make, text):
    with pytest.raises(SplitError, match=text):
        make()


def hand_made(screen: Screen, held_out: dict[str, tuple[str, ...]] | None = None, **parts: list[int]) -> Split:
    rows = {part: np.array(rows, dtype=np.int64) for part, rows in parts.items()}
    return Split(rows, {"kind": "hand-made"}, screen.genotypes.hash, held_out or {})


def test_leakage_is_found():
    screen = Screen([["a"], ["b"], ["a"], ["c"], ["b", "c"], ["c", "b"]], {"f": range(6)})
    genotypes = screen.genotypes
    splits.leakage(hand_made(screen, train=[0, 2], val=[1], test=[3]), genotypes)  # duplicates in one part: fine
    with pytest.raises(SplitError, match="an experiment is in two parts"):
        splits.leakage(hand_made(screen, train=[0, 1], val=[1], test=[3]), genotypes)
    with pytest.raises(SplitError, match=r"1 genotype would be in more than one part \(for instance a\)"):
        splits.leakage(hand_made(screen, train=[0], val=[1], test=[2]), genotypes)
    with pytest.raises(SplitError, match=r"2 genotypes would be in more than one part \(for instance "):
        splits.leakage(hand_made(screen, train=[0, 4], val=[2], test=[5]), genotypes)
    with pytest.raises(SplitError, match=r"for instance b\+c"):
        splits.leakage(hand_made(screen, train=[0], val=[4], test=[5]), genotypes)


def test_a_held_out_gene_in_training_is_found():
    screen = Screen([["a"], ["b"], ["a", "c"], ["c"]], {"f": range(4)})
    good = hand_made(screen, {"val": ("b",), "test": ("c",)}, train=[0], val=[1], test=[3])
    splits.leakage(good, screen.genotypes)
    bad = hand_made(screen, {"val": ("b",), "test": ("c",)}, train=[0, 2], val=[1], test=[3])
    with pytest.raises(SplitError, match="genes held out for test appear in training genotypes"):
        splits.leakage(bad, screen.genotypes)


@given(st.integers(12, 40), st.integers(3, 12), st.integers(0, 99))
@examples
def test_leakage_against_slow_reference(n, distinct, seed):
    screen = repeated_screen(n, distinct, seed)
    part = np.random.default_rng(seed).integers(0, 3, n)
    if seed % 2:  # half of the time by genotype, so that both outcomes occur
        part = screen.genotypes.group % 3
    split = hand_made(screen, **{name: np.flatnonzero(part == k).tolist() for k, name in enumerate(splits.PARTS)})
    sets = genotype_sets(screen, split)
    shared = {g for a, b in itertools.combinations(sets.values(), 2) for g in a & b}
    if shared:
        with pytest.raises(SplitError, match=f"^{len(shared)} genotypes? would be in more than one part"):
            splits.leakage(split, screen.genotypes)
    else:
        splits.leakage(split, screen.genotypes)


@pytest.mark.parametrize("kind", MAKERS)
def test_save_and_load(kind, tmp_path):
    screen = triple_screen(150)
    split = MAKERS[kind](screen, seed=1, subset=140)
    path = tmp_path / "screen.split"
    split.save(path)
    loaded = Split.load(path, screen)
    assert list(loaded.parts) == list(split.parts)
    for part, rows in split.parts.items():
        assert loaded[part].dtype == np.int64
        assert loaded[part].tolist() == rows.tolist()
    assert dict(loaded.about) == dict(split.about)
    assert dict(loaded.held_out) == dict(split.held_out)
    assert loaded.genotypes_hash == split.genotypes_hash
    assert repr(loaded) == repr(split)
    splits.leakage(loaded, screen.genotypes)


@pytest.mark.parametrize(
    "change",
    [
        lambda screen: screen.take(np.arange(len(screen))[::-1]),  # the same experiments in another order
        lambda screen: screen.take(np.arange(len(screen) - 1)),
        lambda screen: Screen([*list(screen.genotypes)[:-1], ["other"]], {"f": np.zeros(len(screen))}),
    ],
)
def test_another_screen_is_refused(tmp_path, change):
    screen = distinct_screen(50)
    split = splits.random(screen)
    split.save(tmp_path / "screen.split")
    with pytest.raises(SplitError, match=r"made for another screen .*'knockgraph screen split'"):
        Split.load(tmp_path / "screen.split", change(screen))
    with pytest.raises(SplitError, match="made for another screen"):
        split.check(change(screen))


def test_other_labels_of_the_same_genotypes_are_the_same_screen():
    screen = distinct_screen(50)
    splits.random(screen).check(Screen(screen.genotypes, {"other": np.ones(50)}))


def test_unknown_part():
    with pytest.raises(SplitError, match="this split has no part 'valid'; it has train, val, test"):
        splits.random(distinct_screen(50))["valid"]


def test_damaged_truncated_and_foreign_files(tmp_path):
    screen = distinct_screen(50)
    path = tmp_path / "screen.split"
    splits.random(screen).save(path)
    raw = path.read_bytes()
    rows = {part: r.tolist() for part, r in Split.load(path).parts.items()}
    for position in range(0, len(raw), 5):
        damaged = bytearray(raw)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        try:
            loaded = Split.load(path, screen)
        except FileFormatError:
            continue
        assert {part: r.tolist() for part, r in loaded.parts.items()} == rows, position
    for length in range(0, len(raw), 61):
        path.write_bytes(raw[:length])
        with pytest.raises(FileFormatError, match=r"screen\.split"):
            Split.load(path, screen)
    screen.save(path)
    with pytest.raises(FileFormatError, match=r"screen\.split"):
        Split.load(path, screen)
    with pytest.raises(FileFormatError, match="there is no such file"):
        Split.load(tmp_path / "absent.split")


def test_repr():
    assert repr(splits.random(distinct_screen(50))) == "Split(random: train 40, val 5, test 5)"
