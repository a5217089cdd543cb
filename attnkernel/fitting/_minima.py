"""The local minima that searches reached: their curvature, and distances between models."""

from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, PyTree

from .._core.arrays import as_numpy_if_concrete
from ._bounds import Box
from ._outcome import Result, Starts
from ._problem import flat_rows

if TYPE_CHECKING:
    from ._search import Searches  # which imports this file


def parameter_distance(model: Any, other: Any) -> float:
    """Returns the largest difference between the parameters of two models."""
    pairs = zip(
        jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)),
        jax.tree.leaves(eqx.filter(other, eqx.is_inexact_array)),
        strict=True,
    )
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


def model_of_start(starts: Starts, i: int) -> Any:
    """Returns the model in which start i ended; on the host, which compiles nothing."""

    def entry(leaf: Any) -> Any:
        return jax.device_put(np.asarray(leaf)[i]) if eqx.is_array(leaf) else leaf

    return jax.tree.map(entry, starts.end)


def ended_inside(starts: Starts) -> Bool[np.ndarray, " starts"]:
    """Returns whether each start ended inside the bounds, and did not diverge."""
    return ~(np.asarray(starts.at_bound) | (np.asarray(starts.result) == Result.DIVERGED))


def is_minimum(searches: "Searches", params: PyTree, tolerance: float) -> bool:
    r"""Whether the loss L of `Searches` has a minimum at parameters, or near them.

    It has one if the least eigenvalue of $\nabla^2 L / |L|$ is positive beyond rounding, and if the
    Newton step $(\nabla^2 L)^{-1} \nabla L$ changes no parameter by more than `tolerance`. The
    curvature falls with the number of rows: that of a lengthscale in leave-one-out as
    $n^{-4/(d+4)}$.

    Second derivatives are central differences of gradients, by the program of the searches: in
    float32 rounding can hide derivatives at lengthscales far below the spacing of x.
    """
    params, problem = as_numpy_if_concrete(params), searches.problem
    centre = flat_rows(params, 0)
    if problem.box is not None:  # around the point, of half-widths 1: there z = 0 and dθ/dz = 1
        box = Box(*(jax.tree.map(partial(np.add, by), params) for by in (-1, 1)))
        searches = searches._replace(problem=problem._replace(box=box))
        centre = np.zeros_like(centre)
    eps, number = np.finfo(centre.dtype).eps, len(centre)
    aside = eps**0.25 * np.eye(number, dtype=centre.dtype)
    points = np.concatenate([centre[None], centre + aside, centre - aside])
    losses, slopes = (part.astype(float) for part in searches.losses_and_gradients(points))
    if not np.all(np.isfinite(losses)):
        return False
    widths = np.diag(points[1 : number + 1] - points[number + 1 :]).astype(float)
    hessian = (slopes[1 : number + 1] - slopes[number + 1 :]) / widths[:, None]
    curvature, axes = np.linalg.eigh(0.5 * (hessian + hessian.T))
    if curvature[0] <= eps**0.5 * np.abs(losses[0]):
        return False
    step = axes @ ((axes.T @ slopes[0]) / curvature)
    return bool(np.max(np.abs(step)) <= tolerance)
