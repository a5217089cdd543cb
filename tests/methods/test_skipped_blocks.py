"""`Blockwise` skips blocks without weight; its memory grows with rows, not with pairs."""

import jax
import jax.numpy as jnp
import laws
import numpy as np
import pytest
from marks import slow
from programs import temporary_bytes

import attnkernel as ak
from attnkernel import priors
from attnkernel.kernels import Boxcar
from attnkernel.methods import Blockwise, Dense

# one of each formula: smooth, with a root, compact, of several columns, and a product of two
LIGHT_KERNELS = ("matern52", "periodic", "tricube", "gaussian per dimension", "product")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["stored", "unmaterialised"])
@pytest.mark.parametrize(
    ("kernels", "prior_names"),
    [(["gaussian"], list(laws.PRIORS)), slow(LIGHT_KERNELS, ["none"])],
    ids=["priors", "kernels"],
)
def test_far_and_near_queries_side_by_side(x64, kernels, prior_names, path, request):
    """Shifts are raised for all of a batch if for any."""
    if path == "unmaterialised":
        request.getfixturevalue("force_unmaterialised")
    assert all(laws.KERNELS[name].is_cheap for name in kernels)
    q, k, v = laws.random_arrays()
    arrays = np.stack([q, q + 3.0, q + 30.0]), k, v[:, :1]
    parts = kernels, prior_names, ak.Softmax(), *arrays
    methods = Blockwise(6, 7), Dense()
    laws.assert_tables_agree(*laws.evaluate_table(methods, *parts, derivatives=False))


@pytest.mark.slow
def test_tables_of_blocks_of_other_sizes(x64, force_unmaterialised):
    """Derivatives and row maxima take smaller blocks than sums whose weights are not stored."""
    x = np.random.default_rng(0).normal(size=(61, 2))
    prior = priors.MaskFunction(lambda i, j: j >= 19)

    @jax.jit
    def of_methods(x):
        parts = {"kernel": ak.Gaussian(0.3), "prior": prior}

        def value(x, method):
            return jnp.sum(ak.attend(x, x, jnp.sin(x[:, :1]), method=method, **parts) ** 2)

        def maximum(method):
            options = {"method": method, "exact_maximum": True}
            return ak.attention.softmax_state(x, x, x[:, :1], **parts, **options).maximum

        methods = Blockwise(6, 7), Dense()
        return [(jax.grad(value)(x, method), maximum(method)) for method in methods]

    laws.assert_agree(*of_methods(x))


class Near(priors.Prior):
    """Defined for positions of the 13 rows alone."""

    rate: jax.Array

    def log_pair(self, i, j):
        return self.rate * jnp.log(12.5 - jnp.maximum(i, j))


def test_priors_are_asked_about_no_row_beyond_the_last(x64):
    x = np.random.default_rng(0).normal(size=(13, 2))

    @jax.jit
    def gradients(rate, x):
        def value(rate, x, method):
            parts = {"kernel": ak.DotProduct(), "prior": Near(rate), "method": method}
            return jnp.sum(ak.attend(x, x, x, **parts) ** 2)

        methods = Blockwise(5), Blockwise(5, 5), Dense()
        return [jax.grad(value, (0, 1))(rate, x, method) for method in methods]

    *ours, dense = gradients(np.float64(0.7), x)
    laws.assert_agree(ours, [dense, dense])


def test_the_keys_of_a_mask_are_found_by_its_blocks():
    class Near(ak.Mask):
        def allows(self, i, j):
            return abs(i - j) <= 2

        def any_allowed(self, block):
            return (block.i_low - block.j_high <= 2) & (block.j_low - block.i_high <= 2)

    near = Near()
    assert near.key_range(0, 3, 20) == range(6)
    assert near.key_range(8, 9, 20) == range(6, 12)
    assert (near & ak.Causal()).key_range(8, 9, 20) == range(6, 10)
    assert (near | ak.Causal(-9)).key_range(12, 12, 20) == range(15)
    assert len(ak.Causal(-30).key_range(8, 9, 20)) == 0
    assert ak.Causal(jnp.int32(1)).key_range(8, 9, 20) is None
    assert (~near).key_range(8, 9, 20) is None


def scalar(method, q, k, v, kernel, prior=None):
    return jnp.sum(jnp.sin(ak.attend(q, k, v, kernel=kernel, prior=prior, method=method)))


@pytest.mark.slow
def test_memory_grows_with_rows_not_with_pairs():
    def value(q, k, v):
        return scalar(Blockwise(256, 256), q, k, v, ak.Gaussian(0.3))

    product = lambda *of: jax.jvp(jax.grad(value, (0, 1, 2)), of, of)[1]  # noqa: E731, with the Hessian
    n = 16384  # n x n numbers would be 1 GiB, 64 per number of the arguments 21 MiB
    shapes = (n, laws.DIM), (n, laws.DIM), (n, laws.DIM_V)
    for function in (jax.grad(value, (0, 1, 2)), product):
        assert temporary_bytes(function, *shapes) < 64 * n * 4 * (laws.DIM + laws.DIM_V)


@pytest.mark.slow
def test_large_batch_is_processed_one_member_at_a_time():
    def streamed(q, k, v):
        return ak.attend(q, k, v, kernel=ak.Gaussian(0.3), method=Blockwise())

    n = 1024
    used = temporary_bytes(streamed, (2, 4, n, laws.DIM), (4, n, laws.DIM), (n, laws.DIM_V))
    assert used < 24 * 2**20  # 8 blocks of scores would be 32 MiB


def test_blocks_out_of_reach_are_not_evaluated():
    """The kernel would make them NaN; in a batch, where all members are out of reach."""

    class Poisoned(ak.kernels.Compact):
        __init__ = ak.kernels.Radial.__init__

        def log_inside(self, squares):
            return jnp.zeros_like(squares)

        def log_of(self, squares):
            return jnp.where(squares > 100.0, jnp.nan, super().log_of(squares))

        def score_upper_bound(self, boxes):
            return Boxcar(1.0).score_upper_bound(boxes)

    x = np.linspace(0.0, 64.0, 512, dtype=np.float32)[:, None]

    def attended(x, size=8):
        return ak.attend(x, x, x, kernel=Poisoned(1.0), method=Blockwise(size, size))

    out = np.asarray(attended(x))
    np.testing.assert_allclose(out[100:-100], x[100:-100], rtol=1e-5)
    assert np.isfinite(out).all()
    assert np.isfinite(attended(np.stack([x, x + np.float32(0.1)]))).all()
    assert np.isnan(attended(x, 512)).all()  # every pair


def test_blocks_negligible_to_one_query_alone_are_evaluated():
    """The second block of keys is the nearest one to the second query of a block."""
    q, k, v = (np.float32(x)[:, None] for x in ([0, 30], [0, 1, 40, 41], [1, 1, 2, 2]))
    out = ak.attend(q, k, v, kernel=ak.Gaussian(1.0), method=Blockwise(2, 2))
    np.testing.assert_allclose(np.asarray(out)[:, 0], [1.0, 2.0], rtol=1e-6)


def test_a_window_reaches_its_first_and_its_last_block(x64):
    """Each block of 5 queries evaluates at most 5 of the 16 blocks of 4 keys."""
    x = np.random.default_rng(0).normal(size=(61, 2))

    @jax.jit
    def of_methods(x):
        windows = [ak.Window(*limits) for limits in ((7, 3), (8, 0), (0, 9), (3, 4))]
        parts = {"kernel": ak.DotProduct(), "return_log_mass": True}
        return [
            [ak.attend(x, x, x, prior=window, method=method, **parts) for window in windows]
            for method in (Blockwise(5, 4), Blockwise(5), Dense())
        ]

    streamed, at_once, dense = of_methods(x)
    laws.assert_agree(streamed, dense)
    laws.assert_agree(at_once, dense)


BLOCK = np.arange(64) // 8
MASKS = {
    "causal": ak.Causal(),
    "segments": priors.Segments(BLOCK),
    "stored": priors.MaskArray((BLOCK[:, None] == BLOCK) | (BLOCK == 2)),
    "complement of stored": ~priors.MaskArray(BLOCK[:, None] != BLOCK),
    "function": priors.MaskFunction(lambda i, j: jnp.abs(i - j) < 3),
    "not causal": ~ak.Causal(),
    "at positions": priors.AtPositions(priors.MaskFunction(lambda i, j: j >= i), np.arange(64)),
    "with a bias": ak.Alibi(0.1) * ~ak.Causal(3),
    "union": ~ak.Causal() | priors.MaskFunction(lambda i, j: j == 0),
}


@pytest.mark.parametrize(
    ("name", "batch"),
    [("causal", ()), ("stored", (2,)), *(slow(name, (2,)) for name in MASKS if name != "stored")],
)
def test_blocks_that_a_mask_excludes_are_not_evaluated(monkeypatch, name, batch):
    """Values of NaN in a block of keys reach no query whose mask excludes the block: they are not
    even multiplied by 0, whatever bound the kernel gives."""
    prior = MASKS[name]
    index = np.arange(64)
    dense = np.exp(np.asarray(jax.jit(lambda i: prior.pairwise(i, i))(index)))
    excluded = ~dense.reshape(8, 8, 8, 8).any(axis=(1, 3))
    poisoned = np.argmax(excluded.sum(axis=0))
    clean = np.repeat(excluded[:, poisoned], 8)
    monkeypatch.setattr("attnkernel.methods._blockwise.MAX_BLOCK_ROWS", 16)
    x = np.broadcast_to(np.sin(index, dtype=np.float32)[:, None], (*batch, 64, 1))
    v = np.where(poisoned == BLOCK, np.nan, 1.0)[:, None].astype(np.float32)

    @jax.jit
    def value_and_jvp(x, v):
        def value(x):
            return ak.attend(x, x, v, kernel=ak.DotProduct(), prior=prior, method=Blockwise(8))

        return jax.jvp(value, (x,), (x,))

    for found in value_and_jvp(x, v):
        finite = np.isfinite(found).reshape(-1, 64)
        np.testing.assert_array_equal(finite, np.broadcast_to(clean, finite.shape))
    assert 0 < clean.sum() < 64


class OneMember(Blockwise):
    """One head after the other, as large heads are."""

    def batch_size(self, task):
        return 1


def test_a_mask_is_read_once_for_all_heads_and_once_in_each_block_of_a_head():
    reads = []

    def function(i, j):
        jax.debug.callback(lambda _: reads.append(1), i + j)
        return j <= i

    n, heads = 32, 5
    x = np.ones((heads, n, 1), np.float32)
    prior = priors.MaskFunction(function)
    method = OneMember(8, 8)
    jax.jit(lambda x: ak.attend(x, x, x, kernel=ak.Gaussian(), prior=prior, method=method))(x)
    jax.effects_barrier()
    blocks = 4 * 5 // 2  # of 16, the others are above the diagonal
    assert len(reads) == n * n + heads * blocks * 64
