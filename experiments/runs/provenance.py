"""What the numbers of a run depend on: config, data, kernel, versions, devices, sources."""

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

from attnkernel._core.saving import package_versions

from .. import PACKAGE
from ..config import dump, file_stamp, user_kernel

MAX_PATCH_BYTES = 2**20
CHECKOUT = Path(__file__).parents[2]
PATCHED = ("attnkernel", "experiments")  # their new files are part of the patch


class Sources(NamedTuple):
    """The state of the checkout that holds this code."""

    record: dict[str, Any] | None  # the entry `git` of `meta.json`; None where git cannot tell
    patch: bytes = b""  # for `git apply` on the commit; cut after `MAX_PATCH_BYTES`


def read_sources(checkout: Path = CHECKOUT) -> Sources:
    """Returns the commit, whether any file differs from it or is untracked, and the patch.

    The patch has the changes of tracked files, and the new files of the two packages that git does
    not ignore. Its record has the SHA-256 and the size of the whole patch.
    """
    if PACKAGE != "experiments":  # from a wheel: git would tell of the project that it is used in
        return Sources(None)
    try:
        commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
        changed = bool(_git(checkout, "status", "--porcelain"))
        patch = _patch(checkout) if changed else b""
    except (OSError, subprocess.SubprocessError):
        return Sources(None)
    record: dict[str, Any] = {"commit": commit, "changed": changed}
    if patch:
        digest = hashlib.sha256(patch).hexdigest()
        complete = len(patch) <= MAX_PATCH_BYTES
        record["patch"] = {"sha256": digest, "bytes": len(patch), "complete": complete}
    return Sources(record, patch[:MAX_PATCH_BYTES])


def _patch(checkout: Path) -> bytes:
    """Returns the difference from the commit. New files are added to a copy of git's index, so that
    the checkout stays as it is.
    """
    new = _git(checkout, "ls-files", "-z", "--others", "--exclude-standard", "--", *PATCHED)
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        own = _git(checkout, "rev-parse", "--git-path", "index").decode().strip()
        shutil.copyfile(checkout / own, index)
        names = [os.fsdecode(name) for name in new.split(b"\0") if name]
        if names:
            _git(checkout, "add", "--intent-to-add", "--", *names, index=index)
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/")
        return _git(checkout, "diff", "HEAD", *options, "--dst-prefix=b/", index=index)


def _git(checkout: Path, *arguments: str, index: Path | None = None) -> bytes:
    """Returns what a command of git prints; `index`: in place of that of the checkout."""
    environment = os.environ | ({} if index is None else {"GIT_INDEX_FILE": os.fspath(index)})
    done = subprocess.run(
        ["git", *arguments],
        cwd=checkout,
        env=environment,
        capture_output=True,
        check=True,
        timeout=10,
    )
    return done.stdout


# entries of meta.json that say when and how a run was started
TIMES = ("command", "started", "ended", "seconds", "caches_programs", "resumed", "damaged")
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
        **({"data": data} if (data := _digests_of_data(config)) else {}),
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
    own = [str(part) for part in (user_kernel(config), _digests_of_data(config)) if part]
    return hashlib.sha256("".join([dump(config), *own]).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def now() -> str:
    """The local time, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _digests_of_data(config: Any) -> dict[str, str]:
    """Returns {path: SHA-256} of the data files that a config names, "of no file" for one that is
    missing.
    """
    data = getattr(config, "data", None)
    paths = (getattr(data, field, None) for field in ("path", "predict"))
    return {path: _cached_digest(path, file_stamp(path)) for path in paths if path is not None}


@functools.lru_cache
def _cached_digest(path: str, stamp: Any) -> str:
    """Returns the SHA-256 of a file, from a cache unless its stamp is new."""
    return "of no file" if stamp is None else digest_of_file(Path(path))
