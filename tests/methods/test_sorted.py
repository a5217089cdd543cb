"""`Sorted`: it equals the dense reference, and keeps its digits where prefix sums lose them."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

import attnkernel as ak
from attnkernel import priors
from attnkernel.methods import Task

N, DIM_V = 37, 2
KERNELS = (ak.Boxcar, ak.Triangular, ak.Epanechnikov, ak.Biweight, ak.Triweight, ak.Laplace)
LENGTHSCALES = (0.05, 0.25, 0.73, 3.0, 1e3)  # 0.25 is the spacing of the lattice


def with_lengthscale(make, log_lengthscale):
    return eqx.tree_at(lambda kernel: kernel.lengthscale_parameter.z, make(1.0), log_lengthscale)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def evaluate(make, method, leave_one_out, full_hessian, log_lengthscale, q, k, v, hidden):
    """Value, log-mass, gradient, JVP, and the Hessian in ℓ or, if `full_hessian`, in all."""

    def outputs(log_lengthscale, q, k, v):
        prior = priors.HeldOut(hidden)
        return ak.attend(
            q,
            k,
            v,
            kernel=with_lengthscale(make, log_lengthscale),
            prior=prior & priors.ExcludeSelf() if leave_one_out else prior,
            method=method,
            return_log_mass=True,
        )

    def number(*moving):
        value, log_mass = outputs(*moving)
        return jnp.sum(jnp.sin(value)) + jnp.sum(jnp.where(log_mass > -jnp.inf, log_mass, 0.0) ** 2)

    moving = log_lengthscale, q, k, v
    along = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), moving)
    return (
        *outputs(*moving),
        jax.grad(number, (0, 1, 2, 3))(*moving),
        jax.jvp(outputs, moving, along)[1],
        jax.hessian(number, (0, 1, 2, 3) if full_hessian else 0)(*moving),
    )


def assert_agree(a, b, rtol=1e-10, atol=1e-10):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert not np.isnan(one).any()
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("make", "leave_one_out"),
    [
        # by default a smooth kernel, one without end and one with a cusp at 0 that leaves a key out
        (ak.Epanechnikov, False),
        (ak.Laplace, False),
        (ak.Triangular, True),
        slow(ak.Boxcar, False),
        slow(ak.Triweight, True),
        slow(ak.Epanechnikov, True),
        slow(ak.Laplace, True),
        slow(ak.Biweight, False),
        slow(ak.Triweight, False),
    ],
)
def test_value_and_derivatives(x64, make, leave_one_out):
    """Unsorted rows, ties, a lattice with ℓ its spacing, hidden keys, empty windows, far queries.

    Ties at a cusp of K included: derivatives are those of the reference.
    """
    rng = np.random.default_rng(0)
    full_hessian = make is (ak.Triangular if leave_one_out else ak.Epanechnikov)
    lattice = rng.integers(0, 12, (N, 1)) * 0.25
    for x in (rng.normal(size=(N, 1)), lattice, np.zeros((N, 1))):
        q = (
            x
            if leave_one_out
            else np.concatenate([rng.normal(size=(22, 1)), x[:13], [[40.0], [-2e3]]])
        )
        for lengthscale, share in zip(LENGTHSCALES, (0.0, 0.4, 0.0, 0.7, 1.0), strict=True):
            hidden = rng.random(N) < share
            data = np.log(lengthscale), q, x, rng.normal(size=(N, DIM_V)), hidden
            data = tuple(map(jnp.asarray, data))
            assert_agree(
                *(
                    evaluate(make, m, leave_one_out, full_hessian, *data)
                    for m in (ak.Sorted(), ak.Dense())
                )
            )


@pytest.mark.parametrize(
    ("make", "prior", "rule"),
    [
        (ak.Laplace, None, lambda: ak.Softmax(ak.fixed(0.6), sink_mass=ak.fixed(0.02))),
        (ak.Laplace, priors.ExcludeSelf(), lambda: ak.Softmax(jnp.asarray(1.4))),
        (ak.Boxcar, None, lambda: ak.Softmax(jnp.asarray(1.4), sink_mass=0.02)),
        (ak.Epanechnikov, priors.ExcludeSelf(), lambda: ak.Softmax(sink_mass=jnp.asarray(0.02))),
    ],
)
def test_rules_and_metrics(x64, make, prior, rule):
    x, v = (jnp.asarray(np.random.default_rng(i).normal(size=(N, 1))) for i in (0, 1))
    parts = make(0.5, metric=jnp.array([[1.7]])), rule()

    @eqx.filter_jit
    def results(method, parts):
        def number(parts):
            kernel, rule = parts
            out = ak.attend(x, x, v, kernel=kernel, prior=prior, rule=rule, method=method)
            return jnp.sum(jnp.sin(out))

        return number(parts), eqx.filter_grad(number)(parts)

    assert_agree(results(ak.Sorted(), parts), results(ak.Dense(), parts))


def test_heads_and_batches(x64):
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=shape)) for shape in ((29, 1), (N, 1), (N, DIM_V)))
    for make in (ak.Epanechnikov, ak.Laplace):
        heads = eqx.filter_vmap(make)(jnp.array([0.1, 1.0, 40.0]))
        stacked = jnp.stack([q, q + 1.0, 2.0 * q])

        def per_head(method, heads=heads, stacked=stacked):
            def one(kernel):
                return ak.attend(stacked, k, v, kernel=kernel, method=method)

            return eqx.filter_vmap(one)(heads)

        assert_agree(per_head(ak.Sorted()), per_head(ak.Dense()))


EXACT = {
    ak.Boxcar: np.ones_like,
    ak.Triangular: lambda r: 1 - r,
    ak.Epanechnikov: lambda r: 1 - r**2,
    ak.Biweight: lambda r: (1 - r**2) ** 2,
    ak.Triweight: lambda r: (1 - r**2) ** 3,
    ak.Laplace: lambda r: np.exp(-r),
}


@pytest.mark.slow
def test_digits_of_many_keys_far_from_zero(x64):
    """x around 1e4, ℓ = 0.01: prefix sums of powers of x would have few digits left."""
    n, lengthscale = 10**6, 0.01
    rng = np.random.default_rng(0)
    x = 1e4 + rng.normal(size=(n, 1))
    y = 2.0 + np.sin(20.0 * (x - 1e4)) + rng.normal(size=(n, 1))
    q = rng.choice(x, 50) + 1e-3 * rng.normal(size=(50, 1))
    kernels = [make(lengthscale) for make in EXACT]
    method = ak.Sorted()

    @jax.jit  # one program: they share the sorting
    def sums(q, x, y):
        return [
            ak.attend(q, x, y, kernel=kernel, method=method, return_log_mass=True)
            for kernel in kernels
        ]

    results = jax.tree.map(np.asarray, sums(q, x, y))
    ell = np.longdouble(kernels[0].lengthscale)
    for i, point in enumerate(q[:, 0]):
        near = np.abs(x[:, 0] - point) < 50 * lengthscale
        r = np.abs(x[near, 0].astype(np.longdouble) - point) / ell
        for (make, exact), (value, log_mass) in zip(EXACT.items(), results, strict=True):
            w = exact(r) if make is ak.Laplace else np.where(r < 1, exact(r), 0)
            assert abs(value[i, 0] / (w @ y[near, 0] / w.sum()) - 1) < 1e-13
            assert abs(np.exp(log_mass[i].astype(np.longdouble)) / w.sum() - 1) < 1e-13


def test_float32_far_from_zero():
    rng = np.random.default_rng(0)
    x = np.float32(1e4 + rng.normal(size=(2000, 1)))
    y = np.float32(rng.normal(size=(2000, 1)))
    prior, lengthscale = priors.ExcludeSelf(), np.float32(0.1)

    @functools.partial(jax.jit, static_argnums=0)
    def values(method, x, y):
        kernels = [make(lengthscale) for make in KERNELS]
        return [ak.attend(x, x, y, kernel=kernel, prior=prior, method=method) for kernel in kernels]

    single = values(ak.Sorted(), x, y)
    with jax.enable_x64(True):
        double = values(ak.Dense(), np.float64(x), np.float64(y))
    for make, *both in zip(KERNELS, single, double, strict=True):
        # at the jump of a boxcar the two precisions may differ by a key
        np.testing.assert_allclose(
            *both, atol=0.1 if make is ak.Boxcar else 2e-5, err_msg=make.__name__
        )


def test_log_mass_far_from_all_keys(x64):
    k, v = jnp.array([[0.0], [1.0], [3.0]]), jnp.array([[1.0], [2.0], [5.0]])
    q = jnp.array([[1e5], [-1e6], [2.0]])
    value, log_mass = ak.attend(
        q, k, v, kernel=ak.Laplace(0.01), method=ak.Sorted(), return_log_mass=True
    )
    np.testing.assert_allclose(value[:, 0], [5.0, 1.0, 3.5], rtol=1e-12)
    np.testing.assert_allclose(log_mass, [-(1e5 - 3) / 0.01, -1e8, -100 + np.log(2)], rtol=1e-14)


def test_labels_of_hidden_and_unreached_keys_are_not_read(x64):
    x = jnp.arange(10.0)[:, None]
    y = x.at[3].set(jnp.nan).at[0].set(jnp.nan)
    hidden = jnp.arange(10) == 3
    for make in (ak.Laplace, ak.Biweight):
        attend = jax.jit(
            functools.partial(ak.attend, kernel=make(1.5), prior=priors.HeldOut(hidden)),
            static_argnames="method",
        )
        out = attend(x, x.at[3].set(jnp.nan), y, method=ak.Sorted())
        clean = attend(x, x, x, method=ak.Dense())
        reached = np.arange(10) < (10 if make is ak.Laplace else 2)
        np.testing.assert_allclose(out[~reached], clean[~reached], rtol=1e-12)
        assert np.isnan(out[reached]).all()


def test_end_of_the_support_agrees_with_the_kernel(x64):
    """A lone key at a distance of ℓ to rounding is in reach, or is not, as for the reference."""
    label = jnp.full((1, 1), 7.0)
    heads = eqx.filter_vmap(ak.Epanechnikov)(jnp.linspace(0.5, 2.0, 300))
    for keys in (heads.lengthscale, jnp.nextafter(heads.lengthscale, 0.0)):

        def per_head(method, keys=keys):
            def one(kernel, key):
                q, k = jnp.zeros((1, 1)), key.reshape(1, 1)
                return ak.attend(q, k, label, kernel=kernel, method=method)[0, 0]

            return eqx.filter_vmap(one)(heads, keys)

        dense = per_head(ak.Dense())
        assert (dense > 0).any()
        np.testing.assert_allclose(per_head(ak.Sorted()), dense, rtol=1e-12)
    assert (dense < 7).any()


def test_left_out_key_apart_from_its_query_gives_nan(x64):
    k = jnp.array([[0.0], [1.0], [2.0], [9.0]])
    q = jnp.array([[0.0], [1.1], [2.0], [2.1]])
    for make in (ak.Epanechnikov, ak.Triangular):
        attend = jax.jit(
            functools.partial(ak.attend, kernel=make(1.5), prior=priors.ExcludeSelf()),
            static_argnames="method",
        )
        out, dense = (attend(q, k, k, method=method) for method in (ak.Sorted(), ak.Dense()))
        np.testing.assert_allclose(out, dense.at[1].set(jnp.nan), rtol=1e-12)  # 9 is out of reach


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"kernel": ak.Gaussian()},
            "Laplace, Boxcar, .* Triweight.*Gaussian",
        ),
        ({"dim": 2}, "one dimension.*2"),
        ({"prior": ak.Causal()}, "HeldOut and ExcludeSelf.*causal"),
        ({"prior": priors.ExcludeSelf() & ak.Causal()}, "got a causal mask"),
        ({"prior": priors.ExcludeSelf(), "queries": 3}, "same rows.*3 queries.*5 keys"),
        (
            {"rule": ak.Softmax(0.5)},
            "Biweight.*temperature 1",
        ),
        ({"rule": ak.Softmax(jnp.asarray(1.0))}, "Biweight.*temperature 1"),
    ],
)
def test_unsupported_tasks_are_refused(changes, reason):
    task = Task(ak.Biweight(), None, ak.Softmax(), 5, 5, 1, 1, jnp.float32)
    assert ak.Sorted().unsupported_reason(task) is None
    task = task._replace(**changes)
    arrays = (jnp.zeros((rows, task.dim)) for rows in (task.queries, task.keys, task.keys))
    with pytest.raises(ValueError, match=f"Sorted cannot evaluate this: .*{reason}"):
        ak.attend(*arrays, kernel=task.kernel, prior=task.prior, rule=task.rule, method=ak.Sorted())


@pytest.mark.slow
def test_memory_grows_with_rows_not_with_pairs():
    def value(x, y):
        return ak.attend(x, x, y, kernel=ak.Epanechnikov(0.3), method=ak.Sorted())

    def used(n):
        shape = jax.ShapeDtypeStruct((n, 1), jnp.float32)
        compiled = jax.jit(jax.grad(lambda *a: jnp.sum(value(*a)), (0, 1))).lower(shape, shape)
        return compiled.compile().memory_analysis().temp_size_in_bytes

    n = 8192
    assert used(2 * n) - used(n) < 4 * n * 1000  # n x n numbers would be 256 MiB


def test_no_queries_and_no_keys_and_one_key():
    x = jnp.ones((5, 1))
    for kernel in (ak.Laplace(), ak.Triweight()):
        sums = jax.jit(
            functools.partial(ak.attend, kernel=kernel, method=ak.Sorted(), return_log_mass=True),
            static_argnames="prior",
        )
        assert sums(x[:0], x, x)[0].shape == (0, 1)
        for value, log_mass in (
            sums(x, x[:0], x[:0]),
            sums(x[:1], x[:1], x[:1], prior=priors.ExcludeSelf()),
        ):
            assert (np.asarray(value) == 0).all()
            assert np.isneginf(log_mass).all()
        np.testing.assert_array_equal(sums(x + 0.5, x[:1], 7 * x[:1])[0], 7.0)
