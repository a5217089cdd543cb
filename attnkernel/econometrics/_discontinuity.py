"""Regression discontinuity: the jump of a mean at a cutoff, with robust intervals."""

from collections.abc import Hashable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .._core.arrays import as_points, as_real_array, is_concrete, require_finite, wider_dtype
from .._core.pandas_frames import is_frame, is_series, require_same_index
from .._core.rows import Rows, RowWeights, cut_rows, require_regression_data
from .._core.text_tables import align_columns
from .._core.validation import as_integer, require_level, require_positive, value_text
from ..attention import jit_if_pure
from ..inference import Bands
from ..kernels import Compact, Triangular
from ._discontinuity_figures import PILOT_FACTORS, compute_curves, compute_figures


class Discontinuity(eqx.Module):
    r"""The jump of a mean at a cutoff; printed, a table of its figures.

    - `estimate`: $\hat\tau$; `corrected`: $\hat\tau$ less its estimated bias, in the units of y;
      of a fuzzy design, in those of y over those of the treatment.
    - `standard_error`: of `corrected`; `conventional_error`: of `estimate`.
    - `lower`, `upper`: the interval about `corrected`; `p_value`: of no jump, by the normal
      distribution of `corrected`.
    - `lengthscale`, `bias_lengthscale`: h and b, in the units of x.
    - `rows`, `distinct`, `rows_within`, `bias_rows_within`: the numbers below the cutoff and from
      it on, shape (2,): of rows, of different inputs, of rows within h, and within b.
    - `first_stage`: the jump of the treatment of a fuzzy design; None for a sharp one.

    ```python
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, 500)
    y = np.sin(2.0 * x) + 0.5 * (x >= 0.0) + 0.3 * rng.normal(size=500)
    found = ak.econometrics.discontinuity(x, y, cutoff=0.0)
    print(found(np.array([-0.1, 0.1])), found.bands(np.array([-0.1, 0.1])))
    ```
    """

    estimate: Float[Array, ""]
    corrected: Float[Array, ""]
    standard_error: Float[Array, ""]
    conventional_error: Float[Array, ""]
    lower: Float[Array, ""]
    upper: Float[Array, ""]
    p_value: Float[Array, ""]
    lengthscale: Float[Array, ""]
    bias_lengthscale: Float[Array, ""]
    rows: Int[Array, "2"]
    distinct: Int[Array, "2"]
    rows_within: Int[Array, "2"]
    bias_rows_within: Int[Array, "2"]
    first_stage: Float[Array, ""] | None
    cutoff: Float[Array, ""]
    level: float = eqx.field(static=True)
    order: int = eqx.field(static=True)
    kernel: type[Compact] = eqx.field(static=True)
    x: Float[Array, "n 1"] = eqx.field(repr=False)
    y: Float[Array, "n 1"] = eqx.field(repr=False)
    weights: RowWeights | None = eqx.field(repr=False)
    x_name: Hashable = eqx.field(static=True, repr=False, default=None)
    y_name: Hashable = eqx.field(static=True, repr=False, default=None)

    def __call__(self, x_new: ArrayLike) -> Float[Array, " m"]:
        """Returns the fitted mean of y at new inputs, shape (m,) or (m, 1), from the rows on the
        same side of the cutoff, with lengthscale h; NaN where too few inputs are in reach."""
        return self._curves(x_new)["mean"]

    def bands(self, x_new: ArrayLike) -> Bands:
        """Returns pointwise bands of the mean of y, with the level and the correction of the jump.

        At the cutoff itself they are those of the rows from it on.
        """
        found = self._curves(x_new)
        del found["mean"]
        names = None if self.x_name is None else (self.x_name,)
        fixed = {"level": self.level, "kind": "pointwise", "is_bias_corrected": True}
        return Bands(as_points("x_new", x_new), **found, **fixed, x_names=names, y_name=self.y_name)

    def _curves(self, x_new: ArrayLike) -> dict[str, Array]:
        """Returns the mean and the fields of its bands at new inputs, by name: `compute_curves`.

        **Raises:** `ValueError` unless `x_new` is one column of finite numbers.
        """
        at = as_points("x_new", x_new)
        require_finite("x_new", at)
        if at.shape[1] != 1:
            raise ValueError(f"x_new must be one column, shape (m,) or (m, 1); got {at.shape}.")
        count, at = len(at), at.astype(self.x.dtype)
        rows = Rows(self.x, self.y, self.weights)
        if rows.can_use_numpy(at):
            rows, at = rows.padded(at)
        lengthscales = (self.lengthscale, self.bias_lengthscale)
        level = jax.device_put(np.asarray(self.level, at.dtype))
        parts = (self.kernel, self.order, lengthscales, self.cutoff, level)
        return cut_rows(jit_if_pure(compute_curves, parts, at, rows), count)

    def __str__(self) -> str:
        if not all(is_concrete(leaf) for leaf in jax.tree.leaves(self)):
            return repr(self)
        design = "sharp" if self.first_stage is None else "fuzzy"
        shape = f"order {self.order}, {self.kernel.__name__}"
        lines = [
            ("regression discontinuity", f"{design}, at {_number_text(self.cutoff)}; {shape}"),
            ("estimate", _with_error(self.estimate, self.conventional_error)),
            ("bias-corrected", _with_error(self.corrected, self.standard_error)),
            (
                f"{100 * self.level:.4g} % interval",
                f"{_number_text(self.lower)} to {_number_text(self.upper)}",
            ),
            ("p value of no jump", f"{float(self.p_value):.3g}"),
            (
                "lengthscales h, b",
                f"{_number_text(self.lengthscale)}, {_number_text(self.bias_lengthscale)}",
            ),
            ("rows", _pair_text(self.rows)),
            ("different inputs", _pair_text(self.distinct)),
            ("rows within h", _pair_text(self.rows_within)),
            ("rows within b", _pair_text(self.bias_rows_within)),
        ]
        if self.first_stage is not None:
            lines.insert(5, ("jump of the treatment", _number_text(self.first_stage)))
        return "\n".join(align_columns(lines))


def _number_text(value: Array) -> str:
    """Returns a number with six digits."""
    return f"{float(value):.6g}"


def _with_error(value: Array, error: Array) -> str:
    """Returns a number with its standard error."""
    return f"{_number_text(value)} (standard error {_number_text(error)})"


def _pair_text(pair: Array) -> str:
    """Returns two counts as text."""
    below, above = np.asarray(pair).tolist()
    return f"{below} below, {above} from the cutoff on"


MIN_ROWS = 20  # from which lengthscales are estimated


def discontinuity(
    x: ArrayLike | Any,
    y: ArrayLike | Any,
    *,
    cutoff: float | ArrayLike,
    treatment: ArrayLike | Any | None = None,
    order: int = 1,
    kernel: type[Compact] = Triangular,
    lengthscale: float | ArrayLike | None = None,
    bias_lengthscale: float | ArrayLike | None = None,
    level: float = 0.95,
    weights: ArrayLike | Any | None = None,
) -> Discontinuity:
    r"""The jump of the mean of y at a cutoff c of x: a regression discontinuity.

    $$ \hat\tau = \hat m_+(c) - \hat m_-(c), \qquad
       \hat\tau^{bc} = \hat\tau - h^{p+1} (\hat B_+ - \hat B_-) $$

    $\hat m_+$ and $\hat m_-$ are local polynomials of order p with lengthscale h from the rows with
    $x \ge c$ and from those with $x < c$. The bias $\hat B$ comes from coefficient p + 1 of local
    polynomials of order p + 1 with lengthscale b. The interval is $\hat\tau^{bc} \pm z\,
    \mathrm{se}$; se is the standard error of $\hat\tau^{bc}$, that of the bias estimate included.

    h and b minimise estimates of the mean squared error, each with the variance of its bias added
    so that neither is far too long. The variance of a label is estimated from its three nearest
    rows on its side, and all as near as the third. If a side has a fifth of its rows at repeated
    inputs, the pilot windows hold at least ten different inputs.

    **Arguments:**

    - `x`: the running variable, shape (n,) or (n, 1); `y`: labels, shape (n,).
    - `cutoff`: c, in the units of x, between the smallest and the largest.
    - `treatment`: t, shape (n,), for a fuzzy design: the jump of y is then divided by that of t,
      $\hat\tau_y / \hat\tau_t$, with standard errors by the delta method. h and b are those of y.
    - `order`: p, 0, 1 (default) or 2.
    - `kernel`: the class `ak.kernels.Triangular` (default), `ak.Epanechnikov` or
      `ak.kernels.Boxcar`; h and b are its half-widths.
    - `lengthscale`, `bias_lengthscale`: h and b, in the units of x. Default: estimated; b = h where
      only h is given.
    - `level`: of the interval, between 0 and 1.
    - `weights`: of rows, shape (n,), which multiply the kernel. Rows of weight 0 are not counted.

    **Returns:** a `Discontinuity`, whose `print` is a table.

    **Raises:** `ValueError` for a cutoff outside the inputs, fewer than 20 rows without a
    `lengthscale`, a `bias_lengthscale` without a `lengthscale`, too few different inputs on one
    side for the polynomials, or a treatment without a jump.

    The figures are those of rdrobust for Python and R with its defaults, `bwselect = "mserd"` and
    `vce = "nn"`, for a fuzzy design with `sharpbw = True`. A row at exactly the distance h has no
    weight under `ak.kernels.Boxcar`; there it has.

    **Source:** Calonico, Cattaneo and Titiunik, *Robust nonparametric confidence intervals for
    regression-discontinuity designs* (2014); Calonico, Cattaneo, Farrell and Titiunik, *rdrobust:
    Software for regression-discontinuity designs* (2017), for h and b.

    ```python
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, 500)
    y = np.sin(2.0 * x) + 0.5 * (x >= 0.0) + 0.3 * rng.normal(size=500)
    print(ak.econometrics.discontinuity(x, y, cutoff=0.0))
    ```
    """
    order = as_integer("order", order, 0)
    max_order = 2
    if order > max_order:
        raise ValueError(f"order must be 0, 1 or {max_order}; got {order}.")
    if not isinstance(kernel, type) or kernel not in PILOT_FACTORS:
        raise ValueError(
            f"kernel must be the class ak.kernels.Triangular, ak.Epanechnikov or "
            f"ak.kernels.Boxcar; got {value_text(kernel)}. "
            f"Its lengthscale is another argument, lengthscale=."
        )
    require_level("level", level)
    rows, treatments = _read_rows(x, y, treatment, weights)
    at = _read_cutoff(cutoff, rows)
    lengthscales = _read_lengthscales(lengthscale, bias_lengthscale, rows)
    arrays = (rows, *treatments)
    if rows.can_use_numpy(treatments):
        arrays = rows.padded(*treatments)
    arrays = (at, jax.device_put(np.asarray(level, at.dtype)), *arrays)
    figures = jit_if_pure(compute_figures, (kernel, order, lengthscales), *arrays)
    settings: dict[str, Any] = {"cutoff": at, "level": level, "order": order, "kernel": kernel}
    data: dict[str, Any] = {"x": rows.x, "y": rows.y, "weights": rows.weights}
    data |= {"x_name": _series_name(x), "y_name": _series_name(y)}
    found = Discontinuity(**figures, **settings, **data)
    _require_known(found)
    return found


def _read_rows(x: Any, y: Any, treatment: Any, weights: Any) -> tuple[Rows, list[Array]]:
    """Returns the rows and a list that holds the column of the treatment, all in one dtype.

    The list is empty without a treatment. **Raises:** `ValueError` for invalid data.
    """
    rows, _ = Rows.read_named(x, y, weights)
    labels = [rows.y]
    if treatment is not None:
        require_same_index("treatment", treatment, x)
        given = treatment.to_numpy() if is_frame(treatment) else treatment
        labels.append(as_points("treatment", given))
        require_finite("treatment", labels[1])
    if any(each.shape != (len(rows.x), 1) for each in (rows.x, *labels)):
        raise ValueError(
            f"x, y and treatment must be one column each; got shapes "
            f"{[each.shape for each in (rows.x, *labels)]}."
        )
    require_regression_data(rows.x, rows.y)
    dtype = wider_dtype(jnp.result_type(rows.x, *labels))
    points, y, *treatments = (each.astype(dtype) for each in (rows.x, *labels))
    return Rows(points, y, rows.weights), treatments


def _read_cutoff(cutoff: Any, rows: Rows) -> Float[Array, ""]:
    """Returns the cutoff in the dtype of x; `ValueError` unless rows are on both sides."""
    at, x, weights = as_real_array("cutoff", cutoff), rows.x, rows.weights
    if at.ndim:
        raise ValueError(f"cutoff must be one number, in the units of x; got {value_text(cutoff)}.")
    if is_concrete(at, x) and (weights is None or is_concrete(weights)):
        inputs = np.asarray(x)[:, 0]
        inputs = inputs if weights is None else inputs[np.asarray(weights) > 0]
        if not inputs.min() < float(at) <= inputs.max():
            raise ValueError(
                f"cutoff must be between the smallest and the largest x, {inputs.min():.6g} and "
                f"{inputs.max():.6g}; got {float(at):.6g}."
            )
    return at.astype(x.dtype)


def _read_lengthscales(h: Any, b: Any, rows: Rows) -> tuple[Array, Array] | None:
    """Returns the lengthscales (h, b) of the user, with b = h if b is None; None if h is None.

    **Raises:** `ValueError` for b without h, for a number that is not positive, and without h for
    fewer than `MIN_ROWS` rows with weight.
    """
    if h is None:
        if b is not None:
            raise ValueError("bias_lengthscale is given without lengthscale: pass both, or none.")
        weights = rows.weights
        if weights is not None and not is_concrete(weights):
            return None
        count = len(rows.x) if weights is None else int(np.sum(np.asarray(weights) > 0))
        if count < MIN_ROWS:
            raise ValueError(
                f"Lengthscales are estimated from at least {MIN_ROWS} rows of x; there are "
                f"{count}. Pass lengthscale=, in the units of x."
            )
        return None
    pair = []
    for name, value in (("lengthscale", h), ("bias_lengthscale", h if b is None else b)):
        require_positive(name, value)
        array = as_real_array(name, value)
        if array.ndim:
            raise ValueError(f"{name} must be one number; got {value_text(value)}.")
        pair.append(array.astype(rows.x.dtype))
    return pair[0], pair[1]


def _series_name(column: Any) -> Hashable:
    """Returns the name of a `Series` of pandas; None for other columns."""
    return column.name if is_series(column) else None


def _require_known(found: Discontinuity) -> None:
    """Raises `ValueError` where lengthscales, the jump or its error could not be estimated, or the
    jump of the treatment is 0; not inside `jit`."""
    h, b = found.lengthscale, found.bias_lengthscale
    if not is_concrete(found.estimate, h):
        return
    if not all(np.isfinite(each) and each > 0 for each in (float(h), float(b))):
        raise ValueError(
            f"The lengthscales of x came to {float(h):.3g} and {float(b):.3g}: there are too few "
            f"different inputs, {np.asarray(found.distinct).tolist()} on the two sides, or y has "
            f"no noise. Pass lengthscale=, in the units of x."
        )
    if found.first_stage is not None and not float(found.first_stage):
        raise ValueError("treatment has no jump, by which that of y could be divided.")
    if not np.isfinite(found.estimate) or not np.isfinite(found.standard_error):
        counts = (found.rows_within, found.bias_rows_within)
        within = [np.asarray(pair).tolist() for pair in counts]
        raise ValueError(
            f"Polynomials of order {found.order} and {found.order + 1} need more different inputs: "
            f"the lengthscales {float(h):.6g} and {float(b):.6g} hold {within[0]} and {within[1]} "
            f"rows on the two sides. Pass a longer lengthscale=, or a lower order=."
        )
