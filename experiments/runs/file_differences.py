"""The places at which two files of runs differ, in the words of their format.

Values of JSON and YAML are named by their dotted fields, those of JSON lines by line and field,
arrays by their names. A figure is an array of pixels.
"""

import filecmp
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread

from ..config import ConfigError, read, shortened
from .files import flat, is_number

_MISSING = object()


def differences(before: Path, now: Path) -> dict[str, str]:
    """Returns what differs, by the name of the place; {} only if every byte is equal."""
    if filecmp.cmp(before, now, shallow=False):
        return {}
    reader = _READERS.get(before.suffix)
    try:
        values = (reader(before), reader(now)) if reader else None
    except (OSError, ValueError, SyntaxError, ConfigError, zipfile.BadZipFile):
        values = None  # one of them cannot be read
    if values is None:
        return {"bytes": _first_byte(before, now)}
    found = value_differences(*values)
    return found or {"bytes": f"the same values, {_first_byte(before, now)}"}


def value_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Returns what differs between two mappings of names to values or arrays."""
    found = {}
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name, _MISSING), now.get(name, _MISSING)
        if old is _MISSING or new is _MISSING:
            value = new if old is _MISSING else old
            found[name] = f"{'only now' if old is _MISSING else 'only before'}: {_words(value)}"
        elif isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
            if phrase := _array_difference(old, new):
                found[name] = phrase
        elif old != new:
            found[name] = f"{_words(old)} -> {_words(new)}{_relative_change(old, new)}"
    return found


def _array_difference(old: np.ndarray, new: np.ndarray) -> str | None:
    """Returns in how many entries two arrays differ, and by how much; None if they are equal."""
    if old.shape != new.shape or old.dtype != new.dtype:
        return f"{old.dtype}{list(old.shape)} -> {new.dtype}{list(new.shape)}"
    changed = old != new
    numbers = np.issubdtype(old.dtype, np.number)
    if numbers:
        changed &= ~(np.isnan(old) & np.isnan(new))
    if not np.any(changed):
        return None
    count = f"{np.sum(changed)} of {old.size} values differ"
    if not numbers:
        return count
    gaps = np.abs(old[changed].astype(complex) - new[changed].astype(complex))
    return f"{count}, by up to {np.max(gaps):.3g}"


def _relative_change(old: Any, new: Any) -> str:
    """Returns " (3e-07 of it)" for two numbers, the first not 0; else an empty text."""
    if is_number(old) and is_number(new) and old:
        return f" ({abs(new - old) / abs(old):.1g} of it)"
    return ""


def _words(value: Any) -> str:
    """Returns a value as one short line."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return shortened(json.dumps(value, ensure_ascii=False))


def _first_byte(before: Path, now: Path) -> str:
    """Returns where the bytes of two files begin to differ."""
    old, new = before.read_bytes(), now.read_bytes()
    pairs = enumerate(zip(old, new, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
    return f"differ from byte {first} on, of {len(old)} -> {len(new)}"


def _read_lines(path: Path) -> dict[str, Any]:
    """Returns the fields of each line of JSON, by "line 3: FIELD"."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return {
        f"line {number}: {field}": value
        for number, line in lines
        for field, value in flat(json.loads(line)).items()
    }


def _read_arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".json": lambda path: flat(json.loads(path.read_text(encoding="utf-8"))),
    ".jsonl": _read_lines,
    ".yaml": lambda path: flat(read(path).values),
    ".npz": _read_arrays,
    ".png": lambda path: {"pixels": imread(path)},
}
