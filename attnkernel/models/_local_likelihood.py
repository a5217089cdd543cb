"""Local likelihood as an Equinox module: regression of proportions, counts, positive labels."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, wider_dtype
from .._core.hints import explained
from .._core.rows import Rows
from .._core.validation import require_instance
from ..families import Family
from ..local import InfluenceSums, LikelihoodFit, influence_sums, local_likelihood, local_polynomial
from ..losses import require_same_shape, sum_over_labels
from ..priors import Prior
from ._local_regression import LocalEstimate, LocalRegression, support_of
from ._smoother import with_weights


@explained
class LocalLikelihood(LocalRegression):
    r"""Local likelihood: a generalised linear model, fitted around each input.

    $$ \hat\mu(x) = g^{-1}(\hat\beta_0), \qquad \hat\beta = \arg\max_\beta \sum_j
       K(x, x_j)\, \pi(i, j)\, \ell\Big(y_j,\ \sum_{|a| \le p} \beta_a (x_j - x)^a\Big) $$

    ℓ is the log-likelihood of a family, g its link: logistic regression is `ak.Binomial()`, that of
    counts `ak.Poisson()`, of positive labels `ak.Gamma()`. Predictions are means, on the scale of
    the labels, and stay in their range for every order. `fit` minimises the leave-one-out deviance,

    $$ \mathrm{CV} = \sum_i w_i\, d(y_i, \hat\mu_{-i}(x_i)) \Big/ \sum_i w_i, $$

    exactly: each row is left out of the Newton steps at its own input.

    Order 0 is the mean of the labels that `KernelRegression` gives. For orders 1 and 2, where all
    labels in reach are 0 (of proportions: or 1) the likelihood has no maximum, and the prediction
    is 0 (or 1) to rounding. Where a polynomial separates the labels 0 and 1, its slopes are
    bounded by a penalty of the size of rounding.

    Called with `weights`, of each row, they are the numbers of trials of proportions, the exposures
    of rates: a weight of k is k equal rows. Where all labels in reach are 0, the slopes of
    `local_fit` are 0 too, and its value is the link of the nearest mean that has one.

    **Arguments:**

    - `kernel`: log K, for example `Gaussian(0.3)`. `fit` fits its lengthscale.
    - `family`: the distribution of the labels, a `Family`.
    - `order`: p, 0 (default), 1 or 2, as for `KernelRegression`.
    - `rule`: scores to weights. Default: softmax.
    - `on_empty`: the prediction at a query to which no label has weight, as for `KernelRegression`:
      `"nan"` (default), `"nearest"`, `"mean"` or `"raise"`.

    **Raises:** `ValueError` for another family or order, or an unknown policy.

    **Source:** Tibshirani and Hastie, *Local likelihood estimation* (1987); Fan, Heckman and Wand,
    *Local polynomial kernel regression for generalized linear models and quasi-likelihood
    functions* (1995); Loader, *Local regression and likelihood* (1999).

    ```python
    x = np.linspace(0.0, 1.0, 50)
    y = (np.sin(9.0 * x) > 0.3).astype(float)
    model = ak.LocalLikelihood(ak.Gaussian(0.1), family=ak.Binomial(), order=1)
    print(model(np.array([0.25, 0.5]), x, y))
    ```
    """

    family: Family = eqx.field(kw_only=True)

    def __check_init__(self):
        require_instance("family", self.family, Family, "ak.Binomial()")

    def deviance(self, prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
        r"""The deviance $d(y_i, \hat\mu_i)$ of each row, summed over labels: what a fit averages.

        **Arguments:** `prediction`, `y`: of the same shape, (n,) or (n, out). The deviance of an
        infinite prediction is NaN.
        """
        labels = as_real_array("y", y)
        mean = require_same_shape(prediction, labels)
        mean = jnp.where(jnp.isinf(mean), jnp.nan, mean.astype(wider_dtype(mean.dtype)))
        return sum_over_labels(self.family.deviance(mean, labels))

    def fitted(
        self, q: Array, k: Array, v: Array, prior: Prior | None
    ) -> tuple[Float[Array, "m out"], LikelihoodFit]:
        """Returns means at queries, before `on_empty`, and the local polynomials of η = g(mean)."""
        polynomial = self.polynomial(k, prior)
        if polynomial.order:
            local = local_likelihood(q, k, v, polynomial, self.family)
            return self.family.mean(local.coefficients[:, 0]), local
        # the local mean solves the equations of every family
        constant = local_polynomial(q, k, v, polynomial)
        mean, empty = constant.coefficients[:, 0], jnp.isneginf(constant.log_mass)
        eta = jnp.where(empty[:, None], 0.0, self.family.link(self.family.valid_mean(mean)))
        flags = constant.deficient, constant.extrapolates
        return mean, LikelihoodFit(eta[:, None, :], empty, *flags)

    def estimate(
        self, x_new: ArrayLike | None, rows: Rows, *, prior: Prior | None = None
    ) -> "LikelihoodEstimate":
        """Means, and approximate leverages and variances as of a linear smoother.

        Arguments as for `LinearSmoother.estimate`.
        """
        q, prior = self.queries_at(x_new, rows), with_weights(prior, rows)
        out, local = self.fitted(q, rows.x, rows.y, prior)
        value = rows.shaped(self.filled(out, local.empty, q, rows, prior))
        return LikelihoodEstimate(self, rows, value, support_of(local), q, prior, local)

    def check_labels(self, y: ArrayLike) -> None:
        """Raises `ValueError` for labels that the family does not have."""
        self.family.check(y)

    @property
    def description(self) -> str:
        """Such as `local linear, Binomial`."""
        return f"{super().description}, {type(self.family).__name__}"


class LikelihoodEstimate(LocalEstimate):
    r"""An estimate from the local likelihoods of queries.

    $L_j(x) = \mu'(\hat\eta(x))\, \ell_j(x)$ is the derivative of the mean with respect to label j,
    with the expected information in place of the observed one. $\ell_j$ is the derivative of the
    linear predictor $\hat\eta$ (`influence_sums`), and $\mu'$ that of the mean with respect to η.
    With a canonical link both informations are equal. Weights, leverages and variances raise
    `ValueError` for several labels per row.
    """

    @property
    def weights(self) -> Float[Array, "m n"]:
        """$L_j(x)$: the derivative of the mean at each query with respect to each label.

        It uses the expected information. Raises `ValueError` for several labels per row.
        """
        one = jnp.ones_like(self.rows.x[:, 0])
        return self._slope * self._influence(one, jnp.eye(len(one), dtype=one.dtype)).noise[:, 0]

    @property
    def leverage(self) -> Float[Array, " n"]:
        """$L_{ii}$: the derivative of each row's fitted mean with respect to its own label.

        It uses the expected information, and needs an estimate at the rows. Raises `ValueError` for
        several labels per row.
        """
        return self._influence(jnp.ones_like(self.rows.x[:, 0])).own[:, 0]

    def sum_of_squares(self, variances: Float[Array, "n columns"]) -> Float[Array, "m columns"]:
        found = [self._influence(column).variance[:, 0] for column in variances.T]
        return self._slope**2 * jnp.stack(found, axis=1)

    @property
    def _slope(self) -> Float[Array, "m 1"]:
        r"""$\mu'(\hat\eta(x))$: the derivative of the mean with respect to the linear predictor."""
        return self.model.family.mean_slope(self.local.coefficients[:, 0])

    def _influence(self, variance: Array, z: Array | None = None) -> InfluenceSums:
        """Returns the `influence_sums` of labels with these variances; z: normal numbers, or none.

        Raises `ValueError` unless there is one label per row.
        """
        x, model = self.rows.x, self.model
        if self.rows.y.shape[1] != 1:
            raise ValueError(
                f"Leverages and variances of a local likelihood are of one label per row; y has "
                f"shape {self.rows.y.shape}. Fit each column by itself."
            )
        z = jnp.zeros((len(x), 0), x.dtype) if z is None else z
        parts = self.local, model.polynomial(x, self.prior), model.family, False
        return influence_sums(self.q, x, jnp.sqrt(variance)[:, None], z, *parts)
