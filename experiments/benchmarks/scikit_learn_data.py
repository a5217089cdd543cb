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
        x, y = map(jnp.asarray, _loaders(self.rows)[self.name]())
        return ak.data.Dataset(x, y, tuple(f"x{i}" for i in range(x.shape[1])), "y")


def _loaders(rows: int) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Returns by name a function that gives inputs and labels; `rows`: of a drawn set.

    **Raises:** `ValueError` if scikit-learn is not installed.
    """
    try:
        datasets: Any = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError:
        raise ValueError("needs scikit-learn: pip install 'attnkernel[sklearn]'") from None

    def one_from_others(bunch: Any, label: int, columns: Any) -> tuple[Any, Any]:
        return bunch.data[:, columns], bunch.data[:, label]

    def linnerud() -> tuple[Any, Any]:
        x, y = datasets.load_linnerud(return_X_y=True)
        return x, y[:, 0]

    drawn: dict[str, Any] = {"n_samples": rows, "random_state": 0}
    return {
        "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
        "linnerud": linnerud,  # weight from three exercises
        "iris": lambda: one_from_others(datasets.load_iris(), 3, slice(0, 3)),
        "wine": lambda: one_from_others(datasets.load_wine(), 0, slice(1, None)),
        # mean radius, without perimeter and area, which are functions of it
        "breast_cancer": lambda: one_from_others(
            datasets.load_breast_cancer(), 0, [1, 4, 5, 6, 7, 8, 9]
        ),
        "friedman1": lambda: datasets.make_friedman1(noise=1.0, **drawn),
        "friedman2": lambda: datasets.make_friedman2(noise=50.0, **drawn),
        "friedman3": lambda: datasets.make_friedman3(noise=0.1, **drawn),
        "regression": lambda: datasets.make_regression(
            n_features=10, n_informative=5, noise=30.0, **drawn
        ),
        "sparse_uncorrelated": lambda: datasets.make_sparse_uncorrelated(n_features=10, **drawn),
        "swiss_roll": lambda: datasets.make_swiss_roll(noise=0.5, **drawn),
        "s_curve": lambda: datasets.make_s_curve(noise=0.1, **drawn),
    }
