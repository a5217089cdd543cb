"""Scripts of R, if R and the package that they need are installed: curves, and first calls."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from .driver import SelfTimed, Unavailable
from .fresh_process import Latency

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


NP, KERNSMOOTH, LOCFIT = "R: np", "R: KernSmooth", "R: locfit"
PACKAGES = {NP: "np", KERNSMOOTH: "KernSmooth", LOCFIT: "locfit"}
GRID = "grid <- data.frame(x = seq(min(x), max(x), length.out = 100))"
NEIGHBOURS = "alpha = seq(0.1, 1, by = 0.05)"


class Script(NamedTuple):
    """Lines of R that prepare, and those that are timed; `x`, `y` and the frame `data` are given.

    With `is_process`, the time is that of all lines, from the start of R.
    """

    prepare: str
    call: str
    is_process: bool = False


def _locfit(order: int) -> str:
    """Returns lines that select a share of neighbours by GCV and fit."""
    found = f"found <- gcvplot(y ~ lp(x, deg = {order}), data = data, {NEIGHBOURS})"
    share = "share <- found$alpha[which.min(found$values)]"
    return f"{found}; {share}; fit <- locfit(y ~ lp(x, nn = share, deg = {order}), data = data)"


# by name of `first_calls.make_calls` and by contender
SCRIPTS: Mapping[str, Mapping[str, Script]] = {
    "fit": {
        NP: Script("", 'npregbw(y ~ x, data = data, regtype = "lc", bwmethod = "cv.ls")'),
        KERNSMOOTH: Script("", "dpill(x, y)"),
        LOCFIT: Script("", _locfit(0)),
    },
    "fit_linear": {
        NP: Script("", 'npregbw(y ~ x, data = data, regtype = "ll", bwmethod = "cv.aic")'),
        LOCFIT: Script("", _locfit(1)),
    },
    "predict": {
        NP: Script(f"{GRID}; h <- npregbw(y ~ x, data = data)", "npreg(h, newdata = grid)"),
        KERNSMOOTH: Script("h <- dpill(x, y)", "locpoly(x, y, bandwidth = h, degree = 0)"),
        LOCFIT: Script(f"{GRID}; {_locfit(0)}", "predict(fit, grid)"),
    },
    "bands": {LOCFIT: Script(f"{GRID}; {_locfit(0)}", "predict(fit, grid, se.fit = TRUE)")},
    "bands_linear": {LOCFIT: Script(f"{GRID}; {_locfit(1)}", "predict(fit, grid, se.fit = TRUE)")},
    "script": {
        LOCFIT: Script(
            "",
            f'{_locfit(0)}; png(tempfile()); plot(fit, band = "local", get.data = TRUE)\n'
            "dev.off(); print(summary(fit))",
            is_process=True,
        )
    },
}


def timed_script(
    contender: str, script: Script, x: np.ndarray, y: np.ndarray
) -> Callable[[], Latency]:
    """A function that runs and times the script in a new process of R, for x and y of shape (n,).

    **Raises:** `Unavailable` without R or the package of the contender.
    """
    package = PACKAGES[contender]
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
