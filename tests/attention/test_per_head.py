"""`PerHead`: kernels, priors and rules that differ from head to head."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

import attnkernel as ak

HEADS, QUERIES, KEYS, DIM, DIM_V = 3, 7, 11, 2, 5
LENGTHS = np.array([0.3, 1.0, 4.0])


def arrays(*batch):
    rng = np.random.default_rng(0)
    shapes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, DIM_V))
    return tuple(jnp.asarray(rng.normal(size=(*batch, *shape))) for shape in shapes)


def each(make, numbers=LENGTHS):
    return ak.PerHead(eqx.filter_vmap(make)(jnp.asarray(numbers)))


@pytest.mark.parametrize(
    ("method", "batch"),
    [
        (ak.Dense(), ()),
        (ak.Blockwise(4, 4), (2, HEADS)),
        (ak.Blockwise(4, 4), (2, 1)),
        *(slow(ak.Blockwise(4, 4), batch) for batch in ((), (HEADS,))),
        *(slow(ak.Dense(), batch) for batch in ((HEADS,), (2, HEADS), (2, 1))),
    ],
)
def test_heads_equal_a_loop_over_heads(x64, method, batch):
    q, k, v = arrays(*batch)
    kernel = ak.DotProduct() * each(ak.Gaussian)
    prior = each(ak.Alibi, 0.1 * LENGTHS) * ak.Causal(offset=4)
    rule = each(ak.Softmax, 1.0 / LENGTHS)
    value, log_mass = ak.attend(
        q, k, v, kernel=kernel, prior=prior, rule=rule, method=method, return_log_mass=True
    )
    q, k, v = (jnp.broadcast_to(x, (*batch[:-1], HEADS, *x.shape[-2:])) for x in (q, k, v))
    for h, length in enumerate(LENGTHS):
        expected = ak.attend(
            q[..., h, :, :],
            k[..., h, :, :],
            v[..., h, :, :],
            kernel=ak.DotProduct() * ak.Gaussian(length),
            prior=ak.Alibi(0.1 * length) * ak.Causal(offset=4),
            rule=ak.Softmax(1.0 / length),
            return_log_mass=True,
        )
        np.testing.assert_allclose(value[..., h, :, :], expected[0], rtol=1e-12)
        np.testing.assert_allclose(log_mass[..., h, :], expected[1], rtol=1e-12)


def test_chunked_members_equal_all_at_once(x64, monkeypatch):
    """Large members of a batch are processed in chunks."""
    q, k, v = arrays(2, 1)
    kernel = each(ak.Gaussian)
    at_once = ak.attend(q, k, v, kernel=kernel)
    for members in (1, 2, 4):
        monkeypatch.setattr(ak.Dense, "batch_size", lambda self, task, members=members: members)
        chunked = ak.attend(q, k, v, kernel=kernel, method=ak.Dense())
        np.testing.assert_allclose(chunked, at_once, rtol=1e-12)


def test_two_axes_of_heads(x64):
    q, k, v = arrays(2, 1)
    lengths = jnp.linspace(0.3, 4.0, 6)
    flat = eqx.filter_vmap(ak.Gaussian)(lengths)
    grid = jax.tree.map(lambda leaf: leaf.reshape(2, 3), flat)
    ours = ak.attend(q, k, v, kernel=ak.PerHead(grid, axes=2))
    expected = ak.attend(
        jnp.repeat(q[:, 0], 3, axis=0),
        jnp.repeat(k[:, 0], 3, axis=0),
        jnp.repeat(v[:, 0], 3, axis=0),
        kernel=ak.PerHead(flat),
    )
    np.testing.assert_allclose(ours.reshape(6, QUERIES, DIM_V), expected, rtol=1e-12)


def test_gradients_reach_each_head(x64):
    q, k, v = arrays()

    def loss(lengths):
        kernel = ak.PerHead(eqx.filter_vmap(ak.Gaussian)(lengths))
        return jnp.sum(ak.attend(q, k, v, kernel=kernel)[1] ** 2)

    slopes = jax.grad(loss)(jnp.asarray(LENGTHS))
    assert slopes[1] != 0
    np.testing.assert_array_equal(slopes[jnp.array([0, 2])], 0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ak.PerHead(ak.Causal()), "1 leading axes.*no array"),
        (lambda: ak.PerHead(ak.Gaussian(1.0)), r"1 leading axes.*\[\(\)\]"),
        (
            lambda: ak.attend(*arrays(4), kernel=each(ak.Gaussian)),
            r"must broadcast; got q \(4, 7, 2\), k \(4, 11, 2\), v \(4, 11, 5\), and heads \(3,\)",
        ),
    ],
)
def test_heads_that_do_not_broadcast(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("kernel", [ak.Gaussian(0.1), ak.Gaussian(1.0)]),
        (
            "kernel",
            [ak.Cosine(0.9) * ak.Gaussian(2.0), ak.Cosine(1.5) * ak.Gaussian()],
        ),
        ("rule", [ak.Softmax(0.5), ak.Softmax(2.0)]),
        ("prior", [ak.Window(1, 1) & ak.Causal(1), ak.Window(2, 0) & ak.Causal()]),
        ("prior", [ak.Alibi(0.5), ak.Alibi(0.1)]),
    ],
    ids=["lengthscales", "products", "fixed temperatures", "masks", "fixed slopes"],
)
def test_a_list_of_heads_is_stacked(x64, name, heads):
    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    options = {"kernel": ak.Gaussian(0.3)}
    found = ak.attend(x, x, x, **(options | {name: ak.PerHead(heads)}))
    expected = [ak.attend(x, x, x, **(options | {name: head})) for head in heads]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-14)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([], "at least one head"),
        ([ak.Gaussian(), ak.Laplace()], "same class in every head; got Gaussian and Laplace"),
        ([ak.Gaussian(), 3], r"stack\[1\] must be a Kernel"),
        ([ak.Softmax(ak.fixed(0.5)), ak.Softmax(0.5)], "temperature.*fixed.*trained"),
        ([ak.Gaussian(0.1), ak.Gaussian(jnp.ones(2))], r"same shape.*\(\) and \(2,\)"),
        ([ak.Gaussian(), ak.Gaussian(metric=jnp.eye(2))], "metric.*None in some"),
        ([ak.Polynomial(2), ak.Polynomial(4)], "Polynomial.degree.*got 2, 4"),
        ([ak.Gaussian(), ak.Gaussian() * ak.Laplace()], "got Gaussian and Product"),
    ],
)
def test_heads_of_a_list_differ_in_numbers_alone(heads, message):
    with pytest.raises(ValueError, match=message):
        ak.PerHead(heads)


def test_a_list_of_heads_has_one_axis():
    with pytest.raises(ValueError, match="one axis; got axes=2"):
        ak.PerHead([ak.Gaussian(), ak.Gaussian()], axes=2)
