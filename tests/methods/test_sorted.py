"""`Sorted`: it equals the dense reference, and keeps its digits where prefix sums lose them."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_formulas import FORMULAS
from laws import assert_agree, assert_equals_dense, derivatives_too, evaluate, to_float64
from marks import slow
from programs import temporary_bytes

import attnkernel as ak
from attnkernel import priors
from attnkernel.kernels import Biweight, Boxcar, Triangular, Triweight
from attnkernel.methods import Dense, Sorted

N, DIM_V = 37, 2
EPS = np.finfo(np.float64).eps
KERNELS = (Boxcar, Triangular, ak.Epanechnikov, Biweight, Triweight, ak.Laplace)
LENGTHSCALES = (0.05, 0.25, 0.73, 3.0, 1e3)  # 0.25 is the spacing of the lattice


def with_lengthscale(make, log_lengthscale):
    return eqx.tree_at(lambda kernel: kernel.lengthscale_parameter.z, make(1.0), log_lengthscale)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def by_both_methods(make, leave_one_out, hessian_in, log_lengthscale, q, k, v, hidden):
    """Value, log-mass, gradient, JVP, and the Hessian in some arguments, by both methods."""

    def outputs(method, log_lengthscale, q, k, v):
        prior, kernel = priors.HeldOut(hidden), with_lengthscale(make, log_lengthscale)
        prior = prior & priors.ExcludeSelf() if leave_one_out else prior
        return ak.attend(q, k, v, kernel=kernel, prior=prior, method=method, return_log_mass=True)

    def of_method(method):
        def number(*moving):
            value, log_mass = outputs(method, *moving)
            seen = jnp.where(log_mass > -jnp.inf, log_mass, 0.0)
            return jnp.sum(jnp.sin(value)) + jnp.sum(seen**2)

        moving = log_lengthscale, q, k, v
        found = derivatives_too(functools.partial(outputs, method), moving)
        return found, jax.hessian(number, hessian_in)(*moving) if hessian_in else ()

    return of_method(Sorted()), of_method(Dense())


@pytest.mark.parametrize(
    ("make", "leave_one_out", "hessian_in"),
    [
        # by default a smooth kernel and one without end
        (ak.Epanechnikov, False, ()),
        (ak.Laplace, False, ()),
        slow(Boxcar, False, ()),
        slow(Triweight, True, ()),
        slow(ak.Laplace, False, (0,)),
        slow(ak.Epanechnikov, False, (0, 1, 2, 3)),
        slow(Triangular, True, (0, 1, 2, 3)),
    ],
)
def test_value_and_derivatives(x64, make, leave_one_out, hessian_in):
    """Unsorted rows, ties, a lattice with ℓ its spacing, hidden keys, empty windows, far queries.

    Ties at a cusp of K included: derivatives are those of the reference.
    """
    rng = np.random.default_rng(0)
    lattice = rng.integers(0, 12, (N, 1)) * 0.25
    for x in (rng.normal(size=(N, 1)), lattice, np.zeros((N, 1))):
        q = x
        if not leave_one_out:
            q = np.concatenate([rng.normal(size=(22, 1)), x[:13], [[40.0], [-2e3]]])
        for lengthscale, share in zip(LENGTHSCALES, (0.0, 0.4, 0.0, 0.7, 1.0), strict=True):
            hidden = rng.random(N) < share
            data = np.log(lengthscale), q, x, rng.normal(size=(N, DIM_V)), hidden
            both = jax.device_get(by_both_methods(make, leave_one_out, hessian_in, *data))
            assert_agree(*both, case=(lengthscale, share))


@pytest.mark.parametrize(
    ("make", "prior", "rule"),
    [
        (ak.Laplace, None, ak.Softmax(ak.fixed(0.6), sink_mass=ak.fixed(0.02))),
        slow(ak.Epanechnikov, priors.ExcludeSelf(), ak.Softmax(sink_mass=0.02)),
        slow(ak.Laplace, priors.ExcludeSelf(), ak.Softmax(1.4)),
        slow(Boxcar, None, ak.Softmax(1.4, sink_mass=0.02)),
    ],
)
def test_rules_and_metrics(x64, make, prior, rule):
    x, v = (np.random.default_rng(i).normal(size=(N, 1)) for i in (0, 1))
    kernel, rule = to_float64((make(0.5, metric=np.array([[1.7]])), rule))
    assert_equals_dense(Sorted(), kernel, prior, rule, x, x, v)


def test_heads_and_batches(x64):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=shape) for shape in ((29, 1), (N, 1), (N, DIM_V)))
    stacked = np.stack([q, q + 1.0, 2.0 * q])

    @jax.jit
    def per_head(log_lengthscales):
        def one(log_lengthscale):
            parts = {"kernel": with_lengthscale(ak.Epanechnikov, log_lengthscale)}
            return [ak.attend(stacked, k, v, **parts, method=m) for m in (Sorted(), Dense())]

        return jax.vmap(one)(log_lengthscales)

    assert_agree(*jax.device_get(per_head(np.log([0.1, 1.0, 40.0]))))


@pytest.mark.slow
def test_digits_of_many_keys_far_from_zero(x64):
    """x around 1e4, ℓ = 0.01: prefix sums of powers of x would have few digits left."""
    n, lengthscale = 10**5, 0.01
    rng = np.random.default_rng(0)
    x = 1e4 + rng.normal(size=(n, 1))
    y = 2.0 + np.sin(20.0 * (x - 1e4)) + rng.normal(size=(n, 1))
    q = rng.choice(x, 50) + 1e-3 * rng.normal(size=(50, 1))
    kernels = [make(lengthscale) for make in KERNELS]
    attended = functools.partial(ak.attend, method=Sorted(), return_log_mass=True)

    @jax.jit  # one program: they share the sorting
    def sums(q, x, y):
        return [attended(q, x, y, kernel=kernel) for kernel in kernels]

    results = jax.device_get(sums(q, x, y))
    ell = np.longdouble(kernels[0].lengthscale)
    for i, point in enumerate(q[:, 0]):
        near = np.abs(x[:, 0] - point) < 50 * lengthscale
        r = np.abs(x[near, 0].astype(np.longdouble) - point) / ell
        for make, (value, log_mass) in zip(KERNELS, results, strict=True):
            w = np.exp(FORMULAS[make](r))
            assert abs(value[i, 0] / (w @ y[near, 0] / w.sum()) - 1) < 500 * EPS
            assert abs(np.exp(log_mass[i].astype(np.longdouble)) / w.sum() - 1) < 500 * EPS


def test_log_mass_far_from_all_keys(x64):
    k, v = np.array([[0.0], [1.0], [3.0]]), np.array([[1.0], [2.0], [5.0]])
    q = np.array([[1e5], [-1e6], [2.0]])
    parts = {"kernel": ak.Laplace(0.01), "method": Sorted()}
    value, log_mass = ak.attend(q, k, v, **parts, return_log_mass=True)
    np.testing.assert_allclose(np.asarray(value)[:, 0], [5.0, 1.0, 3.5], rtol=1e-12)
    expected = [-(1e5 - 3) / 0.01, -1e8, -100 + np.log(2)]
    np.testing.assert_allclose(log_mass, expected, rtol=50 * EPS)


@pytest.mark.parametrize("make", [Biweight, slow(ak.Laplace)])
def test_labels_of_hidden_and_unreached_keys_are_not_read(x64, make):
    x = np.arange(10.0)[:, None]
    hidden = np.arange(10) == 3
    x_nan, y = np.where(hidden[:, None], np.nan, x), x.copy()
    y[[0, 3]] = np.nan

    @jax.jit
    def both(x, x_nan, y):
        parts = {"kernel": make(1.5), "prior": priors.HeldOut(hidden)}
        ours = ak.attend(x, x_nan, y, **parts, method=Sorted())
        return ours, ak.attend(x, x, x, **parts, method=Dense())

    out, clean = jax.device_get(both(x, x_nan, y))
    reached = np.arange(10) < (10 if make is ak.Laplace else 2)
    np.testing.assert_allclose(out[~reached], clean[~reached], rtol=1e-12)
    assert np.isnan(out[reached]).all()


def test_end_of_the_support_agrees_with_the_kernel(x64):
    """A lone key at a distance of ℓ to rounding is in reach, or is not, as for the reference."""
    log_lengthscales = np.log(np.linspace(0.5, 2.0, 300))

    @jax.jit
    def per_head(log_lengthscales):
        def one(log_lengthscale):
            kernel = with_lengthscale(ak.Epanechnikov, log_lengthscale)
            q, label, end = jnp.zeros((1, 1)), jnp.full((1, 1), 7.0), kernel.lengthscale

            def at(key, method):
                return ak.attend(q, key.reshape(1, 1), label, kernel=kernel, method=method)[0, 0]

            keys = end, jnp.nextafter(end, 0.0)
            return [[at(key, method) for key in keys] for method in (Sorted(), Dense())]

        return jax.vmap(one)(log_lengthscales)

    ours, dense = jax.device_get(per_head(log_lengthscales))
    np.testing.assert_allclose(ours, dense, rtol=1e-12)
    assert np.any(dense[1] > 0)
    assert np.any(dense[0] == 0)


@pytest.mark.parametrize("make", [Triangular, slow(ak.Epanechnikov)])
def test_left_out_key_apart_from_its_query_gives_nan(x64, make):
    k = np.array([[0.0], [1.0], [2.0], [9.0]])
    q = np.array([[0.0], [1.1], [2.0], [2.1]])
    parts = make(1.5), priors.ExcludeSelf(), ak.Softmax(), q, k, k
    (out, _), (dense, _) = evaluate((Sorted(), Dense()), *parts, derivatives=False)
    dense = dense.copy()
    dense[1] = np.nan  # 9 is out of reach
    np.testing.assert_allclose(out, dense, rtol=1e-12)


@pytest.mark.slow
def test_memory_grows_with_rows_not_with_pairs():
    def value(x, y):
        return jnp.sum(ak.attend(x, x, y, kernel=ak.Epanechnikov(0.3), method=Sorted()))

    n = 16384  # n x n numbers would be 1 GiB
    assert temporary_bytes(jax.grad(value, (0, 1)), (n, 1), (n, 1)) < 4 * n * 1000


@pytest.mark.parametrize("kernel", [slow(Triweight()), ak.Laplace()])
def test_no_queries_and_no_keys_and_one_key(kernel):
    @jax.jit
    def results(x):
        def sums(*arrays, **options):
            options |= {"kernel": kernel, "method": Sorted(), "return_log_mass": True}
            return ak.attend(*arrays, **options)

        itself = sums(x[:1], x[:1], x[:1], prior=priors.ExcludeSelf())
        empty = sums(x, x[:0], x[:0]), itself
        return sums(x[:0], x, x)[0], empty, sums(x + 0.5, x[:1], 7 * x[:1])[0]

    of_no_query, empty, of_one_key = jax.device_get(results(np.ones((5, 1), np.float32)))
    assert of_no_query.shape == (0, 1)
    for value, log_mass in empty:
        assert (value == 0).all()
        assert np.isneginf(log_mass).all()
    np.testing.assert_array_equal(of_one_key, 7.0)
