"""Labelled data with names and units, made, bundled, or read from a CSV file."""

import equinox as eqx
from jaxtyping import Array, Float


class Dataset(eqx.Module):
    """Inputs and labels of a regression, and the truth behind them where it is known.

    `x` has shape (n, dim), `y` shape (n,). `x_names` and `y_name` are labels for axes, with units.
    `mean` and `sd`, shape (n,), are the true E[y | x] and standard deviation of the noise, known
    for simulated data only.
    """

    x: Float[Array, "*batch n dim"]
    y: Float[Array, "*batch n"]
    x_names: tuple[str, ...] = eqx.field(static=True, default=("x",))
    y_name: str = eqx.field(static=True, default="y")
    mean: Float[Array, "*batch n"] | None = None
    sd: Float[Array, "*batch n"] | None = None
    categories: tuple[tuple[str, ...] | None, ...] = eqx.field(static=True, default=())
