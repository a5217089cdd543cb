r"""Files of models: a header that can be read, and the arrays behind it.

| line or block | what |
|---|---|
| `attnkernel 1` | what kind of file this is, and of which format |
| one line | its own SHA-256, then JSON: versions of packages; path, shape and dtype of each |
| | array; the tree that they are leaves of; bytes and SHA-256 of what follows |
| the arrays | their bytes, one after the other |

No pickle: reading a file runs nothing and makes nothing but arrays and registered modules. (Nor the
format of NumPy, in which Equinox writes leaves: it has no name for bfloat16.) A file is written
beside its place, brought to the disk, and then put there: it is never there in part.
"""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .arrays import is_concrete
from .tree_io import flatten, unflatten
from .validation import as_path

_MAGIC = b"attnkernel 1\n"
_LONGEST = 2**24  # bytes of a header
_MOST_ARRAYS = 2**16
_PACKAGES = ("attnkernel", "jax", "jaxlib", "equinox", "numpy")


class SavedFileError(ValueError):
    """A file that is not there, is damaged, or is not of what was asked for."""


class Saved(NamedTuple):
    """What a file holds, and what was said about it when it was written."""

    tree: Any
    about: dict[str, Any]


def save(path: str | os.PathLike, model: Any) -> None:
    """Writes a model, or a `Fit`, to a file that `load` reads.

    All of it is kept: parameters with their shapes and dtypes, and what is no array, so that no
    skeleton is needed to read it. A file that is there is replaced, whole or not at all.

    **Arguments:**

    - `path`: of the file.
    - `model`: an Equinox module of attnkernel, of `equinox.nn` or of your own; or lists, tuples and
      dictionaries of modules, arrays, numbers and strings.

    **Raises:** `ValueError` for what no file can name, such as a function in a field; inside
    `jit`. `OSError` where it cannot be written.
    """
    write(as_path("path", path), model, {})


def load(path: str | os.PathLike, *, classes: Sequence[type] = ()) -> Any:
    """Reads what `save` wrote.

    A stranger's file runs nothing: it can name the classes of attnkernel and the layers of Equinox,
    and no more.

    **Arguments:** `path`: of the file; `classes`: your own classes that are in it.

    **Returns:** the model, equal to the one saved in every bit.

    **Raises:** `SavedFileError`, a `ValueError`, if the file is not there, is cut short or damaged,
    is of a newer format, holds an unknown class, or numbers of 64 bits where JAX has 32.
    """
    if not isinstance(classes, Sequence) or not all(isinstance(kind, type) for kind in classes):
        raise ValueError(f"classes must be a list of classes; got {classes!r}.")
    return read(as_path("path", path), classes=classes).tree


def write(path: str | os.PathLike, tree: Any, about: dict[str, Any]) -> None:
    """Writes a tree, and plain data about it, to a file: whole or not at all."""
    plain, arrays = flatten(tree)
    if not is_concrete(*(leaf for _, leaf in arrays)):
        raise ValueError("Inside jit, vmap or grad there is no number to save: save outside.")
    leaves = [np.asarray(leaf, order="C") for _, leaf in arrays]
    payload = b"".join(leaf.tobytes() for leaf in leaves)
    header = {
        "versions": versions(_PACKAGES),
        "about": about,
        "leaves": [
            {
                "path": place,
                "shape": list(np.shape(leaf)),
                "dtype": leaf.dtype.name,
                "of": _kind(given),
            }
            for (place, given), leaf in zip(arrays, leaves, strict=True)
        ],
        "tree": plain,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    for leaf, (place, _) in zip(leaves, arrays, strict=True):
        if leaf.dtype.kind in "USMmO":
            raise ValueError(f"{place or 'The array'} is of {leaf.dtype}: only numbers are saved.")
    line = json.dumps(header, allow_nan=False).encode()
    if len(leaves) > _MOST_ARRAYS or len(line) > _LONGEST - 100:  # what `read` would refuse
        raise ValueError(
            f"A file holds up to {_MOST_ARRAYS} arrays and {_LONGEST} bytes about them; got "
            f"{len(leaves)} arrays and {len(line)} bytes. Stack arrays of the same shape."
        )
    seal = hashlib.sha256(line).hexdigest().encode()  # of the header itself
    write_whole(Path(path), b"".join((_MAGIC, seal, b" ", line, b"\n", payload)))


def read(path: str | os.PathLike, *, classes: Sequence[type] = ()) -> Saved:
    """The tree of a file, and what was said about it."""
    path = Path(path)
    header, payload = _parts(path)
    arrays, at = [], 0
    try:
        leaves = header["leaves"]
        described = [(_dtype(leaf), _shape(leaf)) for leaf in leaves]
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in described]
        if sum(sizes) != len(payload):  # before anything is made of what a header claims
            raise ValueError(f"its arrays are of {sum(sizes)} bytes, and it holds {len(payload)}")
        for (dtype, shape), size, leaf in zip(described, sizes, leaves, strict=True):
            array = np.ndarray(shape, dtype, payload, at).copy()
            at += size
            arrays.append(_placed(path, array, leaf))
        tree = unflatten(header["tree"], arrays, classes)
        return Saved(tree, dict(header["about"]))
    except SavedFileError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SavedFileError(f"{path} cannot be read: {error}") from None


def _dtype(leaf: dict[str, Any]) -> np.dtype:
    """That of an array of numbers."""
    dtype = jnp.dtype(leaf["dtype"])
    of_numbers = any(jnp.issubdtype(dtype, kind) for kind in (np.number, np.bool_))
    if not of_numbers or not dtype.itemsize:
        raise ValueError(f"{leaf['path']} is of dtype {dtype}: only numbers are saved")
    return dtype


def _shape(leaf: dict[str, Any]) -> tuple[int, ...]:
    shape = tuple(leaf["shape"])
    if not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise ValueError(f"{leaf['path']} has {str(shape)[:80]}, which is no shape of an array")
    return shape


def _parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the bytes of the arrays, both as they were written."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
            if magic != _MAGIC:
                ours = magic.startswith(_MAGIC.split()[0])
                what = "of another format than 1: use a newer attnkernel" if ours else "not of ours"
                raise SavedFileError(f"{path} is {what}.")
            header = _header(path, file.readline(_LONGEST))
            size, seal_of_arrays = header["bytes"], header["sha256"]
            there = os.fstat(file.fileno()).st_size - file.tell()
            if there != size:
                raise SavedFileError(
                    f"{path} is damaged: it has {there} bytes of arrays where {size} were written."
                )
            payload = file.read()
    except OSError as error:
        raise SavedFileError(f"{path} cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(payload).hexdigest() != seal_of_arrays:
        raise SavedFileError(f"{path} is damaged: its arrays are not as they were written.")
    return header, payload


def _header(path: Path, line: bytes) -> dict[str, Any]:
    """The header, as it was written."""
    seal, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or hashlib.sha256(text).hexdigest().encode() != seal:
        raise SavedFileError(f"{path} is damaged: its header is not as it was written.")
    try:
        header = json.loads(text)
        number, _ = len(header["leaves"]), (header["bytes"], header["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SavedFileError(f"{path} is damaged: its header cannot be read.") from None
    if number > _MOST_ARRAYS:
        raise SavedFileError(
            f"{path} cannot be read: {number} arrays are more than {_MOST_ARRAYS}."
        )
    return header


def _placed(path: Path, leaf: np.ndarray, described: dict[str, Any]) -> Any:
    """An array where it was: of NumPy, a number of it, or on a device."""
    if described["of"] != "jax":
        return leaf[()] if described["of"] == "number" else leaf
    array = jnp.asarray(leaf)
    if array.dtype != leaf.dtype:
        raise SavedFileError(
            f"{path} holds numbers of {leaf.dtype} at {described['path']}, and JAX has "
            f"{array.dtype}: load it after jax.config.update('jax_enable_x64', True)."
        )
    return array


def _kind(leaf: Any) -> str:
    if isinstance(leaf, jax.Array):
        return "jax"
    return "number" if isinstance(leaf, np.generic) else "numpy"


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file and brings it to the disk; what was there before stays until it is whole."""
    # of containers on one disk, two processes may have one number
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
    settle(path.parent)  # the name too


def settle(path: Path) -> None:
    """Brings what was written of a file to the disk; of a folder, the names in it."""
    if not hasattr(os, "O_DIRECTORY"):  # a system that has no such call for folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Of each package that is installed."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found
