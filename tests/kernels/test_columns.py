"""Kernels of some columns of the points, mixed data, and kernels that hold other kernels: products
of them over columns, and what is known of the parts is known of the whole."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from categorical_kernels import TABLE, mixed, sample
from marks import slow
from noisy_sine import leave_one_out
from refusals import assert_raises, assert_refused

import attnkernel as ak
from attnkernel import kernels
from attnkernel.kernels import Kernel, LiRacine, SoftCapped, Tricube
from attnkernel.methods import Blockwise, Dense

# --- a kernel of some columns ---


def test_a_kernel_on_columns_is_that_of_those_columns(x64):
    q, k = (np.random.default_rng(i).normal(size=(n, 5)) for i, n in ((0, 7), (1, 3)))
    lengths = np.array([0.5, 2.0])

    def gaussian(a, b):
        return -0.5 * (((a[:, None] - b[None]) / lengths) ** 2).sum(axis=2)

    product = lambda a, b: a @ b.T / np.sqrt(2)  # noqa: E731
    formulas = ((ak.Gaussian(lengths), gaussian), (ak.DotProduct(), product))
    cases = list(itertools.product(formulas, ((0, 3), (4, 1), np.array([2, 3]))))
    kernels = [ak.OnColumns(kernel, columns) for (kernel, _), columns in cases]
    nested = [ak.Gaussian().on(1).on(3, 0), ak.Gaussian().on(0)]

    @eqx.filter_jit
    def scores(kernels, q, k):
        return [(kernel.pairwise(q, k), Kernel.pairwise(kernel, q[:2], k)) for kernel in kernels]

    *found, of_nested, of_plain = scores(kernels + nested, q, k)
    together = zip(found, kernels, cases, strict=True)
    for (all_pairs, one_by_one), on, ((kernel, formula), columns) in together:
        a, b = map(int, columns)
        expected = formula(q[:, [a, b]], k[:, [a, b]])
        np.testing.assert_allclose(all_pairs, expected, rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(one_by_one, expected[:2], rtol=1e-14, atol=1e-14)
        assert on.columns == kernel.on(a, b).columns == (a, b)
    np.testing.assert_allclose(of_nested[0], of_plain[0])
    assert ak.OnColumns(ak.Gaussian(), 2).columns == (2,)
    assert ak.Gaussian(1.0).on((0, 2)).columns == ak.Gaussian(1.0).on(0, 2).columns == (0, 2)


X, THREE = jax.device_put((np.ones((5, 2)), np.ones((5, 3))))
OUTSIDE = ak.Gaussian().on(0, 2)


def test_wrong_columns_are_refused():
    assert_refused(
        *(
            (lambda bad=bad: ak.OnColumns(ak.Gaussian(), bad), r"must be.*integer, at least 0")
            for bad in (-1, True, (), (0, -3), np.array([0.5]))
        ),
        (lambda: ak.Gaussian().on(1, 1), r"once; got \(1, 1\)"),
        *(
            (refused, r"columns 0, 2.*at least 3 dimensions; got 2")
            for refused in (
                lambda: OUTSIDE.pairwise(X, X),
                lambda: OUTSIDE.search_box(X),
                lambda: ak.attend(X, X, X, kernel=OUTSIDE * OUTSIDE),
            )
        ),
        (lambda: ak.attend(X, THREE, X, kernel=ak.Gaussian().on(0)), "same dimension; got 2 and 3"),
    )


# --- mixed data ---


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("Aitchison and Aitken", Dense()),
        ("Wang and van Ryzin", Dense()),
        slow("Li and Racine", Blockwise(8, 16)),
        slow("Li and Racine, ordered", Dense()),
    ],
)
def test_mixed_data_are_a_product_over_columns(x64, name, method):
    (make, formula, _), (x, v) = TABLE[name], sample()
    queries = x[:17]
    steps = np.abs(queries[:, None] - x[None])
    weights = formula(0.3, steps[..., 0]) * formula(0.3, steps[..., 2])
    weights = weights * np.exp(-0.5 * (steps[..., 1] / 0.5) ** 2)
    expected = weights @ v / weights.sum(axis=1, keepdims=True)

    @jax.jit
    def value_and_slope(bandwidth):
        def total(bandwidth):
            out = ak.attend(queries, x, v, kernel=mixed(make, bandwidth), method=method)
            return jnp.sum(out), out

        return jax.value_and_grad(total, has_aux=True)(bandwidth)

    (_, value), slope = value_and_slope(0.3)
    np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-12)
    (ahead, _), (behind, _) = (value_and_slope(0.3 + step)[0] for step in (1e-5, -1e-5))
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-6)


def test_a_bound_of_infinity_does_not_hide_one_of_none():
    """Categories that differ, with λ = 0, beside the unbounded `DotProduct`."""
    kernel = LiRacine(ak.fixed(0.0)).on(0) * ak.DotProduct().on(1)
    both = ak.DotProduct() * ak.Gaussian()
    boxes = ak.kernels.PointBoxes(*np.repeat(np.float32([[0, 1], [2, 1]]), 2, axis=0))
    bounds = jax.jit(lambda boxes: [each.score_upper_bound(boxes) for each in (kernel, both)])
    np.testing.assert_array_equal(bounds(boxes), [-np.inf, np.inf])


def test_a_fit_to_mixed_data_stays_in_its_domain(x64):
    rng = np.random.default_rng(5)
    group, x = rng.integers(0, 3, 61), rng.uniform(-2, 2, 61)
    y = np.sin(2 * x) + np.array([0.0, 0.1, 3.0])[group] + 0.1 * rng.normal(size=61)
    kernel = LiRacine(1e-3).on(0) * ak.Gaussian(0.5).on(1)
    points = np.stack([group, x], axis=1)
    fit = ak.fit(ak.KernelRegression(kernel), points, y, objective=ak.LeaveOneOut(), starts=2)
    first, second = fit.model.kernel.first.kernel, fit.model.kernel.second.kernel
    assert 1e-4 * (1 - 1e-9) <= first.bandwidth < 0.05
    assert 0.05 < second.lengthscale < 1.0
    lengthscales = np.geomspace(0.05, 4.0, 100)
    without_groups = [leave_one_out(x[:, None], y, lengthscale) for lengthscale in lengthscales]
    assert fit.loss < 0.1 * min(without_groups)


N, DIM = 23, 3
POINTS = np.random.default_rng(0).normal(size=(N, DIM)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(2, DIM, DIM)).astype(np.float32)


def projected(kernel):
    make = lambda: eqx.nn.Linear(DIM, DIM, use_bias=False, key=jax.random.PRNGKey(0))  # noqa: E731
    empty = eqx.filter_eval_shape(make)
    where = lambda linear: linear.weight  # noqa: E731
    query, key = (eqx.tree_at(where, empty, weight) for weight in jax.device_put([*WEIGHTS]))
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


def gaussian_of(kernel):
    is_gaussian = lambda node: isinstance(node, ak.Gaussian)  # noqa: E731
    (found,) = (n for n in jax.tree.leaves(kernel, is_leaf=is_gaussian) if is_gaussian(n))
    return found


def test_every_wrapper_is_tested():
    made = {type(wrap(ak.Gaussian(0.5))) for wrap, _ in WRAPPERS.values()}
    public = {value for value in vars(kernels).values() if isinstance(value, type)}
    assert {w for w in public if issubclass(w, kernels.Wrapper)} - {kernels.Wrapper} <= made


def test_boxes_and_longer_lengthscales_are_those_of_the_part():
    table = {name: wrap(ak.Gaussian(0.5)) for name, (wrap, _) in WRAPPERS.items()}
    points = {name: seen(POINTS) for name, (_, seen) in WRAPPERS.items()}

    @eqx.filter_jit
    def evaluated(table, points, x):
        of_part = jax.tree.map(ak.Gaussian(0.5).search_box, points)
        boxes = {name: (kernel.search_box(x), of_part[name]) for name, kernel in table.items()}
        return boxes, {name: kernels.rescaled(kernel, 3.0) for name, kernel in table.items()}

    boxes, longer = evaluated(table, points, POINTS)
    for name, kernel in table.items():
        for side, expected in zip(*boxes[name], strict=True):
            assert jax.tree.structure(side) == jax.tree.structure(kernel)
            lengths = gaussian_of(side).lengthscale, expected.lengthscale
            assert np.isfinite(lengths[0])
            np.testing.assert_allclose(*lengths, rtol=1e-5, err_msg=name)
        assert type(longer[name]) is type(kernel)
        np.testing.assert_allclose(gaussian_of(longer[name]).lengthscale, 1.5, rtol=1e-6)


def test_categories_and_checks_are_those_of_the_parts():
    mixed = LiRacine(0.3).on(2) * ak.Gaussian(np.ones(2)).on(0, 1)
    for kernel in (mixed, Shifted(mixed), kernels.Rescaled(mixed, 2.0), SoftCapped(mixed, 2.0)):
        assert set(kernels.category_counts(kernel, DIM)) == {2}
        assert_raises("at least 3 dimensions", kernel.check, 2, 2)
    assert_raises("2 lengthscales", Shifted(ak.Gaussian(np.ones(2))).check, DIM, DIM)
    assert Shifted(ak.Gaussian()).is_cheap
    assert not Shifted(ak.DotProduct()).is_cheap


def test_a_product_with_nearest_neighbours_sums_over_all_keys_in_blocks(x64):
    """The distance to the m-th nearest key is that of all keys, not of the keys of one block."""
    x = POINTS.astype(np.float64)
    kernel = ak.NearestNeighbours(Tricube(1.5), 0.5).on(0, 1) * ak.Gaussian(2.0).on(2)

    @jax.jit
    def by_both(x):
        methods = Dense(), Blockwise(5, 4)
        return [ak.attend(x, x, x, kernel=kernel, method=method) for method in methods]

    dense, streamed = by_both(x)
    np.testing.assert_allclose(streamed, dense, rtol=1e-10)
