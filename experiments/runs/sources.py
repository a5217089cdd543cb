"""The state of the sources: the commit of the checkout, and what differs from it as a patch."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

MAX_PATCH_BYTES = 2**20
CHECKOUT = Path(__file__).parents[2]
_PACKAGES = ("attnkernel", "experiments")  # their new files are part of the patch


class Sources(NamedTuple):
    """The state of the checkout that holds this code."""

    record: dict[str, Any] | None  # the entry `git` of `meta.json`; None where git cannot tell
    patch: bytes = b""  # for `git apply` on the commit; cut after `MAX_PATCH_BYTES`


def read_sources(checkout: Path = CHECKOUT) -> Sources:
    """Returns the commit, whether any file differs from it or is untracked, and the patch.

    The patch has the changes of tracked files, and the new files of the two packages that git does
    not ignore. Its record has the SHA-256 and the size of the whole patch.
    """
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
    new = _git(checkout, "ls-files", "-z", "--others", "--exclude-standard", "--", *_PACKAGES)
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
