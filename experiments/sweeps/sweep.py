"""Many runs of one config: `field=a,b,c`, `seed=0..99` and the section `sweep` of a config.

A member is one run of the sweep: one combination of the values.

| file | what |
|---|---|
| `summary.json` | over the seeds of each combination: mean, sd and 95 % interval of every number |
| `members.csv` | a line for each member: what was asked, how it ended, its numbers |
| `batches/*.jsonl` | the members that one program computed together, a line each |
| `members/ID/` | the others: each a run directory, made by a process of its own |
| `figures/` | means and intervals, and the members behind them |

A member is known by its resolved config, of which ID is a digest (and of the file of the user's
kernel, and of its data, if it names one): a sweep that is run again, or with more values, computes
only what is missing, and shards may share a directory.
"""

import hashlib
import json
import operator
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from attnkernel._core.saving import write_atomically

from .. import PACKAGE
from ..config import dump
from ..runs import OutputError, flat, output_errors, plain, read_json, settings, status_of
from ..studies import HoldOutSizes, tables_as_rows, with_fields
from .members import Member, read_plan, words
from .report import report
from .rounds import halve, lines_of

# in one program: 400 members of a hold-out take 1.9 times as long as one, and as processes 207
# times as long as so
_MEMBERS_AT_A_TIME = 64


def directory_of(members: Sequence[Member], out: Path | None) -> Path:
    """The default directory of a sweep."""
    return out if out is not None else Path("results") / f"{members[0].study.name}-sweep"


def sweep(
    path: Path,
    arguments: Sequence[str],
    *,
    out: Path | None,
    jobs: int,
    shard: tuple[int, int],
    kernels: Path | None,
    console: Console,
) -> int:
    """Runs what is missing of a sweep; returns the exit code, 1 if a member failed.

    `kernels`: the file that processes of members are to load too.
    """
    plan = read_plan(path, arguments)
    members = plan.members(console=console)
    out = directory_of(members, out)
    place, shards = shard
    rounds, records = plan.rounds, None
    if rounds is not None and shards > 1:
        raise OutputError("a round needs the numbers of all members: leave --shard out")

    def compute(some: Sequence[Member], title: str = "") -> dict[str, dict[str, Any]]:
        before = _read_recorded_results(out)
        missing = [member for member in some if before.get(member.id, {}).get("state") != "done"]
        title = title or f"a round of {len(some)} members"
        console.print(f"{title}, {len(missing)} of them to do")
        alone = []
        for group, numbers in _group_by_program(missing):
            if len(group) == 1 or not _try_one_program(out, group, numbers, console):
                alone += group
        _run_in_processes(out, alone, jobs, kernels, console)
        return _read_recorded_results(out)

    with output_errors(out):
        (out / "batches").mkdir(parents=True, exist_ok=True)
        axes = plan.axes
        if rounds is None:
            mine = members[place::shards]
            found = compute(mine, f"{len(members)} members, {len(mine)} of this shard")
        else:
            members, records = halve(plan, rounds, compute)
            mine, found = members, _read_recorded_results(out)
            axes = axes | {rounds.budget: [str(budget) for budget, _ in rounds.schedule(1)]}
        code = report(out, members, mine, axes, found, console, records)
        for line in [] if rounds is None or records is None else lines_of(rounds, records):
            console.print(line)
        return code


def _group_by_program(members: Sequence[Member]) -> Iterator[tuple[list[Member], Any]]:
    """Groups the runs of a sweep that one compiled program can compute. Yields (members, varying
    fields) of each group: by field name, the values of all members along a first axis.
    """
    groups = defaultdict(list)
    for member in members:
        with settings(member.study):
            study = member.study.resolved()
        numbers = {name: operator.attrgetter(name)(study) for name in study.varying}
        groups[_make_program_key(member, numbers)].append((member, numbers))
    for pairs in groups.values():
        group, numbers = zip(*pairs, strict=True)
        varying = {name: _stack_field([one[name] for one in numbers]) for name in numbers[0]}
        yield list(group), varying


def _make_program_key(member: Member, varying: dict[str, Any]) -> str:
    """Returns a text that is equal for the runs that one program can compute: all fixed fields, and
    the shapes of the varying ones. `varying`: their values, by field name.
    """
    if not varying:
        return member.id
    shapes = {name: np.shape(getattr(value, "sizes", value)) for name, value in varying.items()}
    fields = flat(member.study.model_dump(mode="json"))
    rest = {
        field: value
        for field, value in fields.items()
        if field != "name" and not any(f"{field}.".startswith(f"{name}.") for name in varying)
    }
    return f"{rest} {shapes}"


def _stack_field(values: Sequence[Any]) -> Any:
    """Stacks the values of one field, one from each run of a group, along a new first axis:
    numbers, arrays or `HoldOutSizes`.
    """
    if isinstance(values[0], HoldOutSizes):
        largest = max(rows.largest for rows in values)
        return HoldOutSizes(np.stack([rows.sizes for rows in values]), largest)
    return np.array(values)


def _try_one_program(out: Path, group: Sequence[Member], varying: Any, console: Console) -> bool:
    """Computes a group of runs by one compiled program and writes their results below `out`; if
    that fails, prints the reason and returns False. `varying`: by field name, the values of all
    runs.
    """
    study = group[0].study

    def compute(varying: Any) -> tuple[Any, Any]:
        member = with_fields(study, varying)
        results = member.compute(member.key())
        return results.numbers, results.diverged

    try:
        with settings(study):
            program = jax.jit(
                lambda varying: jax.lax.map(compute, varying, batch_size=_MEMBERS_AT_A_TIME)
            )
            results, diverged = jax.tree.map(np.asarray, program(varying))
    except Exception as error:  # each then has its own try, and its own error.log
        console.print(f"not as one program: {type(error).__name__}: {error}")
        return False
    lines = []
    for i, member in enumerate(group):
        own: Any = tables_as_rows(jax.tree.map(lambda values, i=i: values[i], results))
        line = {"id": member.id, "asked": member.asked, "state": "done", "reason": None}
        if diverged[i]:
            line |= {"state": "failed", "reason": "the loss or its gradient was not finite"}
        lines.append(json.dumps(plain({**line, "summary": own})))
    digest = hashlib.sha256("".join(member.id for member in group).encode()).hexdigest()[:16]
    write_atomically(out / "batches" / f"{digest}.jsonl", ("\n".join(lines) + "\n").encode())
    console.print(f"{len(group)} members as one program")
    return True


def _run_in_processes(
    out: Path, members: Sequence[Member], jobs: int, kernels: Path | None, console: Console
) -> None:
    """Runs each member (one run of the sweep) in a process of its own, `jobs` at a time; stopped
    ones are resumed. `kernels`: the user's Python file of kernels.
    """

    def run(member: Member) -> tuple[Member, int, str]:
        directory = out / "members" / member.id
        config = directory.with_suffix(".yaml")  # whatever becomes of the one that was given
        if directory.exists():
            command = ["resume", os.fspath(directory)]
        else:
            directory.parent.mkdir(exist_ok=True)
            write_atomically(config, dump(member.study).encode())
            command = ["run", os.fspath(config), "--out", os.fspath(directory)]
        if kernels is not None:
            command += ["--kernels", os.fspath(kernels)]
        command = [sys.executable, "-m", PACKAGE, *command, "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        config.unlink(missing_ok=True)
        return member, done.returncode, done.stderr.strip().partition("\n")[0]

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(run, member) for member in members]
        try:
            for number, future in enumerate(as_completed(waiting), 1):
                member, code, said = future.result()
                how = "done" if code == 0 else said or f"exit code {code}"
                console.print(f"{number}/{len(members)}  {words(member.asked)}: {how}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _read_recorded_results(out: Path) -> dict[str, dict[str, Any]]:
    """Returns, by member ID, the recorded state, reason and summary of each run of the sweep in
    `out`; where a member has two records, one that is done.
    """
    rows = []
    for path in sorted((out / "batches").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
                if not isinstance(row, dict) or not isinstance(row["summary"], dict):
                    raise TypeError
                rows.append((str(row["id"]), row))
            except (ValueError, TypeError, KeyError, RecursionError):
                print(f"{path}: a line is damaged; its member is computed anew", file=sys.stderr)
    for path in sorted((out / "members").glob("*/status.json")):
        status = status_of(path.parent)
        summary = read_json(path.parent / "summary.json") if status["state"] == "done" else {}
        rows.append((path.parent.name, {**status, "summary": summary}))
    found = {}
    for member, row in rows:
        if found.get(member, {}).get("state") != "done":
            found[member] = row
    return found
