"""A folder on disk that keeps compiled programs from one process to the next."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jax
from jax.experimental.compilation_cache import compilation_cache

from .validation import as_path


def cache_programs(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keeps every program that JAX compiles from now on in a folder, for later processes.

    A first call of `ak.fit` then takes a third of its time or less. Entries are specific to the
    version of JAX and to the processor; one that cannot be read is compiled anew. The folder has no
    limit of size: delete it at any time. Importing attnkernel never turns this on; `python -m
    experiments` does. The environment variable `JAX_ENABLE_COMPILATION_CACHE=false` turns it off.
    On some CPUs XLA logs `Target machine feature +prefer-no-gather is not supported` for each
    program that it loads. Nothing is wrong; `TF_CPP_MIN_LOG_LEVEL=3`, set before JAX is imported,
    hides it.

    **Arguments:** `folder`: where. Default: the folder that JAX already has
    (`JAX_COMPILATION_CACHE_DIR`), or else `attnkernel/programs` in the user's cache folder.

    **Raises:** `ValueError` if `folder` is no path.

    **Returns:** the folder, or None if JAX's cache is turned off or the folder cannot be written:
    programs are then compiled as before.

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
    path = None if folder is None else as_path("folder", folder)
    if not config.jax_enable_compilation_cache:
        return None
    try:
        if path is None:
            kept = config.jax_compilation_cache_dir
            path = Path(kept) if kept else _user_cache_folder() / "attnkernel/programs"
        path = path.expanduser()
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
        for entry in path.glob("*-cache"):
            if not entry.stat().st_size:  # a full disk leaves these, and JAX never replaces them
                entry.unlink()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    jax.config.update("jax_compilation_cache_dir", str(path))
    # by default JAX keeps what took a second to compile: 1 of the 15 programs of a fit and its band
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()  # JAX reads its settings once, at the first program
    return path


@contextlib.contextmanager
def without_program_cache() -> Iterator[None]:
    """Turns JAX's cache on disk off, in this process and in those started meanwhile."""
    variable, config = "JAX_ENABLE_COMPILATION_CACHE", cast(Any, jax.config)
    before, is_enabled = os.environ.get(variable), config.jax_enable_compilation_cache
    os.environ[variable] = "false"
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before
        jax.config.update("jax_enable_compilation_cache", is_enabled)
        compilation_cache.reset_cache()


def _user_cache_folder() -> Path:
    """Returns the user's folder for caches: `LOCALAPPDATA` on Windows, `~/Library/Caches` on macOS,
    else `XDG_CACHE_HOME` or `~/.cache`."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local"))
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
