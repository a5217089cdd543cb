"""The compiled program of searches: a scan over steps of BFGS for each start."""

import equinox as eqx
import jax
import jax.numpy as jnp

from .._core.compiler_options import FORWARD_OPTIONS, GRADIENT_OPTIONS, can_use_options
from ._bfgs import Bfgs
from ._chunks import History, Record
from ._problem import Problem, vmap_over_fits

# Searches up to this size without fusion emitters take, of the time with them:
# - local linear: 205 rows 0.55 to compile and 1.05 to run, 104 rows 0.55 and 0.95, 500 rows 0.55
#   and 1.35; in a `PartiallyLinear` of 205 rows 0.7 and 1.1
# - means with a Gaussian: 205 rows 0.55 and 1.3 (0.7 s less, 7 ms more), 104 rows 0.6 and 1.2, in
#   three columns 0.65 and 1.1; with an Epanechnikov kernel 0.6 and 2.4, robust ones 0.65 and 2.0
MAX_FAST_PAIRS = 2**16


def advance_searches(
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
    advance = _advance_anywhere
    if axes is None and can_use_options(problem.x, problem.y):
        is_small = len(problem.x) ** 2 <= MAX_FAST_PAIRS
        advance = _advance_compiled_fast if is_small else _advance_on_cpu
    return advance(state, problem, tolerance, record, steps, axes)


def _advance(
    state: Bfgs,
    problem: Problem,
    tolerance: float,
    record: Record | None,
    steps: int,
    axes: Problem | None,
) -> tuple[Bfgs, History]:
    """Returns the result of `advance_searches`."""

    def from_starts(state: Bfgs, problem: Problem) -> tuple[Bfgs, History]:
        one = lambda state: _scan_steps(state, problem, tolerance, record, steps)  # noqa: E731
        return jax.lax.map(one, state) if axes is None else eqx.filter_vmap(one)(state)

    return vmap_over_fits(from_starts, axes, 1)(state, problem)


_advance_anywhere = eqx.filter_jit(_advance)
_advance_on_cpu, _advance_compiled_fast = (
    eqx.filter_jit(_advance, compiler_options=options)  # pyright: ignore[reportCallIssue]
    for options in (GRADIENT_OPTIONS, FORWARD_OPTIONS)
)


def _scan_steps(
    state: Bfgs, problem: Problem, tolerance: float, record: Record | None, steps: int
) -> tuple[Bfgs, History]:
    """Takes this number of steps in one search; returns its state and the loss after each step."""
    dtype = jax.eval_shape(problem.loss, state.z).dtype

    def recorded(state: Bfgs) -> History:
        history = {} if record is None else record(problem.model(state.z))
        return history | {"loss": state.loss.astype(dtype)}

    def step(state: Bfgs, _: None) -> tuple[Bfgs, History]:
        state = jax.lax.cond(
            state.is_stopped(),
            lambda state: state,
            lambda state: _search_step(state, problem, tolerance),
            state,
        )
        return state, recorded(state)

    def all_steps(state: Bfgs) -> tuple[Bfgs, History]:
        return jax.lax.scan(step, state, None, length=steps)

    def no_step(state: Bfgs) -> tuple[Bfgs, History]:
        repeat = lambda leaf: jnp.broadcast_to(leaf, (steps, *leaf.shape))  # noqa: E731
        return state, jax.tree.map(repeat, recorded(state))

    return jax.lax.cond(state.is_stopped(), no_step, all_steps, state)


def _search_step(state: Bfgs, problem: Problem, tolerance: float) -> Bfgs:
    """Returns the state of a search after its trial point is evaluated."""
    found, slope = jax.value_and_grad(problem.loss)(state.trial())
    return state.update(found, slope, tolerance)
