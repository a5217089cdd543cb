"""How the starts of a fit ended: the result of each, in numbers and in words; the best one."""

import enum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._core.arrays import AnyArray, namespace_of, to_jax
from ..objectives import Objective
from ._problem import History, Problem, take


class Result(enum.IntEnum):
    """How one start of a fit ended; `message` says it in a sentence.

    ```python
    >>> ak.fitting.Result(3).name
    'MAX_STEPS'
    >>> ak.fitting.Result.MAX_STEPS.message
    'the search had not converged when its steps were used up: raise steps=.'
    ```
    """

    CONVERGED = 0
    AT_BOUND = 1
    NO_SLOPE = 2
    MAX_STEPS = 3
    DIVERGED = 4
    TRAINED = 5
    PRUNED = 6

    @property
    def message(self) -> str:
        """The meaning of the result, in a sentence."""
        return MESSAGES[self]


MESSAGES = {
    Result.CONVERGED: "the search converged inside its bounds.",
    Result.AT_BOUND: (
        "the best value found lies on a bound: the objective may fall further beyond it."
    ),
    Result.NO_SLOPE: "the objective has no slope in a parameter, as with weights of 0 and 1.",
    Result.MAX_STEPS: "the search had not converged when its steps were used up: raise steps=.",
    Result.DIVERGED: (
        "the loss or its gradient was not finite; the last parameters for which they were are "
        "kept. Likely causes: (a) a learning rate too large, (b) a query without neighbours, (c) "
        "as many parameters as rows, (d) numbers too large for the precision of y."
    ),
    Result.TRAINED: "all steps of the given optimiser were taken.",
    Result.PRUNED: "the search was stopped early: other starts had a lower loss.",
}


class Starts(eqx.Module):
    """Where each start of a fit began and ended; every leaf has a leading axis of starts.

    `result` holds the codes of `Result`. `edges` and `without_slope` have the structure of the
    model's parameters: −1 where a parameter ended on its lower bound, 1 on its upper, 0 inside;
    True where the objective has no slope in a parameter at any start. None: it was not examined.

    ```python
    >>> code, loss, no = jnp.array([0, 3]), jnp.array([0.1, 0.2]), jnp.array([False, False])
    >>> ak.fitting.Starts(None, None, loss, jnp.array([9, 100]), code, no).converged
    Array([ True, False], dtype=bool)
    ```
    """

    begin: Any  # models
    end: Any  # models
    loss: Float[Array, "*fits starts"]
    steps: Int[Array, "*fits starts"]
    result: Int[Array, "*fits starts"]
    at_bound: Bool[Array, "*fits starts"]  # whether any parameter ended on a bound
    edges: Any = None
    without_slope: Any = None

    @property
    def converged(self) -> Bool[Array, "*fits starts"]:
        """Whether the search met its tolerance, inside the bounds or on one."""
        return (self.result == Result.CONVERGED) | (self.result == Result.AT_BOUND)

    @property
    def diverged(self) -> Bool[Array, "*fits starts"]:
        """Whether the loss or its gradient was not finite."""
        return self.result == Result.DIVERGED


class Outcome(NamedTuple):
    """The result of a driver: the best model, its loss and history, and all starts."""

    model: Any
    loss: Float[Array, ""]
    history: History
    starts: Starts
    objective: Objective


def collect_outcome(
    problem: Problem,
    begin: PyTree,
    end: PyTree,
    loss: Float[AnyArray, " starts"],
    steps: Int[AnyArray, " starts"],
    result: Int[AnyArray, " starts"],
    history: History,
    without_slope: Any = None,
) -> Outcome:
    """Returns the `Outcome` of one fit; the best start has the least finite loss.

    `begin`, `end`: the free variables (see `Box`) of all starts, before and after;
    `without_slope`: see `Starts`. A start that converged on the edge of the box ends as `AT_BOUND`;
    `edges` of the starts says on which. The arguments may be NumPy arrays: nothing is then
    compiled.
    """
    box, xp = problem.box, namespace_of(loss)
    edges = None if box is None else box.edges(box.constrain(end))
    at_bound = xp.zeros(loss.shape, bool)
    for leaf in jax.tree.leaves(edges):
        at_bound |= xp.any(xp.reshape(leaf, (len(loss), -1)) != 0, axis=-1)
    result = xp.where((result == Result.CONVERGED) & at_bound, Result.AT_BOUND, result)
    result = result.astype(np.int32)  # which a program without x64 reads as it is
    models = problem.models(begin), problem.models(end)
    best = xp.argmin(xp.where(xp.isfinite(loss), loss, xp.inf))
    model, least, history = to_jax(take(best, (models[1], loss, history)))
    of_starts = (*models, loss, steps, result, at_bound, edges, without_slope)
    return Outcome(model, least, history, Starts(*to_jax(of_starts)), problem.objective)
