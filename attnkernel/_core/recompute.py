"""Functions that derivatives run again, instead of saving what they computed."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def recomputed(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Returns the function, of which a derivative saves the arguments alone.

    It is for functions inside a scan, or cheap ones: XLA may share the two computations.
    """
    # Twice: JAX takes a single one apart, and moves the constant arrays of the first run out of a
    # scan around it, where XLA compiles a loop for each.
    return jax.checkpoint(jax.checkpoint(function, prevent_cse=False), prevent_cse=False)
