"""How long first calls take in a fresh process, where nothing is compiled.

Each call runs after the imports, in a process of its own, with and without a disk cache of compiled
programs that an earlier process filled. Contenders are interleaved. CPU seconds are those of all
threads: they depend less than seconds on what else the machine does.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import FieldError, Positive
from ..runs import Run
from . import first_calls as first
from .benchmark import Benchmark, Results
from .driver import Case, Contender, SelfTimed, agreement, medians, optional_import
from .fresh_process import Latency, measure
from .r_scripts import timed_script
from .reports import ratio, target

COUNTED = ("wall", "compiled", "loaded")  # of a process, beside its CPU seconds
TOLERANCE = 1e-3  # of attnkernel and Equinox, with and without a cache, in float32


class BenchLatency(Benchmark):
    """CPU seconds, seconds and compiled programs of each first call."""

    study: Literal["bench_latency"]
    calls: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="names of calls, as in `benchmarks/first_calls.yaml`"
    )
    length: int = Field(default=2048, ge=2, le=100_000, description="tokens of MultiheadAttention")
    rows: int = Field(
        default=100_000, ge=100, le=10_000_000, description="of the fit that is timed warm"
    )
    fits: int = Field(
        default=300, ge=3, le=10_000, description="in one process, whose memory should stay"
    )
    repeats: int = Field(default=3, ge=1, le=1000)
    max_seconds: Positive = 600.0
    compared: ClassVar = first.CONTENDERS
    unit: ClassVar = first.CPU

    def check(self) -> None:
        known = self._calls()
        for i, name in enumerate(self.calls or []):
            if name not in known:
                raise FieldError(("calls", i), f"expected one of {', '.join(known)}; got {name!r}")

    def _calls(self) -> dict[str, first.Call]:
        return first.make_calls(self.length, self.rows, self.fits)

    def places(self) -> list[tuple[str, first.Call]]:
        return [
            (name, call)
            for name, call in self._calls().items()
            if self.calls is None or name in self.calls
        ]

    def make_case(self, key: PRNGKeyArray, name: str, call: first.Call) -> Case:
        """Returns the `Case` that times one call by every contender. For the disk cache, each
        contender has a folder of its own, which a process that is not timed fills.
        """
        folder = tempfile.TemporaryDirectory()
        rounds: dict[str, list[Latency]] = {}

        def timed(contender: str, run: Callable[[], Latency]) -> Contender:
            def contend() -> SelfTimed:
                latency = run()
                rounds.setdefault(contender, []).append(latency)
                return SelfTimed(latency.cpu, np.array(latency.norms))

            return contend

        def make(contender: str, is_cached: bool) -> Contender:
            script = call.contenders[contender]
            if contender in first.R_PACKAGES:
                data = ak.data.load("cps71")
                x, y = np.asarray(data.x, float)[:, 0], np.asarray(data.y, float)
                run_in_r = timed_script(first.R_PACKAGES[contender], script, x, y)
                return timed(contender, lambda: run_in_r()[0])
            for package in (call.package, first.PACKAGES.get(contender)):
                if package is not None:
                    optional_import(package)
            env = {"JAX_ENABLE_X64": str(self.precision == "float64")}
            run = functools.partial(measure, contender, script, env)
            if is_cached:
                env["JAX_ENABLE_COMPILATION_CACHE"] = "true"
                env["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder.name) / contender)
                env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
                run()
            return timed(contender + first.CACHED * is_cached, run)

        contenders = {
            contender + first.CACHED * is_cached: functools.partial(make, contender, is_cached)
            for is_cached in (False, True)
            for contender in call.contenders
            if not is_cached
            or (call.disk_limit is not None and contender in (first.OURS, first.EQUINOX))
        }
        equal = [first.OURS, first.OURS + first.CACHED, first.EQUINOX, first.EQUINOX + first.CACHED]

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            folder.cleanup()
            found = {
                what: medians({name: [getattr(r, what) for r in of] for name, of in rounds.items()})
                for what in COUNTED
            }
            if call.measure == first.MEMORY:
                found["growth"] = {
                    first.OURS: float(np.median([r.norms[0] for r in rounds[first.OURS]]))
                }
            norms = {name: results[name] for name in equal if name in results}
            found["deviation"] = agreement(norms, first.OURS, TOLERANCE) if len(norms) > 1 else {}
            return found

        return Case({"call": name}, call.label, contenders, check, cold=True)

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        for row in results.table:
            call = self._calls()[row["call"]]
            values, what = row.get(first.COLUMNS[call.measure], {}), call.measure
            for end, limit in (("", call.limit), (first.CACHED, call.disk_limit)):
                value = values.get(first.OURS + end)
                if call.over is not None:
                    value = ratio(values, first.OURS + end, call.over + end)
                    what = f"{call.measure} over those of {call.over}"
                place = {} if value is None else {row["label"] + end: value}
                if limit is not None:
                    yield target(what, limit, place, at_most=True)

    def print_tables(self, results: Results, run: Run) -> None:
        rows = []
        for row in results.table:
            for contender in filter(row["median"].__contains__, self.compared):
                over = ratio(row["median"], contender, first.OURS)
                found = {"call": row["label"], "contender": contender}
                found |= {"CPU s": row["median"][contender], f"× {first.OURS}": over}
                rows.append(found | {what: row[what][contender] for what in COUNTED})
        run.table_of(f"medians of {self.repeats} processes", rows)
