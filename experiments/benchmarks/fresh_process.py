"""Times a call in a process of its own, where nothing is compiled: `measure`.

The process is `python -m experiments.benchmarks.fresh_process CALL CONTENDER SIZES`.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .first_calls import Call, make_calls

COMPILED = "/jax/core/compile/backend_compile_duration"
LOADED = "/jax/compilation_cache/cache_hits"


class Latency(NamedTuple):
    """A timed call: CPU seconds of all threads, seconds, programs that were compiled and that were
    loaded from the disk cache, and the norms of the arrays that it returned.
    """

    cpu: float
    wall: float
    compiled: int = 0
    loaded: int = 0
    norms: tuple[float, ...] = ()


def measure(name: str, contender: str, sizes: Mapping[str, int], env: Mapping[str, str]) -> Latency:
    """Times a contender of `make_calls(**sizes)[name]`; `env` is added to the environment.

    Python keeps the bytecode of modules, as it does for users: only the first process of all
    compiles it.
    """
    arguments = ["-m", __name__, name, contender, json.dumps(sizes)]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", "MPLBACKEND": "agg", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    spent = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{contender}, {name} failed: {done.stderr.strip()}")
    found = Latency(**json.loads(done.stdout.splitlines()[-1]))
    found = found._replace(norms=tuple(found.norms))
    return found._replace(wall=spent) if make_calls(**sizes)[name].is_process else found


def time_call(call: Call, contender: str) -> Latency:
    """Prepares and times a contender in this process."""
    import numpy as np  # noqa: PLC0415  no earlier than the packages of the contender

    run = call.contenders[contender]()
    events: list[str] = []
    if call.is_process or "jax" in sys.modules:
        from jax import monitoring  # noqa: PLC0415

        monitoring.register_event_listener(lambda event, **_: events.append(event))
        monitoring.register_event_duration_secs_listener(
            lambda event, duration_secs, **_: events.append(event)
        )
    cpu, wall = time.process_time(), time.perf_counter()
    arrays: list[Any] = [np.asarray(array, float) for array in run()]  # waits for them
    end = time.process_time()
    loaded = events.count(LOADED)
    return Latency(
        end if call.is_process else end - cpu,
        time.perf_counter() - wall,
        events.count(COMPILED) - loaded,
        loaded,
        tuple(float(np.linalg.norm(array)) for array in arrays),
    )


def main() -> None:
    name, contender, sizes = sys.argv[1:]
    found = time_call(make_calls(**json.loads(sizes))[name], contender)
    print(json.dumps(found._asdict()))


if __name__ == "__main__":
    main()
