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
from .fresh_process import Latency, Script, run_process

_SCRIPT = """
suppressPackageStartupMessages(library({package}))
options(np.messages = FALSE)
x <- readBin("x", "double", {n}); y <- readBin("y", "double", {n}); data <- data.frame(x, y)
{script.prepare}
started <- {start}
{script.call}
spent <- proc.time() - started
cat("\\nspent", sum(spent[1:2]), spent[[3]], "\\n")
{output}
"""
_SMOOTH = "bandwidth <- dpill(x, y); curve <- locpoly(x, y, bandwidth = bandwidth, degree = 0)"


class Smooth(NamedTuple):
    """The plug-in bandwidth, and the curve: inputs and values."""

    bandwidth: float
    curve: np.ndarray


def kernsmooth(x: ArrayLike, y: ArrayLike) -> Callable[[], SelfTimed]:
    """`dpill` and `locpoly` in R, as a contender: reading the data is not in its seconds.

    **Raises:** `Unavailable` where R or its package KernSmooth is not installed.
    """
    columns, shown = (np.asarray(x, float), np.asarray(y, float)), "bandwidth, curve$x, curve$y"
    output = f'for (part in list({shown})) cat(part, "\\n")'
    # the first, which is not timed, warms it up
    run = timed_script("KernSmooth", Script(_SMOOTH, _SMOOTH), *columns, output)

    def smooth() -> SelfTimed:
        latency, ((bandwidth,), *curve) = run()
        return SelfTimed(latency.wall, Smooth(float(bandwidth), np.array(curve)))

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


def timed_script(
    package: str, script: Script, x: np.ndarray, y: np.ndarray, output: str = ""
) -> Callable[[], tuple[Latency, list[np.ndarray]]]:
    """A function that runs and times the script in a new process of R, for x and y of shape (n,),
    which are also the columns of the frame `data`. It returns the numbers of each line that
    `output`, further lines of R, prints.

    **Raises:** `Unavailable` without R or the package.
    """
    rscript = rscript_with(package)
    start = "c(0, 0, 0, 0, 0)" if script.is_process else "proc.time()"
    parts = {"package": package, "n": len(x), "script": script, "start": start, "output": output}

    def run() -> tuple[Latency, list[np.ndarray]]:
        with tempfile.TemporaryDirectory() as folder:
            x.tofile(Path(folder) / "x")
            y.tofile(Path(folder) / "y")
            (Path(folder) / "script.R").write_text(_SCRIPT.format(**parts), encoding="utf-8")
            printed = run_process([rscript, "script.R"], "R", cwd=folder)
        lines = printed.rpartition("\nspent ")[2].splitlines()
        (cpu, wall), *arrays = (np.array(line.split(), float) for line in lines)
        return Latency(float(cpu), float(wall)), arrays

    return run
