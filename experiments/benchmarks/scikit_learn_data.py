"""Data sets for regression that scikit-learn ships or makes, as a data source of configs.

Sets for classification become ones for regression: one measurement from the others.
"""

import importlib
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Part

# those that are shipped: their inputs and labels, from the two arrays of scikit-learn
SHIPPED: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "diabetes": lambda x, y: (x, y),
    "linnerud": lambda x, y: (x, y[:, 0]),  # weight from three exercises
    "iris": lambda x, y: (x[:, :3], x[:, 3]),
    "wine": lambda x, y: (x[:, 1:], x[:, 0]),
    # mean radius, without perimeter and area, which are functions of it
    "breast_cancer": lambda x, y: (x[:, [1, 4, 5, 6, 7, 8, 9]], x[:, 0]),
}
DRAWN: dict[str, dict[str, Any]] = {  # by a function, with these options
    "friedman1": {"noise": 1.0},
    "friedman2": {"noise": 50.0},
    "friedman3": {"noise": 0.1},
    "regression": {"n_features": 10, "n_informative": 5, "noise": 30.0},
    "sparse_uncorrelated": {"n_features": 10},
    "swiss_roll": {"noise": 0.5},
    "s_curve": {"noise": 0.1},
}
Name: Any = Literal[(*SHIPPED, *DRAWN)]


class ScikitLearn(Part):
    """A data set that comes with scikit-learn, or is drawn by one of its `make_` functions."""

    source: Literal["sklearn"]
    name: Name  # pyright: ignore[reportInvalidTypeForm]
    rows: int = Field(default=300, ge=20, le=100_000, description="of those that are drawn")

    def load(self, key: PRNGKeyArray) -> ak.data.Dataset:
        x, y = map(jnp.asarray, _load(self.name, self.rows))
        return ak.data.Dataset(x, y, tuple(f"x{i}" for i in range(x.shape[1])), "y")


def _load(name: str, rows: int) -> tuple[Any, Any]:
    """Returns inputs and labels; `rows`: of a drawn set.

    **Raises:** `ValueError` if scikit-learn is not installed.
    """
    try:
        datasets: Any = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError:
        raise ValueError("needs scikit-learn: pip install 'attnkernel[sklearn]'") from None
    if name in DRAWN:
        options = {"n_samples": rows, "random_state": 0, **DRAWN[name]}
        return getattr(datasets, f"make_{name}")(**options)
    return SHIPPED[name](*getattr(datasets, f"load_{name}")(return_X_y=True))
