"""R's KernSmooth as a contender: plug-in bandwidth of binned data, local-constant curve."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from .driver import SelfTimed
from .rscript import rscript_with, run_script

_SCRIPT = r"""
suppressPackageStartupMessages(library(KernSmooth))
arguments <- commandArgs(TRUE)
n <- as.numeric(arguments[2])
numbers <- readBin(arguments[1], "double", 2 * n)
x <- numbers[1:n]; y <- numbers[n + 1:n]
bandwidth <- dpill(x, y); invisible(locpoly(x, y, bandwidth = bandwidth, degree = 0))
started <- proc.time()[["elapsed"]]
bandwidth <- dpill(x, y)
curve <- locpoly(x, y, bandwidth = bandwidth, degree = 0)
cat(proc.time()[["elapsed"]] - started, "\n")
cat(bandwidth, "\n", curve$x, "\n", curve$y, "\n")
"""


class Smooth(NamedTuple):
    """The plug-in bandwidth, and the curve: inputs and values."""

    bandwidth: float
    curve: np.ndarray


def kernsmooth(x: ArrayLike, y: ArrayLike) -> Callable[[], SelfTimed]:
    """`dpill` and `locpoly` in R, as a contender: reading the data is not in its seconds.

    **Raises:** `Unavailable` where R or its package KernSmooth is not installed.
    """
    rscript = rscript_with("KernSmooth")
    columns = np.stack([np.asarray(x, float), np.asarray(y, float)])

    def smooth() -> SelfTimed:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            columns.tofile(data)
            printed = run_script(rscript, _SCRIPT, str(data), str(columns.shape[1]))
        lines = [np.array(line.split(), float) for line in printed.splitlines() if line.strip()]
        (seconds,), (bandwidth,), *curve = lines
        return SelfTimed(float(seconds), Smooth(float(bandwidth), np.array(curve)))

    return smooth
