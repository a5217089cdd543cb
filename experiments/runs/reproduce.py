"""Runs a run again from its own config, in this environment, and compares every byte.

| file | how it is compared |
|---|---|
| config, metrics, summary, report, figures, checkpoints | byte by byte |
| `meta.json`: versions, devices, sources | reported as possible causes of a difference |
| `meta.json`: times, dates and the command | set aside |
| `status.json` | its state; its checksums are those of the other files |
| `output.log`, `sources.patch`, `kernels.py` | set aside; the report says whether they differ |

The numbers of a benchmark are times and memory: the files of one that differ are set aside, too.
"""

import filecmp
import json
import os
import shlex
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..config import ConfigError, read, shortened
from . import files, runner
from .provenance import TIMES


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
        return {"bytes": _byte_difference(before, now)}
    found = value_differences(*values)
    return found or {"bytes": f"the same values, {_byte_difference(before, now)}"}


def value_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Returns what differs between two mappings of names to values or arrays."""
    found = {}
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if name not in before:
            found[name] = f"only now: {_words(new)}"
        elif name not in now:
            found[name] = f"only before: {_words(old)}"
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
    are_numbers = files.is_number(old) and files.is_number(new) and old
    return f" ({abs(new - old) / abs(old):.1g} of it)" if are_numbers else ""


def _words(value: Any) -> str:
    """Returns a value as one short line."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return shortened(json.dumps(value, ensure_ascii=False))


def _byte_difference(before: Path, now: Path) -> str:
    """Returns where the bytes of two files begin to differ, and both lengths, as a phrase."""
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
        for field, value in files.flat(json.loads(line)).items()
    }


def read_picture(path: Path) -> np.ndarray:
    """Returns the pixels of a PNG file."""
    from matplotlib.image import imread  # noqa: PLC0415  where pictures are read

    return imread(path)


def _read_arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".json": lambda path: files.flat(json.loads(path.read_text(encoding="utf-8"))),
    ".jsonl": _read_lines,
    ".yaml": lambda path: files.flat(read(path).values),
    ".npz": _read_arrays,
    ".png": lambda path: {"pixels": read_picture(path)},
}


_MAX_LINES = 20  # printed; reproduction.json has all


class Comparison(NamedTuple):
    """Two runs of one config."""

    equal: list[str]  # files that were compared and have equal bytes
    different: dict[str, dict[str, str]]  # by file, what differs
    set_aside: dict[str, dict[str, str]]  # by file, what differs and is no matter
    causes: dict[str, str]  # entries of meta.json that differ and may be the reason


def reproduce(run: Path, out: Path | None, kernels: Path | None, *, quiet: bool) -> int:
    """Runs the config of a finished run into `out` (default: `RUN_reproduced` beside it) and writes
    `reproduction.json` there. Returns the exit code: 0 if every compared byte is equal.

    **Raises:** `OutputError` if there is no finished run, or one that is damaged or names a kernel
    of the user without `kernels`; `ConfigError`.
    """
    _require_finished(run, kernels)
    study = runner.load(run / "config.yaml", [])
    if out is None:
        whole = run if run.name not in ("", "..") else run.resolve()
        places = files.numbered_places(whole.with_name(f"{whole.name}_reproduced"))
        out = next(place for place in places if not os.path.lexists(place))
    code = runner.execute(study, out, quiet=quiet)
    if code:
        return code
    found = compare(run, out, is_benchmark=study.is_benchmark)
    equal = not found.different
    record = {"run": os.fspath(run), "reproduced": equal, **found._asdict()}
    files.write_json(out / "reproduction.json", record)
    lines = report_lines(run, out, found)
    if not quiet:
        print("\n".join(lines))
    elif not equal:
        print(lines[-1], file=sys.stderr)
    return 0 if equal else 1


def _require_finished(run: Path, kernels: Path | None) -> None:
    """Raises `OutputError` unless a directory holds a finished run whose kernel is known."""
    is_sweep = (run / "members.csv").is_file()
    files.require_run(run, "; name one of its members/ID" if is_sweep else "")
    status = files.status_of(run)
    if status["state"] != "done":
        hint = "" if status["state"] == "damaged" else f" To finish it: {files.resume_command(run)}"
        raise files.OutputError(
            f"{run} is {status['state']} ({status.get('reason')}): expected one that is done.{hint}"
        )
    own = run / "kernels.py"
    if own.is_file() and kernels is None:
        raise files.OutputError(
            f"{run} has a kernel of its own, and no code is run that is not named: after a look at "
            f"it, add --kernels {shlex.quote(os.fspath(own))}"
        )


def compare(before: Path, now: Path, *, is_benchmark: bool = False) -> Comparison:
    """Compares the files of two runs."""
    names = {
        path.relative_to(run).as_posix()
        for run in (before, now)
        for path in run.rglob("*")
        if path.is_file() and path.name != "reproduction.json"
    }
    found = Comparison([], {}, {}, {})
    for name in sorted(names - {"meta.json", "status.json"}):
        old, new = before / name, now / name
        if old.is_file() and new.is_file():
            differ = differences(old, new)
        else:
            differ = {"file": f"only in {'the run' if old.is_file() else 'its repetition'}"}
        is_set_aside = files.is_record(name) or (is_benchmark and name != "config.yaml")
        if not differ:
            found.equal.append(name)
        elif is_set_aside and (files.is_record(name) or "file" not in differ):
            found.set_aside[name] = differ
        else:
            found.different[name] = differ
    metas = [files.read_json(run / "meta.json") for run in (before, now)]
    times = [files.flat({k: v for k, v in meta.items() if k in TIMES}) for meta in metas]
    rests = [files.flat({k: v for k, v in meta.items() if k not in TIMES}) for meta in metas]
    found.set_aside["meta.json"] = value_differences(*times)
    found.causes.update(value_differences(*rests))
    return found


def report_lines(run: Path, out: Path, found: Comparison) -> list[str]:
    """What was compared, what was set aside, what differs and why it may; last, the verdict."""
    number = len(found.equal) + len(found.different)
    lines = [f"{number} files compared byte by byte: {len(found.equal)} equal"]
    lines += ["set aside:", *_lines_of(found.set_aside)]
    if found.different:
        lines += ["different:", *_lines_of(found.different)]
    if found.causes:
        lines.append("a difference may come from:" if found.different else "though these differ:")
        lines += [f"  {name}: {phrase}" for name, phrase in found.causes.items()]
    elif found.different:
        lines.append(
            "versions, device, settings and sources are the same: the study is not deterministic "
            "here, or what is not recorded has changed, such as the driver of a device"
        )
    verb = "differs from" if found.different else "equals"
    return [*lines, f"{out} {verb} {run}; see {out / 'reproduction.json'}"]


def _lines_of(files: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns a line for each difference of each file, at most `_MAX_LINES`."""
    lines = [
        f"  {file}: {place}: {phrase}"
        for file, places in files.items()
        for place, phrase in places.items()
    ]
    rest = len(lines) - _MAX_LINES
    more = [f"  and {rest} more in reproduction.json"] if rest > 0 else []
    return lines[:_MAX_LINES] + more
