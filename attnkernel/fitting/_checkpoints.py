"""Checkpoints of a long training: the last two states on disk, verified before they are used."""

import dataclasses
import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from .._core.compilation import ComparableFunction
from .._core.saving import SavedFileError, read_tree, write_tree
from .._core.tree_io import is_prng_key
from .._core.validation import as_path, require_function

MAX_WRITE_SHARE = 0.05  # of the time of a training


class CheckpointWarning(UserWarning):
    """A checkpoint could not be used; it was set aside, and the one before it is tried."""


class Kept(NamedTuple):
    """A checkpoint: the steps done, the state then, and the history so far."""

    done: int
    state: Any
    history: Any


class Checkpoints:
    """Checkpoints of a training: files `PATH-STEPS.ckpt`, of which the last two are kept.

    ```python
    data = ak.data.load("mcycle")
    options = {"objective": ak.HoldOut(10), "optimizer": optax.adam(0.1), "steps": 20}
    options |= {"key": jax.random.PRNGKey(0), "checkpoints": ak.fitting.Checkpoints("results/fit")}
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, **options)
    ```

    The fit writes its state between chunks of steps, in at most a twentieth of its time. The same
    call later resumes from there, and ends in the same bits as if it had never stopped. A file
    that is damaged, or belongs to another fit, is named in a warning and renamed to `.aside`; the
    one before it is used.

    **Arguments:**

    - `path`: of the files, without their numbers, such as `"results/fit"`; the folder is made.
    - `of`: words that distinguish fits with the same data, initial parameters and optimiser. A
      file with other words belongs to another fit.
    - `report`: called with a sentence for each file that cannot be used. Default: warns with
      `CheckpointWarning`.

    **Raises:** `ValueError` if `path` is no path, `of` no string, or `report` no function.
    """

    def __init__(
        self, path: str | os.PathLike, *, of: str = "", report: Callable[[str], None] | None = None
    ):
        if not isinstance(of, str):
            raise ValueError(f"of must be words, such as the optimiser; got {of!r}.")
        if report is not None:
            require_function("report", report)
        self.path = as_path("path", path)
        self.of = of
        self._report = report or partial(warnings.warn, category=CheckpointWarning)
        self._last_write = time.monotonic()
        self._write_seconds = 0.0

    def files(self) -> list[Path]:
        """Returns the existing files, the newest last."""
        pattern = re.compile(re.escape(self.path.name) + r"-(\d{9,})\.ckpt")
        if not self.path.parent.is_dir():
            return []
        return sorted(
            (file for file in self.path.parent.iterdir() if pattern.fullmatch(file.name)),
            key=_steps_in_name,
        )

    def load(self, like: Any = None, *, identity: str = "") -> Kept | None:
        """Returns the newest valid checkpoint, or None if there is none.

        Renames each newer file, damaged or of another fit, to `.aside`, and reports it. `like`: a
        state of the structure, shapes and dtypes of the saved one. `identity`: the digest of this
        fit (`identity_of`).
        """
        leaves, with_leaves = _arrays_and_rebuild(like)
        for file in reversed(self.files()):
            try:
                saved = read_tree(file)
                self._require_same_fit(file, saved.metadata, identity)
                state = _require_same_leaves(file, saved.tree["state"], leaves)
                history = saved.tree["history"]
            except SavedFileError as error:
                aside = file.with_name(file.name + ".aside")
                file.replace(aside)
                self._report(f"{error} It is set aside as {aside.name}.")
                continue
            self._last_write = time.monotonic()
            return Kept(_steps_in_name(file), with_leaves(state), history)
        return None

    def save(
        self, done: int, state: Any, history: Any, *, identity: str = "", last: bool = False
    ) -> None:
        """Writes a checkpoint, and removes all files but the two newest.

        Does nothing if writing would take more than 5 % of the time, unless the state is the
        `last`. `done`: the steps taken; `identity`: the digest of this fit (`identity_of`).
        """
        begun = time.monotonic()
        if not last and begun - self._last_write < self._write_seconds / MAX_WRITE_SHARE:
            return
        leaves, _ = _arrays_and_rebuild(state)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        name = f"{self.path.name}-{done:09d}.ckpt"
        about = {"done": done, "of": self.of, "identity": identity}
        write_tree(self.path.with_name(name), {"state": leaves, "history": history}, about)
        self.remove_all_but(2)
        self._last_write = time.monotonic()
        self._write_seconds = self._last_write - begun

    def remove_all_but(self, number: int) -> None:
        """Removes all files but this number of the newest."""
        files = self.files()
        for file in files[: max(0, len(files) - number)]:
            file.unlink(missing_ok=True)

    def _require_same_fit(self, file: Path, about: dict[str, Any], identity: str) -> None:
        """Raises `SavedFileError` if a checkpoint is misnamed or was written by another fit.

        `about`: the metadata in the file; `identity`: the digest of this fit (`identity_of`).
        """
        if about.get("done") != _steps_in_name(file):
            raise SavedFileError(
                f"{file} is misnamed: it was written after {about.get('done')} steps."
            )
        if (about.get("of"), about.get("identity")) != (self.of, identity):
            raise SavedFileError(f"{file} belongs to another fit: other data, settings or start.")


def identity_of(*trees: Any) -> str:
    """Returns a SHA-256 digest of trees: their arrays, classes, and other fields.

    ```python
    >>> ak.fitting.identity_of(ak.Gaussian(1.0)) == ak.fitting.identity_of(ak.Gaussian(2.0))
    False
    ```

    A function is represented by its name: optimisers of optax that differ in their numbers alone
    have one digest. `fit` gives its optimiser in a form that is represented by its program.
    """
    digest = hashlib.sha256()
    for part in _hashed_parts(trees):
        digest.update(f"{len(part)} ".encode() + part)
    return digest.hexdigest()


def _hashed_parts(value: Any) -> Iterator[bytes]:
    """Yields, for a tree, the byte strings that `identity_of` hashes.

    They are class and field names, dtypes, shapes, and the entries of arrays.
    """
    if eqx.is_array(value):
        array = np.asarray(jax.random.key_data(value) if is_prng_key(value) else value)
        yield f"{array.dtype}{array.shape}".encode()
        yield array.tobytes()
        return
    if isinstance(value, ComparableFunction):
        yield repr(value.key).encode()
        return
    named = value if isinstance(value, Callable) and hasattr(value, "__qualname__") else type(value)
    yield f"{named.__module__}.{named.__qualname__}".encode()
    if isinstance(value, eqx.Module):
        fields = [field.name for field in dataclasses.fields(value)]  # type: ignore[arg-type]
        inner = [part for name in fields for part in (name, getattr(value, name, None))]
    elif isinstance(value, partial):
        inner = [value.func, value.args, value.keywords]
    elif isinstance(value, Mapping):
        inner = [part for item in value.items() for part in item]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        inner = list(value)
    else:
        inner = []
        if isinstance(value, bool | int | float | str):
            yield repr(value).encode()
    yield str(len(inner)).encode()
    for part in inner:
        yield from _hashed_parts(part)


def _steps_in_name(file: Path) -> int:
    """Returns the number of finished steps that the name of a checkpoint states."""
    return int(file.stem.rpartition("-")[2])


def _arrays_and_rebuild(tree: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
    """Returns the arrays of a tree as a dictionary by path, and a function that rebuilds the tree.

    The function takes a dictionary with the same paths.
    """
    arrays, rest = eqx.partition(tree, eqx.is_array)
    paths, structure = jax.tree_util.tree_flatten_with_path(arrays)
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in paths}

    def with_leaves(others: dict[str, Any]) -> Any:
        return eqx.combine(jax.tree.unflatten(structure, [others[key] for key in leaves]), rest)

    return leaves, with_leaves


def _require_same_leaves(file: Path, leaves: Any, like: dict[str, Any]) -> dict[str, Any]:
    """Returns `leaves`; raises `SavedFileError` unless they match `like` in paths, shape and dtype.

    `leaves`: the arrays read from `file`, by path; `like`: those of the state to be restored.
    """
    if not isinstance(leaves, dict) or leaves.keys() != like.keys():
        names = leaves.keys() if isinstance(leaves, dict) else set()
        odd = sorted(names ^ like.keys())[:3]
        raise SavedFileError(f"{file} holds another state: it differs in {', '.join(odd)}.")
    for path, leaf in leaves.items():
        expected = f"{like[path].dtype}{list(like[path].shape)}"
        got = f"{leaf.dtype}{list(leaf.shape)}"
        if expected != got:
            raise SavedFileError(f"{file}: {path} is {got}, and {expected} is needed.")
    return leaves
