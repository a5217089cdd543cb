r"""The choice among orders, and between a common lengthscale and one per column, by a criterion.

$$ \hat m = \arg\min_m \Big( \log L_m + p_m \frac{\log n}{n} \Big) $$

$L_m$ is the criterion of candidate m at its minimum, $p_m$ its number of lengthscales, n the number
of distinct inputs. The second term is that of Schwarz (1978): a minimum over more lengthscales is
lower by chance. AICc takes the place of $\log L$.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..fitting import Fit, fit
from ..objectives import GCV, AICc, KFold, LeaveOneOut, Objective

AUTO = "auto"
COMMON_STARTS = 3  # where one lengthscale is searched


class Candidate(NamedTuple):
    """A fitted candidate. `scale`: the units of its inputs, 1 for those that were given."""

    fit: Fit
    order: int
    per_dimension: bool
    scale: Float[np.ndarray, "*columns"]
    warnings: tuple[warnings.WarningMessage, ...]

    @property
    def penalised(self) -> float:
        """The criterion with the penalty on the number of lengthscales; infinite for NaN."""
        loss, n = float(self.fit.loss), len(self.fit.x)
        size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(self.fit.model, eqx.is_array)))
        log = loss if isinstance(self.fit.objective, AICc) else float(np.log(loss))
        return log + size * np.log(n) / n if np.isfinite(log) else np.inf


def require_comparable(objective: Objective) -> None:
    """Raises `ValueError` unless the logarithm of the objective, or AICc, ranks candidates."""
    if not isinstance(objective, LeaveOneOut | KFold | GCV | AICc):
        raise ValueError(
            f'"auto" compares criteria by their logarithm: objective must be "leave-one-out", '
            f'"gcv", "aicc" or ak.KFold(k); got {type(objective).__name__}. Try order=0 and '
            f"per_dimension=True."
        )


def fit_candidates(
    smoother: Callable[[Any, int], Any],
    kernel: type,
    data: tuple[Float[np.ndarray, "n dim"], np.ndarray, np.ndarray | None],
    orders: tuple[int, ...],
    per_dimension: tuple[bool, ...],
    objective: Objective,
    starts: int | None,
) -> Candidate:
    """Returns the candidate with the least penalised criterion, and gives its warnings.

    `smoother`: the model of a kernel and an order; `kernel`: its class; `data`: inputs, labels and
    weights. A common lengthscale is in standard deviations of the columns if both kinds are
    candidates, else in the units of x. A search of one per column begins there. This is its
    only start if `starts` is None: on eleven data sets of scikit-learn ten starts end at the same
    minimum, and take up to eight times as long.
    """
    x, y, weights = data
    n, dim = x.shape
    deviation, no_unit = np.std(x, axis=0), np.ones(())
    unit = deviation if True in per_dimension else no_unit  # of a common lengthscale
    found: list[Candidate] = []

    def search(order: int, lengthscale: Any, starts: int | None, scale: Any) -> Candidate:
        model = smoother(kernel(lengthscale), order)
        parts: dict[str, Any] = {"weights": weights, "objective": objective, "starts": starts}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            one = fit(model, x / scale, y, **parts)
        found.append(Candidate(one, order, np.ndim(lengthscale) > 0, scale, tuple(caught)))
        return found[-1]

    for order in orders:
        begin, number = n ** (-1 / (dim + 4)), starts
        if False in per_dimension:
            begin *= float(np.sqrt(np.mean((deviation / unit) ** 2)))
            common = search(order, begin, starts or COMMON_STARTS, unit).fit.model.kernel
            begin, number = float(common.lengthscale), starts or 1
        if True in per_dimension:
            search(order, deviation * begin, number, no_unit)
    best = min(found, key=lambda candidate: candidate.penalised)
    for warning in best.warnings:
        warnings.warn(warning.message, warning.category, stacklevel=4)
    return best


def kernel_of(candidate: Candidate) -> Any:
    """Returns the fitted kernel in the units of the given inputs, one lengthscale per column."""
    kernel = candidate.fit.model.kernel
    longer: Array = jnp.asarray(kernel.lengthscale) * candidate.scale
    return eqx.tree_at(
        lambda kernel: kernel.lengthscale_parameter,
        kernel,
        type(kernel)(longer).lengthscale_parameter,
    )
