"""Local polynomial quantile regression as an Equinox module."""

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import Scalar
from .._core.hints import explained
from ..attention import as_order
from ..local import QuantileFit, local_quantile
from ..losses import CheckLoss, as_level
from ..priors import Prior
from ._local_regression import LocalRegression


@explained
class LocalQuantile(LocalRegression):
    r"""Local polynomial quantile regression, exact.

    $$ \hat q_\tau(x) = \hat\beta_0, \qquad \hat\beta = \arg\min_\beta \sum_j K(x, x_j)\,
       \pi(i, j)\, \rho_\tau\Big(y_j - \sum_{|a| \le p} \beta_a (x_j - x)^a\Big), \qquad
       \rho_\tau(r) = r\, (\tau - 1\{r < 0\}) $$

    About τ of the labels near x are below $\hat q_\tau(x)$. With τ = 1/2 it is the local median,
    of least absolute deviations: no label has a large influence. Each query is a linear program; an
    interior point method solves it to a duality gap of 2e-12 (float64), which `local_fit` returns,
    and ends at the vertex: the polynomial through as many labels as it has terms, exact to
    rounding. Where several polynomials are minima it is one of them. Quantiles of different levels
    may cross; `np.sort` along the levels is the rearrangement of Chernozhukov, Fernández-Val and
    Galichon (2010).

    As a function of the lengthscale a quantile is piecewise constant: `fit` minimises the
    leave-one-out check loss on a grid, with a `FitWarning` that says so. This takes about 500
    evaluations: 8 s for 133 rows, and 20 minutes for 1000, on two cores of a CPU. Derivatives by
    inputs and labels are those of the polynomial through its labels. Without a search, the rule of
    Yu and Jones: from the lengthscale h of a mean,
    $h_\tau = h\, \big(\tau (1 - \tau) / \phi(\Phi^{-1}(\tau))^2\big)^{1/5}$ in one dimension.

    Called with `weights`, of each row, a weight of k is k equal rows. `local_fit` returns the gaps.

    **Arguments:**

    - `kernel`: log K, for example `Gaussian(0.3)`. `fit` fits its lengthscale.
    - `level`: τ, between 0 and 1. Default: 0.5, the median.
    - `order`: p, 1 (default), 0 or 2, as for `KernelRegression`. Where the labels with weight do
      not determine all terms, the fit is of order 0.
    - `rule`: scores to weights. Default: softmax.
    - `on_empty`: the prediction at a query to which no label has weight, as for `KernelRegression`:
      `"nan"` (default), `"nearest"`, `"mean"` or `"raise"`.

    **Raises:** `ValueError` for a level outside (0, 1), another order, or an unknown policy.

    **Source:** Yu and Jones, *Local linear quantile regression* (1998); Koenker, *Quantile
    regression* (2005); Portnoy and Koenker, *The Gaussian hare and the Laplacian tortoise* (1997).

    ```python
    x = np.linspace(0.0, 1.0, 50)
    model = ak.LocalQuantile(ak.Gaussian(0.1), level=0.9)
    print(model(np.array([0.25, 0.5]), x, np.sin(6 * x)))
    ```
    """

    level: float = eqx.field(default=0.5, kw_only=True, static=True, converter=as_level)
    order: int = eqx.field(default=1, kw_only=True, static=True, converter=as_order)

    def deviance(self, prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
        """The `ak.losses.CheckLoss` of each row: what a fit averages."""
        return CheckLoss(self.level)(prediction, y)

    def fitted(
        self, q: Array, k: Array, v: Array, prior: Prior | None, level: Scalar | None = None
    ) -> tuple[Float[Array, "m out"], QuantileFit]:
        """Returns quantiles at queries, and their local polynomials, from checked arrays.

        `level`: τ. Default: that of the model.
        """
        tau = self.level if level is None else level
        local = local_quantile(q, k, v, self.polynomial(k, prior), tau)
        return local.coefficients[:, 0], local

    @property
    def description(self) -> str:
        """Such as `local linear, quantile 0.9`."""
        return f"{super().description}, quantile {self.level:g}"
