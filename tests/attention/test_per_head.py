"""`PerHead`: kernels, priors and rules that differ from head to head."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from refusals import assert_raises, assert_refused

import attnkernel as ak
from attnkernel.kernels import Cosine, Polynomial
from attnkernel.methods import Blockwise, Dense

HEADS, QUERIES, KEYS, DIM, DIM_V = 3, 7, 11, 2, 5
EPS = np.finfo(np.float64).eps
LENGTHS = np.array([0.3, 1.0, 4.0])


def arrays(*batch):
    rng = np.random.default_rng(0)
    shapes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, DIM_V))
    return tuple(rng.normal(size=(*batch, *shape)) for shape in shapes)


def each(make, numbers=LENGTHS):
    return ak.PerHead([make(number) for number in numbers])


BATCHES = ((), (HEADS,), (2, HEADS), (2, 1))


@pytest.mark.parametrize(
    ("method", "batches"),
    [
        (Dense(), BATCHES[:1]),
        (Blockwise(4, 4), BATCHES[2:3]),
        slow(Dense(), BATCHES[1:]),
        slow(Blockwise(4, 4), BATCHES),
    ],
)
def test_heads_equal_a_loop_over_heads(x64, method, batches):
    @jax.jit
    def computed(data):
        parts = {
            "kernel": ak.DotProduct() * each(ak.Gaussian),
            "prior": each(ak.Alibi, 0.1 * LENGTHS) * ak.Causal(offset=4),
            "rule": each(ak.Softmax, 1.0 / LENGTHS),
        }
        return [ak.attend(*qkv, **parts, method=method, return_log_mass=True) for qkv in data]

    data = [arrays(*batch) for batch in batches]
    offset = np.arange(QUERIES)[:, None] - np.arange(KEYS)
    for batch, (q, k, v), found in zip(batches, data, computed(data), strict=True):
        q, k, v = (np.broadcast_to(x, (*batch[:-1], HEADS, *x.shape[-2:])) for x in (q, k, v))
        product = np.einsum("...qd,...kd->...qk", q, k) / np.sqrt(DIM)
        squares = ((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(axis=-1)
        lengths = LENGTHS[:, None, None]
        scores = lengths * (product - 0.5 * squares / lengths**2) - 0.1 * lengths * abs(offset)
        weights = np.where(offset >= -4, np.exp(scores), 0.0)
        mass = weights.sum(axis=-1)
        np.testing.assert_allclose(found[0], weights @ v / mass[..., None], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found[1], np.log(mass), rtol=1e-9, atol=1e-12)


def test_two_axes_of_heads(x64):
    q, k, v = arrays(2, 1)
    lengths = np.linspace(0.3, 4.0, 6)

    @jax.jit
    def computed(q, k, v):
        flat = eqx.filter_vmap(ak.Gaussian)(lengths)
        grid = jax.tree.map(lambda leaf: leaf.reshape(2, 3), flat)
        rows = (jnp.repeat(x[:, 0], 3, axis=0) for x in (q, k, v))
        ours = ak.attend(q, k, v, kernel=ak.PerHead(grid, axes=2))
        return ours.reshape(6, QUERIES, DIM_V), ak.attend(*rows, kernel=ak.PerHead(flat))

    np.testing.assert_allclose(*computed(q, k, v), rtol=1e-12)


def test_gradients_reach_each_head(x64):
    q, k, v = arrays()

    @jax.jit
    @jax.grad
    def slopes(lengths):
        kernel = ak.PerHead(eqx.filter_vmap(ak.Gaussian)(lengths))
        return jnp.sum(ak.attend(q, k, v, kernel=kernel)[1] ** 2)

    np.testing.assert_array_equal(np.asarray(slopes(LENGTHS)) != 0, [False, True, False])


def test_heads_that_do_not_broadcast():
    of_four = r"q \(4, 7, 2\), k \(4, 11, 2\), v \(4, 11, 5\), and heads \(3,\)"
    assert_refused(
        (lambda: ak.PerHead(ak.Causal()), "1 leading axes.*no array"),
        (lambda: ak.PerHead(ak.Gaussian(1.0)), r"1 leading axes.*\[\(\)\]"),
        (lambda: ak.attend(*arrays(4), kernel=each(ak.Gaussian)), f"must broadcast; got {of_four}"),
    )


def test_a_list_of_heads_is_stacked(x64):
    """Lengthscales, products, fixed temperatures, masks and fixed slopes."""
    cases = [
        ("kernel", [ak.Gaussian(0.1), ak.Gaussian(1.0)]),
        ("kernel", [Cosine(0.9) * ak.Gaussian(2.0), Cosine(1.5) * ak.Gaussian()]),
        ("rule", [ak.Softmax(0.5), ak.Softmax(2.0)]),
        ("prior", [ak.Window(1, 1) & ak.Causal(1), ak.Window(2, 0) & ak.Causal()]),
        ("prior", [ak.Alibi(0.5), ak.Alibi(0.1)]),
    ]

    @jax.jit
    def computed(x):
        def attended(name, part):
            return ak.attend(x, x, x, **({"kernel": ak.Gaussian(0.3)} | {name: part}))

        stacked = [attended(name, ak.PerHead(heads)) for name, heads in cases]
        return stacked, [[attended(name, head) for head in heads] for name, heads in cases]

    found = jax.device_get(computed(np.linspace(0.0, 1.0, 5)[:, None]))
    for stacked, alone, case in zip(*found, cases, strict=True):
        np.testing.assert_allclose(stacked, alone, rtol=100 * EPS, err_msg=str(case))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([], "at least one head"),
        ([ak.Gaussian(), ak.Laplace()], r"one class.*got Gaussian\(.*and Laplace\("),
        ([ak.Gaussian(), 3], r"stack\[1\] must be a Kernel"),
        ([ak.Softmax(ak.fixed(0.5)), ak.Softmax(0.5)], r"fixed or trained.*fixed\(0.5\).*Softmax"),
        ([ak.Gaussian(), ak.Gaussian(np.ones(2))], r"numbers alone.*=1\) and .*1, 1"),
        ([Polynomial(2), Polynomial(4)], "numbers alone.*degree=2.*degree=4"),
    ],
)
def test_heads_of_a_list_differ_in_numbers_alone(heads, message):
    assert_raises(message, ak.PerHead, heads)
    assert_raises("one axis; got axes=2", ak.PerHead, [ak.Gaussian()] * 2, axes=2)
