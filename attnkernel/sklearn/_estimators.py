r"""Kernel regression as estimators of scikit-learn: `KernelRegressor` and `KernelClassifier`.

$$ \hat f(x) = \frac{\sum_i w_i\, K(x, x_i)\, y_i}{\sum_i w_i\, K(x, x_i)}, \qquad
   \log K(x, x_i) = g\Big( \sum_k \frac{(x_k - x_{ik})^2}{\ell_k^2} \Big) $$

Imported on demand, with the extra `sklearn`.
"""

from typing import Any

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

from ..models import KernelRegression
from ..priors import ExcludeSelf
from ._base import KernelEstimator, Matrix, enable_x64


class KernelRegressor(MultiOutputMixin, RegressorMixin, KernelEstimator):
    r"""Local polynomial regression of one or several labels, its lengthscales fitted.

    $$ \hat f(x) = \hat\beta_0, \qquad \hat\beta = \arg\min_\beta \sum_i w_i\, K(x, x_i)
       \Big( y_i - \sum_{|a| \le p} \beta_a (x_i - x)^a \Big)^2 $$

    Rows of the same input are one: the mean of their labels, with the sum of their weights. The fit
    is the same, and a criterion that leaves rows out leaves out an input with all its rows: copies
    do not predict each other, and a weight of 2 is a row given twice. (`ak.fit` takes rows as they
    come. Of a few inputs, each with many rows, that lets it smooth less.)

    **Arguments:**

    - `kernel`: `"gaussian"`, `"laplace"`, `"matern32"`, `"matern52"`, `"rational-quadratic"`,
      `"cauchy"`, `"boxcar"`, `"triangular"`, `"epanechnikov"`, `"biweight"`, `"triweight"`,
      `"tricube"`, `"cosine"`; or a kernel of attnkernel, from which the search starts.
    - `order`: p, 0 (Nadaraya and Watson), 1 (local linear) or 2.
    - `iterations`: k, of bias reduction, see `ak.BiasReduced`. Default 1: none. With more than one,
      take `"aicc"` or `"gcv"`: leave-one-out is k n³ work.
    - `objective`: what the search minimises: `"leave-one-out"`, `"gcv"`, `"aicc"`, or any
      objective of attnkernel that draws nothing at random, such as `ak.KFold(5)`. None: no
      search, but a kernel as it is given or, of a name, with $\ell_k = s_k n^{-1/(d+4)}$, the rule
      of Scott.
    - `lengthscale`: ℓ in the units of X, one number or shape (n_features,), then there is no
      search. Infinite: the column has no say.
    - `per_dimension`: whether a search gives each column its own ℓ. Of names alone.
    - `on_empty`: the prediction where no row has weight: `"nearest"` (the label of the nearest
      input, in the units of X), `"mean"` (of all labels, by weight), `"nan"` or `"raise"`.
    - `starts`: of the search. Default: 10.

    What cannot be searched for is not: a column that does not vary has no say; of two inputs ℓ is
    an eighth of their distance; where all labels are the same, the rule of Scott.

    **Attributes:** `lengthscale_`, ℓ in the units of X (one number, or one per column: infinite, if
    it has no say; missing, if the kernel has none); `model_`, a `KernelRegression` or a
    `BiasReduced`; `fit_`, the `Fit` to the distinct inputs with a say, or None without a search;
    `X_`, `y_`; `n_features_in_`, `feature_names_in_`. Arrays of JAX in them are of float64: use
    them inside `jax.enable_x64(True)`.

    **Warns:** `FitWarning`, where the search ended at no optimum: of a column that says nothing of
    y, ℓ ends on its upper bound, ten times the range.

    **Source:** Nadaraya, *On estimating regression* (1964); Fan and Gijbels, *Local polynomial
    modelling and its applications* (1996).
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelRegressor":
        """Find the lengthscales. `y`: shape (n,) or (n, out); `sample_weight`: (n,), from 0."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self.X_, self.y_ = X, np.asarray(y, np.float64)
        self.learn(self.X_, self.y_, sample_weight)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        r"""Predictions, shape (m,) or (m, out); with `return_std`, and their standard deviations.

        $$ s(x)^2 = \sum_i L_i(x)^2\, \big( y_i - \hat f_{-i}(x_i) \big)^2,
           \qquad \hat f(x) = \sum_i L_i(x)\, y_i $$

        That of the fit, not of a new label, and without its bias; the noise may differ from place
        to place. Rows are independent, whatever their weights. NaN, if there is one input alone.
        """
        q, mean = self.predicted(X)
        return (mean, self._std(q)) if return_std else mean

    def _std(self, q: Matrix) -> np.ndarray:
        rows, kernel = self._rows, self.model_.kernel
        x, y, weights = rows[:3]
        with enable_x64(True):
            near = self.smoother(kernel, "nearest")
            unseen = np.array(near(x, x, y, weights=weights, prior=ExcludeSelf()))
            error = (rows.labels - unseen[rows.of]).reshape(len(rows.of), -1)
            variance = rows.variance_of_means(error**2)
            with_one = np.hstack([variance, np.ones((len(x), 1))])
            found = np.array(self.model_.prediction_variance(q, x, with_one, weights=weights))
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
    r"""Classes by kernel regression on their indicators: the classes of neighbours, by weight.

    $$ \hat p_c(x) = \frac{\sum_i w_i\, K(x, x_i)\, 1[y_i = c]}{\sum_i w_i\, K(x, x_i)} $$

    Its criteria are those of the squared error of the indicators: leave-one-out is the score of
    Brier, $\frac1n \sum_i \sum_c (\hat p_c^{(-i)}(x_i) - 1[y_i = c])^2$.

    **Arguments**, and what becomes of rows of the same input: as for `KernelRegressor`. A local
    polynomial (`order` 1, 2) and several iterations may leave the probabilities: they are cut to
    [0, 1], and divided by the sum. Where no row has weight, `on_empty` is `"nearest"` (the classes
    at the nearest input), `"mean"` (the frequencies of the classes, by weight) or `"raise"`.

    **Attributes:** as for `KernelRegressor`, and `classes_`.

    **Raises:** `ValueError` for labels that are no classes, and for `on_empty="nan"`.

    **Source:** Brier, *Verification of forecasts expressed in terms of probability* (1950).
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelClassifier":
        """Find the lengthscales. `y`: classes, shape (n,); `sample_weight`: (n,), from 0."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if isinstance(self.on_empty, str) and self.on_empty == "nan":
            raise ValueError('A class is never NaN: on_empty must be "nearest", "mean" or "raise".')
        self.classes_, of = np.unique(y, return_inverse=True)
        self.X_, self.y_ = X, y
        self.learn(X, np.eye(len(self.classes_))[of], sample_weight)
        return self

    def predict_proba(self, X: Any) -> Matrix:
        """Probabilities of `classes_`, shape (m, classes)."""
        cut = np.clip(self.predicted(X)[1], 0.0, 1.0)
        return cut / cut.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The class of the highest probability, shape (m,)."""
        probabilities = self.predict_proba(X)
        return self.classes_[np.argmax(probabilities, axis=1)]
