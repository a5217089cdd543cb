"""The result of a regression discontinuity: a table of its figures, and the means of both sides."""

from collections.abc import Hashable

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_points, require_finite
from .._core.host_arrays import is_concrete, is_on_one_device
from .._core.row_buckets import cut_rows, pad_rows
from .._core.text_tables import align_columns
from ..attention import jit_if_pure
from ..inference import Bands
from ..kernels import Compact
from ._discontinuity_figures import compute_curves, normal_quantile


class Discontinuity(eqx.Module):
    r"""The jump of a mean at a cutoff; printed, a table of its figures.

    - `estimate`: $\hat\tau$; `corrected`: $\hat\tau$ less its estimated bias, in the units of y.
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
    weights: Float[Array, " n"] | Bool[Array, " n"] | None = eqx.field(repr=False)
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
        """Returns the mean and the fields of its bands at new inputs."""
        at = as_points("x_new", x_new)
        require_finite("x_new", at)
        if at.shape[1] != 1:
            raise ValueError(f"x_new must be one column, shape (m,) or (m, 1); got {at.shape}.")
        count, at = len(at), at.astype(self.x.dtype)
        x, y, weights = self.x, self.y, self.weights
        if is_on_one_device(at, x, y, weights):
            x, y, weights, at = pad_rows(x, y, weights, at)
        lengthscales = (self.lengthscale, self.bias_lengthscale)
        quantile = normal_quantile(self.level, x.dtype)
        parts = (self.kernel, self.order, lengthscales, self.cutoff, quantile, weights)
        return cut_rows(jit_if_pure(compute_curves, parts, at, x, y, is_forward=True), count)

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
