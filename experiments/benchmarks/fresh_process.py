"""Times a script in a process of its own, where nothing is compiled: `measure`.

The process is `python -m experiments.benchmarks.fresh_process SCRIPT`.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

COMPILED = "/jax/core/compile/backend_compile_duration"
LOADED = "/jax/compilation_cache/cache_hits"


class Script(NamedTuple):
    """Lines that prepare, and those that are timed, which leave a list of arrays in `out`.

    With `is_process`, the time is that of all lines, from the start of the interpreter to its end.
    `names`: values that the lines know, by name.
    """

    prepare: str
    call: str
    is_process: bool = False
    names: Mapping[str, int] = {}


class Latency(NamedTuple):
    """A timed call: CPU seconds of all threads, seconds, programs that were compiled and that were
    loaded from the disk cache, and the norms of the arrays that it left.
    """

    cpu: float
    wall: float
    compiled: int = 0
    loaded: int = 0
    norms: tuple[float, ...] = ()


def run_process(command: Sequence[str], what: str, **options: Any) -> str:
    """What a command prints; `options`: of `subprocess.run`.

    **Raises:** `RuntimeError` if it fails, with `what` it is and what it writes to standard error.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise RuntimeError(f"{what} failed: {done.stderr.strip()}")
    return done.stdout


def measure(contender: str, script: Script, env: Mapping[str, str]) -> Latency:
    """Times a script of a contender; `env` is added to the environment.

    Python keeps the bytecode of modules, as it does for users: only the first process of all
    compiles it.
    """
    started = time.perf_counter()
    printed = run_process(
        [sys.executable, "-W", "ignore", "-m", __name__, json.dumps(script)],
        f"{contender}, {script.call!r}",
        cwd=Path(__file__).parents[__name__.count(".")],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", "MPLBACKEND": "agg", **env},
    )
    spent = time.perf_counter() - started
    found = Latency(**json.loads(printed.splitlines()[-1]))
    return found._replace(wall=spent) if script.is_process else found


def time_script(script: Script) -> Latency:
    """Prepares and times a script in this process."""
    import numpy as np  # noqa: PLC0415  no earlier than the packages of the contender

    names: dict[str, Any] = dict(script.names)
    exec(script.prepare, names)
    call, events = compile(script.call, "<call>", "exec"), list[str]()
    if script.is_process or "jax" in sys.modules:
        from jax import monitoring  # noqa: PLC0415

        monitoring.register_event_listener(lambda event, **_: events.append(event))
        monitoring.register_event_duration_secs_listener(
            lambda event, duration_secs, **_: events.append(event)
        )
    cpu, wall = time.process_time(), time.perf_counter()
    exec(call, names)
    arrays = [np.asarray(array, float) for array in names.get("out", [])]  # waits for them
    end = time.process_time()
    loaded = events.count(LOADED)
    return Latency(
        end if script.is_process else end - cpu,
        time.perf_counter() - wall,
        events.count(COMPILED) - loaded,
        loaded,
        tuple(float(np.linalg.norm(array)) for array in arrays),
    )


if __name__ == "__main__":
    print(json.dumps(time_script(Script(*json.loads(sys.argv[1])))._asdict()))
