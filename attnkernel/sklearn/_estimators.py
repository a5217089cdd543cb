r"""Kernel regression as estimators of scikit-learn: `KernelRegressor` and `KernelClassifier`.

$$ \hat f(x) = \frac{\sum_i w_i\, K(x, x_i)\, y_i}{\sum_i w_i\, K(x, x_i)}, \qquad
   \log K(x, x_i) = g\Big( \sum_k \frac{(x_k - x_{ik})^2}{\ell_k^2} \Big) $$

Imported on demand, with the extra `sklearn`.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

try:
    from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d, validate_data
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "attnkernel.sklearn needs scikit-learn: pip install 'attnkernel[sklearn]'.",
        name=missing.name,
    ) from missing

from .._core.arrays import require_unmasked
from .._core.rows import Rows
from ..models import KernelRegression
from ..priors import ExcludeSelf
from ._base import KernelEstimator, Matrix, enable_x64


class KernelRegressor(MultiOutputMixin, RegressorMixin, KernelEstimator):
    r"""Local polynomial regression of one or several labels, with fitted lengthscales.

    $$ \hat f(x) = \hat\beta_0, \qquad \hat\beta = \arg\min_\beta \sum_i w_i\, K(x, x_i)
       \Big( y_i - \sum_{|a| \le p} \beta_a (x_i - x)^a \Big)^2 $$

    Rows with equal inputs are merged: the mean of their labels, the sum of their weights. The fit
    is the same, and cross-validation leaves out an input with all its rows: duplicates do not
    predict each other, and a weight of 2 equals a row given twice. `ak.fit` does not merge rows;
    for data with many duplicates it selects a smaller lengthscale.

    ```python
    >>> from attnkernel.sklearn import KernelRegressor
    >>> data = ak.data.load("faithful")
    >>> model = KernelRegressor(starts=2).fit(data.x, data.y)
    >>> model.predict([[2.0], [4.0]]).round()
    array([54., 79.])
    ```

    **Arguments:**

    - `kernel`: `"gaussian"`, `"laplace"`, `"matern32"`, `"matern52"`, `"rational-quadratic"`,
      `"cauchy"`, `"boxcar"`, `"triangular"`, `"epanechnikov"`, `"biweight"`, `"triweight"`,
      `"tricube"`, `"cosine"`; or a kernel of attnkernel, from which the search starts.
    - `order`: p, 0 (Nadaraya-Watson), 1 (local linear) or 2; "auto" chooses 0 or 1. Default
      None: "auto".
    - `iterations`: k, of bias reduction, see `ak.models.BiasReduced`. Default 1: none. For more,
      choose `"aicc"` or `"gcv"`: leave-one-out then takes k n³ operations.
    - `objective`: what the search minimises: `"leave-one-out"`, `"gcv"`, `"aicc"`, or any
      deterministic objective of attnkernel, such as `ak.KFold(5)`. None: no search; a given kernel
      is used as it is, and a named one with $\ell_k = s_k n^{-1/(d+4)}$, Scott's rule.
    - `lengthscale`: ℓ in the units of X, one number or shape (n_features,); there is then no
      search. An infinite ℓ excludes the column.
    - `per_dimension`: whether a search gives each column its own ℓ; for named kernels. "auto"
      (default) chooses between that and one ℓ for all columns, in their standard deviations.
    - `on_empty`: the prediction where no row has weight: `"nearest"` (the label of the nearest
      input, in the units of X), `"mean"` (the weighted mean of all labels), `"nan"` or `"raise"`.
    - `starts`: number of starts of a search. Default None: 10; with "auto" 1, from the best ℓ for
      all columns, which is found on a grid.
    - `subsample`: m, the number of distinct rows from which the lengthscales are selected where
      there are more and no fast sum applies (a Gaussian kernel in 1 column, or with `order=0` in
      up to 3, selects from all). One row is drawn, from a fixed seed, of each of m equal parts of
      the rows in the order of the first column. Then $\ell_k$ is multiplied by
      $(m/n)^{1/(d + 2b)}$, b = 2 for orders 0 and 1, 4 for order 2, each times `iterations`: the
      rate at which the best lengthscale falls. Default: 2048. None: all rows, whose time grows
      as n². Predictions are from all rows. Friedman's function of 8 columns and 16 000 rows: R² of
      new rows is 0.9576, 0.9577, 0.9581 with 1024, 2048, 4096 rows, in 29, 44, 131 CPU seconds.

    "auto" fits up to four candidates and takes the one with the least $\log L + p \log(n) / n$: L
    is the criterion, p the number of lengthscales, n that of distinct inputs (for AICc, itself in
    place of $\log L$). With 5 folds on diabetes R² is 0.51; it is 0.42 by `order=0` and
    `per_dimension=True`, a lengthscale for each column, which overfits where columns are many and
    labels noisy. That takes a third of the time, and compiles one program instead of two. Without
    a search, and for a given kernel, "auto" is order 0.

    A constant column is excluded. For two distinct inputs ℓ is an eighth of their distance; for
    constant labels it follows Scott's rule. No search is run for these.

    **Attributes:** `lengthscale_`, ℓ in the units of X (one number or one per column, infinite for
    an excluded one; missing if the kernel has none); `model_`, a `KernelRegression` or a
    `BiasReduced`; `fit_`, the `Fit` to the distinct inputs, or to the `subsample` of them (with the
    lengthscales that suit those), None without a search; `order_`;
    `X_`, `y_`; `n_features_in_`, `feature_names_in_`. Their arrays of JAX are in float64: use them
    inside `jax.enable_x64(True)`.

    **Warns:** `FitWarning` if the search ended at no optimum: for a column without effect on y, ℓ
    ends on its upper bound, ten times the range.

    **Source:** Nadaraya, *On estimating regression* (1964); Fan and Gijbels, *Local polynomial
    modelling and its applications* (1996). Subsample: Marron, *Partitioned cross-validation*
    (1987).
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelRegressor":
        """Fits the lengthscales, and returns the estimator itself.

        `y`: shape (n,) or (n, out). `sample_weight`: (n,), none negative and not all 0.
        """
        require_unmasked("X", X)
        require_unmasked("y", y)  # scikit-learn takes the numbers below a mask
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self.X_, self.y_ = X, np.asarray(y, np.float64)
        self._fit_smoother(self.X_, self.y_, sample_weight)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        r"""Returns predictions, shape (m,) or (m, out); with `return_std` (predictions, errors).

        The errors are standard errors s, of the same shape.

        $$ s(x)^2 = \sum_i L_i(x)^2\, \big( y_i - \hat f_{-i}(x_i) \big)^2,
           \qquad \hat f(x) = \sum_i L_i(x)\, y_i $$

        $s$ is the standard error of the fit, not of a new label, and leaves out the bias. The noise
        may be heteroskedastic; rows are taken as independent. NaN if there is a single input.
        """
        q, mean = self._predict(X)
        return (mean, self._standard_error(q)) if return_std else mean

    def _standard_error(self, q: Matrix) -> np.ndarray:
        """Returns the standard error of the fit at the queries; NaN where it is undetermined."""
        rows, kernel = self._rows, self.model_.kernel
        x, y, weights = rows[:3]
        with enable_x64(True):
            nearest = self.smoother(kernel, "nearest")
            left_out = np.array(nearest(x, x, y, weights=weights, prior=ExcludeSelf()))
            error = (rows.labels - left_out[rows.group]).reshape(len(rows.group), -1)
            variance = rows.variance_of_means(error**2)
            with_ones = np.hstack([variance, np.ones((len(x), 1))])
            of_model = Rows.read(x, y, weights)
            found = np.array(_sum_of_squares(self.model_, jnp.asarray(q), of_model, with_ones))
            out, is_empty = found[:, :-1], found[:, -1] == 0  # no label has weight
            if np.any(is_empty):
                if self.on_empty == "mean":
                    share = np.ones(len(x)) if weights is None else weights
                    out[is_empty] = (share / share.sum()) ** 2 @ variance
                else:
                    policy = KernelRegression(kernel, on_empty=self.on_empty)
                    out[is_empty] = np.array(policy(q[is_empty], x, variance))
        return np.sqrt(out).reshape(len(q), *y.shape[1:])


class KernelClassifier(ClassifierMixin, KernelEstimator):
    r"""Classification by kernel regression on class indicators.

    $$ \hat p_c(x) = \frac{\sum_i w_i\, K(x, x_i)\, 1[y_i = c]}{\sum_i w_i\, K(x, x_i)} $$

    The criteria are those of the squared error of the indicators: leave-one-out is the Brier score,
    $\frac1n \sum_i \sum_c (\hat p_c^{(-i)}(x_i) - 1[y_i = c])^2$.

    ```python
    >>> from attnkernel.sklearn import KernelClassifier
    >>> x = np.linspace(0.0, 1.0, 40)[:, None]
    >>> labels = np.where(x[:, 0] < 0.5, "low", "high")
    >>> KernelClassifier(lengthscale=0.1).fit(x, labels).predict([[0.2], [0.9]])
    array(['low', 'high'], dtype='<U4')
    ```

    **Arguments**, and the merging of rows with equal inputs: as for `KernelRegressor`, but `order`
    is 0 by default. Local polynomials (`order` 1, 2) and bias reduction may leave [0, 1]:
    probabilities are clipped and normalised. Where no row has weight, `on_empty` is `"nearest"`
    (the classes at the nearest input), `"mean"` (the weighted class frequencies) or `"raise"`.

    **Attributes:** as for `KernelRegressor`, and `classes_`.

    **Raises:** `ValueError` for labels that are not classes, and for `on_empty="nan"`.

    **Source:** Brier, *Verification of forecasts expressed in terms of probability* (1950).
    """

    DEFAULT_ORDER: ClassVar[Any] = 0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelClassifier":
        """Fits the lengthscales, and returns the estimator itself.

        `y`: classes, shape (n,). `sample_weight`: (n,), none negative and not all 0.
        """
        require_unmasked("X", X)
        require_unmasked("y", y)
        X, y = validate_data(self, X, y, dtype=np.float64)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if isinstance(self.on_empty, str) and self.on_empty == "nan":
            raise ValueError('A class is never NaN: on_empty must be "nearest", "mean" or "raise".')
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.X_, self.y_ = X, y
        self._fit_smoother(X, np.eye(len(self.classes_))[codes], sample_weight)
        return self

    def predict_proba(self, X: Any) -> Matrix:
        """Returns the probabilities of `classes_`, shape (m, classes)."""
        clipped = np.clip(self._predict(X)[1], 0.0, 1.0)
        return clipped / clipped.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Returns the class with the highest probability, shape (m,)."""
        probabilities = self.predict_proba(X)
        return self.classes_[np.argmax(probabilities, axis=1)]


@eqx.filter_jit
def _sum_of_squares(model: Any, q: Any, rows: Rows, variances: Any) -> Any:
    """Returns the variances of predictions at queries, from those of the labels."""
    return model.estimate(q, rows).variance_of(variances)
