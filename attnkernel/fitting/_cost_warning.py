"""The warning before a search whose criterion sums all pairs of very many rows."""

from typing import Any

import jax
import jax.numpy as jnp

from ..attention import Auto, select_method
from ..methods import Blockwise
from ..models import KernelRegression
from ..priors import ExcludeSelf, KeyWeights
from ._problem import Data

# Value and gradient of leave-one-out in float32, 15 000 rows, 2 cores: 0.6 · 10⁹ pairs a second of
# a Gaussian in 4 dimensions, 0.2 of a Cauchy kernel in 1, 0.15 of a Matérn 3/2 kernel in 4
PAIRS_PER_SECOND = 3e8
MIN_SECONDS = 10.0  # of one evaluation: the warning comes from here on


def cost_warnings(model: Any, data: Data) -> list[str]:
    """Returns one sentence if an evaluation sums all pairs on a CPU for more than 10 seconds.

    It names a rough cost, why no faster sum applies, and what would be faster.
    Local polynomials are not covered, nor models with a method of their own.
    """
    n = len(data.x)
    seconds = n**2 / PAIRS_PER_SECOND
    is_covered = isinstance(model, KernelRegression) and model.order == 0
    if seconds < MIN_SECONDS or not is_covered or not isinstance(model.method, Auto):
        return []
    weights = data.objective.weights
    prior = ExcludeSelf()
    if weights is not None:
        prior = prior * KeyWeights(jnp.log(weights))
    labels = jax.ShapeDtypeStruct((n, 1), data.y.dtype)
    points = jax.ShapeDtypeStruct(data.x.shape, data.x.dtype)
    selection = select_method(
        points, points, labels, kernel=model.kernel, prior=prior, rule=model.rule
    )
    if jax.default_backend() != "cpu" or not isinstance(selection.method, Blockwise):
        return []
    reasons = "; ".join(f"not {name}: {why}" for name, why in selection.skipped if name != "Dense")
    return [
        f"{type(data.objective).__name__} of {n} rows sums {n**2:.1e} pairs: very roughly "
        f"{seconds:.0f} s an evaluation, less where distant rows are skipped. A search takes about "
        f"10 for each parameter and each minimum. No faster sum applies ({reasons}). Faster: "
        f"ak.Gaussian in up to 3 dimensions, ak.Laplace or a compact kernel in 1, without weights "
        f"of rows; a fit to a random part of the rows; or objective=ak.HoldOut(1000) with an "
        f"optimizer and a key, which sums {1000 * n:.1e} pairs a step."
    ]
