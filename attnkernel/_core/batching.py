"""Decisions of members of a batch taken together."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


@jax.custom_batching.custom_vmap
def for_any(needed: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether any member of a batch needs a branch that harms none: the others take it as well.

    A `cond` whose predicate is batched runs both of its branches, and has no gradient.
    """
    return needed


@for_any.def_vmap
def _(size: int, batched: list[bool], needed: Bool[Array, " batch"]) -> tuple[Array, bool]:
    return for_any(jnp.any(needed)), False
