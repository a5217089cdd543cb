"""The estimators: against statsmodels, against their sums, at empty neighbourhoods, with weights of
rows, far outside the data, and learned by attention; the programs of a first prediction."""

import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimates import predict
from known_fits import known_fit
from laws import KERNELS
from marks import slow
from refusals import assert_refused

import attnkernel as ak
from attnkernel.local import ExtrapolationWarning
from attnkernel.models._local_regression import known_policy
from attnkernel.priors import HeldOut, MaskFunction

N, M = 23, 7


def sample(dim: int):
    rng = np.random.default_rng(dim)
    x = rng.uniform(-2, 2, size=(N, dim))
    return x, np.sin(2 * x).sum(1) + 0.1 * rng.normal(size=N), rng.uniform(-2, 2, size=(M, dim))


def test_heads_are_combined_by_their_coefficients(x64):
    """Heads of a kernel, and those of a rule, by whose temperatures the lengthscale is scaled."""
    x, y, x_new = sample(1)
    lengthscales, coefficients = np.array([0.2, 0.5, 2.0]), np.array([1.5, -0.75, 0.1])

    @jax.jit
    def results(lengthscales):
        stack = ak.PerHead(eqx.filter_vmap(ak.Gaussian)(lengthscales))
        model = ak.MultiheadKernelRegression(stack, coefficients)
        start = ak.MultiheadKernelRegression(stack).coefficients
        rules = ak.PerHead(eqx.filter_vmap(ak.Softmax)(lengthscales**2))
        by_rules = ak.MultiheadKernelRegression(ak.Gaussian(1.0), coefficients, rule=rules)
        return model.heads(x_new, x, y), [m(x_new, x, y) for m in (model, by_rules)], start

    heads, combined, start = results(lengthscales)
    np.testing.assert_allclose(start, np.full(3, 1 / 3))
    away = (x_new - x[:, 0]) / lengthscales[:, None, None]
    each = np.exp(-0.5 * away**2)
    alone = each @ y / each.sum(axis=2)
    np.testing.assert_allclose(heads, alone, rtol=1e-12)
    np.testing.assert_allclose(combined, [coefficients @ alone] * 2, rtol=1e-12)


def test_invalid_heads_and_policies_are_refused():
    three = ak.PerHead([ak.Gaussian(1.0)] * 3)
    assert_refused(
        (lambda: ak.MultiheadKernelRegression(ak.Gaussian(1.0)), r"kernel.*PerHead.*Gaussian"),
        (lambda: ak.MultiheadKernelRegression(three, np.ones(2)), r"coefficients.*\(3,\).*\(2,\)"),
        (lambda: known_policy("zero"), r"on_empty.*nearest.*'zero'"),
    )


def test_inputs_of_another_width_are_refused_with_the_shapes_that_were_given():
    """Not those of padded rows."""
    x, y, wide = np.linspace(0, 1, 50)[:, None], np.zeros(50), np.zeros((3, 2))
    fit = known_fit(ak.KernelRegression(ak.Gaussian(0.3)), x, y)
    message = r"^x_new \(3, 2\) and x \(50, 1\) do not fit the kernel\. .* got 2 and 1"
    assert_refused(
        (lambda: fit.model(wide, x, y), message),
        (lambda: fit(wide), message),
        (lambda: ak.bands(fit, wide), message),
        (lambda: ak.models.RobustRegression(fit.model)(wide, x, y), message),
    )


FAR = MaskFunction(lambda i, j: j < 3)


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


@pytest.mark.parametrize("policy", ["mean", slow("nan"), slow("nearest")])
def test_without_rows_a_prediction_is_nan(policy):
    model = ak.KernelRegression(ak.Gaussian(1.0), on_empty=policy)
    assert np.isnan(np.asarray(model(np.zeros(2), np.zeros(0), np.zeros(0)))).all()


ROWS = 12
XS = np.linspace(0.0, 1.0, ROWS)
YS = np.stack([np.sin(6 * XS), XS**2], axis=1)
AT = np.array([0.1, 0.55, 0.93])


def regressors(on_empty="nan"):
    kernel = ak.Epanechnikov(0.3)
    constant = ak.KernelRegression(kernel, on_empty=on_empty)
    heads = ak.PerHead([kernel, ak.Epanechnikov(0.5)])
    options = {"on_empty": on_empty, "key": jax.random.PRNGKey(0)}
    return {
        "local constant": constant,
        "local linear": ak.KernelRegression(kernel, order=1, on_empty=on_empty),
        "bias-reduced": ak.models.BiasReduced(constant, 3),
        "heads": ak.MultiheadKernelRegression(heads, on_empty=on_empty),
        "learned": ak.LearnedKernelRegression(1, 2, kernel=ak.Gaussian(1.0), **options),
        "mean and variance": ak.MeanVarianceRegression(constant, constant),
    }


@eqx.filter_jit
def predict_all(left_out, x_new, x, y, *, on_empty="nan", **options):
    """Predictions of all regressors but one."""
    models = regressors(on_empty)
    del models[left_out]
    return {name: model(x_new, x, y, **options) for name, model in models.items()}


def test_a_weight_of_k_is_k_rows_and_a_weight_of_0_none(x64):
    """Whatever the labels of rows of weight 0 are. A left-out residual, which the variance needs,
    leaves out both copies or one: of it see `test_mean_variance.py`."""
    counts = np.arange(ROWS) % 3
    spoilt = np.where(counts[:, None] > 0, YS, 1e30)
    copies = np.repeat(np.arange(ROWS), counts)
    without = "mean and variance"
    found = predict_all(without, AT, XS, spoilt, weights=1.0 * counts)
    expected = predict_all(without, AT, XS[copies], YS[copies])
    for name, out in expected.items():
        np.testing.assert_allclose(found[name], out, rtol=1e-9, err_msg=name)


@pytest.mark.slow
def test_search_boxes_ignore_rows_of_weight_zero(x64):
    """The boxes of every kernel and of the models."""
    weights = (np.arange(ROWS) % 4 != 1).astype(float)
    x = np.stack([np.arange(ROWS) % 5, XS**3], axis=1)  # a column of categories, or of ties

    @jax.jit
    def boxes(x, part, weights):
        models = regressors()
        del models["learned"]
        found = {}
        for of, rows, kept in ((KERNELS, x, part), (models, x[:, 1:], part[:, 1:])):
            for name, each in of.items():
                found[name] = each.search_box(rows, weights), each.search_box(kept)
        return eqx.filter(found, eqx.is_array)

    found = jax.device_get(boxes(x, x[weights > 0], weights))
    for name, (whole, part) in found.items():
        close = functools.partial(np.testing.assert_allclose, rtol=1e-12, err_msg=name)
        jax.tree.map(close, whole, part)


@pytest.mark.parametrize("on_empty", ["mean", slow("nan"), slow("nearest")])
def test_predictions_without_a_label_follow_on_empty(x64, on_empty):
    """The prior hides all rows from the first query, and the last rows from the others."""
    weights = 1.0 + np.arange(ROWS) % 3
    far = np.array([9.0, 30.0])
    options = {"prior": MaskFunction(lambda i, j: (i > 0) & (j < 7)), "weights": weights}
    # the kernel of the learned regression reaches everywhere
    found = jax.device_get(predict_all("learned", far, XS, YS, on_empty=on_empty, **options))
    mean = np.average(YS[:7], axis=0, weights=weights[:7])
    expected = {"nan": np.full(2, np.nan), "nearest": YS[6], "mean": mean}[on_empty]
    for name, out in found.items():
        out = out[0] if isinstance(out, tuple) else out
        assert np.isnan(out[0]).all(), name
        np.testing.assert_allclose(out[1], expected, rtol=1e-12, err_msg=name)


def test_a_learned_regression_follows_on_empty(x64):
    """Its kernel is compact in the projected inputs; its own prior hides the last rows."""
    expected = {"nan": [np.nan] * 2, "nearest": YS[6], "mean": YS[:7].mean(axis=0)}

    @jax.jit
    def results(x, y):
        prior, key = MaskFunction(lambda i, j: j < 7), jax.random.PRNGKey(0)
        options = {"kernel": ak.kernels.Boxcar(0.1), "prior": prior, "key": key}
        models = [ak.LearnedKernelRegression(1, 2, on_empty=each, **options) for each in expected]
        return [model(np.array([1e3]), x, y)[0] for model in models]

    np.testing.assert_allclose(results(XS, YS), list(expected.values()), rtol=1e-12)


def test_policies_that_need_one_prior_are_refused_with_priors_of_heads():
    alibi = ak.PerHead([ak.Alibi(0.5), ak.Alibi(1.0)])
    options = {"num_heads": 2, "prior": alibi, "on_empty": "mean"}
    with pytest.raises(ValueError, match=r"on_empty='mean'.*prior"):
        jax.eval_shape(lambda: ak.LearnedKernelRegression(1, **options, key=jax.random.PRNGKey(0)))


CONSTANT = ak.KernelRegression(ak.Gaussian(0.1))
MODELS = {
    "local constant": CONSTANT,
    "local linear": ak.KernelRegression(ak.Gaussian(0.1), order=1),
    "likelihood": ak.LocalLikelihood(ak.Gaussian(0.1), family=ak.Gamma(), order=1),
    "quantile": ak.LocalQuantile(ak.Gaussian(0.1), order=0),
    "robust": ak.RobustRegression(CONSTANT),
}


@pytest.mark.parametrize(
    "name",
    ["local constant", slow("robust"), slow("local linear"), slow("likelihood"), slow("quantile")],
)
def test_a_prediction_is_one_program_for_numbers_of_rows_in_a_bucket(programs, name):
    jax.clear_caches()
    x = np.linspace(0.0, 1.0, 40)
    y, x_new = 2.0 + np.sin(6.0 * x), np.linspace(0.1, 0.9, 16)
    model = MODELS[name]
    for labels in (y, np.stack([y, y**2], axis=1)):
        programs.clear()
        assert model(x_new, x, labels).shape == (16, *labels.shape[1:])
        assert len(programs) == 1
        fewer = model(x_new[:13], x[:37], labels[:37])
        assert len(programs) == 1
        assert fewer.shape == labels[:13].shape


LINE = np.linspace(0.0, 1.0, 60)
SINE = np.sin(6.0 * LINE)
LENGTHSCALE = 0.1
KIND = {1: "local linear", 2: "local quadratic"}


def regression(order):
    return ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=order)


@pytest.mark.parametrize(("order", "outside"), [(2, 3.0), slow(1, 4.0)])
def test_extrapolation_is_told_with_the_number_of_queries(order, outside):
    """Three lengthscales outside, float32 and float64 give other functions of order 2."""
    x_new = np.array([0.0, 0.5, 1.0 + outside * LENGTHSCALE, -outside * LENGTHSCALE])
    with pytest.warns(ExtrapolationWarning, match=f"{KIND[order]}, at 4 queries: at [12] "):
        regression(order)(x_new, LINE, SINE)
    local = regression(order).local_fit(x_new, LINE, SINE)
    flags = np.asarray(local.extrapolates) | np.asarray(local.deficient)
    np.testing.assert_array_equal(flags, [0, 0, 1, 1])


def test_inside_the_data_at_order_0_and_under_jit_there_is_no_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regression(2)(LINE, LINE, SINE)
        regression(0)(LINE + 0.5, LINE, SINE)
        jax.jit(lambda x_new: regression(2)(x_new, LINE, SINE))(LINE + 0.3)
    assert caught == []


def test_flags_are_those_of_their_formula(x64):
    """(S⁻¹)₁₁ of the moments of NumPy, on both sides of 100."""
    x_new = np.linspace(-0.35, 0.5, 31)
    for order in (1, 2):
        local = regression(order).local_fit(x_new, LINE, SINE)
        u = LINE - x_new[:, None]
        w = np.exp(-0.5 * (u / LENGTHSCALE) ** 2)
        basis = (u / LENGTHSCALE)[..., None] ** np.arange(order + 1)
        moments = np.einsum("qk,qka,qkb->qab", w / w.sum(1, keepdims=True), basis, basis)
        found = np.linalg.inv(moments)[:, 0, 0]
        expected = found > 100
        assert np.min(np.abs(found - 100)) > 1e-3  # far above rounding
        assert 0 < np.sum(expected) < len(x_new)
        np.testing.assert_array_equal(local.extrapolates, expected)


def test_float32_determines_a_quadratic_with_few_neighbours_in_reach():
    """Moments are summed as they are: about their mean over all keys they would lose digits."""
    x = np.linspace(-3.0, 3.0, 150, dtype=np.float32)
    at = np.linspace(-3.0, 3.0, 201, dtype=np.float32)
    found = ak.KernelRegression(ak.Gaussian(0.0728), order=2).local_fit(at, x, np.sin(3 * x))
    assert not np.asarray(found.deficient).any()


def test_the_sum_of_heads_over_pairs(x64):
    """Keys and values project (φ(x), y), queries φ(x) alone; Σ_h U_h of the heads, in NumPy."""
    key = jax.random.PRNGKey(0)
    rng = np.random.default_rng(0)
    x_new, x, y = (rng.normal(size=shape) for shape in ((5, 2), (7, 2), (7, 3)))

    @eqx.filter_jit
    def results(key):
        options = {"num_heads": 2, "qk_size": 5, "embedding": jnp.tanh}
        model = ak.LearnedKernelRegression(2, 3, **options, key=key)
        hidden = model(x_new, x, y, prior=HeldOut(np.ones(7, bool)))
        flat = ak.LearnedKernelRegression(1, key=key)(x_new[:, 0], x[:, 0], y[:, 0])
        return model.attention, model(x_new, x, y), hidden, flat

    inner, found, hidden, flat = results(key)
    inner = jax.tree.map(np.asarray, eqx.filter(inner, eqx.is_array))
    pairs = np.concatenate([np.tanh(x), y], axis=1)
    expected = 0.0
    for h in range(2):
        q = np.tanh(x_new) @ inner.query_proj.weight[5 * h : 5 * h + 5].T
        k = pairs @ inner.key_proj.weight[5 * h : 5 * h + 5].T
        v = pairs @ inner.value_proj.weight[3 * h : 3 * h + 3].T
        weights = np.exp(q @ k.T / np.sqrt(5))
        weights = weights / weights.sum(axis=1, keepdims=True)
        expected += weights @ v @ inner.output_proj.weight[:, 3 * h : 3 * h + 3].T
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    assert np.isnan(hidden).all()
    assert flat.shape == (5,)
