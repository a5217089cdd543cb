"""The warning before a search whose criterion sums all pairs of very many rows."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from .._core.host_arrays import AnyArray
from ..attention import Auto, Selection, select_method
from ..methods import Blockwise
from ..models import KernelRegression
from ..priors import ExcludeSelf, KeyWeights
from ._problem import Data

# Value and gradient of leave-one-out in float32, 2 cores, in 10⁹ pairs a second:
# - order 0, 15 000 rows: Gaussian in 4 dimensions 0.6, Cauchy in 1 0.2, Matérn 3/2 in 4 0.15
# - order 1, 8000 rows, Gaussian: in 2 dimensions 0.13, in 4 0.11, in 10 0.06
# - order 2, 8000 rows, Gaussian: in 2 dimensions 0.12
PAIRS_PER_SECOND = (3e8, 1e8, 1e8)  # of each order
MIN_SECONDS = 10.0  # of one evaluation: the warning comes from here on


def cost_warnings(model: Any, data: Data) -> list[str]:
    """Returns one sentence if an evaluation sums all pairs on a CPU for more than 10 seconds.

    It names a rough cost, why no faster sum applies, and what would be faster. Models with a method
    of their own are not covered.
    """
    if not isinstance(model, KernelRegression) or not isinstance(model.method, Auto):
        return []
    n, order = len(data.x), model.order
    seconds = n**2 / PAIRS_PER_SECOND[order]
    if seconds < MIN_SECONDS:
        return []
    selection = select_for_leave_one_out(model, data.x, data.objective.weights)
    if jax.default_backend() != "cpu" or not isinstance(selection.method, Blockwise):
        return []
    reasons = "; ".join(f"not {name}: {why}" for name, why in selection.skipped if name != "Dense")
    faster = (
        "ak.Gaussian in up to 3 dimensions, ak.Laplace or a compact kernel in 1, without weights"
    )
    if order:
        faster = "ak.Gaussian in 1 dimension, or order 0 in up to 3, without weights"
    return [
        f"{type(data.objective).__name__} of {n} rows sums {n**2:.1e} pairs: very roughly "
        f"{seconds:.0f} s an evaluation, less where distant rows are skipped. A search takes about "
        f"10 for each parameter and each minimum. No faster sum applies ({reasons}). Faster: "
        f"{faster} of rows; a fit to a random part of the rows; or objective=ak.HoldOut(1000) with "
        f"an optimizer and a key, which sums {1000 * n:.1e} pairs a step."
    ]


def select_for_leave_one_out(
    model: KernelRegression,
    x: Float[AnyArray, "n dim"],
    weights: Float[AnyArray, " n"] | None,
) -> Selection:
    """Returns the method that sums leave-one-out of all rows; only shapes matter."""
    prior = ExcludeSelf()
    if weights is not None:
        prior = prior * KeyWeights(jnp.log(weights))
    labels = jax.ShapeDtypeStruct((len(x), 1), x.dtype)
    points = jax.ShapeDtypeStruct(x.shape, x.dtype)
    parts = {"kernel": model.kernel, "prior": prior, "rule": model.rule, "order": model.order}
    return select_method(points, points, labels, **parts)
