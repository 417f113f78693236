"""The mean of gradients over two real processes: layouts, types, parameters without a gradient, other models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from training_runs import _PROCESSES

from knockgraph.errors import TrainingStoppedError
from knockgraph.train.exchange import GradientExchange, any_rank, check_alike, mean_over_ranks


class Mixed(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.plain = nn.Parameter(torch.zeros(5, width))
        self.turned = nn.Parameter(torch.zeros(4, 7).T)  # not contiguous: its gradient has its strides
        self.exact = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.of_one_rank = nn.Parameter(torch.zeros(6))
        self.unused = nn.Parameter(torch.zeros(1))
        self.not_trained_now = nn.Parameter(torch.zeros(1))


def worker(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    model = Mixed()
    exchange = GradientExchange(model.parameters())
    model.not_trained_now.requires_grad_(False)
    exchange()
    out: dict[str, Any] = {"before": [p.grad for p in model.parameters()], "nbytes": exchange.nbytes}
    for step in range(2):  # the buffer is used again: nothing may be left of the step before
        model.zero_grad(set_to_none=True)
        scale = float(rank + 1) * 10**step
        total = scale * (model.plain.sum() + model.turned.sum() + model.exact.sum())
        if rank == step:
            total = total + 8 * model.of_one_rank.sum()
        total.backward()
        mine = {name: p.grad is not None for name, p in model.named_parameters()}
        exchange()
        out[f"{step}"] = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
        out["given"] = mine
        out["strides"] = [(p.stride(), p.grad.stride()) for p in model.parameters() if p.requires_grad]
        assert model.not_trained_now.grad is None
    torch.optim.SGD(model.parameters(), 1.0).step()
    out["after"] = model.plain.detach().clone()
    out["values"] = mean_over_ranks({"a": torch.tensor(1.0 + rank), "b": torch.tensor(4.0 * rank)})
    out["any"] = [any_rank(rank == wanted, torch.device("cpu")) for wanted in (0, 1, 2)]
    out["alike"] = []
    for other in (Mixed(), Mixed(3 + rank), nn.ModuleList([Mixed()] * 1 + [nn.Linear(2, 2)] * rank)):
        try:
            check_alike(other)
            out["alike"].append(None)
        except TrainingStoppedError as error:
            out["alike"].append(str(error))
    torch.save(out, f"{directory}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes(tmp_path: Path) -> None:
    processes = [_PROCESSES.Process(target=worker, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    assert first["before"] == [None] * 6  # without a backward pass there is nothing to tell
    assert first["nbytes"] == 5 * 64 * 4 + 64 * 8  # each starts at a multiple of 64 elements
    assert first["given"] != second["given"]
    for step in range(2):
        expected = {"plain": 1.5 * 10**step, "turned": 1.5 * 10**step, "exact": 1.5 * 10**step, "of_one_rank": 4.0}
        for name, gradient in first[f"{step}"].items():
            assert torch.equal(gradient, torch.full_like(gradient, expected.get(name, 0.0))), name
            assert torch.equal(gradient, second[f"{step}"][name])
    assert all(a == b for a, b in first["strides"])
    assert torch.equal(first["after"], torch.full((5, 3), -15.0))
    assert first["values"] == second["values"] == {"a": torch.tensor(1.5), "b": torch.tensor(2.0)}
    assert first["any"] == second["any"] == [True, True, False]
    assert first["alike"] == second["alike"]
    todo = "start all processes with the same config and the same versions"
    assert first["alike"] == [
        None,
        "process 1 has other parameters than process 0 (plain [5, 4] torch.float32 instead of plain [5, 3] "
        f"torch.float32); {todo}",
        f"process 1 has other parameters than process 0 (8 of them instead of 6); {todo}",
    ]


def test_one_process_asks_nobody() -> None:
    value = torch.tensor(2.0)
    assert mean_over_ranks({"a": value})["a"] is value
    assert any_rank(True, torch.device("cpu"))
    assert not any_rank(False, torch.device("cpu"))
