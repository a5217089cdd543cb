"""What the numbers of a run depend on: config, data, kernel file, versions, devices, git state."""

import functools
import hashlib
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import jax

from attnkernel._core.saving import package_versions

from ..config import dump, user_kernel

# entries of meta.json that numbers depend on
DETERMINING = (
    "config",
    "seed",
    "precision",
    "versions",
    "git",
    "devices",
    "platform",
    "environment",
    "kernels",
    "data",
)
_PACKAGES = ("attnkernel", "jax", "jaxlib", "equinox", "optax", "numpy", "matplotlib")
# environment variables that change the programs of JAX
_VARIABLES = (
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DISABLE_MOST_OPTIMIZATIONS",
    "JAX_NUM_CPU_DEVICES",
    "JAX_PLATFORMS",
    "NVIDIA_TF32_OVERRIDE",
    "XLA_FLAGS",
)


def meta_of(config: Any, sources: dict[str, Any] | None) -> dict[str, Any]:
    """The content of `meta.json` at the start of a run; `sources`: the record of `read_sources`."""
    return {
        "command": sys.argv,
        "started": now(),
        "config": hashlib.sha256(dump(config).encode()).hexdigest(),
        "seed": config.seed,
        "precision": config.precision,
        **({"kernels": kernels} if (kernels := user_kernel(config)) else {}),
        **({"data": data} if (data := _data_file_and_digest(config)) else {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": [str(device) for device in jax.devices()],
        "versions": package_versions(_PACKAGES),
        "caches_programs": _caches_programs(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "git": sources,
    }


def _caches_programs() -> bool:
    """Whether compiled programs may come from JAX's cache on disk: times then lack compilation."""
    settings: Any = jax.config
    return bool(settings.jax_enable_compilation_cache and settings.jax_compilation_cache_dir)


def digest_of(config: Any) -> str:
    """The SHA-256 of the config, of the file of its kernel and of the file of its data."""
    own = [str(part) for part in (user_kernel(config), _data_file_and_digest(config)) if part]
    return hashlib.sha256("".join([dump(config), *own]).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def now() -> str:
    """The local time, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _data_file_and_digest(config: Any) -> dict[str, str]:
    """Returns {path: SHA-256} of the data file that a config names, {path: "of no file"} if it is
    missing, {} if none is named.
    """
    path = getattr(getattr(config, "data", None), "path", None)
    if path is None:
        return {}
    try:
        found = os.stat(path)
    except OSError:
        return {path: "of no file"}
    return {path: _cached_digest(path, found.st_mtime_ns, found.st_size)}


@functools.lru_cache
def _cached_digest(path: str, changed: int, size: int) -> str:
    """Returns the SHA-256 of a file, from a cache unless `changed` (its modification time in ns) or
    `size` is new.
    """
    return digest_of_file(Path(path))
