"""Compiled programs: their options, a folder that keeps them, and functions that can share them."""

import functools
import os
import sys
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jax.experimental.compilation_cache import compilation_cache

from .arrays import can_use_numpy
from .validation import as_path

# CPU seconds of first calls of 200 rows, without → with: `ak.fit` of order 0 1.55 → 0.92, of order
# 1 2.5 → 1.4, `ak.bands` 3.3 → 1.75 and 4.0 → 2.0; later calls are as fast. Blockwise sums run 7
# times as long without fusion emitters, `ak.attend` of 1000 rows 1.8 times: for up to 2^18 pairs
# only. JAX from 0.12 has no such option.
SMALL_PROGRAM_OPTIONS = {"xla_backend_optimization_level": 1} | (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 12) else {}
)


def can_use_options(*trees: Any) -> bool:
    """Whether a call with these arrays may set `SMALL_PROGRAM_OPTIONS`.

    It may if JAX's default backend is a CPU and `can_use_numpy` holds for the arrays, unless the
    user has set `jax_disable_most_optimizations`.
    """
    is_optimised = not jax.config.read("jax_disable_most_optimizations")
    return is_optimised and jax.default_backend() == "cpu" and can_use_numpy(*trees)


class ComparableFunction:
    """A function that equals another `ComparableFunction` with the same key.

    The key must identify all that the results depend on.
    """

    def __init__(self, function: Callable, key: Hashable):
        functools.update_wrapper(self, function, updated=())
        self.function, self.key, self.hash = function, key, hash(key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComparableFunction) and self.key == other.key

    def __hash__(self) -> int:
        return self.hash


def comparable_by_program(function: Callable, *arguments: Any) -> Callable:
    """Returns the function as one that equals all functions with the same `program_key` for these
    arguments, or unchanged if this key is None.

    ```python
    >>> from attnkernel._core.compilation import comparable_by_program
    >>> number = jax.ShapeDtypeStruct((), jnp.float32)
    >>> one, same, other = (
    ...     comparable_by_program(lambda x, a=a: a * x, number) for a in (2.0, 2.0, 3.0)
    ... )
    >>> one == same, one == other
    (True, False)
    >>> first, second = lambda a, b: a, lambda a, b: b
    >>> comparable_by_program(first, number, number) == comparable_by_program(
    ...     second, number, number
    ... )
    False
    >>> moving, fixed = lambda a: 2 * a, lambda a: jax.lax.stop_gradient(2 * a)
    >>> comparable_by_program(moving, number) == comparable_by_program(fixed, number)
    False
    >>> def with_slope(a):
    ...     kept = jax.custom_jvp(lambda x: x)
    ...     kept.defjvp(lambda x, tangents: (x[0], a * tangents[0]))
    ...     return comparable_by_program(lambda x: kept(x), number)
    >>> with_slope(1.0) == with_slope(1.0), with_slope(1.0) == with_slope(0.0)
    (True, False)

    ```
    """
    key = program_key(function, *arguments)
    return function if key is None else ComparableFunction(function, key)


def program_key(function: Callable, *arguments: Any) -> Hashable:
    """Returns the StableHLO program of a function of these arguments and the structure of its
    results, or None if the program is incomplete.

    It is traced and lowered anew, so that a change of what it reads, such as a global, is noticed:
    3 ms, 7 ms for `optax.adam`. (The text of a jaxpr takes a third of it, and leaves out the
    constants of inner ones.) A program is incomplete if it reads an array of an outer `jit` or
    `vmap`, or has a `jax.custom_vjp` or a custom call, such as one back into Python. A function
    with a `jax.custom_jvp` or a `stop_gradient` has the program of its tangents too.

    **Arguments:** `arguments`: trees of `jax.ShapeDtypeStruct`.
    """
    # a new function, as `jit` keeps the trace of one that it knows
    traced = jax.jit(lambda *of: function(*of), keep_unused=True).trace(*arguments)  # noqa: PLW0108
    # the others are arrays of outer transformations
    if len(traced.jaxpr.in_avals) > len(jax.tree.leaves(arguments)):
        return None
    program, jaxpr = traced.lower().as_text(), str(traced.jaxpr)
    if "custom_call" in program or "custom_vjp_call" in jaxpr:
        return None
    if "custom_jvp_call" in jaxpr or "stop_gradient" in jaxpr:

        def tangent(*given: Any) -> Any:
            return eqx.filter_jvp(function, given, eqx.filter(given, eqx.is_inexact_array))[1]

        program += jax.jit(tangent, keep_unused=True).trace(*arguments).lower().as_text()
    return program, jax.tree.structure(traced.out_info)


def cache_programs(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keeps every program that JAX compiles from now on in a folder, for later processes.

    A first call of `ak.fit` then takes a third of its time or less. Entries are specific to the
    version of JAX and to the processor; one that cannot be read is compiled anew, and empty ones
    are deleted. The folder has no limit of size: delete it at any time. Importing attnkernel never
    turns this on; `python -m experiments` does. The environment variable
    `JAX_ENABLE_COMPILATION_CACHE=false` turns it off.

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


def _user_cache_folder() -> Path:
    """Returns the user's folder for caches: `LOCALAPPDATA` on Windows, `~/Library/Caches` on macOS,
    else `XDG_CACHE_HOME` or `~/.cache`. `RuntimeError` if it needs the user's home, and there is
    none."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local"))
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
