"""Training by a given optimiser: against a hand-written loop, in chunks, within bounds; new but
equal optimisers share one compiled program."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from noisy_sine import N, model, sample

import attnkernel as ak
from attnkernel.fitting._train import comparable_optimizer

KEY = jax.device_put(np.zeros(2, np.uint32))  # jax.random.PRNGKey(0)
ADAM = optax.adam(0.1)
FIVE_STEPS = {"optimizer": ADAM, "steps": 5, "key": KEY}


def hold_out_fit(**changes):
    arguments = {"objective": ak.HoldOut(4), "optimizer": ADAM, "steps": 13, "key": KEY}
    return ak.fit(model(), *sample(), **(arguments | changes))


class NanBelow(ak.objectives.Objective):
    """The lengthscale, not a number below a limit."""

    limit: jax.Array
    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        lengthscale = model.kernel.lengthscale
        return jnp.where(lengthscale > self.limit, lengthscale, jnp.nan)


def test_fit_equals_a_hand_written_loop(x64):
    x, y = sample()
    fitted = hold_out_fit(record=lambda m: {"lengthscale": m.kernel.lengthscale})

    @jax.jit
    def step(theta, state, key):
        key, subkey = jax.random.split(key)

        def loss(log_lengthscale):
            return ak.HoldOut(4)(model(jnp.exp(log_lengthscale)), x, y, key=subkey)

        value, gradient = jax.value_and_grad(loss)(theta)
        updates, state = ADAM.update(gradient, state, theta)
        return optax.apply_updates(theta, updates), state, key, value

    theta, key, losses, path = np.zeros(()), KEY, [], []
    state = jax.jit(ADAM.init)(theta)
    for _ in range(13):
        path.append(np.exp(theta))
        theta, state, key, value = step(theta, state, key)
        losses.append(value)
    np.testing.assert_allclose(fitted.model.kernel.lengthscale, np.exp(theta), rtol=1e-10)
    np.testing.assert_allclose(fitted.history["loss"], losses, rtol=1e-10)
    np.testing.assert_allclose(fitted.history["lengthscale"], path, rtol=1e-10)


def test_chunks_do_not_change_a_bit_and_the_callback_sees_each():
    seen = []
    whole = hold_out_fit()
    parts = hold_out_fit(chunk=5, callback=lambda done, history: seen.append((done, history)))
    np.testing.assert_array_equal(whole.history["loss"], parts.history["loss"])
    ends = (float(fit.model.kernel.lengthscale_parameter.z) for fit in (whole, parts))
    assert len(set(ends)) == 1
    assert [done for done, _ in seen] == [5, 10, 13]
    losses = np.concatenate([history["loss"][0] for _, history in seen])
    np.testing.assert_array_equal(losses, whole.history["loss"])


@pytest.mark.slow
def test_fit_can_be_jitted_vmapped_and_differentiated(x64):
    """Its derivatives, forward and reverse, are those of finite differences."""
    x, y = sample()

    def fitted(start, labels):
        result = ak.fit(model(start), x, labels, objective=ak.HoldOut(4), **FIVE_STEPS)
        return result.model.kernel.lengthscale

    direction, step = np.cos(np.arange(N)), 1e-5

    @jax.jit
    def computed(starts, labels):
        _, slope = jax.jvp(lambda y: fitted(1.0, y), (labels[0],), (direction,))
        return jax.vmap(fitted)(starts, labels), slope, jax.grad(fitted, 1)(1.0, labels[0])

    y = np.asarray(y)
    labels = np.stack([y, y, y + step * direction, y - step * direction])
    found = jax.device_get(computed(np.array([1.0, 0.5, 1.0, 1.0]), labels))
    ends, slope, gradient = found
    np.testing.assert_allclose(ends[:2], [fitted(start, y) for start in (1.0, 0.5)], rtol=1e-9)
    np.testing.assert_allclose(slope, (ends[2] - ends[3]) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(gradient @ direction, slope, rtol=1e-9)


def test_new_style_keys_give_the_same_fit():
    old = hold_out_fit()
    new = hold_out_fit(key=jax.random.key(0))
    np.testing.assert_array_equal(old.history["loss"], new.history["loss"])


@pytest.mark.slow
def test_temperature_is_fitted_by_lbfgs(x64):
    """A lengthscale and a temperature do the same to a Gaussian: the fits find the same curve."""
    x, y = sample()
    warm = ak.KernelRegression(ak.Gaussian(1.0), rule=ak.Softmax(1.0))
    none = jax.tree.map(lambda _: False, warm)
    only = eqx.tree_at(lambda m: m.rule.temperature_parameter, none, True)
    options = {"optimizer": optax.lbfgs(), "steps": 60, "trainable": only}
    by_temperature = ak.fit(warm, x, y, objective=ak.LeaveOneOut(), **options)
    by_lengthscale = ak.fit(model(), x, y, objective=ak.LeaveOneOut())
    np.testing.assert_allclose(by_temperature.loss, by_lengthscale.loss, rtol=1e-6)
    lengthscale = float(by_temperature.model.rule.temperature) ** 0.5
    np.testing.assert_allclose(lengthscale, by_lengthscale.model.kernel.lengthscale, rtol=1e-3)
    assert float(by_temperature.model.kernel.lengthscale) == 1.0


def test_only_trainable_leaves_change():
    heads = ak.MultiheadKernelRegression(ak.PerHead([ak.Gaussian(0.3), ak.Gaussian(1.0)]))
    only = eqx.tree_at(lambda m: m.coefficients, jax.tree.map(lambda _: False, heads), True)
    fitted = ak.fit(heads, *sample(), objective=ak.HoldOut(3), trainable=only, **FIVE_STEPS)
    before, after = np.asarray(heads.coefficients), np.asarray(fitted.model.coefficients)
    lengthscales = (each.kernel.stack.lengthscale_parameter.z for each in (fitted.model, heads))
    np.testing.assert_array_equal(*lengthscales)
    assert (after != before).all()


def test_bounds_hold_for_any_optimiser():
    """Law 8."""
    bounds = (model(0.9), model(1.1))
    with pytest.warns(ak.FitWarning, match="bound"):
        fitted = hold_out_fit(optimizer=optax.sgd(100.0), bounds=bounds, steps=50)
    assert 0.9 - 1e-6 <= float(fitted.model.kernel.lengthscale) <= 1.1 + 1e-6


def test_divergence_is_reported_and_the_last_finite_state_kept():
    options = {"optimizer": optax.sgd(0.1), "steps": 50}
    with pytest.warns(ak.FitWarning, match=r"diverged at step 3.*learning rate"):
        fitted = ak.fit(model(), *sample(), objective=NanBelow(jax.device_put(0.8)), **options)
    assert 0.8 < float(fitted.model.kernel.lengthscale) < 0.9
    assert np.isfinite(fitted.history["loss"][:3]).all()
    assert np.isnan(fitted.history["loss"][3])


def test_best_start_is_never_one_without_a_finite_loss():
    """The loss is NaN at two of five starts, the given one among them."""
    options = {"optimizer": optax.sgd(0.01), "steps": 1, "bounds": (model(0.5), model(2.0))}
    objective = NanBelow(jax.device_put(0.8))
    fitted = ak.fit(model(0.6), *sample(), objective=objective, starts=5, **options)
    losses = np.asarray(fitted.starts.loss)
    assert np.isnan(losses[0])
    assert np.sum(np.isnan(losses)) == 2
    assert float(fitted.loss) == np.nanmin(losses)
    # that of the end, not of the step before
    assert float(fitted.loss) == float(fitted.model.kernel.lengthscale)


def test_divergence_stops_only_the_fit_that_diverged():
    objective = NanBelow(jax.device_put(np.array([0.0, 0.8])))
    options = {"in_axes": (None, None, 0), "optimizer": optax.sgd(0.1), "steps": 9}
    with pytest.warns(ak.FitWarning, match="1 of 2 fits, first fit 1: diverged"):
        fitted = ak.fit_many(model(), *sample(), objective=objective, **options)
    np.testing.assert_array_equal(np.asarray(fitted.starts.steps)[:, 0], [9, 3])


KEYS = np.array([[0, 1], [2, 3]], np.uint32)
X = np.linspace(0.0, 1.0, 23)
Y = np.sin(6.0 * X)
MODEL = ak.KernelRegression(ak.Gaussian(0.2))


def fit(optimizer, **options):
    options = {"key": jax.device_put(KEYS[0]), "steps": 3} | options
    objective = ak.HoldOut(5, score=options.pop("score", ak.squared_error))
    return ak.fit(MODEL, X, Y, objective=objective, optimizer=optimizer, **options)


def fits(optimizer, **options):
    keys = jax.device_put(KEYS)
    sizes = ak.HoldOut(np.array([3, 5]), at_most=5, score=options.pop("score", ak.squared_error))
    options |= {"key": keys, "objective": sizes, "in_axes": (None, None, 0), "steps": 3}
    return ak.fit_many(MODEL, X, Y, optimizer=optimizer, **options)


def scheduled(rate):
    schedule = optax.cosine_decay_schedule(rate, 10)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


@pytest.mark.slow
@pytest.mark.parametrize(("run", "make"), [(fit, scheduled), (fits, optax.adam)])
def test_an_equal_optimiser_compiles_nothing_and_another_its_own_program(programs, run, make):
    first = run(make(0.1))
    programs.clear()
    same = run(make(0.1))
    assert not programs
    np.testing.assert_array_equal(first.history["loss"], same.history["loss"])
    other = run(make(0.2))
    assert programs
    alone = run(optax.chain(make(0.2)))  # another function, which computes the same
    np.testing.assert_array_equal(other.history["loss"], alone.history["loss"])
    assert np.any(np.asarray(other.history["loss"]) != np.asarray(same.history["loss"]))


def labels(tree):
    return jax.tree.map(lambda _: "trained", tree)


OPTIMIZERS = {
    "adam": optax.adam,
    "chain": scheduled,
    "own schedule": lambda rate: optax.sgd(lambda step: rate / (1 + step)),
    "array": lambda rate: optax.sgd(np.float32(rate)),
    "inject_hyperparams": lambda rate: optax.inject_hyperparams(optax.adam)(learning_rate=rate),
    "multi_transform": lambda rate: optax.multi_transform(
        {"trained": optax.adam(rate), "fixed": optax.set_to_zero()}, labels
    ),
    "lbfgs with a line search": lambda rate: optax.lbfgs(memory_size=int(100 * rate)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_are_equal_if_their_numbers_are(name):
    make, z = OPTIMIZERS[name], {"a": np.zeros((1, 2), np.float32), "b": np.zeros(1, np.float32)}
    one, same, other = (comparable_optimizer(make(rate), z, 1) for rate in (0.1, 0.1, 0.2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


def test_a_schedule_that_reads_another_number_changes_the_program():
    rates = [0.0]
    optimizer = optax.sgd(lambda step: rates[-1])
    assert float(fit(optimizer).model.kernel.lengthscale) == float(MODEL.kernel.lengthscale)
    rates.append(0.1)
    assert float(fit(optimizer).model.kernel.lengthscale) != float(MODEL.kernel.lengthscale)
