"""A scan over steps in chunks: one call of one compiled program each, the host in between."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ._options import Options

History = dict[str, Any]
Record = Callable[[Any], History]  # of a model, for the history: `record` of `fit`


def run_chunks(
    advance: Callable[[Any, int], tuple[Any, History]],
    state: Any,
    options: Options,
    is_finished: Callable[[Any], bool],
    done: int = 0,
    histories: Sequence[History] = (),
    save: Callable[..., None] | None = None,
) -> tuple[Any, History]:
    """Returns the state after all steps, or once it is finished, and its history in NumPy arrays.

    `advance`: takes a state and a number of steps, at most those of a chunk; `is_finished`:
    whether a state needs no further step; `done`, `histories`: steps already taken; `save`: takes
    steps, state and history after each chunk, and whether it is the `last`.
    """
    histories, axis = list(histories), state.steps.ndim  # steps follow the axes of fits and starts
    join = lambda *parts: np.concatenate(parts, axis=axis)  # noqa: E731
    while done < options.steps and not is_finished(state):
        taken = min(options.chunk, options.steps - done)
        state, history = advance(state, taken)
        done += taken
        histories.append(jax.tree.map(np.asarray, history))
        if options.callback is not None:
            options.callback(done, histories[-1])
        if save is not None:
            histories = [jax.tree.map(join, *histories)]
            save(done, state, histories[0], last=done >= options.steps or is_finished(state))
    return state, jax.tree.map(join, *histories)
