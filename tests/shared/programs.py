"""Compiled programs: the memory that they need."""

import jax
import jax.numpy as jnp


def temporary_bytes(function, *shapes):
    """The bytes of temporary arrays that the program of a function of float32 arrays allocates."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes
