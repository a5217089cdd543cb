"""Labelled data with axis labels and units; simulated data, with their true mean and noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._core.arrays import as_points, as_real_array
from .._core.validation import as_integer, require_key


class Dataset(eqx.Module):
    r"""Inputs $x_i$ and labels $y_i$ of a regression; for simulated data the true mean and noise.

    - `x`, shape (n, dim), and `y`, shape (n,), in the units of `x_names` and `y_name`.
    - `mean`, `sd`, shape (n,): the true $E[y \mid x_i]$ and standard deviation of the noise; None
      for real data.
    - `categories`: for each column the words of its codes, None for a numeric column; `ordered`:
      for each whether the words are in an order. Both are empty where all columns are numeric.
    - `dropped`: the number of rows that were left out because a cell of theirs was missing, or
      their weight 0.
    - `weights`, shape (n,): inverse variances of the labels, as `ak.fit` takes them; `clusters`,
      shape (n,): the code of the cluster of each row, for `ak.objectives.GroupKFold` and
      `ak.bands`. None where there are none.

    ```python
    >>> ak.data.Dataset(jnp.zeros((3, 1)), jnp.arange(3.0), x_names=("time (s)",)).y_name
    'y'
    ```
    """

    x: Float[Array, "*batch n dim"]
    y: Float[Array, "*batch n"]
    x_names: tuple[str, ...] = eqx.field(static=True, default=("x",))
    y_name: str = eqx.field(static=True, default="y")
    mean: Float[Array, "*batch n"] | None = None
    sd: Float[Array, "*batch n"] | None = None
    categories: tuple[tuple[str, ...] | None, ...] = eqx.field(static=True, default=())
    ordered: tuple[bool, ...] = eqx.field(static=True, default=())
    dropped: int = eqx.field(static=True, default=0)
    weights: Float[Array, "*batch n"] | None = None
    clusters: Int[Array, "*batch n"] | None = None


def heteroskedastic_mean(x: ArrayLike) -> Float[Array, "*shape"]:
    r"""Returns the mean $f(x) = \tfrac12 \sin x - \sin 3x + x^2 / 5$, in the shape of x.

    ```python
    >>> ak.data.heteroskedastic_mean(0.0)
    Array(0., dtype=float32)
    ```
    """
    x = as_real_array("x", x)
    return 0.5 * jnp.sin(x) - jnp.sin(3.0 * x) + x**2 / 5.0


def heteroskedastic_sd(x: ArrayLike) -> Float[Array, "*shape"]:
    r"""Returns the noise level $s(x) = 0.2 + 0.05 |x|$, in the shape of x.

    ```python
    >>> ak.data.heteroskedastic_sd(0.0)
    Array(0.2, dtype=float32)
    ```
    """
    return 0.2 + 0.05 * jnp.abs(as_real_array("x", x))


def heteroskedastic(*, key: PRNGKeyArray, n: int = 150) -> Dataset:
    r"""Simulates a smooth curve with noise that grows away from the centre.

    $$ y_i = f(x_i) + s(x_i)\, \varepsilon_i, \qquad \varepsilon_i \sim \mathcal{N}(0, 1),
       \qquad x_i \text{ equally spaced on } [-3, 3] $$

    with $f(x) = \tfrac12 \sin x - \sin 3x + x^2/5$ and $s(x) = 0.2 + 0.05|x|$.

    ```python
    >>> data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=5)
    >>> data.x[:, 0]
    Array([-3. , -1.5,  0. ,  1.5,  3. ], dtype=float32)
    ```

    **Arguments:** `key`: a PRNG key; `n`: number of points, at least 3, default 150.

    **Returns:** a `Dataset` with x (n, 1), y (n,), and the true `mean` and `sd`. The noise is
    drawn in float32 at any precision, so that a key gives the same data in each.

    **Source:** P. Czyż, *From kernel regression to the transformer* (2024).
    """
    n = as_integer("n", n, 3)
    require_key("key", key)
    # by NumPy, in float64: in float32 the steps of XLA's grid differ by rounding
    x = as_points("x", np.linspace(-3.0, 3.0, n))
    y, mean, sd = _simulate_labels(key, x)
    return Dataset(x, y, ("x",), "y", mean, sd)


@jax.jit
def _simulate_labels(key: PRNGKeyArray, x: Float[Array, "n 1"]) -> tuple[Array, Array, Array]:
    """Returns y, mean and noise level of `heteroskedastic` at x."""
    mean, sd = heteroskedastic_mean(x[:, 0]), heteroskedastic_sd(x[:, 0])
    noise = jax.random.normal(key, mean.shape, dtype=jnp.float32).astype(x.dtype)
    return mean + sd * noise, mean, sd
