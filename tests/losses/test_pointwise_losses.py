"""mse, log-cosh, bce, and what all losses have in common."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from loss_cases import case, prediction
from scipy.special import expit
from torch import Tensor, nn

from knockgraph import losses
from knockgraph.errors import KnockgraphError
from knockgraph.losses import LossError
from knockgraph.losses.pointwise import log_cosh

POINTWISE = ["mse", "log-cosh", "bce"]


def reference(name: str, values: Tensor, target: Tensor) -> float:
    p, y = values.detach().double().numpy(), target.double().numpy()
    if name == "mse":
        return float(np.mean((p - y) ** 2))
    if name == "log-cosh":
        return float(np.mean([float(mpmath.log(mpmath.cosh(mpmath.mpf(e)))) for e in (p - y).ravel()]))
    return float(np.mean(-y * np.log(expit(p)) - (1 - y) * np.log(expit(-p))))


def labelled(name: str, samples: int, outputs: int = 1) -> tuple[Tensor, Tensor]:
    values, target = case(samples, outputs)
    return values, (target > 0).double() if name == "bce" else target


def test_names() -> None:
    assert losses.available() == ["mse", "log-cosh", "gaussian", "bce", "dango", "composite"]
    for name in losses.available():
        assert isinstance(losses.create(name), losses.Loss)
        assert repr(losses.create(name))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", POINTWISE)
def test_equals_reference(name: str, outputs: int) -> None:
    values, target = labelled(name, 20, outputs)
    before = values.detach().clone(), target.clone()
    result = losses.create(name)(prediction(values), target, step_size=20)
    assert result.total.item() == pytest.approx(reference(name, values, target), rel=1e-12)
    (part,) = result.parts.values()
    assert part.item() == result.total.item()
    assert not part.requires_grad
    assert torch.equal(values, before[0])
    assert torch.equal(target, before[1])


@pytest.mark.parametrize("name", POINTWISE)
def test_gradient(name: str) -> None:
    values, target = labelled(name, 6, 2)
    loss = losses.create(name)
    assert torch.autograd.gradcheck(lambda v: loss(prediction(v), target, step_size=9, world_size=2).total, values)


def test_log_cosh_of_large_and_small_errors() -> None:
    error = torch.tensor([-1e30, -300.0, -1e-3, 0.0, 1e-3, 90.0, 1e30], requires_grad=True)
    value = log_cosh(error)
    expected = [float(mpmath.log(mpmath.cosh(mpmath.mpf(e)))) if abs(e) < 1e4 else abs(e) for e in error.tolist()]
    np.testing.assert_allclose(value.detach().numpy(), np.array(expected, dtype=np.float32), rtol=1e-6, atol=2e-7)
    value.sum().backward()
    np.testing.assert_allclose(error.grad.numpy(), np.tanh(error.detach().numpy()), rtol=1e-4, atol=1e-7)


def test_positive_weight() -> None:
    values, target = labelled("bce", 30, 2)
    p, y = values.detach().numpy(), target.numpy()
    for weight in (5.0, [5.0, 0.5]):
        expected = np.mean(-y * weight * np.log(expit(p)) - (1 - y) * np.log(expit(-p)))
        total = losses.create("bce", positive_weight=weight)(prediction(values), target, step_size=30).total
        assert total.item() == pytest.approx(expected, rel=1e-12)
    assert losses.create("bce", positive_weight=5.0).state_dict() == {}


def test_logits_of_any_size() -> None:
    values = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    total = losses.create("bce")(prediction(values), torch.tensor([[1.0], [0.0]]), step_size=2).total
    total.backward()
    assert total.item() == 0.0
    assert values.grad.isfinite().all()


class Small(nn.Module):
    """A model of a few parameters, with everything that a loss may ask for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(5, 4, dtype=torch.float64)
        self.head = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> losses.loss.Prediction:
        z = torch.tanh(self.hidden(x))
        return prediction(self.head(z), z, self.hidden.weight.square().sum())

    def gradients(self) -> list[Tensor]:
        return [p.grad.clone() for p in self.parameters()]


@pytest.mark.parametrize("name", losses.available())
@pytest.mark.parametrize("cut", [[0, 5, 10], [0, 3, 10], [0, 0, 1], [0, 2, 2, 7, 10]])
def test_mean_over_unequal_ranks_is_one_process(name: str, cut: list[int]) -> None:
    x, target = torch.randn(cut[-1], 5, dtype=torch.float64), torch.rand(cut[-1], 2, dtype=torch.float64).round()
    world = len(cut) - 1
    model = Small()
    whole = losses.create(name)(model(x), target, step_size=len(x), epoch=3)
    whole.total.backward()
    expected = model.gradients()

    totals, gradients, parts = [], [], []
    for start, end in itertools.pairwise(cut):
        model.zero_grad()
        rank = losses.create(name)(model(x[start:end]), target[start:end], step_size=len(x), world_size=world, epoch=3)
        rank.total.backward()
        totals.append(rank.total.item())
        gradients.append(model.gradients())
        parts.append(rank.parts)
    assert np.mean(totals) == pytest.approx(whole.total.item(), rel=1e-12)
    for mine, one in zip(zip(*gradients, strict=True), expected, strict=True):
        torch.testing.assert_close(torch.stack(mine).mean(0), one, rtol=1e-12, atol=1e-14)
    for key, value in whole.parts.items():
        assert np.mean([p[key].item() for p in parts]) == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize("name", ["mse", "log-cosh", "bce", "composite"])
def test_rank_without_samples(name: str) -> None:
    model = Small()
    options = {"contrastive_weight": 1.0, "buffer_size": 2} if name == "composite" else {}
    loss = losses.create(name, **options)
    x = torch.randn(2, 5, dtype=torch.float64)
    for rows in (x[:0], x, x[:0]):  # with an empty and with a full ring buffer
        model.zero_grad()
        result = loss(model(rows), torch.zeros(len(rows), 2, dtype=torch.float64), step_size=3, world_size=2)
        result.total.backward()
        if len(rows) == 0:
            assert result.total.item() == 0.0
            assert all(part.item() == 0.0 for part in result.parts.values())
            assert all(g.count_nonzero() == 0 for g in model.gradients())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", losses.available())
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    values, target = case(40, 2, dtype=dtype)
    target = (target > 0).to(dtype)
    z, reconstruction = torch.randn(40, 3).to(dtype), torch.tensor(0.3).to(dtype)
    options = {"contrastive_weight": 0.5, "buffer_size": 30} if name == "composite" else {}
    single = prediction(values.float(), z.float(), reconstruction.float())
    expected = losses.create(name, **options)(single, target.float(), step_size=40).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = losses.create(name, **options)(prediction(values, z, reconstruction), target, step_size=40)
    assert result.total.dtype == torch.float32
    assert torch.equal(result.total, expected)
    result.total.backward()
    assert values.grad.dtype == dtype


@pytest.mark.parametrize("name", losses.available())
def test_shapes_are_checked(name: str) -> None:
    loss = losses.create(name)
    with pytest.raises(LossError, match=r"shape \[4, 1\] and the target \[4\], but both need \[samples, outputs\]"):
        loss(prediction(torch.zeros(4, 1)), torch.zeros(4), step_size=4)
    with pytest.raises(LossError, match=r"shape \[4\] and the target \[4\]"):
        loss(prediction(torch.zeros(4)), torch.zeros(4), step_size=4)
    with pytest.raises(LossError, match="step_size is 3 over 2 ranks, but this rank alone holds 4 samples"):
        loss(prediction(torch.zeros(4, 1)), torch.zeros(4, 1), step_size=3, world_size=2)
    with pytest.raises(LossError, match="step_size is 0"):
        loss(prediction(torch.zeros(0, 1)), torch.zeros(0, 1), step_size=0)


def test_a_noise_of_each_output_is_learned() -> None:
    """At the best noise, the root mean square of the errors of an output, the gradient is 0; missing labels are out."""
    values, target = case(50, 3)
    target[:20, 1] = math.nan
    error = (values.detach() - target).nan_to_num(0.0)
    known = (~target.isnan()).sum(0)
    noise = (error.square().sum(0) / known).sqrt()
    loss = losses.create("gaussian", outputs=3).double()
    with torch.no_grad():
        loss.log_noise.copy_(noise.log())
    share = float(known.sum()) / target.numel()
    result = loss(prediction(values), target, step_size=50, known=share)
    result.total.backward()
    assert loss.log_noise.grad.abs().max() < 1e-14
    expected = sum(
        -torch.distributions.Normal(values[:, o], noise[o])
        .log_prob(target[:, o].nan_to_num(0.0))[~target[:, o].isnan()]
        .sum()
        for o in range(3)
    )
    constant = 0.5 * math.log(2 * math.pi)
    assert result.total.item() == pytest.approx(expected.item() / int(known.sum()) - constant, rel=1e-12)
    assert result.parts["noise"].item() == pytest.approx(noise.mean().item(), rel=1e-12)
    squares = error.square().sum().item() / int(known.sum())
    assert result.parts["squared_error"].item() == pytest.approx(squares, rel=1e-12)


def test_noise_needs_as_many_outputs() -> None:
    with pytest.raises(LossError, match="a noise for each of 2 outputs, but there are 3; give it outputs=3"):
        losses.create("gaussian", outputs=2)(prediction(torch.zeros(4, 3)), torch.zeros(4, 3), step_size=4)
    with pytest.raises(LossError, match="outputs is 0, but it must be at least 1"):
        losses.create("gaussian", outputs=0)


def test_bad_options() -> None:
    with pytest.raises(
        KnockgraphError, match="there is no loss 'huber'; use one of mse, log-cosh, gaussian, bce, dango"
    ):
        losses.create("huber")
    with pytest.raises(LossError, match="the loss mse has no option 'weight'; it has none"):
        losses.create("mse", weight=1.0)
    with pytest.raises(LossError, match="the loss dango has no option 'epoch'; it has schedule, transition_epoch"):
        losses.create("dango", epoch=1)
    for weight in (0.0, -1.0, float("nan")):
        with pytest.raises(LossError, match="must be one positive number"):
            losses.create("bce", positive_weight=weight)
    with pytest.raises(LossError, match=r"positive_weight is \[\[1.0\]\], but a number or a list of numbers"):
        losses.create("bce", positive_weight=[[1.0]])
    with pytest.raises(LossError, match="there are 3 positive weights for 1 outputs"):
        losses.create("bce", positive_weight=[1.0, 2.0, 3.0])(
            prediction(torch.zeros(2, 1)), torch.zeros(2, 1), step_size=2
        )
