"""Functions that derivatives run again, instead of saving what they computed."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def rematerialised(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Returns the function; its derivatives save only its arguments, and run it again.

    For functions inside a scan and cheap ones: elsewhere XLA may merge the two runs.
    """
    # Twice: JAX inlines a single checkpoint, and moves the constant arrays of the first run out of
    # the scan around it; XLA then compiles a loop for each of them.
    return jax.checkpoint(jax.checkpoint(function, prevent_cse=False), prevent_cse=False)
