"""One decision for all elements of a batch: inside `vmap`, a scalar predicate over all of them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


@jax.custom_batching.custom_vmap
def any_in_batch(needed: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether any batch element needs a branch that is correct, if slower, for all of them.

    Under `vmap` the result is not batched, so that a `cond` on it stays a `cond`: with a batched
    predicate JAX runs both branches.
    """
    return needed


@any_in_batch.def_vmap
def _any_in_batch_vmap(
    size: int, batched: list[bool], needed: Bool[Array, " batch"]
) -> tuple[Array, bool]:
    """Returns whether any element of `needed` is true, and False: the result has no batch axis.
    JAX calls it under `vmap`, with the batch size and which arguments are batched."""
    return any_in_batch(jnp.any(needed)), False
