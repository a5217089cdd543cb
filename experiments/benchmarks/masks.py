r"""How much of the time of full attention a mask takes, against its share of the pairs.

q, k, v ∈ ℝ^{heads × T × d}, standard normal. Masks and score functions are those of the examples of
flex attention (Dong et al., 2024). The predicted time is that of full attention, times the share of
the pairs that the mask allows.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field, field_validator

import attnkernel as ak

from ..config import NonEmpty
from .attention_contenders import JAX_NN, draw_arrays, jax_nn
from .benchmark import Benchmark, Results
from .driver import Case, Contender, Unavailable, agree, compiled
from .reports import target

OURS, FULL = "masked", "full"
Tokens = Annotated[int, Field(ge=64, le=1_000_000)]


def _neighbourhood(length: int, place: Callable[[Array, int], tuple[Array, Array]]) -> ak.Mask:
    """Returns the mask of keys within reach of a query on a square of tokens; `place`: the row and
    the column of a token, for the side of the square.
    """
    side = math.isqrt(length)
    reach = max(1, side // 10)

    def is_near(i: Array, j: Array) -> Array:
        pairs = zip(place(i, side), place(j, side), strict=True)
        near = [jnp.abs(jnp.clip(a, reach, side - 1 - reach) - b) <= reach for a, b in pairs]
        return near[0] & near[1]

    return ak.priors.MaskFunction(is_near)


def _by_tiles(i: Array, side: int) -> tuple[Array, Array]:
    tile = max(1, side // 8)
    number, within, across = i // tile**2, i % tile**2, side // tile
    return number // across * tile + within // tile, number % across * tile + within % tile


def _documents(length: int) -> ak.priors.Segments:
    lengths = np.random.default_rng(0).multinomial(length, np.full(8, 1 / 8))
    return ak.priors.Segments.from_lengths(lengths)


# priors by example, from the numbers of tokens and of heads; distances are a share of the tokens
EXAMPLES: dict[str, Callable[[int, int], Any]] = {
    "causal": lambda *_: ak.Causal(),
    "window": lambda n, _: ak.Window(n // 16, 0),
    "sliding window": lambda n, _: ak.priors.MaskFunction(
        lambda i, j: (i >= j) & (i - j <= n // 16)
    ),
    "prefix": lambda n, _: ak.priors.Prefix(4 * (n // 16)),
    "documents": lambda n, _: _documents(n),
    "causal documents": lambda n, _: ak.Causal() & _documents(n),
    "ALiBi": lambda _, heads: ak.PerHead(ak.Alibi(heads=heads)),
    "soft cap": lambda *_: ak.priors.ScoreFunction(lambda s, i, j, h: 20.0 * jnp.tanh(s / 20.0)),
    "neighbourhood": lambda n, _: _neighbourhood(n, lambda i, side: (i // side, i % side)),
    "tiled neighbourhood": lambda n, _: _neighbourhood(n, _by_tiles),
    "dilated window": lambda n, _: ak.priors.MaskFunction(
        lambda i, j: (abs(i - j) <= n // 16) & ((i - j) % 4 == 0)
    ),
}
Example: Any = Literal[tuple(EXAMPLES)]


class BenchMasks(Benchmark):
    """Seconds of each mask, of full attention, and of jax.nn with the mask as an array."""

    study: Literal["bench_masks"]
    examples: NonEmpty[Example] = ["causal", "sliding window"]  # pyright: ignore[reportInvalidTypeForm]
    length: Tokens = Field(default=4096, description="T, a square number")
    heads: int = Field(default=8, ge=1, le=1000)
    dim: int = Field(default=64, ge=1, le=1000)
    axes: ClassVar = ("examples",)
    # the first call after one of jax.nn, which takes 2 GiB, takes half as long again
    round_seconds: ClassVar = 1.0
    compared: ClassVar = (OURS, FULL, JAX_NN)

    @field_validator("length")
    @classmethod
    def _is_square(cls, length: int) -> int:
        if math.isqrt(length) ** 2 != length:
            raise ValueError(f"must be a square number, such as 4096; got {length}")
        return length

    def make_case(self, key: PRNGKeyArray, example: str) -> Case:
        """Returns the `Case` that times one example."""
        arrays = draw_arrays(self.heads, self.length, self.dim, self.seed)[:3]
        prior = EXAMPLES[example](self.length, self.heads)
        method = ak.methods.Blockwise()

        def ours(prior: Any) -> Contender:
            parts = {"kernel": ak.DotProduct(), "prior": prior, "method": method}
            return compiled(functools.partial(ak.attend, **parts), *arrays)

        def with_dense_mask() -> Contender:
            if not isinstance(prior, ak.Mask):
                raise Unavailable("it takes a mask as an array; this is a bias or a score function")
            mask = _dense_mask(prior, self.length)
            return compiled(functools.partial(jax_nn, mask=mask[None]), *arrays)

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            same = agree(OURS, 1e-4, (OURS, JAX_NN))(results, row)
            share = share_of_pairs(prior, self.length)
            times = row["median"][OURS] / (share * row["median"][FULL])
            return {**same, "pairs": share, "times_predicted": times}

        contenders = {
            OURS: lambda: ours(prior),
            FULL: lambda: ours(None),
            JAX_NN: with_dense_mask,
        }
        return Case({"example": example}, example, contenders, check)

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The share of pairs that are allowed, and the time over that predicted by it."""
        return {"pairs": f"{row['pairs']:.0%}", "× predicted": f"{row['times_predicted']:.2f}"}

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        times = {row["label"]: row["times_predicted"] for row in results.table}
        yield target("times that the share of pairs predicts", 1.3, times, at_most=True)


def _dense_mask(mask: ak.Mask, length: int) -> Array:
    """Returns the mask of all pairs of tokens."""
    rows = jnp.arange(length)
    return jax.jit(lambda: mask.pairwise(rows, rows) == 0)()


def share_of_pairs(prior: Any, length: int) -> float:
    """Returns the share of pairs that are allowed."""
    return float(np.mean(_dense_mask(prior, length))) if isinstance(prior, ak.Mask) else 1.0
