"""Lengthscales in the conventions of other libraries: formulas, and those libraries themselves."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from refusals import assert_raises

import attnkernel as ak
from attnkernel.kernels import convert_lengthscale
from attnkernel.kernels._scaled import _CONVENTIONS

QUERIES, KEYS = 7, 53
EPS = np.finfo(np.float64).eps
RNG = np.random.default_rng(0)
Q, K = np.sort(RNG.uniform(size=QUERIES)), RNG.uniform(size=KEYS)
D = np.abs(Q[:, None] - K[None])
QUARTER = 0.25 / 0.6744897501960817  # of the standard deviation in the third quartile

# of a number h: the kernel of this package that it names, K up to a constant
TABLE = {
    "standard": (ak.Gaussian, lambda h: np.exp(-(D**2) / (2 * h**2))),
    "unhalved": (ak.Gaussian, lambda h: np.exp(-((D / h) ** 2))),
    "sklearn_gamma": (ak.Gaussian, lambda h: np.exp(-h * D**2)),
    "locfit_gauss": (ak.Gaussian, lambda h: np.exp(-((2.5 * D / h) ** 2) / 2)),
    "ksmooth_normal": (ak.Gaussian, lambda h: np.exp(-((D / (QUARTER * h)) ** 2) / 2)),
    "boxcar": (ak.kernels.Boxcar, lambda h: 1.0 * np.less(D, h)),
    "ksmooth_box": (ak.kernels.Boxcar, lambda h: 1.0 * np.less(D, h / 2)),
    "epanechnikov": (ak.Epanechnikov, lambda h: np.maximum(1 - (D / h) ** 2, 0)),
    "np_epanechnikov": (ak.Epanechnikov, lambda h: np.maximum(1 - (D / h) ** 2 / 5, 0)),
}
OWN = {"Gaussian": "standard", "Boxcar": "boxcar", "Epanechnikov": "epanechnikov"}


def to_own(number, name):
    """The number as the lengthscale of the kernel of a convention."""
    return convert_lengthscale(number, source=name, target=OWN[TABLE[name][0].__name__])


def test_every_convention_is_tested():
    assert list(TABLE) == list(_CONVENTIONS)


@jax.jit
def weights_of(kernel):
    return jnp.exp(kernel.pairwise(jnp.asarray(Q)[:, None], jnp.asarray(K)[:, None]))


def test_numbers_name_their_kernels_and_convert_there_and_back_or_are_refused(x64):
    numbers = np.array([0.21, 0.8, 3.0])
    pairs = list(itertools.product(TABLE, TABLE))
    possible = [(a, b) for a, b in pairs if TABLE[a][0] is TABLE[b][0]]

    @jax.jit
    def results(numbers):
        def both_ways(source, target):
            there = convert_lengthscale(numbers, source=source, target=target)
            own = [to_own(numbers, source), to_own(there, target)]
            return there, convert_lengthscale(there, source=target, target=source), own

        kernels = {(n, h): TABLE[n][0](to_own(h, n)) for n in TABLE for h in (0.21, 0.8)}
        weights = {case: weights_of(kernel) for case, kernel in kernels.items()}
        return weights, {pair: both_ways(*pair) for pair in possible}

    weights, conversions = jax.device_get(results(numbers))
    for (name, h), found in weights.items():
        expected = TABLE[name][1](h)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12, err_msg=name)
    for (source, target), (there, back, own) in conversions.items():
        np.testing.assert_allclose(back, numbers, rtol=64 * EPS)
        np.testing.assert_allclose(*own, rtol=64 * EPS)
        if source == target:
            np.testing.assert_array_equal(there, numbers)
    for source, target in set(pairs) - set(possible):
        names = {"source": source, "target": target}
        assert_raises(rf"'{source}'.*'{target}'", convert_lengthscale, numbers, **names)


def test_results_have_the_default_dtype():
    assert convert_lengthscale(2).dtype == jnp.float32
    assert jax.jit(lambda h: convert_lengthscale(h, source="sklearn_gamma"))(2.0) == 0.5


def test_a_refused_conversion_names_the_possible_ones():
    pattern = "'standard'.*Gaussian.*'ksmooth_box'.*Boxcar.*'unhalved', .*'ksmooth_normal'"
    assert_raises(pattern, convert_lengthscale, 0.3, target="ksmooth_box")
    message = "source must be one of 'standard', 'unhalved'.*'fwhm'"
    assert_raises(message, convert_lengthscale, 1.0, source="fwhm")


# --- against the libraries ---


MCYCLE_AT = np.arange(5.0, 56.0, 10.0)
# print(ksmooth(mcycle$times, mcycle$accel, KERNEL, BANDWIDTH, x.points = seq(5, 55, 10))$y, 10)
NORMAL_2 = [-2.185777248, -26.18714179, -61.34051863, 18.09559579, 5.056199901, 1.684650722]
BOX_5 = [-1.914285714, -33.30689655, -59.77894737, 19.64166667, 3.442857143, -2.35]


def test_ksmooth_of_a_motorcycle_crash(x64):
    """To all printed digits, once a lengthscale is ksmooth's and its weights end where they do.

    It takes 0.3706506 for the factor, 1.2e-7 more than it is, and gives no weight where d > 4ℓ (d >
    h / 2 of its box): there a Gaussian has exp(-8) = 3e-4, and here labels many times the mean.
    """
    data = ak.data.load("mcycle")

    def assert_near(kernel, expected, rtol):
        fitted = ak.KernelRegression(kernel)(MCYCLE_AT, data.x, data.y)
        np.testing.assert_allclose(fitted, expected, rtol=rtol)

    box = convert_lengthscale(5.0, source="ksmooth_box", target="boxcar")
    assert_near(ak.kernels.Boxcar(box), BOX_5, 5e-10)
    sd = convert_lengthscale(2.0, source="ksmooth_normal")
    assert_near(ak.Gaussian(sd), NORMAL_2, 1e-3)
    assert_near(ak.Gaussian(sd) * ak.kernels.Boxcar(4 * sd), NORMAL_2, 2e-7)
    rounded = 2.0 * 0.3706506
    assert_near(ak.Gaussian(rounded) * ak.kernels.Boxcar(4 * rounded), NORMAL_2, 5e-10)
