"""Fits, trainings, and several at once, of data sets of similar size share compiled programs, and
padding changes no result. The rows that are held out at random are those that are drawn without
padding."""

import jax
import numpy as np
import optax
import pytest
from least_squares import local_polynomial
from marks import slow

import attnkernel as ak
from attnkernel._core import rows as row_buckets
from attnkernel._core.rows import MAX_PADDED_ROWS, bucket_size, cut_rows, pad_rows
from attnkernel.fitting._options import Options
from attnkernel.fitting._problem import build_problem
from attnkernel.objectives import Sample
from attnkernel.objectives._hold_out import draw_rows

EPS = np.finfo(np.float64).eps
CASES = {  # objective, order, columns
    "leave-one-out": (ak.LeaveOneOut(), 0, 1),
    "leave-one-out of lines in two columns": (ak.LeaveOneOut(), 1, 2),
    "AICc of lines": (ak.AICc(), 1, 1),
    "GCV in two columns": (ak.GCV(), 0, 2),
    "folds": (ak.KFold(4), 0, 1),
    "AICc of bias-reduced means": (ak.AICc(), 0, 1),
    "leave-one-out of bias-reduced lines": (ak.LeaveOneOut(), 1, 1),
}


def data(n, dim=1):
    rng = np.random.default_rng(n)
    x = rng.uniform(size=(n, dim))
    y = np.sin(6 * x).sum(axis=1) + 0.1 * rng.normal(size=n)
    return x, y, rng.uniform(0.5, 2.0, n)


def model_of(case):
    _, order, dim = CASES[case]
    model = ak.KernelRegression(ak.Gaussian(np.full(dim, 0.3)), order=order)
    return ak.models.BiasReduced(model, 4) if "bias-reduced" in case else model


def fit(n, case, weighted=False):
    x, y, weights = data(n, CASES[case][2])
    options = {"objective": CASES[case][0], "weights": weights if weighted else None}
    return ak.fit(model_of(case), x, y, **options, starts=1)


def problem_of(case, weighted):
    """The starts of a search of 37 rows, and the problem that it minimises."""
    x, y, weights = data(37, CASES[case][2])
    x, y, weights = jax.device_put((x, y, weights))
    objective = CASES[case][0].with_weights(weights) if weighted else CASES[case][0]
    parts = Sample(x, y, objective)
    options = Options(starts=3).with_defaults(model_of(case), objective)
    return build_problem(model_of(case), parts, options, None)


def evaluated(cases):
    """For each case its starts, its box, and its criterion at the starts, by one program."""
    problems = [problem_of(case, weighted) for case, weighted in cases]

    @jax.jit
    def computed(problems):
        return [jax.lax.map(problem.loss, z) for z, problem in problems]

    rows = {problem.x.shape[0] for _, problem in problems}
    losses = computed(problems)
    found = [(z, problem.box, loss) for (z, problem), loss in zip(problems, losses, strict=True)]
    return rows, found


@pytest.mark.slow
def test_a_padded_fit_minimises_the_criterion_of_the_rows_alone(x64, monkeypatch):
    """With and without weights: from the same starts, in the same box."""
    cases = [(case, i % 2 == 1) for i, case in enumerate(CASES)]
    rows, padded = evaluated(cases)
    assert rows == {40}
    monkeypatch.setattr(row_buckets, "MAX_PADDED_ROWS", 0)
    rows, alone = evaluated(cases)
    assert rows == {37}
    for case, found, expected in zip(cases, padded, alone, strict=True):
        leaves = map(jax.tree.leaves, (found, expected))
        for one, other in zip(*leaves, strict=True):
            scale = np.max(np.abs(other))
            np.testing.assert_allclose(one, other, atol=1e4 * EPS * scale, err_msg=str(case))


def test_another_number_of_rows_of_a_bucket_compiles_nothing(programs):
    case = "AICc of lines"
    first, second = fit(33, case), fit(39, case)
    first(np.linspace(0.0, 1.0, 18)), first.minima()
    programs.clear()
    third = fit(36, case)
    at = np.linspace(0.0, 1.0, 23)
    found, _ = third(at), third.minima()
    assert not programs
    x, lengthscale = np.asarray(third.x, float), np.asarray(third.model.kernel.lengthscale)
    expected = local_polynomial(at, x, lengthscale, 1) @ np.asarray(third.y)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert len({float(each.loss) for each in (first, second, third)}) == 3


def test_bias_reduced_fits_share_a_program_too(programs):
    first = fit(33, "AICc of bias-reduced means")
    programs.clear()
    second = fit(38, "AICc of bias-reduced means")
    assert not programs
    assert float(first.loss) != float(second.loss)


class MeanOfAll(ak.objectives.Objective):
    """An objective of a user's own, which reads every row and no weights."""

    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        assert x.shape[0] == 37
        return ((y - model(x, x, y, prior=ak.priors.ExcludeSelf())) ** 2).mean()


def test_rows_are_not_padded_where_something_may_read_them(x64):
    x, y, _ = data(37)
    model = ak.KernelRegression(ak.Gaussian(0.3))
    alone = ak.fit(model, x, y, objective=MeanOfAll(), starts=2)
    padded = ak.fit(model, x, y, starts=2)
    np.testing.assert_allclose(alone.loss, padded.loss, rtol=1e-9)
    assert padded.x.shape[0] == 37
    assert padded.objective.weights is None
    kernel = ak.NearestNeighbours(ak.kernels.Tricube(1.0), fraction=0.3)
    model = ak.KernelRegression(kernel.on(0) * ak.Gaussian(0.5))
    assert not model.can_pad_rows

    @jax.jit
    def both(x, y):
        return model(x, x, y), ak.attend(x, x, y[:, None], kernel=model.kernel)[:, 0]

    np.testing.assert_allclose(*both(x, y), rtol=1e-9)


KEY = np.array([0, 3], np.uint32)
KEYS = np.array([[0, 3], [1, 4]], np.uint32)


def model():
    return ak.KernelRegression(ak.Gaussian(0.2))


def noisier(n):
    rng = np.random.default_rng(n)
    x = rng.uniform(size=(n, 1))
    return x, np.sin(6 * x[:, 0]) + 0.3 * rng.normal(size=n), rng.uniform(0.5, 2.0, n)


def train(n, size=5, weighted=False, **options):
    x, y, weights = noisier(n)
    options = {"optimizer": optax.sgd(0.1), "steps": 5, "key": jax.device_put(KEY)} | options
    weights = weights if weighted else None
    return ak.fit(model(), x, y, objective=ak.HoldOut(size), weights=weights, **options)


def fits(n, in_axes=(None, None, 0), **options):
    """Two trainings, of one data set or of two, or searches."""
    x, y, _ = noisier(n)
    objective = ak.HoldOut(np.array([1, 5]), at_most=5)
    if in_axes[1] == 0:
        x, y, objective = np.stack([x, x**2]), np.stack([y, 2 * y]), ak.LeaveOneOut()
        return ak.fit_many(model(), x, y, objective=objective, in_axes=in_axes, steps=20, starts=2)
    options = {"optimizer": optax.sgd(0.1), "steps": 5, "key": jax.device_put(KEYS)}
    return ak.fit_many(model(), x, y, objective=objective, in_axes=in_axes, **options)


@pytest.mark.parametrize(("size", "weighted"), [(5, True), slow(1, False), slow(5, False)])
def test_a_padded_training_equals_one_of_the_rows_alone(x64, monkeypatch, programs, size, weighted):
    """And another number of rows of the same bucket compiles nothing."""
    padded = train(37, size, weighted)
    programs.clear()
    other = train(38, size, weighted)
    assert not programs
    assert other.x.shape == (38, 1)
    assert (other.objective.weights is not None) == weighted
    assert float(padded.loss) != float(other.loss)
    monkeypatch.setattr(row_buckets, "MAX_PADDED_ROWS", 0)
    alone = train(37, size, weighted)
    np.testing.assert_allclose(padded.history["loss"], alone.history["loss"], rtol=1e-12)
    lengthscales = (fit.model.kernel.lengthscale for fit in (padded, alone))
    np.testing.assert_allclose(*lengthscales, rtol=1e-12)


def test_the_first_loss_is_that_of_the_rows_drawn_from_all(x64):
    x, y, weights = noisier(37)
    drawn = jax.jit(lambda key: jax.random.permutation(jax.random.split(key)[1], 37))
    rows = np.asarray(drawn(KEY))[:5]
    kept = np.setdiff1d(np.arange(37), rows)
    predicted = local_polynomial(x[rows], x[kept], 0.2, weights=weights[kept]) @ y[kept]
    expected = np.average((y[rows] - predicted) ** 2, weights=weights[rows])
    found = train(37, weighted=True).history["loss"][0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "in_axes", [(None, None, 0), slow((None, 0, None))], ids=["sizes", "noisier sets"]
)
def test_several_padded_fits_share_a_program_and_equal_those_of_the_rows_alone(
    x64, monkeypatch, programs, in_axes
):
    padded = fits(37, in_axes)
    programs.clear()
    other = fits(38, in_axes)
    assert not programs
    assert other.x.shape[-2:] == (38, 1)
    assert np.all(np.asarray(padded.loss) != np.asarray(other.loss))
    monkeypatch.setattr(row_buckets, "MAX_PADDED_ROWS", 0)
    alone = fits(37, in_axes)
    if in_axes[1] is None:
        np.testing.assert_allclose(padded.history["loss"], alone.history["loss"], rtol=1e-9)
    # of searches both starts meet at one minimum, and rounding tells whose history is kept
    np.testing.assert_allclose(padded.starts.loss, alone.starts.loss, rtol=1e-9)
    assert (padded.starts.edges is None) == (alone.starts.edges is None)
    assert jax.tree.structure(padded) == jax.tree.structure(alone)
    assert jax.tree.map(np.shape, padded) == jax.tree.map(np.shape, alone)


@pytest.mark.parametrize("count", [30, 1660, slow(2), slow(1620)])
def test_rows_that_do_not_count_do_not_change_the_draw(count):
    """In any place; 1620 rows are sorted once, 1660 twice, and both are padded to 1664."""
    is_counted = np.zeros(row_buckets.bucket_size(count), bool)
    is_counted[np.random.default_rng(0).permutation(len(is_counted))[:count]] = True

    @jax.jit
    @jax.vmap
    def computed(key, is_counted):
        drawn = [draw_rows(key, len(is_counted), h, is_counted) for h in (1, 2)]
        return drawn, jax.random.permutation(key, count)

    keys = np.random.default_rng(3).integers(0, 2**32, (20, 2), np.uint32)
    drawn, rows = computed(keys, np.tile(is_counted, (20, 1)))
    for h, found in enumerate(drawn, 1):
        np.testing.assert_array_equal(found, np.flatnonzero(is_counted)[rows[:, :h]])


def test_rows_are_not_padded_where_random_bits_depend_on_their_number():
    assert ak.HoldOut(5).can_pad_rows
    with jax.threefry_partitionable(False):
        assert not ak.HoldOut(5).can_pad_rows


def test_a_training_that_holds_out_another_number_compiles_only_its_steps(programs):
    train(300, steps=7)
    programs.clear()
    train(300, size=6, steps=8)
    assert programs == ["jit(_advance_training)"]


def test_sizes_grow_by_a_sixteenth_at_most_from_256_rows():
    sizes = np.array([bucket_size(n) for n in range(1, MAX_PADDED_ROWS + 1)])
    given = np.arange(1, MAX_PADDED_ROWS + 1)
    assert np.all(sizes >= given)
    assert np.all(np.diff(sizes) >= 0)
    assert np.all(sizes - given < np.maximum(8, given / 16))
    assert len(np.unique(sizes)) == 112
    assert [bucket_size(n) for n in (0, MAX_PADDED_ROWS + 1)] == [0, MAX_PADDED_ROWS + 1]


def test_padding_repeats_the_last_row_with_weight_zero():
    given = (np.arange(6.0).reshape(3, 2), np.arange(3.0), np.array([1.0, 2.0, 3.0]))
    x, y, weights = jax.device_put(given)
    more_x, more_y, mask = map(np.asarray, pad_rows(x, y, None))
    assert more_x.shape == (8, 2)
    assert more_y.shape == mask.shape == (8,)
    np.testing.assert_array_equal(more_x[3:], np.broadcast_to(given[0][-1], (5, 2)))
    np.testing.assert_array_equal(mask, np.arange(8) < 3)
    padded = np.asarray(pad_rows(x, y, weights)[2])
    np.testing.assert_array_equal(padded[:4], [1.0, 2.0, 3.0, 0.0])
    np.testing.assert_array_equal(cut_rows({"y": pad_rows(x, y, None, y)[3]}, 3)["y"], y)
    np.testing.assert_array_equal(cut_rows(y, 5), y)
