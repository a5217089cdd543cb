"""Kernel regression as Equinox modules: attention from new inputs to labelled ones."""

from typing import Literal, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._attend import attend
from .._auto import Auto
from .._checks import as_points
from .._rules import Rule, Softmax
from ..kernels import Kernel, unbounded
from ..methods import Method
from ..priors import Prior

OnEmpty = Literal["nan", "nearest", "mean", "raise"]


class KernelRegression(eqx.Module):
    r"""The Nadaraya–Watson estimator: the mean of labels, weighted by a kernel.

    $$ \hat f(x) = \frac{\sum_j K(x, x_j)\, \pi(i, j)\, y_j}{\sum_j K(x, x_j)\, \pi(i, j)} $$

    It is attention with queries x, keys x_j and values y_j. The data are arguments of the call,
    not part of the module: what is fitted is the kernel.

    **Arguments:**

    - `kernel`: log K, for example `Gaussian(0.3)`. Its lengthscale is what `fit` fits.
    - `rule`: scores to weights. Default: softmax, exactly normalised.
    - `method`: how sums are evaluated. Default: `Auto()`.
    - `on_empty`: the prediction at a query to which no label has weight: `"nan"` (default),
      `"nearest"` (the label of the nearest input that it may see), `"mean"` (the mean of the
      labels that it may see), `"raise"` (an error, inside `jit` too). Where it may see no label
      at all, `"nearest"` and `"mean"` are NaN. Never a silent 0.

    **Source:** Nadaraya, *On estimating regression* (1964); Watson, *Smooth regression analysis*
    (1964).
    """

    kernel: Kernel
    rule: Rule
    method: Method
    on_empty: OnEmpty = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        *,
        rule: Rule = Softmax(),
        method: Method = Auto(),
        on_empty: OnEmpty = "nan",
    ):
        if not isinstance(kernel, Kernel):
            raise ValueError(f"kernel must be a Kernel, such as ak.Gaussian(0.3); got {kernel!r}.")
        self.kernel = kernel
        self.rule = rule
        self.method = method
        self.on_empty = _known_policy(on_empty)

    def __call__(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, *, prior: Prior | None = None
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        """Predictions at new inputs from labelled ones.

        **Arguments:**

        - `x_new`: shape (m, dim) or (m,); `x`: shape (n, dim) or (n,).
        - `y`: labels, shape (n,) or (n, out).
        - `prior`: which labels each prediction may see, for example `LeaveOneOut()` for
          predictions at x itself. Default: all.

        **Returns:** shape (m,) or (m, out), in the dtype of `x_new`.
        """
        q, k, v = as_points("x_new", x_new), as_points("x", x), as_points("y", y)
        out, log_mass = attend(
            q,
            k,
            v,
            kernel=self.kernel,
            prior=prior,
            rule=self.rule,
            method=self.method,
            return_log_mass=True,
        )
        out = _fill_empty(out, jnp.isneginf(log_mass), q, k, v, prior, self.on_empty)
        return out[:, 0] if np.ndim(y) == 1 else out

    def bounds(self, x: Float[Array, "n dim"]) -> tuple["KernelRegression", "KernelRegression"]:
        """The box for a fit, as two models: the kernel's `bounds(x)`, all else free."""
        return _with_kernel_bounds(self, self.kernel.bounds(x))


class MultiheadKernelRegression(eqx.Module):
    r"""Several kernel regressions at once, and a free linear combination of them.

    $$ \hat f(x) = \sum_{h=1}^{H} u_h \hat f_h(x), \qquad u \in \mathbb{R}^H $$

    $\hat f_h$ is the Nadaraya–Watson estimator with the h-th kernel. The weights u are not
    constrained: not to be positive, nor to sum to one.

    **Arguments:**

    - `kernel`: a stack of kernels, every array leaf with a leading axis of heads, as made by
      `eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 8))`.
    - `weights`: u, shape (heads,). Default: 1/H each.
    - `rule`, `method`, `on_empty`: as in `KernelRegression`, the same for all heads.

    **Raises:** `ValueError` if `weights` is not of shape (heads,).

    **Source:** P. Czyż, *From kernel regression to the transformer* (2024).
    """

    kernel: Kernel
    weights: Float[Array, " heads"]
    rule: Rule
    method: Method
    on_empty: OnEmpty = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        weights: ArrayLike | None = None,
        *,
        rule: Rule = Softmax(),
        method: Method = Auto(),
        on_empty: OnEmpty = "nan",
    ):
        leaves = jax.tree.leaves(eqx.filter(kernel, eqx.is_inexact_array))
        counts = {leaf.shape[:1] for leaf in leaves}
        if len(counts) != 1 or counts == {()}:
            raise ValueError(
                f"kernel must be a stack of heads: every array in it with the same leading axis; "
                f"got {kernel}. Try eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 8))."
            )
        (heads,) = counts.pop()
        weights = (
            jnp.full(heads, 1.0 / heads, float) if weights is None else jnp.asarray(weights, float)
        )
        if weights.shape != (heads,):
            raise ValueError(f"weights must have shape (heads,) = ({heads},); got {weights.shape}.")
        self.kernel = kernel
        self.weights = weights
        self.rule = rule
        self.method = method
        self.on_empty = _known_policy(on_empty)

    def heads(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, *, prior: Prior | None = None
    ) -> Float[Array, "heads m"] | Float[Array, "heads m out"]:
        """What each head predicts alone, before the weights; arguments as for the call."""

        def head(kernel: Kernel) -> Array:
            model = KernelRegression(
                kernel, rule=self.rule, method=self.method, on_empty=self.on_empty
            )
            return model(x_new, x, y, prior=prior)

        return eqx.filter_vmap(head)(self.kernel)

    def __call__(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, *, prior: Prior | None = None
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        """Predictions at new inputs from labelled ones; arguments as in `KernelRegression`."""
        heads = self.heads(x_new, x, y, prior=prior)
        combined = jnp.tensordot(self.weights, heads, axes=1, precision=jax.lax.Precision.HIGHEST)
        return combined.astype(heads.dtype)

    def bounds(
        self, x: Float[Array, "n dim"]
    ) -> tuple["MultiheadKernelRegression", "MultiheadKernelRegression"]:
        """The box for a fit, as two models: the kernels' `bounds(x)`, the weights free."""
        return _with_kernel_bounds(
            self, eqx.filter_vmap(lambda kernel: kernel.bounds(x))(self.kernel)
        )


def _known_policy(on_empty: str) -> OnEmpty:
    if on_empty not in get_args(OnEmpty):
        raise ValueError(f"on_empty must be one of {get_args(OnEmpty)}; got {on_empty!r}.")
    return cast(OnEmpty, on_empty)


def _with_kernel_bounds(model, kernels):
    """The model at its lower and upper bounds, all leaves outside the kernel unbounded."""
    lower, upper = unbounded(model)
    where = lambda tree: tree.kernel  # noqa: E731
    return eqx.tree_at(where, lower, kernels[0]), eqx.tree_at(where, upper, kernels[1])


@eqx.filter_jit
def _fill_empty(
    out: Float[Array, "m out"],
    empty: Bool[Array, " m"],
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
    prior: Prior | None,
    on_empty: OnEmpty,
) -> Float[Array, "m out"]:
    """Predictions with the policy for empty neighbourhoods applied."""
    if on_empty == "raise":
        return eqx.error_if(
            out,
            jnp.any(empty),
            "A query has no label within reach of its kernel. Try a larger lengthscale, or "
            'on_empty="nan", "nearest" or "mean".',
        )
    if on_empty == "nan" or not len(k):
        instead = jnp.full_like(out, jnp.nan)
    else:

        def label(i: Int[Array, ""], point: Float[Array, " dim"]) -> Float[Array, " out"]:
            seen = jnp.ones(len(k), bool)
            if prior is not None:
                seen = ~jnp.isneginf(prior.pairwise(i[None], jnp.arange(len(k)))[0])
            if on_empty == "nearest":
                squares = jnp.sum((point[None, :] - k) ** 2, axis=1)
                found = v[jnp.argmin(jnp.where(seen, squares, jnp.inf))]
            else:
                found = jnp.sum(jnp.where(seen[:, None], v, 0.0), axis=0) / jnp.sum(seen)
            return jnp.where(jnp.any(seen), found, jnp.nan)

        # a few queries at a time: never an array of queries x keys
        rows = lambda row: label(*row)  # noqa: E731
        instead = jax.lax.map(rows, (jnp.arange(len(q)), q), batch_size=min(64, len(q)))
    return jnp.where(empty[:, None], instead.astype(out.dtype), out)
