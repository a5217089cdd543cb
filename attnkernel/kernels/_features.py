r"""Kernels of finite rank, $K(q, k) = \varphi(q) \cdot \varphi(k)$, and random features of others.

Features are held as a logarithm and a factor, $\varphi_m = g_m e^{a_m}$, so that none over- or
underflows before the largest is known.
"""

import abc
import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import precise_matmul
from .._core.tracing import any_in_batch
from .._core.validation import as_integer, require_bool, require_key
from ._base import ByMatrix, Keys, Queries, Scores
from ._inner import DotProduct
from ._radial_kernels import Gaussian


class Features(NamedTuple):
    """$\\varphi_m(x) = g_m e^{a_m}$ of each row: `log` holds a, `factor` holds g.

    ```python
    >>> ak.kernels.EluFeatures().features(jnp.array([[0.0, -2.0]]))
    Features(log=Array([[ 0., -2.]], dtype=float32), factor=Array([[1., 1.]], dtype=float32))

    ```
    """

    log: Float[Array, "rows features"]
    factor: Float[Array, "rows features"]


class FiniteRank(ByMatrix):
    r"""A kernel that is an inner product of features: its sums factorise, in O(n + m) time.

    To add one, write `features`, and K of all pairs as `pairwise`. `method=ak.methods.Linear()`
    sums by the features; `Auto` never takes it.

    ```python
    class Affine(ak.kernels.FiniteRank):  # K = 1 + q · k
        def features(self, x):
            factor = jnp.concatenate([jnp.ones_like(x[:, :1]), x], axis=1)
            return ak.kernels.Features(jnp.zeros_like(factor), factor)

        def pairwise(self, q, k):
            return jnp.log(1.0 + q @ k.T)

    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    out = ak.attend(x, x, x, kernel=Affine(), method=ak.methods.Linear())
    assert jnp.allclose(out, ak.attend(x, x, x, kernel=Affine()), atol=1e-5)
    ```
    """

    has_length: ClassVar[bool] = False

    @abc.abstractmethod
    def features(self, x: Float[Array, "rows dim"]) -> Features:
        """φ(x) of each row."""


class EluFeatures(FiniteRank):
    r"""The kernel of linear attention, $K = \varphi(q) \cdot \varphi(k)$ with φ = elu + 1.

    $$ \log \varphi(x) = x\ (x \le 0), \quad \log(1 + x)\ (x > 0), \qquad q, k \in \mathbb{R}^d $$

    **Source:** Katharopoulos et al., *Transformers are RNNs* (2020).

    ```python
    >>> q, k = jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 1.0], [-2.0, 1.0]])
    >>> np.exp(ak.kernels.EluFeatures().pairwise(q, k)).round(3)
    array([[9.   , 6.271]], dtype=float32)

    ```
    """

    def features(self, x: Float[Array, "rows dim"]) -> Features:
        log = jnp.where(x > 0, jnp.log1p(jnp.maximum(x, 0.0)), x)
        return Features(log, jnp.ones_like(log))

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        a, b = self.features(q).log, self.features(k).log
        high_a, high_b = (jax.lax.stop_gradient(jnp.max(x, axis=1, keepdims=True)) for x in (a, b))
        products = precise_matmul(jnp.exp(a - high_a), jnp.exp(b - high_b).T)
        some = products > jnp.finfo(products.dtype).tiny

        def by_feature() -> Float[Array, "queries keys"]:
            def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
                return jnp.logaddexp(total, columns[0][:, None] + columns[1][None, :]), None

            first = a[:, :1] + b[:, :1].T
            return jax.lax.scan(jax.checkpoint(add), first, (a.T[1:], b.T[1:]))[0]

        def at_once() -> Float[Array, "queries keys"]:
            return jnp.log(jnp.where(some, products, 1.0)) + high_a + high_b.T

        # a product that underflows is summed anew, one feature at a time
        return jax.lax.cond(any_in_batch(~jnp.all(some)), by_feature, at_once)


class Taylor(FiniteRank):
    r"""The exponential to second order: $K = 1 + s + s^2 / 2$, $s = q \cdot k / \sqrt d$.

    It is at least ½, so that every key has weight.

    **Source:** Zhang et al., *The hedgehog and the porcupine* (2024).

    ```python
    >>> q, k = jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 1.0], [-2.0, 1.0]])
    >>> np.exp(ak.kernels.Taylor().pairwise(q, k)).round(3)
    array([[4.33, 1.  ]], dtype=float32)

    ```
    """

    def features(self, x: Float[Array, "rows dim"]) -> Features:
        x = x / math.sqrt(math.sqrt(x.shape[1]))
        squares = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1) / math.sqrt(2.0)
        factor = jnp.concatenate([jnp.ones_like(x[:, :1]), x, squares], axis=1)
        return Features(jnp.zeros_like(factor), factor)

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        scores = DotProduct().pairwise(q, k)
        return jnp.log1p(scores + 0.5 * scores**2)


class RandomFeatures(eqx.Module):
    r"""Features whose inner product is on average a Gaussian kernel, or that of the dot product.

    With u the point in the units of the kernel, $K = e^{-|u_q - u_k|^2/2}$ or $e^{u_q \cdot u_k}$,
    and ω standard normal,

    $$ \varphi_m(u) = M^{-1/2} e^{\omega_m \cdot u - |u|^2}, \qquad
       \varphi_m(u) = M^{-1/2} \big(\cos \omega_m \cdot u,\ \sin \omega_m \cdot u\big) $$

    are its positive and its trigonometric features (of the dot product times $e^{|u|^2/2}$). The
    error of a weight falls as $M^{-1/2}$. Positive features never give a negative weight. Their
    variance, for independent ω, is $K^2 (e^{|u_q + u_k|^2} - 1) / M$ for the Gaussian, and so
    small only where points are within a lengthscale or two of the origin: centre x first, and
    take trigonometric ones where it spans many lengthscales.

    **Arguments:**

    - `count`: M. `dim`: of the points.
    - `positive`: which of the two. Default: positive.
    - `orthogonal`: whether ω are orthogonal in groups of `dim`, for less variance. Default: yes.
    - `key`: a PRNG key.

    **Source:** Rahimi and Recht, *Random features for large-scale kernel machines* (2007);
    Choromanski et al., *Rethinking attention with performers* (2021).

    ```python
    q, k = jnp.array([[0.0, 0.5]]), jnp.array([[0.5, 0.5], [-1.0, 0.0]])
    features = ak.kernels.RandomFeatures(2000, 2, key=jax.random.PRNGKey(0))
    out = ak.attend(q, k, k, kernel=ak.Gaussian(1.0), method=ak.methods.Linear(features))
    assert jnp.allclose(out, ak.attend(q, k, k, kernel=ak.Gaussian(1.0)), atol=0.1)
    ```
    """

    directions: Float[Array, "count dim"]
    positive: bool = eqx.field(static=True)

    def __init__(
        self,
        count: int,
        dim: int,
        *,
        positive: bool = True,
        orthogonal: bool = True,
        key: PRNGKeyArray,
    ):
        count, dim = as_integer("count", count, 1), as_integer("dim", dim, 1)
        require_bool("positive", positive)
        require_bool("orthogonal", orthogonal)
        require_key("key", key)
        of_rows, of_lengths = jax.random.split(key)
        if orthogonal:
            groups = -(-count // dim)
            rows = jax.random.orthogonal(of_rows, dim, (groups,)).reshape(-1, dim)[:count]
            lengths = jnp.linalg.norm(jax.random.normal(of_lengths, (count, dim)), axis=1)
            self.directions = rows * lengths[:, None]
        else:
            self.directions = jax.random.normal(of_rows, (count, dim))
        self.positive = positive

    def __call__(self, u: Float[Array, "rows dim"], gaussian: bool) -> Features:
        """Returns the features of points u, which are in the units of the kernel.

        `gaussian`: True for the Gaussian kernel, False for the dot product. There are M positive
        features, or 2 M trigonometric ones: first the cosines, then the sines.
        """
        directions = jax.lax.stop_gradient(self.directions).astype(u.dtype)
        angles = precise_matmul(u, directions.T)
        half = 0.5 * jnp.sum(u * u, axis=1, keepdims=True)
        scale = -0.5 * math.log(directions.shape[0])
        if self.positive:
            log = angles - half * (2.0 if gaussian else 1.0) + scale
            return Features(log, jnp.ones_like(log))
        factor = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
        log = jnp.zeros_like(half) if gaussian else half
        return Features(jnp.broadcast_to(log + scale, factor.shape), factor)


def in_units(
    kernel: Gaussian | DotProduct,
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    temperature: ArrayLike,
) -> tuple[Float[Array, "queries dim"], Float[Array, "keys dim"]]:
    """Returns $u_q$ and $u_k$, the queries and keys in the units of the kernel.

    For a Gaussian $\\log K / \\tau = -|u_q - u_k|^2 / 2$, for a dot product it is $u_q \\cdot u_k$,
    with τ the temperature.
    """
    root = jnp.sqrt(jnp.asarray(temperature, q.dtype))
    if isinstance(kernel, Gaussian):
        return kernel.in_lengthscales(q) / root, kernel.in_lengthscales(k) / root
    scale = 1.0 / math.sqrt(q.shape[1]) if kernel.scale is None else kernel.scale
    scale = jnp.asarray(scale, q.dtype)
    # both are multiplied by √|c|, with c the scale; q also by the sign of c, and by 0 for c = 0
    size = jnp.abs(scale)
    half = jnp.sqrt(jnp.where(size > 0, size, 1.0))
    return q * jnp.where(size > 0, scale / half, scale) / root, k * half / root
