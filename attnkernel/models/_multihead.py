"""Several kernel regressions at once, and a free linear combination of them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray, as_real_array, require_finite
from .._core.rows import Inputs, NewInputs, Predictions, Rows
from ..attention import Auto, PerHead, attend, batch_shape, first_head
from ..kernels import Kernel, category_counts
from ..methods import Method
from ..priors import Prior
from ..rules import Rule, Softmax
from ._local_regression import OnEmpty, fill_empty, known_policy
from ._smoother import RowsRegression, require_parts, with_bounds_of, with_weights


class MultiheadKernelRegression(RowsRegression):
    r"""A linear combination of kernel regressions of order 0, one for each head.

    $$ \hat f(x) = \sum_{h=1}^{H} u_h \hat f_h(x), \qquad u \in \mathbb{R}^H $$

    $\hat f_h$ is the Nadaraya–Watson estimator with the h-th kernel. The coefficients u are free:
    they may be negative, and need not sum to one. Called with `weights`, they multiply the kernels.

    **Arguments:**

    - `kernel`, `rule`: as in `attend`, at least one of them a `PerHead` with one axis, of H heads.
    - `coefficients`: u, shape (heads,). Default: 1/H each.
    - `method`, `on_empty`: as in `KernelRegression`, the same for all heads.

    **Raises:** `ValueError` unless there is one axis of heads, and one coefficient for each.

    **Source:** P. Czyż, *From kernel regression to the transformer* (2024).

    ```python
    kernels = ak.PerHead(eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 8)))
    model = ak.MultiheadKernelRegression(kernels)
    print(model(*map(np.array, ([0.5], [0.0, 1.0], [1.0, 3.0]))))
    ```
    """

    kernel: Kernel | PerHead
    coefficients: Float[Array, " heads"]
    rule: Rule | PerHead
    method: Method
    on_empty: OnEmpty = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel | PerHead,
        coefficients: ArrayLike | None = None,
        *,
        rule: Rule | PerHead = Softmax(),
        method: Method = Auto(),
        on_empty: OnEmpty = "nan",
    ):
        require_parts(first_head(kernel), first_head(rule), method)
        shape = batch_shape((kernel, None, rule))
        if len(shape) != 1:
            raise ValueError(
                f"kernel or rule must be an ak.PerHead with one axis of heads, such as "
                f"ak.PerHead(eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 8))); got "
                f"{kernel!r} and {rule!r}."
            )
        (heads,) = shape
        if coefficients is None:
            coefficients = jnp.full(heads, 1.0 / heads, float)
        else:
            coefficients = as_real_array("coefficients", coefficients).astype(float)
            require_finite("coefficients", jnp.atleast_2d(coefficients))
        if coefficients.shape != (heads,):
            raise ValueError(
                f"coefficients must have shape (heads,) = ({heads},); got {coefficients.shape}."
            )
        self.kernel = kernel
        self.coefficients = coefficients
        self.rule = rule
        self.method = method
        self.on_empty = known_policy(on_empty)

    def heads(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "heads m"] | Float[Array, "heads m out"]:
        """The prediction of each head alone; arguments as for `KernelRegression`."""
        return self._predict_heads(*self.read(x_new, x, y, weights), prior)

    def _predict_heads(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Array:
        """Returns the predictions of heads from checked data."""
        prior = with_weights(prior, rows)
        parts = {"kernel": self.kernel, "prior": prior, "rule": self.rule, "method": self.method}
        out, log_mass = attend(q, rows.x, rows.y, **parts, return_log_mass=True)

        def fill(out: Array, log_mass: Array) -> Array:
            return fill_empty(out, jnp.isneginf(log_mass), q, rows, prior, self.on_empty)

        return rows.shaped(jax.vmap(fill)(out, log_mass).astype(q.dtype))

    def predict(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Predictions:
        """Predictions from checked data."""
        heads = self._predict_heads(q, rows, prior)
        precision = jax.lax.Precision.HIGHEST
        return jnp.tensordot(self.coefficients, heads, axes=1, precision=precision).astype(
            heads.dtype
        )

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns the `category_counts` of the kernel, the same for all heads."""
        return category_counts(first_head(self.kernel), dim)

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """The box for a fit, as two models: the kernels' `search_box(x)`, the coefficients free."""
        if not isinstance(self.kernel, PerHead):
            return with_bounds_of("kernel", self, self.kernel.search_box(x, weights))
        box = eqx.filter_vmap(lambda kernel: kernel.search_box(x, weights))(self.kernel.stack)
        return with_bounds_of("kernel", self, (PerHead(box[0]), PerHead(box[1])))
