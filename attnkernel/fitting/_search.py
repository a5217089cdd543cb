r"""Searches from several starts: scans of BFGS steps in one compiled program, run in chunks.

With several parameters the searches begin at the given model and at the lowest of many points.
Every second point is half-way to the given model. Every 20 steps the higher half is stopped, until
two go on. Leave-one-out in float64, 47 data sets of 2 to 12 columns and 20 to 442 rows (real ones
of scikit-learn and simulated ones), ten starts, against those without either:

| | all searches of 64 points a parameter | this |
|---|---|---|
| evaluations | 75 566 | 23 659 |
| loss, geometric mean | 1 | 1.00004 |
| above the other's by more than 0.1 % | 1 (by 3 %) | 1 (by 3 %) |

Without either, on 60 rows and 5 lengthscales, 60 data sets with order 1 and 40 with order 0: an end
counts as missed if it is more than 1 % above the best of all that were tried; the excess is a mean
over the 60.

| starts, points | time | missed of 100 | excess |
|---|---|---|---|
| 10 of 80 | 0.75 | 36 | 11 % |
| 10 of 320 | 1 | 36 | 8 % |
| 60 of 240 | 4.3 | 26 | 7 % |
| 4 of 160, then twice 3 of 160 on lines through the best end | 1 | 39 | 10 % |
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree

from .._core.host_arrays import as_numpy_if_concrete
from ..objectives import Sample
from ._bfgs import Bfgs
from ._chunks import History, join_history, run_chunks
from ._minima import is_minimum
from ._options import Options
from ._problem import Problem, flat_rows, take, unravel_rows
from ._search_program import advance_searches

POINTS_PER_PARAMETER = 32
POINTS_PER_START = 4  # at least
MAX_POINTS = 256
CHUNK_STEPS = 20  # between looks at whether all searches have stopped
MIN_SEARCHES = 2  # not stopped for a high loss, with several parameters
SAMPLE_TOLERANCE = 1e-5
# at most, on a sample; a search that still moves then is on a plateau
SAMPLE_STEPS, SAMPLE_STEPS_PER_PARAMETER = 30, 15
SAME_MINIMUM = 1e-2  # of a parameter: ends on a sample that are closer count as one


def count_points(starts: int, parameters: int) -> int:
    """Returns how many points are evaluated to choose this number of starts."""
    return max(POINTS_PER_START * starts, min(POINTS_PER_PARAMETER * parameters, MAX_POINTS))


class SearchResult(NamedTuple):
    """Where searches began, where they ended, and their histories of steps."""

    begin: PyTree
    end: Bfgs
    history: History


class Searches(NamedTuple):
    """Searches from several starts of one problem, or with `axes` of several fits."""

    problem: Problem
    options: Options
    tolerance: float  # a search stops at a gradient below this share of the loss
    z: PyTree  # the free variables of all starts, stacked (behind the axis of fits)
    axes: Problem | None = None

    def start(self) -> Bfgs:
        """Returns the initial states of all searches."""
        if self.axes is None:
            return Bfgs.start(self.z)
        return Bfgs.start(as_numpy_if_concrete(self.z), axes=2)

    @property
    def number(self) -> int:
        """The number of searches of a single fit; there may be more points to begin at."""
        return min(self.options.starts, len(flat_rows(self.z)))

    def losses_and_gradients(
        self, points: Float[np.ndarray, "points params"]
    ) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, "points params"]]:
        """Returns the loss and its gradient at each row of `points`, vectors of free variables.

        Where they are not finite the loss is infinite and the gradient 0. They are the first step
        of searches from these points, so that nothing else is compiled.
        """
        losses, gradients, number = [], [], self.number
        for begin in range(0, len(points), number):
            rows = points[begin : begin + number]
            is_padding = np.arange(number) >= len(rows)
            padded = np.pad(rows, ((0, number - len(rows)), (0, 0)), mode="edge")
            state = Bfgs.start(unravel_rows(padded, take(0, self.z)))
            state = state._replace(max_steps=np.ones_like(state.max_steps), converged=is_padding)
            end, _ = self.advance(state, self._steps_per_call())
            losses.append(np.asarray(end.loss)[~is_padding])
            gradients.append(np.asarray(end.gradient)[~is_padding])
        return np.concatenate(losses), np.concatenate(gradients)

    def advance(self, state: Bfgs, steps: int) -> tuple[Bfgs, History]:
        """Returns the states and histories of all searches after at most `steps` more each."""
        record = self.options.record
        return advance_searches(state, self.problem, self.tolerance, record, steps, self.axes)

    def run(
        self,
        state: Bfgs,
        followed: Int[np.ndarray, " starts"] | None = None,
        keeps_lowest: bool = False,
    ) -> SearchResult:
        """Runs all searches on the host, in chunks, until they stop or their steps are taken.

        `followed`: which searches are returned, and shown to the callback. Default: all.
        `keeps_lowest`: whether the higher ones are stopped on the way, by `_stop_highest`.
        """
        histories, callback, steps = [], self.options.callback, self.options.steps
        begin, end = state.z, state

        def advance(state: Bfgs, steps: int) -> tuple[Bfgs, History]:
            state, history = self.advance(state, steps)
            return _stop_highest(state) if keeps_lowest else state, history

        chunks = run_chunks(
            advance, state, steps=steps, chunk=self._steps_per_call(), is_finished=_all_stopped
        )
        for done, end, history in chunks:  # noqa: B007
            histories.append(history if followed is None else take(followed, history))
            if callback is not None:
                callback(done, histories[-1])
        if followed is not None:  # on the host: nothing is compiled
            begin, end = take(followed, jax.device_get((begin, end)))
        return SearchResult(begin, end, join_history(histories, axis=state.steps.ndim))

    def run_lowest(self) -> SearchResult:
        """Runs the searches from the first point and from the lowest other ones.

        Every second point is moved half-way to the first one. Where points were chosen, searches
        that are higher than others are stopped on the way.
        """
        points = flat_rows(self.z)
        if self.number == len(points):
            return self.run(self.start())
        points[2::2] = 0.5 * (points[2::2] + points[:1])
        others = np.argsort(self.losses_and_gradients(points)[0][1:])
        chosen = points[np.append(0, 1 + others[: self.number - 1])]
        state = Bfgs.start(unravel_rows(chosen, take(0, self.z)))
        return self.run(state, keeps_lowest=True)

    def run_from_sample(self, sample: Sample) -> SearchResult:
        """Runs to the minima of a sample first, then on from each different minimum.

        All begin anew if these minima are outside the domain of all rows.
        """
        further = flat_rows(self.z).shape[1] - 1
        steps = min(self.options.steps, SAMPLE_STEPS + SAMPLE_STEPS_PER_PARAMETER * further)
        silent = self.options._replace(steps=steps, chunk=steps, record=None, callback=None)
        problem = self.problem._replace(**sample._asdict())
        tolerance = max(self.tolerance, SAMPLE_TOLERANCE)
        searches = Searches(problem, silent, tolerance, self.z)
        found = searches.run_lowest()
        searched = self.run(*_restart_at_sample_minima(found, searches))
        if np.any(searched.end.diverged):
            searched = self.run(Bfgs.start(found.begin))
        return searched._replace(begin=found.begin)

    def _steps_per_call(self) -> int:
        """Returns the number of steps in each call of the compiled program."""
        return min(self.options.chunk, CHUNK_STEPS, self.options.steps)


def _all_stopped(state: Bfgs) -> bool:
    """Whether all searches have converged or diverged; needs concrete arrays (outside `jit`)."""
    return bool(np.all(jax.device_get(state).is_stopped()))


def _stop_highest(state: Bfgs) -> Bfgs:
    """Returns the state in which only the lower half of the searches goes on, every 20 steps.

    After 20 r steps the lowest ⌈s / 2ʳ⌉ of s searches go on, at least two. A search that converged
    counts among them.
    """
    here = jax.device_get(state)
    steps, loss, limit = here.steps, here.loss, here.max_steps
    rounds = min(int(np.max(steps)) // CHUNK_STEPS, 30)
    kept = max(MIN_SEARCHES, -(-len(loss) // 2**rounds))
    rank = np.argsort(np.argsort(loss, kind="stable"), kind="stable")
    is_dropped = (rank >= kept) & ~here.is_stopped()
    return state._replace(max_steps=np.where(is_dropped, steps, limit))


def _restart_at_sample_minima(
    searched: SearchResult, searches: Searches
) -> tuple[Bfgs, Int[np.ndarray, " starts"]]:
    """Returns states that continue from the sample's distinct minima, and the search of each start.

    `searched`: the ends of `searches`, on the sample; the second result holds indices of the first.

    One of the searches that meet at a minimum goes on; the others are stopped. A search that ends
    at no minimum, on a plateau of the sample or because it was dropped, follows the best one.
    """
    end, history, box = as_numpy_if_concrete(searched.end), searched.history, searches.problem.box
    params = end.z if box is None else box.inside(end.z)
    ends, loss = flat_rows(params), np.asarray(history["loss"])[:, -1]
    is_dropped = end.steps >= end.max_steps
    order = np.argsort(np.where(np.isfinite(loss), loss, np.inf))
    followed = np.arange(len(ends))
    for rank, i in enumerate(order[1:], 1):
        close = np.max(np.abs(ends[order[:rank]] - ends[i]), axis=1) < SAME_MINIMUM
        if np.any(close):
            followed[i] = followed[order[np.argmax(close)]]
        elif is_dropped[i]:
            followed[i] = order[0]
        else:
            found = is_minimum(searches, take(i, params), SAME_MINIMUM)
            followed[i] = i if found else order[0]
    return end.restart()._replace(converged=followed != np.arange(len(ends))), followed
