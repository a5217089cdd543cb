"""What becomes of the user's numbers: 64-bit integers, and numbers that float32 cannot hold; what
functions of the user's own must return."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from estimates import fitted_and_leverage, prediction_variance
from marks import slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel import kernels, priors

DAY = 86_400_000
MILLISECONDS = 1_700_000_000_000 + DAY * np.arange(40)
NOISE = np.random.default_rng(0).normal(size=40)
LABELS = 2**40 + (2**36 * (np.sin(np.arange(40) / 5) + 0.2 * NOISE)).astype(np.int64)
WEIGHTS = 2**33 * (1 + np.arange(40) % 3)
KERNEL = ak.Gaussian(2.0 * DAY)
MODEL = ak.KernelRegression(KERNEL)
TWO_DAYS = np.array([1.0, 2.0]) * DAY
HEADS = ak.MultiheadKernelRegression(ak.PerHead(ak.Gaussian(np.array([1.0, 3.0]) * DAY)))
PAIR = ak.MeanVarianceRegression(MODEL, MODEL)


def column(x):
    return np.asarray(x)[:, None]


@eqx.filter_jit
def compute(objective, x, y):
    return objective(MODEL, x, y)


def in_jit(objective, x, y):
    """The value of an objective, which is called with arrays of JAX."""
    return compute(objective, np.float32(np.float64(column(x))), np.float32(np.float64(y)))


def fitted(x, y, weights=None):
    return ak.fit(MODEL, x, y, objective=ak.LeaveOneOut(), weights=weights, starts=1, steps=2)


# each takes inputs, labels and weights as a user has them
FUNCTIONS = {
    "attend": lambda x, y, w: ak.attend(column(x), column(x), column(y), kernel=KERNEL),
    "attention_weights": lambda x, y, w: ak.attention_weights(column(x), column(x), kernel=KERNEL),
    "a model": lambda x, y, w: MODEL(x, x, y, weights=w),
    "fitted_and_leverage": lambda x, y, w: fitted_and_leverage(MODEL, x, y, weights=w),
    "local_fit": lambda x, y, w: MODEL.local_fit(x, x, y, weights=w).coefficients,
    "prediction_variance": lambda x, y, w: prediction_variance(MODEL, x, x, y, weights=w),
    "heads": lambda x, y, w: HEADS(x, x, y),
    "mean and variance": lambda x, y, w: PAIR(x, x, y),
    "density": lambda x, y, w: ak.density(x, x, kernel=KERNEL, weights=w),
    "normal_reference": lambda x, y, w: ak.inference.normal_reference(x),
    "plug_in": lambda x, y, w: ak.inference.plug_in(x, y),
    "an objective": lambda x, y, w: in_jit(ak.LeaveOneOut(weights=w), x, y),
    "a criterion": lambda x, y, w: in_jit(ak.AICc(weights=w), x, y),
    "profile": lambda x, y, w: ak.profile(MODEL, x, y, TWO_DAYS, objective=ak.LeaveOneOut()),
    "fit": lambda x, y, w: fitted(x, y, w).loss,
    "bands": lambda x, y, w: ak.bands(fitted(x, y), x).standard_error,
    "effective_count": lambda x, y, w: ak.inference.effective_count(fitted(x, y), x),
}


BY_DEFAULT = {"attend", "a model", "density", "an objective", "fit"}


@pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")
@pytest.mark.parametrize("name", [name if name in BY_DEFAULT else slow(name) for name in FUNCTIONS])
def test_integers_of_64_bits_are_their_values(name):
    """With x64 off, where JAX itself would keep the last 32 bits."""
    assert not jax.config.jax_enable_x64
    whole = MILLISECONDS, LABELS, WEIGHTS
    found, expected = (FUNCTIONS[name](*data) for data in (whole, map(np.float64, whole)))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if name not in ("an objective", "a criterion")]
)
def test_numbers_that_float32_cannot_tell_apart_are_refused(name):
    x = 1e9 + np.linspace(0.0, 6.0, 40)
    with pytest.raises(ValueError, match=r"(x|q).*40 different numbers become 1 in float32.*x64"):
        FUNCTIONS[name](x, np.sin(x), np.ones(40))


@pytest.mark.parametrize(
    ("x", "names"),
    [
        (np.array([1.0, 2e200, 3.0]), ("x", "2e+200", "float32")),
        (np.arange("2024-01-01", "2024-01-04", dtype="M8[D]"), ("x", "datetime", "Subtract")),
        (np.array([1j, 2, 3]), ("x", "complex")),
        (np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]), ("x", "1 masked entries")),
        (np.array([1.0, "two", 3.0], object), ("x", "row 1", "'two'")),
        (np.zeros(3, [("age", float)]), ("x", "structured", "structured_to_unstructured(x)")),
        (np.zeros((3, 0)), ("x", "dim at least 1", "(3, 0)")),
    ],
    ids=["too large", "dates", "complex", "masked", "words", "structured", "no columns"],
)
def test_numbers_that_are_none_of_the_default_precision_are_refused(x, names):
    with pytest.raises(ValueError, match=re.escape(names[0])) as caught:
        MODEL(np.arange(3.0), x, np.arange(3.0))
    for part in names:
        assert part in str(caught.value)


def test_extended_precision_is_rounded_to_float64(x64):
    x, y = np.linspace(0.0, 1.0, 7), np.arange(7.0)
    np.testing.assert_array_equal(MODEL(np.longdouble(x), x, np.longdouble(y)), MODEL(x, x, y))


def test_many_random_numbers_are_not_taken_for_equal_ones():
    """Of a million numbers in [0, 1) float32 merges 3 in 100: their spacing harms nobody."""
    x = np.random.default_rng(0).random(1_000_000)
    assert len(np.unique(np.float32(x))) < 0.985 * len(x)
    assert ak.inference.normal_reference(x).shape == (1,)
    lattice = np.repeat(1e7 + np.arange(5.0), 3)  # exact in float32
    assert np.isfinite(MODEL(lattice, lattice, lattice)).all()


@pytest.mark.parametrize(
    "x",
    [
        np.r_[0.0, 1e9 + np.arange(8)],
        np.r_[1e9 + np.arange(7), 2e9 + np.arange(7)],
        np.r_[1e-60, 2e-60, 3.0],
        jnp.array([2**24 - 1, 2**24 + 1, 2**24 + 3, 2**24 + 5]),
    ],
    ids=["an outlier", "two clusters", "underflow", "integers of JAX"],
)
def test_numbers_that_float32_merges_are_refused_beside_others(x):
    with pytest.raises(ValueError, match=r"x: its .* different numbers become"):
        ak.KernelRegression(ak.Gaussian(1.0))(x[:1], x, np.arange(float(len(x))))


@pytest.mark.parametrize("factor", [1e-19, 1e20])
def test_labels_whose_squares_leave_float32_are_refused(factor):
    x, y = np.linspace(0.0, 1.0, 20), factor * np.sin(np.arange(20.0))
    model = ak.KernelRegression(ak.Gaussian(0.1))
    assert_raises(r"y spans .* another unit", ak.fit, model, x, y, objective=ak.LeaveOneOut())
    assert_raises(r"y spans .* another unit", ak.MeanVarianceRegression(model, model), x, x, y)


@pytest.mark.parametrize("weight", [1e37, 1e-36, 1e-50])
def test_weights_whose_sums_leave_float32_are_refused(weight):
    x, y = np.linspace(0.0, 1.0, 20), np.sin(np.arange(20.0))
    message, weights = r"weights .*divide them by their largest", np.full(20, weight)
    model, objective = ak.KernelRegression(ak.Gaussian(0.1)), ak.LeaveOneOut()
    assert_raises(message, ak.fit, model, x, y, objective=objective, weights=weights)
    assert_raises(message, ak.density, x[:2], x, kernel=ak.Gaussian(0.1), weights=weights)


def test_a_weight_that_rounds_to_0_is_no_row_left_out():
    model, rows, weights = ak.KernelRegression(ak.Gaussian(0.01)), np.arange(2.0), [1e-50, 1.0]
    with pytest.raises(ValueError, match="weights has positive numbers that are 0"):
        model(np.zeros(1), rows, rows, weights=np.array(weights))


@pytest.mark.needs_float16
def test_half_precision_sums_squares_labels_and_weights_in_float32():
    half = np.float16
    x, y = np.linspace(0.0, 1.0, 40), np.sin(np.arange(40.0))
    model, kernel = ak.KernelRegression(ak.Gaussian(0.1)), ak.Gaussian(0.1)
    far = ak.KernelRegression(ak.kernels.Boxcar(1.0), on_empty="nearest")
    mean = ak.KernelRegression(ak.kernels.Boxcar(1e-3), on_empty="mean")

    @jax.jit
    def results(x, y, thousandth, counts, at, points, labels, many):
        return (
            ak.LeaveOneOut()(model, x[:, None], thousandth),
            ak.LeaveOneOut()(model, x[:, None], y),
            ak.density(x[:2], x, kernel=kernel, weights=counts),
            ak.density(x[:2], x, kernel=kernel),
            far(at, points, labels),
            mean(at, jnp.zeros_like(many), many),
            ak.inference.plug_in(x, y),
        )

    small, large, weighted, plain, nearest, of_many, bandwidth = results(
        *(half(x), half(y), half(1e-3 * y), np.full(40, 3000.0, half)),
        *(half([1000.0]), half([0.0, 300.0, 600.0]), half([1.0, 2.0, 3.0])),
        np.ones(200_000, half),
    )
    np.testing.assert_allclose(1e6 * float(small), large, rtol=1e-2)
    np.testing.assert_allclose(weighted, plain, rtol=1e-2)
    assert (nearest.item(), of_many.item()) == (3.0, 1.0)
    assert np.isfinite(bandwidth)


@pytest.mark.parametrize("unit", [1e-25, 1e25])
def test_the_nearest_label_is_found_in_any_unit(unit):
    model = ak.KernelRegression(ak.kernels.Boxcar(0.1 * unit), on_empty="nearest")
    labels = np.array([1.0, 2.0, 3.0])
    assert model(np.array([10.0 * unit]), labels * unit, labels) == 3.0


def test_weights_below_0_and_nan_inside_jit_are_nan():
    x, y = np.linspace(0.0, 1.0, 20), np.sin(np.arange(20.0))
    predict = jax.jit(lambda w: ak.KernelRegression(ak.Gaussian(0.1))(x[:2], x, y, weights=w))
    for bad in (-1.0, np.nan):
        assert np.all(np.isnan(predict(np.where(x > 0.5, bad, 1.0))))


X = np.linspace(0.0, 1.0, 12)
Y = np.sin(6.0 * X) + 0.1 * np.cos(40.0 * X)


class ByDimension(kernels.Kernel):
    """The sum over the dimensions is forgotten."""

    log_lengthscale: jax.Array

    def log_pair(self, q, k):
        return -0.5 * ((q - k) / jnp.exp(self.log_lengthscale)) ** 2


class Column(priors.Prior):
    def log_pair(self, i, j):
        return jnp.zeros((1,))


class Allowed(priors.Mask):
    def allows(self, i, j):
        return (i >= j)[None]


class OfRows(ak.objectives.Objective):
    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        return (model(x, x, y) - y) ** 2


BY_DIMENSION = ByDimension(jax.device_put(np.float32(np.log(0.2))))
FORGETFUL = ak.KernelRegression(BY_DIMENSION)
GAUSSIAN = ak.KernelRegression(ak.Gaussian(0.2))
COLUMN = X[:, None]
OF_PAIR = r"{} must return one number for one pair.*; got shape \(1,\)"


@pytest.mark.parametrize(
    "call",
    [
        lambda: FORGETFUL(X, X, Y),
        lambda: fitted_and_leverage(FORGETFUL, X, Y),
        lambda: ak.KernelRegression(BY_DIMENSION, order=1)(X, X, Y),
        lambda: ak.KernelRegression(BY_DIMENSION * ak.Gaussian(1.0))(X, X, Y),
        lambda: ak.attention_weights(COLUMN, COLUMN, kernel=BY_DIMENSION),
        lambda: ak.fit(FORGETFUL, X, Y, objective=ak.LeaveOneOut()),
        lambda: ak.attend(*[COLUMN] * 3, kernel=BY_DIMENSION, method=ak.methods.Blockwise(4, 4)),
    ],
)
def test_a_kernel_that_returns_no_number_is_refused(call):
    assert_raises(OF_PAIR.format(r"ByDimension\.log_pair"), call)


@pytest.mark.parametrize(
    ("prior", "name"), [(Column(), r"Column\.log_pair"), (Allowed(), r"Allowed\.allows")]
)
@pytest.mark.parametrize("method", [ak.methods.Dense(), ak.methods.Blockwise(4, 4)], ids=repr)
def test_a_prior_that_returns_no_number_is_refused(prior, name, method):
    with pytest.raises(ValueError, match=OF_PAIR.format(name)):
        ak.attend(COLUMN, COLUMN, COLUMN, kernel=ak.Gaussian(0.2), prior=prior, method=method)


@pytest.mark.parametrize("options", [{}, {"optimizer": optax.adam(0.1), "steps": 2}])
def test_an_objective_that_returns_no_number_is_refused(options):
    with pytest.raises(ValueError, match=r"OfRows must return one number; got shape \(12,\)"):
        ak.fit(GAUSSIAN, X, Y, objective=OfRows(), **options)


def test_a_score_that_is_not_of_each_row_is_refused():
    objective = ak.LeaveOneOut(score=lambda found, y: jnp.mean((found - y) ** 2))
    with pytest.raises(ValueError, match=r"score must return one number for each of 12 rows"):
        ak.fit(GAUSSIAN, X, Y, objective=objective)
