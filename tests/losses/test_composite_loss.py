"""The composite loss in one process, against a plain list of all samples seen."""

from __future__ import annotations

import copy
import io
import json

import pytest
import torch
from loss_cases import case, prediction, slow_pool_terms
from torch import Tensor

from knockgraph import losses
from knockgraph.losses import LossError
from knockgraph.losses.composite import CompositeLoss
from knockgraph.models.model import Prediction

WEIGHTS = {"mse_weight": 0.5, "wasserstein_weight": 0.3, "contrastive_weight": 0.2}


def batch(samples: int, seed: int, outputs: int = 1, channels: int = 3) -> tuple[Prediction, Tensor, Tensor]:
    """A prediction and its target, and the leaf ``[samples, outputs + channels]`` that it depends on."""
    leaf, _ = case(samples, outputs + channels, seed)
    return prediction(leaf[:, :outputs], leaf[:, outputs:]), case(samples, outputs, seed)[1], leaf


def run(loss: CompositeLoss, sizes: list[int], start: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Totals and gradients of steps with batches of these sizes."""
    results = []
    for step, size in enumerate(sizes, start):
        said, target, leaf = batch(size, step)
        total = loss(said, target, step_size=max(size, 1)).total
        total.backward()
        results.append((total.detach(), leaf.grad))
    return results


def test_reference_weights() -> None:
    assert losses.create("composite").weights == {"mse": 1.0, "wasserstein": 0.1, "contrastive": 0.0}
    assert losses.create("composite").ring.capacity == 216


@pytest.mark.parametrize("buffer_weight", ["full", "fill"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_equals_reference_before_when_and_after_the_buffer_is_full(buffer_weight: str, outputs: int) -> None:
    capacity, seen = 6, []
    loss = losses.create("composite", **WEIGHTS, buffer_size=capacity, buffer_weight=buffer_weight, temperature=0.7)
    for step, size in enumerate([2, 3, 1, 2, 0, 5, 9, 1, 6, 4]):
        said, target, leaf = batch(size, step, outputs)
        result = loss(said, target, step_size=max(size, 1))
        result.total.backward()

        again = leaf.detach().clone().requires_grad_()
        rows = [torch.cat([again[i, :outputs], target[i], again[i, outputs:]]) for i in range(size)]
        pool = rows + (seen[-(capacity - size) :] if size < capacity else [])
        fill = min(len(pool) / capacity, 1.0)
        weight = fill if buffer_weight == "fill" or fill == 1.0 else 0.0
        if size == 0:  # this rank has no share of the step
            weight = 0.0
        mse = (again[:, :outputs] - target).square().mean() if size else again.sum()
        expected = 0.5 * mse
        terms = {"mse": mse, "wasserstein": torch.zeros(()), "contrastive": torch.zeros(())}
        if weight:
            w, c = slow_pool_terms(pool, outputs, 0.7)
            expected = expected + weight * (0.3 * w + 0.2 * c)
            terms |= {"wasserstein": weight * w, "contrastive": weight * c}
        expected.backward()
        assert result.total.item() == pytest.approx(expected.item(), rel=1e-10)
        assert list(result.parts) == ["mse", "wasserstein", "contrastive"]
        for name, term in terms.items():
            assert result.parts[name].item() == pytest.approx(term.item(), rel=1e-10), name
            assert not result.parts[name].requires_grad
        torch.testing.assert_close(leaf.grad, again.grad, rtol=1e-9, atol=1e-12)
        seen += [row.detach() for row in rows]


def test_gradient() -> None:
    loss = losses.create("composite", **WEIGHTS, buffer_size=6)
    run(loss, [4, 4])
    _, target, leaf = batch(3, 9)

    def total(x: Tensor) -> Tensor:  # every evaluation of gradcheck is a step, so each has its own copy
        return copy.deepcopy(loss)(prediction(x[:, :1], x[:, 1:]), target, step_size=4, world_size=2).total

    assert torch.autograd.gradcheck(total, leaf)


@pytest.mark.parametrize("before", [0, 1, 3, 5])
def test_resume_is_bit_for_bit(before: int) -> None:
    sizes = [3, 2, 4, 1, 3, 7, 2]
    loss = losses.create("composite", **WEIGHTS, buffer_size=5)
    whole = run(copy.deepcopy(loss), sizes)
    run(loss, sizes[:before])
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    resumed = losses.create("composite", **WEIGHTS, buffer_size=5)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for (total, gradient), (expected, its) in zip(run(resumed, sizes[before:], before), whole[before:], strict=True):
        assert torch.equal(total, expected)
        assert torch.equal(gradient, its)


def test_state_is_tensors_and_plain_numbers() -> None:
    loss = losses.create("composite", **WEIGHTS, buffer_size=5)
    run(loss, [3, 3])
    state = loss.state_dict()
    assert set(state) == {"_extra_state", "ring.rows", "ring._extra_state"}
    assert json.loads(json.dumps(state["_extra_state"])) == {"step": 2, "seen": []}
    assert json.loads(json.dumps(state["ring._extra_state"])) == {"seen": 6}
    assert state["ring.rows"].shape == (5, 5)


def test_evaluation_is_the_squared_error_and_leaves_the_buffer_alone() -> None:
    loss = losses.create("composite", **WEIGHTS, buffer_size=4)
    run(loss, [3, 3])
    state = copy.deepcopy(loss.state_dict())
    said, target, _ = batch(8, 5)
    loss.eval()
    result = loss(said, target, step_size=8)
    assert list(result.parts) == ["mse"]
    assert result.total.item() == pytest.approx(0.5 * (said.values - target).square().mean().item())
    assert loss.state_dict()["ring._extra_state"] == state["ring._extra_state"]
    assert torch.equal(loss.state_dict()["ring.rows"], state["ring.rows"])
    assert loss.step == 2


def test_terms_without_weight_are_not_computed() -> None:
    said, target, _ = batch(4, 0)
    result = losses.create("composite", buffer_size=2)(prediction(said.values), target, step_size=4)
    assert list(result.parts) == ["mse", "wasserstein"]
    none = losses.create("composite", wasserstein_weight=0.0)
    assert list(none(said, target, step_size=4).parts) == ["mse"]
    assert none.ring.seen == 0


def test_ranks_without_gathering_count_by_their_share() -> None:
    said, target, _ = batch(3, 0)
    options = {"mse_weight": 0.0, "wasserstein_weight": 1.0, "buffer_size": 2}
    alone = losses.create("composite", **options)(said, target, step_size=3).total
    shared = losses.create("composite", **options)(said, target, step_size=4, world_size=2).total
    assert shared.item() == pytest.approx(alone.item() * 2 * 3 / 4, rel=1e-12)


def test_every_parameter_has_a_gradient_before_the_buffer_is_full() -> None:
    said, target, leaf = batch(3, 0)
    loss = losses.create("composite", mse_weight=0.0, contrastive_weight=1.0)
    loss(said, target, step_size=3).total.backward()
    assert leaf.grad.count_nonzero() == 0


def test_steps_do_not_hold_on_to_each_other() -> None:
    # The buffer changes in place after each step; the backward pass of an earlier step must not notice.
    loss = losses.create("composite", **WEIGHTS, buffer_size=4)
    steps = [batch(3, seed) for seed in range(3)]
    totals = [loss(said, target, step_size=3).total for said, target, _ in steps]
    for total in reversed(totals):
        total.backward()
    again = run(losses.create("composite", **WEIGHTS, buffer_size=4), [3, 3, 3])
    for (_, _, leaf), (_, gradient) in zip(steps, again, strict=True):
        assert torch.equal(leaf.grad, gradient)


def test_temperature_follows_its_schedule() -> None:
    said, target, _ = batch(6, 0)
    options = {"mse_weight": 0.0, "wasserstein_weight": 0.0, "contrastive_weight": 1.0, "buffer_size": 2}

    def total(epoch: int, **more: object) -> float:
        return losses.create("composite", **options, **more)(said, target, step_size=6, epoch=epoch).total.item()

    schedule = {
        "temperature": 2.0,
        "final_temperature": 1.0,
        "temperature_schedule": "linear",
        "temperature_epochs": 4,
    }
    for epoch, temperature in ((0, 2.0), (2, 1.5), (4, 1.0), (8, 1.0)):
        assert total(epoch, **schedule) == pytest.approx(total(0, temperature=temperature), rel=1e-12)


def test_moves_between_dtypes() -> None:
    loss = losses.create("composite", buffer_size=4)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        values, target = case(3, dtype=dtype)
        assert loss(prediction(values), target, step_size=3).total.isfinite()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mse_weight": -1.0}, "mse_weight is -1.0, but it must be at least 0"),
        ({"wasserstein_weight": float("nan")}, "wasserstein_weight is nan"),
        ({"buffer_size": 0}, "buffer_size is 0, but it must be at least 1"),
        ({"buffer_weight": "half"}, "buffer_weight is 'half', but it must be 'full' or 'fill'"),
        ({"gather": "all"}, "gather is 'all', but it must be 'none' or 'differentiable'"),
        ({"gather_interval": 0}, "gather_interval is 0, but it must be at least 1"),
        ({"temperature_schedule": "linear"}, "a linear temperature schedule needs a final_temperature"),
        ({"temperature": 0.0}, "a temperature of 0.0 is not possible"),
        ({"lambda": 1.0}, "the loss composite has no option 'lambda'; it has mse_weight, wasserstein_weight"),
    ],
)
def test_bad_options(options: dict[str, object], text: str) -> None:
    with pytest.raises(LossError, match=text):
        losses.create("composite", **options)


def test_bad_predictions() -> None:
    said, target, _ = batch(3, 0)
    loss = losses.create("composite", **WEIGHTS)
    with pytest.raises(LossError, match="the contrastive term needs a model that gives an embedding"):
        loss(prediction(said.values), target, step_size=3)
    with pytest.raises(LossError, match="there are 2 embeddings for 3 samples"):
        loss(prediction(said.values, said.embedding[:2]), target, step_size=3)
    gathering = losses.create("composite", gather="differentiable")
    with pytest.raises(LossError, match="needs a process group of that size, but it has 1; start the ranks with"):
        gathering(said, target, step_size=6, world_size=2)
    assert gathering(said, target, step_size=3).total.isfinite()  # one process has nothing to gather


@pytest.mark.gpu
@pytest.mark.parametrize("name", losses.available())
def test_no_host_synchronisation(name: str) -> None:
    options = {**WEIGHTS, "buffer_size": 40} if name == "composite" else {}
    on_cpu, on_gpu = losses.create(name, **options), losses.create(name, **options).cuda()
    torch.ones(1, device="cuda", requires_grad=True).square().sum().backward()  # the first backward pass sets CUDA up
    for size in (16, 16, 16, 7, 0, 16, 50, 16):
        values, target = case(size, 4, dtype=torch.float32)
        inputs = [values.detach(), torch.tensor(0.5), (target > 0).float()[:, :1]]
        results = []
        for loss, device in ((on_cpu, "cpu"), (on_gpu, "cuda")):
            leaf, reconstruction, label = (t.detach().to(device) for t in inputs)
            leaf.requires_grad_()
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if device == "cuda" else "default")
            try:
                said = prediction(leaf[:, :1], leaf[:, 1:], reconstruction)
                result = loss(said, label, step_size=max(size, 1), epoch=3)
                result.total.backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            results.append((result.total.cpu(), leaf.grad.cpu()))
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)
