"""A table of the blocks of pairs in which a prior allows any, computed once for all heads."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..priors import KeyMask, PositionBlock, Prior


class TabulatedPrior(Prior):
    """A prior, and a table of its blocks: its bound on a block without an allowed pair is -inf."""

    prior: Prior
    any_allowed: Bool[Array, "rows columns"]
    sizes: tuple[int, int] = eqx.field(static=True)

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return self.prior.log_pair(i, j)

    def pairwise(
        self, i: Int[Array, " queries"], j: Int[Array, " keys"]
    ) -> Float[Array, "queries keys"]:
        return self.prior.pairwise(i, j)

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        return self.prior.add_to_scores(scores, i, j)

    def may_allow(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.prior.may_allow(i, j)

    @property
    def is_additive(self) -> bool:
        return self.prior.is_additive

    @property
    def needs_block_table(self) -> bool:
        return True

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        row, column = block.i_low // self.sizes[0], block.j_low // self.sizes[1]
        bound = self.prior.score_upper_bound(block)
        return jnp.where(self.any_allowed[row, column], bound, -jnp.inf)

    def as_key_mask(self) -> KeyMask:
        return self.prior.as_key_mask()


def tabulate_blocks(
    prior: Prior | None, queries: int, keys: int, sizes: tuple[int, int]
) -> Prior | None:
    """Returns the prior with a table of which blocks allow any pair, if it needs one.

    Any other prior is returned as it is. `sizes`: the number of queries and of keys of a block.
    Every pair is read once, a block at a time, so that the memory is that of one block.
    """
    if prior is None or not prior.needs_block_table:
        return prior
    if isinstance(prior, TabulatedPrior):
        return prior if prior.sizes == sizes else tabulate_blocks(prior.prior, queries, keys, sizes)
    rows, columns = (
        jnp.arange(-(-count // size)) * size
        for count, size in zip((queries, keys), sizes, strict=True)
    )

    def is_any_allowed(i_low: Array, j_low: Array) -> Bool[Array, ""]:
        # rows of padding repeat the last row
        i = jnp.minimum(i_low + jnp.arange(sizes[0]), queries - 1)
        j = jnp.minimum(j_low + jnp.arange(sizes[1]), keys - 1)
        of_key = jax.vmap(prior.may_allow, in_axes=(0, None))
        allowed = jax.vmap(of_key, in_axes=(None, 0))(i, j)
        # T = 4096: a mask of tiles in 6 ms, `any` in 10; in 14 along keys
        return jnp.max(allowed.astype(jnp.int32)) > 0

    table = jax.lax.map(lambda i: jax.lax.map(lambda j: is_any_allowed(i, j), columns), rows)
    return TabulatedPrior(prior, table, sizes)
