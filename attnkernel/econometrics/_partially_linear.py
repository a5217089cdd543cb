"""Partially linear regression: some columns enter linearly, the others through a smoother."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray, inverse_or_zero, is_concrete, precise_matmul
from .._core.rows import Inputs, NewInputs, Rows
from .._core.validation import as_integer_tuple, require_choice, require_instance
from ..attention import jit_if_pure
from ..inference import row_diagnostics
from ..models import DataSupport, DenseSmoother, LinearSmoother, with_bounds_of
from ..priors import Prior


class LinearCoefficients(NamedTuple):
    """The coefficients β of a `PartiallyLinear` and their standard errors, in units of y over those
    of each linear column.

    ```python
    x = np.random.default_rng(0).uniform(size=(60, 2))
    inner = ak.KernelRegression(ak.Gaussian(0.2), order=1)
    model = ak.econometrics.PartiallyLinear(inner, linear=(0,))
    found = model.coefficients(x, 3.0 * x[:, 0] + np.sin(6 * x[:, 1]))
    print(found.estimate, found.standard_error)
    ```
    """

    estimate: Float[Array, " linear"]
    standard_error: Float[Array, " linear"]


class PartiallyLinear(DenseSmoother):
    r"""Some columns enter linearly, the others through a smoother.

    $$ y = z^\top \beta + m(x) + e, \qquad
       \hat\beta = (\tilde Z^\top \tilde Z)^{-1} \tilde Z^\top \tilde y, \qquad
       \tilde Z = (I - S) Z,\ \tilde y = (I - S) y $$

    S is the hat matrix of the smoother, from the columns x that are not linear: residuals of y are
    regressed on those of Z. $\hat m = S (y - Z \hat\beta)$. The fit is linear in the labels:
    `ak.AICc` (default) and `ak.GCV` choose the lengthscales, and `ak.degrees_of_freedom`,
    `ak.summarise` and `ak.bands(fit, x_new, corrected=False, noise="constant")` work. Leave-one-out
    would need a fit for each row, and is refused. It takes O(n³) time, and up to 3000 rows.

    A constant belongs to m: no linear column may be constant, or a function of the others in reach
    of the kernel. β is then not identified, and predictions are NaN.

    **Arguments:**

    - `model`: a `LinearSmoother` of the columns that are not linear, such as a `KernelRegression`
      or an `AdditiveRegression`; its columns are counted without the linear ones.
    - `linear`: the columns z, counted from 0; or one number.

    **Raises:** `ValueError` for another model, or a column that comes twice.

    **Source:** Robinson, *Root-N-consistent semiparametric regression* (1988); Speckman, *Kernel
    smoothing in partial linear models* (1988).

    ```python
    x = np.random.default_rng(0).uniform(size=(60, 2))
    y = 3.0 * x[:, 0] + np.sin(6 * x[:, 1])
    inner = ak.KernelRegression(ak.Gaussian(0.1), order=1)
    model = ak.econometrics.PartiallyLinear(inner, linear=(0,))
    print(model.coefficients(x, y))
    ```
    """

    default_objective: ClassVar[str] = "aicc"
    model: LinearSmoother
    linear: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, model: LinearSmoother, *, linear: int | Sequence[int] | np.ndarray):
        require_instance("model", model, LinearSmoother, "ak.KernelRegression(ak.Gaussian(0.3))")
        self.model = model
        self.linear = as_integer_tuple("linear", linear, 0)
        if not self.linear or len(set(self.linear)) < len(self.linear):
            raise ValueError(f"linear must name each column once, and one at least; got {linear}.")

    @property
    def description(self) -> str:
        """Such as `local linear, partially linear in 2 columns`."""
        return f"{self.model.description}, partially linear in {len(self.linear)} columns"

    def coefficients(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        noise: Literal["constant", "rows"] = "constant",
        weights: ArrayLike | None = None,
    ) -> LinearCoefficients:
        r"""β and its standard errors, for labels of shape (n,).

        $$ \hat\beta = B y, \qquad \mathrm{se}^2 = \sum_i B_{ci}^2 \hat\sigma_i^2 $$

        **Arguments:** `noise`: `"constant"` (default): $\hat\sigma_i^2 = \hat\sigma^2 / w_i$, with
        $\hat\sigma^2 = \sum_i w_i r_i^2 / (n - 2\nu + \tilde\nu)$, of the residuals of the whole
        fit. `"rows"`: the squared residual of each row, over its expectation where σ is 1, for
        noise that depends on x. The other arguments as for the call.

        **Raises:** `ValueError` as the call, for several labels per row, and, outside `jit`, where
        β is not identified.
        """
        require_choice("noise", noise, ("constant", "rows"))
        _, rows = self.read(x, x, y, weights)
        self.check_inputs(rows.x, rows.x)
        if not rows.has_one_label:
            raise ValueError(f"Coefficients are of one label per row; y has shape {np.shape(y)}.")
        found = jit_if_pure(_estimate_coefficients, (self, noise), rows.x, rows)
        if is_concrete(found.estimate) and not np.all(np.isfinite(found.estimate)):
            raise ValueError(
                f"The coefficients of the columns {self.linear} are not identified: one is "
                f"constant, or a function of the other columns. Leave it out."
            )
        return found

    def hat_rows(self, q: NewInputs | None, rows: Rows) -> Float[Array, "m n"]:
        """$L_j(x)$ at queries q, from checked data; 0 where no label has weight, NaN if β is not
        identified. For `q=None` at the rows."""
        z, inner = self._split_rows(rows)
        z_new, rest_new = self._split(rows.x if q is None else q)
        plain = self.model.estimate(None if q is None else rest_new, inner).weights
        away = z_new - precise_matmul(plain, z)
        found = plain + precise_matmul(away, self._coefficient_rows(rows))
        return jnp.where(jnp.any(plain != 0, axis=1)[:, None], found, 0.0)

    def support_at(self, q: NewInputs, rows: Rows, prior: Prior | None = None) -> DataSupport:
        """How well the data determine the smoother at queries, in its columns alone."""
        inner = self._split_rows(rows)[1]
        return self.model.estimate(self._split(q)[1], inner, prior=prior).support

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns of x, without the linear ones, that hold codes of categories.

        Each is mapped to the number of its categories, as in `ak.kernels.category_counts`.
        """
        rest = self._columns_of_model(dim)
        return {rest[j]: count for j, count in self.model.category_counts(len(rest)).items()}

    @property
    def can_pad_rows(self) -> bool:  # type: ignore[override]
        """Whether the smoother allows padded rows: its own `can_pad_rows`."""
        return self.model.can_pad_rows

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """The box for a fit: the models of all lower and of all upper bounds, which are those of
        the smoother for its columns."""
        box = self.model.search_box(x[:, self._columns_of_model(x.shape[1])], weights)
        return with_bounds_of("model", self, box)

    def _columns_of_model(self, dim: int) -> list[int]:
        """Returns the columns that are not in `linear`; `ValueError` if `linear` names one beyond
        `dim` columns, or none is left."""
        rest = [column for column in range(dim) if column not in self.linear]
        if max(self.linear) >= dim or not rest:
            raise ValueError(
                f"linear={self.linear} needs x with these columns, counted from 0, and others for "
                f"the smoother; x has {dim} columns."
            )
        return rest

    def _split(self, x: Float[Array, "n dim"]) -> tuple[Array, Array]:
        """Returns the linear columns, and those of the smoother."""
        rest = self._columns_of_model(x.shape[1])
        return x[:, np.asarray(self.linear)], x[:, np.asarray(rest)]

    def _split_rows(self, rows: Rows) -> tuple[Float[Array, "n linear"], Rows]:
        """Returns the linear columns, and the rows in those of the smoother."""
        z, rest = self._split(rows.x)
        return z, Rows(rest, rows.y, rows.weights, rows.has_one_label)

    def _coefficient_rows(self, rows: Rows) -> Float[Array, "linear n"]:
        """Returns B, which maps labels to β; NaN where β is not identified."""
        k, weights = rows.x, rows.row_weights(rows.x.dtype)
        z, inner = self._split_rows(rows)
        z = z - jnp.average(z, axis=0, weights=weights)[None, :]
        left_over = jnp.eye(len(k), dtype=k.dtype) - self.model.estimate(None, inner).weights
        root = jnp.sqrt(weights)[:, None]
        residuals = root * precise_matmul(left_over, z)
        basis, upper = jnp.linalg.qr(residuals)
        size = jnp.sqrt(jnp.sum((root * z) ** 2, axis=0))
        least = len(k) * jnp.finfo(k.dtype).eps * size
        is_known = jnp.all(jnp.abs(jnp.diag(upper)) > least)
        upper = jnp.where(is_known, upper, jnp.eye(len(upper), dtype=k.dtype))
        right = precise_matmul((basis * root).T, left_over)
        found = jnp.linalg.solve(upper, right)
        return jnp.where(is_known, found, jnp.nan)


def _estimate_coefficients(
    model: PartiallyLinear, noise: str, k: Float[Array, "n dim"], rows: Rows
) -> LinearCoefficients:
    """Returns β and its standard errors, from checked data of one label."""
    b, has_weight = model._coefficient_rows(rows), rows.has_weight
    found = row_diagnostics(model.estimate(None, rows))
    residuals = jnp.where(has_weight, rows.labels - found.fitted, 0.0)
    expected = jnp.where(has_weight, 1.0 - 2.0 * found.leverage + found.norms, 0.0)
    if noise == "rows":
        variance = residuals**2 / jnp.maximum(expected, jnp.finfo(k.dtype).eps ** 0.5)
        variance = jnp.where(has_weight, variance, 0.0)
    else:
        total = jnp.sum(found.weights * residuals**2) / jnp.sum(expected)
        variance = total * inverse_or_zero(found.weights)
    error = jnp.sqrt(precise_matmul(b**2, variance))
    return LinearCoefficients(precise_matmul(b, rows.labels - jnp.mean(rows.y)), error)
