"""Data sets for regression that scikit-learn ships or makes, as a data source of configs.

Sets for classification become ones for regression: one measurement from the others.
"""

import importlib
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Part


class ScikitLearn(Part):
    """A data set that comes with scikit-learn, or is drawn by one of its `make_` functions."""

    source: Literal["sklearn"]
    name: Literal[
        "diabetes",
        "linnerud",
        "iris",
        "wine",
        "breast_cancer",
        "friedman1",
        "friedman2",
        "friedman3",
        "regression",
        "sparse_uncorrelated",
        "swiss_roll",
        "s_curve",
    ]
    rows: int = Field(default=300, ge=20, le=100_000, description="of those that are drawn")

    def load(self, key: PRNGKeyArray) -> ak.data.Dataset:
        x, y = map(jnp.asarray, _load(self.name, self.rows))
        return ak.data.Dataset(x, y, tuple(f"x{i}" for i in range(x.shape[1])), "y")


LABELS: dict[str, tuple[int, Any]] = {  # columns of labels and of inputs, which are one array
    "iris": (3, slice(0, 3)),
    "wine": (0, slice(1, None)),
    # mean radius, without perimeter and area, which are functions of it
    "breast_cancer": (0, [1, 4, 5, 6, 7, 8, 9]),
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
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    if name in LABELS:
        label, columns = LABELS[name]
        return x[:, columns], x[:, label]
    return x, y[:, 0] if name == "linnerud" else y  # weight from three exercises
