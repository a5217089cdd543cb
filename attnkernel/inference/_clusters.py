r"""Standard errors from labels whose errors are dependent within clusters.

$$ \mathrm{se}(x)^2 = c \sum_g \Big( \sum_{i \in g} L_i(x)\, e_i \Big)^2 $$
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.rows import bucket_size
from .._core.validation import require_choice
from ..fitting import Fit
from ..models import LinearSmoother
from ..objectives import OtherFolds, as_group_codes
from ._variance import RowVariance

CLUSTERED_NOISE = ("rows", "hc0", "hc1", "hc2", "hc3")


class Clusters(eqx.Module):
    """The cluster of each row, from 0, and the half-width of an interval in standard errors."""

    codes: Int[Array, " n"]
    half_width: Float[Array, ""]  # a quantile of Student's t
    number: Int[Array, ""]
    count: int = eqx.field(static=True)  # at least their number: data of similar size share it

    @classmethod
    def of_rows(
        cls, clusters: Any, fit: Fit, level: float, noise: str, rows: int, kind: str = "pointwise"
    ) -> "Clusters":
        """Returns the clusters of the rows of a fit, padded to a number of rows.

        **Raises:** `ValueError` unless there is one for each row, and two or more of them, and
        there are clustered standard errors of such a band.
        """
        from scipy.special import stdtrit  # noqa: PLC0415  `import attnkernel` needs no SciPy

        if not isinstance(fit.model, LinearSmoother):
            raise ValueError(
                f"clusters= is for linear smoothers; this fit is of a {type(fit.model).__name__}."
            )
        if kind == "simultaneous":
            raise ValueError(
                "A simultaneous band is simulated from independent errors, and clusters= says that "
                'they are not: pass kind="pointwise".'
            )
        require_choice("noise", noise, CLUSTERED_NOISE)
        codes, number = as_group_codes("clusters", clusters)
        if len(codes) != len(fit.x) or number < 2:
            raise ValueError(
                f"clusters must be two or more, one for each of the {len(fit.x)} rows of the fit; "
                f"got {number} of {len(codes)} rows."
            )
        padded = np.pad(codes, (0, rows - len(codes)), mode="edge")
        half_width = np.asarray(stdtrit(number - 1, 0.5 + 0.5 * level), fit.y.dtype)
        parts = (padded, half_width, np.asarray(number, np.int32))
        codes, half_width, total = jax.device_put(parts)
        return cls(codes, half_width, total, bucket_size(number))

    def factor(self, n: Array, trace: Float[Array, ""]) -> Float[Array, ""]:
        r"""$\frac{G}{G - 1} \frac{n - 1}{n - \nu}$ of n rows, ν degrees of freedom, G clusters."""
        left = jnp.maximum(n - trace, jnp.finfo(trace.dtype).eps ** 0.5)
        return (n - 1) / left * self.number / (self.number - 1)

    def sum_of_squares(
        self, predict: Callable[[Array], Array], errors: Float[Array, "n out"]
    ) -> Float[Array, "m out"]:
        """The squares of the predictions from the errors of one cluster, summed over clusters.

        `predict`: from labels, shape (n, columns), to predictions that are linear in them.
        """
        n, out = errors.shape
        max_labels = 2**22  # numbers of labels at a time, rows times clusters
        size = max(1, min(self.count, max_labels // (n * out)))

        def of_chunk(first: Int[Array, ""]) -> Float[Array, "m out"]:
            own = self.codes[:, None] == first + jnp.arange(size)[None, :]
            labels = jnp.where(own[:, :, None], errors[:, None, :], 0.0)
            found = predict(labels.reshape(n, size * out))
            return jnp.sum(found.reshape(-1, size, out) ** 2, axis=1)

        return jnp.sum(jax.lax.map(of_chunk, jnp.arange(0, self.count, size)), axis=0)

    def errors(self, rule: RowVariance) -> Float[Array, "n out"]:
        """Returns the errors of labels whose sums over clusters are squared, times their factor."""
        rows = rule.rows
        if rule.noise != "rows":
            factor = self.factor(jnp.sum(rule.weights > 0), jnp.sum(rule.leverage))
            residuals, factors = rule.residuals(rule.model.estimate(None, rows))
            return residuals * jnp.sqrt(factors * factor)
        prior = OtherFolds(self.codes)
        others = rule.model(rows.x, rows.x, rows.y, prior=prior, **rows.kwargs)
        # where no other cluster is in reach the prediction is the mean of all labels
        mean = jnp.mean(rows.y, axis=0, keepdims=True)
        return rows.y - jnp.where(jnp.isnan(others), mean, others)
