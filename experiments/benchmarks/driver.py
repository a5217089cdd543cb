"""The driver of all benchmarks: cases x contenders -> rows, in interleaved rounds.

A contender is a function without arguments. One that cannot run on this machine raises
`Unavailable` as it is made; its row then has that reason and no number. Contenders are timed one
after the other in one process, round by round, so that a disturbance falls on all of them; memory
is measured in a process of its own.
"""

import ctypes
import gc
import importlib
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..runs import Monitor

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
    """One problem, and the contenders that solve it."""

    fields: dict[str, Any]  # the first columns of its row, such as {"n": 1000, "dim": 3}
    label: str
    contenders: Mapping[str, Callable[[], Contender]]  # each is made before it is timed
    # from the results of the contenders, and the row so far, to further columns of the row
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    cold: bool = False  # drop all compiled programs before each call


class Timings(NamedTuple):
    """By contender: seconds of the first call, those of each later call, and the last result."""

    first: dict[str, float]
    seconds: dict[str, list[float]]
    results: dict[str, Any]


class SelfTimed(NamedTuple):
    """The result of a contender that measures its own seconds."""

    seconds: float
    result: Any


def measure(
    monitor: Monitor,
    cases: Sequence[Callable[[], Case]],
    repeats: int,
    *,
    along: str | None = None,
    **limits: float,
) -> list[dict[str, Any]]:
    """A row for each case; a resumed run of this name measures the cases that it lacks.

    A row has the fields of its case, its `label`, and by contender the `seconds` of all rounds,
    their `median`, the seconds of the `first` call and why a contender is `unavailable`. `limits`
    are those of `interleaved`; a contender is not run where smaller values of the field `along`
    extrapolate to more than `max_run_seconds`.
    """
    rows: list[dict[str, Any]] = []

    def measure_case(i: int) -> dict[str, Any]:
        jax.clear_caches()  # programs are limited per process, and cases share none
        case = cases[i]()
        makers, too_slow = {}, {}
        for contender, make in case.contenders.items():
            expected = extrapolate(rows, case.fields, along, contender) if along else 0.0
            if expected > limits.get("max_run_seconds", np.inf):
                too_slow[contender] = f"would take {expected:.0f} s, by its smaller sizes"
            else:
                makers[contender] = make
        contenders, unavailable = available(makers)
        first, seconds, results = interleaved(contenders, repeats, cold=case.cold, **limits)
        row = {**case.fields, "label": case.label, "seconds": seconds, "first": first}
        row |= {"median": medians(seconds), "unavailable": unavailable | too_slow}
        return row | case.check(results, row)

    with monitor.progress("cases", len(cases)) as tick:
        for row in monitor.each("cases", len(cases), measure_case):
            rows.append(row)
            monitor.metrics([row])
            tick(len(rows), row["label"])
    return rows


def extrapolate(
    rows: Sequence[Mapping[str, Any]], fields: Mapping[str, Any], along: str, name: str
) -> float:
    """Seconds of a contender by a power of `fields[along]`.

    The power law goes through the last three rows that differ in this field alone; through one, it
    is the square; of none, the result is 0.
    """
    past = [
        (row[along], row["median"][name])
        for row in rows
        if name in row["median"] and all(row[key] == fields[key] for key in fields if key != along)
    ]
    if not past:
        return 0.0
    sizes, seconds = np.log(np.transpose(past[-3:]))
    power = 2.0 if len(sizes) == 1 else np.polyfit(sizes, seconds, 1)[0]
    return float(np.exp(np.mean(seconds) + power * (np.log(fields[along]) - np.mean(sizes))))


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


def compiled(function: Callable, *arguments: Any, max_bytes: float = np.inf) -> Contender:
    """A JAX function as a contender.

    **Raises:** `Unavailable` if XLA plans more than `max_bytes` for intermediates.
    """
    program = jax.jit(function).lower(*arguments).compile()
    planned = program.memory_analysis()
    bytes_ = 0 if planned is None else planned.temp_size_in_bytes  # None on some devices
    if bytes_ > max_bytes:
        raise Unavailable(f"needs {bytes_ / GIB:.1f} GiB, more than {max_bytes / GIB:.3g}")
    return lambda: program(*arguments)


def timed(function: Contender) -> tuple[float, Any]:
    """Seconds, and the result."""
    started = time.perf_counter()
    result = jax.block_until_ready(function())
    spent = time.perf_counter() - started
    return result if isinstance(result, SelfTimed) else (spent, result)


def interleaved(
    contenders: Mapping[str, Contender],
    repeats: int,
    *,
    cold: bool = False,
    max_seconds: float = np.inf,
    max_run_seconds: float = np.inf,
    round_seconds: float = 0.0,
) -> Timings:
    """Times every contender, one after the other, in `repeats` rounds.

    Each runs once before that, so that nothing is compiled in these times; with `cold`, all
    compiled programs are dropped before each call instead. No round of a contender starts once its
    rounds took `max_seconds`. A contender whose first call took more than `max_run_seconds` is
    not called again. A contender is called again until its round took `round_seconds`.
    """
    first, results = {}, {}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for name, function in () if cold else contenders.items():
        first[name], results[name] = timed(function)
        if first[name] > max_run_seconds:
            seconds[name].append(first[name])
    for _ in range(repeats):
        for name, function in contenders.items():
            if first.get(name, 0.0) > max_run_seconds or sum(seconds[name]) >= max_seconds:
                continue
            calls: list[float] = []
            while not calls or sum(calls) < round_seconds:
                if cold:
                    jax.clear_caches()
                spent, results[name] = timed(function)
                calls.append(spent)
            seconds[name] += calls
    return Timings(first, seconds, results)


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: float(np.median(values)) for name, values in seconds.items()}


def deviation(result: Any, truth: Any) -> float:
    """The largest max |a − b| / max |b| of the arrays of a result; NaN if any is."""
    pairs = zip(*(map(np.asarray, jax.tree.leaves(tree)) for tree in (result, truth)), strict=True)
    away = [np.max(np.abs(a.reshape(b.shape) - b)) / np.max(np.abs(b)) for a, b in pairs]
    return float(np.max(away))


def agreement(results: Mapping[str, Any], reference: str, tolerance: float) -> dict[str, float]:
    """The `deviation` of each contender from the reference.

    **Raises:** `Disagreement` if that is more than the tolerance, or not a number.
    """
    found = {name: deviation(result, results[reference]) for name, result in results.items()}
    for name, worst in found.items():
        if not worst <= tolerance:
            raise Disagreement(
                f"{name} is {worst:.1e} away from {reference}; expected at most {tolerance:.0e}"
            )
    return found


def agree(
    reference: str, tolerance: float, names: Sequence[str] | None = None
) -> Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]:
    """The check of a `Case` that these contenders (default: all) agree: see `agreement`."""

    def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
        compared = {name: results[name] for name in results if names is None or name in names}
        return {"deviation": agreement(compared, reference, tolerance)}

    return check


def in_fresh_process(function: Callable, *arguments: Any) -> Any:
    """What the function returns in a process of its own: a peak of memory never falls."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def growth_of_calls(precision: str, prepare: Callable, *arguments: Any) -> tuple[int, int | None]:
    """Bytes that `prepare(*arguments)()` takes over the prepared process, and those of a second
    call, in which nothing is compiled: None outside Linux, where no peak can be forgotten.

    In a fresh process: to be called by `in_fresh_process`.
    """
    with jax.enable_x64(precision == "float64"):
        jax.block_until_ready(jax.jit(jnp.sin)(jnp.ones(8)))  # the device is initialised
        call = prepare(*arguments)
        idle = peak_bytes()
        jax.block_until_ready(call())
        first = peak_bytes() - idle
        if not sys.platform.startswith("linux"):
            return first, None
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # memory that was freed goes back to the system
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
        idle = peak_bytes()
        jax.block_until_ready(call())
        return first, peak_bytes() - idle


def peak_bytes() -> int:
    """The most memory that this process ever held, in bytes.

    Linux: from /proc, because `getrusage` includes the memory of the parent process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
        if found is not None:
            return 1024 * int(found[1])
    import resource  # noqa: PLC0415  not on Windows, where nothing else needs it

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
