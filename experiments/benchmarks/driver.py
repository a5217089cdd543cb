"""The sides of a comparison: timed in turn in one process, their memory each in its own.

A side is a function without arguments. One that cannot run here raises `Unavailable` as it is
made, and stands in the tables with that reason and no number.
"""

import importlib
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..run import Run

Contender = Callable[[], Any]
MIB, GIB = 2**20, 2**30


class Unavailable(Exception):
    """A side that cannot run here, and why."""


class Disagreement(Exception):
    """Two sides computed different numbers: their times do not compare."""


def optional_import(module: str) -> Any:
    """A package of the extra `peers`. **Raises:** `Unavailable` if it is not installed."""
    # its threads are to sleep, not to spin, while another side computes; read as OpenMP is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{module.partition('.')[0]}: not installed ({error})") from None


def available(sides: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The sides that can run, and why each of the others cannot."""
    made, absent = {}, {}
    for name, maker in sides.items():
        try:
            made[name] = maker()
        except Unavailable as reason:
            absent[name] = str(reason)
    return made, absent


def note_unavailable(run: Run, found: Sequence[tuple[str, str, str]]) -> None:
    """Notes on sides that did not run: of each its name, where, and why."""
    where: dict[tuple[str, str], list[str]] = {}
    for name, place, reason in found:
        where.setdefault((name, reason), []).append(place)
    run.note([f"no {name} ({reason}) at {'; '.join(at)}" for (name, reason), at in where.items()])


def compiled(
    function: Callable, *arguments: Any, most_bytes: float = np.inf
) -> tuple[Contender, int]:
    """A JAX function as a side, and the bytes beside its arguments and results that XLA plans.

    **Raises:** `Unavailable` if these are more than `most_bytes`.
    """
    program = jax.jit(function).lower(*arguments).compile()
    planned = program.memory_analysis()
    bytes_ = 0 if planned is None else planned.temp_size_in_bytes  # not every device tells
    if bytes_ > most_bytes:
        raise Unavailable(f"needs {bytes_ / GIB:.1f} GiB, more than {most_bytes / GIB:.3g}")
    return lambda: program(*arguments), bytes_


def timed(function: Contender) -> tuple[float, Any]:
    """Seconds, and the result."""
    started = time.perf_counter()
    result = jax.block_until_ready(function())
    return time.perf_counter() - started, result


def interleaved(
    sides: Mapping[str, Contender],
    repeats: int,
    *,
    cold: bool = False,
    most_seconds: float = np.inf,
    each_round: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of every side, one side after the other, `repeats` times; and what they computed.

    Each runs once before that, so that nothing is compiled in these times; with `cold`, all
    compiled programs are dropped before each call instead. A side that takes more than
    `most_seconds` for all of its repeats has fewer, but one.
    """
    results, rounds = {}, dict.fromkeys(sides, repeats)
    if not cold:
        for name, function in sides.items():
            spent, results[name] = timed(function)
            rounds[name] = int(np.clip(most_seconds / spent, 1, repeats))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for done in range(repeats):
        for name, function in sides.items():
            if done < rounds[name]:
                if cold:
                    jax.clear_caches()
                spent, results[name] = timed(function)
                seconds[name].append(spent)
        each_round(done + 1)
    return seconds, results


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: float(np.median(values)) for name, values in seconds.items()}


def agreement(results: Mapping[str, Any], reference: str, tolerance: float) -> dict[str, float]:
    """How far each side is from the reference: max |a − b| / max |b|, the worst of its arrays.

    **Raises:** `Disagreement` if that is more than the tolerance, or not a number.
    """
    truth = [np.asarray(leaf) for leaf in jax.tree.leaves(results[reference])]
    deviations = {}
    for name, result in results.items():
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result)]
        away = [
            np.max(np.abs(a.reshape(b.shape) - b)) / np.max(np.abs(b))
            for a, b in zip(leaves, truth, strict=True)
        ]
        worst = float(np.max(away))  # NaN if any is
        if not worst <= tolerance:
            raise Disagreement(
                f"{name} is {worst:.1e} away from {reference}; expected at most {tolerance:.0e}"
            )
        deviations[name] = worst
    return deviations


def in_fresh_process(function: Callable, *arguments: Any) -> Any:
    """What the function returns in a process of its own: a peak of memory never falls."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def peak_bytes() -> int:
    """The most memory that this process ever held, in bytes.

    Linux: of its own program alone; what `getrusage` says begins at what its parent held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
        if found is not None:
            return 1024 * int(found[1])
    import resource  # noqa: PLC0415  not on Windows, where nothing else needs it

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def target(
    what: str, needed: float, values: Mapping[str, float], *, at_most: bool = False
) -> dict[str, Any]:
    """A target, and of the values measured, by where, the one that is furthest from it."""
    row: dict[str, Any] = {"target": what, "at_most" if at_most else "at_least": needed}
    if not values:
        return row | {"worst": None, "at": None, "reached": None}
    at = (max if at_most else min)(values, key=lambda where: values[where])
    worst = values[at]
    return row | {
        "worst": worst,
        "at": at,
        "reached": worst <= needed if at_most else worst >= needed,
        "values": dict(values),
    }


def table_of_targets(run: Run, targets: Sequence[Mapping[str, Any]]) -> None:
    words = {True: "reached", False: "missed", None: "not measured"}
    run.table(
        "",
        ["target", "", "worst", "at", ""],
        [
            [
                row["target"],
                f"≤ {row['at_most']:g}" if "at_most" in row else f"≥ {row['at_least']:g}",
                "" if row["worst"] is None else f"{row['worst']:.2f}",
                row["at"] or "",
                words[row["reached"]],
            ]
            for row in targets
        ],
    )
