r"""Biases: priors with values other than 0 and 1, from the distance i − j, gates or a table.

A bias adds log π to a score. The temperature of the rule does not divide it.
"""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .._core.arrays import as_real_array, is_concrete, require_finite
from .._core.log_decay import CumulativeDecay, cumulative_decay
from .._core.parameters import Fixed, Number, Parameter, described, fixed, natural, positive, real
from .._core.validation import as_integer, require_bool
from ._base import PositionBlock, Prior, require_entries


class Alibi(Prior):
    r"""A linear decay with the distance: $\log \pi(i, j) = -m\, |i - j|$.

    **Arguments:** one of

    - `slope`: m > 0, trained; fixed, such as `ak.fixed(-0.5)`, it may be any number, and below 0
      favours distant keys.
    - `heads`: the number of heads; their slopes are `alibi_slopes(heads)`, fixed.

    Slopes of heads go into `ak.PerHead(ak.Alibi(heads=8))`; to fit them,
    `ak.PerHead(ak.Alibi(ak.priors.alibi_slopes(8)))`.

    **Raises:** `ValueError` for none or both of the two, or one out of range.

    **Source:** Press, Smith and Lewis, *Train short, test long* (2022).

    ```python
    >>> i = jnp.arange(3)
    >>> ak.Alibi(0.5).pairwise(i, i)
    Array([[-0. , -0.5, -1. ],
           [-0.5, -0. , -0.5],
           [-1. , -0.5, -0. ]], dtype=float32)

    ```
    """

    slope_parameter: Parameter
    __pdoc__ = described

    def __init__(self, slope: Number | None = None, *, heads: int | None = None):
        if heads is not None and slope is None:
            slope = fixed(alibi_slopes(heads))
        elif heads is not None or slope is None:
            raise ValueError("Say one of slope=, such as 0.5, and heads=, their number.")
        if isinstance(slope, Fixed):
            self.slope_parameter = real("slope", slope)
        else:
            hint = "A slope below 0 favours distant keys, and is fixed: ak.fixed(-0.5)."
            self.slope_parameter = positive("slope", slope, hint)

    slope = natural("slope")

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.multiply(self.slope, -jnp.abs(i - j).astype(jnp.result_type(self.slope, float)))

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        nearest, farthest = block.distance_range()
        distance = jnp.where(jnp.asarray(self.slope) >= 0, nearest, farthest)
        return self.log_pair(distance, jnp.zeros_like(distance))


def alibi_slopes(heads: int) -> Float[np.ndarray, " heads"]:
    r"""Returns the slopes $m_h = 2^{-8h/H}$, h = 1 … H, of H heads, where H is a power of two.

    For another H the first P slopes are those of P heads, P the largest power of two below H. The
    other H − P are those of heads 1, 3, 5, … of 2 P heads, as in the paper's code. The result is
    an array of NumPy. `Alibi(heads=H)` holds these slopes fixed, as the paper does.

    **Source:** Press, Smith and Lewis, *Train short, test long* (2022), and its code.

    ```python
    >>> ak.priors.alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625])

    ```
    """
    heads = as_integer("heads", heads, 1)
    power = 2 ** (heads.bit_length() - 1)
    between = np.arange(1, 2 * (heads - power), 2) / 2  # every second head of 2 P
    return 2.0 ** (-8.0 * np.append(np.arange(1, power + 1), between) / power)


class Kerple(Prior):
    r"""A learned decay with the logarithm of the distance: $\log \pi = -r_1 \log(1 + r_2 |i - j|)$.

    **Arguments:** `rate`: $r_1 > 0$. `scale`: $r_2 > 0$. Each is trained if it is given; default,
    fixed at 1.

    **Raises:** `ValueError` if either is not positive.

    **Source:** Chi, Fan, Ramadge and Rudnicky, *KERPLE: kernelized relative positional embedding
    for length extrapolation* (2022), the logarithmic variant.

    ```python
    x = jnp.linspace(0.0, 1.0, 7)[:, None]
    ak.attend(x, x, x, kernel=ak.DotProduct(), prior=ak.priors.Kerple(0.7, 1.3))
    ```
    """

    rate_parameter: Parameter
    scale_parameter: Parameter
    __pdoc__ = described

    def __init__(self, rate: Number = fixed(1.0), scale: Number = fixed(1.0)):
        self.rate_parameter = positive("rate", rate, "Try 1.")
        self.scale_parameter = positive("scale", scale, "Try 1.")

    rate = natural("rate")

    scale = natural("scale")

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        distance = jnp.abs(i - j).astype(jnp.result_type(self.scale, float))
        return -self.rate * jnp.log1p(self.scale * distance)

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        nearest, _ = block.distance_range()
        return self.log_pair(nearest, jnp.zeros_like(nearest))


class RelativeBias(Prior):
    r"""A learned bias for each bucket of distances, as in T5: $\log \pi(i, j) = t_{b(j - i)}$.

    In each direction half of the buckets hold one distance each, from 0 on. The others widen
    logarithmically. All distances from `max_distance` on share the last bucket.

    **Arguments:**

    - `table`: t, one number per bucket, shape (buckets,), a parameter to fit; or the number of
      buckets, for a table of zeros.
    - `max_distance`: default 128.
    - `bidirectional`: whether keys after the query have buckets of their own, half of all. If not,
      they have that of distance 0, and are for a mask to hide. Default: yes.

    **Raises:** `ValueError` for fewer than 4 buckets, an odd number for two directions, a table
    that is not finite, or a `max_distance` that buckets of one distance each already reach.

    **Source:** Raffel et al., *Exploring the limits of transfer learning with a unified
    text-to-text transformer* (2020).

    ```python
    >>> i = jnp.arange(3)
    >>> ak.priors.RelativeBias(jnp.array([0.0, -1.0, 0.0, -2.0]), max_distance=2).pairwise(i, i)
    Array([[ 0., -2., -2.],
           [-1.,  0., -2.],
           [-1., -1.,  0.]], dtype=float32)

    ```
    """

    table: Float[Array, " buckets"]
    max_distance: int = eqx.field(static=True)
    bidirectional: bool = eqx.field(static=True)

    def __init__(
        self, table: ArrayLike | int = 32, max_distance: int = 128, bidirectional: bool = True
    ):
        require_bool("bidirectional", bidirectional)
        if isinstance(table, Sequence | Mapping) or np.ndim(table) or isinstance(table, jax.Array):
            array = as_real_array("table", table).astype(float)
            require_finite("table", jnp.atleast_2d(array))
        else:
            array = jnp.zeros(as_integer("table", table, 4))
        max_distance = as_integer("max_distance", max_distance, 1)
        if array.ndim != 1 or array.shape[0] < 4 or (bidirectional and array.shape[0] % 2):
            raise ValueError(
                f"table must hold one number per bucket, shape (buckets,), at least 4, and an even "
                f"number for two directions; got shape {array.shape}."
            )
        exact = array.shape[0] // (4 if bidirectional else 2)
        if not max_distance > exact:
            raise ValueError(
                f"max_distance must be more than the {exact} distances that have a bucket each; "
                f"got {max_distance}."
            )
        self.table = array
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def bucket(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Int[Array, "..."]:
        """Returns the index in `table` of the bucket of query i and key j."""
        count, offset, distance = self.table.shape[0], 0, i - j
        if self.bidirectional:
            count = count // 2
            offset = jnp.where(distance < 0, count, 0)
            distance = jnp.abs(distance)
        distance = jnp.maximum(distance, 0)
        exact = count // 2
        # where buckets begin, as whole numbers: a logarithm of float32 may put a distance one off
        parts = np.arange(1, count - exact) / (count - exact)
        edges = np.ceil(exact * (self.max_distance / exact) ** parts - 1e-9).astype(int)
        beyond = sum(((distance >= int(edge)).astype(int) for edge in edges), jnp.zeros((), int))
        return offset + jnp.where(distance < exact, distance, exact + beyond)

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return self.table[self.bucket(i, j)]

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        return jnp.max(self.table)


class BiasTable(Prior):
    """A bias that is stored: log π itself. It takes O(queries x keys) memory.

    **Arguments:** `bias`: shape (queries, keys), a parameter to fit; -inf forbids a pair.

    **Raises:** `ValueError` for +inf, NaN, integers and Booleans, or another number of axes.

    ```python
    >>> i = jnp.arange(3)
    >>> ak.priors.BiasTable(jnp.array([[0.0, -1.0, -jnp.inf]] * 3)).pairwise(i, i)
    Array([[  0.,  -1., -inf],
           [  0.,  -1., -inf],
           [  0.,  -1., -inf]], dtype=float32)

    ```
    """

    bias: Float[Array, "queries keys"]

    def __init__(self, bias: ArrayLike):
        hint = "A pair is forbidden by -inf; for a Boolean mask use ak.priors.MaskArray."
        self.bias = _as_log_values("bias", bias, "(queries, keys)", hint)

    def check(self, queries: int, keys: int) -> None:
        require_entries("bias", self.bias, (queries, keys))

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return self.bias[i, j]


class Forget(Prior):
    r"""Causal decay by forget gates: the product of the gates after the key, up to the query's.

    $$ \log \pi(i, j) = \sum_{l = j + 1}^{i} \log f_l, \quad j \le i, \qquad
       \pi(i, j) = 0, \quad j > i $$

    $f_l \in [0, 1]$ is the gate of row l; a gate of 0 hides all earlier rows. Later keys are
    hidden: `Causal()` beside it changes nothing. Softmax attention with gates computed from the
    rows is the forgetting transformer; gates of one value are `Alibi` and `Causal()`.

    **Arguments:** `log_gates`: log f ≤ 0, shape (keys,), a parameter to fit; if a fit moves one
    above 0, it counts as 0. Gates of heads, shape (heads, keys):
    `ak.PerHead(eqx.filter_vmap(ak.priors.Forget)(log_gates))`.

    **Raises:** `ValueError` if a gate is above 1 or NaN, or `log_gates` has not one axis.

    **Source:** Lin, Nikishin, He and Courville, *Forgetting transformer: softmax attention with a
    forget gate* (2025).

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.Forget(jnp.log(jnp.array([0.9, 0.5, 0.25]))).pairwise(i, i))
    array([[1.   , 0.   , 0.   ],
           [0.5  , 1.   , 0.   ],
           [0.125, 0.25 , 1.   ]], dtype=float32)
    >>> ak.priors.Forget(jnp.log(jnp.array([1.0, 0.0, 1.0]))).pairwise(i, i)
    Array([[  0., -inf, -inf],
           [-inf,   0., -inf],
           [-inf,   0.,   0.]], dtype=float32)

    ```
    """

    log_gates: Float[Array, " keys"]

    def __init__(self, log_gates: ArrayLike):
        array = as_real_array("log_gates", log_gates)
        if array.ndim != 1:
            raise ValueError(
                f"log_gates must have one number per key, shape (keys,); got shape {array.shape}. "
                f"For heads: ak.PerHead(eqx.filter_vmap(ak.priors.Forget)(log_gates))."
            )
        if is_concrete(array) and not np.all(np.asarray(array) <= 0):
            raise ValueError(
                f"log_gates must be at most 0, and none NaN; their maximum is "
                f"{np.max(np.asarray(array)):.4g}. Pass logarithms, such as jax.nn.log_sigmoid(x)."
            )
        self.log_gates = array

    def check(self, queries: int, keys: int) -> None:
        if self.log_gates.shape != (keys,) or queries > keys:
            raise ValueError(
                f"log_gates must have one number per key, and each query be one of their rows; got "
                f"shape {self.log_gates.shape} for {queries} queries and {keys} keys."
            )

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        decay, later = self._decay(), jnp.maximum(i, j)  # above the diagonal 0, no derivative
        # of each row the first that it may see: that of the last gate of 0
        first = jax.lax.cummax(jnp.isneginf(self.log_gates) * jnp.arange(len(self.log_gates)))
        hidden = (j > i) | (j < first[i])
        return jnp.where(hidden, -jnp.inf, decay.at(later).minus(decay.at(j)))

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        decay = self._decay()
        nearest = decay.at(block.i_low).minus(decay.at(block.j_high))
        bound = jnp.where(block.i_low > block.j_high, nearest, 0.0)
        return jnp.where(block.i_high < block.j_low, -jnp.inf, bound)

    def key_range(self, first: int, last: int, keys: int) -> range:
        return range(last + 1)

    def _decay(self) -> CumulativeDecay:
        """Returns the cumulative sums of the log-gates; one above 0 counts as 0."""
        return cumulative_decay(jnp.minimum(self.log_gates, 0.0))


class KeyWeights(Prior):
    r"""A weight of each key, the same for all queries: $\log \pi(i, j) = \log r_j$.

    The prior of the retrieval rule $a_j \propto r_j \exp(s_j / \tau)$. A weight of 2 counts a key
    twice, 0 hides it.

    **Arguments:** `log_weights`: log r, shape (keys,), a parameter to fit.

    **Raises:** `ValueError` for +inf, NaN, integers and Booleans, or another number of axes.

    ```python
    >>> i = jnp.arange(3)
    >>> ak.priors.KeyWeights(jnp.array([0.0, 0.5, -jnp.inf])).pairwise(i, i)
    Array([[ 0. ,  0.5, -inf],
           [ 0. ,  0.5, -inf],
           [ 0. ,  0.5, -inf]], dtype=float32)

    ```
    """

    log_weights: Float[Array, " keys"]

    def __init__(self, log_weights: ArrayLike):
        hint = "A key is hidden by -inf."
        self.log_weights = _as_log_values("log_weights", log_weights, "(keys,)", hint)

    def check(self, queries: int, keys: int) -> None:
        require_entries("log_weights", self.log_weights, (keys,))

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return self.log_weights[j]


def _as_log_values(name: str, values: ArrayLike, shape: str, hint: str) -> Float[Array, "..."]:
    """Returns `values`, logarithms that may be -inf, as an array.

    Raises `ValueError` for +inf, NaN or another dtype than floating, and unless there is one axis
    for each name in `shape`, a string such as "(queries, keys)". `hint` ends the error. Traced
    values are not checked.
    """
    array = as_real_array(name, values)
    # Booleans and integers are made floats
    dtype = values.dtype if isinstance(values, jax.Array) else np.asarray(values).dtype
    is_floating = jnp.issubdtype(dtype, jnp.floating)
    if array.ndim != len(shape.rstrip(",)").split(",")) or not is_floating:
        raise ValueError(
            f"{name} must be floating numbers, shape {shape}; got dtype {dtype} and shape "
            f"{array.shape}. {hint}"
        )
    if is_concrete(array) and not np.all(np.asarray(array) < np.inf):
        raise ValueError(f"{name} must be below +inf, and none NaN; got {array!r}. {hint}")
    return array
