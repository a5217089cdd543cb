r"""Sequence layers as estimators of one sequence, with a few scalars chosen on that sequence.

The scalars have the least squared error one step ahead: the layer that has seen rows up to t
predicts $v_{t+1}$ at $k_{t+1}$. No truth and no other sequence enters the choice.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import attnkernel as ak
from attnkernel.local._polynomial import Polynomial, local_polynomial

ORACLE = "oracle"
RIDGE = 1e-2  # of the slopes of order 1, whose weights sum to 1


class Layer(NamedTuple):
    """A layer as an estimator, and the values that its scalars may take.

    `predict(scalars, q, k, v)`: q of shape (2, rows, dim), and the predictions at row t of both
    sets of queries, by the rows up to t.
    """

    predict: Callable[[dict[str, Array], Array, Array, Array], Array]
    scalars: Mapping[str, tuple[float, ...]]


def _grid(low: float, high: float, number: int) -> tuple[float, ...]:
    return tuple(np.geomspace(low, high, number))


LENGTHSCALE = {"lengthscale": _grid(0.1, 4.0, 9)}
MEMORY = {"memory": (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 512.0)}  # rows until e⁻¹ of a weight
WINDOW = {"window": (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)}
RATE = {"rate": _grid(0.03, 1.0, 9)}
RIDGES = {"ridge": _grid(1e-2, 3.0, 5)}


def _softmax(prior: Callable[[dict[str, Array], int], Any], order: int) -> Callable[..., Array]:
    """Returns the predictions of attention with a Gaussian kernel, of this order."""

    def predict(scalars: dict[str, Array], q: Array, k: Array, v: Array) -> Array:
        kernel, of_rows = ak.Gaussian(scalars["lengthscale"]), prior(scalars, len(k))
        rule, method = ak.Softmax(), ak.methods.Dense()
        if not order:
            return ak.attend(q, k, v, kernel=kernel, prior=of_rows, rule=rule, method=method)
        k, v = (jnp.broadcast_to(part[None], (len(q), *part.shape)) for part in (k, v))
        polynomial = Polynomial((kernel, of_rows, rule), order, method=method)
        return local_polynomial(q, k, v, polynomial, ridge=RIDGE).coefficients[..., 0, :]

    return predict


def _forgetting(scalars: dict[str, Array], rows: int) -> ak.priors.Prior:
    return ak.priors.Forget(jnp.full(rows, -1.0) / scalars["memory"])


def _window(scalars: dict[str, Array], rows: int) -> ak.priors.Prior:
    distance = jnp.arange(rows)[:, None] - jnp.arange(rows)[None]
    return ak.priors.MaskArray((distance >= 0) & (distance < scalars["window"]))


def _linear(scalars: dict[str, Array], q: Array, k: Array, v: Array) -> Array:
    """Sums of k vᵀ over the sum of the weights of rows, times the factor that fits v best."""
    decay = -1.0 / scalars["memory"] if "memory" in scalars else jnp.zeros(())
    linear = ak.recurrent.LinearAttention()
    sums, _ = ak.recurrent.regress(q, k, v, estimator=linear, log_decay=decay)
    means = sums / jnp.cumsum(jnp.exp(decay * jnp.arange(len(k))))[None, :, None]
    ahead = _late(means[1, :-1])
    return means * jnp.sum(ahead * _late(v[1:])) / jnp.sum(ahead**2)


def _recurrent(make: Callable[..., ak.recurrent.Estimator], *names: str) -> Callable[..., Array]:
    """Returns the predictions of `regress` with an estimator, its rate and its decay.

    `names`: of the scalars that make the estimator.
    """

    def predict(scalars: dict[str, Array], q: Array, k: Array, v: Array) -> Array:
        estimator = make(*(scalars[name] for name in names))
        decay = -1.0 / scalars["memory"] if "memory" in scalars else None
        options: Any = {"rate": scalars.get("rate"), "log_decay": decay}
        return ak.recurrent.regress(q, k, v, estimator=estimator, **options)[0]

    return predict


DELTA = _recurrent(ak.recurrent.DeltaRule)
MESA = _recurrent(ak.recurrent.RecursiveLeastSquares, "ridge")
LAYERS: dict[str, Layer] = {
    "softmax": Layer(_softmax(lambda *_: ak.Causal(), 0), LENGTHSCALE),
    "window": Layer(_softmax(_window, 0), LENGTHSCALE | WINDOW),
    "softmax, forgetting": Layer(_softmax(_forgetting, 0), LENGTHSCALE | MEMORY),
    "linear": Layer(_linear, {}),
    "decay": Layer(_linear, MEMORY),
    "delta": Layer(DELTA, RATE),
    "gated delta": Layer(DELTA, RATE | MEMORY),
    "Mesa": Layer(MESA, RIDGES),
    "Mesa, forgetting": Layer(MESA, RIDGES | MEMORY),
    "order 1": Layer(_softmax(lambda *_: ak.Causal(), 1), LENGTHSCALE),
    "order 1, forgetting": Layer(_softmax(_forgetting, 1), LENGTHSCALE | MEMORY),
}


def with_residuals(recurrence: Layer) -> Layer:
    r"""Softmax of what a recurrence leaves: $\sum_j a_{tj} (v_j - W_j k_j) + W_t q_t$."""

    def predict(scalars: dict[str, Array], q: Array, k: Array, v: Array) -> Array:
        *at_queries, at_keys = recurrence.predict(scalars, jnp.concatenate([q, k[None]]), k, v)
        softmax = LAYERS["softmax"].predict(scalars, q, k, v - at_keys)
        return jnp.stack(at_queries) + softmax

    return Layer(predict, LENGTHSCALE | dict(recurrence.scalars))


def _late(rows: Float[Array, "rows *rest"]) -> Float[Array, "late *rest"]:
    """Returns the second half of the rows."""
    return rows[rows.shape[0] // 2 :]


def errors_of_layer(layer: Layer) -> Callable[..., tuple[Array, dict[str, Array]]]:
    """Returns a function of (k, v, q, truth): the mean squared error at the queries over the second
    half of the rows, and the scalars chosen by the error one step ahead over the same rows."""
    names, values = list(layer.scalars), list(itertools.product(*layer.scalars.values()))
    table = np.array(values, float).reshape(len(values), len(names))

    def errors(k: Array, v: Array, q: Array, truth: Array) -> tuple[Array, dict[str, Array]]:
        queries = jnp.stack([q, jnp.roll(k, -1, axis=0)])

        def of_scalars(row: Array) -> tuple[Array, Array]:
            scalars = dict(zip(names, row, strict=True))
            now, next_row = layer.predict(scalars, queries, k, v)
            ahead = jnp.mean((_late(next_row[:-1]) - _late(v[1:])) ** 2)
            return ahead, jnp.mean((_late(now) - _late(truth)) ** 2)

        ahead, error = jax.lax.map(of_scalars, jnp.asarray(table))
        best = jnp.argmin(ahead)
        return error[best], dict(zip(names, jnp.asarray(table)[best], strict=True))

    return errors
