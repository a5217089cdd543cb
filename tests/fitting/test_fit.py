"""Fits: against hand-written loops, against published numbers, and at the edges of their domain."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnkernel as ak
from attnkernel.fit import Sample

ADAM = optax.adam(0.1)
N = 19


def sample(n: int = N, seed: int = 0) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-2, 2, size=n))
    return jnp.asarray(x)[:, None], jnp.asarray(np.sin(2 * x) + 0.2 * rng.normal(size=n))


def model(lengthscale=1.0) -> ak.KernelRegression:
    return ak.KernelRegression(ak.Gaussian(lengthscale))


def hold_out_fit(**changes):
    arguments = {
        "objective": ak.HoldOut(4),
        "optimizer": ADAM,
        "steps": 13,
        "key": jax.random.PRNGKey(0),
    }
    return ak.fit(model(), *sample(), **(arguments | changes))


def test_fit_is_the_loop_one_would_write(x64):
    x, y = sample()
    fitted = hold_out_fit(record=lambda m: {"lengthscale": m.kernel.lengthscale})

    def loss(log_lengthscale, key):
        return ak.HoldOut(4)(model(jnp.exp(log_lengthscale)), x, y, key=key)

    theta, key, losses, path = jnp.zeros(()), jax.random.PRNGKey(0), [], []
    state = ADAM.init(theta)
    for _ in range(13):
        key, subkey = jax.random.split(key)
        value, gradient = jax.value_and_grad(loss)(theta, subkey)
        losses.append(value)
        path.append(jnp.exp(theta))
        updates, state = ADAM.update(gradient, state, theta)
        theta = optax.apply_updates(theta, updates)
    np.testing.assert_allclose(fitted.model.kernel.lengthscale, jnp.exp(theta), rtol=1e-10)
    np.testing.assert_allclose(fitted.history["loss"], losses, rtol=1e-10)
    np.testing.assert_allclose(fitted.history["lengthscale"], path, rtol=1e-10)


def test_chunks_do_not_change_a_bit():
    whole, parts = hold_out_fit(), hold_out_fit(chunk=5)
    np.testing.assert_array_equal(whole.history["loss"], parts.history["loss"])
    assert whole.model.kernel.log_lengthscale == parts.model.kernel.log_lengthscale


def test_callback_sees_every_chunk():
    seen = []
    fitted = hold_out_fit(chunk=5, callback=lambda done, history: seen.append((done, history)))
    assert [done for done, _ in seen] == [5, 10, 13]
    losses = np.concatenate([history["loss"][0] for _, history in seen])
    np.testing.assert_array_equal(losses, fitted.history["loss"])


def test_many_fits_are_single_fits(x64):
    x, y = sample()
    keys = jax.random.split(jax.random.PRNGKey(1), 3)
    sizes = jnp.array([1, 4, 9])
    many = ak.fit_many(
        model(),
        x,
        y,
        objective=ak.HoldOut(sizes, at_most=9),
        in_axes=(None, None, 0),
        optimizer=ADAM,
        steps=7,
        key=keys,
    )
    for i, size in enumerate(sizes.tolist()):
        alone = hold_out_fit(objective=ak.HoldOut(size), steps=7, key=keys[i])
        member = many.member(i)
        np.testing.assert_allclose(member.history["loss"], alone.history["loss"], rtol=1e-9)
        np.testing.assert_allclose(
            member.model.kernel.lengthscale, alone.model.kernel.lengthscale, rtol=1e-9
        )
        np.testing.assert_allclose(member(x), alone(x), rtol=1e-9)


def test_many_data_sets_are_single_fits(x64):
    data = [sample(seed=seed) for seed in range(2)]
    x, y = (jnp.stack(parts) for parts in zip(*data, strict=True))
    many = ak.fit_many(model(), x, y, objective=ak.LeaveOneOut(), in_axes=(None, 0, None))
    for i in range(2):
        alone = ak.fit(model(), *data[i], objective=ak.LeaveOneOut())
        np.testing.assert_allclose(many.loss[i], alone.loss, rtol=1e-9)
        member = many.member(i)
        np.testing.assert_allclose(
            member.model.kernel.lengthscale, alone.model.kernel.lengthscale, rtol=1e-6
        )
        np.testing.assert_array_equal(member.y, data[i][1])


def test_fit_jits_vmaps_and_differentiates(x64):
    x, y = sample()

    def fitted(start, labels):
        result = ak.fit(
            model(start),
            x,
            labels,
            objective=ak.HoldOut(4),
            optimizer=ADAM,
            steps=5,
            key=jax.random.PRNGKey(0),
        )
        return result.model.kernel.lengthscale

    starts = jnp.array([0.5, 1.0])
    mapped = jax.jit(jax.vmap(lambda start: fitted(start, y)))(starts)
    np.testing.assert_allclose(mapped, [fitted(start, y) for start in starts], rtol=1e-9)
    direction = jnp.cos(jnp.arange(N))
    _, slope = jax.jvp(lambda labels: fitted(1.0, labels), (y,), (direction,))
    gradient = jax.grad(lambda labels: fitted(1.0, labels))(y)
    step = 1e-5
    up, down = fitted(1.0, y + step * direction), fitted(1.0, y - step * direction)
    np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(gradient @ direction, slope, rtol=1e-9)


def test_a_searched_minimum_has_the_derivative_of_the_minimum(x64):
    """By the implicit function theorem, in both modes, of labels and of inputs."""
    x, y = sample()

    def fitted(x, y):
        result = ak.fit(model(), x, y, objective=ak.LeaveOneOut())
        return jnp.stack(
            [result.model.kernel.lengthscale, result.loss, result(jnp.array([0.3]))[0]]
        )

    directions = (jnp.sin(jnp.arange(N))[:, None] / 10, jnp.cos(jnp.arange(N)))
    value, forward = jax.jvp(fitted, (x, y), directions)
    np.testing.assert_allclose(value, fitted(x, y), rtol=1e-6)
    by_x, by_y = jax.jacrev(fitted, (0, 1))(x, y)
    backward = by_x[..., 0] @ directions[0][:, 0] + by_y @ directions[1]
    step = 1e-5
    up = fitted(x + step * directions[0], y + step * directions[1])
    down = fitted(x - step * directions[0], y - step * directions[1])
    np.testing.assert_allclose(forward, (up - down) / (2 * step), rtol=1e-5)
    np.testing.assert_allclose(backward, forward, rtol=1e-8)


def test_typed_keys_are_keys():
    old = hold_out_fit(key=jax.random.PRNGKey(5))
    new = hold_out_fit(key=jax.random.key(5))
    np.testing.assert_array_equal(old.history["loss"], new.history["loss"])


def test_a_temperature_can_be_fitted(x64):
    """A lengthscale and a temperature do the same to a Gaussian: the fit finds the same curve."""
    x, y = sample()
    warm = ak.KernelRegression(ak.Gaussian(1.0), rule=ak.Softmax(jnp.array(1.0)))
    spec = eqx.tree_at(lambda m: m.rule.temperature, jax.tree.map(lambda _: False, warm), True)
    optimizer = optax.lbfgs()
    arguments = {"objective": ak.LeaveOneOut(), "optimizer": optimizer, "steps": 60}
    by_temperature = ak.fit(warm, x, y, **arguments, trainable=spec)
    by_lengthscale = ak.fit(model(), x, y, **arguments)
    np.testing.assert_allclose(by_temperature.loss, by_lengthscale.loss, rtol=1e-6)
    np.testing.assert_allclose(
        jnp.sqrt(by_temperature.model.rule.temperature),
        by_lengthscale.model.kernel.lengthscale,
        rtol=1e-3,
    )


def test_only_what_is_trainable_moves():
    x, y = sample()
    heads = ak.MultiheadKernelRegression(eqx.filter_vmap(ak.Gaussian)(jnp.array([0.3, 1.0])))
    spec = jax.tree.map(lambda _: False, heads)
    spec = eqx.tree_at(lambda m: m.weights, spec, True)
    fitted = ak.fit(
        heads,
        x,
        y,
        objective=ak.HoldOut(3),
        optimizer=ADAM,
        steps=5,
        key=jax.random.PRNGKey(0),
        trainable=spec,
    )
    assert (fitted.model.kernel.log_lengthscale == heads.kernel.log_lengthscale).all()
    assert (fitted.model.weights != heads.weights).all()


@pytest.mark.parametrize(
    ("name", "lengthscale", "criterion"),
    [("cps71", 1.8922, 0.316055), ("mcycle", 0.913829, 595.9363)],
)
def test_leave_one_out_of_real_data(x64, name, lengthscale, criterion):
    data = ak.data.load(name)
    fitted = ak.fit(model(), data.x, data.y, objective=ak.LeaveOneOut())
    np.testing.assert_allclose(fitted.model.kernel.lengthscale, lengthscale, rtol=3e-5)
    np.testing.assert_allclose(fitted.loss, criterion, rtol=2e-6)
    assert fitted.warnings() == []


def test_faithful_has_two_minima(x64):
    data = ak.data.load("faithful")
    fitted = ak.fit(model(), data.x, data.y, objective=ak.LeaveOneOut())
    minima = fitted.minima()
    np.testing.assert_allclose(
        [m.kernel.lengthscale for m, _ in minima], [0.2614, 0.5843], rtol=1e-3
    )
    # against the curve itself: its local minima on a grid, with no optimiser
    grid = np.geomspace(0.1, 2.0, 400)
    curve = np.asarray(ak.profile(model(), data.x, data.y, grid, objective=ak.LeaveOneOut()))
    dips = grid[1:-1][(curve[1:-1] < curve[:-2]) & (curve[1:-1] < curve[2:])]
    np.testing.assert_allclose(dips, [m.kernel.lengthscale for m, _ in minima], rtol=0.01)
    assert minima[0][1] == pytest.approx(float(fitted.loss))


def test_fit_does_not_depend_on_order_nor_on_constants(x64):
    """Law 7."""
    x, y = sample()
    order = np.random.default_rng(0).permutation(N)
    fits = [
        ak.fit(model(), *data, objective=ak.LeaveOneOut())
        for data in ((x, y), (x[order], y[order]), (x + 1e4, y), (x, y + 1e4))
    ]
    lengthscales = [float(f.model.kernel.lengthscale) for f in fits]
    np.testing.assert_allclose(lengthscales, lengthscales[0], rtol=1e-5)


def test_lengthscale_per_dimension(x64):
    """The second input says nothing: its lengthscale runs to the bound, and the fit says so."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, size=(60, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=60)
    with pytest.warns(UserWarning, match="lies on a bound"):
        fitted = ak.fit(model(jnp.ones(2)), x, y, objective=ak.LeaveOneOut())
    first, second = fitted.model.kernel.lengthscale
    assert first < 0.5
    assert second > 10


def test_bounds_hold_and_are_reported(x64):
    """Law 8: pure noise has no best lengthscale; the search ends on the upper bound."""
    x = jnp.linspace(0, 1, 30)[:, None]
    y = jnp.asarray((-1.0) ** np.arange(30))
    bounds = (model(0.1), model(0.7))
    with pytest.warns(UserWarning, match=r"lies on a bound.*Widen bounds="):
        fitted = ak.fit(model(0.3), x, y, objective=ak.LeaveOneOut(), bounds=bounds)
    ends = np.asarray(fitted.starts.end.kernel.lengthscale)
    assert ((ends >= 0.1 * (1 - 1e-12)) & (ends <= 0.7 * (1 + 1e-12))).all()


def test_bounds_hold_for_any_optimiser():
    bounds = (model(0.9), model(1.1))
    with pytest.warns(UserWarning, match="lies on a bound"):
        fitted = hold_out_fit(optimizer=optax.sgd(100.0), bounds=bounds, steps=50)
    assert 0.9 - 1e-6 <= float(fitted.model.kernel.lengthscale) <= 1.1 + 1e-6


def test_divergence_is_reported_and_the_last_state_kept():
    class Bomb(ak.Objective):
        is_stochastic = False

        def __call__(self, model, x, y, *, key=None):
            ell = model.kernel.lengthscale
            return jnp.where(ell > 0.8, ell, jnp.nan)

    with pytest.warns(UserWarning, match=r"diverged at step 3.*learning rate too large"):
        fitted = ak.fit(model(), *sample(), objective=Bomb(), optimizer=optax.sgd(0.1), steps=50)
    assert 0.8 < fitted.model.kernel.lengthscale < 0.9  # the last that was finite
    assert np.isfinite(fitted.history["loss"][:3]).all()
    assert np.isnan(fitted.history["loss"][3])


def test_one_divergence_stops_only_itself():
    class Bomb(ak.Objective):
        at: jax.Array
        is_stochastic = False

        def __call__(self, model, x, y, *, key=None):
            ell = model.kernel.lengthscale
            return jnp.where(ell > self.at, ell, jnp.nan)

    with pytest.warns(UserWarning, match="1 of 2 fits, first fit 1: diverged"):
        fitted = ak.fit_many(
            model(),
            *sample(),
            objective=Bomb(jnp.array([0.0, 0.8])),
            in_axes=(None, None, 0),
            optimizer=optax.sgd(0.1),
            steps=9,
        )
    assert fitted.starts.steps[:, 0].tolist() == [9, 3]


def bad_data():
    x, y = sample()
    yield x[:2], y[:2], "at least 3 rows; got 2"
    yield x, y[:-1], r"same n; got x \(19, 1\) and y \(18,\)"
    yield x.at[7].set(jnp.nan), y, "x must be finite; 1 of 19 rows are not, the first is row 7"
    yield x, y.at[3].set(jnp.inf), "y must be finite; 1 of 19 rows are not, the first is row 3"
    yield jnp.ones_like(x), y, "x is constant"
    yield x, jnp.ones_like(y), "y is constant: every row is 1.0"


@pytest.mark.parametrize(("x", "y", "message"), list(bad_data()))
def test_data_that_cannot_be_fitted(x, y, message):
    with pytest.raises(ValueError, match=message):
        ak.fit(model(), x, y, objective=ak.LeaveOneOut())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": ak.HoldOut(N)}, "leaves no row to predict from: there are 19 rows"),
        ({"key": None}, "pass key="),
        ({"optimizer": None}, "say which optimiser"),
        ({"steps": None}, "say how many steps"),
        ({"steps": 0}, "steps must be at least 1, a whole number; got 0"),
        ({"chunk": 0}, "chunk must be at least 1, a whole number; got 0"),
        ({"starts": 0}, "starts must be at least 1, a whole number; got 0"),
        ({"starts": 5}, "pass bounds= too"),
        ({"trainable": lambda leaf: False}, "no inexact array to fit"),
        ({"bounds": (model(2.0), model(3.0))}, "starts outside its bounds"),
        ({"bounds": (model(3.0), model(0.5))}, "lower bound must be below"),
        ({"bounds": (0.1, 3.0)}, "two models of the same structure"),
    ],
)
def test_arguments_that_do_not_go_together(changes, message):
    with pytest.raises(ValueError, match=message):
        hold_out_fit(**changes)


def test_many_fits_need_something_that_differs():
    with pytest.raises(ValueError, match="something that differs"):
        ak.fit_many(model(), *sample(), objective=ak.LeaveOneOut(), in_axes=(None, None, None))


def test_a_batch_has_no_minima_of_its_own():
    x, y = sample()
    many = ak.fit_many(
        model(), x[None], y[None], objective=ak.LeaveOneOut(), in_axes=(None, 0, None)
    )
    with pytest.raises(ValueError, match=r"fit.member\(i\)"):
        many.minima()


def test_never_outside_the_bounds_over_random_small_samples(x64):
    """Law 8, over a hundred data sets of seven points, several of them ties."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, 9, size=(100, 7, 1)) / 4.0).at[:, 0].set(9.0)
    y = jnp.asarray(rng.normal(size=(100, 7)))
    fitted = jax.jit(
        lambda x, y: ak.fit_many(
            model(), x, y, objective=ak.LeaveOneOut(), in_axes=(None, 0, None), steps=30
        )
    )(x, y)
    lower, upper = jax.vmap(lambda x: model().bounds(x))(x)
    found = fitted.starts.end.kernel.lengthscale
    assert np.isfinite(found).all()
    assert (found >= lower.kernel.lengthscale[:, None] * (1 - 1e-9)).all()
    assert (found <= upper.kernel.lengthscale[:, None] * (1 + 1e-9)).all()


def test_a_given_optimiser_finds_the_minima_of_a_search():
    x, y = sample(40)
    search = ak.fit(model(), x, y, objective=ak.LeaveOneOut())
    bounds = model().bounds(x)
    given = ak.fit(
        model(),
        x,
        y,
        objective=ak.LeaveOneOut(),
        optimizer=optax.adam(0.05),
        steps=300,
        bounds=bounds,
        starts=4,
    )
    assert len(search.minima()) == len(given.minima())
    np.testing.assert_allclose(given.minima()[0][1], search.minima()[0][1], rtol=1e-4)
    at_end = ak.LeaveOneOut()(given.model, given.x, given.y)
    np.testing.assert_allclose(given.loss, at_end, rtol=1e-6)  # of the end, not of the step before


def test_a_search_that_begins_on_a_sample_ends_at_the_minima_of_the_whole(x64):
    x, y = sample(1100)
    fitted = ak.fit(model(), x, y, objective=ak.LeaveOneOut())
    whole = jax.jit(lambda x, y: ak.fit(model(), x, y, objective=ak.LeaveOneOut()))(x, y)
    np.testing.assert_allclose(fitted.loss, whole.loss, rtol=1e-12)
    np.testing.assert_allclose(
        fitted.model.kernel.lengthscale, whole.model.kernel.lengthscale, rtol=1e-6
    )
    assert fitted.starts.converged.all()
    assert np.max(fitted.starts.steps) <= 10  # few are left of the whole
    slope = jax.grad(lambda log: ak.LeaveOneOut()(model(jnp.exp(log)), x, y))
    for end in fitted.starts.end.kernel.log_lengthscale:
        assert abs(slope(end)) < 1e-6


def test_one_start_of_many_rows_begins_near_the_end(x64):
    begin, *bounds = (
        ak.KernelRegression(ak.Triweight(half_width), method=ak.Sorted())
        for half_width in (5.0, 0.01, 10.0)
    )
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=2**17)
    objective = ak.LeaveOneOut()
    fitted = ak.fit(begin, data.x, data.y, objective=objective, bounds=tuple(bounds), starts=1)
    assert fitted.starts.converged.all()
    assert fitted.starts.steps[0] <= 6
    np.testing.assert_allclose(fitted.starts.begin.kernel.lengthscale, [5.0], rtol=1e-12)
    log = fitted.model.kernel.log_lengthscale
    at = [jnp.exp(log + step) for step in (-0.001, 0.0, 0.001)]
    low, here, high = ak.profile(begin, data.x, data.y, jnp.stack(at), objective=objective)
    assert abs(low - high) < 0.01 * (low - 2 * here + high)  # within 5e-6 of a minimum


def test_where_rounding_hides_the_loss_the_slope_leads_to_the_minimum(x64):
    class Rough(ak.Objective):
        phase: jax.Array
        is_stochastic = False

        def __call__(self, model, x, y, *, key=None):
            log = model.kernel.log_lengthscale
            hidden = 5e-15 * jnp.sin(1e10 * log + self.phase)  # 23 roundings
            return jnp.cosh(log + 1e-3 * self.phase) + jax.lax.stop_gradient(hidden)

    phases = jnp.arange(400.0)
    axes, objective = (None, None, 0), Rough(phases)
    fits = ak.fit_many(model(), *sample(), objective=objective, in_axes=axes, starts=1)
    assert fits.starts.converged.all()
    assert np.max(fits.starts.steps) <= 10
    np.testing.assert_allclose(fits.model.kernel.log_lengthscale, -1e-3 * phases, atol=1e-9)


def test_without_bounds_all_starts_are_one(x64):
    class Exponential(ak.Kernel):
        rate: jax.Array

        def log_pair(self, q, k):
            return -jnp.sum((q - k) ** 2) * jnp.exp(self.rate)

    begin = ak.KernelRegression(Exponential(jnp.asarray(0.0)))
    fitted = ak.fit(begin, *sample(), objective=ak.LeaveOneOut())
    assert fitted.starts.loss.shape == (1,)
    assert len(fitted.minima()) == 1


def test_a_shallow_minimum_is_one(x64):
    rng = np.random.default_rng(7)
    x = jnp.asarray(rng.uniform(0, 10, 1000))
    y = 0.05 * x + jnp.asarray(rng.normal(size=1000))
    fitted = ak.fit(model(), x, y, objective=ak.LeaveOneOut(), starts=3)
    assert not fitted.warnings()
    assert len(fitted.minima()) == 1


def test_a_number_of_numpy_is_fixed(x64):
    rule = ak.Softmax(np.float64(1.0), sink_mass=np.float32(0.0))
    fitted = ak.fit(
        ak.KernelRegression(ak.Gaussian(1.0), rule=rule), *sample(), objective=ak.LeaveOneOut()
    )
    assert fitted.model.rule.temperature == 1.0
    assert ak.DotProduct(np.float64(0.5)).scale == 0.5


class Valley(ak.Objective):
    """(log ℓ − a)², not to be seen below `edge`; its sample has another a, and no edge."""

    at: jax.Array
    edge: jax.Array
    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        log = model.kernel.log_lengthscale
        return jnp.where(log > self.edge, 1.0 + (log - self.at) ** 2, jnp.nan)

    def on_sample(self, x, y, starts):
        return Sample(Valley(jnp.asarray(-1.0), jnp.asarray(-jnp.inf)), x, y)


def test_a_sample_that_misleads_does_no_harm(x64):
    bounds = (model(0.1), model(10.0))
    objective = Valley(jnp.asarray(0.5), jnp.asarray(-0.5))
    fitted = ak.fit(model(), *sample(), objective=objective, bounds=bounds)
    np.testing.assert_allclose(fitted.model.kernel.log_lengthscale, 0.5, rtol=1e-6)
    np.testing.assert_allclose(fitted.starts.begin.kernel.log_lengthscale[0], 0.0, atol=1e-12)
    assert fitted.starts.diverged.any()  # those that began below the edge


def test_starts_go_on_from_the_minima_of_the_sample(x64):
    bounds = (model(0.1), model(10.0))
    seen = []
    fitted = ak.fit(
        model(),
        *sample(),
        objective=Valley(jnp.asarray(0.5), jnp.asarray(-jnp.inf)),
        bounds=bounds,
        starts=4,
        record=lambda model: {"log": model.kernel.log_lengthscale},
        callback=lambda done, history: seen.append(history["log"]),
    )
    np.testing.assert_allclose(seen[0][:, 0], -1.0, atol=1e-2)  # all four go with one
    np.testing.assert_allclose(fitted.starts.end.kernel.log_lengthscale, 0.5, rtol=1e-6)
    assert len(fitted.minima()) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_search_takes_data_of_another_precision_than_the_model(x64, dtype):
    x, y = sample()
    fitted = ak.fit(model(), x.astype(dtype), y.astype(dtype), objective=ak.LeaveOneOut())
    assert fitted.loss.dtype == dtype
    whole = ak.fit(model(), x, y, objective=ak.LeaveOneOut())
    np.testing.assert_allclose(fitted.loss, whole.loss, rtol=1e-5)


def bad_batches():
    x, y = sample()
    models = eqx.filter_vmap(model)(jnp.array([1.0, 2.0, 3.0]))
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    loo = ak.LeaveOneOut()
    yield model(), (x, y), {"objective": loo}, r"got leading axes model \[\(\)\]"
    yield models, (x, y), {"objective": loo}, "objective no array"
    axes = {"in_axes": (0, None, None)}
    yield (
        models,
        (x, y),
        {"objective": loo, "key": keys, **axes},
        r"model \[\(3,\)\]; key \[\(2,\)\]",
    )


@pytest.mark.parametrize(("models", "data", "options", "message"), list(bad_batches()))
def test_batches_that_do_not_fit_together(models, data, options, message):
    with pytest.raises(ValueError, match=message):
        ak.fit_many(models, *data, **options)


def test_members_are_counted():
    x, y = sample()
    many = ak.fit_many(
        model(), x[None], y[None], objective=ak.LeaveOneOut(), in_axes=(None, 0, None)
    )
    with pytest.raises(IndexError, match="There are 1 fits; got member 1"):
        many.member(1)
    with pytest.raises(ValueError, match="no members"):
        many.member(0).member(0)
    with pytest.raises(ValueError, match=r"fit.member\(i\)\(x_new\)"):
        many(x)


def test_a_fit_of_known_data_inside_a_traced_program(x64):
    data = ak.data.load("mcycle")

    @jax.jit
    def criterion(lengthscale):
        model = ak.KernelRegression(ak.Gaussian(lengthscale))
        return ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut(), starts=2).loss

    assert float(criterion(1.0)) == pytest.approx(595.9363, abs=1e-4)  # as R's np prints it
