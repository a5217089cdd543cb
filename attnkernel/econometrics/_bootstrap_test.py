"""The result of a test by bootstrap: a statistic among its values for labels of the hypothesis."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import is_concrete
from .._core.text_tables import align_columns


class BootstrapTest(eqx.Module):
    r"""The result of a test by bootstrap; `print` shows a table.

    $$ p = \frac{1 + \#\{b : T^*_b \ge T\}}{B + 1} $$

    T is the `statistic`, without a unit, and $T^*_1, \dots, T^*_B$ are the `bootstrap_statistics`:
    its values for labels that are drawn under the `hypothesis`. Reject it at the level α where
    `p_value` is at most α. Where α (B + 1) is an integer, as for α = 0.05 and B = 399, the number
    of draws adds no error to the level; that of the bootstrap itself remains.

    ```python
    data = ak.data.load("mcycle")
    test = ak.econometrics.specification_test(data.x, data.y, key=jax.random.PRNGKey(0))
    assert test.p_value <= 0.05  # the acceleration is no linear function of time
    ```
    """

    statistic: Float[Array, ""]
    p_value: Float[Array, ""]
    bootstrap_statistics: Float[Array, " draws"] = eqx.field(repr=False)
    hypothesis: str = eqx.field(static=True)

    def __str__(self) -> str:
        if not is_concrete(self.statistic) or self.statistic.ndim:
            return repr(self)
        draws = np.asarray(self.bootstrap_statistics)
        lines = (
            ("hypothesis", self.hypothesis),
            ("statistic", f"{float(self.statistic):.4g}"),
            ("its 95 % quantile", f"{np.quantile(draws, 0.95):.4g}, of {len(draws)} draws"),
            ("p-value", f"{float(self.p_value):.4f}"),
        )
        return "\n".join(align_columns(lines))


def statistic_with_p_value(
    statistics: Float[Array, " all"],
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, " draws"]]:
    """Returns the first statistic, its p-value, and the others, which are of the bootstrap."""
    statistic, draws = statistics[0], statistics[1:]
    share = (1.0 + jnp.sum(draws >= statistic)) / statistics.shape[0]
    return statistic, share.astype(statistics.dtype), draws
