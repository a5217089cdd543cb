"""`Fourier`: within its stated tolerance of the dense reference at every query."""

import functools
import importlib.util

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import needs_finufft, slow

import attnkernel as ak
from attnkernel import priors
from attnkernel.methods import _fallback, _nufft

pytestmark = needs_finufft

QUERIES, KEYS = 37, 53
HIDDEN = np.arange(KEYS) % 3 == 1
METRIC = np.array([[2.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 1.0]])
CASES = {
    "1-D, leave one out": (
        1,
        lambda: ak.Gaussian(0.3),
        priors.ExcludeSelf(),
        ak.Softmax(0.7, sink_mass=0.1),
    ),
    "2-D, per dimension, held out": (
        2,
        lambda: ak.Gaussian(jnp.array([0.7, 1.1])),
        priors.HeldOut(HIDDEN) & priors.ExcludeSelf(),
        ak.Softmax(),
    ),
    "3-D, full metric": (3, lambda: ak.Gaussian(1.5, metric=METRIC), None, ak.Softmax()),
}


@pytest.fixture
def allow_rank_promotion():
    """jax-finufft broadcasts ranks in its derivatives in the points."""
    with jax.numpy_rank_promotion("allow"):
        yield


def test_the_module_of_jax_finufft_stays_as_it_is(x64):
    import jax_finufft  # noqa: PLC0415
    from jax.interpreters import batching  # noqa: PLC0415

    q, k, v = data(1)

    def total(q):
        return ak.attend(q, k, v, kernel=ak.Gaussian(0.7), method=ak.Fourier()).sum()

    assert jax.vmap(total)(jnp.stack([q, q + 1])).shape == (2,)
    if not hasattr(batching, "not_mapped"):
        assert not hasattr(jax_finufft.ops.batching, "not_mapped")
        assert hasattr(jax_finufft.ops.batching, "primitive_batchers")


def data(dim, queries=QUERIES, keys=KEYS, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((queries, dim), (keys, dim), (keys, 2))
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)


@pytest.mark.parametrize(
    "case",
    [
        "1-D, leave one out",
        slow("2-D, per dimension, held out"),
        slow("3-D, full metric"),
    ],
)
def test_value_gradient_and_jvp(x64, allow_rank_promotion, case):
    dim, kernel, prior, rule = CASES[case]
    moving = (kernel(), *data(dim))

    def outputs(moving, method):
        kernel, q, k, v = moving
        return ak.attend(
            q, k, v, kernel=kernel, prior=prior, rule=rule, method=method, return_log_mass=True
        )

    @eqx.filter_jit
    def everything(moving, method):
        def number(moving):
            value, log_mass = outputs(moving, method)
            return jnp.sum(jnp.sin(value)) + jnp.sum(log_mass**2)

        along = jax.tree.map(jnp.cos, moving)
        change = jax.jvp(lambda moving: outputs(moving, method), (moving,), (along,))[1]
        return outputs(moving, method), jax.grad(number)(moving), change

    reference = jax.tree.leaves(everything(moving, ak.Dense()))
    ours = jax.tree.leaves(everything(moving, ak.Fourier()))
    for one, other in zip(ours, reference, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_second_derivative_in_the_lengthscale(x64):
    q, k, v = data(1)

    def number(log_lengthscale, method):
        kernel = eqx.tree_at(lambda k: k.lengthscale_parameter.z, ak.Gaussian(1.0), log_lengthscale)
        return jnp.sum(jnp.sin(ak.attend(q, k, v, kernel=kernel, method=method)))

    at = jnp.log(jnp.asarray(0.4))
    for derivative in (jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))):
        dense, ours = (
            jax.jit(derivative(lambda at, method=method: number(at, method)))(at)
            for method in (ak.Dense(), ak.Fourier())
        )
        np.testing.assert_allclose(ours, dense, rtol=1e-6)


def error_in_tolerances(ours, exact, v, tol):
    """The largest error of a prediction, in units of the stated tolerance."""
    spread = np.abs(v - v.mean(axis=0))
    typical = np.exp(np.mean(np.log(np.where(spread == 0, 1, spread)), axis=0))
    scale = np.minimum(np.abs(exact), np.abs(exact - v.mean(axis=0)))
    promised = tol * np.maximum(scale, 1e-3 * typical)
    rounding = 1e-13 * np.max(np.abs(v))
    return np.max(np.abs(ours - exact) / (promised + rounding))


@pytest.mark.parametrize(
    "hard",
    [slow("clusters"), "one value of 1e12", "signs cancel"],
)
def test_tolerance_holds_at_every_query_and_lengthscale(x64, hard):
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(-3, 3, 400))
    y = np.sin(3 * x) + 0.1 * rng.normal(size=400)
    if hard == "clusters":
        x = np.concatenate([x[:380] * 1e-3, 1e3 * (1 + np.arange(20))])  # and lonely points
    if hard == "one value of 1e12":
        y[17] = 1e12
    if hard == "signs cancel":
        y = np.where(np.arange(400) % 2, 1.0, -1.0)
    q, k, v = x[::3, None] + 1e-3, x[:, None], y[:, None]
    fourier = ak.Fourier(1e-6)

    @jax.jit
    def both(lengthscale):
        kernel = ak.Gaussian(lengthscale)
        return (
            ak.attend(q, k, v, kernel=kernel, method=fourier, return_log_mass=True),
            ak.attend(q, k, v, kernel=kernel, method=ak.Dense(), return_log_mass=True),
            fourier.recomputed(q, k, v, kernel=kernel),
        )

    numbers = []
    for lengthscale in (1e-30, 1e-6, 1e-3, 0.01, 0.1, 1.0, 30.0, 1e4, 1e30):
        (ours, log_mass), (exact, exact_log_mass), recomputed = both(jnp.asarray(lengthscale))
        assert np.all(np.isfinite(ours) == np.isfinite(exact))
        seen = np.isfinite(exact_log_mass)
        assert np.all(np.isneginf(log_mass[~seen]))
        np.testing.assert_allclose(log_mass[seen], exact_log_mass[seen], atol=1e-6, rtol=1e-12)
        ours, exact = np.asarray(ours)[seen], np.asarray(exact)[seen]
        assert error_in_tolerances(ours, exact, v, 1e-6) <= 1
        numbers.append(int(recomputed))
    assert numbers[0] == len(q)  # nothing there can be certified
    if hard == "signs cancel":
        assert min(numbers) == 0  # and at some lengthscale all is


@pytest.mark.slow
def test_looser_tolerance_recomputes_fewer_queries(x64):
    q, k, v = data(1, 200, 300)
    kernel = ak.Gaussian(0.02)
    exact = ak.attend(q, k, v, kernel=kernel, method=ak.Dense())
    numbers = []
    for tol in (1e-10, 1e-3):
        fourier = ak.Fourier(tol)
        ours = ak.attend(q, k, v, kernel=kernel, method=fourier)
        parts = (np.asarray(array) for array in (ours, exact, v))
        assert error_in_tolerances(*parts, tol) <= 1
        numbers.append(int(fourier.recomputed(q, k, v, kernel=kernel)))
    assert numbers[1] < numbers[0]


def test_only_a_prediction_of_zero_needs_a_thousandth_of_a_typical_value(x64):
    """The bound on the error is 3e-13: below 1e-11, but not below the 1e-14 asked for at 0."""
    half = np.random.default_rng(4).uniform(0.1, 3.0, 200)
    k, v = (np.concatenate([a, -a])[:, None] for a in (half, np.ones(200)))  # v is its own sign
    q, fourier = np.array([[-1.0], [0.0], [1.5]]), ak.Fourier(1e-11)
    recomputed = jax.jit(lambda q: fourier.recomputed(q, k, v, kernel=ak.Gaussian(0.5)))
    assert recomputed(q) == 1
    assert recomputed(q + 0.5) == 0


def primitives(jaxpr, name):
    """All equations of this name, those within branches too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        for part in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda part: hasattr(part, "eqns")
        ):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield from primitives(inner, name)


@pytest.mark.slow
def test_one_transform_of_the_keys_serves_all_heads(x64):
    q, k, v = data(1)
    kernels = eqx.filter_vmap(ak.Gaussian)(jnp.array([0.05, 0.3, 2.0]))

    def heads(method):
        one = lambda kernel: ak.attend(q, k, v, kernel=kernel, method=method)  # noqa: E731
        return lambda kernels: jax.vmap(one)(kernels)  # noqa: PLW0108  jit hashes it

    ours, dense = jax.jit(heads(ak.Fourier()))(kernels), heads(ak.Dense())(kernels)
    np.testing.assert_allclose(ours, dense, rtol=1e-6, atol=1e-9)
    jaxpr = jax.make_jaxpr(heads(ak.Fourier()))(kernels).jaxpr
    of_keys, of_queries = (list(primitives(jaxpr, name)) for name in ("nufft1", "nufft2"))
    pairs = 2  # two columns of v and the mass, two by two
    assert {equation.invars[0].aval.size for equation in of_keys} == {pairs * KEYS}
    assert {equation.outvars[0].aval.size for equation in of_queries} == {3 * pairs * QUERIES}
    gradient = jax.jit(jax.grad(lambda kernels: jnp.sum(heads(ak.Fourier())(kernels) ** 2)))
    exact = jax.grad(lambda kernels: jnp.sum(heads(ak.Dense())(kernels) ** 2))(kernels)
    np.testing.assert_allclose(
        gradient(kernels).lengthscale_parameter.z,
        exact.lengthscale_parameter.z,
        rtol=1e-6,
        atol=1e-8,
    )


def test_nan_query_changes_only_its_own_row(x64):
    q, k, v = data(1)
    call = jax.jit(lambda q, v: ak.attend(q, k, v, kernel=ak.Gaussian(0.5), method=ak.Fourier()))
    clean = call(q, v)
    spoilt = call(q.at[3].set(jnp.nan).at[5].set(jnp.inf), v)
    assert np.isnan(spoilt[3]).all()
    others = np.delete(np.arange(QUERIES), [3, 5])
    np.testing.assert_allclose(spoilt[others], clean[others], rtol=1e-6)
    assert np.isnan(call(q, v.at[0, 0].set(jnp.nan))).any()


def test_labels_of_held_out_rows_are_not_read(x64):
    q, k, v = data(1)
    prior = priors.HeldOut(HIDDEN)
    call = jax.jit(
        lambda v: ak.attend(q, k, v, kernel=ak.Gaussian(0.5), prior=prior, method=ak.Fourier())
    )
    np.testing.assert_array_equal(call(v.at[HIDDEN].set(jnp.nan)), call(v))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kernel": lambda: ak.Laplace(0.3)}, "Gaussian.*Laplace"),
        ({"dim": 4}, "1 to 3.*4"),
        ({"prior": ak.Causal()}, "HeldOut and ExcludeSelf.*causal"),
    ],
)
def test_unsupported_tasks_are_refused(x64, change, reason):
    kernel = change.get("kernel", lambda: ak.Gaussian(0.3))()
    q, k, v = data(change.get("dim", 1))
    arguments = {"kernel": kernel, "prior": change.get("prior")}
    for call in (functools.partial(ak.attend, method=ak.Fourier()), ak.Fourier().recomputed):
        with pytest.raises(ValueError, match=f"Fourier cannot evaluate this: .*{reason}"):
            call(q, k, v, **arguments)


def test_missing_package_is_named(x64, monkeypatch):
    shapes = (jax.ShapeDtypeStruct((10**5, 1), jnp.float64),) * 3
    assert ak.select_method(*shapes, kernel=ak.Gaussian(0.3)).method == ak.Fourier()
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jax_finufft" else found(name)
    )
    selection = ak.select_method(*shapes, kernel=ak.Gaussian(0.3))
    assert selection.method == ak.Blockwise()
    assert "jax-finufft" in str(selection)


@pytest.mark.parametrize("tol", [0.0, 1e-13, 1.0])
def test_invalid_tolerance(tol):
    with pytest.raises(ValueError, match=r"tol.*1e-12.*1"):
        ak.Fourier(tol)


@pytest.mark.parametrize("dim", [1, 2, slow(3)])
def test_error_of_one_source_stays_within_its_bound(x64, allow_rank_promotion, dim, monkeypatch):
    """As the certificate assumes: a Gaussian of width 2 ℓ around the source, rounding elsewhere."""
    monkeypatch.setattr(_nufft, "PAIRS_PER_FREQUENCY", {dim: 0})  # all sizes, for so few pairs too
    rng = np.random.default_rng(dim)
    convolve = jax.jit(functools.partial(_nufft.convolve, tol=1e-6))
    for _ in range(6):
        widths = 10 ** rng.uniform({1: -2.0, 2: -0.7, 3: 0.0}[dim], 0.3, dim)
        source = rng.uniform(-3, 3, (1, dim))
        near = np.clip(source + widths * rng.normal(size=(3000, dim)), -3, 3)
        q = np.concatenate([near, rng.uniform(-3, 3, (3000, dim)), [[-3.0] * dim, [3.0] * dim]])
        squared = np.sum(((q - source) / widths) ** 2, axis=1)
        sums, bound = convolve(q, source, np.ones((1, 1)), np.diag(widths**2))
        error = np.abs(np.asarray(sums)[0, :, 0] - np.exp(-0.5 * squared))
        waves = np.sum((6 + 9.6 * np.max(widths)) / (2 * np.pi * widths))
        eps = np.finfo(float).eps
        assert np.all(error <= (4e-14 + 8 * eps * waves) * np.exp(-squared / 8) + 8 * eps)
        assert np.all(error <= bound[0])
        assert bound[0, 0] < 1e-9  # the frequencies did suffice


@pytest.mark.parametrize(
    "prior",
    [slow(None), priors.HeldOut(HIDDEN) & priors.ExcludeSelf()],
)
def test_selected_queries_are_recomputed_exactly(x64, monkeypatch, prior):
    """None, one, some and all of 37 queries, in groups of four."""
    monkeypatch.setattr(_fallback, "CHUNK_QUERIES", 4)
    q, k, v = data(2)

    def exact(kernel, selected):
        state = _fallback.recompute_exactly(selected, q, k, v, (kernel, prior, ak.Softmax()))
        return state.value, jnp.where(state.mass > 0, state.log_mass, 0.0)

    def dense(kernel, selected):
        value, log_mass = ak.attend(
            q, k, v, kernel=kernel, prior=prior, method=ak.Dense(), return_log_mass=True
        )
        return jnp.where(selected[:, None], value, 0.0), jnp.where(selected, log_mass, 0.0)

    @eqx.filter_jit
    def both(kernel, selected):
        def with_gradient(function):
            def scalar(kernel):
                return sum(jnp.sum(jnp.sin(a)) for a in function(kernel, selected))

            return function(kernel, selected), eqx.filter_grad(scalar)(kernel)

        return with_gradient(exact), with_gradient(dense)

    order = np.random.default_rng(1).permutation(QUERIES)
    for number in (0, 1, 19, QUERIES):
        selected = np.isin(np.arange(QUERIES), order[:number])
        found, expected = both(ak.Gaussian(0.7), selected)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_blocks_without_a_selected_query_are_skipped():
    rows = jnp.arange(8)
    mask = _fallback._ReorderedMask(jnp.ones(8, bool), True, rows, rows, jnp.asarray(3))
    first, last = jnp.asarray(0), jnp.asarray(7)
    block = priors.PositionBlock(jnp.asarray(2), jnp.asarray(3), first, last)
    assert mask.score_upper_bound(block) == 0
    assert np.isneginf(mask.score_upper_bound(block._replace(i_low=jnp.asarray(3), i_high=last)))
