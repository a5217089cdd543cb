"""Every function of inference on weighted rows: its formula in NumPy, one program for all data sets
of similar size, rows of weight 0 and a factor of all weights that change nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_fits import known_fit
from least_squares import left_out, local_polynomial
from marks import slow
from scipy import stats

import attnkernel as ak
from attnkernel.inference import effective_count, normal_reference, sheather_jones
from attnkernel.objectives._hold_out import permuted_rows

N, DROPPED, LENGTHSCALE, LEVEL = 27, 5, 0.15, 0.8
AT = np.linspace(0.05, 0.95, 7)
KEYS = [jax.device_put(np.array([0, seed], np.uint32)) for seed in range(2)]
RNG = np.random.default_rng(4)
X = (RNG.permutation(N) + RNG.uniform(size=N)) / N
WEIGHTS = RNG.uniform(0.5, 2.0, size=N)
NOISE = 0.2 * RNG.normal(size=N)
Y = np.sin(6 * X) + 3 * X**2 * NOISE
CLUSTERS = np.arange(N) // 2
close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-14)
smoother = functools.partial(local_polynomial, x=X, lengthscale=LENGTHSCALE, weights=WEIGHTS)


def fitted(order, rows=N, factor=1.0, dropped=0, y=Y):
    """The first rows, and some of weight 0 between them."""
    at = np.linspace(0, rows, dropped).astype(int)
    x, y = np.insert(X[:rows], at, 0.5), np.insert(y[:rows], at, 1e3)
    weights = np.insert(factor * WEIGHTS[:rows], at, 0.0)
    model = ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=order)
    return known_fit(model, x, y, weights, ak.LeaveOneOut)


def residuals_and_expectations(order, y=Y):
    """Residuals, and the expectation of their weighted squares where the noise has variance 1."""
    hat = smoother(X, order=order)
    norms = WEIGHTS * np.sum(hat**2 / WEIGHTS, axis=1)
    return y - hat @ y, 1 - 2 * np.diag(hat) + norms


def errors_of(order, groups=None, lengthscale=LENGTHSCALE):
    """Labels less their predictions from the rows of other groups."""
    return Y - left_out(X, Y, lengthscale, order, groups, WEIGHTS)


def local_variances(at, order, y=Y):
    """σ² of a label of weight 1 at new inputs, and at each row from all others."""
    residuals, expected = residuals_and_expectations(order, y)
    squares = WEIGHTS * residuals**2

    def ratio(at, lengthscale, seen=1.0):
        kernel = np.exp(-0.5 * ((at[:, None] - X) / lengthscale) ** 2) * WEIGHTS * seen
        return kernel @ squares / (kernel @ expected)

    gaps, others = np.diff(np.sort(X)), 1 - np.eye(N)
    shortest, longest = 0.5 * min(np.mean(gaps), np.median(gaps)), 10 * np.ptp(X)
    between = shortest * (longest / shortest) ** np.linspace(0.2, 0.8, 8)
    lengthscales = np.append(LENGTHSCALE * 2.0 ** np.arange(1, 7), between)
    variances = [ratio(X, lengthscale, others) for lengthscale in lengthscales]
    deviances = [np.mean(np.log(each) + squares / expected / each) for each in variances]
    best = int(np.argmin(deviances))
    assert np.diff(np.sort(deviances))[0] > 1e-6  # no near tie
    return ratio(at, lengthscales[best]), variances[best], lengthscales[best]


def average(order):
    """The average derivative of a local line with shorter lengthscales, constant noise."""
    shorter = LENGTHSCALE * N ** (1 / 5 - 2 / 7)
    row = np.mean(smoother(X, lengthscale=shorter, order=1, term=1), axis=0)
    residuals, expected = residuals_and_expectations(order)
    variance = WEIGHTS @ residuals**2 / np.sum(expected) / WEIGHTS
    return {"estimate": [row @ Y], "standard_error": [np.sqrt(row**2 @ variance)], "rows": N}


def band(order, noise="local", corrected=True):
    shorter = N ** (1 / 5 - 1 / 4) if corrected else 1.0
    rows = smoother(AT, lengthscale=shorter * LENGTHSCALE, order=2 if corrected else order)
    if noise == "clusters":
        sums = (rows * errors_of(order, CLUSTERS)) @ np.eye(N)[CLUSTERS]
        variance, c = np.sum(sums**2, axis=1), stats.t.ppf(0.5 + 0.5 * LEVEL, CLUSTERS.max())
    else:
        residuals, expected = residuals_and_expectations(order)
        variances = WEIGHTS @ residuals**2 / np.sum(expected)
        if noise == "local":
            variances = local_variances(X, order)[0]
        variances = errors_of(order) ** 2 if noise == "rows" else variances / WEIGHTS
        variance, c = rows**2 @ variances, stats.norm.ppf(0.5 + 0.5 * LEVEL)
    error, centre = np.sqrt(variance), rows @ Y
    limits = {"lower": centre - c * error, "upper": centre + c * error}
    count = 1 / np.sum(rows**2, axis=1)
    return {"centre": centre, "standard_error": error, "effective_count": count} | limits


def conformal(order, local=False):
    scores, spread = np.abs(errors_of(order)), np.ones(len(AT))
    if local:
        at_new, at_rows, _ = local_variances(AT, order)
        scores, spread = scores / np.sqrt(at_rows / WEIGHTS), np.sqrt(at_new)
    centre = smoother(AT, order=order) @ Y
    width = np.sort(scores)[int(np.ceil((N + 1) * LEVEL)) - 1] * spread
    return {"centre": centre, "lower": centre - width, "upper": centre + width}


def degrees_of_freedom(order):
    hat, (_, expected) = smoother(X, order=order), residuals_and_expectations(order)
    squares = np.sum(WEIGHTS[:, None] * hat**2 / WEIGHTS)
    return {"trace": np.trace(hat), "trace_of_squares": squares, "residual": np.sum(expected)}


def density(order):
    kernel = np.exp(-0.5 * ((AT[:, None] - X) / LEVEL) ** 2)
    return np.mean(kernel, axis=1) / (LEVEL * np.sqrt(2 * np.pi))


def losses(order):
    errors = [errors_of(order, None, lengthscale) for lengthscale in (LENGTHSCALE, LEVEL)]
    return np.average(np.square(errors), axis=1, weights=WEIGHTS)


def bands_with(**options):
    """The call of `ak.bands` with options, as the functions below have it."""
    return lambda fit, at, level, key: ak.bands(fit, at, level=level, **options)


def bands_of_clusters(fit, at, level, key):
    names = [
        f"village {c}" for c in CLUSTERS[: np.count_nonzero(np.asarray(fit.objective.weights))]
    ]
    return ak.bands(fit, at, level=level, clusters=names)


def simultaneous_bands(fit, at, level, key):
    return ak.bands(fit, AT, level=level, kind="simultaneous", draws=40, key=key)


def average_derivative(fit, at, level, key):
    return ak.econometrics.average_derivative(fit, level=level, noise="constant")


def density_of_fit(fit, at, level, key):
    rows = np.asarray(fit.x)[np.asarray(fit.objective.weights) > 0]
    return ak.density(at, rows, kernel=ak.Gaussian(level))


def profile(fit, at, level, key):
    lengthscales = np.array([LENGTHSCALE, level])
    return ak.profile(fit.model, fit.x, fit.y, lengthscales, objective=fit.objective)


def relevance_test(fit, at, level, key, **options):
    return ak.econometrics.relevance_test(fit, 0, draws=7, key=key, **options)


def specification_test(fit, at, level, key):
    return ak.econometrics.specification_test(fit.x, fit.y, draws=7, key=key)


# the call of a fit at inputs with a level and a key; the expected result at LEVEL
FUNCTIONS = {
    "bands": (bands_with(), band),
    "bands, constant noise": (
        bands_with(noise="constant", corrected=False),
        functools.partial(band, noise="constant", corrected=False),
    ),
    "bands, noise of rows": (bands_with(noise="rows"), functools.partial(band, noise="rows")),
    "bands of clusters": (bands_of_clusters, functools.partial(band, noise="clusters")),
    "average_derivative": (average_derivative, average),
    "conformal": (lambda fit, at, level, key: ak.conformal(fit, at, level=level), conformal),
    "local conformal": (
        lambda fit, at, level, key: ak.conformal(fit, at, level=level, local=True),
        functools.partial(conformal, local=True),
    ),
    "noise_variance": (
        lambda fit, at, level, key: ak.noise_variance(fit, at),
        lambda order: local_variances(AT, order)[0],
    ),
    "effective_count": (
        lambda fit, at, level, key: effective_count(fit, at),
        lambda order: 1 / np.sum(smoother(AT, order=order) ** 2, axis=1),
    ),
    "degrees_of_freedom": (lambda fit, *_: ak.degrees_of_freedom(fit), degrees_of_freedom),
    "density": (density_of_fit, density),
    "profile": (profile, losses),
    "quantiles": (lambda fit, at, level, key: ak.quantiles(fit, at, [level]), None),
    "relevance_test": (functools.partial(relevance_test, reselect=False), None),
    "summarise": (
        lambda fit, at, level, key: [v for v in ak.summarise(fit) if isinstance(v, int | float)],
        None,
    ),
    "simultaneous bands": (simultaneous_bands, None),
    "bands of a derivative": (bands_with(derivative=1), None),
    "bands, hc1": (bands_with(noise="hc1"), None),
    "relevance_test, reselected": (relevance_test, None),
}
SLOW = set(list(FUNCTIONS)[-4:])
ORDERS = dict.fromkeys(
    ("degrees_of_freedom", "effective_count", "noise_variance", "bands, noise of rows"), 1
)  # others: 0
OF_WEIGHT_ONE = {"noise_variance": 7.0, "local conformal": 7.0**0.5}  # times 7 ** 1 and 7 ** 0.5


@pytest.mark.parametrize("name", [slow(n) if n in SLOW else n for n in FUNCTIONS])
def test_functions_of_weighted_rows(x64, programs, name):
    (call, reference), order = FUNCTIONS[name], ORDERS.get(name, 0)
    found = call(fitted(order), AT, LEVEL, KEYS[0])
    assert len(programs) <= 1, programs
    if reference is not None:
        expected = reference(order)
        if isinstance(expected, dict):
            found_parts = {part: getattr(found, part) for part in expected}
        else:
            found_parts = found
        jax.tree.map(close, found_parts, expected)
    programs.clear()
    with_others = call(fitted(order, dropped=DROPPED), AT, LEVEL, KEYS[0])
    jax.tree.map(close, with_others, found)
    scaled = call(fitted(order, factor=7.0), AT, LEVEL, KEYS[0])
    if name in OF_WEIGHT_ONE:
        both = (scaled, found)
        scaled, found = (np.asarray(getattr(each, "standard_error", each)) for each in both)
    jax.tree.map(close, scaled, OF_WEIGHT_ONE[name] * found if name in OF_WEIGHT_ONE else found)
    call(fitted(order, rows=N - 2), AT[:5], 0.9, KEYS[1])
    assert not programs


def test_the_noise_is_averaged_as_far_as_it_is_constant(x64):
    """A row is compared with the variance from all others."""
    lengthscales = []
    for y in (Y, np.sin(6 * X) + NOISE):
        expected, _, lengthscale = local_variances(AT, 1, y)
        close(ak.noise_variance(fitted(1, y=y), AT), expected)
        lengthscales.append(lengthscale)
    assert lengthscales[0] < np.ptp(X) < lengthscales[1]


def test_the_noise_is_local_where_the_mean_is_a_line(x64):
    """Its lengthscale is twenty times as long as the range of the inputs."""
    x = np.linspace(-1.0, 1.0, 300)
    y = x + np.where(x < 0, 10.0, 1.0) * np.random.default_rng(0).normal(size=300)
    model = ak.KernelRegression(ak.Gaussian(40.0), order=1)
    fit = known_fit(model, x, y, np.ones(300), ak.LeaveOneOut)
    found = np.sqrt(ak.noise_variance(fit, np.array([-0.9, 0.9])))
    np.testing.assert_allclose(found, [10.0, 1.0], rtol=0.15)


class Bell(ak.kernels.Kernel):
    """A Gaussian without a parameter, and so without a lengthscale of its own."""

    def log_pair(self, q, k):
        return -0.5 * jnp.sum((q - k) ** 2) / LENGTHSCALE**2


def test_the_noise_of_a_kernel_without_a_lengthscale_has_all_factors(x64):
    kernels = Bell(), ak.Gaussian(LENGTHSCALE), ak.DotProduct(ak.fixed(1.0))
    fits = [known_fit(ak.KernelRegression(each), X, np.sin(6 * X) + NOISE) for each in kernels]
    own, same, alone = (ak.noise_variance(fit, AT) for fit in fits)
    close(own, same)
    assert np.isfinite(alone).all()  # no number of it can be changed


def split_by_definition(found, fit, at, level, key):
    """The half-width is a residual of the rows that were held out, by their rank."""
    x, y = np.asarray(fit.x)[:, 0], np.asarray(fit.y)
    rows, n = np.asarray(permuted_rows(key, len(x))), len(x) // 2
    of_fit, held = rows[:n], rows[n:]
    first = ak.fit(fit.model, x[of_fit], y[of_fit], objective=fit.objective)
    hat = local_polynomial(x[held], x[of_fit], float(first.model.kernel.lengthscale), 0)
    rank = int(np.ceil((len(held) + 1) * level))
    width = np.sort(np.abs(y[held] - hat @ y[of_fit]))[rank - 1]
    close(np.asarray(found.upper) - np.asarray(found.centre), np.full(len(at), width))


# the call, the most programs that it compiles, and the check of its result
UNWEIGHTED = {
    "split conformal": (
        lambda fit, at, level, key: ak.conformal(fit, at, level=level, kind="split", key=key),
        3,  # a permutation, a fit, and the intervals
        split_by_definition,
    ),
    "normal_reference": (lambda fit, at, level, key: normal_reference(fit.x), 1, None),
    "sheather_jones": (lambda fit, at, level, key: sheather_jones(fit.x), 1, None),
    "specification_test": (specification_test, 1, None),
}


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_functions_of_rows_without_weights(x64, programs, name):
    call, most, check = UNWEIGHTED[name]
    model = ak.KernelRegression(ak.Gaussian(LENGTHSCALE))
    first, second = (known_fit(model, X[:n], Y[:n], None, ak.LeaveOneOut) for n in (N, N - 2))
    found = call(first, AT, LEVEL, KEYS[0])
    assert len(programs) <= most, programs
    programs.clear()
    if check:
        for level in (0.2, 0.5, LEVEL):
            found = call(first, AT, level, KEYS[0])
            check(found, first, AT, level, KEYS[0])
    call(second, AT[:5], 0.9, KEYS[1])
    assert not programs
