"""Files that are written whole or not at all, and are on the disk when the call returns."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes and fsyncs a draft beside the path, then renames it; an old file stays until then."""
    # a process number is not unique: containers that share a disk number their processes alike
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    fsync(path.parent)  # the new name


def fsync(path: Path) -> None:
    """Flushes a file to the disk; for a folder, the names in it."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
