"""The window that attention learns: tasks, embeddings and powers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.runs.monitor import NO_MONITOR
from experiments.studies.training import train
from experiments.studies.window_report import exponents
from experiments.studies.window_tasks import Family, Linear, Warp, draw, predict


def family(lengthscale=0.5, noise=0.3, growth=0.0, direction=(1.0,)):
    return Family(
        *(jnp.asarray(np.array(part)) for part in (lengthscale, noise, growth, direction))
    )


def test_functions_have_their_covariance_and_labels_their_noise(x64):
    kind = family(growth=1.5, direction=(0.6, 0.8))

    @jax.jit
    def draw_tasks():
        keys = jax.random.split(jax.random.PRNGKey(0), 10_000)
        return jax.vmap(lambda key: draw(key, kind, 4, 2))(keys)

    tasks = draw_tasks()
    along = np.array(tasks.at) @ [0.6, 0.8]
    gap = np.square(along[:, 0] - along[:, 1])
    near, product = gap < 0.05, np.prod(np.array(tasks.truth), axis=1)
    expected = np.exp(-gap / (2 * 0.5**2))
    assert abs(np.mean(product[near] - expected[near])) < 0.06
    assert abs(np.mean(product[~near] - expected[~near])) < 0.06
    x = np.array(tasks.x) @ [0.6, 0.8]
    variance = 1 + np.square(0.3 * np.exp(1.5 * x))
    assert abs(np.mean(np.square(np.array(tasks.y)) / variance) - 1) < 0.06


@pytest.mark.parametrize("order", [0, 1])
def test_attention_on_embedded_inputs_is_kernel_regression_with_that_window(x64, order):
    task = jax.jit(lambda: draw(jax.random.PRNGKey(1), family(), 30, 5))()
    x, y, at = np.array(task.x)[:, 0], np.array(task.y), np.array(task.at)[:, 0]

    def expected(distance):
        out = []
        for row in np.exp(-0.5 * distance**2):
            terms = np.stack([x**p for p in range(order + 1)], axis=1)
            out.append(np.linalg.solve(terms.T @ (row[:, None] * terms), terms.T @ (row * y)))
        return np.array(out)

    coefficients = expected((at[:, None] - x) / 0.2)
    found = jax.jit(lambda: predict(Linear.of_windows(jnp.array(0.2)), task, order))()
    np.testing.assert_allclose(
        found, sum(coefficients[:, p] * at**p for p in range(order + 1)), rtol=1e-8
    )
    if order == 0:  # the window at x is exp(a + b x): by quadrature of its inverse
        a, b = -1.2, 0.7
        steps = np.linspace(-1, 1, 200_001)
        phi = np.concatenate([[0.0], np.cumsum(np.exp(-a - b * (steps[1:] + steps[:-1]) / 2))])
        phi *= steps[1] - steps[0]
        between = np.interp(at, steps, phi)[:, None] - np.interp(x, steps, phi)
        found = jax.jit(lambda: predict(Warp(jnp.array(a), jnp.array(b)), task, 0))()
        np.testing.assert_allclose(found, expected(between)[:, 0], rtol=1e-6)


def test_powers_are_those_of_a_product_of_powers():
    rows = [
        {
            "order": 0,
            "n": n,
            "noise": s,
            "lengthscale": a,
            "windows": {"best": n**-0.3 * s**0.1 * a},
        }
        for n in (10, 40)
        for s in (0.1, 0.5)
        for a in (0.2, 1.0)
    ]
    found = exponents(rows, "best")
    np.testing.assert_allclose(
        [found[part] for part in ("n", "noise", "lengthscale")], [-0.3, 0.1, 1.0], rtol=1e-9
    )


@pytest.mark.slow
def test_all_chunks_of_a_training_share_a_program(x64, programs):
    start = Linear.of_windows(jnp.full(2, 0.25))  # of a weak type, as `jnp.full` returns it
    trained, losses = train(
        NO_MONITOR,
        start,
        lambda model, key: jnp.sum(model.log_scale**2),
        batch=8,
        steps=6,
        learning_rate=0.1,
        key=jax.random.PRNGKey(0),
        chunk=2,
    )
    assert sum("advance" in name for name in programs) == 1
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert np.all(np.abs(trained.log_scale) < np.abs(start.log_scale))


@pytest.mark.slow
def test_windows_are_learned_and_compared(run_study):
    small = ("contexts=[32, 64]", "steps=120", "tested=10", "orders=[0]", "windows=15")
    run = run_study("learned_window", *small, "lengthscales=[0.3, 1.0]", "noises=[0.1, 0.9]")
    rows = {(row["n"], row["lengthscale"], row["noise"]): row for row in run.summary["rows"]}
    assert len(rows) == 8
    for n in (32, 64):
        windows = {key[1:]: row["windows"]["learned"] for key, row in rows.items() if key[0] == n}
        assert windows[0.3, 0.1] < min(windows[0.3, 0.9], windows[1.0, 0.1]) < windows[1.0, 0.9]
    assert all(row["across"] > row["along"] for row in run.summary["directions"])
    assert len(run.summary["predictions"]) == 8
