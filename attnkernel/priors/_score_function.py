r"""Score functions: log-weights that are any function of the score and of its two positions.

A prior adds a term to a score, $\log w = s + \log \pi(i, j)$. Here $\log w = f(s, i, j)$. It is a
prior by its place: methods apply it where they apply masks and biases, block by block, and
positions reach it as they reach those, in caches, packed sequences and on several devices too. A
kernel has no positions: it compares two points.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jaxtyping import Array, Bool, Float, Int

from .._core.compilation import comparable_by_program
from .._core.validation import as_integer, require_function, require_shape
from ._base import Prior, replace_forbidden

ScoreOfPair = Callable[[Array, Array, Array, Array], Array]


class ScoreFunction(Prior):
    r"""Any function of the score, the positions and the head: the `score_mod` of flex attention.

    $$ \log w_{ij} = f(s_{ij}, i, j, h), \qquad s_{ij} = \tfrac1\tau \log K(q_i, k_j) $$

    In a product with other priors, $\log \pi$ of those before it is added to s, and that of those
    after it to f(s). A pair that a mask hides, or to which the kernel gives no weight, stays so.
    Sums stream: f is called for one block of pairs at a time.

    Derivatives pass through f, to the score and to whatever f reads. Parameters to train are the
    arrays of an `equinox.Module` with a `__call__`.

    **Arguments:**

    - `function`: f, from (score, i, j, h), the score of one pair, its positions and the head, to
      the log-weight; all are arrays without axes. -inf gives no weight.
    - `heads`: the number of heads, for `ak.PerHead(ak.priors.ScoreFunction(f, heads=8))`, which
      passes h = 0, 1, ... to f. Arrays of a module have then one entry per head first. Default:
      none; h is 0.

    Supported methods: `Dense`, `Blockwise`, `Sharded`. One product has at most one score function.

    **Raises:** `ValueError` if f does not return one number for one pair.

    **Source:** Dong et al., *Flex attention: a programming model for generating optimized
    attention kernels* (2024).

    ```python
    def capped(score, i, j, h):  # of scores with a bias, below 20
        return 20.0 * jnp.tanh(score / 20.0)

    x = jnp.linspace(-1.0, 1.0, 7)[:, None]
    prior = ak.Causal() * ak.Alibi(0.5) * ak.priors.ScoreFunction(capped)
    weights = ak.attention_weights(x, x, kernel=ak.DotProduct(), prior=prior)
    assert weights.shape == (7, 7)
    ```
    """

    is_additive: ClassVar[bool] = False  # type: ignore[override]

    function: Any
    head: int | Int[Array, "..."]

    def __init__(self, function: ScoreOfPair, *, heads: int | None = None):
        require_function("function", function)
        self.function = function if isinstance(function, eqx.Module) else _OfPair(function)
        self.head = 0 if heads is None else _numbers_of_heads((as_integer("heads", heads, 1),))

    def check(self, queries: int, keys: int) -> None:
        """Raises `ValueError` if it was made with `heads`, and is not in an `ak.PerHead`."""
        if np.ndim(self.head):
            raise ValueError(
                f"A score function of {np.size(self.head)} heads goes into "
                f"ak.PerHead(ak.priors.ScoreFunction(function, heads={np.size(self.head)}))."
            )
        super().check(queries, keys)

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        """Always raises `ValueError`: the log-weight of a pair depends on its score."""
        raise ValueError(
            "A score function has no log π(i, j): its log-weights depend on the score. It is for "
            "ak.attend, attention layers and the predictions of ak.KernelRegression."
        )

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        """$f(s, i, j, h)$ of all pairs; -inf where the score is."""
        return _scores_of_pairs(self, scores, i, j)

    def _of_pair(self, score: Array, i: Array, j: Array) -> Array:
        """Returns f of one pair; `ValueError` unless it is one number."""
        expected, hint = "one number for one pair", "score, i, j and h are single numbers."
        found = self.function(score, i, j, jnp.asarray(self.head))
        return jnp.asarray(require_shape("function", found, (), expected, hint), score.dtype)

    def may_allow(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.array(True)

    def numbered(self, shape: tuple[int, ...]) -> "ScoreFunction":
        """The same function with `head` = 0, 1, … in an array of this shape: the h that each head
        passes to f."""
        return eqx.tree_at(lambda prior: prior.head, self, _numbers_of_heads(shape))

    def comparable(self, dtype: Any) -> "ScoreFunction":
        """Returns the prior with an f that equals all functions with the same program.

        `dtype`: that of the scores. An f that reads arrays of an outer `jit` or `vmap`, or calls
        back into Python, becomes a module of these arrays. Derivatives pass through them. An f that
        is given as a module is unchanged.
        """
        if not isinstance(self.function, _OfPair):
            return self
        integer = jax.ShapeDtypeStruct((), jnp.result_type(int))
        pair = (jax.ShapeDtypeStruct((), dtype), integer, integer, integer)
        given = self.function.function
        function: Any = comparable_by_program(given, *pair)
        if function is given:
            traced = jax.make_jaxpr(lambda *pair: jnp.asarray(given(*pair)))(*pair)
            heads = jnp.shape(self.head)  # each part of an `ak.PerHead` has the arrays
            constants = (jnp.broadcast_to(c, (*heads, *jnp.shape(c))) for c in traced.consts)
            function = _Traced(tuple(constants), traced.jaxpr)
        return eqx.tree_at(lambda prior: prior.head, ScoreFunction(function), self.head)


@eqx.filter_custom_jvp
def _scores_of_pairs(prior: ScoreFunction, scores: Array, i: Array, j: Array) -> Array:
    """Returns f of all pairs; -inf, with derivative 0, where the score is -inf."""
    seen = ~jnp.isneginf(scores)
    over_keys = jax.vmap(prior._of_pair, in_axes=(0, None, 0))
    found = jax.vmap(over_keys, in_axes=(0, 0, None))(jnp.where(seen, scores, 0.0), i, j)
    return jnp.where(seen, found, -jnp.inf)


@_scores_of_pairs.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    prior, scores, i, j = primals
    seen = ~jnp.isneginf(scores)
    scores, *pairs = replace_forbidden(seen, scores, i[:, None], j[None])
    of_pairs = lambda prior, scores: jax.vmap(jax.vmap(prior._of_pair))(scores, *pairs)  # noqa: E731
    change = eqx.filter_jvp(of_pairs, (prior, scores), tangents[:2])[1]
    change = jnp.zeros_like(scores) if change is None else change  # f without a derivative
    return _scores_of_pairs(*primals), jnp.where(seen, change, 0.0)


class _OfPair(eqx.Module):
    """A Python function of (score, i, j, h), held as a static field."""

    function: ScoreOfPair = eqx.field(static=True)

    def __call__(self, score: Array, i: Array, j: Array, h: Array) -> Any:
        return self.function(score, i, j, h)


class _Traced(eqx.Module):
    """A function of a pair as it was traced, and the arrays that it reads, as leaves."""

    constants: tuple[Any, ...]
    jaxpr: Any = eqx.field(static=True)

    def __call__(self, score: Array, i: Array, j: Array, h: Array) -> Array:
        positions = (number.astype(jnp.result_type(int)) for number in (i, j, h))
        return eval_jaxpr(self.jaxpr, self.constants, score, *positions)[0]


def _numbers_of_heads(shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Returns 0, 1, ... in an array of this shape."""
    return jnp.asarray(np.arange(np.prod(shape)).reshape(shape))
