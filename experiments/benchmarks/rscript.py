"""Runs scripts of R, if R and the package that they need are installed."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from .driver import Unavailable


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
