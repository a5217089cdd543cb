"""Several processes at one run, by `jax.distributed`: on Slurm and clouds they find each other.

All compute the same, each with its own devices for its part of a training; process 0 alone writes
the run, the others into a folder that goes when they end.
"""

import os
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


class JoinError(Exception):
    """The processes do not find each other, or the study is for one."""


def start(is_distributed: bool, coordinator: str | None, process: tuple[int, int] | None) -> None:
    """Reserves threads, and waits for all processes of a distributed run; to be called before JAX
    starts.

    **Arguments:** `coordinator`: where process 0 listens, host:port. `process`: (i, N), which one
    this is of how many. Default None: taken from Slurm, Open MPI or the cloud.

    **Raises:** `JoinError`; also for a `coordinator` or a `process` of a run that is not
    distributed.
    """
    reserve_threads()
    if not is_distributed:
        if coordinator or process:
            raise JoinError("--coordinator and --process go with --distributed")
        return
    place, number = process or (None, None)
    try:
        jax.distributed.initialize(coordinator, num_processes=number, process_id=place)
    except (RuntimeError, ValueError) as error:
        said = str(error).strip().partition("\n")[0]
        raise JoinError(
            f"the processes do not find each other: {said}\n"
            f"on Slurm or a cloud: --distributed; elsewhere, of each of N processes: --distributed "
            f"--process i/N --coordinator HOST:PORT, with i from 0 and where process 0 listens"
        ) from None


def reserve_threads(devices: int | None = None) -> None:
    """Reserves threads for virtual CPU devices; to be called before JAX starts.

    All devices share one pool with one thread per core, and wait for each other in it. A sum over
    devices deadlocks if there are no more threads than devices.

    **Arguments:** `devices`. Default: `JAX_NUM_CPU_DEVICES`.
    """
    number = devices or int(os.environ.get("JAX_NUM_CPU_DEVICES", "1"))
    if number > 1:
        os.environ.setdefault("NPROC", str((os.cpu_count() or 1) + 2 * number))


def all_succeeded(yes: bool) -> bool:
    """Whether `yes` is true in every process; all must call this."""
    if jax.process_count() == 1:
        return yes
    return bool(np.all(multihost_utils.process_allgather(np.array(yes))))


def broadcast(tree: Any) -> Any:
    """The arrays of process 0, in every process."""
    return tree if jax.process_count() == 1 else multihost_utils.broadcast_one_to_all(tree)
