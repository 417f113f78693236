import json

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from screen_cases import NAN, examples

from knockgraph import LabelError, LabelTransform
from knockgraph.screen.labels import quantile

KINDS = ("standard", "min-max", "robust")
INF = float("inf")


@st.composite
def labels(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.tuples(st.integers(2, 20), st.integers(1, 3)))
    values = draw(st.lists(st.floats(-1e3, 1e3), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def reference(y: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    if kind == "standard":
        return np.mean(y, 0), np.std(y, 0)
    if kind == "min-max":
        return np.min(y, 0), np.ptp(y, 0)
    return np.median(y, 0), np.percentile(y, 75, axis=0) - np.percentile(y, 25, axis=0)


@pytest.mark.parametrize("kind", KINDS)
@given(y=labels())
@examples
def test_against_numpy(kind, y):
    center, scale = reference(y.numpy(), kind)
    assume((scale > 1e-3).all())
    fitted = LabelTransform.fit(y, kind)
    assert fitted.kind == kind
    np.testing.assert_allclose(fitted.center, center, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fitted.scale, scale, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fitted(y), (y.numpy() - center) / scale, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@given(y=labels(), data=st.data())
@examples
def test_the_inverse_is_exact(kind, y, data):
    new = torch.tensor(data.draw(st.lists(st.floats(-1e3, 1e3), min_size=1)), dtype=torch.float64)[:, None]
    assume((reference(y.numpy(), kind)[1] > 1e-3).all())
    fitted = LabelTransform.fit(y, kind)
    size = 1 + new.abs() + fitted.center.abs() + fitted.scale.abs()
    assert ((fitted.invert(fitted(new)) - new).abs() <= 1e-12 * size).all()
    there = (fitted(fitted.invert(new)) - new).abs()
    assert (there <= 1e-12 * (1 + new.abs() + fitted.center.abs() / fitted.scale)).all()


def test_known_values():
    y = torch.tensor([[0.0], [1.0], [2.0], [5.0]])
    standard, extent, robust = (LabelTransform.fit(y, kind) for kind in KINDS)
    assert (standard.center.item(), standard.scale.item()) == (2.0, pytest.approx(3.5**0.5))
    assert (extent.center.item(), extent.scale.item()) == (0.0, 5.0)
    assert (robust.center.item(), robust.scale.item()) == (1.5, 2.0)


def test_standardised_training_labels_have_mean_0_and_deviation_1():
    y = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 5
    z = LabelTransform.fit(y)(y)
    assert z.mean(0).abs().max() < 1e-12
    assert (z.std(0, correction=0) - 1).abs().max() < 1e-12
    z = LabelTransform.fit(y, "min-max")(y)
    assert z.amin(0).tolist() == [0.0, 0.0]
    assert z.amax(0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_training_rows_matter(kind):
    y = torch.randn(50, 1, generator=torch.Generator().manual_seed(1))
    train = torch.arange(0, 50, 2)
    fitted = LabelTransform.fit(y[train], kind)
    y[1::2] = 1e9  # validation and test rows
    again = LabelTransform.fit(y[train], kind)
    assert torch.equal(fitted.center, again.center)
    assert torch.equal(fitted.scale, again.scale)
    assert not torch.equal(fitted.scale, LabelTransform.fit(y, kind).scale)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_independent(kind):
    y = torch.randn(30, 3, generator=torch.Generator().manual_seed(2))
    together = LabelTransform.fit(y, kind)
    for column in range(3):
        alone = LabelTransform.fit(y[:, column : column + 1], kind)
        torch.testing.assert_close(together.center[column], alone.center[0], rtol=1e-14, atol=0)
        torch.testing.assert_close(together.scale[column], alone.scale[0], rtol=1e-14, atol=0)


def test_dtype_of_the_labels_is_kept_and_the_input_not_modified():
    y = torch.tensor([[1.0], [3.0]])
    fitted = LabelTransform.fit(y)
    assert fitted.center.dtype == torch.float64
    assert fitted(y).dtype == fitted.invert(y).dtype == torch.float32
    assert fitted(y.double()).dtype == torch.float64
    assert y.tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_classes_are_never_transformed(kind):
    y = torch.tensor([[0.0], [1.0], [1.0], [3.0]])
    fitted = LabelTransform.fit(y, kind, classes=True)
    assert fitted.kind == "none"
    assert torch.equal(fitted(y), y)
    assert torch.equal(fitted.invert(y), y)


def test_kind_none_is_the_identity_also_on_constant_labels():
    y = torch.tensor([[0.1, 7.0], [0.1, 8.0]])
    fitted = LabelTransform.fit(y, "none")
    assert torch.equal(fitted(y), y)
    assert torch.equal(fitted.invert(y), y)


@pytest.mark.parametrize("kind", KINDS)
@given(value=st.floats(-1e6, 1e6), n=st.integers(1, 40))
@examples
def test_constant_labels_are_refused_whatever_the_rounding(kind, value, n):
    with pytest.raises(LabelError, match=r"the training labels are constant .*nothing to learn"):
        LabelTransform.fit(torch.full((n, 1), value, dtype=torch.float64), kind)


def test_the_constant_column_is_the_one_shown():
    with pytest.raises(LabelError, match=r"the training labels are constant \(5\)"):
        LabelTransform.fit(torch.tensor([[1.0, 5.0], [2.0, 5.0]]))


def test_constant_after_rounding_is_found():
    # The mean of many 0.1 is not 0.1, so their standard deviation is not quite 0.
    for n in (3, 6, 10, 1000):
        with pytest.raises(LabelError, match=r"constant \(0\.1\)"):
            LabelTransform.fit(torch.full((n, 1), 0.1, dtype=torch.float64))


def test_robust_needs_a_spread():
    y = torch.tensor([[0.0]] * 9 + [[1.0]])
    with pytest.raises(LabelError, match="the robust scale of the training labels is 0; use the standard transform"):
        LabelTransform.fit(y, "robust")
    LabelTransform.fit(y, "standard")


@pytest.mark.parametrize(("value", "shown"), [(NAN, "nan"), (INF, "inf"), (-INF, "-inf")])
@pytest.mark.parametrize("options", [{"kind": "none"}, {"kind": "standard"}, {"classes": True}])
def test_labels_that_are_not_finite_are_refused(value, shown, options):
    y = torch.tensor([[1.0], [value], [value]])
    with pytest.raises(LabelError, match=rf"training label 1 is \[{shown}\]; drop experiments without a finite"):
        LabelTransform.fit(y, **options)
    if value != value:  # of two, one may be missing
        return
    with pytest.raises(LabelError, match=rf"training label 0 is \[1\.0, {shown}\]; drop experiments without a finite"):
        LabelTransform.fit(torch.tensor([[1.0, value], [2.0, 1.0]]), **options)


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_each_phenotype_is_fitted_on_the_labels_that_it_has(kind):
    random = torch.Generator().manual_seed(3)
    y = torch.randn(40, 3, generator=random, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.1]) + 2
    y[::3, 0] = y[1::3, 1] = NAN
    fitted = LabelTransform.fit(y, kind, names=("a", "b", "c"))
    assert fitted.known == pytest.approx(1 - 27 / 120)
    for column in range(3):
        alone = LabelTransform.fit(y[:, column : column + 1][~y[:, column].isnan()], kind)
        assert alone.known == 1.0
        torch.testing.assert_close(fitted.center[column], alone.center[0], rtol=1e-13, atol=0)
        torch.testing.assert_close(fitted.scale[column], alone.scale[0], rtol=1e-13, atol=0)
    assert torch.equal(fitted(y).isnan(), y.isnan())
    again = LabelTransform.from_state_dict(json.loads(json.dumps(fitted.state_dict())))
    assert (again.names, again.known) == (("a", "b", "c"), fitted.known)


def test_phenotypes_without_labels_or_constant_ones_are_named():
    y = torch.tensor([[1.0, NAN, 2.0], [2.0, NAN, 2.0], [3.0, NAN, NAN]])
    with pytest.raises(LabelError, match=r"no experiment of the training part has a label of b; leave it out"):
        LabelTransform.fit(y, names=("a", "b", "c"))
    with pytest.raises(LabelError, match=r"the training labels are constant \(2\) of c, so there is nothing to learn"):
        LabelTransform.fit(y[:, [0, 2]], names=("a", "c"))


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_no_labels(kind):
    with pytest.raises(LabelError, match="no training labels to fit on; check the split"):
        LabelTransform.fit(torch.empty(0, 1), kind)


def test_shape_is_checked():
    with pytest.raises(LabelError, match=r"labels have shape \[3\], but they need \[experiments, phenotypes\]"):
        LabelTransform.fit(torch.zeros(3))


def test_unknown_kind():
    with pytest.raises(LabelError, match="unknown label transform 'log': use none, standard, min-max or robust"):
        LabelTransform.fit(torch.tensor([[1.0], [2.0]]), "log")


@given(y=labels(), kind=st.sampled_from(["none", *KINDS]))
@examples
def test_state_through_json_is_exact(y, kind):
    assume(kind == "none" or (reference(y.numpy(), kind)[1] > 0).all())
    assume(kind == "none" or not (y == y[:1]).all(0).any())
    fitted = LabelTransform.fit(y, kind)
    again = LabelTransform.from_state_dict(json.loads(json.dumps(fitted.state_dict())))
    assert again.kind == fitted.kind
    assert torch.equal(again.center, fitted.center)
    assert torch.equal(again.scale, fitted.scale)
    assert again.center.dtype == torch.float64
    assert torch.equal(again(y), fitted(y))


@given(labels(), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 0.1]))
@examples
def test_quantile_against_numpy(y, q):
    np.testing.assert_allclose(quantile(y, q), np.quantile(y.numpy(), q, axis=0), rtol=1e-12, atol=1e-9)
