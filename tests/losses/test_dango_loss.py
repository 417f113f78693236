"""DANGO's loss and its three schedules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from loss_cases import case, prediction

from knockgraph import losses
from knockgraph.losses import LossError
from knockgraph.losses.schedules import TemperatureSchedule, weight_schedule

WEIGHTS = {
    "PreThenPost": {0: (1, 0), 3: (1, 0), 4: (0, 1), 5: (0, 1), 100: (0, 1)},
    "LinearUntilUniform": {0: (1, 0), 1: (0.875, 0.125), 3: (0.625, 0.375), 4: (0.5, 0.5), 5: (0.5, 0.5)},
    "LinearUntilFlipped": {0: (1, 0), 1: (0.75, 0.25), 3: (0.25, 0.75), 4: (0, 1), 5: (0, 1), 100: (0, 1)},
}
CASES = [(name, epoch, weights) for name, table in WEIGHTS.items() for epoch, weights in table.items()]


@pytest.mark.parametrize(("name", "epoch", "weights"), CASES)
def test_loss_at_and_around_the_transition(name: str, epoch: int, weights: tuple[float, float]) -> None:
    values, target = case(7)
    parameter = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    loss = losses.create("dango", schedule=name, transition_epoch=4)
    result = loss(prediction(values, reconstruction=parameter**2), target, step_size=7, epoch=epoch)
    interaction = np.mean(np.log(np.cosh((values.detach() - target).numpy())))
    assert result.parts["reconstruction"].item() == pytest.approx(0.49, rel=1e-12)
    assert result.parts["interaction"].item() == pytest.approx(interaction, rel=1e-12)
    assert result.total.item() == pytest.approx(weights[0] * 0.49 + weights[1] * interaction, rel=1e-12)
    # A weight of 0 multiplies: the gradient is there, and 0.
    result.total.backward()
    assert parameter.grad.item() == pytest.approx(weights[0] * 1.4, rel=1e-12)
    expected = weights[1] * np.tanh((values.detach() - target).numpy()) / 7
    np.testing.assert_allclose(values.grad.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", WEIGHTS)
def test_transition_at_epoch_0_starts_with_the_final_weights(name: str) -> None:
    assert weight_schedule(name, 0).weights(0) == weight_schedule(name, 4).weights(4)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_sum_to_1(name: str) -> None:
    assert all(sum(weight_schedule(name, 7).weights(epoch)) == 1.0 for epoch in range(20))


def test_reconstruction_is_whole_on_every_rank() -> None:
    loss = losses.create("dango", schedule="PreThenPost", transition_epoch=1)
    empty = prediction(torch.zeros(0, 1), reconstruction=torch.tensor(2.0))
    result = loss(empty, torch.zeros(0, 1), step_size=5, world_size=2)
    assert result.total.item() == 2.0
    assert result.parts["interaction"].item() == 0.0


def test_gradient() -> None:
    values, target = case(5)
    weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    loss = losses.create("dango")

    def total(v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return loss(prediction(v, reconstruction=w**2), target, step_size=5, epoch=4).total

    assert torch.autograd.gradcheck(total, (values, weight))


def test_errors() -> None:
    values, target = case(3)
    with pytest.raises(LossError, match="gives no 'reconstruction'; use the dango model"):
        losses.create("dango")(prediction(values), target, step_size=3)
    with pytest.raises(LossError, match="no schedule 'Linear'; use one of PreThenPost, LinearUntilUniform, Linear"):
        losses.create("dango", schedule="Linear")
    with pytest.raises(LossError, match="transition_epoch is -1, but it must be at least 0"):
        losses.create("dango", transition_epoch=-1)


@pytest.mark.parametrize(
    ("kind", "middle", "end"),
    [("constant", 2.0, 2.0), ("linear", 1.25, 0.5), ("cosine", 1.25, 0.5), ("exponential", 1.0, 0.5)],
)
def test_temperature_schedule(kind: str, middle: float, end: float) -> None:
    temperature = TemperatureSchedule(2.0, 0.5, 8, kind)
    assert temperature(0) == 2.0
    assert temperature(4) == pytest.approx(middle)
    assert temperature(8) == temperature(9) == pytest.approx(end)
    if kind != "constant":
        assert all(temperature(e) > temperature(e + 1) for e in range(8))
        assert TemperatureSchedule(2.0, 0.5, 0, kind)(0) == pytest.approx(0.5)
    if kind == "cosine":
        assert temperature(2) == pytest.approx(2.0 - 1.5 * (1 - np.cos(np.pi / 4)) / 2)


def test_temperature_errors() -> None:
    with pytest.raises(LossError, match="no temperature schedule 'step'; use constant, linear, cosine or exponential"):
        TemperatureSchedule(1.0, 1.0, 1, "step")
    with pytest.raises(LossError, match="a temperature of 0 is not possible; it must be positive"):
        TemperatureSchedule(1.0, 0, 1, "linear")
    with pytest.raises(LossError, match="temperature_epochs is -1"):
        TemperatureSchedule(1.0, 1.0, -1, "linear")
