"""The default search: minima of real data, bounds, derivatives, starts and steps; searches that
begin on a sample of the rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noisy_sine import N, leave_one_out, model, sample

import attnkernel as ak
from attnkernel.fitting._bfgs import Bfgs
from attnkernel.fitting._bounds import Box
from attnkernel.fitting._minimise import prepare_searches
from attnkernel.fitting._options import Options
from attnkernel.fitting._problem import take
from attnkernel.fitting._search import Searches
from attnkernel.objectives import Sample


def test_leave_one_out_of_real_data_equals_that_of_np(x64, monkeypatch):
    """R's np prints this bandwidth and this criterion. Searches from ten starts took 80 steps."""
    points, evaluate = [], Searches.losses_and_gradients
    noted = lambda self, z: points.extend(z) or evaluate(self, z)  # noqa: E731
    monkeypatch.setattr(Searches, "losses_and_gradients", noted)
    data = ak.data.load("mcycle")
    fitted = ak.fit(model(), data.x, data.y, objective=ak.LeaveOneOut())
    np.testing.assert_allclose(fitted.model.kernel.lengthscale, 0.913829, rtol=3e-5)
    np.testing.assert_allclose(fitted.loss, 595.9363, rtol=2e-6)
    assert 10 < len(points) <= 20
    assert np.max(np.asarray(fitted.starts.steps)) <= 4
    assert fitted.warnings() == []


def test_predictions_of_a_fit_have_the_weights_of_its_rows(x64):
    (x, y), weights = map(np.asarray, sample()), np.linspace(0.1, 3.0, N)
    fitted, at = ak.fit(model(), x, y, weights=weights, starts=1), np.array([[0.1], [0.7]])
    shares = np.exp(-0.5 * ((at - x.T) / float(fitted.model.kernel.lengthscale)) ** 2) * weights
    np.testing.assert_allclose(fitted(at), shares @ y / shares.sum(axis=1), rtol=1e-9)


@pytest.mark.slow
def test_faithful_has_two_minima(x64):
    """Those of the criterion on a grid, with no optimiser."""
    data = ak.data.load("faithful")
    fitted = ak.fit(model(), data.x, data.y, objective=ak.LeaveOneOut())
    minima = fitted.minima()
    found = [float(m.kernel.lengthscale) for m, _ in minima]
    np.testing.assert_allclose(found, [0.2614, 0.5843], rtol=1e-3)
    grid = np.geomspace(0.1, 2.0, 300)
    x, y = np.asarray(data.x), np.asarray(data.y)
    curve = np.array([leave_one_out(x, y, lengthscale) for lengthscale in grid])
    lowest = (curve[1:-1] < curve[:-2]) & (curve[1:-1] < curve[2:])
    np.testing.assert_allclose(grid[1:-1][lowest], found, rtol=0.01)
    assert minima[0][1] == pytest.approx(float(fitted.loss))


def test_a_fit_of_some_parameters_has_minima_and_reads_rows_of_a_mesh():
    x, y = map(np.asarray, sample())
    mesh = jax.make_mesh((1,), ("rows",))
    spec = jax.sharding.PartitionSpec("rows", None)
    x = jax.device_put(np.reshape(x, (-1, 1)), jax.sharding.NamedSharding(mesh, spec))
    product = ak.KernelRegression(ak.Gaussian(0.3) * ak.Laplace(2.0))
    none = jax.tree.map(lambda _: False, product)
    only = eqx.tree_at(lambda model: model.kernel.first, none, True)
    fitted = ak.fit(product, x, y, objective=ak.LeaveOneOut(), trainable=only)
    assert fitted.minima()[0][1] == pytest.approx(float(fitted.loss))


def test_search_does_not_depend_on_the_order_of_rows_nor_on_added_constants(x64):
    """Law 7."""
    x, y = map(np.asarray, sample())
    order = np.random.default_rng(0).permutation(N)
    samples = ((x, y), (x[order], y[order]), (x + 1e4, y), (x, y + 1e4))
    fits = [ak.fit(model(), *data, objective=ak.LeaveOneOut()) for data in samples]
    lengthscales = [float(f.model.kernel.lengthscale) for f in fits]
    np.testing.assert_allclose(lengthscales, lengthscales[0], rtol=1e-5)


def test_bounds_hold_and_are_reported(x64):
    """Law 8: alternating labels have no best lengthscale; the search ends on the upper bound."""
    x, y = np.linspace(0, 1, N), (-1.0) ** np.arange(N)
    bounds = (model(0.1), model(0.7))
    with pytest.warns(ak.FitWarning, match=r"bound.*bounds="):
        fitted = ak.fit(model(0.3), x, y, objective=ak.LeaveOneOut(), bounds=bounds)
    ends = np.asarray(fitted.starts.end.kernel.lengthscale)
    assert ((ends >= 0.1 * (1 - 1e-12)) & (ends <= 0.7 * (1 + 1e-12))).all()
    with jax.enable_x64(False):  # codes of 64 bits would be truncated with a warning
        (sentence,) = fitted.warnings()
        assert "bound" in sentence
    assert np.any(np.asarray(fitted.starts.at_bound))


def test_derivatives_of_a_search_are_those_of_its_minimum(x64):
    """By the implicit function theorem, in both modes, with respect to labels and to inputs."""
    x, y = sample()

    def fitted(x, y):
        result = ak.fit(model(), x, y, objective=ak.LeaveOneOut())
        return jnp.stack([result.model.kernel.lengthscale, result.loss, result(np.array([0.3]))[0]])

    x, y = np.asarray(x), np.asarray(y)
    directions, step = (np.sin(np.arange(N))[:, None] / 10, np.cos(np.arange(N))), 1e-5

    @jax.jit
    def computed(x, y):
        value, along = jax.linearize(fitted, x, y)
        backward = jax.linear_transpose(along, x, y)
        return value, along(*directions), jax.vmap(backward)(np.eye(3))

    value, forward, (by_x, by_y) = jax.device_get(computed(x, y))
    steps = step * np.array([0.0, 1.0, -1.0])
    several = (x + steps[:, None, None] * directions[0], y + steps[:, None] * directions[1])
    same, up, down = jax.device_get(jax.jit(jax.vmap(fitted))(*several))
    np.testing.assert_allclose(value, same, rtol=1e-6)
    backward = by_x[..., 0] @ directions[0][:, 0] + by_y @ directions[1]
    np.testing.assert_allclose(forward, (up - down) / (2 * step), rtol=1e-5)
    np.testing.assert_allclose(backward, forward, rtol=1e-8)


def test_search_of_known_data_inside_a_traced_program(x64):
    x, y = sample()

    @jax.jit
    def criterion(lengthscale):
        return ak.fit(model(lengthscale), x, y, objective=ak.LeaveOneOut(), starts=2).loss

    outside = ak.fit(model(), x, y, objective=ak.LeaveOneOut())
    np.testing.assert_allclose(criterion(1.0), outside.loss, rtol=1e-9)


def test_search_takes_data_of_another_precision_than_the_model(x64):
    x, y = map(np.asarray, sample())
    log = jax.device_put(np.zeros((), np.float64))
    begin = eqx.tree_at(lambda m: m.kernel.lengthscale_parameter.z, model(), log)
    data = (part.astype(np.float32) for part in (x, y))
    fitted = ak.fit(begin, *data, objective=ak.LeaveOneOut())
    assert fitted.loss.dtype == np.float32
    expected = leave_one_out(x, y, float(fitted.model.kernel.lengthscale))
    np.testing.assert_allclose(fitted.loss, expected, rtol=1e-5)


@pytest.mark.slow
def test_without_bounds_there_is_one_start(x64):
    class Exponential(ak.kernels.Kernel):
        rate: jax.Array

        def log_pair(self, q, k):
            return -jnp.sum((q - k) ** 2) * jnp.exp(self.rate)

    begin = ak.KernelRegression(Exponential(jax.device_put(0.0)))
    fitted = ak.fit(begin, *sample(), objective=ak.LeaveOneOut())
    assert fitted.starts.loss.shape == (1,)
    assert len(fitted.minima()) == 1


def test_search_goes_by_the_gradient_where_rounding_hides_the_loss(x64):
    class Rough(ak.objectives.Objective):
        phase: jax.Array
        is_stochastic = False

        def __call__(self, model, x, y, *, key=None):
            log = model.kernel.lengthscale_parameter.z
            hidden = 5e-15 * jnp.sin(1e10 * log + self.phase)  # 23 roundings
            return jnp.cosh(log + 1e-3 * self.phase) + jax.lax.stop_gradient(hidden)

    phases = np.arange(400.0)
    axes, objective = (None, None, 0), Rough(jax.device_put(phases))
    fits = ak.fit_many(model(), *sample(), objective=objective, in_axes=axes, starts=1)
    assert np.all(np.asarray(fits.starts.converged))
    assert np.max(np.asarray(fits.starts.steps)) <= 10
    np.testing.assert_allclose(fits.model.kernel.lengthscale_parameter.z, -1e-3 * phases, atol=1e-9)


def test_starts_are_a_latin_hypercube_of_all_parameters(x64):
    """Each parameter takes evenly spaced values, in an order of its own; start 0 is given."""
    given = tuple(map(np.asarray, (0.1, 0.2, [0.3, 0.4])))
    lower, upper = (-np.ones(()), np.zeros(()), np.zeros(2)), (np.ones(()), np.ones(()), np.ones(2))
    box = Box(*jax.device_put((lower, upper)))
    first, second, both = jax.device_get(jax.jit(lambda given: box.starts(given, 8))(given))
    levels = (np.arange(7) + 0.5) / 7
    units = np.column_stack([(first + 1) / 2, second, both])
    np.testing.assert_allclose(units[0], [0.55, 0.2, 0.3, 0.4], rtol=1e-12)
    np.testing.assert_allclose(np.sort(units[1:], axis=0), np.tile(levels, (4, 1)).T, rtol=1e-12)
    assert len(np.unique(np.round(units[1:], 9), axis=1).T) == 4


def test_searches_know_sums_on_a_line_that_visit_fewer_than_all_pairs():
    x = jax.device_put(np.linspace(0.0, 1.0, 20_000, dtype=np.float32)[:, None])
    gaussian, cauchy = ak.Gaussian(0.1), ak.kernels.Cauchy(0.1)
    left_out, folds = ak.LeaveOneOut(), ak.KFold(5)
    for kernel, objective in (gaussian, left_out), (cauchy, left_out), (gaussian, folds):
        given = ak.KernelRegression(kernel, order=1), Sample(x, x[:, 0], objective)
        found = prepare_searches(*given, Options().with_defaults(given[0], objective))
        assert found.is_on_line == (kernel is gaussian and objective is left_out)


def test_trials_are_accepted_by_armijo_and_negative_curvature_does_not_update_the_hessian(x64):
    """From z = 0, with slope 1, a trial at z = -1 promises to lower the loss of 1 by 1."""

    @jax.jit
    @jax.vmap
    def updated(found, slope):
        begun = take(0, Bfgs.start(jnp.zeros((1, 1))))
        slopes = {"gradient": jnp.ones(1), "direction": -jnp.ones(1)}
        numbers = {"loss": jnp.ones(()), "length": jnp.ones(()), "accepted": begun.accepted + 1}
        after = begun._replace(**slopes, **numbers).update(found, slope[None], 1e-9)
        return after.z[0], after.trial()[0], after.inverse[0, 0]

    # a gain below the limit of Armijo, a rise, and two gains with curvatures -1 and 0.5
    found = np.array([1 - 0.5e-4, 1 + 0.5e-4, 0.0, 0.0])
    z, trial, inverse = jax.device_get(updated(found, np.array([2.0, 2.0, 2.0, 0.5])))
    np.testing.assert_array_equal(z, [0.0, 0.0, -1.0, -1.0])
    np.testing.assert_allclose(trial[2:], [-2.0, -2.0], rtol=1e-12)  # downhill, by the longest step
    np.testing.assert_allclose(inverse, [1.0, 1.0, 1.0, 2.0], rtol=1e-12)


def test_a_search_stops_where_the_loss_is_noisier_than_rounding(x64):
    """Trials do not lower it as the slope promises, down to a millionth of a step."""

    @jax.jit
    def ended():
        begun, ones = take(0, Bfgs.start(jnp.zeros((1, 2)))), jnp.ones(2)
        slopes = {"gradient": 1e-5 * ones, "direction": -1e-2 * ones}
        numbers = {"loss": ones[0], "length": ones[0], "accepted": begun.accepted + 1}
        return jax.lax.while_loop(
            lambda state: ~state.is_stopped(),
            lambda state: state.update(ones[0] + 1e-12, 1e-5 * ones, 1e-9),
            begun._replace(**slopes, **numbers),
        )

    end = jax.device_get(ended())
    assert end.converged
    assert end.steps < 20
    assert 1e-7 < end.length <= 1e-6


class KinkAt(ak.objectives.Objective):
    """A loss of log ℓ whose slopes left and right of its minimum are −72 and 0.5."""

    through: object = eqx.field(static=True)
    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        distance = self.through(jnp.log(model.kernel.lengthscale / 0.3))
        return 30.0 + jnp.where(distance > 0, 0.5, -72.0) * distance + 0.1 * distance**2


same = jax.custom_vjp(lambda x: x)  # has no forward mode, and a loop no reverse mode
same.defvjp(lambda x: (x, None), lambda _, slope: (slope,))
LOOP = jax.tree_util.Partial(jax.lax.while_loop, lambda x: jnp.abs(x) < 0, lambda x: 2.0 * x)


@pytest.mark.parametrize("through", [LOOP, same])
def test_a_search_of_one_parameter_ends_at_a_kink(x64, through):
    """As that of a mean of absolute errors, which has no slope of 0."""
    x = np.linspace(0.0, 1.0, 50)
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), x, np.sin(x), objective=KinkAt(through))
    assert set(np.asarray(fit.starts.result)) <= {ak.fitting.Result.CONVERGED}
    assert np.max(np.asarray(fit.starts.steps)) < 60
    np.testing.assert_allclose(fit.model.kernel.lengthscale, 0.3, rtol=1e-7)


@pytest.mark.slow
def test_search_that_begins_on_a_sample_ends_at_the_minima_of_all_rows(x64):
    """The best is that of the criterion in NumPy on a grid; the slope is 0 at all ends."""
    x, y = map(np.asarray, sample(1100))
    fitted = ak.fit(model(), x, y, objective=ak.LeaveOneOut())
    assert np.all(np.asarray(fitted.starts.converged))
    assert np.max(np.asarray(fitted.starts.steps)) <= 10  # most were taken on the sample

    def criterion(log):
        return leave_one_out(x, y, np.exp(log))

    grid = np.linspace(np.log(0.02), np.log(5.0), 40)
    curve = [criterion(log) for log in grid]
    best = float(fitted.model.kernel.lengthscale_parameter.z)
    np.testing.assert_allclose(fitted.loss, criterion(best), rtol=1e-12)
    assert float(fitted.loss) <= min(curve)
    assert abs(grid[np.argmin(curve)] - best) <= grid[1] - grid[0]
    for end in np.unique(np.asarray(fitted.starts.end.kernel.lengthscale_parameter.z)):
        assert abs(criterion(end + 1e-4) - criterion(end - 1e-4)) < 2e-10  # a slope of 1e-6


class Parabola(ak.objectives.Objective):
    """(log ℓ − a)², not a number below `edge`; its sample has a = −1 and no edge."""

    at: jax.Array
    edge: jax.Array
    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        log = model.kernel.lengthscale_parameter.z
        return jnp.where(log > self.edge, 1.0 + (log - self.at) ** 2, jnp.nan)

    def subsample(self, x, y, starts):
        return Sample(x, y, Parabola(jax.device_put(-1.0), jax.device_put(-np.inf)))


@pytest.mark.slow
def test_search_begins_anew_where_the_minima_of_the_sample_diverge(x64):
    bounds = (model(0.1), model(10.0))
    objective = Parabola(jax.device_put(0.5), jax.device_put(-0.5))
    fitted = ak.fit(model(), *sample(), objective=objective, bounds=bounds)
    np.testing.assert_allclose(fitted.model.kernel.lengthscale_parameter.z, 0.5, rtol=1e-6)
    begun = np.asarray(fitted.starts.begin.kernel.lengthscale_parameter.z)
    np.testing.assert_allclose(begun[0], 0.0, atol=1e-12)
    assert np.any(np.asarray(fitted.starts.diverged))  # those that began below the edge


def test_starts_continue_from_the_minima_of_the_sample(x64):
    seen, objective = [], Parabola(jax.device_put(0.5), jax.device_put(-np.inf))
    options = {"bounds": (model(0.1), model(10.0)), "starts": 4}
    options["record"] = lambda model: {"log": model.kernel.lengthscale_parameter.z}
    options["callback"] = lambda done, history: seen.append(history["log"])
    fitted = ak.fit(model(), *sample(), objective=objective, **options)
    np.testing.assert_allclose(seen[0][:, 0], -1.0, atol=1e-2)  # all four share one
    np.testing.assert_allclose(fitted.starts.end.kernel.lengthscale_parameter.z, 0.5, rtol=1e-6)
    assert len(fitted.minima()) == 1
    # an end is no minimum if a Newton step from it is longer than the tolerance
    end = lambda fit: fit.starts.end.kernel.lengthscale_parameter.z  # noqa: E731
    unfinished = eqx.tree_at(end, fitted, jax.device_put(np.array([0.49, 0.52, 0.5004, 0.6])))
    assert [float(m.kernel.lengthscale_parameter.z) for m, _ in unfinished.minima()] == [0.5004]
