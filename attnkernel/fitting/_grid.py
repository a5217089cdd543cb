r"""The search along parameters in which a criterion has no slope: a grid, finer around its best.

The weights of a `Boxcar` are 0 or 1, so that a criterion is constant in its lengthscale but where
a distance between two points is passed. No step by a slope leaves its start.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from ._train import Problem

_LEVELS = 256  # of the whole box, even in the parameter: of a lengthscale, in its logarithm
_AROUND = 8  # of the best of them, on each side
_FINER = 16


def along(
    z: Any, which: Bool[np.ndarray, " params"], problem: Problem
) -> tuple[Any, float, Bool[np.ndarray, " params"]]:
    """The best of a grid along each of some parameters, one after the other, and where it is flat.

    **Returns:** free variables; the objective there; of each parameter whether the objective has no
    slope at any point of its grid, and yet not one value.
    """
    flat, unravel = ravel_pytree(z)
    point, without = np.array(flat), np.zeros(len(which), bool)
    least = np.inf
    levels = np.linspace(-1.0, 1.0, _LEVELS)
    for j in map(int, np.flatnonzero(which)):
        values, slopes = _on_line(point, j, levels, unravel, problem)
        without[j] = np.all(slopes == 0) and len(np.unique(values[np.isfinite(values)])) > 1
        if not without[j]:
            continue
        best = np.argsort(values)[:_AROUND]
        step = levels[1] - levels[0]
        finer = levels[best][:, None] + step * np.linspace(-1.0, 1.0, 2 * _FINER + 1)
        finer = np.clip(np.unique(finer), -1.0, 1.0)
        finer = np.append(finer, np.full(_AROUND * (2 * _FINER + 1) - len(finer), 1.0))
        found, _ = _on_line(point, j, finer, unravel, problem)
        values, places = np.append(values, found), np.append(levels, finer)
        order = np.argsort(places)
        values, places = values[order], places[order]
        # of the widest run of the least value the middle: the objective is the same along it
        is_least = values == np.min(values)
        edges = np.flatnonzero(np.diff(np.r_[False, is_least, False]))
        first, last = edges[::2], edges[1::2] - 1
        run = np.argmax(places[last] - places[first])
        point[j] = np.arcsin(0.5 * (places[first[run]] + places[last[run]]))
        least = float(np.min(values))
    return unravel(jnp.asarray(point)), least, without


def _on_line(
    point: np.ndarray, j: int, levels: np.ndarray, unravel: Any, problem: Problem
) -> tuple[np.ndarray, np.ndarray]:
    """The objective, and its slope along the j-th parameter, at these shares of the half box."""
    points = np.broadcast_to(point, (len(levels), len(point))).copy()
    points[:, j] = np.arcsin(levels)
    values, slopes = jax.device_get(_looked(jnp.asarray(points), unravel, problem))
    return np.where(np.isfinite(values), values, np.inf), slopes[:, j]


@eqx.filter_jit
def _looked(
    points: Float[Array, "points params"], unravel: Any, problem: Problem
) -> tuple[Float[Array, " points"], Float[Array, "points params"]]:
    def at(point: Array) -> Array:
        return problem.objective(problem.model(unravel(point)), problem.x, problem.y)

    return jax.lax.map(jax.value_and_grad(at), points)
