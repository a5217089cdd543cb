"""Law 1 for `Blockwise`: it equals the dense reference in value, gradient, JVP and Hessian; the
precision of products."""

import functools

import jax
import jax.numpy as jnp
import laws
import numpy as np
import pytest
from marks import needs_finufft, slow
from programs import operations
from refusals import assert_raises

import attnkernel as ak
from attnkernel import priors
from attnkernel.kernels import EluFeatures, Tricube
from attnkernel.methods import Blockwise, Dense, Fourier, Linear, Sorted, Task
from attnkernel.methods._key_ranges import loops_over_blocks

BLOCKS = Blockwise(8, 16)  # of 29 queries and 37 keys: the last ones are short
NOT_CHEAP = ("polynomial",)  # summed over all keys at once, in blocks of queries
ONE_BLOCK = Blockwise()
# of kernels that differ in a formula of a distance alone, one
KINDS_OF_KERNELS = (
    *("gaussian, full metric", "periodic", "triangular", "product", "polynomial", "additive"),
    *("projected", "soft-capped", "categories", "ordered categories"),
)
KINDS_OF_PRIORS = ("window without held out", "relative bias at given positions")


@pytest.mark.parametrize(
    ("kernels", "prior_names", "derivatives"),
    [
        (laws.REPRESENTATIVE_KERNELS, laws.PRIORS, False),
        (laws.REPRESENTATIVE_KERNELS[:1], KINDS_OF_PRIORS, True),
        (NOT_CHEAP, laws.PRIORS, False),
        slow(laws.KERNELS, laws.PRIORS, False),
        slow(laws.REPRESENTATIVE_KERNELS, laws.PRIORS, True),
        slow(KINDS_OF_KERNELS, KINDS_OF_PRIORS, True),
        slow(NOT_CHEAP, laws.PRIORS, True),
    ],
    ids=lambda part: "with derivatives" if part is True else "",
)
def test_tables_of_kernels_and_priors(x64, kernels, prior_names, derivatives):
    """Values for every kernel and prior, gradients and JVPs for every kind of them."""
    parts = list(kernels), list(prior_names), laws.RULES["sink"], *laws.random_arrays()
    method = Blockwise(3) if kernels == NOT_CHEAP else BLOCKS
    tables = laws.evaluate_table((method, Dense()), *parts, derivatives=derivatives)
    laws.assert_tables_agree(*tables)


@pytest.mark.parametrize(
    ("prior", "queries", "share"),
    [
        (None, 1024, 1.0),
        (ak.Causal(), 1024, 0.63),
        (ak.Causal(), 4096, 0.57),
        (ak.Causal(100) & ak.Causal(), 4096, 0.57),
        (priors.Prefix(1024), 4096, 0.6),
        (priors.ExcludeSelf() & ak.Causal(), 4096, 0.57),
        (priors.RelativeBias(np.zeros(8)) * ak.Window(256, 0), 16384, 0.024),  # 257 of 16384: .016
        (priors.Forget(np.zeros(1024)) * ak.Alibi(0.5), 1024, 0.63),
        (ak.Causal(-5000), 4096, 0.001),
    ],
)
def test_share_of_pairs_that_is_read(prior, queries, share):
    """Blocks of queries read few pairs beyond those that the prior allows."""
    task = Task(ak.DotProduct(), prior, ak.Softmax(), queries, queries, 64, 64, np.float32)
    loops = loops_over_blocks(task, None)
    pairs = sum(loop.size * loop.width * len(loop.starts) for loop in loops)
    assert pairs <= share * queries**2
    for loop in loops:
        assert min(loop.starts) >= 0
        assert max(loop.starts) + loop.width <= queries


def test_more_than_4096_keys_and_priors_with_bounds_are_streamed():
    for prior, keys in ((None, 4097), (ak.Causal(), 8192), (priors.Segments(np.arange(9)), 9)):
        task = Task(ak.DotProduct(), prior, ak.Softmax(), keys, keys, 64, 64, np.float32)
        assert loops_over_blocks(task, None) is None


@pytest.mark.parametrize(
    ("kernel", "rule", "method", "derivatives"),
    [
        ("gaussian", "sparsemax", BLOCKS, False),
        slow("gaussian", "sparsemax", BLOCKS, True),
        slow("gaussian", "trainable temperature", BLOCKS, True),
        slow("epanechnikov", "constant temperature", ONE_BLOCK, True),
        slow("triangular", "uniform", BLOCKS, True),
        slow("dot product", "trainable entmax", ONE_BLOCK, True),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_every_rule(x64, kernel, rule, method, derivatives):
    parts = laws.to_float64((laws.KERNELS[kernel], laws.PRIORS["causal"], laws.RULES[rule]))
    laws.assert_equals_dense(method, *parts, *laws.random_arrays(), derivatives=derivatives)


@pytest.mark.parametrize("lengthscale", [0.1, slow(2.0)])
def test_many_dimensions(x64, lengthscale):
    """Squared distances by products of matrices, near their centre and far from it.

    With one column of values, whose derivatives have a formula of their own.
    """
    q, k, v = laws.random_arrays(dim=7)
    parts = laws.to_float64(ak.Gaussian(lengthscale)), None, ak.Softmax(), q, k, v[:, :1]
    laws.assert_equals_dense(BLOCKS, *parts)


def scalar(method, kernel, q, k, v):
    return jnp.sum(jnp.sin(ak.attend(q, k, v, kernel=kernel, method=method)))


@pytest.mark.slow
def test_hessian_by_every_order_of_differentiation(x64):
    data = laws.random_arrays(queries=3, keys=5)
    kernel, methods = laws.to_float64(ak.Matern52(0.6)), (Dense(), Blockwise(2, 3))
    dense, ours = (functools.partial(scalar, method, kernel) for method in methods)

    @jax.jit
    def hessians(*data):
        all_arguments = (0, 1, 2)
        return (
            jax.hessian(dense, all_arguments)(*data),
            jax.hessian(ours, all_arguments)(*data),
            jax.jacrev(jax.jacrev(ours))(*data),
            jax.jacfwd(jax.jacfwd(ours))(*data),
        )

    expected, forward_over_reverse, reverse_over_reverse, forward_over_forward = hessians(*data)
    laws.assert_agree(forward_over_reverse, expected, 1e-9, 1e-9)
    laws.assert_agree(reverse_over_reverse, expected[0][0], 1e-9, 1e-9)
    laws.assert_agree(forward_over_forward, expected[0][0], 1e-9, 1e-9)


@pytest.mark.parametrize(
    ("kernel", "derivatives"),
    [("epanechnikov", False), *(slow(k, True) for k in ("epanechnikov", "dot product"))],
)
def test_batches_whose_members_need_different_blocks(x64, kernel, derivatives):
    q, k, v = laws.random_arrays()
    stacked = np.stack([q, q + 1.0, 2.0 * q, q - 30.0]).reshape(2, 2, laws.QUERIES, laws.DIM)
    # keys in order, so that blocks differ in what they reach
    parts = laws.KERNELS[kernel], ak.Causal(offset=4), ak.Softmax(), stacked, np.sort(k, axis=0), v
    laws.assert_equals_dense(Blockwise(8, 8), *laws.to_float64(parts), derivatives=derivatives)


def test_no_queries_and_no_keys():
    q, k, v = laws.random_arrays()
    parts = {"kernel": ak.Gaussian(1.0), "method": Blockwise()}
    assert ak.attend(q[:0], k, v, **parts).shape == (0, laws.DIM_V)
    parts["prior"] = priors.HeldOut(np.zeros(0, bool))
    value, log_mass = ak.attend(q, k[:0], v[:0], **parts, return_log_mass=True)
    assert (np.asarray(value) == 0).all()
    assert np.isneginf(log_mass).all()


@pytest.mark.parametrize(
    ("kernel", "method", "prior"),
    [
        (Tricube(0.7), Blockwise(block_q=8, block_k=8), None),
        slow(ak.Epanechnikov(0.7), Sorted(), None),
        slow(ak.Laplace(0.7), Sorted(), None),
        pytest.param(ak.Gaussian(0.1), Fourier(), None, marks=[pytest.mark.slow, needs_finufft]),
        slow(EluFeatures(), Linear(), ak.Causal()),
    ],
    ids=lambda part: type(part).__name__,
)
def test_values_without_columns(x64, kernel, method, prior):
    """Only the log-mass, as for a density."""
    x = np.random.default_rng(3).normal(size=(191, 1))

    @jax.jit
    def both(x):
        parts = {"kernel": kernel, "prior": prior, "return_log_mass": True}
        dense = ak.attend(x, x, x, method=Dense(), **parts)
        return ak.attend(x, x, x[:, :0], method=method, **parts), dense

    (value, log_mass), (_, dense) = both(x)
    assert value.shape == (191, 0)
    np.testing.assert_allclose(log_mass, dense, rtol=1e-6, atol=1e-6)


X = np.ones((6, 3), np.float32)


def precisions(kernel, method, prior=None):
    """Those of all products in the value and its gradient, as JAX's programs name them."""

    def total(x):
        out = ak.attend(x, x, x, kernel=kernel, method=method, prior=prior)
        return jnp.sum(out**2)

    found = operations(jax.make_jaxpr(jax.value_and_grad(total))(X).jaxpr)
    pairs = [one.params["precision"] for one in found if one.primitive.name == "dot_general"]
    return {pair[0].name.lower() for pair in pairs if pair is not None}


METHODS = {
    "dense": (Dense, None),
    "blockwise": (lambda **options: Blockwise(2, 3, **options), ak.Causal()),
    "blocks of queries": (Blockwise, None),
}


@pytest.mark.parametrize("name", METHODS)
def test_each_product_has_its_precision(name):
    make, prior = METHODS[name]
    assert precisions(ak.DotProduct(), make(), prior) == {"highest"}
    chosen = make(precision=jax.lax.Precision.DEFAULT)
    assert precisions(ak.DotProduct(precision="high"), chosen, prior) == {"default", "high"}
    assert precisions(ak.DotProduct(), chosen, prior) == {"default", "highest"}


def test_what_is_shown_and_refused():
    assert repr(Dense()) == "Dense()"
    assert repr(Blockwise(8, precision="default")) == "Blockwise(block_q=8, precision='default')"
    for make in (Dense, Blockwise, ak.DotProduct):
        assert_raises(r"precision must be .*'highest'; got 'lowest'", make, precision="lowest")


def test_a_derivative_stores_no_slices_of_the_keys():
    """The slices that the loops of a causal mask read are together 4.5 times the keys."""
    x = jax.ShapeDtypeStruct((3, 2048, 8), jnp.float32)

    def stored(q, k, v):
        parts = {"kernel": ak.DotProduct(), "prior": ak.Causal(), "method": Blockwise()}
        return jax.vjp(lambda *arrays: ak.attend(*arrays, **parts), q, k, v)[1]

    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(stored, x, x, x))]
    assert sum(sizes) <= 8 * 3 * 2048 * 8
