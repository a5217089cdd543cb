"""How long first calls take in a fresh process, where nothing is compiled.

Each call runs after the imports, in a process of its own, with and without a disk cache of compiled
programs that an earlier process filled. Contenders are interleaved. CPU seconds are those of all
threads: they depend less than seconds on what else the machine does.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import yaml
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import FieldError, Positive
from ..runs import Run
from .benchmark import Benchmark, Results
from .driver import Case, Contender, SelfTimed, agreement, medians, optional_import
from .fresh_process import Latency, Script, measure
from .r_scripts import timed_script
from .reports import ratio, target

OURS, EQUINOX = "attnkernel", "Equinox"
CACHED = ", from disk"
PACKAGES = {  # of contenders that need not be installed
    "statsmodels": "statsmodels.nonparametric.kernel_regression",
    "statsmodels, lowess": "statsmodels.nonparametric.smoothers_lowess",
    "scikit-learn, neighbours": "sklearn.neighbors",
    "scikit-learn, Gaussian process": "sklearn.gaussian_process",
}
R_PACKAGES = {"R: np": "np", "R: KernSmooth": "KernSmooth", "R: locfit": "locfit"}
# order 0: one lengthscale per column, without a choice
CONTENDERS = (OURS, OURS + CACHED, f"{OURS}, float64", f"{OURS}, order 0", EQUINOX)
CONTENDERS += (EQUINOX + CACHED, *PACKAGES, *R_PACKAGES)
CPU, WALL, PROGRAMS, MEMORY = "CPU seconds", "seconds", "programs", "growth of memory"
COLUMNS = {CPU: "median", WALL: "wall", PROGRAMS: "compiled", MEMORY: "growth"}  # of a row
COUNTED = ("wall", "compiled", "loaded")  # of a process, beside its CPU seconds
TOLERANCE = 1e-3  # of attnkernel and Equinox, with and without a cache, in float32


class Call(NamedTuple):
    """A first call: its contenders, and the most that ours may take of a measure."""

    label: str
    contenders: Mapping[str, Script]
    limit: float
    disk_limit: float | None = None  # with programs from a disk cache; None: not measured
    measure: str = CPU
    over: str | None = None  # the contender whose measure divides ours
    package: str | None = None  # without which no contender runs


def make_calls(length: int, rows: int, fits: int) -> dict[str, Call]:
    """All calls by name: attention to `length` tokens, a fit of `rows`, memory of `fits` fits."""
    text = (resources.files(__package__ or "") / "first_calls.yaml").read_text(encoding="utf-8")
    declared, names = yaml.safe_load(text), {"length": length, "rows": rows, "fits": fits}

    def expand(part: str) -> str:
        """Returns the text of lines, from their name or as they are."""
        found = declared["lines"].get(part, part)
        return found if isinstance(found, str) else "\n".join(map(expand, found))

    def make(name: str, fields: dict[str, Any]) -> Call:
        label = fields.pop("label", name.replace("_", " ")).format(**names)
        limits, is_process = fields.pop("limits"), fields.pop("is_process", False)
        rest = {key: fields.pop(key) for key in ("measure", "over", "package") if key in fields}
        scripts = {}
        for contender, parts in fields.items():
            *before, call = map(expand, parts)
            if is_process:
                before, call = [], "\n".join([*before, call])
            scripts[contender] = Script("\n".join(before), call, is_process, names)
        return Call(label, scripts, *limits, **rest)

    return {name: make(name, fields) for name, fields in declared["calls"].items()}


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
    compared: ClassVar = CONTENDERS
    unit: ClassVar = CPU

    def check(self) -> None:
        known = self._calls()
        for i, name in enumerate(self.calls or []):
            if name not in known:
                raise FieldError(("calls", i), f"expected one of {', '.join(known)}; got {name!r}")

    def _calls(self) -> dict[str, Call]:
        return make_calls(self.length, self.rows, self.fits)

    def places(self) -> list[tuple[str, Call]]:
        calls = self._calls()
        return [(name, call) for name, call in calls.items() if name in (self.calls or calls)]

    def make_case(self, key: PRNGKeyArray, name: str, call: Call) -> Case:
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
            if contender in R_PACKAGES:
                data = ak.data.load("cps71")
                x, y = np.asarray(data.x, float)[:, 0], np.asarray(data.y, float)
                run_in_r = timed_script(R_PACKAGES[contender], script, x, y)
                return timed(contender, lambda: run_in_r()[0])
            for package in (call.package, PACKAGES.get(contender)):
                if package is not None:
                    optional_import(package)
            env = {"JAX_ENABLE_X64": str(self.precision == "float64")}
            run = functools.partial(measure, contender, script, env)
            if is_cached:
                env["JAX_ENABLE_COMPILATION_CACHE"] = "true"
                env["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder.name) / contender)
                env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
                run()
            return timed(contender + CACHED * is_cached, run)

        cached = () if call.disk_limit is None else (OURS, EQUINOX)
        contenders = {name: functools.partial(make, name, False) for name in call.contenders}
        for contender in filter(call.contenders.__contains__, cached):
            contenders[contender + CACHED] = functools.partial(make, contender, True)
        equal = [OURS, OURS + CACHED, EQUINOX, EQUINOX + CACHED]

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            folder.cleanup()
            found = {
                what: medians({name: [getattr(r, what) for r in of] for name, of in rounds.items()})
                for what in COUNTED
            }
            if call.measure == MEMORY:
                growth = np.median([latency.norms[0] for latency in rounds[OURS]])
                found["growth"] = {OURS: float(growth)}
            norms = {name: results[name] for name in equal if name in results}
            found["deviation"] = agreement(norms, OURS, TOLERANCE) if len(norms) > 1 else {}
            return found

        return Case({"call": name}, call.label, contenders, check, cold=True)

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        for row in results.table:
            call = self._calls()[row["call"]]
            values, what = row.get(COLUMNS[call.measure], {}), call.measure
            for end, limit in (("", call.limit), (CACHED, call.disk_limit)):
                value = values.get(OURS + end)
                if call.over is not None:
                    value = ratio(values, OURS + end, call.over + end)
                    what = f"{call.measure} over those of {call.over}"
                place = {} if value is None else {row["label"] + end: value}
                if limit is not None:
                    yield target(what, limit, place, at_most=True)

    def print_tables(self, results: Results, run: Run) -> None:
        rows = []
        for row in results.table:
            for contender in filter(row["median"].__contains__, self.compared):
                over = ratio(row["median"], contender, OURS)
                found = {"call": row["label"], "contender": contender}
                found |= {"CPU s": row["median"][contender], f"× {OURS}": over}
                rows.append(found | {what: row[what][contender] for what in COUNTED})
        run.table_of(f"medians of {self.repeats} processes", rows)
