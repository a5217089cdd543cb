"""Kernel regression with learned projections: a transformer's head as a regressor."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.rows import NewInputs, Predictions, Rows
from .._core.validation import as_integer, require_function
from ..attention import PerHead
from ..nn import MultiheadAttention, multiply_priors
from ..priors import Prior
from ._local_regression import OnEmpty, fill_empty, known_policy
from ._smoother import RowsRegression, with_weights


class LearnedKernelRegression(RowsRegression):
    r"""Multi-head attention from new inputs to labelled ones: the last step of the chain.

    $$ \hat f(x) = \sum_{h=1}^{H} U_h\, \frac{\sum_j w^h_j(x)\, W_v^h z_j}{\sum_j w^h_j(x)}, \qquad
       \log w^h_j(x) = \log K\big(W_q^h \varphi(x),\, W_k^h z_j\big) + \log \pi(i, j) $$

    with $z_j = (\varphi(x_j), y_j)$: queries project the input, keys and values project the input
    and its label. By default $\log K = q \cdot k / \sqrt{d_{qk}}$. It is called and fitted as
    `KernelRegression` is; the data are arguments of the call. Called with `weights`, they multiply
    the $w^h_j(x)$ of all heads.

    **Arguments:**

    - `dim`: number of inputs x; `out`: of labels. Default 1.
    - `num_heads`, `qk_size`, `vo_size`: H, and the sizes of a head. Defaults: 1, 8, `out`.
    - `embedding`: φ, a function of one input, such as an `eqx.nn.MLP`; trained with the rest.
      Default: the identity. Linear projections of x give scores that are linear in x: such a head
      weighs one side of the data, not the neighbours of x, unless `kernel` is local (`Gaussian`).
    - `on_empty`: as in `KernelRegression`, where no head sees a label. Default: `"nan"`.
    - `options`: further arguments of `MultiheadAttention`: `kernel`, `rule`, `use_output_bias`, ...
    - `key`: a PRNG key.

    **Raises:** `ValueError` for sizes that are not whole numbers from 1, an unknown policy, or
    `"nearest"` and `"mean"` with a prior for each head.

    **Source:** P. Czyż, *From kernel regression to the transformer* (2024).

    ```python
    x = np.linspace(0.0, 1.0, 50)
    model = ak.LearnedKernelRegression(1, kernel=ak.Gaussian(1.0), key=jax.random.PRNGKey(0))
    print(model(np.array([0.25, 0.5]), x, np.sin(6 * x)))
    ```
    """

    embedding: Callable[[Float[Array, " dim"]], Float[Array, " features"]] | None
    attention: MultiheadAttention
    on_empty: OnEmpty = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        out: int = 1,
        *,
        num_heads: int = 1,
        qk_size: int = 8,
        vo_size: int | None = None,
        embedding: Callable[[Float[Array, " dim"]], Float[Array, " features"]] | None = None,
        on_empty: OnEmpty = "nan",
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
        self.on_empty = known_policy(on_empty)
        if isinstance(self.attention.prior, PerHead) and on_empty in ("nearest", "mean"):
            raise ValueError(
                f"on_empty={on_empty!r} needs one prior for all heads: it answers with labels that "
                f"a query may see, and heads with priors of their own see different ones."
            )

    def predict(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Predictions:
        """Predictions from checked data."""
        prior = with_weights(prior, rows)
        queries, keys = self._project_inputs(q, rows)
        out, empty = self.attention.attended(queries, keys, keys, prior=prior)
        seen = multiply_priors(self.attention.prior, prior)
        return rows.shaped(fill_empty(out, empty, q, rows, seen, self.on_empty))

    def attention_inputs(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike
    ) -> tuple[Float[Array, "m features"], Float[Array, "n size"]]:
        """The queries φ(x_new) of the attention, and its keys and values (φ(x), y)."""
        return self._project_inputs(*self.read(x_new, x, y))

    def _project_inputs(
        self, q: NewInputs, rows: Rows
    ) -> tuple[Float[Array, "m features"], Float[Array, "n size"]]:
        """Returns φ(q), and the matrix [φ(x), y] of keys and labels; `size`: features + out."""
        k = rows.x
        if self.embedding is not None:
            q, k = jax.vmap(self.embedding)(q), jax.vmap(self.embedding)(k)
        return q, jnp.concatenate([k, rows.y.astype(k.dtype)], axis=1)
