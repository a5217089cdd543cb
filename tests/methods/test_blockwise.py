"""Law 1: every method is the dense reference, in value, gradient, JVP and beyond."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import (
    DIM,
    DIM_V,
    KERNELS,
    KEYS,
    LIGHT,
    PRIORS,
    QUERIES,
    RULES,
    arrays,
    assert_agree,
    everything,
    in_float64,
)

import attnkernel as ak

METHODS = {
    "blockwise": ak.Blockwise(8, 16),
    "blockwise, one block": ak.Blockwise(),
}


# every second kernel meets one prior, and every prior one; the whole table with --whole-table
PAIRS = [
    pytest.param(kernel, prior, marks=[] if (2 * j - i) % 18 == 0 else pytest.mark.slow)
    for i, kernel in enumerate(KERNELS)
    for j, prior in enumerate(PRIORS)
]


@pytest.mark.parametrize(("kernel", "prior"), PAIRS)
def test_blockwise_is_dense_for_every_kernel_and_prior(x64, kernel, prior):
    parts = in_float64((KERNELS[kernel], PRIORS[prior], RULES["sink"])) + arrays()
    reference = everything(ak.Dense(), *parts)
    assert_agree(everything(METHODS["blockwise"], *parts), reference)


@pytest.mark.parametrize(
    ("kernel", "prior", "method"),
    [
        *(
            pytest.param(
                kernel,
                None,
                ak.Blockwise(16, 16),
                marks=[] if i % 4 == 2 else pytest.mark.slow,
            )
            for i, kernel in enumerate(LIGHT)
        ),
        *(("gaussian", prior, ak.Blockwise(6, 7)) for prior in list(PRIORS.values())[::3]),
    ],
)
def test_weights_that_are_never_stored(x64, force_unmaterialised, kernel, prior, method):
    """The road of many pairs, for every kernel that takes it, with blocks whole and ragged."""
    kernel = in_float64(KERNELS[kernel])
    assert kernel.is_light(DIM)
    q, k, v = arrays()

    def outputs(method, far):
        call = functools.partial(ak.attend, kernel=kernel, prior=prior, method=method)
        return call(q + far, k, v[:, :1], return_log_mass=True)

    # far and near queries side by side: shifts are raised for all of a batch if for any
    shifts = jnp.array([0.0, 3.0, 30.0])
    ours, dense = (
        jax.jit(jax.vmap(functools.partial(outputs, m)))(shifts) for m in (method, ak.Dense())
    )
    assert_agree(ours, dense)


@pytest.mark.parametrize(
    ("kernel", "rule", "method"),
    [
        ("gaussian", "softmax", "blockwise"),
        ("epanechnikov", "cold", "blockwise, one block"),
        ("gaussian", "temperature to fit", "blockwise"),
        ("gaussian", "sink", "blockwise, one block"),
        ("epanechnikov", "sink", "blockwise"),
        ("triangular", "uniform", "blockwise"),
        ("gaussian", "sparsemax", "blockwise"),
        ("dot product", "entmax to fit", "blockwise, one block"),
    ],
)
def test_every_method_is_dense_for_every_rule(x64, kernel, rule, method):
    parts = in_float64(KERNELS[kernel]), PRIORS["causal"], in_float64(RULES[rule]), *arrays()
    assert_agree(everything(METHODS[method], *parts), everything(ak.Dense(), *parts))


@pytest.mark.parametrize("kernel", list(KERNELS)[::5])
def test_every_fifth_kernel_in_float32(kernel):
    parts = KERNELS[kernel], PRIORS["held out"], RULES["softmax"]
    data = arrays()
    single = everything(METHODS["blockwise"], *parts, *data)
    with jax.enable_x64(True):
        double = everything(ak.Dense(), *map(in_float64, parts), *map(in_float64, data))
    assert_agree(single, double, rtol=2e-4, atol=2e-4)


def test_many_dimensions(x64):
    """Squares by products of matrices, near their centre and far from it."""
    for lengthscale in (2.0, 0.1):
        parts = in_float64(ak.Gaussian(lengthscale)), None, ak.Softmax(), *arrays(dim=7)
        assert_agree(everything(METHODS["blockwise"], *parts), everything(ak.Dense(), *parts))


def scalar(method, q, k, v, kernel=None, prior=None):
    kernel = in_float64(ak.Matern52(0.6)) if kernel is None else kernel
    return jnp.sum(jnp.sin(ak.attend(q, k, v, kernel=kernel, prior=prior, method=method)))


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_second_derivatives_by_three_roads(x64, argument):
    data = arrays(queries=5, keys=7)
    dense, ours = (functools.partial(scalar, method) for method in (ak.Dense(), ak.Blockwise(2, 3)))
    expected = jax.jit(jax.hessian(dense, argument))(*data)
    roads = [jax.hessian(ours, argument)]
    if argument == 0:
        roads += [jax.jacrev(jax.jacrev(ours)), jax.jacfwd(jax.jacfwd(ours))]
    for road in roads:
        np.testing.assert_allclose(jax.jit(road)(*data), expected, rtol=1e-9, atol=1e-9)


def test_vmapped_heads_and_batches(x64):
    q, k, v = arrays()
    heads = in_float64(eqx.filter_vmap(ak.Gaussian)(jnp.array([0.3, 1.0, 4.0])))

    def per_head(method):
        return eqx.filter_vmap(lambda kernel: ak.attend(q, k, v, kernel=kernel, method=method))(
            heads
        )

    assert_agree(per_head(ak.Blockwise(8, 8)), per_head(ak.Dense()))


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov", "dot product"])
def test_batches_whose_members_need_different_blocks(x64, kernel):
    q, k, v = arrays()
    stacked = jnp.stack([q, q + 1.0, 2.0 * q, q - 30.0]).reshape(2, 2, QUERIES, DIM)
    # rows in order, so that blocks differ in what they reach
    problem = (KERNELS[kernel], ak.Causal(offset=4), ak.Softmax(), stacked, jnp.sort(k, axis=0), v)
    assert_agree(
        everything(ak.Blockwise(8, 8), *in_float64(problem)),
        everything(ak.Dense(), *in_float64(problem)),
    )


def test_order_of_rows_and_size_of_blocks_do_not_matter(x64):
    q, k, v = arrays()
    order = np.random.default_rng(1).permutation(KEYS)
    kernel = ak.Biweight(1.0)
    first = ak.attend(q, k, v, kernel=kernel, method=ak.Blockwise(4, 4))
    for size in (1, 5, 100):
        other = ak.attend(q, k[order], v[order], kernel=kernel, method=ak.Blockwise(size, size))
        np.testing.assert_allclose(first, other, rtol=1e-12, atol=1e-14)


def temporary_bytes(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("derivative", ["value", "gradient", "jvp", "hessian-vector product"])
def test_memory_grows_with_rows_not_with_pairs(derivative):
    def value(q, k, v):
        return scalar(ak.Blockwise(256, 256), q, k, v, ak.Gaussian(0.3))

    gradient = jax.grad(value, (0, 1, 2))
    function = {
        "value": value,
        "gradient": gradient,
        "jvp": lambda *a: jax.jvp(value, a, a)[1],
        "hessian-vector product": lambda *a: jax.jvp(gradient, a, a)[1],
    }[derivative]

    def used(n):
        return temporary_bytes(function, (n, DIM), (n, DIM), (n, DIM_V))

    n = 8192  # n x n numbers would be 256 MiB
    assert used(2 * n) - used(n) < 64 * n * 4 * (DIM + DIM_V)


def test_the_blocks_of_a_mask_are_not_held_for_all_heads():
    """What depends on numbers of rows alone is the same to each head; it is not kept for them."""
    heads, n = 3, 2048  # the blocks of one row of the mask alone would be 13 n x 512 bytes

    def used(prior):
        def value(q, k, v):
            return scalar(ak.Blockwise(512, 512), q, k, v, ak.DotProduct(), prior)

        shapes = [(heads, n, DIM), (heads, n, DIM), (heads, n, DIM_V)]
        return temporary_bytes(jax.grad(value, (0, 1, 2)), *shapes)

    assert used(ak.Causal()) - used(None) < 3 * 512**2 * 4


def test_members_of_a_large_batch_take_turns():
    def streamed(q, k, v, method=ak.Blockwise()):
        return ak.attend(q, k, v, kernel=ak.Gaussian(0.3), method=method)

    n = 1024
    one = temporary_bytes(streamed, (n, DIM), (n, DIM), (n, DIM_V))
    many = temporary_bytes(streamed, (2, 4, n, DIM), (4, n, DIM), (n, DIM_V))
    assert many - one < 8 * n * 4 * 4 * (DIM + DIM_V)  # 8 blocks of scores would be 32 MiB
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((3, n, 2), (n, 2), (n, 5)))
    assert_agree(streamed(q, k, v), streamed(q, k, v, ak.Dense()), rtol=1e-4, atol=1e-5)
    assert streamed(q[:0], k, v).shape == (0, n, 5)


def test_blocks_that_vanish_cost_nothing():
    """Of 64 x 64 blocks, those out of reach are never scored: the kernel would make them NaN.

    In a batch too, where all members are out of reach.
    """

    class Poisoned(ak.kernels.Compact):
        __init__ = ak.kernels.Radial.__init__

        def log_inside(self, squares):
            return jnp.zeros_like(squares)

        def log_of(self, squares):
            return jnp.where(squares > 100.0, jnp.nan, super().log_of(squares))

        def upper_bound(self, *box):
            return ak.Boxcar(1.0).upper_bound(*box)

    x = jnp.linspace(0.0, 64.0, 512)[:, None]
    out = ak.attend(x, x, x, kernel=Poisoned(1.0), method=ak.Blockwise(8, 8))
    np.testing.assert_allclose(out[100:-100], x[100:-100], rtol=1e-5)
    assert np.isfinite(out).all()
    batch = jnp.stack([x, x + 0.1])
    out = ak.attend(batch, batch, batch, kernel=Poisoned(1.0), method=ak.Blockwise(8, 8))
    assert np.isfinite(out).all()
    every_pair = ak.attend(x, x, x, kernel=Poisoned(1.0), method=ak.Blockwise(512, 512))
    assert np.isnan(every_pair).all()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_blocks_that_a_mask_forbids_cost_nothing(batch):
    """Their values are never weighed, not by 0 either, whatever the kernel says of its reach."""
    x = jnp.broadcast_to(jnp.linspace(-1.0, 1.0, 64)[:, None], (*batch, 64, 1))
    v = jnp.where(jnp.arange(64) < 24, 1.0, jnp.nan)[:, None]

    @jax.jit
    def heads(q, v):
        return ak.attend(
            q, x, v, kernel=ak.DotProduct(), prior=ak.Causal(), method=ak.Blockwise(8, 8)
        )

    value, change = jax.jvp(lambda q: heads(q, v), (x,), (x,))
    for array in (value, change):
        assert np.isfinite(array[..., :24, :]).all()
        assert np.isnan(array[..., 24:, :]).all()


@pytest.mark.parametrize(
    ("prior", "dense"),
    [
        (ak.Causal(), np.tri(12, 12, dtype=bool)),
        (ak.Causal(-1), np.tri(12, 12, -1, dtype=bool)),
        (ak.Window(2, 1), np.tri(12, 12, 1, dtype=bool) & ~np.tri(12, 12, -3, dtype=bool)),
        (~ak.Window(2, 1), ~(np.tri(12, 12, 1, dtype=bool) & ~np.tri(12, 12, -3, dtype=bool))),
    ],
)
def test_masks_and_the_blocks_they_exclude(prior, dense):
    index = jnp.arange(12)
    np.testing.assert_array_equal(np.exp(prior.pairwise(index, index)), dense)
    for i in range(0, 12, 3):
        for j in range(0, 12, 4):
            block = (jnp.array(a) for a in (i, i + 2, j, j + 3))
            if not prior.any_allowed(*block):
                assert not dense[i : i + 3, j : j + 4].any()
    assert not ak.Causal().any_allowed(*(jnp.array(a) for a in (0, 2, 3, 5)))
    assert not ak.Window(2, 1).any_allowed(*(jnp.array(a) for a in (0, 2, 4, 5)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ak.Blockwise(block_q=0), "block_q must be a whole number from 1, or None; got 0"),
        (lambda: ak.Window(-1, 2), "left must be a number of keys from 0; got -1"),
    ],
)
def test_sizes_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_no_queries_and_no_keys():
    q, k, v = arrays()
    none = ak.attend(q[:0], k, v, kernel=ak.Gaussian(1.0), method=ak.Blockwise())
    assert none.shape == (0, DIM_V)
    value, log_mass = ak.attend(
        q, k[:0], v[:0], kernel=ak.Gaussian(1.0), method=ak.Blockwise(), return_log_mass=True
    )
    assert (np.asarray(value) == 0).all()
    assert np.isneginf(log_mass).all()


@pytest.mark.parametrize(
    ("kernel", "method", "prior"),
    [
        (ak.Gaussian(0.7), ak.Blockwise(block_q=8, block_k=8), None),
        (ak.Tricube(0.7), ak.Blockwise(block_q=8, block_k=8), None),
        (ak.Epanechnikov(0.7), ak.Sorted(), None),
        (ak.Laplace(0.7), ak.Sorted(), None),
        (ak.Gaussian(0.1), ak.Fourier(), None),
        (ak.EluFeatures(), ak.Linear(), ak.Causal()),
    ],
    ids=lambda part: type(part).__name__,
)
def test_no_columns_of_values(x64, kernel, method, prior):
    """The log-mass alone, as of a density."""
    if isinstance(method, ak.Fourier):
        pytest.importorskip("jax_finufft")
    x = jnp.asarray(np.random.default_rng(3).normal(size=(191, 1)))
    parts = {"kernel": kernel, "prior": prior, "return_log_mass": True}
    value, log_mass = ak.attend(x, x, x[:, :0], method=method, **parts)
    _, dense = ak.attend(x, x, x, method=ak.Dense(), **parts)
    assert value.shape == (191, 0)
    np.testing.assert_allclose(log_mass, dense, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 2])
def test_loops_over_pairs_are_ones_that_vectorise(columns):
    """XLA makes scalar code, ten times slower, of a loop over pairs that cuts out its block of keys
    anew for each of them, and of rows that end within a vector."""
    x = jnp.ones((9001, 3))
    y = jnp.ones((9001, columns))
    program = jax.jit(lambda x: ak.attend(x, x, y, kernel=ak.Gaussian(), method=ak.Blockwise()))
    text = program.lower(x).compile().as_text()
    by_key = [int(rows) for rows in re.findall(r"c64\[(\d+)\]", text)]
    assert bool(by_key) == (columns == 1)
    assert not [rows for rows in by_key if rows % 16]
    fused = re.findall(r"^%fused_computation.*?^}", text, re.MULTILINE | re.DOTALL)
    of_pairs = [body for body in fused if re.search(r"f32\[1001,1001\]", body)]
    assert bool(of_pairs) == (columns == 2)
    assert not [body for body in of_pairs if "dynamic-slice(" in body]
