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

With one parameter the searches begin at the minima of a grid, finer where the criterion is rough.
Leave-one-out in float64 of 300 rows (uniform, gamma and clustered inputs; 96 data sets of order 0,
192 of order 1), ten starts, against a search from each start, and eleven such searches:

| | ten searches | eleven | this |
|---|---|---|---|
| Gaussian, order 0: evaluations | 11 621 | 12 651 | 2466 |
| Gaussian, order 1: evaluations | 31 474 | 34 034 | 9248 |
| ends more than 0.1 % above the least of the three | 0 | 1 (by 5 %) | 1 (by 18 %) |
| Epanechnikov, order 1: evaluations | 48 042 | 52 559 | 16 728 |
| ends more than 0.1 % above the least of the three | 2 (by 0.3 %) | 0 | 6 (by 2.7 % at most) |

Ends are compared on the same rows (`compare_determined_rows`). The criterion of a compact kernel is
rough: its slope jumps where a row leaves a window.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from .._core.arrays import as_numpy_if_concrete
from .._core.compilation import SMALL_PROGRAM_OPTIONS, can_use_options
from ..objectives import Sample
from ._bfgs import Bfgs
from ._bounds import Box
from ._options import Options
from ._problem import (
    History,
    Problem,
    Record,
    flat_rows,
    run_chunks,
    take,
    unravel_rows,
    vmap_over_fits,
)

# Searches up to this size without fusion emitters take, of the time with them:
# - local linear: 205 rows 0.55 to compile and 1.05 to run, 104 rows 0.55 and 0.95, 260 rows 0.5 and
#   1.07 (1.2 CPU s less, 8 ms a call more), 352 rows 0.5 and 1.04, 500 rows 0.55 and 1.35; in a
#   `PartiallyLinear` of 205 rows 0.7 and 1.1; 800 rows 0.6 (1.7 CPU s less) and 1.5 (0.08 s more),
#   in float64 0.66 and 1.1; local likelihoods of 800 rows 0.5 (5 CPU s less) and 1.2 (0.4 s more)
# - means with a Gaussian: 205 rows 0.55 and 1.3 (0.7 s less, 7 ms more), 104 rows 0.6 and 1.2, in
#   three columns 0.65 and 1.1; with an Epanechnikov kernel 0.6 and 2.4, robust ones 0.65 and 2.0
# - sums on a line by a fast method: local linear with a Gaussian, 13 000 rows 0.6 (7 s less) and 1,
#   300 000 rows 0.5 (14 s less) and 1; means with a Laplace kernel, 13 000 rows 0.65 (3 s less) and
#   1.6 (0.1 s more). In three dimensions they would run 5 times as long, by all pairs on a line 4
#   times, by folds 1.7 times.
# - local linear in three columns: 260 rows 0.55 to compile (1.4 CPU s less) and 1.6 to run (0.9 CPU
#   s more)
# - 442 rows of ten columns: means 0.6 to compile and 1.05 to run, local linear 0.58 and 1.1; both,
#   as a `KernelRegressor` fits them, 10.2 CPU s for 13.3, and when compiled 3.2 for 2.9
MAX_FAST_PAIRS = (2**20, 2**16, 2**16, 2**16, 2**16, 2**18)  # in 1, 2, ..., 6 or more columns


def _advance(
    state: Bfgs,
    problem: Problem,
    tolerance: float,
    record: Record | None,
    steps: int,
    axes: Problem | None,
) -> tuple[Bfgs, History]:
    """Takes `steps` steps of every search; returns the states and the history of these steps.

    `problem`: what is minimised. `tolerance`: a search stops at a gradient below this share of the
    loss (`Bfgs.update`). `axes`: the batched axes of several fits, whose searches are vmapped.
    None: one fit, whose searches run one after the other. `record`: see `fit`.
    """

    def from_starts(state: Bfgs, problem: Problem) -> tuple[Bfgs, History]:
        one = lambda state: _scan_steps(state, problem, tolerance, record, steps)  # noqa: E731
        return jax.lax.map(one, state) if axes is None else eqx.filter_vmap(one)(state)

    return vmap_over_fits(from_starts, axes, 1)(state, problem)


_advance_anywhere = eqx.filter_jit(_advance)
_advance_small = eqx.filter_jit(
    _advance,
    compiler_options=SMALL_PROGRAM_OPTIONS,  # pyright: ignore[reportCallIssue]
)


def _value_and_gradient(loss: Callable[[PyTree], Array], z: PyTree) -> tuple[Array, PyTree]:
    """Returns the loss and its gradient, in one parameter by forward differentiation.

    CPU s, reverse → forward, first call and warm, leave-one-out of order 1 in float64, 13 000 rows
    of one column: Gaussian 18.8 → 12.6 and 1.45 → 0.54, Laplace 29 → 21 and 21 → 13, Epanechnikov
    244 → 154 and 241 → 146; 300 rows the same. In two parameters forward takes 2.7 times as long
    as reverse for 1000 rows of order 0, and the same for 2000 and 6433 rows of order 1.
    """
    flat, unravel = ravel_pytree(z)
    along = lambda move: jax.jvp(lambda flat: loss(unravel(flat)), (flat,), (move,))  # noqa: E731
    if flat.size == 1:
        with contextlib.suppress(TypeError):  # `vmap` raises it: a `custom_vjp` has no such mode
            losses, slope = jax.vmap(along)(np.ones((1, 1), flat.dtype))
            return losses[0], unravel(slope.astype(flat.dtype))
    return jax.value_and_grad(loss)(z)


def _scan_steps(
    state: Bfgs, problem: Problem, tolerance: float, record: Record | None, steps: int
) -> tuple[Bfgs, History]:
    """Takes `steps` steps of one search; a search that has stopped keeps its state.

    Returns the state, and the history: after each step the loss and what `record` returns.
    """
    dtype = jax.eval_shape(problem.loss, state.z).dtype

    def recorded(state: Bfgs) -> History:
        history = {} if record is None else record(problem.model(state.z))
        return history | {"loss": state.loss.astype(dtype)}

    def evaluate(state: Bfgs) -> Bfgs:
        return state.update(*_value_and_gradient(problem.loss, state.trial()), tolerance)

    def step(state: Bfgs, _: None) -> tuple[Bfgs, History]:
        state = jax.lax.cond(state.is_stopped(), lambda state: state, evaluate, state)
        return state, recorded(state)

    return jax.lax.scan(step, state, None, length=steps)


CHUNK_STEPS = 20  # between looks at whether all searches have stopped


class SearchResult(NamedTuple):
    """The initial free variables of searches, their final states, and their histories of steps."""

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
    is_on_line: bool = False  # sums over the rows of one column visit fewer than all pairs

    def start(self) -> Bfgs:
        """Returns the initial states of all searches."""
        return Bfgs.start(as_numpy_if_concrete(self.z), axes=1 if self.axes is None else 2)

    @property
    def num_searches(self) -> int:
        """The number of searches of a single fit; there may be more points to begin at."""
        return min(self.options.starts, len(flat_rows(self.z)))

    def losses_and_gradients(
        self, points: Float[np.ndarray, "points params"]
    ) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, "points params"]]:
        """Returns the loss and its gradient at each row of `points`, vectors of free variables.

        Where they are not finite the loss is infinite and the gradient 0. They are the first step
        of searches from these points, so that nothing else is compiled.
        """
        losses, gradients, number = [], [], self.num_searches
        for begin in range(0, len(points), number):
            rows = points[begin : begin + number]
            is_padding = np.arange(number) >= len(rows)
            padded = np.pad(rows, ((0, number - len(rows)), (0, 0)), mode="edge")
            state = Bfgs.start(unravel_rows(padded, take(0, self.z)))
            state = state._replace(max_steps=np.ones_like(state.max_steps), converged=is_padding)
            end, _ = self.advance(state, self._steps_per_call(), len(points))
            losses.append(np.asarray(end.loss)[~is_padding])
            gradients.append(np.asarray(end.gradient)[~is_padding])
        return np.concatenate(losses), np.concatenate(gradients)

    def has_minimum(self, params: PyTree, tolerance: float) -> bool:
        r"""Whether the loss L has a minimum at parameters θ (not free variables), or near them.

        It has one if the least eigenvalue of $\nabla^2 L / |L|$ is positive beyond rounding, and if
        the Newton step $(\nabla^2 L)^{-1} \nabla L$ changes no parameter by more than `tolerance`.
        The curvature falls with the number of rows: that of a lengthscale in leave-one-out as
        $n^{-4/(d+4)}$.

        Second derivatives are central differences of gradients, by the program of the searches: in
        float32 rounding can hide derivatives at lengthscales far below the spacing of x.
        """
        params, searches = as_numpy_if_concrete(params), self
        centre = flat_rows(params, 0)
        if self.problem.box is not None:  # around the point, half-widths 1: there z = 0, dθ/dz = 1
            box = Box(*(jax.tree.map(partial(np.add, by), params) for by in (-1, 1)))
            searches = self._replace(problem=self.problem._replace(box=box))
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

    def advance(self, state: Bfgs, steps: int, points: int = 0) -> tuple[Bfgs, History]:
        """Returns the states and histories of all searches after at most `steps` more each.

        `points`: the number of points at which losses are evaluated, 0 for a search. More than 100,
        as of a grid, repay optimised code: a `LocalQuantile` of 800 rows takes 49 CPU s a call with
        it, else 64.
        """
        problem, axes = self.problem, self.axes
        most = MAX_FAST_PAIRS[min(problem.x.shape[-1], len(MAX_FAST_PAIRS)) - 1]
        most = min(most, 2**17) if points > 100 else most
        is_small = axes is None and (self.is_on_line or len(problem.x) ** 2 <= most)
        has_options = is_small and can_use_options(problem.x, problem.y)
        advance = _advance_small if has_options else _advance_anywhere
        return advance(state, problem, self.tolerance, self.options.record, steps, axes)

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

        def advance(state: Bfgs, steps: int) -> tuple[Bfgs, History]:
            state, history = self.advance(state, steps)
            history = history if followed is None else take(followed, jax.device_get(history))
            return _stop_highest(state) if keeps_lowest else state, history

        begin, options = state.z, self.options._replace(chunk=self._steps_per_call())
        is_finished = lambda state: bool(np.all(jax.device_get(state).is_stopped()))  # noqa: E731
        end, history = run_chunks(advance, state, options, is_finished)
        if followed is not None:  # on the host: nothing is compiled
            begin, end = take(followed, jax.device_get((begin, end)))
        return SearchResult(begin, end, history)

    def run_lowest(self) -> SearchResult:
        """Runs the searches from the first point, the given model, and from the lowest other ones.

        Every second point is first moved half-way to the first one. Searches with a higher loss
        than others are stopped on the way. If there are no more points than searches, all points
        are starts; with one parameter, a grid comes first (`_run_on_line`).
        """
        points = flat_rows(self.z)
        if self.num_searches == len(points):
            on_line = points.shape[1] == 1 and len(np.unique(points)) > 1
            return self._run_on_line(points[:, 0]) if on_line else self.run(self.start())
        points[2::2] = 0.5 * (points[2::2] + points[:1])
        others = np.argsort(self.losses_and_gradients(points)[0][1:])
        chosen = points[np.append(0, 1 + others[: self.num_searches - 1])]
        state = Bfgs.start(unravel_rows(chosen, take(0, self.z)))
        return self.run(state, keeps_lowest=True)

    def _run_on_line(self, starts: Float[np.ndarray, " starts"]) -> SearchResult:
        """Runs the searches of one parameter, one for all starts that lead to the same minimum.

        Each start goes downhill on a grid to a local minimum of the grid, where its search begins,
        with the curvature by the slopes of the neighbours. The grid holds the starts. A cell is
        halved, at most three times, if its slopes differ in sign from that of the chord, or one is
        over twice as steep. (If at most three times, a cubic is monotone; Fritsch and Carlson,
        *Monotone piecewise cubic interpolation*, 1980.) If a loss is not finite, or all slopes are
        0, a search begins at every start.
        """
        found, added = np.empty((3, 0)), np.unique(starts)
        for _ in range(4):  # the last cells are an eighth of those between starts
            loss, slope = self.losses_and_gradients(added[:, None])
            found = np.append(found, [added, loss, slope[:, 0]], axis=1)
            grid, losses, slopes = found = found[:, np.argsort(found[0])]
            if not np.all(np.isfinite(losses)) or not np.any(slopes):
                return self.run(self.start())
            change, steps = np.diff(losses), np.stack([slopes[:-1], slopes[1:]]) * np.diff(grid)
            is_monotone = np.all((steps * change > 0) & (abs(steps) <= 2 * abs(change)), axis=0)
            added = (0.5 * (grid[1:] + grid[:-1])[~is_monotone]).astype(starts.dtype)
            if not len(added):
                break
        grid, losses, slopes = found
        after, before = np.append(losses[1:], np.inf), np.append(np.inf, losses[:-1])
        downhill = np.argmin([losses, after, before], axis=0)
        ends = np.arange(len(grid)) + np.array([0, 1, -1])[downhill]
        while np.any(ends[ends] != ends):
            ends = ends[ends]
        ends = ends[np.searchsorted(grid, starts)]
        _, first, which = np.unique(ends, return_index=True, return_inverse=True)
        curvature = np.gradient(slopes, grid)[ends]
        inverse = np.divide(1.0, curvature, out=np.ones_like(curvature), where=curvature > 0)
        z, inverse = (part[:, None].astype(starts.dtype) for part in (grid[ends], inverse))
        state = Bfgs.start(unravel_rows(z, take(0, self.z)))._replace(
            inverse=inverse[:, None],
            has_curvature=curvature > 0,
            converged=first[which] != np.arange(len(starts)),
        )
        return self.run(state, first[which])._replace(begin=self.z)

    def of_sample(self, sample: Sample) -> "Searches":
        """Returns the searches on a sample, from the same points, in fewer steps, without `record`
        and callback; their tolerance is at least 10⁻⁵."""
        # at most; a search that still moves then is on a plateau. Whole chunks: a rest of 10 steps
        # would be one more program (13 000 rows of one column: 2.1 CPU s without optimisations)
        steps = min(self.options.steps, CHUNK_STEPS * (1 + flat_rows(self.z).shape[1]))
        silent = self.options._replace(steps=steps, chunk=steps, record=None, callback=None)
        problem = self.problem._replace(**sample._asdict())
        return self._replace(problem=problem, options=silent, tolerance=max(self.tolerance, 1e-5))

    def run_from_sample(self, found: SearchResult, searches: "Searches") -> SearchResult:
        """Runs the searches on all rows from each distinct minimum that a sample has.

        `searches`: those on the sample; `found`: their result. If the loss on all rows is not
        finite at one of the minima, all searches start again from where those on the sample began.
        """
        searched = self.run(*_restart_at_sample_minima(found, searches))
        if np.any(searched.end.diverged):
            searched = self.run(Bfgs.start(found.begin))
        return searched._replace(begin=found.begin)

    def _steps_per_call(self) -> int:
        """Returns the number of steps in each call of the compiled program."""
        return min(self.options.chunk, CHUNK_STEPS, self.options.steps)


def _stop_highest(state: Bfgs) -> Bfgs:
    """Returns the state in which only the lower half of the searches goes on, every 20 steps.

    After 20 r steps the lowest ⌈s / 2ʳ⌉ of s searches go on, at least two. A search that converged
    counts among them.
    """
    here = jax.device_get(state)
    steps, loss, limit = here.steps, here.loss, here.max_steps
    rounds = min(int(np.max(steps)) // CHUNK_STEPS, 30)
    min_searches = 2  # not stopped for a high loss, with several parameters
    kept = max(min_searches, -(-len(loss) // 2**rounds))
    rank = np.argsort(np.argsort(loss, kind="stable"), kind="stable")
    is_dropped = (rank >= kept) & ~here.is_stopped()
    return state._replace(max_steps=np.where(is_dropped, steps, limit))


def _restart_at_sample_minima(
    searched: SearchResult, searches: Searches
) -> tuple[Bfgs, Int[np.ndarray, " starts"]]:
    """Returns states that continue from the sample's distinct minima, and the search of each start.

    `searched`: the result of `searches`, on the sample. The second result holds, for each
    start, the index in the first of the search that it follows.

    One of the searches that meet at a minimum goes on; the others are stopped. A search that ends
    at no minimum, on a plateau of the sample or because it was dropped, follows the best one.
    """
    end, history, box = as_numpy_if_concrete(searched.end), searched.history, searches.problem.box
    params = end.z if box is None else box.constrain(end.z)
    ends, loss = flat_rows(params), np.asarray(history["loss"])[:, -1]
    order = np.argsort(np.where(np.isfinite(loss), loss, np.inf))
    followed = np.arange(len(ends))
    same_minimum = 1e-2  # of a parameter: ends on a sample that are closer count as one
    for rank, i in enumerate(order[1:], 1):
        close = np.max(np.abs(ends[order[:rank]] - ends[i]), axis=1) < same_minimum
        if np.any(close):
            followed[i] = followed[order[np.argmax(close)]]
        elif end.steps[i] >= end.max_steps[i]:  # it was dropped
            followed[i] = order[0]
        else:
            found = searches.has_minimum(take(i, params), same_minimum)
            followed[i] = i if found else order[0]
    # all rows have a similar curvature
    begin = Bfgs.start(end.z)._replace(inverse=end.inverse, has_curvature=end.has_curvature)
    return begin._replace(converged=followed != np.arange(len(ends))), followed
