"""Many runs of one config: `field=a,b,c` and `seed=0..99` for every combination of them.

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

import copy
import csv
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

from attnkernel._core.saving import write_whole
from attnkernel.plot import BLUE, SKY, literal

from . import config as configs
from .compare import numbers_of
from .parts import Study
from .results import OutputError, digest_of, plain, read_json, save_figure, status_of
from .runner import check, settings, study_of

_MOST = 100_000  # members
_TOGETHER = 64  # of one program, at a time
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")


class Member(NamedTuple):
    """One run of a sweep."""

    id: str
    asked: dict[str, str]  # of each axis, as it was written
    study: Study


def axes_of(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Overrides that all members share, and the values of each field that they differ in.

    Commas inside brackets, braces or quotes belong to a value.
    """
    shared, axes = [], {}
    for argument in arguments:
        field, equals, text = argument.partition("=")
        if not equals:
            raise configs.ConfigError(
                f"command line '{argument}': expected field=a,b,c or seed=0..99"
            )
        values = [value for part in _split(text) for value in _range(argument, part)]
        if len(values) == 1:
            shared.append(f"{field}={values[0]}")
        elif field in axes:
            raise configs.ConfigError(f"command line '{argument}': {field} is given twice")
        else:
            axes[field] = list(dict.fromkeys(values))
    return shared, axes


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "[{") - (letter in "]}") if not quote else 0
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _range(argument: str, text: str) -> list[str]:
    found = _RANGE.fullmatch(text.strip())
    if not found:
        return [text]
    first, last = map(int, found.groups())
    if not 0 <= last - first < _MOST:
        raise configs.ConfigError(
            f"command line '{argument}': expected a range upwards, of up to {_MOST} numbers"
        )
    return [str(number) for number in range(first, last + 1)]


def members_of(path: Path, arguments: Sequence[str]) -> tuple[list[Member], dict[str, list[str]]]:
    """All members in order, each a valid config; those of equal configs are one.

    **Raises:** `ConfigError`.
    """
    shared, axes = axes_of(arguments)
    if not axes:
        raise configs.ConfigError(
            "a sweep needs a field of several values, such as seed=0..9 or hold_out=[10],[50]"
        )
    number = int(np.prod([len(values) for values in axes.values()], dtype=object))
    if number > _MOST:
        raise configs.ConfigError(f"this sweep has {number} members; expected up to {_MOST}")
    source = configs.read(path, shared)
    members: dict[str, Member] = {}
    checked = set()
    for values in itertools.product(*axes.values()):
        asked = dict(zip(axes, values, strict=True))
        overrides = [f"{field}={value}" for field, value in asked.items()]
        own = configs.Source(copy.deepcopy(source.values), dict(source.places))
        for override in overrides:
            configs.apply(override, own)
        study = study_of(own)
        but_seed = configs.dump(study.model_copy(update={"seed": 0}))
        if but_seed not in checked:  # what only the data can tell, of one seed
            check(study, own)
            checked.add(but_seed)
        digest = digest_of(study)[:16]
        members.setdefault(digest, Member(digest, asked, study))
    return list(members.values()), axes


def directory_of(members: Sequence[Member], out: Path | None) -> Path:
    """Where a sweep goes, unless it is told."""
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
    members, axes = members_of(path, arguments)
    out = directory_of(members, out)
    place, shards = shard
    mine = members[place::shards]
    try:
        (out / "batches").mkdir(parents=True, exist_ok=True)
        before = _found(out)
        missing = [member for member in mine if before.get(member.id, {}).get("state") != "done"]
        console.print(
            f"{len(members)} members, {len(mine)} of this shard, {len(missing)} of them to do"
        )
        alone = []
        for group, traced in _groups(missing):
            if len(group) == 1 or not _together(out, group, traced, console):
                alone += group
        _apart(out, alone, jobs, kernels, console)
        return _report(out, members, mine, axes, _found(out), console)
    except OSError as error:
        where = error.filename or out
        raise OutputError(f"{where} cannot be used: {error.strerror or error}") from None


def _groups(members: Sequence[Member]) -> list[tuple[list[Member], list[dict[str, Any]]]]:
    """Members that differ only in numbers which one program may take, together, and the numbers."""
    groups = defaultdict(lambda: ([], []))
    for member in members:
        with settings(member.study):
            traced = member.study.traced()
        shapes = {name: np.shape(value) for name, value in (traced or {}).items()}
        alike = member.id if traced is None else f"{member.study.apart()}{shapes}"
        groups[alike][0].append(member)
        groups[alike][1].append(traced or {})
    return list(groups.values())


def _together(
    out: Path, group: Sequence[Member], traced: Sequence[dict[str, Any]], console: Console
) -> bool:
    """Computes a group as one program; False, and the reason told, where that fails."""
    study = group[0].study
    numbers = {name: np.array([one[name] for one in traced]) for name in traced[0]}
    most = {name: np.max(values) for name, values in numbers.items()}
    try:
        with settings(study):
            many = jax.jit(
                lambda numbers: jax.lax.map(
                    lambda one: study.numbers(one, most), numbers, batch_size=_TOGETHER
                )
            )
            results, diverged = jax.tree.map(np.asarray, many(numbers))
    except Exception as error:  # each then has its own try, and its own error.log
        console.print(f"not as one program: {type(error).__name__}: {error}")
        return False
    lines = []
    for i, member in enumerate(group):
        own: Any = jax.tree.map(lambda values, i=i: values[i], results)
        if study.rows_are:
            columns = [np.atleast_1d(column) for column in own.values()]
            rows = [dict(zip(own, row, strict=True)) for row in zip(*columns, strict=True)]
            own = {study.rows_are: rows}
        line = {"id": member.id, "asked": member.asked, "state": "done", "reason": None}
        if diverged[i]:
            line |= {"state": "failed", "reason": "the loss or its gradient was not finite"}
        lines.append(json.dumps(plain({**line, "summary": own})))
    digest = hashlib.sha256("".join(member.id for member in group).encode()).hexdigest()[:16]
    write_whole(out / "batches" / f"{digest}.jsonl", ("\n".join(lines) + "\n").encode())
    console.print(f"{len(group)} members as one program")
    return True


def _apart(
    out: Path,
    members: Sequence[Member],
    jobs: int,
    kernels: Path | None,
    console: Console,
) -> None:
    """Runs members in processes of their own, so many at a time; one that stopped goes on."""

    def run(member: Member) -> tuple[Member, int, str]:
        directory = out / "members" / member.id
        config = directory.with_suffix(".yaml")  # whatever becomes of the one that was given
        if directory.exists():
            command = ["resume", os.fspath(directory)]
        else:
            directory.parent.mkdir(exist_ok=True)
            write_whole(config, configs.dump(member.study).encode())
            command = ["run", os.fspath(config), "--out", os.fspath(directory)]
        if kernels is not None:
            command += ["--kernels", os.fspath(kernels)]
        done = subprocess.run(
            [sys.executable, "-m", "experiments", *command, "--quiet"],
            capture_output=True,
            text=True,
            check=False,
        )
        config.unlink(missing_ok=True)
        return member, done.returncode, done.stderr.strip().partition("\n")[0]

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(run, member) for member in members]
        try:
            for number, future in enumerate(as_completed(waiting), 1):
                member, code, said = future.result()
                how = "done" if code == 0 else said or f"exit code {code}"
                console.print(f"{number}/{len(members)}  {_words(member.asked)}: {how}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _found(out: Path) -> dict[str, dict[str, Any]]:
    """What is known of members, by ID: of one that was computed twice, how it was done."""
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


def _words(asked: dict[str, str]) -> str:
    return ", ".join(f"{field}={value}" for field, value in asked.items())


def _report(
    out: Path,
    members: Sequence[Member],
    mine: Sequence[Member],
    axes: dict[str, list[str]],
    found: dict[str, dict[str, Any]],
    console: Console,
) -> int:
    """Tables, figure and files of all members that are there; the exit code of this shard."""
    rows = []
    for member in members:
        known = found.get(member.id, {"state": "missing"})
        numbers = numbers_of(known.get("summary") or {})
        row = {"id": member.id, "state": known.get("state"), "reason": known.get("reason")}
        rows.append((member, row, numbers))
    names = list(dict.fromkeys(name for _, _, numbers in rows for name in numbers))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*axes, "id", "state", "reason", *names])
    for member, row, numbers in rows:
        values = [numbers.get(name, "") for name in names]
        writer.writerow([*member.asked.values(), *row.values(), *values])
    write_whole(out / "members.csv", text.getvalue().encode())
    groups = _aggregates(rows)
    state = [row["state"] for _, row, _ in rows]
    content = {
        "members": len(members),
        "states": {name: state.count(name) for name in dict.fromkeys(state)},
        "axes": axes,
        "groups": groups,
    }
    write_whole(out / "summary.json", (json.dumps(plain(content), indent=2) + "\n").encode())
    shown = _telling(groups)
    table = Table("", "members", *shown, title="Mean, and its 95 % interval over seeds")
    table.title_justify, table.box, table.pad_edge = "left", None, False
    for group in groups[:_TABLE]:
        cells = [_interval(group["numbers"].get(name)) for name in shown]
        table.add_row(_words(group["asked"]) or "all", str(group["members"]), *cells)
    console.print(table)
    if len(groups) > _TABLE:
        console.print(f"and {len(groups) - _TABLE} more lines in {out / 'summary.json'}")
    if shown:
        console.print(f"figure  {_draw(out, groups, rows, shown)}")
    console.print(f"numbers {out / 'summary.json'}")
    bad = [m for m in mine if found.get(m.id, {}).get("state") != "done"]
    for member in bad:
        reason = found.get(member.id, {}).get("reason") or "see its error.log"
        print(f"not done: {_words(member.asked)}: {reason}", file=sys.stderr)
    return 1 if bad else 0


_TABLE = 30


def _aggregates(rows: Sequence[tuple[Member, dict[str, Any], dict[str, Any]]]) -> list[Any]:
    """Of members that differ only in their seed, the mean of each number and how sure it is."""
    together = defaultdict(list)
    for member, row, numbers in rows:
        if row["state"] == "done":
            asked = tuple((k, v) for k, v in member.asked.items() if k != "seed")
            together[asked].append(numbers)
    groups = []
    for asked, found in together.items():
        names = dict.fromkeys(name for numbers in found for name in numbers)
        numbers = {}
        for name in names:
            values = np.array([one[name] for one in found if name in one], float)
            mean, n = values.mean(), len(values)
            sd = values.std(ddof=1) if n > 1 else None
            half = None if sd is None else student.ppf(0.975, n - 1) * sd / np.sqrt(n)
            ends = {} if half is None else {"lower": mean - half, "upper": mean + half}
            numbers[name] = {"mean": mean, "sd": sd, "n": n, **ends}
        groups.append({"asked": dict(asked), "members": len(found), "numbers": numbers})
    return groups


def _telling(groups: Sequence[Any], most: int = 4) -> list[str]:
    """The first numbers that differ between members."""
    names = dict.fromkeys(name for group in groups for name in group["numbers"])
    means = {n: {g["numbers"][n]["mean"] for g in groups if n in g["numbers"]} for n in names}
    spread = {n: any(g["numbers"].get(n, {}).get("sd") for g in groups) for n in names}
    varied = [name for name in names if spread[name]]
    return (varied or [name for name in names if len(means[name]) > 1])[:most]


def _interval(number: dict[str, Any] | None) -> str:
    if number is None:
        return ""
    half = number["upper"] - number["mean"] if "upper" in number else None
    return f"{number['mean']:.4g}" + ("" if half is None else f" ± {half:.2g}")


def _draw(out: Path, groups: Sequence[Any], rows: Sequence[Any], shown: Sequence[str]) -> Path:
    """A panel for each number: the members, and their means with intervals."""
    figure = Figure(figsize=(1.4 + 2.4 * len(shown), 1.3 + 0.32 * min(len(groups), 60)))
    axes = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    place = {tuple(group["asked"].items()): i for i, group in enumerate(groups)}
    arrays = {}
    for ax, name in zip(axes, shown, strict=True):
        points = [
            (numbers[name], place[tuple((k, v) for k, v in m.asked.items() if k != "seed")])
            for m, row, numbers in rows
            if row["state"] == "done" and name in numbers
        ]
        ax.plot(*np.array(points).T, "|", color=SKY, markersize=7, label="members")
        of = [
            (i, group["numbers"][name])
            for i, group in enumerate(groups)
            if name in group["numbers"]
        ]
        means = [(n["mean"], n.get("lower", n["mean"]), n.get("upper", n["mean"])) for _, n in of]
        mean, lower, upper = np.array(means).T
        ends = np.stack([mean - lower, upper - mean])
        ax.errorbar(
            mean,
            [i for i, _ in of],
            xerr=ends,
            fmt="o",
            color=BLUE,
            capsize=3,
            markersize=4,
            label="mean, 95 % interval",
        )
        ax.set_xlabel(literal(name))
        ax.margins(y=0.5 / (len(groups) + 1))
        arrays |= {f"{name}/points": points, f"{name}/means": means}
    axes[0].set_yticks(range(len(groups)), [literal(_words(g["asked"]) or "all") for g in groups])
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return save_figure(out / "figures", "sweep", figure, arrays)
