"""Kernel regression whose queries, keys and values are learned projections: a transformer's head
as a regressor."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import as_points, require_finite
from .._core.validation import as_integer, require_function
from ..nn._multihead import MultiheadAttention
from ..priors import Prior
from ..priors._base import require_prior


class LearnedKernelRegression(eqx.Module):
    r"""Multi-head attention from new inputs to labelled ones: the last step of the chain.

    $$ \hat f(x) = \sum_{h=1}^{H} U_h\, \frac{\sum_j w^h_j(x)\, W_v^h z_j}{\sum_j w^h_j(x)}, \qquad
       \log w^h_j(x) = \log K\big(W_q^h \varphi(x),\, W_k^h z_j\big) + \log \pi(i, j) $$

    with $z_j = (\varphi(x_j), y_j)$: queries project the input alone, keys and values the input and
    its label, so that each picks what it needs. By default $\log K = q \cdot k / \sqrt{d_{qk}}$.
    It is called and fitted as `KernelRegression` is; the data are arguments of the call.

    **Arguments:**

    - `dim`: number of inputs x; `out`: of labels. Default 1.
    - `num_heads`, `qk_size`, `vo_size`: H, and the sizes of a head. Defaults: 1, 8, `out`.
    - `embedding`: φ, a function of one input, such as an `eqx.nn.MLP`; trained with the rest.
      Default: the identity. Linear projections of x alone give scores that are linear in x: such a
      head can favour one side of the data, not the neighbours of x, which `Gaussian` does.
    - `options`: further arguments of `MultiheadAttention`: `kernel`, `rule`, `use_output_bias`, ...
    - `key`: a PRNG key.

    **Source:** P. Czyż, *From kernel regression to the transformer* (2024).
    """

    embedding: Callable[[Float[Array, " dim"]], Float[Array, " features"]] | None
    attention: MultiheadAttention

    def __init__(
        self,
        dim: int,
        out: int = 1,
        *,
        num_heads: int = 1,
        qk_size: int = 8,
        vo_size: int | None = None,
        embedding: Callable[[Float[Array, " dim"]], Float[Array, " features"]] | None = None,
        key: PRNGKeyArray,
        **options: Any,
    ):
        dim, out = as_integer("dim", dim, 1), as_integer("out", out, 1)
        if embedding is not None:
            require_function("embedding", embedding)
        self.embedding = embedding
        features = dim
        if embedding is not None:
            found = eqx.filter_eval_shape(
                embedding, jax.ShapeDtypeStruct((dim,), jnp.result_type(float))
            )
            (features,) = found.shape
        self.attention = MultiheadAttention(
            num_heads,
            query_size=features,
            key_size=features + out,
            value_size=features + out,
            output_size=out,
            qk_size=qk_size,
            vo_size=out if vo_size is None else vo_size,
            key=key,
            **options,
        )

    def __call__(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, *, prior: Prior | None = None
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        """Predictions at new inputs from labelled ones.

        **Arguments:**

        - `x_new`: shape (m, dim) or (m,); `x`: shape (n, dim) or (n,).
        - `y`: labels, shape (n,) or (n, out).
        - `prior`: which labels each prediction may see. Default: all.

        **Returns:** shape (m,) or (m, out); NaN where a prediction may see no label.
        """
        queries, rows = self.parts(x_new, x, y)
        if prior is not None:
            require_prior("prior", prior)
        out, empty = self.attention.attended(queries, rows, rows, prior=prior)
        out = jnp.where(empty[:, None], jnp.nan, out)
        return out[:, 0] if np.ndim(y) == 1 else out

    def parts(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike
    ) -> tuple[Float[Array, "m features"], Float[Array, "n size"]]:
        """What is attended from, φ(x_new), and to, (φ(x), y)."""
        queries, inputs = self._embedded("x_new", x_new), self._embedded("x", x)
        labels = as_points("y", y)
        if len(labels) != len(inputs):
            raise ValueError(
                f"x and y must have the same number of rows; got {len(inputs)} inputs and "
                f"{len(labels)} labels."
            )
        require_finite("y", labels)
        return queries, jnp.concatenate([inputs, labels.astype(inputs.dtype)], axis=1)

    def _embedded(self, name: str, x: ArrayLike) -> Float[Array, "rows features"]:
        points = as_points(name, x)
        require_finite(name, points)
        return points if self.embedding is None else jax.vmap(self.embedding)(points)
