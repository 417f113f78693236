"""Labels that are missing one by one: every loss against a loop over those that are known, its gradient too."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import case, prediction, slow_rank_n_contrast, slow_wasserstein
from torch import Tensor

from knockgraph import losses
from knockgraph.losses import LossError
from knockgraph.losses.distributions import rank_n_contrast, wasserstein

LOSSES = ["mse", "log-cosh", "gaussian", "bce", "dango", "composite"]


def holes(target: Tensor, seed: int = 0, share: float = 0.4) -> Tensor:
    """Every sample keeps one label at least."""
    random = torch.Generator().manual_seed(seed)
    missing = torch.rand(target.shape, generator=random) < share
    missing[torch.arange(len(target)), torch.randint(target.shape[1], (len(target),), generator=random)] = False
    return target.masked_fill(missing, math.nan)


def one_label(name: str, p: Tensor, y: float) -> Tensor:
    if name in ("mse", "composite", "gaussian"):
        return (p - y) ** 2 * (0.5 if name == "gaussian" else 1.0)
    return torch.log1p(torch.exp(-p if y else p)) if name == "bce" else torch.log(torch.cosh(p - y))


def slow(name: str, values: Tensor, target: Tensor, labels: float) -> Tensor:
    total = values.new_zeros(())
    for i in range(len(values)):
        for o in range(values.shape[1]):
            if not math.isnan(target[i, o]):
                total = total + one_label(name, values[i, o], float(target[i, o]))
    return total / labels


def made(name: str) -> losses.Loss:
    options = {"composite": {"wasserstein_weight": 0.0}, "dango": {"schedule": "PreThenPost", "transition_epoch": 1}}
    return losses.create(name, **options.get(name, {}))


def told(name: str, values: Tensor) -> losses.Loss:
    return prediction(values, reconstruction=values.new_zeros(()) if name == "dango" else None)


def cases(name: str, samples: int = 12, outputs: int = 3) -> tuple[Tensor, Tensor]:
    values, target = case(samples, outputs)
    return values, holes((target > 0).double() if name == "bce" else target)


@pytest.mark.parametrize("name", LOSSES)
def test_against_a_loop_over_the_known_labels(name: str) -> None:
    values, target = cases(name)
    count = int((~target.isnan()).sum())
    found = made(name)(told(name, values), target, step_size=12, epoch=5, known=count / target.numel()).total
    expected = slow(name, values, target, count)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(loss, values, retain_graph=True)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-15)
    assert (gradients[0][target.isnan()] == 0).all()
    assert (gradients[0][~target.isnan()] != 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_ranks_and_accumulated_batches_add_up(name: str) -> None:
    """Shares with many labels and shares with few: every label counts the same."""
    values, target = cases(name)
    target[:4, 1:] = math.nan
    target[:4, 0] = 1.0
    known = 1 - float(target.isnan().double().mean())
    whole = made(name)(told(name, values), target, step_size=12, epoch=5, known=known).total
    ranks = [
        made(name)(told(name, values[part]), target[part], step_size=12, world_size=3, epoch=5, known=known).total
        for part in (slice(0, 4), slice(4, 11), slice(11, 12))
    ]
    torch.testing.assert_close(torch.stack(ranks).mean(), whole, rtol=1e-12, atol=0)
    batches = [
        made(name)(told(name, values[part]), target[part], step_size=6, epoch=5, known=known).total
        for part in (slice(0, 6), slice(6, 12))
    ]
    torch.testing.assert_close(torch.stack(batches).mean(), whole, rtol=1e-12, atol=0)


def test_a_missing_label_that_was_not_announced_is_not_passed_over() -> None:
    values, target = cases("mse")
    assert losses.create("mse")(prediction(values), target, step_size=12).total.isnan()
    with pytest.raises(LossError, match=r"known is 0\.0, but it must be the share of labels that are known"):
        losses.create("mse")(prediction(values), target, step_size=12, known=0.0)


def test_wasserstein_compares_each_output_on_its_own_samples() -> None:
    predicted, measured = case(14, 3)
    measured = holes(measured)
    found = wasserstein(predicted, measured, missing=True)
    columns = [(predicted[~y.isnan(), k : k + 1], y[~y.isnan()].unsqueeze(1)) for k, y in enumerate(measured.T)]
    expected = torch.stack([slow_wasserstein(p, y) for p, y in columns]).mean()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(loss, predicted, retain_graph=True)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)
    nothing = torch.cat([measured, torch.full((14, 1), math.nan)], 1)  # an output without a label in the pool
    more = torch.cat([predicted, torch.ones(14, 1)], 1)
    torch.testing.assert_close(wasserstein(more, nothing, missing=True), expected, rtol=1e-12, atol=0)


def slow_contrast(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """As it is written, over the pairs that have an output in common."""
    terms = []
    n = len(z)

    def apart(i: int, j: int) -> float:
        both = ~(y[i].isnan() | y[j].isnan())
        return float((y[i] - y[j])[both].abs().mean()) if bool(both.any()) else math.nan

    for i in range(n):
        others = [j for j in range(n) if j != i and not math.isnan(apart(i, j))]
        s = {j: -torch.linalg.vector_norm(z[i] - z[j]) / temperature for j in others}
        for j in others:
            further = torch.stack([s[k] for k in others if apart(i, k) >= apart(i, j) - 1e-12])
            terms.append(torch.logsumexp(further, 0) - s[j])
    return torch.stack(terms).mean()


def test_contrast_of_samples_with_an_output_in_common() -> None:
    z, y = case(9, 2)
    y = holes(y, share=0.7)
    y[0], y[1] = torch.tensor([1.0, math.nan]), torch.tensor([math.nan, 1.0])  # nothing in common
    found, expected = rank_n_contrast(z, y, 0.7, missing=True), slow_contrast(z, y, 0.7)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    gradients = [torch.autograd.grad(loss, z, retain_graph=True)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-12)


def test_with_all_labels_nothing_changes() -> None:
    z, y = case(9, 2)
    torch.testing.assert_close(wasserstein(z, y, missing=True), wasserstein(z, y), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        rank_n_contrast(z, y, 0.7, missing=True), slow_rank_n_contrast(z, y, 0.7), rtol=1e-9, atol=0
    )


def test_the_pool_remembers_which_labels_were_missing() -> None:
    """Two batches of six, the second with the first in its pool, are one of twelve."""
    z, target = case(12, 2)
    target = holes(target)
    options = {"mse_weight": 0.0, "wasserstein_weight": 1.0, "contrastive_weight": 1.0, "buffer_size": 12}
    known = 1 - float(target.isnan().double().mean())
    together = losses.create("composite", **options)(prediction(z, z), target, step_size=12, known=known).total
    loss = losses.create("composite", **options)
    for part in (slice(0, 6), slice(6, 12)):
        found = loss(prediction(z[part], z[part]), target[part], step_size=6, known=known).total
    torch.testing.assert_close(found, together, rtol=1e-9, atol=0)
