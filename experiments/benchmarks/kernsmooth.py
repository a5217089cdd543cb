"""R's KernSmooth beside us: the plug-in bandwidth of binned data, and the local-constant curve."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from jax.typing import ArrayLike

from .driver import Unavailable

_SCRIPT = r"""
suppressPackageStartupMessages(library(KernSmooth))
arguments <- commandArgs(TRUE)
n <- as.numeric(arguments[2])
numbers <- readBin(arguments[1], "double", 2 * n)
x <- numbers[1:n]; y <- numbers[n + 1:n]
bandwidth <- dpill(x, y); invisible(locpoly(x, y, bandwidth = bandwidth, degree = 0))
for (i in seq_len(as.numeric(arguments[3]))) {
  started <- proc.time()[["elapsed"]]
  bandwidth <- dpill(x, y)
  curve <- locpoly(x, y, bandwidth = bandwidth, degree = 0)
  cat(proc.time()[["elapsed"]] - started, "\n")
}
cat(bandwidth, "\n", curve$x, "\n", curve$y, "\n")
"""


def kernsmooth(x: ArrayLike, y: ArrayLike, repeats: int) -> dict:
    """Seconds of `dpill` and `locpoly` in R (reading the data not counted), and what they give.

    **Raises:** `Unavailable` where R or its package KernSmooth is not installed, or it fails.
    """
    rscript = shutil.which("Rscript")
    if rscript is None:
        raise Unavailable("Rscript: not installed")
    columns = np.stack([np.asarray(x, float), np.asarray(y, float)])
    with tempfile.TemporaryDirectory() as folder:
        data, script = Path(folder) / "data", Path(folder) / "script.R"
        columns.tofile(data)
        script.write_text(_SCRIPT)
        command = [rscript, str(script), str(data), str(columns.shape[1]), str(repeats)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(
            f"R says: {done.stderr.strip().splitlines()[-1] if done.stderr else 'nothing'}"
        )
    lines = [np.array(line.split(), float) for line in done.stdout.splitlines() if line.strip()]
    seconds = [float(line[0]) for line in lines[:repeats]]
    bandwidth, *curve = lines[repeats:]
    return {
        "seconds": float(np.median(seconds)),
        "all_seconds": seconds,
        "bandwidth": float(bandwidth[0]),
        "curve": np.array(curve),
    }
