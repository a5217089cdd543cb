"""The estimators: against statsmodels, against their sums, and at empty neighbourhoods."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from marks import slow
from refusals import assert_refused
from statsmodels.nonparametric.kernel_regression import KernelReg

import attnkernel as ak
from attnkernel.models._empty import known_policy
from attnkernel.priors import HeldOut, MaskFunction

N, M = 23, 7


def sample(dim: int):
    rng = np.random.default_rng(dim)
    x = rng.uniform(-2, 2, size=(N, dim))
    return x, np.sin(2 * x).sum(1) + 0.1 * rng.normal(size=N), rng.uniform(-2, 2, size=(M, dim))


@eqx.filter_jit
def predict(model, x_new, x, y, **options):
    return model(x_new, x, y, **options)


# statsmodels warns of its own future random numbers, which nothing here draws
@pytest.mark.filterwarnings("ignore:After 0.17:FutureWarning")
@pytest.mark.parametrize(("dim", "lengthscale"), [(2, np.array([0.4, 0.9])), slow(1, 0.3)])
def test_agrees_with_statsmodels(x64, dim, lengthscale):
    x, y, x_new = sample(dim)
    bandwidths = np.broadcast_to(lengthscale, dim)
    peer = KernelReg(y, x, var_type="c" * dim, reg_type="lc", bw=bandwidths)
    ours = predict(ak.KernelRegression(ak.Gaussian(lengthscale)), x_new, x, y)
    np.testing.assert_allclose(ours, peer.fit(x_new)[0], rtol=1e-12)


def test_heads_are_combined_by_their_coefficients(x64):
    x, y, x_new = sample(1)
    lengthscales, coefficients = np.array([0.2, 0.5, 2.0]), np.array([1.5, -0.75, 0.1])

    @jax.jit
    def results(lengthscales):
        stack = ak.PerHead(eqx.filter_vmap(ak.Gaussian)(lengthscales))
        model = ak.MultiheadKernelRegression(stack, coefficients)
        return model.heads(x_new, x, y), model(x_new, x, y)

    heads, combined = results(lengthscales)
    away = (x_new - x[:, 0]) / lengthscales[:, None, None]
    each = np.exp(-0.5 * away**2)
    alone = each @ y / each.sum(axis=2)
    np.testing.assert_allclose(heads, alone, rtol=1e-12)
    np.testing.assert_allclose(combined, coefficients @ alone, rtol=1e-12)


def test_heads_start_at_equal_coefficients():
    @jax.jit
    def coefficients(lengthscales):
        heads = ak.PerHead(eqx.filter_vmap(ak.Gaussian)(lengthscales))
        return ak.MultiheadKernelRegression(heads).coefficients

    np.testing.assert_allclose(coefficients(np.ones(5)), np.full(5, 0.2), rtol=1e-6)


def test_invalid_heads_and_policies_are_refused():
    assert_refused(
        (lambda: ak.MultiheadKernelRegression(ak.Gaussian(1.0)), r"kernel.*PerHead.*Gaussian"),
        (
            lambda: ak.MultiheadKernelRegression(ak.PerHead([ak.Gaussian(1.0)] * 3), np.ones(2)),
            r"coefficients.*\(3,\).*\(2,\)",
        ),
        (lambda: known_policy("zero"), r"on_empty.*nearest.*'zero'"),
    )


EMPTY = HeldOut(np.ones(N, bool))
FAR = MaskFunction(lambda i, j: j < 3)


def test_without_visible_labels_a_prediction_is_nan():
    x, y, x_new = sample(1)

    @jax.jit
    def predictions(x, y):
        policies = ("nan", "nearest", "mean")
        models = [ak.KernelRegression(ak.Gaussian(0.3), on_empty=policy) for policy in policies]
        return [model(x_new, x, y, prior=EMPTY) for model in models]

    assert np.isnan(predictions(x, y)).all()


def out_of_reach(policy: str):
    """Predictions where the kernel, not the prior, gives no weight: distances overflow."""
    x = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    y = np.array([1.0, 2.0, 4.0, 9.0], np.float32)
    model = ak.KernelRegression(ak.Gaussian(1e-25), on_empty=policy)
    return predict(model, np.array([2.9], np.float32), x, y, prior=FAR)


@pytest.mark.parametrize(
    ("policy", "expected"), [("nan", np.nan), ("nearest", 4.0), ("mean", 7 / 3)]
)
def test_policies_where_the_kernel_gives_no_weight(policy, expected):
    np.testing.assert_allclose(out_of_reach(policy), [expected], rtol=1e-6)


def test_the_policy_raise_names_the_remedies():
    with pytest.raises(RuntimeError, match=r"lengthscale.*on_empty"):
        jax.block_until_ready(out_of_reach("raise"))


def unconditional_primitives(jaxpr):
    """The names of all operations outside the branches of `lax.cond`."""
    names = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        if equation.primitive.name != "cond":
            inner = map(unconditional_primitives, jaxprs_in_params(equation.params))
            names = names.union(*inner)
    return names


def test_nearest_labels_are_found_only_if_a_query_has_no_weight():
    x, y, x_new = sample(2)
    model = ak.KernelRegression(ak.Gaussian(0.3), on_empty="nearest")
    traced = jax.make_jaxpr(lambda x_new: model(x_new, x, y))(jnp.asarray(x_new))
    names = unconditional_primitives(traced.jaxpr)
    assert "cond" in names
    assert "argmin" not in names


@pytest.mark.parametrize("policy", ["mean", slow("nan"), slow("nearest")])
def test_without_rows_a_prediction_is_nan(policy):
    model = ak.KernelRegression(ak.Gaussian(1.0), on_empty=policy)
    assert np.isnan(np.asarray(model(np.zeros(2), np.zeros(0), np.zeros(0)))).all()


@pytest.mark.parametrize("order", [0, 1])
def test_values_that_are_not_finite_are_refused(order):
    x, y, x_new = sample(1)
    model = ak.KernelRegression(ak.Gaussian(0.5), order=order)
    y[3] = np.nan
    with pytest.raises(ValueError, match=r"y .*finite.* 1 of 23 .* row 3"):
        model(x_new, x, y)
    x_new[0] = np.inf
    with pytest.raises(ValueError, match=r"x_new .*finite"):
        model(x_new, x, np.ones(N))
