"""Kernels of the inner product of query and key, and of their sum: the scores of attention.

Their logarithm is any real score. The transformer's is the scaled inner product.
"""

import functools
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import Scalar, as_precision, as_real_array, precise_matmul, require_finite
from .._core.parameters import Number, Parameter, fixed, natural, real
from .._core.tracing import vary_alike
from .._core.validation import as_integer
from ._base import BatchOfKeys, BatchOfQueries, ByMatrix, Embedded, Kernel, Keys, Queries, Scores


def _as_finite_array(name: str, axes: int, values: Any) -> Float[Array, "..."]:
    """Returns the values as a floating array; `ValueError`, with the name of the argument, unless
    it has this number of axes and all its numbers are finite."""
    array = as_real_array(name, values).astype(float)
    if array.ndim != axes:
        shape = "(dim,)" if axes == 1 else "(dim_q, dim_k)"
        raise ValueError(f"{name} must have shape {shape}; got {array.shape}.")
    require_finite(name, jnp.atleast_2d(array))
    return array


class DotProduct(ByMatrix):
    r"""The exponential of the scaled inner product: the kernel of the transformer.

    $$ \log K(q, k) = c\, q \cdot k, \qquad q, k \in \mathbb{R}^d $$

    **Arguments:**

    - `scale`: c, trained if it is given. Default None: fixed at $1/\sqrt d$.
    - `precision`: of the products on accelerators, a `jax.lax.Precision` or its name: "default",
      the fastest, "high" or "highest". Default None: "highest". That of weights and values is
      `precision` of the method.

    **Raises:** `ValueError` if `precision` is another.

    **Source:** Vaswani et al., *Attention is all you need* (2017).

    ```python
    >>> q, k = jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 1.0], [-2.0, 1.0]])
    >>> np.exp(ak.DotProduct().pairwise(q, k)).round(3)
    array([[5.858, 1.   ]], dtype=float32)

    ```
    """

    has_length: ClassVar[bool] = False
    scale_parameter: Parameter | None
    precision: str | None = eqx.field(static=True)

    def __init__(
        self, scale: Number | None = None, *, precision: str | jax.lax.Precision | None = None
    ):
        self.scale_parameter = None if scale is None else real("scale", scale)
        self.precision = as_precision("precision", precision)

    @property
    def scale(self) -> float | Float[Array, "..."] | None:
        r"""The factor c of the inner product; None: $1/\sqrt d$."""
        return None if self.scale_parameter is None else self.scale_parameter.value

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        scale = 1.0 / math.sqrt(q.shape[1]) if self.scale is None else self.scale
        return precise_matmul(q * scale, k.T, self.precision)


class Polynomial(ByMatrix):
    r"""A power of the inner product, even, so that no weight is negative.

    $$ K(q, k) = (c\, q \cdot k + b)^p, \qquad q, k \in \mathbb{R}^d $$

    Where the base is 0 the pair has no weight, and a gradient of 0.

    **Arguments:**

    - `degree`: p, even, from 2. Default 2.
    - `offset`: b, trained if it is given. Default: fixed at 1.
    - `scale`: c, trained if it is given. Default None: fixed at $1/\sqrt d$.

    **Raises:** `ValueError` if `degree` is not even: weights could then be negative.

    ```python
    >>> q, k = jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 1.0], [-2.0, 1.0]])
    >>> np.exp(ak.kernels.Polynomial(2, offset=3.0, scale=1.0).pairwise(q, k)).round(3)
    array([[30.25,  9.  ]], dtype=float32)

    ```
    """

    has_length: ClassVar[bool] = False
    degree: int = eqx.field(static=True)
    offset_parameter: Parameter
    product: DotProduct

    def __init__(self, degree: int = 2, offset: Number = fixed(1.0), scale: Number | None = None):
        self.degree = as_integer("degree", degree, 2)
        if self.degree % 2:
            raise ValueError(
                f"degree must be an even integer, at least 2, so that no weight is negative; got "
                f"{degree!r}. For a score that may be negative use ak.DotProduct()."
            )
        self.offset_parameter = real("offset", offset)
        self.product = DotProduct(scale)

    offset = natural("offset")

    @property
    def scale(self) -> float | Float[Array, "..."] | None:
        r"""The factor c of the inner product; None: $1/\sqrt d$."""
        return self.product.scale

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        base = self.product.pairwise(q, k) + self.offset
        some = base != 0
        log = self.degree * jnp.log(jnp.abs(jnp.where(some, base, 1.0)))
        return jnp.where(some, log, -jnp.inf)


class AdditiveScore(Kernel):
    r"""A perceptron of the sum of query and key.

    $$ \log K(q, k) = w \cdot \tanh(q + k), \qquad q, k, w \in \mathbb{R}^d $$

    With projections before it, `Projected(AdditiveScore(w), query_proj, key_proj)`, it is the score
    of the first attention: $w \cdot \tanh(W_q q + W_k k)$.

    **Arguments:** `weight`: w, shape (dim,), a parameter to fit.

    **Source:** Bahdanau, Cho and Bengio, *Neural machine translation by jointly learning to align
    and translate* (2015).

    ```python
    >>> q, k = jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 1.0], [-2.0, 1.0]])
    >>> np.exp(ak.kernels.AdditiveScore(jnp.array([1.0, -1.0])).pairwise(q, k)).round(3)
    array([[0.914, 0.173]], dtype=float32)

    ```
    """

    has_length: ClassVar[bool] = False
    weight: Float[Array, " dim"] = eqx.field(
        converter=functools.partial(_as_finite_array, "weight", 1)
    )

    def check(self, dim_q: int, dim_k: int) -> None:
        if not dim_q == dim_k == self.weight.shape[0]:
            raise ValueError(
                f"AdditiveScore compares queries and keys of the dimension of its weight, "
                f"{self.weight.shape[0]}; got {dim_q} and {dim_k}. Put projections before it: "
                f"ak.kernels.Projected(ak.kernels.AdditiveScore(weight), query_proj, key_proj)."
            )

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Scalar:
        return jnp.sum(self.weight * jnp.tanh(q + k))

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        """Returns log K of all pairs, summed one coordinate at a time.

        No array of queries x keys x dim is formed.
        """

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def step(scores: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
            weight, q, k = part
            return scores + weight * jnp.tanh(q[:, None] + k[None, :]), None

        start = jnp.zeros((q.shape[0], k.shape[0]), jnp.result_type(q, k, self.weight))
        start = vary_alike(start, q, k, self.weight)
        return jax.lax.scan(step, start, (self.weight.astype(start.dtype), q.T, k.T))[0]


class CosineSimilarity(Embedded):
    r"""The exponential of the cosine of the angle between query and key.

    $$ \log K(q, k) = c\, \frac{q \cdot k}{\|q\| \|k\|}, \qquad q, k \in \mathbb{R}^d $$

    The cosine with the vector 0 is 0, and so is its gradient there.

    **Arguments:** `scale`: c, trained if it is given. Default: fixed at 1.

    ```python
    >>> q, k = jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 1.0], [-2.0, 1.0]])
    >>> np.exp(ak.kernels.CosineSimilarity(2.0).pairwise(q, k)).round(3)
    array([[7.389, 1.   ]], dtype=float32)

    ```
    """

    has_length: ClassVar[bool] = False
    product: DotProduct

    def __init__(self, scale: Number = fixed(1.0)):
        real("scale", scale)  # raises for None, which `DotProduct` takes as 1/√d
        self.product = DotProduct(scale)

    @property
    def scale(self) -> float | Float[Array, "..."] | None:
        """The factor c of the cosine in log K; a number or an array, never None."""
        return self.product.scale

    def embed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple[Kernel, Array, Array]:
        return self.product, _normalise_rows(q), _normalise_rows(k)


class Bilinear(Embedded):
    r"""The exponential of a bilinear form: queries and keys may differ in dimension.

    $$ \log K(q, k) = q^\top M k, \qquad q \in \mathbb{R}^{d_q},\ k \in \mathbb{R}^{d_k} $$

    **Arguments:** `matrix`: M, shape (dim_q, dim_k), a parameter to fit.

    **Source:** "general" in Luong, Pham and Manning, *Effective approaches to attention-based
    neural machine translation* (2015).

    ```python
    >>> q, k = jnp.array([[1.0, 2.0]]), jnp.array([[0.5], [-2.0]])
    >>> ak.kernels.Bilinear(jnp.array([[2.0], [1.0]])).pairwise(q, k)
    Array([[ 2., -8.]], dtype=float32)

    ```
    """

    has_length: ClassVar[bool] = False
    matrix: Float[Array, "dim_q dim_k"] = eqx.field(
        converter=functools.partial(_as_finite_array, "matrix", 2)
    )

    def check(self, dim_q: int, dim_k: int) -> None:
        if (dim_q, dim_k) != self.matrix.shape:
            raise ValueError(
                f"Bilinear's matrix must have shape (dim_q, dim_k) = ({dim_q}, {dim_k}); got "
                f"{self.matrix.shape}."
            )

    def embed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple[Kernel, Array, Array]:
        matrix = self.matrix.astype(q.dtype)
        return DotProduct(fixed(1.0)), precise_matmul(q, matrix), k


def _normalise_rows(x: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
    """Returns x / ‖x‖ of each row, 0 for a row of zeros; no square overflows."""
    most = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    some = most > 0
    unit = jnp.where(some, x / jnp.where(some, most, 1.0), 0.0)
    square = jnp.sum(unit**2, axis=-1, keepdims=True)
    return unit / jnp.sqrt(jnp.where(some, square, 1.0))
