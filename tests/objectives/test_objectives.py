"""Hold-out, leave-one-out and folds of groups and blocks against loops in NumPy and scikit-learn,
their profiles, samples and refusals."""

import functools
from unittest.mock import MagicMock

import equinox as eqx
import jax
import numpy as np
import optax
import pandas as pd
import pytest
from least_squares import left_out, local_polynomial
from marks import slow
from refusals import assert_raises
from sklearn.model_selection import GroupKFold, KFold

import attnkernel as ak
from attnkernel.fitting._minimise import minimise

N = 17


def sample():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(N, 1))
    return jax.device_put((x, np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=N)))


def test_hold_out_is_the_mean_square_error_of_the_held_out_rows(x64):
    """Holds out 1 row, 5 rows and all but one; the size is a number or an array."""
    x, y = sample()
    sizes = (1, 5, N - 1)
    model = ak.KernelRegression(ak.Gaussian(0.3))

    @jax.jit
    def computed(x, y, key, traced):
        as_arrays = [ak.HoldOut(size, at_most=N - 1) for size in traced]
        as_numbers = [ak.HoldOut(size) for size in sizes]
        found = [[o(model, x, y, key=key) for o in group] for group in (as_arrays, as_numbers)]
        return found, jax.random.permutation(key, N)

    losses, order = jax.device_get(computed(x, y, np.array([0, 3], np.uint32), np.array(sizes)))
    flat, labels = np.asarray(x)[:, 0], np.asarray(y)
    expected = []
    for size in sizes:
        held, seen = order[:size], order[size:]
        error = labels[held] - local_polynomial(flat[held], flat[seen], 0.3) @ labels[seen]
        expected.append(np.mean(error**2))
    np.testing.assert_allclose(losses, [expected, expected], rtol=1e-12)


def test_expected_hold_out_is_the_mean_over_blocks_of_fixed_permutations(x64):
    data, weights = sample(), np.linspace(0.2, 2.0, N)
    x, y = map(np.asarray, data)
    pairs = np.exp(-0.5 * ((x - x.T) / LENGTHSCALE) ** 2)
    expected = ak.HoldOut(5).expected(permutations=3)
    scores = np.asarray(jax.jit(lambda: expected.scores(model(), *data))())
    assert np.sum(np.isnan(scores), axis=1).tolist() == [N % 5] * 3
    random, losses = np.random.default_rng(0), []
    for ranks, found in zip(random.permuted([range(N)] * 3, axis=1), scores, strict=True):
        is_seen = ranks[:, None] // 5 != ranks // 5
        errors = (y - (pairs * is_seen) @ y / np.sum(pairs * is_seen, axis=1)) ** 2
        some = ranks < N - N % 5
        np.testing.assert_allclose(found[some], errors[some], rtol=1e-10)
        seen = pairs * is_seen * weights
        errors = (y - seen @ y / np.sum(seen, axis=1)) ** 2
        losses.append(np.average(errors[some], weights=weights[some]))
    weighted = ak.HoldOut(5).with_weights(jax.device_put(weights)).expected(3)
    objectives = weighted, ak.HoldOut(1).expected(2), ak.LeaveOneOut()
    found = jax.jit(lambda: [objective(model(), *data) for objective in objectives])()
    np.testing.assert_allclose(found[0], np.mean(losses), rtol=1e-10)
    np.testing.assert_allclose(found[1], found[2], rtol=1e-12)
    assert_raises("HoldOut.17. leaves no row", ak.HoldOut(N).expected(), model(), *data)


SPARSE = np.array([0.264, 0.818, 0.8981, 0.9056, 0.9644, 0.9863])
LABELS = np.array([0.9273, -1.043, -0.4421, -0.6611, -0.4234, -0.1411])
GRID = np.geomspace(0.03, 7.0, 200)


def test_rows_that_the_others_do_not_determine_are_left_out_at_every_lengthscale(x64, programs):
    """At 0.0487, the minimum over all rows, the line left of all others is a constant. The search
    without them is by the program of the first one."""
    model = ak.KernelRegression(ak.Gaussian(0.1), order=1)
    with pytest.warns(ak.FitWarning, match="1 of 6 rows have too few neighbours"):
        fit = ak.fit(model, SPARSE, LABELS)
    assert fit.objective.compared.tolist() == [False] + [True] * 5
    assert sum("advance" in name for name in programs) == 1
    predicted = [left_out(SPARSE, LABELS, length, order=1)[1:] for length in GRID]
    assert np.min(np.mean((LABELS[1:] - predicted) ** 2, axis=1)) > 0.9999 * fit.loss
    length = float(fit.model.kernel.lengthscale)
    expected = np.mean((LABELS - left_out(SPARSE, LABELS, length, order=1))[1:] ** 2)
    np.testing.assert_allclose(fit.loss, expected, rtol=1e-9)
    again = jax.jit(lambda objective, *of: objective(*of))(fit.objective, fit.model, fit.x, fit.y)
    np.testing.assert_allclose(again, expected, rtol=1e-9)


@pytest.mark.slow
def test_rows_that_the_minimum_of_a_sample_does_not_determine_are_in_no_search(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.standard_t(2, 1100)
    y = np.sin(3 * x) + 0.3 * rng.normal(size=1100)
    searches = MagicMock(side_effect=minimise)
    monkeypatch.setattr("attnkernel.fitting._fit.minimise", searches)
    model = ak.KernelRegression(ak.Gaussian(0.1), order=1)
    with pytest.warns(ak.FitWarning, match="68 of 1100 rows have too few neighbours"):
        ak.fit(model, x, y)
    assert searches.call_count == 1


@pytest.mark.slow
def test_a_row_far_from_all_others_does_not_move_the_lengthscale(x64):
    """Nor where inputs repeat, whose sums are over the distinct ones."""
    rng = np.random.default_rng(4)
    x = np.repeat(rng.uniform(size=30), 2)
    y = np.sin(6 * x) + 0.3 * rng.normal(size=60)
    model = ak.KernelRegression(ak.Gaussian(0.1), order=1)
    alone = ak.fit(model, x, y)
    for far, score in ((1e2, None), (1e8, lambda predicted, y: (predicted - y) ** 2)):
        objective = ak.LeaveOneOut(score=score)
        with pytest.warns(ak.FitWarning, match="1 of 61 rows"):
            fit = ak.fit(model, np.append(x, far), np.append(y, 0.5), objective=objective)
        np.testing.assert_allclose(fit.loss, alone.loss, rtol=1e-9)


@pytest.mark.parametrize(
    ("lengthscales", "objective", "message"),
    [
        (np.ones(2), ak.HoldOut(2), "HoldOut"),
        (np.array([0.5, -0.25]), ak.LeaveOneOut(), r"lengthscales.*-0\.25"),
        (np.array([0.5, 0.0]), ak.LeaveOneOut(), r"lengthscales.*0\.5, 0\.0"),
    ],
    ids=["stochastic objective", "negative lengthscale", "lengthscale 0"],
)
def test_arguments_of_a_profile_that_are_refused(lengthscales, objective, message):
    x, y = sample()
    assert_raises(message, ak.profile, model(), x, y, lengthscales, objective=objective)


def test_hold_out_sizes_that_are_refused():
    (x, y), key = sample(), jax.random.PRNGKey(0)
    for arguments, message in (
        ((5, 3), "at_most=3.*got 5"),
        ((np.array([1, 9]), 4), r"at_most=4.*\[1 9\]"),
        ((np.array([1, 9]),), "at_most="),
    ):
        assert_raises(message, ak.HoldOut, *arguments)
    for sizes, text in (((N,), N), ((N + 4,), N + 4), ((3, N + 1), f"at_most={N + 1}")):
        message = rf"HoldOut\({text}\) leaves.*{N} rows.*1 and {N - 1}"
        assert_raises(message, ak.HoldOut(*sizes), model(), x, y, key=key)
    assert_raises("pass key=", ak.HoldOut(2), model(), x, y)


def one_of_each_part(n, parts):
    """A row at random of each of equal parts of n rows, by the generator with seed 0."""
    ends = np.arange(parts + 1) * n // parts
    return np.random.default_rng(0).integers(ends[:-1], ends[1:])


@pytest.mark.parametrize("n", [3001, slow(1024)])
def test_sample_of_leave_one_out_is_some_of_its_terms_in_any_order_of_rows(x64, n):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-2, 2, size=(n, 1)), rng.normal(size=n)
    model = ak.KernelRegression(ak.Gaussian(0.3))
    keys = np.argsort(x[:, 0])[one_of_each_part(n, 512)]
    longer = (n / len(keys)) ** 0.2
    expected = np.mean((y[keys] - left_out(x[keys], y[keys], 0.3 * longer)) ** 2) / longer**4

    @eqx.filter_jit
    def computed(x, y, objective):
        return objective(model, x, y)

    for at in (np.arange(n), rng.permutation(n)):
        drawn = ak.LeaveOneOut().subsample(*jax.device_put((x[at], y[at])), 10)
        np.testing.assert_allclose(computed(*drawn), expected, rtol=1e-12)


@pytest.mark.slow
def test_sample_for_one_start_is_leave_one_out_of_fewer_rows(x64):
    n, fewer = 2**17, 4000
    x = np.random.default_rng(0).uniform(-2, 2, size=(n, 2))
    y = np.sin(2 * x[:, 0])
    rows = np.argsort(x[:, 0])[one_of_each_part(n, fewer)]
    longer = (n / fewer) ** (1 / 6)
    expected = np.mean((y[rows] - left_out(x[rows], y[rows], 0.1 * longer)) ** 2) / longer**4
    *data, objective = ak.LeaveOneOut().subsample(*jax.device_put((x, y)), 1)
    model = ak.KernelRegression(ak.Gaussian(0.1))
    found = eqx.filter_jit(lambda objective, *data: objective(model, *data))(objective, *data)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_leave_one_out_has_a_sample_only_of_many_rows():
    """From 1024 rows, or 131 072 for a single start."""

    def has_sample(rows, starts):
        x, y = jax.device_put((np.zeros((rows, 1)), np.zeros(rows)))
        return ak.LeaveOneOut().subsample(x, y, starts) is not None

    assert not has_sample(1023, 10)
    assert not has_sample(2**17 - 1, 1)
    assert has_sample(1024, 10)
    assert has_sample(2**17, 1)


def test_values_that_are_not_numbers_are_named_with_row_and_column():
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6.0) ** 2
    model, given = ak.KernelRegression(ak.Gaussian(1.0)), x.astype(object)
    np.testing.assert_array_equal(model(given, given, y), model(x, x, y))
    for value in ("a", None, [1.0]):
        given[4, 1] = value
        assert_raises(r"x.*row 4, column 1", ak.fit, model, given, y, objective=ak.LeaveOneOut())


def test_hold_out_of_rows_without_weight_is_zero_and_their_nan_is_ignored(x64):
    x = np.linspace(0.0, 1.0, 50)[:, None]
    y, weights = np.sin(6 * x[:, 0]), np.r_[np.zeros(25), np.ones(25)]
    model = ak.KernelRegression(ak.Gaussian(0.2))
    key = np.array([0, 3], np.uint32)
    options = {"optimizer": optax.adam(0.1), "steps": 50, "key": jax.device_put(key)}
    unlabelled = np.where(weights > 0, y, np.nan)
    fit = ak.fit(model, x, unlabelled, objective=ak.HoldOut(1), weights=weights, **options)
    assert not np.any(np.asarray(fit.starts.diverged))
    assert np.all(np.isfinite(fit.history["loss"]))
    apart = x.copy()
    apart[:25] -= 9.0 * np.arange(1, 26)[:, None]  # no neighbours, so no prediction

    @jax.jit
    @jax.value_and_grad
    def computed(half_width, x, y, weights, key):
        model = ak.KernelRegression(ak.Epanechnikov(half_width))
        return ak.HoldOut(20).with_weights(weights)(model, x, y, key=key)

    assert np.all(np.isfinite(computed(0.3, apart, y, weights, key)))


def test_weights_of_another_length_are_refused():
    x, y = np.linspace(0.0, 1.0, 20), np.sin(np.arange(20.0))
    message = r"weights of shape .19,., and there are 20 rows"
    for kind in (ak.LeaveOneOut, ak.GCV, ak.AICc, functools.partial(ak.KFold, 5)):
        assert_raises(message, ak.fit, model(), x, y, objective=kind(weights=np.ones(19)))


def test_weights_with_an_index_go_to_fit(as_users_run_it):
    assert_raises(r"pass them as ak.fit", ak.LeaveOneOut, weights=pd.Series(np.ones(20)))


ROWS = 41
LENGTHSCALE = 0.4
KEY = jax.device_put(np.zeros(2, np.uint32))


def model():
    return ak.KernelRegression(ak.Gaussian(LENGTHSCALE))


def grouped_sample():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, ROWS)
    return x, np.sin(3 * x) + 0.2 * rng.normal(size=ROWS), rng.integers(0, 13, ROWS)


def values(objectives, x, y):
    """Objectives of the same rows, by one program."""
    return jax.jit(lambda x, y: [each(model(), x, y) for each in objectives])(x[:, None], y)


def criterion(x, y, may_see, weights=None):
    """The weighted mean square of predictions, each from the rows j with `may_see[i, j]`."""
    weights = np.ones(len(x)) if weights is None else weights
    predicted = local_polynomial(x, x, LENGTHSCALE, weights=weights * may_see) @ y
    return np.sum(weights * (y - predicted) ** 2) / np.sum(weights)


def seen_by_splits(splits, rows=ROWS):
    may_see = np.zeros((rows, rows), bool)
    for train, test in splits:
        may_see[np.ix_(test, train)] = True
    return may_see


def test_folds_of_groups_are_those_of_scikit_learn(x64):
    """Without folds each group is left out."""
    x, y, groups = grouped_sample()
    words = np.array([f"person {group:02}" for group in groups])
    for folds in (3, 5):
        may_see = seen_by_splits(GroupKFold(folds).split(x, y, groups))
        given = (groups, words, words.astype(object))
        found = values([ak.objectives.GroupKFold(each, folds=folds) for each in given], x, y)
        np.testing.assert_allclose(found, criterion(x, y, may_see), rtol=1e-12)
    (found,) = values([ak.objectives.GroupKFold(groups, folds=None)], x, y)
    expected = criterion(x, y, groups[:, None] != groups[None, :])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_blocks_without_a_gap_are_the_folds_of_scikit_learn(x64):
    x, y, _ = grouped_sample()
    rows = np.random.default_rng(1).permutation(ROWS)  # the times are not sorted
    times, numbers = np.argsort(rows), (2, 4, 7)
    found = values([ak.objectives.BlockedKFold(times, folds=folds) for folds in numbers], x, y)
    for folds, value in zip(numbers, found, strict=True):
        splits = [(rows[train], rows[test]) for train, test in KFold(folds).split(x)]
        expected = criterion(x, y, seen_by_splits(splits))
        np.testing.assert_allclose(value, expected, rtol=1e-12, err_msg=str(folds))


def test_blocks_with_a_gap_hide_the_rows_on_both_sides(x64):
    """Rows of one time are in one block: 41 rows at 14 times, about 10 rows in each of 4 blocks."""
    x, y, _ = grouped_sample()
    times = np.arange(ROWS) // 3 * 0.5
    first = np.searchsorted(times, times)  # the rank of the first row of the same time
    block = np.where(first < 11, 0, 1 + (first - 11) // 10)  # of 11, 10, 10 and 10 ranks
    may_see = np.zeros((ROWS, ROWS), bool)
    for i in range(ROWS):
        own = times[block == block[i]]
        may_see[i] = (times < own.min() - 1.0) | (times > own.max() + 1.0)
    (found,) = values([ak.objectives.BlockedKFold(times, folds=4, gap=1.0)], x, y)
    np.testing.assert_allclose(found, criterion(x, y, may_see), rtol=1e-12)


def test_leaving_out_neighbours_in_time_is_that_of_chu_and_marron(x64):
    x, y, _ = grouped_sample()
    times = np.arange(ROWS)  # tenths are not exact: 0.8 - 0.5 > 0.3 - 1e-16
    (found,) = values([ak.objectives.BlockedKFold(times / 10, folds=None, gap=0.3)], x, y)
    may_see = np.abs(times[:, None] - times[None, :]) > 3
    np.testing.assert_allclose(found, criterion(x, y, may_see), rtol=1e-12)


@pytest.mark.parametrize("kind", ["groups", slow("times")])
def test_fits_sort_pad_and_drop_rows_with_their_groups_and_times(x64, kind):
    """A fit orders rows by input and adds rows of weight 0: the loss is that of all given rows."""
    x, y, groups = grouped_sample()
    weights = np.random.default_rng(2).uniform(0.5, 2.0, ROWS)
    weights[3::7] = 0.0
    kept = weights > 0

    def objective(rows):
        if kind == "groups":
            return ak.objectives.GroupKFold(groups[rows], folds=4)
        return ak.objectives.BlockedKFold(np.arange(ROWS)[rows], folds=4, gap=2)

    still = {"optimizer": optax.sgd(0.0), "steps": 1, "key": KEY}
    every_row = {"objective": objective(slice(None)), "weights": weights}
    whole = ak.fit(model(), x, np.where(kept, y, 1e3), **every_row, **still)
    of_part = {"objective": objective(kept), "weights": weights[kept]}
    part = ak.fit(model(), x[kept], y[kept], **of_part, **still)
    np.testing.assert_allclose(whole.loss, part.loss, rtol=1e-12)
    (again,) = values([whole.objective], np.asarray(whole.x)[:, 0], np.asarray(whole.y))
    np.testing.assert_allclose(again, whole.loss, rtol=1e-12)
    if kind == "groups":
        splits = GroupKFold(4).split(x[kept], y[kept], groups[kept])
        may_see = seen_by_splits(splits, kept.sum())
        expected = criterion(x[kept], y[kept], may_see, weights[kept])
        np.testing.assert_allclose(whole.loss, expected, rtol=1e-12)


def test_a_search_compiles_once_for_other_groups(x64, programs):
    x, y, groups = grouped_sample()

    def loss(groups):
        objective = ak.objectives.GroupKFold(groups, folds=3)
        return float(ak.fit(model(), x, y, objective=objective, starts=1).loss)

    assert loss(groups) != loss(np.roll(groups, 1))
    programs.clear()
    loss(np.roll(groups, 2))
    assert programs == []


def test_groups_and_times_that_are_refused():
    x, y, groups = grouped_sample()
    message = "groups must be an array in the order of the rows"
    assert_raises(message, ak.objectives.GroupKFold, pd.Series(groups))
    assert_raises("none missing", ak.objectives.GroupKFold, np.where(groups > 3, np.nan, groups))
    assert_raises("got 12 groups and folds=14", ak.objectives.GroupKFold, groups, folds=14)
    message, fewer = r"groups of shape \(40,\), and there are 41 rows", groups[1:]
    assert_raises(message, ak.fit, model(), x, y, objective=ak.objectives.GroupKFold(fewer))
    message = "gap=40 hides all rows from a block: the times span 40"
    assert_raises(message, ak.objectives.BlockedKFold, np.arange(ROWS), gap=40)
    assert_raises("from a block", ak.objectives.BlockedKFold, np.arange(11), folds=3, gap=4)
    ak.objectives.BlockedKFold(np.arange(11), folds=3, gap=3)
    message = "gap must be a number from 0"
    assert_raises(message, ak.objectives.BlockedKFold, np.arange(ROWS), gap=-1)
    assert_raises("outside jit", jax.jit(ak.objectives.GroupKFold), groups)
