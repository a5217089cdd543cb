"""Selection by absolute and check loss: loops in NumPy, outliers, files."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
from attnkernel.losses import CheckLoss, absolute_error

N = 100


def sample():
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0, 1, N))
    return x, np.sin(9 * x) + 0.3 * rng.normal(size=N), rng


def left_out(x, y, lengthscale):
    """Local means of all other rows, in a loop over rows."""
    found = []
    for i in range(len(x)):
        kernel = np.exp(-0.5 * ((x - x[i]) / lengthscale) ** 2) * (np.arange(len(x)) != i)
        found.append(kernel @ y / kernel.sum())
    return np.array(found)


def rho(r, level):
    return np.where(r < 0, (level - 1) * r, level * r)


def test_values_are_those_of_loops(x64):
    """Of leave-one-out with and without weights, folds, and several labels."""
    x, y, rng = sample()
    weights = rng.integers(0, 3, N) * 1.0
    model = ak.KernelRegression(ak.Gaussian(0.05))

    @jax.jit
    def computed(x, y, two):
        found = {}
        scores = {"absolute": absolute_error, "check": CheckLoss(0.8)}
        for name, score in scores.items():
            found[name] = ak.LeaveOneOut(score=score)(model, x, y)
            found[name, 1] = ak.LeaveOneOut(score=score, weights=weights)(model, x, y)
            found[name, 2] = ak.KFold(N, score=score)(model, x, y)
        none = jnp.zeros_like(two)
        of_two = absolute_error(two, none), CheckLoss(0.3)(none, two)
        return list(found.values()), of_two

    two = np.stack([y, 2 * y], axis=1)
    found, (absolute, check) = jax.device_get(computed(x[:, None], y, two))
    found = iter(found)
    rows = weights > 0
    kernel = np.exp(-0.5 * ((x[:, None] - x) / 0.05) ** 2) * weights * (1 - np.eye(N))
    weighted = (kernel @ y / kernel.sum(axis=1))[rows]
    for score in (np.abs, lambda r: rho(r, 0.8)):
        all_rows = np.mean(score(y - left_out(x, y, 0.05)))
        of_rows = np.average(score(y[rows] - weighted), weights=weights[rows])
        np.testing.assert_allclose([next(found) for _ in range(3)], [all_rows, of_rows, all_rows])
    np.testing.assert_allclose(absolute, 3 * np.abs(y))
    np.testing.assert_allclose(check, 3 * rho(y, 0.3))


@pytest.mark.slow
def test_outliers_do_not_move_the_lengthscale_of_absolute_errors(x64):
    """Of a robust fit: that of data without outliers. Squared errors choose a third of it, and the
    fit by least squares needs more than twice as much.

    Six labels of 100 are moved by 8, that is 27 standard deviations of the noise.
    """
    x, y, rng = sample()
    moved = y + 8.0 * (rng.permutation(N) < 6) * rng.choice([-1, 1], N)
    model = ak.KernelRegression(ak.Gaussian(0.1), order=1)
    robust = ak.RobustRegression(model)

    def chosen(model, y, **options):
        fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(**options), starts=3)
        assert not np.any(np.asarray(fit.starts.result) == ak.fitting.Result.MAX_STEPS)
        return float(fit.model.kernel.lengthscale)

    clean, by_absolute, least_squares = (
        chosen(model, y),
        chosen(robust, moved),
        chosen(model, moved),
    )
    by_square = chosen(robust, moved, score=ak.squared_error)
    assert 0.8 < by_absolute / clean < 1.25  # 0.0330 and 0.0357
    assert by_square / clean < 0.5  # 0.0111
    assert least_squares / clean > 2.0  # 0.0861


def test_the_default_score_of_a_robust_model_is_the_absolute_error(x64):
    x, y, _ = sample()
    robust = ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.1)))

    @jax.jit
    def computed(x, y):
        return ak.LeaveOneOut()(robust, x, y), ak.LeaveOneOut(score=absolute_error)(robust, x, y)

    np.testing.assert_allclose(*computed(x[:, None], y), rtol=1e-12)


def test_check_losses_are_saved_compared_and_checked(tmp_path, x64):
    x, y, _ = sample()
    objective = ak.LeaveOneOut(score=CheckLoss(0.8))
    model = ak.KernelRegression(ak.Gaussian(0.1))
    fit = ak.fit(model, x, y, objective=objective, starts=1)
    ak.save(tmp_path / "fit", fit)
    back = ak.load(tmp_path / "fit")
    assert back.objective.score == CheckLoss(0.8) != CheckLoss(0.7)
    assert hash(back.objective.score) == hash(CheckLoss(0.8))
    assert objective.can_pad_rows
    long = np.linspace(0, 1, 2000)
    rows = jax.device_put((long[:, None], long))
    sampled = [each.subsample(*rows, starts=10) for each in (objective, ak.LeaveOneOut())]
    longer = ak.KernelRegression(ak.Gaussian(0.1 / (2000 / 1024) ** 0.2))
    value, square = eqx.filter_jit(
        lambda sampled: [each.objective(longer, each.x, each.y) for each in sampled]
    )(sampled)
    assert abs(float(value) - float(square)) > 0.1 * float(square)  # the score, not the square
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        CheckLoss(1.0)
    with pytest.raises(ValueError, match="must have the same shape"):
        absolute_error(*jax.device_put((np.zeros(3), np.zeros(4))))
