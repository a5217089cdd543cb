"""The driver of all benchmarks: cases x contenders -> rows, in interleaved rounds.

A contender is a function without arguments. One that cannot run on this machine raises
`Unavailable` as it is made; its row then has that reason and no number. Contenders are timed one
after the other in one process, round by round, so that a disturbance falls on all of them; memory
is measured in a process of its own.
"""

import importlib
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ..watch import Watch

Contender = Callable[[], Any]
MIB, GIB = 2**20, 2**30


class Unavailable(Exception):
    """A contender cannot run on this machine, and why."""


class Disagreement(Exception):
    """Two contenders computed different numbers, so that their times do not compare."""


def optional_import(module: str) -> Any:
    """A package of the extra `peers`. **Raises:** `Unavailable` if it is not installed."""
    # its threads sleep, and do not spin, while another contender computes; read as OpenMP is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{module.partition('.')[0]}: not installed ({error})") from None


class Case(NamedTuple):
    """One problem: its place among the cases, and a function for each contender that makes it."""

    place: dict[str, Any]  # such as {"n": 1000, "dim": 3}: the first columns of its row
    where: str  # the place in words
    contenders: Mapping[str, Callable[[], Contender]]
    deviations: Callable[[Mapping[str, Any]], dict[str, float]]  # of results; see `agreement`


def measure(
    watch: Watch, cases: Iterable[Case], total: int, repeats: int, max_seconds: float = np.inf
) -> list[dict[str, Any]]:
    """A row for each case: seconds of every round, medians, deviations, and who could not run.

    **Arguments:** `cases`: `total` of them, each made once the one before is measured.
    `max_seconds`: for all rounds of a contender; a slower one has fewer, at least one.

    **Raises:** `Disagreement`, where the check of a case does.
    """
    rows = []
    with watch.progress("benchmark", total) as tick:
        for case in cases:
            contenders, unavailable = available(case.contenders)
            seconds, results = interleaved(contenders, repeats, max_seconds=max_seconds)
            rows.append(
                {
                    **case.place,
                    "seconds": seconds,
                    "median": medians(seconds),
                    "deviation": case.deviations(results),
                    "unavailable": unavailable,
                    "where": case.where,
                }
            )
            tick(len(rows), case.where)
    return rows


def available(
    makers: Mapping[str, Callable[[], Any]],
) -> tuple[dict[str, Any], dict[str, str]]:
    """The contenders that can run, and why each of the others cannot."""
    made, unavailable = {}, {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except Unavailable as reason:
            unavailable[name] = str(reason)
    return made, unavailable


def compiled(
    function: Callable, *arguments: Any, max_bytes: float = np.inf
) -> tuple[Contender, int]:
    """A JAX function as a contender, and the bytes of XLA's plan beside arguments and results.

    **Raises:** `Unavailable` if these are more than `max_bytes`.
    """
    program = jax.jit(function).lower(*arguments).compile()
    planned = program.memory_analysis()
    bytes_ = 0 if planned is None else planned.temp_size_in_bytes  # not every device tells
    if bytes_ > max_bytes:
        raise Unavailable(f"needs {bytes_ / GIB:.1f} GiB, more than {max_bytes / GIB:.3g}")
    return lambda: program(*arguments), bytes_


def timed(function: Contender) -> tuple[float, Any]:
    """Seconds, and the result."""
    started = time.perf_counter()
    result = jax.block_until_ready(function())
    return time.perf_counter() - started, result


def interleaved(
    contenders: Mapping[str, Contender],
    repeats: int,
    *,
    cold: bool = False,
    max_seconds: float = np.inf,
    each_round: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of every contender, one after the other, `repeats` times; and what they computed.

    Each runs once before that, so that nothing is compiled in these times; with `cold`, all
    compiled programs are dropped before each call instead. A contender that takes more than
    `max_seconds` for all of its repeats has fewer, at least one.
    """
    results, rounds = {}, dict.fromkeys(contenders, repeats)
    if not cold:
        for name, function in contenders.items():
            spent, results[name] = timed(function)
            rounds[name] = int(np.clip(max_seconds / spent, 1, repeats))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for done in range(repeats):
        for name, function in contenders.items():
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
    """The deviation of each contender from the reference: max |a − b| / max |b| over its arrays.

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
