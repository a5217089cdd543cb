"""A sweep as an array of Slurm jobs, one for each shard, through submitit (extra `slurm`)."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import PACKAGE
from ..runs import OutputError


def submit(
    arguments: Sequence[str], out: Path, shards: int, options: Sequence[str], jobs: int
) -> tuple[str, Path]:
    """Submits `sweep ARGUMENTS --out OUT --shard i/N --jobs J` for every i.

    **Arguments:** `options`: `KEY=VALUE` of submitit, such as `timeout_min=60`,
    `slurm_partition=gpu` or `mem_gb=8`.

    **Returns:** the number of the array, and the folder of its scripts and logs.

    **Raises:** `OutputError` without submitit or Slurm, or where they refuse.
    """
    try:
        import submitit  # noqa: PLC0415  an extra
        from submitit.core.utils import FailedJobError  # noqa: PLC0415
        from submitit.helpers import CommandFunction  # noqa: PLC0415
    except ImportError:
        raise OutputError('--submit needs submitit: pip install "attnkernel[slurm]"') from None
    folder = out / "slurm"
    executor = submitit.AutoExecutor(folder=folder)
    if executor.cluster != "slurm":
        raise OutputError("--submit found no Slurm here (no srun): use --jobs N instead")
    command = [sys.executable, "-m", PACKAGE, "sweep", *arguments, "--out", os.fspath(out)]
    functions = [
        CommandFunction([*command, "--shard", f"{i}/{shards}", "--jobs", str(jobs)])
        for i in range(shards)
    ]
    try:
        executor.update_parameters(name="sweep", **dict(map(_parse_option, options)))
        with executor.batch():
            submitted = [executor.submit(function) for function in functions]
    except (NameError, TypeError, FailedJobError, OSError) as error:
        said = str(error).strip().partition("\n")[0]
        raise OutputError(f"Slurm did not take the array: {said}") from None
    return submitted[0].job_id.partition("_")[0], folder


def _parse_option(text: str) -> tuple[str, str | int]:
    """Parses an option of Slurm, `KEY=VALUE`, into (key, value); digits become an integer."""
    name, equals, value = text.partition("=")
    if not (equals and name and value):
        raise OutputError(f"--slurm {text}: expected KEY=VALUE, such as timeout_min=60")
    return name, int(value) if value.isdigit() else value
