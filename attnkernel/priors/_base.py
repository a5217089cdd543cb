"""A prior is log π(i, j) of ONE pair of positions: query i and key j, as indices.

Masks are its 0/1 case, closed under `&`, `|` and `~`. Priors of any kind multiply, as kernels do:
`first * second`. To add a prior, subclass `Prior` and write
`log_pair`; to add a mask, subclass `Mask` and write `allows`. Indices count the rows of q and of k
in one call; `AtPositions` puts any prior at other positions.
"""

import abc
import bisect
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.validation import require_instance, require_shape
from ._pair_mask import PairMask


class PositionBlock(NamedTuple):
    """All pairs with i_low ≤ i ≤ i_high and j_low ≤ j ≤ j_high.

    ```python
    >>> block = ak.priors.PositionBlock(i_low=0, i_high=3, j_low=8, j_high=11)
    >>> [int(distance) for distance in block.distance_range()]
    [5, 11]

    ```
    """

    i_low: Int[Array, ""] | int
    i_high: Int[Array, ""] | int
    j_low: Int[Array, ""] | int
    j_high: Int[Array, ""] | int

    def distance_range(self) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """The least and the greatest |i − j|."""
        i_low, i_high, j_low, j_high = self
        least = jnp.maximum(jnp.maximum(j_low - i_high, i_low - j_high), 0)
        return least, jnp.maximum(j_high - i_low, i_high - j_low)


class Prior(eqx.Module):
    r"""A non-negative weight $\pi(i, j)$ of a pair of positions, held as its logarithm.

    ```python
    class Decay(ak.priors.Prior):
        rate: float

        def log_pair(self, i, j):
            return -self.rate * jnp.abs(i - j)

    i = jnp.arange(3)
    assert Decay(0.5).pairwise(i, i)[0, 2] == -1.0
    ```
    """

    @property
    def is_additive(self) -> bool:
        """Whether log-weights are scores plus log π(i, j). False for a `ScoreFunction`, and for a
        prior that holds one."""
        return all(part.is_additive for part in self._parts())

    @property
    def needs_block_table(self) -> bool:
        """Whether `score_upper_bound` may miss blocks without an allowed pair: `Blockwise` then
        reads every pair once in a call, for all heads, and skips these blocks.

        True for a mask that does not define `any_allowed`, and for a prior that holds one.
        """
        return any(part.needs_block_table for part in self._parts())

    def _parts(self) -> "list[Prior]":
        """Returns the priors that this one holds directly, also those of an `ak.PerHead`."""
        is_part = lambda node: isinstance(node, Prior) and node is not self  # noqa: E731
        return [part for part in jax.tree.leaves(self, is_leaf=is_part) if is_part(part)]

    @abc.abstractmethod
    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        """$\\log \\pi(i, j)$ of query i and key j.

        A prior that is or holds a `ScoreFunction` raises `ValueError`.
        """

    def check(self, queries: int, keys: int) -> None:
        """Raises `ValueError` if the prior, or a prior within it, does not fit these numbers of
        queries and keys."""
        for part in self._parts():
            part.check(queries, keys)

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        """A number that log π(i, j) does not exceed for i_low ≤ i ≤ i_high, j_low ≤ j ≤ j_high.

        -inf: no pair of the block is allowed, and the block is skipped. Default: +inf, no bound.
        """
        return jnp.full((), jnp.inf)

    def key_range(self, first: int, last: int, keys: int) -> range | None:
        """Returns the range of keys outside which queries `first` to `last` (included) see none.

        `keys`: the number of keys. The range may pass 0 or `keys`: its caller cuts it. Default: all
        keys. None: the range is not known before a call, as for a mask without `any_allowed`, or
        `score_upper_bound` excludes many more keys.

        `Blockwise` may sum over a range of up to 4096 keys at once. For None it streams.
        """
        return range(keys)

    def may_allow(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        """False only if the pair has no weight, whatever its score: by default if log π is -inf."""
        return ~jnp.isneginf(self.log_pair(i, j))

    def pair_mask(self) -> PairMask:
        """Returns the factors of the mask, which `Fourier`, `Sorted`, `Linear` and `Fused` need.

        Default: a `PairMask` whose `unsupported_reason` is the name of the class, for a prior that
        is no such mask.
        """
        return PairMask(unsupported_reason=type(self).__name__)

    def pairwise(
        self, i: Int[Array, " queries"], j: Int[Array, " keys"]
    ) -> Float[Array, "queries keys"]:
        """$\\log \\pi(i, j)$ of all pairs of the given indices.

        Raises `ValueError` if `log_pair`, or `allows` of a mask, does not return one number.
        """

        def pair(i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
            return _require_scalar(f"{type(self).__name__}.log_pair", self.log_pair(i, j))

        return jax.vmap(jax.vmap(pair, in_axes=(None, 0)), in_axes=(0, None))(i, j)

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        """Scores plus $\\log \\pi(i, j)$ of all pairs; -inf where log π is, also for a NaN score.

        `scores`: shape (queries, keys); `i`, `j`: positions, shapes (queries,) and (keys,).
        """
        log_prior = self.pairwise(i, j)
        return jnp.where(jnp.isneginf(log_prior), -jnp.inf, scores + log_prior)

    def __mul__(self, other: "Prior") -> "Product":
        return Product(self, other) if isinstance(other, Prior) else NotImplemented


def replace_forbidden(allowed: Bool[Array, "queries keys"], *values: Array) -> list[Array]:
    """Returns each of `values` with its entries at forbidden pairs replaced, shape (queries, keys).

    They become the entry at one allowed pair, as a constant; 0 if no pair is allowed. A function
    of a pair is then evaluated only at allowed pairs, where its derivatives are finite.
    """
    keys = allowed.shape[1]
    number = jnp.arange(allowed.shape[0])[:, None] * keys + jnp.arange(keys)[None]
    last = jnp.max(jnp.where(allowed, number, -1))
    row, column = jnp.maximum(last, 0) // keys, jnp.maximum(last, 0) % keys

    def replaced(values: Array) -> Array:
        values = jnp.broadcast_to(values, allowed.shape)
        of_allowed = jax.lax.stop_gradient(values)[row, column]
        return jnp.where(allowed, values, jnp.where(last < 0, 0, of_allowed))

    return [replaced(each) for each in values]


class Product(Prior):
    r"""$\log \pi(i, j) = \log \pi_1(i, j) + \log \pi_2(i, j)$, written `first * second`.

    Either may be an `ak.PerHead` of priors. One may be a `ScoreFunction`, or hold one: `first` is
    then applied to the score, and `second` to the result.

    ```python
    >>> i = jnp.arange(3)
    >>> (ak.Causal() * ak.Alibi(0.5)).pairwise(i, i)
    Array([[ 0. , -inf, -inf],
           [-0.5,  0. , -inf],
           [-1. , -0.5,  0. ]], dtype=float32)

    ```
    """

    first: Any
    second: Any

    def __check_init__(self):
        require_prior("first", self.first)
        require_prior("second", self.second)
        if not any(map(_is_additive, (self.first, self.second))):
            raise ValueError(
                "first and second must not both have a score function. Make one of the two: "
                "lambda s, i, j, h: g(f(s, i, j, h), i, j, h)."
            )

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        first, second = self.first.log_pair(i, j), self.second.log_pair(i, j)
        # a forbidden pair is so whatever the other says, +inf and NaN included
        forbidden = jnp.isneginf(first) | jnp.isneginf(second)
        return jnp.where(forbidden, -jnp.inf, jnp.where(forbidden, 0.0, first) + second)

    def pairwise(
        self, i: Int[Array, " queries"], j: Int[Array, " keys"]
    ) -> Float[Array, "queries keys"]:
        return _pairs_of_product(self, i, j)

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        """Returns the scores after `first`, then `second`; -inf for a pair that either forbids."""
        if self.is_additive:
            return super().add_to_scores(scores, i, j)
        over_keys = jax.vmap(self.may_allow, in_axes=(None, 0))
        allowed = jax.vmap(over_keys, in_axes=(0, None))(i, j)  # by the factors after, too
        scores = self.first.add_to_scores(jnp.where(allowed, scores, -jnp.inf), i, j)
        return jnp.where(jnp.isneginf(scores), -jnp.inf, self.second.add_to_scores(scores, i, j))

    def may_allow(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.first.may_allow(i, j) & self.second.may_allow(i, j)

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        first, second = self.first.score_upper_bound(block), self.second.score_upper_bound(block)
        none = jnp.isneginf(first) | jnp.isneginf(second)
        return jnp.where(none, -jnp.inf, jnp.where(none, 0.0, first + second))

    def key_range(self, first: int, last: int, keys: int) -> range | None:
        return _intersect(
            *(key_range_of(part, first, last, keys) for part in (self.first, self.second))
        )

    def pair_mask(self) -> PairMask:
        return pair_mask_of(self.first).intersect(pair_mask_of(self.second))


@eqx.filter_custom_jvp
def _pairs_of_product(
    prior: Product, i: Int[Array, " queries"], j: Int[Array, " keys"]
) -> Float[Array, "queries keys"]:
    """Returns log π of all pairs. Its derivative at a forbidden pair is 0, even where a factor has
    an infinite or NaN derivative."""
    return Prior.pairwise(prior, i, j)


@_pairs_of_product.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    prior, i, j = primals
    out = _pairs_of_product(*primals)
    allowed = ~jnp.isneginf(out)
    pairs = replace_forbidden(allowed, i[:, None], j[None])
    log_pairs = lambda prior: jax.vmap(jax.vmap(prior.log_pair))(*pairs)  # noqa: E731
    change = eqx.filter_jvp(log_pairs, (prior,), tangents[:1])[1]
    return out, jnp.where(allowed, change, 0.0).astype(out.dtype)


class Mask(Prior):
    """A prior that is 0 or 1: True = query i attends to key j.

    ```python
    class Even(ak.Mask):
        def allows(self, i, j):
            return j % 2 == 0

    x = jnp.zeros((3, 1))
    assert ak.attention_weights(x, x, kernel=ak.Gaussian(1.0), prior=Even())[0, 1] == 0.0
    ```
    """

    @abc.abstractmethod
    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether query i may see key j."""

    def any_allowed(self, block: PositionBlock) -> Bool[Array, ""] | bool:
        """False only if no pair with i_low ≤ i ≤ i_high, j_low ≤ j ≤ j_high is allowed.

        Default: True. If it returns a `bool` for a block of Python integers, `key_range` finds the
        keys that queries see by it.
        """
        return True

    @property
    def needs_block_table(self) -> bool:
        return type(self).any_allowed is Mask.any_allowed or super().needs_block_table

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        return jnp.where(self.any_allowed(block), 0.0, -jnp.inf)

    def key_range(self, first: int, last: int, keys: int) -> range | None:
        """Returns the range from the first to the last key that `any_allowed` shows the queries.

        The search is by bisection. None: `any_allowed` is not defined or returns no `bool`, or the
        mask holds arrays.
        """

        any_allowed = type(self).any_allowed  # Equinox binds a method anew at each access

        def is_seen(j_low: int, j_high: int) -> Any:
            return any_allowed(self, PositionBlock(first, last, j_low, j_high))

        has_arrays = any(map(eqx.is_array, jax.tree.leaves(self)))
        if self.needs_block_table or has_arrays or not isinstance(is_seen(0, keys - 1), bool):
            return None
        start = bisect.bisect_left(range(keys), True, key=lambda j: is_seen(0, j))
        stop = bisect.bisect_left(range(keys), True, key=lambda j: not is_seen(j, keys - 1))
        return range(start, stop)

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.where(self._checked_allows(i, j), 0.0, -jnp.inf)

    def may_allow(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self._checked_allows(i, j)

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        over_keys = jax.vmap(self._checked_allows, in_axes=(None, 0))
        return jnp.where(jax.vmap(over_keys, in_axes=(0, None))(i, j), scores, -jnp.inf)

    def _checked_allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        """Returns `allows(i, j)`; `ValueError` if it has axes. Its dtype is not checked."""
        return _require_scalar(f"{type(self).__name__}.allows", self.allows(i, j))

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> "Mask":
        return Not(self)


class _Pair(Mask):
    """A mask made of two masks: the base of `And` and `Or`."""

    first: Mask
    second: Mask

    def __check_init__(self):
        require_instance("first", self.first, Mask, "ak.Causal()")
        require_instance("second", self.second, Mask, "ak.Causal()")


class And(_Pair):
    """True where both masks are; written `first & second`.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp((ak.Causal() & ak.priors.ExcludeSelf()).pairwise(i, i))
    array([[0., 0., 0.],
           [1., 0., 0.],
           [1., 1., 0.]], dtype=float32)

    ```
    """

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.logical_and(self.first.allows(i, j), self.second.allows(i, j))  # of 0 and 1, too

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        return self.second.add_to_scores(self.first.add_to_scores(scores, i, j), i, j)

    def any_allowed(self, block: PositionBlock) -> Bool[Array, ""] | bool:
        return self.first.any_allowed(block) & self.second.any_allowed(block)

    def key_range(self, first: int, last: int, keys: int) -> range | None:
        return _intersect(
            self.first.key_range(first, last, keys), self.second.key_range(first, last, keys)
        )

    def pair_mask(self) -> PairMask:
        return self.first.pair_mask().intersect(self.second.pair_mask())


class Or(_Pair):
    """True where either mask is; written `first | second`.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp((ak.Causal() | ak.Window(0, 1)).pairwise(i, i))
    array([[1., 1., 0.],
           [1., 1., 1.],
           [1., 1., 1.]], dtype=float32)

    ```
    """

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.logical_or(self.first.allows(i, j), self.second.allows(i, j))

    def any_allowed(self, block: PositionBlock) -> Bool[Array, ""] | bool:
        return self.first.any_allowed(block) | self.second.any_allowed(block)


class Not(Mask):
    """True where the mask is not; written `~mask`.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp((~ak.Causal()).pairwise(i, i))
    array([[0., 1., 1.],
           [0., 0., 1.],
           [0., 0., 0.]], dtype=float32)
    >>> np.exp((~ak.priors.MaskFunction(lambda i, j: i - j)).pairwise(i, i))  # 0 is False
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]], dtype=float32)

    ```
    """

    mask: Mask

    def __check_init__(self):
        require_instance("mask", self.mask, Mask, "ak.Causal()")

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.logical_not(self.mask.allows(i, j))


def require_prior(name: str, prior: Any) -> None:
    """Raise `ValueError` unless it is a prior, or an `ak.PerHead` of priors."""
    example = "ak.Causal(), or for an array ak.priors.MaskArray(mask)"
    require_instance(name, getattr(prior, "stack", prior), Prior, example)


def _is_additive(prior: Any) -> bool:
    """Whether a prior, or an `ak.PerHead` of priors, adds log π to scores."""
    return getattr(prior, "stack", prior).is_additive


def _require_scalar(method: str, result: Any) -> Any:
    """Returns the result of a method for one pair of positions (i, j); `ValueError`, with the name
    of the method, unless it is one number."""
    expected = "one number for one pair (i, j)"
    return require_shape(method, result, (), expected, "i and j are single positions.")


def pair_mask_of(prior: Any) -> PairMask:
    """Returns `prior.pair_mask()`. For None, without a prior, this is the mask of all pairs; for
    an `ak.PerHead`, a `PairMask` with an `unsupported_reason`."""
    if prior is None:
        return PairMask()
    if isinstance(prior, Prior):
        return prior.pair_mask()
    return PairMask(unsupported_reason=type(prior).__name__)


def key_range_of(prior: Any, first: int, last: int, keys: int) -> range | None:
    """Returns `prior.key_range(first, last, keys)`. For None, without a prior, these are all keys;
    for an `ak.PerHead` the result is None: not known."""
    if prior is None:
        return range(keys)
    return prior.key_range(first, last, keys) if isinstance(prior, Prior) else None


def _intersect(first: range | None, second: range | None) -> range | None:
    """Returns the keys in both ranges; None if either is not known."""
    if first is None or second is None:
        return None
    return range(max(first.start, second.start), min(first.stop, second.stop))


def require_entries(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Raises `ValueError` unless an array of a prior has one entry per key, or per pair."""
    if array.shape != shape:
        per = "key" if len(shape) == 1 else "query and key"
        raise ValueError(f"{name} must have one entry per {per}, shape {shape}; got {array.shape}.")
