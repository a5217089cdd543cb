r"""Files of models: a readable header, and the bytes of the arrays behind it.

| line or block | content |
|---|---|
| `attnkernel 1` | kind and version of the format |
| one line | SHA-256 of all that follows, then JSON: versions of packages; path, shape and dtype |
| | of each array; the tree whose leaves they are |
| the arrays | their bytes, one after the other |

No pickle: reading a file runs no code and makes only arrays and modules of known classes. Nor
safetensors: its NumPy interface (0.8.0) reads no bfloat16 and no 8-bit floats, writes no complex128
and no int4, and has no checksum: it loads a file with a flipped bit. Nor the format of NumPy, which
has no name for bfloat16.

A file is written whole or not at all, and is on the disk when the call returns.
"""

import errno
import hashlib
import json
import math
import os
import secrets
from collections.abc import Sequence
from importlib import metadata as distributions
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .arrays import is_concrete
from .tree_io import flatten, unflatten
from .validation import as_path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes and fsyncs a draft beside the path, then renames it; an old file stays until then.

    A symbolic link is followed. `OSError` for what exists and is no regular file, as a device.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it exists and is no regular file", os.fspath(path))
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
    """Flushes a file to the disk; for a folder, the names in it. Does nothing on Windows."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FORMAT_LINE = b"attnkernel 1\n"
MAX_HEADER_BYTES = 2**24
MAX_ARRAYS = 2**16
PACKAGES = ("attnkernel", "jax", "jaxlib", "equinox", "numpy")


class SavedFileError(ValueError):
    """A file is missing, damaged, or does not hold what was asked for."""


class SavedTree(NamedTuple):
    """The tree of a file, and the metadata that was written with it."""

    tree: Any
    metadata: dict[str, Any]


def save(path: str | os.PathLike, model: Any) -> None:
    """Writes a model or a `Fit` to a file that `load` reads.

    The file holds the parameters with their shapes and dtypes and every static field, so that no
    skeleton is needed to read it. An existing file is replaced atomically.

    ```python
    >>> ak.save("model.ak", ak.KernelRegression(ak.Gaussian(0.3)))
    >>> ak.load("model.ak").kernel
    Gaussian(lengthscale=0.3)
    ```

    **Arguments:**

    - `path`: the file.
    - `model`: an Equinox module of attnkernel, of `equinox.nn` or of your own; or lists, tuples and
      dictionaries of modules, arrays, numbers and strings.

    **Raises:** `ValueError` for a value that a file cannot name, such as a lambda in a field, and
    for a model with traced arrays. `OSError` where the file cannot be written.
    """
    write_tree(as_path("path", path), model, {})


def load(path: str | os.PathLike, *, classes: Sequence[type] = ()) -> Any:
    """Reads what `save` wrote.

    An untrusted file runs no code: it can name only classes of attnkernel, layers of Equinox, and
    the classes given here.

    ```python
    >>> ak.save("heads.ak", [ak.Gaussian(0.3), ak.Laplace(2.0)])
    >>> [type(kernel).__name__ for kernel in ak.load("heads.ak")]
    ['Gaussian', 'Laplace']
    ```

    **Arguments:** `path`: the file; `classes`: your own classes that are in it.

    **Returns:** the model, bit for bit the one that was saved.

    **Raises:** `SavedFileError`, a `ValueError`, if the file is missing, truncated or damaged, has
    a newer format, holds an unknown class, or holds 64-bit numbers where JAX has 32 bits.
    """
    if not isinstance(classes, Sequence) or not all(isinstance(kind, type) for kind in classes):
        raise ValueError(f"classes must be a list of classes; got {classes!r}.")
    return read_tree(as_path("path", path), classes=classes).tree


def write_tree(path: str | os.PathLike, tree: Any, metadata: dict[str, Any]) -> None:
    """Writes a tree and `metadata`, plain data for JSON, to a file that `read_tree` reads.

    An existing file is replaced atomically. `ValueError` for traced arrays, for a value that a file
    cannot hold, and above `MAX_ARRAYS` arrays. `OSError` where the file cannot be written.
    """
    plain, arrays = flatten(tree)
    if not is_concrete(*(array for _, array in arrays)):
        raise ValueError("Cannot save traced arrays: call `ak.save` outside jit, vmap and grad.")
    contiguous = [np.asarray(a, a.dtype.newbyteorder("="), order="C") for _, a in arrays]
    payload = b"".join(array.tobytes() for array in contiguous)
    kinds = {jax.Array: "jax", np.generic: "scalar", np.ndarray: "numpy"}
    leaves = [
        {
            "path": place,
            "shape": list(np.shape(array)),
            "dtype": array.dtype.name,
            "kind": next(name for kind, name in kinds.items() if isinstance(original, kind)),
        }
        for (place, original), array in zip(arrays, contiguous, strict=True)
    ]
    for array, (place, _) in zip(contiguous, arrays, strict=True):
        if array.dtype.kind in "USMmO":
            raise ValueError(f"{place or 'The array'} is of {array.dtype}: only numbers are saved.")
    header = {
        "versions": package_versions(PACKAGES),
        "metadata": metadata,
        "leaves": leaves,
        "tree": plain,
    }
    line = json.dumps(header, allow_nan=False).encode()
    # the limits of `read_tree`
    checksum_bytes = 64  # of a SHA-256 in hexadecimal
    if len(leaves) > MAX_ARRAYS or checksum_bytes + len(line) + 2 > MAX_HEADER_BYTES:
        raise ValueError(
            f"A file holds up to {MAX_ARRAYS} arrays and {MAX_HEADER_BYTES} bytes about them; got "
            f"{len(leaves)} arrays and {len(line)} bytes. Stack arrays of the same shape."
        )
    parts = (FORMAT_LINE, _checksum(line, payload), b" ", line, b"\n", payload)
    write_atomically(Path(path), b"".join(parts))


def read_tree(path: str | os.PathLike, *, classes: Sequence[type] = ()) -> SavedTree:
    """Returns the tree of a file and its metadata; `classes` are as for `load`.

    `SavedFileError` for an invalid file. The checksum and the sizes are checked before arrays are
    allocated.
    """
    path = Path(path)
    text, payload = _read_header_and_payload(path)
    arrays, start = [], 0
    try:
        header = json.loads(text)
        leaves = header["leaves"]
        if len(leaves) > MAX_ARRAYS:
            raise ValueError(f"{len(leaves)} arrays are more than {MAX_ARRAYS}")
        layout = [(_parse_dtype(leaf), _parse_shape(leaf)) for leaf in leaves]
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in layout]
        if sum(sizes) != len(payload):
            raise ValueError(f"its arrays are of {sum(sizes)} bytes, and it holds {len(payload)}")
        for (dtype, shape), size, leaf in zip(layout, sizes, leaves, strict=True):
            array = np.ndarray(shape, dtype, payload, start).copy()
            start += size
            arrays.append(_restore_array_kind(path, array, leaf))
        tree = unflatten(header["tree"], arrays, classes)
        return SavedTree(tree, dict(header["metadata"]))
    except SavedFileError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SavedFileError(f"{path} cannot be read: {error}") from None


def package_versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Returns the version of each package, None for one that is not installed."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = distributions.version(package)
        except distributions.PackageNotFoundError:
            found[package] = None
    return found


def _read_header_and_payload(path: Path) -> tuple[bytes, bytes]:
    """Returns the JSON of a saved file and the bytes of its arrays; `SavedFileError` unless the
    format is known and both match their checksum."""
    if path.exists() and not path.is_file():  # a pipe may have no end
        raise SavedFileError(f"{path} is no regular file.")
    try:
        with path.open("rb") as file:
            first_line = file.read(len(FORMAT_LINE))
            if first_line == FORMAT_LINE.replace(b"\n", b"\r"):
                raise SavedFileError(f"{path} is damaged: its line ends were changed.")
            if first_line != FORMAT_LINE:
                is_ours = first_line.startswith(FORMAT_LINE.split()[0])
                newer = "of another format than 1: use a newer attnkernel"
                raise SavedFileError(f"{path} is {newer if is_ours else 'not of ours'}.")
            line = file.readline(MAX_HEADER_BYTES)
            is_whole = line.endswith(b"\n")
            payload = file.read() if is_whole else b""
    except OSError as error:
        raise SavedFileError(f"{path} cannot be read: {error.strerror or error}") from None
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if not is_whole or _checksum(text, payload) != checksum:
        raise SavedFileError(f"{path} is damaged: it is not as it was written.")
    return text, payload


def _checksum(text: bytes, payload: bytes) -> bytes:
    """Returns the SHA-256, in hexadecimal, of the JSON and of the bytes of the arrays together."""
    digest = hashlib.sha256(text)
    digest.update(payload)
    return digest.hexdigest().encode()


def _parse_dtype(entry: dict[str, Any]) -> np.dtype:
    """Returns the dtype in the header's entry of an array.

    Raises `ValueError` unless it is numeric or Boolean, `TypeError` if there is no dtype of that
    name, and `KeyError` if the entry has none.
    """
    dtype = jnp.dtype(entry["dtype"])
    is_numeric = any(jnp.issubdtype(dtype, kind) for kind in (np.number, np.bool_))
    if not is_numeric or not dtype.itemsize:
        raise ValueError(f"{entry['path']} is of dtype {dtype}: only numbers are saved")
    return dtype


def _parse_shape(entry: dict[str, Any]) -> tuple[int, ...]:
    """Returns the shape in the header's entry of an array.

    Raises `ValueError` for a size that is no integer from 0 to 2³¹ − 1, and `TypeError` or
    `KeyError` if the entry has no list of sizes.
    """
    shape = tuple(entry["shape"])
    if not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise ValueError(f"{entry['path']} has {str(shape)[:80]}, which is no shape of an array")
    return shape


def _restore_array_kind(path: Path, array: np.ndarray, entry: dict[str, Any]) -> Any:
    """Returns the array as what its entry in the header says was saved: an array of JAX or NumPy,
    or a NumPy scalar. `SavedFileError` where JAX would make 64 bits 32."""
    if entry["kind"] != "jax":
        return array[()] if entry["kind"] == "scalar" else array
    on_device = jax.device_put(array)
    if on_device.dtype != array.dtype:
        raise SavedFileError(
            f"{path} holds numbers of {array.dtype} at {entry['path']}, and JAX has "
            f"{on_device.dtype}: load it after jax.config.update('jax_enable_x64', True)."
        )
    return on_device
