"""Which searches go on: starts screened by their loss, and merged by the minima of a sample."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from ..objectives._objective import Sample
from ._basins import lowest_of_basins
from ._bfgs import Bfgs
from ._grid import rows
from ._minima import is_bowl, least_curvature_and_newton_step
from ._options import Options
from ._problem import Problem, take
from ._search import CHUNK_STEPS, advance_searches, run_searches, take_compiled

SAMPLE_TOLERANCE = 1e-5
SAMPLE_STEPS = 30  # at most; a search that still moves then is on a plateau
SAME_MINIMUM = 1e-2  # of a parameter: ends on a sample that are closer count as one


class Searches(NamedTuple):
    """The states of all searches, and for each start of the fit the search that it follows."""

    state: Bfgs
    followed: Int[np.ndarray, " starts"]


def screen(
    state: Bfgs, problem: Problem, options: Options, tolerance: float, number: int
) -> Searches:
    """Evaluates the objective at all points, and goes on from the first and the lowest basins.

    The evaluation is one step of the compiled search: nothing else is compiled.
    """
    one_step = state._replace(max_steps=jnp.ones_like(state.max_steps))
    chunk = min(CHUNK_STEPS, options.steps)
    end, _ = advance_searches(one_step, problem, tolerance, options.record, chunk, None)
    points, loss = rows(state.z)[1:], np.asarray(end.loss)[1:]
    chosen = np.append(0, 1 + lowest_of_basins(points, loss, number - 1))
    skipped = ~np.isin(np.arange(len(state.converged)), chosen)
    return Searches(state._replace(converged=state.converged | skipped), chosen)


def meet_on_sample(
    searches: Searches, problem: Problem, sample: Sample, options: Options, tolerance: float
) -> Searches:
    """Moves the searches to the minima of the sample; of those that meet, one goes on.

    A search that ends at no minimum, on a plateau of the sample, follows the best one.
    """
    on_sample = problem._replace(**sample._asdict())
    options = options._replace(
        steps=min(options.steps, SAMPLE_STEPS), chunk=CHUNK_STEPS, record=None, callback=None
    )
    state, followed = searches
    end, history = run_searches(state, on_sample, options, tolerance, followed=followed)
    z = end.z if problem.box is None else jax.vmap(problem.box.inside)(end.z)
    ends, loss = rows(z), history["loss"][:, -1]
    order = np.argsort(np.where(np.isfinite(loss), loss, np.inf))
    follows = np.arange(len(ends))
    for rank, i in enumerate(order[1:], 1):
        close = np.max(np.abs(ends[order[:rank]] - ends[i]), axis=1) < SAME_MINIMUM
        if np.any(close):
            follows[i] = follows[order[np.argmax(close)]]
        else:
            model = problem.model(take(i, end.z))
            curvature, distance = least_curvature_and_newton_step(model, *sample)
            is_minimum = is_bowl(curvature) and distance < SAME_MINIMUM
            follows[i] = i if is_minimum else order[0]
    merged = jnp.asarray(follows != np.arange(len(ends)))
    restarted = _restart(end)
    return Searches(restarted._replace(converged=merged), follows)


_restart = jax.vmap(Bfgs.restart)


def select_starts(searches: Searches) -> Any:
    """Returns the free variables at which the followed searches begin."""
    return take_compiled(searches.followed, searches.state.z)
