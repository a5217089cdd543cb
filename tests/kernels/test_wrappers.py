"""Kernels that hold other kernels: what is known of the parts is known of the whole."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest

import attnkernel as ak
from attnkernel import kernels
from attnkernel.kernels import LiRacine, SoftCapped, Tricube
from attnkernel.methods import Blockwise, Dense

N, DIM = 23, 3
X = np.random.default_rng(0).normal(size=(N, DIM)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(2, DIM, DIM)).astype(np.float32)


def projected(kernel):
    make = lambda: eqx.nn.Linear(DIM, DIM, use_bias=False, key=jax.random.PRNGKey(0))  # noqa: E731
    empty = eqx.filter_eval_shape(make)
    query, key = (
        eqx.tree_at(lambda linear: linear.weight, empty, jax.device_put(weight))
        for weight in WEIGHTS
    )
    return ak.kernels.Projected(kernel, query, key)


class Shifted(kernels.Wrapper):
    """A wrapper of the user's own: `log_pair` alone."""

    kernel: kernels.Kernel

    def log_pair(self, q, k):
        return self.kernel.log_pair(q, k) - 1.0


# each around the Gaussian of lengthscale 0.5, and the points that this one sees
WRAPPERS = {
    "product": (lambda kernel: kernel * ak.DotProduct(), lambda x: x),
    "product of user's": (lambda kernel: ak.DotProduct() * Shifted(kernel), lambda x: x),
    "columns": (lambda kernel: kernel.on(2, 0), lambda x: x[:, [2, 0]]),
    "soft cap": (lambda kernel: SoftCapped(kernel, 3.0), lambda x: x),
    "rescaled": (lambda kernel: kernels.Rescaled(kernel, 4.0), lambda x: x / 4.0),
    "projected": (projected, lambda x: x @ WEIGHTS[1].T),
    "nearest": (
        lambda kernel: ak.NearestNeighbours(kernel, neighbours=2),
        lambda x: np.tile(np.arange(N, dtype=x.dtype)[:, None] / 2, DIM),
    ),
    "of a wrapper": (lambda kernel: SoftCapped(kernel.on(1), 3.0), lambda x: x[:, [1]]),
    "user's": (Shifted, lambda x: x),
}
each_wrapper = pytest.mark.parametrize("name", WRAPPERS)


def gaussian_of(kernel):
    is_gaussian = lambda node: isinstance(node, ak.Gaussian)  # noqa: E731
    (found,) = (n for n in jax.tree.leaves(kernel, is_leaf=is_gaussian) if is_gaussian(n))
    return found


def test_every_wrapper_is_tested():
    made = {type(wrap(ak.Gaussian(0.5))) for wrap, _ in WRAPPERS.values()}
    public = {value for value in vars(kernels).values() if isinstance(value, type)}
    assert {w for w in public if issubclass(w, kernels.Wrapper)} - {kernels.Wrapper} <= made


@functools.cache
def evaluated():
    """For every wrapper: its search box, that of the part, and the wrapper rescaled."""
    table = {name: wrap(ak.Gaussian(0.5)) for name, (wrap, _) in WRAPPERS.items()}
    points = {name: seen(X) for name, (_, seen) in WRAPPERS.items()}

    @eqx.filter_jit
    def program(table, points, x):
        part = ak.Gaussian(0.5)
        return {
            name: (
                kernel.search_box(x),
                part.search_box(points[name]),
                kernels.rescaled(kernel, 3.0),
            )
            for name, kernel in table.items()
        }

    return table, program(table, points, X)


@each_wrapper
def test_the_search_box_is_that_of_the_part(name):
    table, results = evaluated()
    kernel = table[name]
    for side, expected in zip(*results[name][:2], strict=True):
        assert jax.tree.structure(side) == jax.tree.structure(kernel)
        length = gaussian_of(side).lengthscale
        assert np.isfinite(length)
        np.testing.assert_allclose(length, expected.lengthscale, rtol=1e-5)


@each_wrapper
def test_rescaled_multiplies_the_lengthscale_of_the_part(name):
    table, results = evaluated()
    longer = results[name][2]
    assert type(longer) is type(table[name])
    np.testing.assert_allclose(gaussian_of(longer).lengthscale, 1.5, rtol=1e-6)


def test_categories_and_checks_are_those_of_the_parts():
    mixed = LiRacine(0.3).on(2) * ak.Gaussian(np.ones(2)).on(0, 1)
    for kernel in (mixed, Shifted(mixed), kernels.Rescaled(mixed, 2.0), SoftCapped(mixed, 2.0)):
        assert set(kernels.category_counts(kernel, DIM)) == {2}
        with pytest.raises(ValueError, match="at least 3 dimensions"):
            kernel.check(2, 2)
    with pytest.raises(ValueError, match="2 lengthscales"):
        Shifted(ak.Gaussian(np.ones(2))).check(DIM, DIM)
    assert Shifted(ak.Gaussian()).is_cheap
    assert not Shifted(ak.DotProduct()).is_cheap


def test_a_product_with_nearest_neighbours_sums_over_all_keys_in_blocks(x64):
    """The distance to the m-th nearest key is that of all keys, not of the keys of one block."""
    x = X.astype(np.float64)
    kernel = ak.NearestNeighbours(Tricube(1.5), 0.5).on(0, 1) * ak.Gaussian(2.0).on(2)

    @jax.jit
    def by_both(x):
        methods = Dense(), Blockwise(5, 4)
        return [ak.attend(x, x, x, kernel=kernel, method=method) for method in methods]

    dense, streamed = by_both(x)
    np.testing.assert_allclose(streamed, dense, rtol=1e-10)
