"""Small samples with ties, outliers or nearly constant labels: is the result a bandwidth at all?"""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from ..runs import Monitor

Select = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from x and y to bandwidths
SAMPLE_SIZES = (3, 8, 30)
SAMPLE_KINDS = ("smooth", "ties", "outliers", "nearly constant y", "noise")


def count_all(
    monitor: Monitor,
    contenders: Mapping[str, Select],
    ours: str,
    number: int,
    rng: np.random.Generator,
    max_seconds: float,
) -> list[dict[str, Any]]:
    """Counts of invalid bandwidths for each contender; others stop after `max_seconds`."""
    # six shapes, so that six programs are compiled
    shapes: list[tuple[int, int]] = list(itertools.product(SAMPLE_SIZES, (1, 2)))
    samples = [small_sample(rng, *shapes[i % len(shapes)], i) for i in range(number)]
    tables = []
    with monitor.progress("small samples", len(contenders)) as tick:
        for done, (name, select) in enumerate(contenders.items(), 1):
            started = time.perf_counter()
            results = _select_until_timeout(
                select, samples, np.inf if name == ours else max_seconds
            )
            spent = time.perf_counter() - started
            tables.append(count(name, samples, results) | {"seconds": round(spent, 1)})
            tick(done, f"{name}: {len(results)} samples, {spent:.1f} s")
    return tables


def _select_until_timeout(
    select: Select, samples: list[tuple[np.ndarray, np.ndarray]], max_seconds: float
) -> list[np.ndarray | None]:
    """Returns the bandwidths `select(x, y)` of each sample (x, y), None where it raised an error;
    begins no sample after `max_seconds`.
    """
    results: list[np.ndarray | None] = []
    started = time.perf_counter()
    for x, y in samples:
        if time.perf_counter() - started > max_seconds:
            break
        try:
            results.append(select(x, y))
        except Exception:  # whatever is raised is counted, and does not end the run
            results.append(None)
    return results


def small_sample(
    rng: np.random.Generator, n: int, dim: int, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """x of shape (n, dim) and y of shape (n,), of the kind that `number` selects."""
    x, noise = rng.uniform(size=(n, dim)), rng.normal(size=n)
    kind = SAMPLE_KINDS[number // (2 * len(SAMPLE_SIZES)) % len(SAMPLE_KINDS)]
    y = np.sin(2.0 * np.pi * x).sum(axis=1) + 0.3 * noise
    if kind == "ties":
        x = np.round(3.0 * x)
        x[0], x[1] = 0.0, 1.0  # not all of them
        y = np.sign(y)
        y[:2] = 0.0, 1.0
    elif kind == "outliers":
        x[0], y[-1] = 1e4, -1e6
    elif kind == "nearly constant y":
        y = 1.0 + 1e-12 * noise
    elif kind == "noise":
        y = noise
    return x, y


def count(
    name: str, samples: list[tuple[np.ndarray, np.ndarray]], results: list[np.ndarray | None]
) -> dict[str, Any]:
    """How many results are no bandwidths, and how many lie outside the bounds of `fit`.

    Other libraries have no bounds: theirs are counted outside for comparison only.
    """
    numbers = {"run": len(results), "errors": 0, "not finite": 0, "not positive": 0, "outside": 0}
    for (x, _), bandwidth in zip(samples, results, strict=False):
        if bandwidth is None:
            numbers["errors"] += 1
        elif not np.all(np.isfinite(bandwidth)):
            numbers["not finite"] += 1
        elif np.any(bandwidth <= 0):
            numbers["not positive"] += 1
        else:
            low, high = ak.Gaussian(np.ones(x.shape[1])).search_box(jnp.asarray(x))
            within = (low.lengthscale * (1 - 1e-9) <= bandwidth) & (
                bandwidth <= high.lengthscale * (1 + 1e-9)
            )
            numbers["outside"] += int(not np.all(within))
    return {"contender": name, **numbers}
