"""Two real processes with DDP against one process with the whole batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from loss_cases import prediction, slow_pool_terms
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from knockgraph import losses
from knockgraph.losses.gather import gather_with_gradient
from knockgraph.models.model import Prediction
from knockgraph.screen import EpochOrder
from knockgraph.screen.order import shares

WORLD = 2
CAPACITY = 4
WEIGHTS = {"mse_weight": 0.5, "wasserstein_weight": 0.3, "contrastive_weight": 0.2, "temperature": 0.8}
EQUAL = [4] * 5
UNEQUAL = [4, 4, 3, 1, 4, 7, 11, 2, 1, 4]  # shares of 0, and shares larger than the buffer
CASES: dict[str, tuple[list[int], dict[str, Any]]] = {
    "equal": (EQUAL, {}),
    "unequal": (UNEQUAL, {}),
    "every third step": (UNEQUAL, {"gather_interval": 3}),
    "filling": (UNEQUAL, {"buffer_weight": "fill", "gather_interval": 2}),
    "not gathered": (UNEQUAL, {"gather": "none"}),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(5, 3, dtype=torch.float64)
        self.head = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.tanh(self.hidden(x))
        return self.head(z), z

    def flat_gradient(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.parameters()])


def data(step: int, size: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    x = torch.randn(size, 5, generator=random, dtype=torch.float64)
    return x, torch.randn(size, 1, generator=random, dtype=torch.float64)


def create(options: dict[str, Any], capacity: int = CAPACITY) -> losses.Loss:
    return losses.create("composite", **{**WEIGHTS, "gather": "differentiable", "buffer_size": capacity, **options})


def said(outputs: tuple[Tensor, Tensor]) -> Prediction:
    return prediction(*outputs)


def worker(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=WORLD)
    out: dict[str, Any] = {}
    for name, (sizes, options) in CASES.items():
        loss = create(options)
        model = Model()
        parallel = DistributedDataParallel(model, broadcast_buffers=False)
        for step, size in enumerate(sizes):
            if name == "unequal" and step == 5:  # a restart in the middle, from the rank's own state
                state, loss = loss.state_dict(), create(options)
                loss.load_state_dict(state)
            x, y = data(step, size)
            share = slice(size * rank // WORLD, size * (rank + 1) // WORLD)
            parallel.zero_grad()
            result = loss(said(parallel(x[share])), y[share], step_size=size, world_size=WORLD)
            result.total.backward()
            out[f"{name}/{step}/gradient"] = model.flat_gradient().numpy()
            out[f"{name}/{step}/total"] = result.total.item()
            for part, value in result.parts.items():
                out[f"{name}/{step}/{part}"] = value.item()

    # What the function itself does, with no rows on one rank, and on both.
    rows = torch.full((3 * rank, 2), 1.0 + rank, requires_grad=True)
    gathered = gather_with_gradient(rows, [0, 3], rank)
    (gathered.sum() * 5).backward()
    out["rows"], out["rows_gradient"] = gathered.detach().numpy(), rows.grad.numpy()
    out["nothing"] = gather_with_gradient(torch.zeros(0, 2), [0, 0], rank).numpy()

    # Errors come before the collective, so that no rank waits for the other.
    texts = []
    model = Model()
    x, y = data(0, 6)
    loss = create({})
    for local, step_size, world in ((1, 6, WORLD), (2, 6, 3)):
        try:
            loss(said(model(x[:local])), y[:local], step_size=step_size, world_size=world)
        except losses.LossError as error:
            texts.append(str(error))
    loss(said(model(x[:3])), y[:3], step_size=6, world_size=WORLD)
    loss.ring.push(loss.ring.recent(1))
    try:
        loss(said(model(x[:3])), y[:3], step_size=6, world_size=WORLD)
    except losses.LossError as error:
        texts.append(str(error))
    out["texts"] = np.array(texts)
    # The state of a run with another number of ranks: the buffers start empty.
    loss = create({"buffer_weight": "fill"})
    loss.ring.push(torch.ones(3, 5, dtype=torch.float64))
    loss.set_extra_state({"step": 7, "seen": [3, 3, 3]})
    loss(said(model(x[:3])), y[:3], step_size=6, world_size=WORLD)
    out["restarted"] = np.array([loss.ring.seen, loss.step, *loss.seen])
    np.savez(os.path.join(directory, f"rank{rank}.npz"), **out)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    directory: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(worker, args=(str(directory),), nprocs=WORLD, join=True)
    return [dict(np.load(directory / f"rank{rank}.npz")) for rank in range(WORLD)]


def slow_steps(sizes: list[int], options: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Value and gradient of every step, from one list of samples per rank and the formula."""
    model = Model()
    history: list[list[Tensor]] = [[] for _ in range(WORLD)]
    results = []
    for step, size in enumerate(sizes):
        x, y = data(step, size)
        values, z = model(x)
        rows = list(torch.cat([values, y, z], 1))
        pools, weights = [], []
        for rank in range(WORLD):
            mine = rows[size * rank // WORLD : size * (rank + 1) // WORLD]
            room = max(CAPACITY - len(mine), 0)
            pools.append(mine + (history[rank][-room:] if room else []))
            weights.append(len(mine) / size)
            history[rank] += [row.detach() for row in mine]
        if options.get("gather") != "none" and step % options.get("gather_interval", 1) == 0:
            fill = [sum(min(len(pool), CAPACITY) for pool in pools) / (WORLD * CAPACITY)]
            pools, weights = [[row for pool in pools for row in pool]], [1.0]
        else:
            fill = [min(len(pool) / CAPACITY, 1.0) for pool in pools]
        total = 0.5 * (values - y).square().mean()
        for pool, weight, full in zip(pools, weights, fill, strict=True):
            counts = weight * (full if options.get("buffer_weight") == "fill" else float(full == 1.0))
            if counts:
                w, c = slow_pool_terms(pool, 1, 0.8)
                total = total + counts * (0.3 * w + 0.2 * c)
        model.zero_grad()
        total.backward()
        results.append((total.detach(), model.flat_gradient()))
    return results


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_values_equal_the_formula(ranks: list[dict[str, Any]], name: str) -> None:
    sizes, options = CASES[name]
    for step, (total, gradient) in enumerate(slow_steps(sizes, options)):
        mean = np.mean([rank[f"{name}/{step}/total"] for rank in ranks])
        assert mean == pytest.approx(total.item(), rel=1e-9), step
        for rank in ranks:
            np.testing.assert_allclose(rank[f"{name}/{step}/gradient"], gradient, rtol=1e-8, atol=1e-11)


def test_gradients_equal_one_process_with_the_whole_batch(ranks: list[dict[str, Any]]) -> None:
    model, loss = Model(), create({}, WORLD * CAPACITY)
    counted = 0
    for step, size in enumerate(EQUAL):
        x, y = data(step, size)
        model.zero_grad()
        result = loss(said(model(x)), y, step_size=size)
        result.total.backward()
        counted += result.parts["wasserstein"].item() > 0
        for rank in ranks:
            np.testing.assert_allclose(rank[f"equal/{step}/gradient"], model.flat_gradient(), rtol=1e-10, atol=1e-13)
        for part, value in result.parts.items():
            mean = np.mean([rank[f"equal/{step}/{part}"] for rank in ranks])
            assert mean == pytest.approx(value.item(), rel=1e-10)
    assert counted == 4  # full from the second step on


def test_ranks_agree_bit_for_bit(ranks: list[dict[str, Any]]) -> None:
    for key, value in ranks[0].items():
        if key.endswith(("/gradient", "unequal/9/wasserstein")):
            np.testing.assert_array_equal(value, ranks[1][key])


def test_gathered_rows(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        np.testing.assert_array_equal(rank["rows"], np.full((3, 2), 2.0))
        np.testing.assert_array_equal(rank["rows_gradient"], np.full((3 * number, 2), 10.0))
        assert rank["nothing"].shape == (0, 2)


def test_errors(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        share, group, other = rank["texts"].tolist()
        assert share.startswith(f"rank {number} holds 1 of 6 samples, but gathering expects 3 (the loader's share)")
        assert "over 3 ranks needs a process group of that size, but it has 2" in group
        assert other.startswith(f"the ring buffer of rank {number} has seen 4 samples instead of 3: it holds another")
        assert rank["restarted"].tolist() == [3, 8, 3, 3]


@pytest.mark.parametrize(("experiments", "world"), [(10, 3), (7, 4), (1, 2), (12, 3), (23, 2)])
def test_shares_are_those_of_the_loader(experiments: int, world: int) -> None:
    orders = [EpochOrder(experiments, 2, rank=rank, world_size=world) for rank in range(world)]
    given = [order.share(0) for order in orders]
    steps = experiments // (2 * world)
    assert all(len(full) == steps * shares(2 * world, world)[0] for full, _, _ in given)
    assert [len(tail) for _, tail, _ in given] == shares(given[0][2], world)
