"""Programs: the operations that they hold, and the memory that they need."""

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params


def temporary_bytes(function, *shapes):
    """The bytes of temporary arrays that the program of a function of float32 arrays allocates."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def operations(jaxpr, skipped=()):
    """All operations, and those within them; not those within operations of the skipped names."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name not in skipped:
            for inner in jaxprs_in_params(equation.params):
                yield from operations(inner, skipped)
