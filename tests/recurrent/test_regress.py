"""Online regression equals its recurrence, written out in NumPy, however rows are grouped; exported
with symbolic sizes, and within `jax.shard_map`."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, PartitionSpec
from marks import slow
from refusals import assert_raises

from attnkernel.recurrent import DeltaRule, LinearAttention, RecursiveLeastSquares, regress

HEADS, ROWS, DIM, DIM_V = 2, 83, 5, 3  # 83 rows: a chunk of 64, and a part of one
RIDGE = 0.3
RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(2, HEADS, ROWS, DIM))
V = RNG.normal(size=(HEADS, ROWS, DIM_V))
RATE = RNG.uniform(0.0, 2.0, size=(HEADS, ROWS)) / np.sum(K**2, axis=-1)
RATE[:, 11] = 0.0
DECAY = {
    "none": np.ones((HEADS, 1, 1)),
    "row": RNG.uniform(size=(HEADS, ROWS, 1)) ** 0.2,
    "channel": RNG.uniform(size=(HEADS, ROWS, DIM)) ** 0.02,
    "strong": RNG.uniform(size=(HEADS, ROWS, DIM)) ** 4,  # up to e^-200 in a chunk
}
DECAY["row"][:, 30] = DECAY["strong"][:, 70] = 0.0


def decayed_sums(q, k, v, decay, rate):
    state, out = np.zeros((DIM, v.shape[1])), []
    for t in range(ROWS):
        state = decay[t][:, None] * state + rate[t] * np.outer(k[t], v[t])
        out.append(q[t] @ state)
    return np.stack(out)


def normalised(q, k, v, decay, rate):
    ones = np.ones((ROWS, 1))
    return decayed_sums(q, k, v, decay, rate) / decayed_sums(q, k, ones, decay, rate)


def delta_rule(q, k, v, decay, rate):
    state, out = np.zeros((DIM, DIM_V)), []
    for t in range(ROWS):
        state = decay[t][:, None] * state
        state = state + rate[t] * np.outer(k[t], v[t] - k[t] @ state)
        out.append(q[t] @ state)
    return np.stack(out)


def ridge_regressions(q, k, v, decay, rate, intercept=False):
    """Each row by `lstsq` of the discounted rows, and of a row for each ridge."""
    one = np.ones((ROWS, 1))
    x, x_new = (np.hstack([one, k]), np.hstack([one, q])) if intercept else (k, q)
    penalty = np.sqrt(RIDGE) * np.eye(x.shape[1])[int(intercept) :]
    weights, out = np.zeros(ROWS), []
    for t in range(ROWS):
        weights = decay[t] * weights
        weights[t] = rate[t]
        left = np.vstack([np.sqrt(weights)[:, None] * x, penalty])
        right = np.vstack([np.sqrt(weights)[:, None] * v, np.zeros((DIM, DIM_V))])
        out.append(x_new[t] @ np.linalg.lstsq(left, right, rcond=None)[0])
    return np.stack(out)


ridge_with_intercept = functools.partial(ridge_regressions, intercept=True)
CASES: dict[str, Any] = {
    **{f"linear, {decay}": (LinearAttention, decayed_sums, decay) for decay in DECAY},
    **{f"delta, {decay}": (DeltaRule, delta_rule, decay) for decay in DECAY},
    "normalised": (lambda: LinearAttention(True), normalised, "row"),
    "least squares": (lambda: RecursiveLeastSquares(RIDGE), ridge_regressions, "row"),
    "with intercept": (lambda: RecursiveLeastSquares(RIDGE, True), ridge_with_intercept, "row"),
}


def options_of(name) -> tuple[dict[str, Any], Any, Any]:
    make, formula, decay = CASES[name]
    with np.errstate(divide="ignore"):
        log_decay = np.log(DECAY[decay])
    return {"estimator": make(), "log_decay": log_decay, "rate": RATE}, formula, DECAY[decay]


def part_of(options, rows):
    """The options of some of the rows."""
    log_decay = options["log_decay"]
    log_decay = log_decay if log_decay.shape[1] == 1 else log_decay[:, rows]
    return options | {"log_decay": log_decay, "rate": options["rate"][:, rows]}


DEFAULT = {"delta, row", "with intercept"}


@pytest.mark.parametrize("name", [name if name in DEFAULT else slow(name) for name in CASES])
def test_chunks_steps_and_rows_equal_the_recurrence(x64, name):
    options, formula, decay = options_of(name)
    decay = np.broadcast_to(decay, (HEADS, ROWS, decay.shape[2]))
    expected = np.stack([formula(Q[h], K[h], V[h], decay[h], RATE[h]) for h in range(HEADS)])
    chunked, state = regress(Q, K, V, **options)
    # a sum of weights of both signs is close to 0 somewhere
    tolerance: Any = {"rtol": 1e-9, "atol": 1e-9 if name != "normalised" else 1e-7}
    np.testing.assert_allclose(chunked, expected, **tolerance)
    by_row, last = regress(Q, K, V, **options, method="recurrent")
    np.testing.assert_allclose(by_row, expected, **tolerance)
    first = slice(0, ROWS - 2)
    _, now = regress(Q[:, first], K[:, first], V[:, first], **part_of(options, first))
    for t in (ROWS - 2, ROWS - 1):
        at = slice(t, t + 1)
        out, now = regress(Q[:, at], K[:, at], V[:, at], **part_of(options, at), state=now)
        np.testing.assert_allclose(np.asarray(out)[:, 0], expected[:, t], **tolerance)
    for found in (last, now):
        for ours, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
            np.testing.assert_allclose(ours, leaf, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["delta, strong", *map(slow, ("linear, channel", "normalised", "with intercept"))]
)
def test_derivatives_equal_those_of_the_recurrence(x64, name):
    """By reverse and by forward mode, for everything that is differentiable."""
    options, _, _ = options_of(name)
    estimator, rate = options["estimator"], options["rate"]
    # derivatives need finite logarithms, a sum of weights one sign
    log_decay = np.maximum(options["log_decay"], -1e3)
    _, start = regress(Q[0] ** 2, K[0] ** 2, V[0], estimator=estimator, rate=0.01)
    arguments = jax.device_get((estimator, Q**2, K**2, V, log_decay, rate / 50, start))

    def loss(arguments, method):
        estimator, q, k, v, log_decay, rate, start = arguments
        options = {"estimator": estimator, "log_decay": log_decay, "rate": rate, "state": start}
        out, state = regress(q, k, v, **options, method=method)
        return jnp.sum(jnp.sin(out)) + sum(map(jnp.sum, jax.tree.leaves(state)))

    @jax.jit
    def derivatives(arguments, tangents):
        found = []
        for method in ("chunked", "recurrent"):
            of_method = functools.partial(loss, method=method)
            along = jax.jvp(of_method, (arguments,), (tangents,))
            found.append((*along, jax.grad(of_method)(arguments)))
        return found

    def wave(leaf):
        return np.cos(np.arange(leaf.size, dtype=float).reshape(leaf.shape))

    tangents = (*jax.tree.map(wave, arguments[:-1]), start)  # a Gram matrix stays symmetric
    symmetric = lambda leaf: leaf + leaf.T if leaf.shape == (DIM + 1, DIM + 1) else leaf  # noqa: E731
    found = jax.device_get(derivatives(arguments, tangents))
    chunked, recurrent = (list(map(symmetric, jax.tree.leaves(one))) for one in found)
    for ours, theirs in zip(chunked, recurrent, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)


def test_batch_axes_broadcast_and_map():
    """Keys shared by heads, a number as the decay of all, and `vmap`, in one precision."""
    q = np.broadcast_to(Q[:, None], (HEADS, 3, ROWS, DIM)).astype(np.float32)
    k, v = K[:, None].astype(np.float32), V[:, None].astype(np.float32)
    options = {"estimator": DeltaRule(), "log_decay": -0.1, "rate": 0.05}
    found, state = jax.device_get(regress(q, k, v, **options))
    assert found.shape == (HEADS, 3, ROWS, DIM_V)
    assert found.dtype == np.float32
    assert state.matrix.shape == (HEADS, 3, DIM, DIM_V)
    each = jax.jit(jax.vmap(lambda q, k, v: regress(q, k, v, **options)[0]))
    mapped = each(q[:, 0], k[:, 0], v[:, 0])
    for copy in range(3):
        np.testing.assert_allclose(found[:, copy], mapped, rtol=1e-5, atol=1e-6)


def test_a_call_is_one_program_and_a_new_equal_estimator_none(programs):
    arrays = [part[0, :17].astype(np.float32) for part in (Q, K, V)]
    jax.clear_caches()
    regress(*arrays, estimator=LinearAttention(), log_decay=-0.2)
    assert len(programs) == 1
    regress(*arrays, estimator=LinearAttention(), log_decay=-0.3)
    assert len(programs) == 1


BATCH, TOKENS, WIDTH = 4, 70, 3  # 70 rows: a chunk of 64, and a part of one
ESTIMATORS: dict[str, Any] = {
    "linear": LinearAttention,
    "normalised": lambda: LinearAttention(True),
    "delta": DeltaRule,
    "least squares": lambda: RecursiveLeastSquares(0.3),
}


def value_and_gradients(name, q, k, v, **more):
    """The results, the last state, and gradients of a sum of the results."""
    q, k = (array / jnp.linalg.norm(array, axis=-1, keepdims=True) for array in (q, k))
    options = {"log_decay": jnp.array(-0.1), "rate": jnp.array(0.5)} | more

    def number(q, k, v):
        found = regress(q, k, v, estimator=ESTIMATORS[name](), **options)
        return jnp.sum(jnp.sin(found[0])), found

    return jax.grad(number, (0, 1, 2), has_aux=True)(q, k, v)


def data(batch=BATCH, rows=TOKENS):
    return tuple(np.abs(np.random.default_rng(0).normal(size=(3, batch, rows, WIDTH))))


@functools.cache
def expected(name, batch=BATCH, rows=TOKENS, **options):
    """The results on one device, of known sizes."""
    run = jax.jit(functools.partial(value_and_gradients, name, **options))
    return jax.device_get(run(*data(batch, rows)))


def assert_close(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.parametrize("name", ESTIMATORS)
def test_shard_map_over_the_batch(x64, name):
    options = {"axis_types": (AxisType.Auto,), "devices": jax.devices()[:2]}
    mesh, each = jax.make_mesh((2,), ("d",), **options), PartitionSpec("d")
    specs = {"in_specs": (each, each, each), "out_specs": each}
    within = jax.shard_map(functools.partial(value_and_gradients, name), mesh=mesh, **specs)
    assert_close(jax.jit(within)(*data()), expected(name))


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("sets_mesh", [False, True])
def test_batch_on_a_mesh_of_explicit_axes(x64, name, sets_mesh):
    """As `jax.make_mesh` makes it by default, whether users set it or not."""
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    each = jax.sharding.NamedSharding(mesh, PartitionSpec("d"))
    with jax.set_mesh(mesh) if sets_mesh else contextlib.nullcontext():
        found = jax.jit(functools.partial(value_and_gradients, name))(*jax.device_put(data(), each))
    assert_close(found, expected(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_exported_program_takes_every_size(as_users_run_it, x64, name):
    """Any batch by chunks of a known number of rows; any batch and number of rows row by row."""
    # checked annotations compare the axes of batches as integers, which symbolic sizes are not
    batch, rows = export.symbolic_shape("b, n")
    for length, count, options in ((TOKENS, TOKENS, {}), (rows, 5, {"method": "recurrent"})):
        shape = jax.ShapeDtypeStruct((batch, length, WIDTH), float)
        run = jax.jit(functools.partial(value_and_gradients, name, **options))
        program = export.export(run)(shape, shape, shape)
        assert_close(program.call(*data(BATCH, count)), expected(name, BATCH, count, **options))


def test_chunks_of_a_symbolic_number_of_rows_are_refused(as_users_run_it):
    (rows,) = export.symbolic_shape("n")
    shape = jax.ShapeDtypeStruct((BATCH, rows, WIDTH), np.float32)
    run = export.export(jax.jit(functools.partial(value_and_gradients, "delta")))
    assert_raises(r"chunked.*symbolic.*'recurrent'", run, shape, shape, shape)


def test_slow_decays_keep_their_digits():
    """20 000 rows of ones in float32, each 0.9999 of the next: sums of powers of a ratio."""
    rows, rate, decay = 20_000, np.float32(1e-4), np.float32(-1e-4)
    ones, alpha = np.ones((rows, 1), np.float32), np.exp(float(decay))
    power_sum = lambda ratio: (1 - ratio**rows) / (1 - ratio)  # noqa: E731
    of_delta = rate * power_sum(alpha * (1 - float(rate)))
    for method in ("recurrent", "chunked"):
        after = functools.partial(regress, ones, ones, ones, log_decay=decay, method=method)
        linear = after(estimator=LinearAttention())[1].matrix
        squares = after(estimator=RecursiveLeastSquares(0.1))[1].gram
        delta = after(estimator=DeltaRule(), rate=rate)[1].matrix
        found = np.ravel([*map(np.asarray, (linear, squares, delta))])
        np.testing.assert_allclose(found, [power_sum(alpha)] * 2 + [of_delta], rtol=5e-6)
