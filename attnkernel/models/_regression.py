"""Kernel regression as Equinox modules: attention from new inputs to labelled ones."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_points, as_real_array, require_finite
from .._core.regression_data import as_weights, require_category_codes
from .._core.symbolic_sizes import at_most
from .._core.validation import as_integer, require_instance
from ..attention import Auto
from ..attention._jit import jit_if_pure
from ..attention._local_polynomial import (
    LocalFit,
    as_order,
    local_polynomial,
    warn_of_extrapolation,
    weighed,
)
from ..kernels import Kernel, unbounded
from ..kernels._base import number_of_pair
from ..methods import Method
from ..methods._base import key_mask
from ..priors import KeyWeights, Prior
from ..priors._base import require_prior
from ..rules import Rule, Softmax
from ._empty import OnEmpty, fill_empty, known_policy

_DENSE = 2**20  # weights, up to which later passes keep them
_MANY = 16  # labels of a row, from which a local polynomial sums them by its weights


class KernelRegression(eqx.Module):
    r"""Local polynomial regression: of order 0 the mean of labels, weighted by a kernel.

    $$ \hat f(x) = \hat\beta_0, \qquad \hat\beta = \arg\min_\beta \sum_j
       K(x, x_j)\, \pi(i, j)\, \Big( y_j - \sum_{|a| \le p} \beta_a (x_j - x)^a \Big)^2 $$

    Of order p = 0 it is the estimator of Nadaraya and Watson: attention with queries x, keys x_j
    and values y_j. Of order 1, local linear, it has no bias at boundaries and where inputs crowd on
    one side. The data are arguments of the call, not part of the module: what is fitted is the
    kernel.

    **Arguments:**

    - `kernel`: log K, for example `Gaussian(0.3)`. Its lengthscale is what `fit` fits.
    - `order`: p, 0 (default), 1 or 2. Where the labels with weight do not tell all terms apart, as
      of fewer rows than terms, the fit is of lower order along what is not told; `local_fit` says
      where. It goes along the columns that are quantities, not `Kernel.categories`.
    - `passes`: k, from 1 (default). More reduce the bias: what the smooth L of the labels leaves
      over is smoothed again and added, k − 1 times,

      $$ \hat f_k(x) = \sum_j L_j(x)\, z_j, \qquad z = \sum_{i<k} (I - L)^i\, y $$

      so that longer lengthscales serve: 2 is the twicing of Tukey, and k gradient steps of
      boosting by squares. Weights $L(I - L)^i$ may be negative. At order 0 the smooth of a kernel
      that is positive definite, such as `Gaussian`, `Laplace` and `Matern32`, goes towards the
      labels with k; of others, such as `Boxcar` and `Epanechnikov`, many passes diverge. `ak.AICc`
      and `ak.GCV` choose k well, in O(n³ log k) time and O(n²) memory; predictions take O(n²k)
      time before the last pass, and with a `prior` that hides other labels from each query, as in
      `ak.LeaveOneOut`, each takes the passes of its own, over the labels that it may see.
    - `rule`: scores to weights. Default: softmax, exactly normalised.
    - `method`: how sums are evaluated. Default: `Auto()`.
    - `on_empty`: the prediction at a query to which no label has weight: `"nan"` (default),
      `"nearest"` (the label of the nearest input that it may see), `"mean"` (the mean of the
      labels that it may see, as weights and biases weigh them), `"raise"` (an error, inside `jit`
      too). Where it may see no label at all, `"nearest"` and `"mean"` are NaN. Never a silent 0.

    **Raises:** `ValueError` for another order, no pass, or an unknown policy.

    **Source:** Nadaraya, *On estimating regression* (1964); Watson, *Smooth regression analysis*
    (1964); Fan and Gijbels, *Local polynomial modelling and its applications* (1996); for passes
    Tukey, *Exploratory data analysis* (1977); Bühlmann and Yu, *Boosting with the L2 loss* (2003);
    Cornillon, Hengartner, Jegou and Matzner-Løber, *Iterative bias reduction: a comparative study*
    (2013).
    """

    kernel: Kernel
    rule: Rule
    method: Method
    order: int = eqx.field(static=True)
    passes: int = eqx.field(static=True)
    on_empty: OnEmpty = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        *,
        order: int = 0,
        passes: int = 1,
        rule: Rule = Softmax(),
        method: Method = Auto(),
        on_empty: OnEmpty = "nan",
    ):
        require_parts(kernel, rule, method)
        self.kernel = kernel
        self.order = as_order(order)
        hint = "To choose among several, give ak.choose a model of each."
        self.passes = as_integer("passes", passes, 1, hint)
        self.rule = rule
        self.method = method
        self.on_empty = known_policy(on_empty)

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        """Predictions at new inputs from labelled ones.

        **Arguments:**

        - `x_new`: shape (m, dim) or (m,); `x`: shape (n, dim) or (n,).
        - `y`: labels, shape (n,) or (n, out).
        - `prior`: which labels each prediction may see, for example `ExcludeSelf()` for
          predictions at x itself. Default: all.
        - `weights`: of each label, shape (n,), from 0, in proportion to $1/\\sigma_i^2$, the
          inverse variance of the label. One of 0 is no row. Default: 1.

        **Returns:** shape (m,) or (m, out), in the dtype of `x_new`.

        **Raises:** `ValueError` if shapes do not fit together, or a weight is negative.
        """
        q, k, v = self._data(x_new, x, y, weights)
        out, local = self._passed(q, k, v, prior, weights, wants_all=False)
        warn_of_extrapolation(local, self.order)
        prior = with_weights(prior, weights, k)
        empty = jnp.isneginf(local.log_mass)
        out = fill_empty(out, empty, q, k, v, prior, self.on_empty).astype(q.dtype)
        return out[:, 0] if np.ndim(y) == 1 else out

    def local_fit(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> LocalFit:
        """The polynomials at new inputs: their coefficients, slopes included, and how well the
        data tell them apart. Arguments as for the call; where no label has weight, 0.

        Of several passes, those of the last, of the labels z."""
        q, k, v = self._data(x_new, x, y, weights)
        _, local = self._passed(q, k, v, prior, weights, wants_all=True)
        return local

    def smooth(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Float[Array, "n"] | Float[Array, "n out"], Float[Array, " n"]]:
        r"""Predictions at the labelled inputs, and the diagonal of the hat matrix.

        $$ \hat y = L y, \qquad L_{ii} = \frac{w_{ii}}{\sum_j w_{ij}}\, \big(S_i^{-1}\big)_{11} $$

        Of k passes $L_k = I - (I - L)^k$, as a matrix.
        """
        _, k, v = self._data(x, x, y, weights)
        prior = with_weights(None, weights, k)
        if self.passes > 1:
            self._softmax()
            out, hat = jit_if_pure(_smoothed, (self._once(), self.passes, prior), k, v)
            return (out[:, 0] if np.ndim(y) == 1 else out), hat
        out, local = self._fitted(k, k, v, prior)
        own = self._own(k, prior)
        some = own > -jnp.inf  # a row of weight 0 may have no neighbour either
        share = jnp.exp(jnp.where(some, own, 0.0) - jnp.where(some, local.log_mass, 0.0))
        hat = jnp.where(some, share * local.influence[:, 0], 0.0)
        return (out[:, 0] if np.ndim(y) == 1 else out), hat

    def noise(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        variance: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        r"""The variance of predictions, $\sum_j L_j(x)^2 \sigma_j^2$, of independent labels.

        **Arguments:** `variance`: $\sigma_j^2$ of each label, shape (n,) or (n, out); the rest as
        for the call. With `variance` 1, the squared norm of the weights.
        """
        q, k, v = self._data(x_new, x, variance, weights, "variance")
        prior = with_weights(None, weights, k)
        self._softmax()
        if self.passes > 1:
            out = jit_if_pure(_of_squares, (self._once(), self.passes, prior), q, k, v)
            return out[:, 0] if np.ndim(variance) == 1 else out
        local = self._polynomials(q, k, v[:, :0], prior)
        out = weighed(q, k, v, local, power=2, **self._parts(k, prior))
        return out[:, 0] if np.ndim(variance) == 1 else out

    def _data(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, weights: ArrayLike | None, of: str = "y"
    ) -> tuple[Float[Array, "m dim"], Float[Array, "n dim"], Float[Array, "n out"]]:
        """Queries, keys and values, with a value of another row in each row of weight 0: what is
        written there is then in no mean of values, about which sums are taken."""
        k, q, v = as_points("x", x), as_points("x_new", x_new), as_points(of, y)
        _require_sound(self.kernel, q, k, v, of)
        if weights is not None:
            some = as_weights(weights, k.shape[0]) > 0
            v = jnp.where(some[:, None], v, v[jnp.argmax(some)][None])
        return q, k, v

    def _once(self) -> "KernelRegression":
        return dataclasses.replace(self, passes=1)

    def _passed(
        self,
        q: Float[Array, "m dim"],
        k: Float[Array, "n dim"],
        v: Float[Array, "n out"],
        prior: Prior | None,
        weights: ArrayLike | None,
        wants_all: bool,
    ) -> tuple[Float[Array, "m out"], LocalFit]:
        """The fit at queries after all passes, and the polynomials of the last."""
        whole = with_weights(prior, weights, k)
        if self.passes == 1:
            return self._fitted(q, k, v, whole, wants_all)
        if prior is not None:
            prior.check(q.shape[0], k.shape[0])
        mask = key_mask(prior)
        # all queries see the same labels
        is_shared = not (mask.unsupported_reason or mask.leaves_out)
        if is_shared:
            whole = with_weights(None, weights, k)
            if mask.seen is not None:
                log = jnp.where(mask.seen, 0.0, -jnp.inf).astype(k.dtype)
                log = log + whole.log_weights if isinstance(whole, KeyWeights) else log
                whole = KeyWeights(log)
        parts = (self._once(), self.passes, whole, is_shared, wants_all)
        return jit_if_pure(_after_passes, parts, q, k, v)

    def _fitted(
        self, q: Array, k: Array, v: Array, prior: Prior | None, wants_all: bool = False
    ) -> tuple[Float[Array, "m out"], LocalFit]:
        """The fit at queries in one pass, and its polynomials: of many labels without their slopes,
        unless all are wanted."""
        if self.order == 0 or v.shape[1] < _MANY or wants_all:
            local = self._polynomials(q, k, v, prior)
            return local.coefficients[:, 0], local
        local = self._polynomials(q, k, v[:, :0], prior)
        level = jax.lax.stop_gradient(jnp.mean(v, axis=0, keepdims=True))
        out = level + weighed(q, k, v - level, local, power=1, **self._parts(k, prior))
        return jnp.where(jnp.isneginf(local.log_mass)[:, None], 0.0, out), local

    def _polynomials(self, q: Array, k: Array, v: Array, prior: Prior | None) -> LocalFit:
        return local_polynomial(q, k, v, **self._parts(k, prior))

    def _parts(self, k: Float[Array, "n dim"], prior: Prior | None) -> dict[str, Any]:
        parts = {"kernel": self.kernel, "prior": prior, "rule": self.rule, "method": self.method}
        return parts | {"order": self.order, "columns": self._columns(k)}

    def _columns(self, k: Float[Array, "n dim"]) -> tuple[int, ...]:
        """Those that are quantities: a polynomial does not go along names."""
        names = self.kernel.categories(k.shape[1])
        return tuple(column for column in range(k.shape[1]) if column not in names)

    def _own(self, k: Float[Array, "n dim"], prior: Prior | None) -> Float[Array, " n"]:
        """The log-weight of each input for itself."""
        kernel, q, k = self.kernel.precomputed(k, k)
        own = self._softmax().scaled_scores(
            jax.vmap(functools.partial(number_of_pair, kernel))(q, k)
        )
        rows = jnp.arange(own.shape[0])
        return own if prior is None else own + jax.vmap(prior.log_pair)(rows, rows)

    def _softmax(self) -> Softmax:
        if not isinstance(self.rule, Softmax):
            raise ValueError(
                f"The hat matrix is of weights that do not depend on each other's number: of "
                f"rule=ak.Softmax(); got {self.rule!r}."
            )
        return self.rule

    def search_box(self, x: Float[Array, "n dim"]) -> tuple["KernelRegression", "KernelRegression"]:
        """The box for a fit, as two models: the kernel's `search_box(x)`, all else free."""
        return _with_kernel_bounds(self, self.kernel.search_box(x))


def require_parts(kernel: Any, rule: Any, method: Any) -> None:
    """Raise `ValueError` unless they are a kernel, a rule and a method, the same for all heads."""
    require_instance("kernel", kernel, Kernel, "ak.Gaussian(0.3)")
    require_instance("rule", rule, Rule, "ak.Softmax()")
    require_instance("method", method, Method, "ak.Auto()")


def _require_sound(kernel: Kernel, q: Array, k: Array, v: Array, of: str = "y") -> None:
    """Raise `ValueError` unless the data are finite, one label a row, and codes of categories."""
    if k.shape[0] != v.shape[0]:
        raise ValueError(
            f"x and {of} must have the same number of rows; got {k.shape[0]} inputs and "
            f"{v.shape[0]} labels."
        )
    for name, rows in (("x", k), ("x_new", q), (of, v)):
        require_finite(name, rows)
    if q.shape[1] == k.shape[1]:
        for name, rows in (("x", k), ("x_new", q)):
            require_category_codes(name, rows, kernel.categories(k.shape[1]))


def _after_passes(
    once: KernelRegression,
    passes: int,
    prior: Prior | None,
    is_shared: bool,
    wants_all: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "m out"], LocalFit]:
    """The fit after several passes, which all queries share, or each takes with its own prior."""
    if is_shared:
        return once._fitted(q, k, _sharpened(once, passes, prior, k, v), prior, wants_all)
    assert prior is not None

    def of_query(i: Array) -> tuple[Array, LocalFit]:
        seen = KeyWeights(prior.pairwise(i[None], jnp.arange(k.shape[0]))[0].astype(k.dtype))
        labels = _sharpened(once, passes, seen, k, v)
        fitted = once._fitted(q[i][None], k, labels, seen, wants_all)
        return jax.tree.map(lambda leaf: leaf[0], fitted)

    # of each query a derivative keeps its number alone
    return jax.lax.map(jax.checkpoint(of_query, prevent_cse=False), jnp.arange(q.shape[0]))


def _sharpened(
    once: KernelRegression,
    passes: int,
    prior: Any,
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> Float[Array, "n out"]:
    """z: labels to which all passes but the last have added what their smooth left over."""
    v = _seen(prior, v)
    smooth = lambda rest: once._fitted(k, k, rest, prior)[0].astype(v.dtype)  # noqa: E731
    rest = _seen(prior, v - smooth(v))  # of labels far from 0 only here, where they are centred
    if at_most(k.shape[0] ** 2, _DENSE) and passes > 2:
        weights = _weights(once, prior, k).astype(v.dtype)
        smooth = lambda rest: _product(weights, rest)  # noqa: E731

    def again(carried: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        z, rest = carried
        rest = _seen(prior, rest - smooth(rest))
        return (z + rest, rest), None

    return jax.lax.scan(again, (v + rest, rest), None, length=passes - 2)[0][0]


def _seen(prior: Any, v: Float[Array, "n out"]) -> Float[Array, "n out"]:
    """0 at rows of no weight: they are no labels, and what is smoothed there is nobody's."""
    return v if prior is None else jnp.where(prior.log_weights[:, None] > -jnp.inf, v, 0.0)


def _weights(
    once: KernelRegression, prior: Prior | None, k: Float[Array, "n dim"]
) -> Float[Array, "n n"]:
    """L of one pass, as a matrix."""
    return once._fitted(k, k, jnp.eye(k.shape[0], dtype=k.dtype), prior)[0]


def _product(a: Float[Array, "l n"], b: Float[Array, "n out"]) -> Float[Array, "l out"]:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _smoothed(
    once: KernelRegression,
    passes: int,
    prior: Prior | None,
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "n out"], Float[Array, " n"]]:
    r"""$L_k y$ and the diagonal of $L_k = I - (I - L)^k$."""
    left = jnp.eye(k.shape[0], dtype=k.dtype) - _weights(once, prior, k)
    with jax.default_matmul_precision("highest"):
        half = jnp.linalg.matrix_power(left, passes // 2)
        rest = half @ left if passes % 2 else half
    own = 1.0 - jnp.sum(half * rest.T, axis=1)
    return once._fitted(k, k, _sharpened(once, passes, prior, k, v), prior)[0], own


def _of_squares(
    once: KernelRegression,
    passes: int,
    prior: Prior | None,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> Float[Array, "m out"]:
    """Sums of values by the squared weights of all passes."""
    eye = jnp.eye(k.shape[0], dtype=k.dtype)
    weights, _ = once._fitted(q, k, _sharpened(once, passes, prior, k, eye), prior)
    return _product(weights**2, v)


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
        require_parts(kernel, rule, method)
        leaves = jax.tree.leaves(eqx.filter(kernel, eqx.is_inexact_array))
        counts = {leaf.shape[:1] for leaf in leaves}
        if len(counts) != 1 or counts == {()}:
            raise ValueError(
                f"kernel must be a stack of heads: every array in it with the same leading axis; "
                f"got {kernel}. Try eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 8))."
            )
        (heads,) = counts.pop()
        if weights is None:
            weights = jnp.full(heads, 1.0 / heads, float)
        else:
            weights = as_real_array("weights", weights).astype(float)
            require_finite("weights", jnp.atleast_2d(weights))
        if weights.shape != (heads,):
            raise ValueError(f"weights must have shape (heads,) = ({heads},); got {weights.shape}.")
        self.kernel = kernel
        self.weights = weights
        self.rule = rule
        self.method = method
        self.on_empty = known_policy(on_empty)

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

    def search_box(
        self, x: Float[Array, "n dim"]
    ) -> tuple["MultiheadKernelRegression", "MultiheadKernelRegression"]:
        """The box for a fit, as two models: the kernels' `search_box(x)`, the weights free."""
        return _with_kernel_bounds(
            self, eqx.filter_vmap(lambda kernel: kernel.search_box(x))(self.kernel)
        )


def with_weights(
    prior: Prior | None, weights: ArrayLike | None, k: Float[Array, "n dim"]
) -> Prior | None:
    """A prior and the weights of labels as one prior."""
    if prior is not None:
        require_prior("prior", prior)
    if weights is None:
        return prior
    weights = as_weights(weights, k.shape[0])
    some = weights > 0
    of_keys = KeyWeights(jnp.where(some, jnp.log(jnp.where(some, weights, 1)), -jnp.inf))
    return of_keys if prior is None else prior * of_keys


def _with_kernel_bounds(model, kernels):
    """The model at its lower and upper bounds, all leaves outside the kernel unbounded."""
    lower, upper = unbounded(model)
    where = lambda tree: tree.kernel  # noqa: E731
    return eqx.tree_at(where, lower, kernels[0]), eqx.tree_at(where, upper, kernels[1])
