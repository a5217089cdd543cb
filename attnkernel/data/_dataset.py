"""Labelled data with axis labels and units."""

import equinox as eqx
from jaxtyping import Array, Float


class Dataset(eqx.Module):
    r"""Inputs $x_i$ and labels $y_i$ of a regression; for simulated data the true mean and noise.

    - `x`, shape (n, dim), and `y`, shape (n,), in the units of `x_names` and `y_name`.
    - `mean`, `sd`, shape (n,): the true $E[y \mid x_i]$ and standard deviation of the noise; None
      for real data.
    - `categories`: for each column the words of its codes, None for a numeric column; `ordered`:
      for each whether the words are in an order. Both are empty where all columns are numeric.
    - `dropped`: the number of rows that were left out because a cell of theirs was missing.

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
