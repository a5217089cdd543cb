"""Scripts of R, if R and the package that they need are installed: curves, and first calls."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from .driver import SelfTimed, Unavailable
from .fresh_process import Latency, Script

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


def rscript_with(package: str) -> str:
    """The path of Rscript. **Raises:** `Unavailable` without R or its package."""
    rscript = shutil.which("Rscript")
    if rscript is None:
        raise Unavailable("Rscript: not installed")
    found = subprocess.run(
        [rscript, "-e", f"library({package})"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise Unavailable(f"{package}: not installed in R")
    return rscript


def run_script(rscript: str, script: str, *arguments: str) -> str:
    """What the script prints. **Raises:** `RuntimeError` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.R"
        path.write_text(script, encoding="utf-8")
        command = [rscript, str(path), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"R failed: {done.stderr.strip()}")
    return done.stdout


def timed_script(
    package: str, script: Script, x: np.ndarray, y: np.ndarray
) -> Callable[[], Latency]:
    """A function that runs and times the script in a new process of R, for x and y of shape (n,),
    which are also the columns of the frame `data`.

    **Raises:** `Unavailable` without R or the package.
    """
    rscript = rscript_with(package)
    x_text, y_text = (", ".join(map(repr, column.tolist())) for column in (x, y))
    start = "c(0, 0, 0, 0, 0)" if script.is_process else "proc.time()"
    text = "\n".join(
        [
            f"suppressPackageStartupMessages(library({package}))",
            "options(np.messages = FALSE)",
            f"x <- c({x_text}); y <- c({y_text}); data <- data.frame(x, y)",
            script.prepare,
            f"started <- {start}",
            script.call,
            "spent <- proc.time() - started",
            'cat("\\n", sum(spent[1:2]), spent[[3]], "\\n")',
        ]
    )

    def run() -> Latency:
        cpu, wall = map(float, run_script(rscript, text).splitlines()[-1].split())
        return Latency(cpu, wall)

    return run
