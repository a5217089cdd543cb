"""Folds of groups and of blocks of times, against scikit-learn and the definitions in NumPy."""

import jax
import numpy as np
import optax
import pandas as pd
import pytest
from marks import slow
from sklearn.model_selection import GroupKFold, KFold

import attnkernel as ak

N = 41
LENGTHSCALE = 0.4
KEY = jax.device_put(np.zeros(2, np.uint32))


def model():
    return ak.KernelRegression(ak.Gaussian(LENGTHSCALE))


def sample():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, N)
    return x, np.sin(3 * x) + 0.2 * rng.normal(size=N), rng.integers(0, 13, N)


def values(objectives, x, y):
    """Objectives of the same rows, by one program."""
    return jax.jit(lambda x, y: [each(model(), x, y) for each in objectives])(x[:, None], y)


def criterion(x, y, may_see, weights=None):
    """The weighted mean square of predictions, each from the rows j with `may_see[i, j]`."""
    weights = np.ones(len(x)) if weights is None else weights
    kernel = np.exp(-0.5 * ((x[:, None] - x[None, :]) / LENGTHSCALE) ** 2) * weights * may_see
    predicted = kernel @ y / kernel.sum(axis=1)
    return np.sum(weights * (y - predicted) ** 2) / np.sum(weights)


def seen_by_splits(splits):
    may_see = np.zeros((N, N), bool)
    for train, test in splits:
        may_see[np.ix_(test, train)] = True
    return may_see


def test_folds_of_groups_are_those_of_scikit_learn(x64):
    """Without folds each group is left out."""
    x, y, groups = sample()
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
    x, y, _ = sample()
    rows = np.random.default_rng(1).permutation(N)  # the times are not sorted
    times, numbers = np.argsort(rows), (2, 4, 7)
    found = values([ak.objectives.BlockedKFold(times, folds=folds) for folds in numbers], x, y)
    for folds, value in zip(numbers, found, strict=True):
        splits = [(rows[train], rows[test]) for train, test in KFold(folds).split(x)]
        expected = criterion(x, y, seen_by_splits(splits))
        np.testing.assert_allclose(value, expected, rtol=1e-12, err_msg=str(folds))


def test_blocks_with_a_gap_hide_the_rows_on_both_sides(x64):
    """Rows of one time are in one block: 41 rows at 14 times, about 10 rows in each of 4 blocks."""
    x, y, _ = sample()
    times = np.arange(N) // 3 * 0.5
    first = np.searchsorted(times, times)  # the rank of the first row of the same time
    block = np.where(first < 11, 0, 1 + (first - 11) // 10)  # of 11, 10, 10 and 10 ranks
    may_see = np.zeros((N, N), bool)
    for i in range(N):
        own = times[block == block[i]]
        may_see[i] = (times < own.min() - 1.0) | (times > own.max() + 1.0)
    (found,) = values([ak.objectives.BlockedKFold(times, folds=4, gap=1.0)], x, y)
    np.testing.assert_allclose(found, criterion(x, y, may_see), rtol=1e-12)


def test_leaving_out_neighbours_in_time_is_that_of_chu_and_marron(x64):
    x, y, _ = sample()
    times = np.arange(N)
    (found,) = values([ak.objectives.BlockedKFold(times, folds=None, gap=3)], x, y)
    may_see = np.abs(times[:, None] - times[None, :]) > 3
    np.testing.assert_allclose(found, criterion(x, y, may_see), rtol=1e-12)


@pytest.mark.parametrize("kind", ["groups", slow("times")])
def test_fits_sort_pad_and_drop_rows_with_their_groups_and_times(x64, kind):
    """A fit orders rows by input and adds rows of weight 0: the loss is that of all given rows."""
    x, y, groups = sample()
    weights = np.where(np.arange(N) % 7 == 3, 0.0, np.random.default_rng(2).uniform(0.5, 2.0, N))
    kept = weights > 0

    def objective(rows):
        if kind == "groups":
            return ak.objectives.GroupKFold(groups[rows], folds=4)
        return ak.objectives.BlockedKFold(np.arange(N)[rows], folds=4, gap=2)

    still = {"optimizer": optax.sgd(0.0), "steps": 1, "key": KEY}
    every_row = {"objective": objective(slice(None)), "weights": weights}
    whole = ak.fit(model(), x, np.where(kept, y, 1e3), **every_row, **still)
    part = ak.fit(
        model(), x[kept], y[kept], objective=objective(kept), weights=weights[kept], **still
    )
    np.testing.assert_allclose(whole.loss, part.loss, rtol=1e-12)
    (again,) = values([whole.objective], np.asarray(whole.x)[:, 0], np.asarray(whole.y))
    np.testing.assert_allclose(again, whole.loss, rtol=1e-12)
    if kind == "groups":
        splits = list(GroupKFold(4).split(x[kept], y[kept], groups[kept]))
        may_see = np.zeros((kept.sum(), kept.sum()), bool)
        for train, test in splits:
            may_see[np.ix_(test, train)] = True
        expected = criterion(x[kept], y[kept], may_see, weights[kept])
        np.testing.assert_allclose(whole.loss, expected, rtol=1e-12)


def test_a_search_compiles_once_for_other_groups(x64, programs):
    x, y, groups = sample()
    fits = [
        ak.fit(model(), x, y, objective=ak.objectives.GroupKFold(given, folds=3), starts=1)
        for given in (groups, np.roll(groups, 1))
    ]
    assert len({float(fit.loss) for fit in fits}) == 2
    programs.clear()
    ak.fit(model(), x, y, objective=ak.objectives.GroupKFold(np.roll(groups, 2), folds=3), starts=1)
    assert programs == []


def test_groups_and_times_that_are_refused():
    x, y, groups = sample()
    with pytest.raises(ValueError, match="groups must be an array in the order of the rows"):
        ak.objectives.GroupKFold(pd.Series(groups))
    with pytest.raises(ValueError, match="none missing"):
        ak.objectives.GroupKFold(np.where(groups > 3, np.nan, groups))
    with pytest.raises(ValueError, match="got 12 groups and folds=14"):
        ak.objectives.GroupKFold(groups, folds=14)
    with pytest.raises(ValueError, match=r"groups of shape \(40,\), and there are 41 rows"):
        ak.fit(model(), x, y, objective=ak.objectives.GroupKFold(groups[1:]))
    with pytest.raises(ValueError, match="gap=40 hides all rows from a block: the times span 40"):
        ak.objectives.BlockedKFold(np.arange(N), gap=40)
    with pytest.raises(ValueError, match="gap must be a number from 0"):
        ak.objectives.BlockedKFold(np.arange(N), gap=-1)
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda groups: ak.objectives.GroupKFold(groups)(model(), x[:, None], y))(groups)
