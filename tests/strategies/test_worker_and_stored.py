"""Worker-side strategies really work in the loader's workers; stored ones really write and read, and notice damage."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from strategy_cases import VARIANTS, cell, create, genes, random_pairs
from torch.utils.data import DataLoader

import knockgraph as kg
from knockgraph.screen import BoundScreen, Genotypes
from knockgraph.strategies.mask_store import MARGIN as MARGIN

N = 12
STORED = [v for v, (name, _) in VARIANTS.items() if name.startswith("stored")]
ATTACHING = ["subgraph", "lazy-mask", *STORED]
HERE = Path(__file__).parent


def _graph(seed: int = 50) -> kg.CellGraph:
    return cell(
        N,
        physical=random_pairs(N, 0.1, seed=seed, symmetric=True),
        regulatory=random_pairs(N, 0.2, seed=51),
        empty=[],
    )


GRAPH = _graph()
LISTS = [[0], [3, 1], [], [7, 2, 5], [11, 10, 9, 8, 7, 6, 5, 4, 3, 2], [1], [4, 6], [0, 11], [2], [9, 5, 1]]


def _screen() -> kg.Screen:
    names = genes(N)
    return kg.Screen([[names[g] for g in genotype] for genotype in LISTS], {"fitness": [float(i) for i in range(10)]})


SCREEN = _screen()
BOUND = SCREEN.bind(GRAPH)


def masks_of(strategy: kg.strategies.Strategy, batch: kg.PerturbationBatch) -> list[torch.Tensor]:
    with strategy(batch) as view:
        return [view.edge_mask(name) for name in strategy.relation_names]


def expected_masks(batch: kg.PerturbationBatch, graph: kg.CellGraph = GRAPH) -> list[torch.Tensor]:
    keep = batch.keep()
    return [keep[r.edge_index[0]] & keep[r.edge_index[1]] for r in graph.relations.values()]


def assert_masks(strategy: kg.strategies.Strategy, batch: kg.PerturbationBatch) -> None:
    for actual, expected in zip(masks_of(strategy, batch), expected_masks(batch), strict=True):
        assert torch.equal(actual, expected)


def without_payload(batch: kg.PerturbationBatch) -> kg.PerturbationBatch:
    return kg.PerturbationBatch.from_lists(batch.tolist(), batch.num_genes)


class Recorder:
    """A collate function that also notes which process ran it."""

    def __init__(self, collate: Any, folder: Path) -> None:
        self.collate, self.folder = collate, folder

    def __call__(self, batch: kg.PerturbationBatch) -> kg.PerturbationBatch:
        (self.folder / f"pid-{os.getpid()}").touch()
        return self.collate(batch)


@pytest.mark.parametrize(
    ("variant", "context"),
    [
        *((v, "fork") for v in ATTACHING),
        pytest.param("lazy-mask", "spawn", marks=pytest.mark.full),
        ("stored-indices", "spawn"),
    ],
)
def test_runs_in_loader_workers(variant: str, context: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH, "both", BOUND, tmp_path)
    if strategy.placement == "stored":
        strategy.collate(BOUND.batch([0]))  # opened here; a forked worker must open its own
    assert strategy.placement in ("worker", "stored")
    recorder = Recorder(strategy.collate, tmp_path)
    loader = kg.ScreenLoader(
        BOUND, batch_size=3, shuffle=False, collate=recorder, num_workers=2, multiprocessing_context=context
    )
    seen = []
    for batch in loader:
        assert batch.payload is not None
        with strategy(batch) as view:
            assert view.origin == "worker"
        with strategy(without_payload(batch)) as view:
            assert view.origin == "in place"
        assert_masks(strategy, batch)
        seen += batch.tolist()
    assert [sorted(g) for g in seen] == [sorted(g) for g in LISTS]
    pids = {int(p.name.removeprefix("pid-")) for p in tmp_path.glob("pid-*")}
    assert len(pids) == 2
    assert os.getpid() not in pids


@pytest.mark.parametrize("variant", VARIANTS)
def test_bare_batch(variant: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH, "both", BOUND, tmp_path)
    batch = BOUND.batch([1, 4])
    with strategy(batch) as view:
        assert view.origin == ("device" if strategy.placement == "device" else "in place")
        assert variant.split(",")[0].startswith(strategy.name)
        assert view.origin in repr(view)
    assert_masks(strategy, batch)


@pytest.mark.parametrize("variant", VARIANTS)
def test_list_of_pyg_samples(variant: str, tmp_path: Path) -> None:
    """The lists that torch's DataLoader hands to ``collate_fn``; gene indices stay sample-local."""
    strategy = create(variant, GRAPH, "both", BOUND, tmp_path)
    dataset = kg.PerturbationDataset(BOUND, GRAPH)
    batch = strategy.collate([dataset[i] for i in (3, 1, 2)])
    assert [sorted(g) for g in batch.tolist()] == [[2, 5, 7], [1, 3], []]
    assert batch.phenotype_values.flatten().tolist() == [3.0, 1.0, 2.0]
    assert_masks(strategy, batch)
    loader = DataLoader(dataset, batch_size=4, collate_fn=strategy.collate)
    for made in loader:
        assert_masks(strategy, made)


def test_torch_loader_with_workers(tmp_path: Path) -> None:
    strategy = create("lazy-mask", GRAPH)
    loader = DataLoader(
        kg.PerturbationDataset(BOUND, GRAPH),
        batch_size=5,
        collate_fn=strategy.collate,
        num_workers=2,
        multiprocessing_context="fork",
    )
    batches = list(loader)
    assert [len(b) for b in batches] == [5, 5]
    for batch in batches:
        assert strategy(batch).origin == "worker"
        assert_masks(strategy, batch)


@pytest.mark.parametrize("variant", ATTACHING)
def test_payload_of_another_batch_is_refused(variant: str, tmp_path: Path) -> None:
    from dataclasses import replace

    strategy = create(variant, GRAPH, "both", BOUND, tmp_path)
    payload = strategy.collate(BOUND.batch([0, 1])).payload
    with pytest.raises(kg.StrategyError, match="2 columns for 3 samples; collate the batch again"):
        strategy(replace(BOUND.batch([0, 1, 2]), payload=payload))


@pytest.mark.parametrize("variant", VARIANTS)
def test_collate_travels(variant: str, tmp_path: Path) -> None:
    """It can be handed to spawned workers, and refers to no device table."""
    strategy = create(variant, GRAPH, "both", BOUND, tmp_path)
    batch = BOUND.batch([3, 4, 2])
    strategy.collate(batch)  # a store is open now
    twin = pickle.loads(pickle.dumps(strategy.collate))
    assert not isinstance(getattr(strategy.collate, "__self__", None), torch.nn.Module)
    for mine, other in zip(masks_of(strategy, strategy.collate(batch)), masks_of(strategy, twin(batch)), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("variant", STORED)
@pytest.mark.parametrize("source", ["screen", "genotypes", "bound", "batch", "lists"])
def test_prepare_from(source: str, variant: str, tmp_path: Path) -> None:
    given: Any = {
        "screen": SCREEN,
        "genotypes": SCREEN.genotypes,
        "bound": BOUND,
        "batch": kg.PerturbationBatch.from_lists(LISTS, N),
        "lists": LISTS,
    }[source]
    assert isinstance(SCREEN.genotypes, Genotypes)
    assert isinstance(BOUND, BoundScreen)
    strategy = create(variant, GRAPH)
    strategy.prepare(given, tmp_path / "store")
    batch = BOUND.batch(range(len(LISTS)))
    assert_masks(strategy, batch)
    assert_masks(strategy, batch.with_wild_type())  # the wild type is always prepared
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert manifest["records"] == len({frozenset(g) for g in LISTS} | {frozenset()})
    assert strategy.memory()["disk"] > 0


@pytest.mark.parametrize("variant", STORED)
def test_prepare_refuses_another_gene_list(variant: str, tmp_path: Path) -> None:
    other = kg.CellGraph([f"h{i}" for i in range(N)], dict(GRAPH.relations))
    strategy = create(variant, other)
    for given in (BOUND, BOUND.batch([0]), kg.PerturbationBatch.from_lists([[0]], N + 1)):
        with pytest.raises(kg.GeneListMismatchError, match="a different gene list"):
            strategy.prepare(given, tmp_path / "store")
    with pytest.raises(kg.UnknownGeneError, match="g0"):
        strategy.prepare(SCREEN, tmp_path / "store")
    with pytest.raises(kg.PerturbationError, match="gene indices run from 0 to 11"):
        strategy.prepare([[N]], tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("variant", STORED)
def test_not_prepared(variant: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH)
    with pytest.raises(kg.NotPreparedError, match=r"was not prepared; call strategy\.prepare\(genotypes, directory\)"):
        strategy(BOUND.batch([0]))
    with pytest.raises(kg.NotPreparedError, match="was not prepared"):
        strategy.collate(BOUND.batch([0]))
    strategy.prepare([[0], [1, 3]], tmp_path / "store")
    with pytest.raises(kg.NotPreparedError, match=r"no record for sample 2 \(deleted genes \[2, 5, 7\]\)"):
        strategy(BOUND.batch([0, 1, 3]))
    assert_masks(strategy, BOUND.batch([0, 1, 2]))


@pytest.mark.parametrize("variant", STORED)
def test_prepared_for_something_else(variant: str, tmp_path: Path) -> None:
    """Another gene list, other edges, another direction, another kind of record: refused, also at the same size."""
    strategy = create(variant, GRAPH)
    strategy.prepare(LISTS, tmp_path / "store")
    renamed = kg.CellGraph([f"h{i}" for i in range(N)], dict(GRAPH.relations))
    turned = kg.CellGraph(genes(N), {name: r.edge_index.flip(1) for name, r in GRAPH.relations.items()})
    reordered = kg.CellGraph(genes(N), {name: GRAPH.relations[name] for name in reversed(list(GRAPH.relations))})
    for other, key in ((renamed, "gene_list_hash"), (turned, "edges_hash"), (reordered, "edges_hash")):
        with pytest.raises(kg.GeneListMismatchError, match=f"another cell graph.*{key}"):
            create(variant, other, directory=tmp_path / "store")
    with pytest.raises(kg.NotPreparedError, match="direction='both', but 'in' is needed"):
        create(variant, GRAPH, "in", directory=tmp_path / "store")
    for other_kind in STORED:
        if other_kind != variant:
            with pytest.raises(kg.NotPreparedError, match=r"kind=.* is needed; prepare it again"):
                create(other_kind, GRAPH, directory=tmp_path / "store")
    assert_masks(create(variant, GRAPH, directory=tmp_path / "store"), BOUND.batch([4]))


def test_edges_with_the_same_bytes_are_told_apart(tmp_path: Path) -> None:
    """Cutting one list of edges differently over two relations is another graph."""
    one = cell(4, a=[[0, 0], [0, 0]], b=[[0, 0]])
    two = cell(4, a=[[0, 0]], b=[[0, 0]], c=[])
    assert one.num_edges == two.num_edges == 2
    create("stored-masks", one).prepare([[0]], tmp_path / "store")
    with pytest.raises(kg.GeneListMismatchError, match="edges_hash"):
        create("stored-masks", two, directory=tmp_path / "store")


@pytest.mark.parametrize("variant", STORED)
def test_incomplete_folders(variant: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH)
    store = tmp_path / "store"
    for absent in (tmp_path / "nothing", tmp_path):
        with pytest.raises(kg.NotPreparedError, match=r"no finished store \(no manifest\.json\); call strategy"):
            create(variant, GRAPH, directory=absent)
    strategy.prepare(LISTS, store)
    manifest = (store / "manifest.json").read_text()
    for text in ("{", "[]", "\x00"):
        (store / "manifest.json").write_text(text)
        with pytest.raises(kg.FileFormatError, match=r"manifest\.json is damaged"):
            create(variant, GRAPH, directory=store)
    (store / "manifest.json").write_text(manifest)
    data = (store / "data.mdb").read_bytes()
    for shorter in (data[: len(data) // 2], b""):
        (store / "data.mdb").write_bytes(shorter)
        with pytest.raises(kg.FileFormatError, match=r"data\.mdb is missing or does not have the size"):
            create(variant, GRAPH, directory=store)
    (store / "data.mdb").unlink()
    with pytest.raises(kg.FileFormatError, match=r"data\.mdb is missing"):
        create(variant, GRAPH, directory=store)
    strategy.prepare(LISTS[:2], store)  # an earlier preparation is replaced
    assert_masks(strategy, BOUND.batch([0, 1]))
    with pytest.raises(kg.NotPreparedError, match="no record"):
        strategy(BOUND.batch([3]))


@pytest.mark.parametrize("variant", STORED)
def test_one_store_for_several_strategies(variant: str, tmp_path: Path) -> None:
    """LMDB opens a folder once per process; train and validation strategies may still share it, and rewrite it."""
    first = create(variant, GRAPH)
    first.prepare(LISTS[:3], tmp_path / "store")
    second = create(variant, GRAPH, directory=tmp_path / "store")
    for strategy in (first, second, first):
        assert_masks(strategy, BOUND.batch([0, 1]))
    first.prepare(LISTS, tmp_path / "store")
    for strategy in (second, first):
        assert_masks(strategy, BOUND.batch(range(10)))


def test_a_store_exchanged_under_a_reader(tmp_path: Path) -> None:
    """Records know the graph they belong to: another one's store moved into place is not believed."""
    other = kg.CellGraph(genes(N), {name: r.edge_index.flip(1) for name, r in GRAPH.relations.items()})
    create("stored-masks", GRAPH).prepare(LISTS, tmp_path / "store")
    reader = create("stored-masks", GRAPH, directory=tmp_path / "store")
    assert_masks(reader, BOUND.batch([0]))
    create("stored-masks", other).prepare(LISTS, tmp_path / "store")
    with pytest.raises(kg.FileFormatError, match="is damaged; prepare the store again"):
        reader(BOUND.batch([0]))


@pytest.mark.parametrize("variant", STORED)
def test_no_pickle(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither written nor read: records are fixed-width numbers."""

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was used")

    for name in ("dumps", "dump", "loads", "load", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    strategy = create(variant, GRAPH)
    strategy.prepare(LISTS, tmp_path / "store")
    again = create(variant, GRAPH, directory=tmp_path / "store")
    assert_masks(again, BOUND.batch([3, 4]))
    assert sorted(p.name for p in (tmp_path / "store").iterdir()) == ["data.mdb", "manifest.json"]
    assert b"\x80\x04\x95" not in (tmp_path / "store" / "data.mdb").read_bytes()  # how a pickle starts


def test_records_are_as_large_as_documented(tmp_path: Path) -> None:
    edges = GRAPH.num_edges
    assert create("stored-masks", GRAPH).record_bytes == edges
    assert create("stored-masks-packed", GRAPH).record_bytes == (edges + 7) // 8
    for variant, size in (("stored-masks", edges), ("stored-masks-packed", (edges + 7) // 8)):
        strategy = create(variant, GRAPH)
        strategy.prepare([[0]], tmp_path / variant)
        assert [len(r) for r in strategy.store.read(BOUND.batch([0, 2]))] == [size, size]
    strategy = create("stored-indices", GRAPH)
    strategy.prepare([[0]], tmp_path / "indices")
    removed = int(sum((~m).sum() for m in expected_masks(BOUND.batch([0]))))
    assert [len(r) for r in strategy.store.read(BOUND.batch([0, 2]))] == [4 * (3 + removed), 4 * 3]


def test_folder_with_foreign_files(tmp_path: Path) -> None:
    strategy = create("stored-masks", GRAPH)
    (tmp_path / "thesis.tex").write_text("do not lose me")
    with pytest.raises(kg.StrategyError, match=r"holds other files \(thesis.tex …\); give a new or empty folder"):
        strategy.prepare(LISTS, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "do not lose me"
    with pytest.raises(kg.StrategyError, match=r"thesis.tex is a file; give a folder"):
        strategy.prepare(LISTS, tmp_path / "thesis.tex")
    with pytest.raises(kg.KnockgraphError, match="cannot create"):
        strategy.prepare(LISTS, tmp_path / "thesis.tex" / "below")


def test_too_little_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    strategy = create("stored-masks", GRAPH)
    strategy.prepare(LISTS, tmp_path / "store")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(kg.StrategyError, match=r"the store needs about .* GB free; .* use node-mask"):
        strategy.prepare(LISTS, tmp_path / "store")
    assert_masks(strategy, BOUND.batch([0]))  # the earlier store is still there


def test_records_larger_than_typical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The typical size is a guess; genotypes with many deletions must not fill a map that was sized by it."""
    strategy = create("stored-indices", GRAPH)
    monkeypatch.setattr(type(strategy), "_record", lambda self, genes: b"\0" * 3_000_000)
    strategy.prepare([[g, h] for g in range(N) for h in range(g)], tmp_path / "store")
    assert (tmp_path / "store" / "data.mdb").stat().st_size > 3_000_000 * 66


def test_lmdb_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "lmdb":
            raise ImportError("No module named 'lmdb'")
        return real(name, *args, **kwargs)

    strategy = create("stored-indices", GRAPH)
    strategy.prepare(LISTS, tmp_path / "store")
    monkeypatch.delitem(sys.modules, "lmdb", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    assert set(kg.strategies.available()) >= {"stored-indices", "stored-masks"}
    for variant in STORED:
        with pytest.raises(kg.StrategyError, match=r"need LMDB: pip install 'knockgraph\[stored\]'"):
            create(variant, GRAPH).prepare(LISTS, tmp_path / "other")
    with pytest.raises(kg.StrategyError, match="need LMDB"):
        create("stored-indices", GRAPH, directory=tmp_path / "store")(BOUND.batch([0]))


_READER = """
import sys, torch
sys.path.insert(0, {here!r})
import test_worker_and_stored as t
for variant in t.STORED:
    t.assert_masks(t.create(variant, t.GRAPH, directory={folder!r} + "/" + variant), t.BOUND.batch(range(10)))
print("read")
"""


def _python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def test_reopened_in_a_fresh_process(tmp_path: Path) -> None:
    for variant in STORED:
        create(variant, GRAPH).prepare(SCREEN, tmp_path / variant)
    done = _python(_READER.format(here=str(HERE), folder=str(tmp_path)))
    assert done.stdout.strip() == "read", done.stderr


# Flips one bit at a time and reads everything; prints how often the masks were right, wrong, and refused.
_FLIPPER = """
import random, sys
from pathlib import Path
sys.path.insert(0, {here!r})
import torch, knockgraph as kg
import test_worker_and_stored as t
batch = t.BOUND.batch(range(10))
expected = t.expected_masks(batch)
chance = random.Random({seed})
for variant in t.STORED:
    data = Path({folder!r}) / variant / "data.mdb"
    whole = data.read_bytes()
    used = len(whole) - t.MARGIN
    right = wrong = refused = 0
    for k in range({flips}):
        # Half of them in the first bytes of a page, where LMDB keeps its own numbers.
        at = chance.randrange(used) if k % 2 else chance.randrange(used // 4096) * 4096 + chance.randrange(64)
        broken = bytearray(whole)
        broken[at] ^= 1 << chance.randrange(8)
        data.write_bytes(broken)
        try:
            masks = t.create(variant, t.GRAPH, directory=data.parent).collate(batch).payload.masks
            if all(torch.equal(a, b) for a, b in zip(masks, expected, strict=True)):
                right += 1
            else:
                wrong += 1
        except (kg.FileFormatError, kg.NotPreparedError):
            refused += 1
    print(right, wrong, refused)
"""


def _flip(seed: int, flips: int, folder: Path) -> None:
    """In another process, which must not crash either."""
    for variant in STORED:
        create(variant, GRAPH).prepare(SCREEN, folder / variant)
    done = _python(_FLIPPER.format(here=str(HERE), folder=str(folder), seed=seed, flips=flips))
    assert done.returncode == 0, (done.returncode, done.stderr)
    for line in done.stdout.splitlines():
        right, wrong, refused = map(int, line.split())
        assert wrong == 0
        assert refused > 0
        assert right + refused == flips
    assert len(done.stdout.splitlines()) == len(STORED)


def test_flipped_bits(tmp_path: Path) -> None:
    _flip(1, 60, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_many_flipped_bits(seed: int, tmp_path: Path) -> None:
    _flip(100 + seed, 500, tmp_path)


@pytest.mark.parametrize("variant", STORED)
def test_damaged_record_is_named(variant: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH)
    strategy.prepare([[7, 2, 5]], tmp_path / "store")
    record = strategy.store.read(BOUND.batch([3]))[0]
    data = tmp_path / "store" / "data.mdb"
    whole = bytearray(data.read_bytes())
    assert whole.count(record) == 1
    whole[whole.index(record) + len(record) // 2] ^= 1
    data.write_bytes(whole)
    damaged = create(variant, GRAPH, directory=tmp_path / "store")
    with pytest.raises(kg.FileFormatError, match=r"record of sample 1 \(deleted genes \[2, 5, 7\]\) in .* is damaged"):
        damaged(BOUND.batch([2, 3]))
    assert_masks(damaged, BOUND.batch([2]))


def test_record_of_another_genotype_is_noticed(tmp_path: Path) -> None:
    """The digest covers the key: a whole, valid record found under the wrong key is not believed."""
    import lmdb

    strategy = create("stored-masks", GRAPH)
    strategy.prepare([[0], [1]], tmp_path / "store")
    environment = lmdb.open(str(tmp_path / "store"), map_size=2**26, lock=False)
    with environment.begin(write=True) as transaction:
        pairs = list(transaction.cursor())
        for (key, _), (_, value) in zip(pairs, pairs[1:] + pairs[:1], strict=True):
            transaction.put(key, value)
    environment.close()
    manifest = tmp_path / "store" / "manifest.json"
    size = (tmp_path / "store" / "data.mdb").stat().st_size
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "bytes": size}))
    with pytest.raises(kg.FileFormatError, match="is damaged"):
        create("stored-masks", GRAPH, directory=tmp_path / "store")(BOUND.batch([0]))


_WRITER = """
import sys, time
sys.path.insert(0, {here!r})
import test_worker_and_stored as t
from knockgraph.strategies import mask_store
mask_store._COMMIT_EVERY = 500  # many transactions, so that a kill finds some of them written
strategy = t.create({variant!r}, t.GRAPH)
record = strategy._record
def slow(genes):
    time.sleep(0.001)
    return record(genes)
strategy._record = slow
print("ready", flush=True)
strategy.prepare(t.MANY, {folder!r})
print("done", flush=True)
"""
MANY = [[a, b] for a in range(N) for b in range(a)] + LISTS


def _kill(variant: str, seed: int, folder: Path) -> str:
    code = _WRITER.format(here=str(HERE), folder=str(folder), variant=variant)
    writer = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    time.sleep(random.Random(seed).uniform(0.0, 0.25))
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    try:
        strategy = create(variant, GRAPH, directory=folder)
    except kg.NotPreparedError:
        strategy = create(variant, GRAPH)
        strategy.prepare(LISTS, folder)  # what is left of the first attempt is not in the way
        assert_masks(strategy, BOUND.batch(range(10)))
        return "refused"
    assert_masks(strategy, kg.PerturbationBatch.from_lists(MANY, N))
    return "complete"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_killed_while_preparing(seed: int, tmp_path: Path) -> None:
    assert _kill(STORED[seed], seed, tmp_path / "store") in ("refused", "complete")


@pytest.mark.full
@pytest.mark.parametrize("variant", STORED)
def test_killed_while_preparing_20_times(variant: str, tmp_path: Path) -> None:
    ends = {_kill(variant, seed, tmp_path / f"store-{seed}") for seed in range(20)}
    assert "refused" in ends


def test_a_killed_repetition_leaves_no_old_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing again first removes the manifest: an interrupted second preparation is not taken for the first."""
    strategy = create("stored-masks", GRAPH)
    strategy.prepare(LISTS, tmp_path / "store")

    def interrupted(self: Any, genes: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(strategy), "_record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create("stored-masks", GRAPH).prepare(LISTS, tmp_path / "store")
    with pytest.raises(kg.NotPreparedError, match="no finished store"):
        create("stored-masks", GRAPH, directory=tmp_path / "store")
