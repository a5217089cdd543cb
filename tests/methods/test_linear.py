"""`Linear`: exact for kernels of finite rank, unbiased with random features for others;
`Prior.pair_mask`: what a factorised method may ask of a prior, also of a user's own."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool
from kernel_formulas import elu
from laws import assert_equals_dense, evaluate
from marks import needs_finufft, slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel import priors
from attnkernel.kernels import EluFeatures, RandomFeatures, Taylor
from attnkernel.methods import Blockwise, Dense, Fourier, Linear, Sharded, Sorted

N, DIM, DIM_V = 137, 3, 5  # more than two chunks, the last of them short
HIDDEN = np.arange(N) % 3 == 0


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    dtype = jax.dtypes.canonicalize_dtype(float)
    return tuple(rng.normal(size=(N, size)).astype(dtype) for size in (DIM, DIM, DIM_V))


@functools.cache
def random_features(count, dim, seed=0, **options):
    """Features made in one program."""

    @eqx.filter_jit
    def made(seed):
        return RandomFeatures(count, dim, **options, key=jax.random.PRNGKey(seed))

    return made(seed)


def made_module(*sizes, **options):
    """A module whose parameters are drawn in one program."""
    return eqx.filter_jit(
        lambda seed: ak.MultiheadAttention(*sizes, **options, key=jax.random.PRNGKey(seed))
    )(0)


@pytest.mark.parametrize(
    ("kernel", "prior"),
    [
        (EluFeatures(), ak.priors.HeldOut(HIDDEN) & ak.Causal()),
        (Taylor(), ak.priors.HeldOut(HIDDEN)),
        slow(EluFeatures(), None),
        slow(Taylor(), ak.Causal()),
    ],
)
def test_value_gradient_and_jvp_for_finite_rank(x64, kernel, prior):
    """Value, log-mass, gradient and JVP, with a sink."""
    rule = ak.Softmax(sink_mass=ak.fixed(0.1))
    assert_equals_dense(Linear(), kernel, prior, rule, *arrays(), rtol=1e-11, atol=1e-11)


def test_finite_rank_kernels_equal_their_formulas(x64):
    q, k, _ = (x[:7] for x in arrays())
    scores = q @ k.T / np.sqrt(DIM)
    expected = [np.log(elu(q) @ elu(k).T), np.log(1 + scores + scores**2 / 2)]

    @jax.jit
    def results(q, k):
        def of(kernel):
            of_q, of_k = (f.factor * jnp.exp(f.log) for f in map(kernel.features, (q, k)))
            return kernel.pairwise(q, k), jnp.log(of_q @ of_k.T)

        return [of(kernel) for kernel in (EluFeatures(), Taylor())]

    for (scores, of_features), formula in zip(results(q, k), expected, strict=True):
        np.testing.assert_allclose(scores, formula, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(of_features, formula, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "positive"), [(ak.Gaussian(1.5), True), (ak.DotProduct(-0.5), False)]
)
def test_random_features_are_unbiased(x64, kernel, positive):
    """The error of a weight falls as one over the square root of their number."""
    q, k = 0.5 * np.random.default_rng(2).normal(size=(2, 5, DIM))

    @jax.jit
    def estimates(q, k):
        def of(key, count):
            features = RandomFeatures(count, DIM, positive=positive, key=key)
            of_q, of_k = Linear(features).apply_features(q, k, kernel, ak.Softmax())
            return (of_q.factor * jnp.exp(of_q.log)) @ (of_k.factor * jnp.exp(of_k.log)).T

        keys = jax.random.split(jax.random.PRNGKey(3), 400)
        found = [jax.vmap(functools.partial(of, count=count))(keys) for count in (12, 192)]
        return found, jnp.exp(kernel.pairwise(q, k))

    of_counts, exact = jax.device_get(estimates(q, k))
    errors = []
    for found in of_counts:
        spread = found.std(axis=0)
        assert (np.abs(found.mean(axis=0) - exact) < 5 * spread / 20 + 1e-12).all()
        errors.append(np.sqrt(np.mean((found - exact) ** 2)))
    assert 2.8 < errors[0] / errors[1] < 5.7  # √16 = 4


def test_random_features_divide_by_the_temperature_and_get_no_gradient(x64):
    """exp(s / τ) is the kernel of the lengthscale √τ ℓ, or of the dot product times 1 / τ."""
    q, k, v = (rows[:7] for rows in arrays())
    same = [(ak.Gaussian(1.5), ak.Gaussian(1.05)), (ak.DotProduct(0.5), ak.DotProduct(0.5 / 0.49))]

    @eqx.filter_jit
    def both_and_slopes(method):
        def outputs(method, kernel, temperature=1.0):
            rule = ak.Softmax(temperature)
            return ak.attend(q, k, v, kernel=kernel, rule=rule, method=method, return_log_mass=True)

        found = [(outputs(method, a, 0.49), outputs(method, b)) for a, b in same]
        slopes = eqx.filter_grad(lambda method: jnp.sum(outputs(method, same[0][0])[0] ** 2))
        return found, slopes(method)

    method = Linear(random_features(11, DIM, 8))
    found, slopes = both_and_slopes(method)
    for at_temperature, rescaled in found:
        for one, other in zip(at_temperature, rescaled, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11)
    np.testing.assert_array_equal(slopes.features.directions, np.zeros((11, DIM)))


def test_orthogonal_features_have_less_variance(x64):
    points = np.random.default_rng(4).normal(size=(5, DIM))
    exact = np.exp(-0.5 * np.sum((points[:, None] - points) ** 2, axis=2))

    @jax.jit
    def errors(seed, q):
        def one(key, orthogonal):
            features = RandomFeatures(DIM, DIM, orthogonal=orthogonal, key=key)
            f = features(q, True)
            both = f.factor * jnp.exp(f.log)
            return jnp.mean((both @ both.T - exact) ** 2)

        keys = jax.random.split(jax.random.PRNGKey(seed), 2000)
        each = [jax.vmap(functools.partial(one, orthogonal=o)) for o in (True, False)]
        means = [jnp.mean(errors_of(keys)) for errors_of in each]
        return *means, RandomFeatures(DIM, DIM, key=keys[0]).directions

    orthogonal, independent, rows = jax.device_get(errors(5, points))
    assert orthogonal < 0.9 * independent
    gram = rows @ rows.T
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_causal_sums_do_not_depend_on_later_keys(dtype):
    """Features that grow by e^600 within a chunk: none of the first rows comes out empty."""
    x = np.broadcast_to(np.linspace(-300, 300, N)[:, None], (N, DIM)).astype(dtype)
    parts = EluFeatures(), ak.Causal(), ak.Softmax(), x, x, arrays()[2].astype(dtype)
    (ours, _), (dense, _) = evaluate((Linear(), Dense()), *parts, derivatives=False)
    assert ours.dtype == dtype
    ours, dense = (np.asarray(out, np.float32) for out in (ours, dense))
    np.testing.assert_allclose(ours, dense, atol=2e-6 if dtype == jnp.float32 else 2e-2)


def test_state_is_summed_in_at_least_float32():
    """After hundreds of rows a sum in bfloat16 no longer grows."""
    options = {"kernel": EluFeatures(), "method": Linear(), "dtype": jnp.bfloat16}
    module = made_module(4, 8, num_kv_heads=2, **options)
    x = np.random.default_rng(1).normal(size=(401, 8)).astype(jnp.bfloat16)
    narrow, static = eqx.partition(module, eqx.is_array)
    wide = jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), narrow))
    wide = eqx.combine(wide, static)
    full = np.asarray(eqx.filter_jit(wide)(*3 * [x.astype(np.float32)], prior=ak.Causal()))
    cache = module.recurrent_cache(dtype=jnp.bfloat16)
    assert cache.state.sums.dtype == jnp.float32
    step, rows = eqx.filter_jit(module.step), []
    for t in range(len(x)):
        out, cache = step(x[t : t + 1], cache)
        rows.append(out)
    out = np.concatenate(rows)
    assert out.dtype == x.dtype
    # the last rows are means of many, and small
    for part in (slice(None), slice(300, None)):
        away = np.abs(out.astype(np.float32) - full)[part].max()
        assert away < 2**-7 * np.abs(full[part]).max()


def test_recurrent_cache_needs_linear_attention():
    windowed = {"kernel": EluFeatures(), "prior": ak.Window(2, 0), "method": Linear()}
    for options, message in (
        ({}, r"make the module with method=ak\.methods\.Linear"),
        (windowed, "Linear cannot evaluate this: .*got Window"),
    ):
        assert_raises(message, made_module(2, 4, **options).recurrent_cache)


class PositivePart(ak.kernels.FiniteRank):
    def features(self, x):
        return ak.kernels.Features(jnp.zeros_like(x), jnp.maximum(x, 0.0))


def test_negative_mass_gives_nan():
    """Trigonometric features may give a negative weight: there is no mean then. A query of which
    all weights are 0 sees no key."""
    one = np.ones((1, 1), np.float32)
    assert ak.attend(one, -one, one, kernel=PositivePart(), method=Linear()) == 0.0
    features = random_features(1, 1, positive=False)
    apart = np.pi / np.asarray(features.directions)  # cos π

    @jax.jit
    def results(q, k, v):
        options = {"kernel": ak.Gaussian(1.0), "method": Linear(features)}
        rules = ak.Softmax(), ak.Softmax(sink_mass=1.0)
        return [ak.attend(q, k, v, **options, rule=r, return_log_mass=True) for r in rules]

    for value, log_mass in results(apart, np.zeros_like(apart), np.full_like(apart, 5.0)):
        assert np.isnan(value).all()
        assert np.isnan(log_mass).all()


def test_products_of_features_that_underflow():
    """Both keys are far below what float32 holds, and one of them is the nearer by far."""
    q, v = np.float32([[0.0, -200.0]]), np.float32([[0.0], [1.0]])
    k = np.float32([[-200.0, 0.0], [-150.0, 0.0]])
    kernel = EluFeatures()

    @jax.jit
    def results(q, k, v):
        methods = Dense(), Blockwise(1, 1), Linear()
        means = [ak.attend(q, k, v, kernel=kernel, method=method) for method in methods]
        pairs = kernel.pairwise(q, k)
        slope = jax.grad(lambda q: kernel.pairwise(q, k)[0, 1])(q)
        many = jax.vmap(kernel.pairwise)(jnp.stack([q, jnp.ones_like(q)]), jnp.stack([k, k]))
        return means, pairs, slope, many[0]

    means, pairs, slope, first_of_many = results(q, k, v)
    np.testing.assert_allclose(means, np.ones((3, 1, 1)), rtol=1e-6)
    np.testing.assert_allclose(pairs, [[-199.3069, -150.0]], rtol=1e-6)
    np.testing.assert_allclose(slope, [[1.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(first_of_many, pairs, rtol=1e-6)


PLACES = 23
EVEN = np.arange(PLACES) % 2 == 0


class FromFirst(priors.Prior):
    """A prior of a user's own: keys that are flagged, the row of the query aside if asked."""

    flags: Bool[Array, " keys"]
    excludes_self: bool = False

    def log_pair(self, i, j):
        allowed = self.flags[j] & ((i != j) | (not self.excludes_self))
        return jnp.where(allowed, 0.0, -jnp.inf)

    def pair_mask(self):
        return priors.PairMask(allowed=self.flags, excludes_self=self.excludes_self)


class UpToNow(priors.Mask):
    """A causal mask of a user's own."""

    def allows(self, i, j):
        return j <= i

    def pair_mask(self):
        return priors.PairMask(limits=(None, 0))


OWN = FromFirst(jnp.asarray(EVEN))
OTHERS = FromFirst(jnp.asarray(EVEN), excludes_self=True)


@pytest.mark.parametrize(
    ("method", "kernel", "prior"),
    [
        (Sorted(), ak.Laplace(0.3), OTHERS),
        (Linear(), EluFeatures(), OWN * (UpToNow() & priors.HeldOut(np.arange(PLACES) > 19))),
        (Sharded(ring=True), ak.Gaussian(0.3), OWN),
        pytest.param(
            *(Fourier(), ak.Gaussian(0.3), OWN * priors.HeldOut(~EVEN) * priors.ExcludeSelf()),
            marks=[pytest.mark.slow, needs_finufft],
        ),
    ],
    ids=["sorted", "linear, product", "sharded", "fourier, product"],
)
def test_the_pair_mask_of_a_users_own_prior_is_used(x64, method, kernel, prior):
    x = np.random.default_rng(0).normal(size=(PLACES, 1))
    parts = kernel, prior, ak.Softmax(), x, x, np.sin(3.0 * x)
    assert_equals_dense(method, *parts, derivatives=False, rtol=1e-5, atol=1e-6)


def test_masks_of_keys_intersect():
    mask = (priors.HeldOut(EVEN) & priors.ExcludeSelf() & ak.Causal()).pair_mask()
    np.testing.assert_array_equal(mask.allowed, ~EVEN)
    assert mask.excludes_self
    assert mask.is_causal
    windows = (ak.Window(5, 2) & ak.Window(3, 4)).pair_mask()
    assert windows.limits == (3, 2)
    both = (ak.Causal() & ak.Window(5, 2)).pair_mask()
    assert both.limits == (5, 0)
    assert (ak.Causal() & ak.Causal()).pair_mask().is_causal
    segments = priors.Segments(EVEN.astype(int))
    assert "two Segments" in (segments & segments).pair_mask().unsupported_reason
    both = (priors.HeldOut(EVEN) * priors.HeldOut(np.arange(PLACES) > 4)).pair_mask()
    np.testing.assert_array_equal(both.allowed, ~EVEN & (np.arange(PLACES) <= 4))


@pytest.mark.parametrize(
    ("prior", "reason"),
    [
        (ak.Alibi(0.3) * ak.Causal(), "Alibi"),
        (priors.HeldOut(EVEN) & ~priors.ExcludeSelf(), "Not"),
        (ak.Causal(3), "Causal of another offset than the number 0"),
        (priors.AtPositions(ak.Causal(), np.arange(PLACES)), "AtPositions"),
    ],
)
def test_other_priors_have_no_pair_mask(prior, reason):
    assert prior.pair_mask().unsupported_reason == reason
