"""Bandwidth selectors of other libraries, and one independent evaluator of their criterion."""

import importlib.util
import warnings
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from .small_samples import Select


def criterion(x: np.ndarray, y: np.ndarray, bandwidth: np.ndarray) -> float:
    """The leave-one-out criterion of a bandwidth, in NumPy and float64, a few rows at a time."""
    u, total = x / bandwidth, 0.0
    for first in range(0, len(x), 256):
        rows = np.arange(first, min(first + 256, len(x)))
        logs = -0.5 * np.sum((u[rows, None, :] - u[None, :, :]) ** 2, axis=2)
        logs[np.arange(len(rows)), rows] = -np.inf
        weights = np.exp(logs - np.max(logs, axis=1, keepdims=True))
        total += float(np.sum((weights @ y / np.sum(weights, axis=1) - y[rows]) ** 2))
    return total / len(x)


def _kerneljax() -> Select:
    import kerneljax as kj  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    criterion = kj.RegressionCriterion(method="cv_ls", degree=0)

    def select(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        found = kj.select_bandwidth(jnp.asarray(x), criterion, y=jnp.asarray(y))
        return np.asarray(found.bandwidth.h)

    return select


def _statsmodels() -> Select:
    from statsmodels.nonparametric.kernel_regression import KernelReg  # noqa: PLC0415

    def select(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(KernelReg(y, x, "c" * x.shape[1], reg_type="lc", bw="cv_ls").bw)

    return select


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


PEERS: dict[str, Callable[[], Select]] = {"kerneljax": _kerneljax, "statsmodels": _statsmodels}
