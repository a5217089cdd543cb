"""A scan over steps in chunks: one call of one compiled program each, the host in between."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

State = TypeVar("State")
History = dict[str, Any]
Record = Callable[[Any], History]  # of a model, for the history: `record` of `fit`


def run_chunks(
    advance: Callable[[State, int], tuple[State, History]],
    state: State,
    *,
    steps: int,
    chunk: int,
    done: int = 0,
    is_finished: Callable[[State], bool],
) -> Iterator[tuple[int, State, History]]:
    """Yields (steps done, state, history of the chunk, in NumPy arrays) until all steps are taken
    or the state is finished; nothing if it is at the start.

    `advance`: takes a state and a number of steps; `chunk`: the most steps of one call, of which
    the last takes what is left; `done`: steps already taken; `is_finished`: whether a state needs
    no further step.
    """
    while done < steps and not is_finished(state):
        taken = min(chunk, steps - done)
        state, history = advance(state, taken)
        done += taken
        yield done, state, jax.tree.map(np.asarray, history)


def join_history(histories: Sequence[History], axis: int) -> History:
    """Concatenates the histories of chunks along the axis of steps."""
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=axis), *histories)
