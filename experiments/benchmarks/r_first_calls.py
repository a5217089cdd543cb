"""First calls in R: the scripts of its packages, timed by R itself."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from .fresh_process import Latency
from .rscript import rscript_with, run_script

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
