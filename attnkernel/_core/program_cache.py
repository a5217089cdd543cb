"""A folder on disk that keeps compiled programs from one process to the next."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from .validation import as_path


def cache_programs(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keeps every program that JAX compiles from now on in a folder, for later processes.

    A first call of `ak.fit` then takes a third of its time or less. Entries are specific to the
    version of JAX and to the processor; one that cannot be read is compiled anew. The folder has no
    limit of size: delete it at any time. Importing attnkernel never turns this on; `python -m
    experiments` does.

    **Arguments:** `folder`: where. Default: the folder that JAX already has
    (`JAX_COMPILATION_CACHE_DIR`), or else `attnkernel/programs` in the user's cache folder.

    **Raises:** `ValueError` if `folder` is no path.

    **Returns:** the folder, or None if it cannot be written: programs are then compiled as before.

    ```python
    >>> import tempfile
    >>> import attnkernel as ak
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = ak.cache_programs(folder)
    >>> found is None
    False

    ```
    """
    config: Any = jax.config
    if folder is None:
        folder = config.jax_compilation_cache_dir or _user_cache_folder() / "attnkernel/programs"
    path = as_path("folder", folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(path))
    # by default JAX keeps what took a second to compile: 1 of the 15 programs of a fit and its band
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()  # JAX reads its settings once, at the first program
    return path


def _user_cache_folder() -> Path:
    """Returns the user's folder for caches: `LOCALAPPDATA` on Windows, `~/Library/Caches` on macOS,
    else `XDG_CACHE_HOME` or `~/.cache`."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local"))
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
