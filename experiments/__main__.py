"""The commands of `python -m experiments` and their arguments; `commands.py` carries them out."""

import argparse
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

from . import PROGRAM

EXTRA = ("pydantic", "yaml", "rich", "matplotlib")  # packages beyond those of the library
_COMPUTING = ("run", "fit", "resume", "reproduce", "sweep", "page", "explain")  # commands


def _positive_integer(text: str) -> int:
    """Returns the text of an option as an integer; an error of argparse unless it is at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1; got {text!r}")
    return int(text)


def _shard(text: str) -> tuple[int, int]:
    """Returns `i/N`, the text of an option, as (i, N); an error of argparse unless 0 ≤ i < N."""
    place, slash, number = text.partition("/")
    if not (slash and place.isdigit() and number.isdigit() and int(place) < int(number)):
        raise argparse.ArgumentTypeError(
            f"expected i/N with i from 0 to N - 1, such as 0/4; got {text!r}"
        )
    return int(place), int(number)


def _delimiter(text: str) -> str:
    """Returns the text of an option as it is, a backslash and t as a tab."""
    return "\t" if text == "\\t" else text


Argument = tuple[str, dict[str, Any]]


def _argument(name: str, help: str, metavar: str | None = None, **given: Any) -> Argument:
    return name, {"help": help, **({"metavar": metavar} if metavar else {}), **given}


def _path(name: str, help: str, metavar: str, **given: Any) -> Argument:
    return _argument(name, help, metavar, type=Path, **given)


def _flag(name: str, help: str) -> Argument:
    return _argument(name, help, action="store_true")


QUIET = _flag("--quiet", "print nothing but errors")
KERNELS = _path("--kernels --studies", "run it: its kernels and studies may be named", "FILE.py")
CONFIG = [
    KERNELS,
    _path("config", "a YAML file", "CONFIG"),
    _argument("overrides", "instead of what the file says", "field.sub=value", nargs="*"),
]
PROCESSES = [
    _flag("--distributed", "one of several processes, as Slurm or a cloud"),
    _argument("--coordinator", "where process 0 listens", "HOST:PORT"),
    _argument("--process", "which of N processes", "i/N", type=_shard),
]
RUN = _path("directory", "the directory of the run", "RUN")
RUNS = _path("runs", "directories of runs", "RUN", nargs="+")
OUT = _path("--out", "default: results/NAME/TIME", "DIR")

COMMANDS: dict[str, tuple[str, list[Argument]]] = {
    "run": ("run a config into a directory", [*CONFIG, *PROCESSES, OUT, QUIET]),
    "fit": (
        "fit a CSV file: fit FILE.csv 'y ~ x1 + x2', with a report",
        [
            KERNELS,
            _path("file", "with a header line", "FILE.csv"),
            _argument(
                "overrides",
                "the columns, y ~ . for all, y ~ . - x for all but x; then field.sub=value of "
                "configs/regression.yaml",
                "y ~ x1 + x2",
                nargs="+",
            ),
            _argument("--delimiter", "between cells; default: ,", "CHARACTER", type=_delimiter),
            _argument("--decimal", "decimal mark; default: .", choices=[".", ","]),
            _argument("--thousands", "mark between thousands; default: none", "CHARACTER"),
            _argument("--encoding", "such as cp1252; default: utf-8", "NAME"),
            _argument("--missing", "drop rows with empty cells", choices=["error", "drop"]),
            _argument("--category", "of numbers that are categories", "COLUMN", action="append"),
            _argument("--date", "such as day=%%d.%%m.%%Y", "COLUMN=FORMAT", action="append"),
            _argument(
                "--periodic", "a column round a circle, hour=24", "COLUMN=PERIOD", action="append"
            ),
            _argument("--objective", "aicc, gcv, blocked; default: leave_one_out", "NAME"),
            _argument("--family", "binomial, poisson, gamma; default: gaussian", "NAME"),
            _argument("--order", "of the polynomial; default: 1", type=int, choices=[0, 1, 2]),
            _argument("--weights", "inverse variances of the rows", "COLUMN"),
            _argument("--clusters", "of rows whose errors are dependent", "COLUMN"),
            _argument("--predict", "rows to predict, into predictions.csv", "NEW.csv"),
            _argument(
                "--tests",
                "p-values of columns, by 399 bootstraps each; others: tests=999",
                action="store_const",
                const=399,
            ),
            OUT,
            QUIET,
        ],
    ),
    "resume": ("go on with a run that was stopped", [KERNELS, *PROCESSES, RUN, QUIET]),
    "reproduce": (
        "run a finished run again, and compare every byte",
        [KERNELS, RUN, _path("--out", "default: RUN_reproduced", "DIR"), QUIET],
    ),
    "sweep": (
        "run a config for many values: field=a,b seed=0..99, or its section sweep",
        [
            *CONFIG[:2],
            _argument("overrides", "values; of a range: seed=0..99", "field=a,b,c", nargs="*"),
            _argument("--jobs", "processes at a time", "N", type=_positive_integer, default=1),
            _argument(
                "--shard", "every N-th member, from i = 0", "i/N", type=_shard, default=(0, 1)
            ),
            _argument("--submit", "as N shards, by Slurm", "N", type=_positive_integer),
            _argument("--slurm", "timeout_min=60, ...", "KEY=VALUE", action="append", default=[]),
            _path("--out", "default: results/NAME-sweep", "DIR"),
            QUIET,
        ],
    ),
    "compare": (
        "runs side by side: tables and a figure",
        [RUNS, _path("--out", "default: results/compare/TIME", "DIR")],
    ),
    "index": (
        "write index.csv, a line for each run in a folder",
        [_path("folder", "default: results", "FOLDER", nargs="?", default=Path("results"))],
    ),
    "export": (
        "copy runs into TensorBoard, MLflow or CSV files",
        [
            RUNS,
            _argument("--to", "format", required=True, choices=["tensorboard", "mlflow", "csv"]),
            _path("--out", "default: results/FORMAT", "DIR"),
        ],
    ),
    "page": (
        "write an interactive page, one HTML file",
        [*CONFIG, _path("--out", "default: results/NAME.html", "FILE")],
    ),
    "explain": (
        "write the story from an average to attention, one HTML file",
        [
            _path("--out", "default: results/explain.html", "FILE"),
            _flag("--open", "open it in a browser"),
        ],
    ),
    "show": ("print the resolved config", CONFIG),
    "validate": (
        "check configs and their data; run nothing",
        [KERNELS, _path("configs", "YAML files", "CONFIG", nargs="+")],
    ),
    "schema": ("print the JSON schema of configs, for editors", []),
    "list": ("print what configs can name", []),
}


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands: `options.command` is one of `COMMANDS`."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Runs the experiments of attnkernel from configs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (what, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        for argument, given in arguments:
            command.add_argument(*argument.split(), **given)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit code: 2 for a user's error, without a traceback.

    `arguments`: default, those of the process; compiled programs are then kept on disk.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # ℓ on a terminal that has no ℓ
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    # argparse takes positional arguments in one group only; overrides may follow an option;
    # a minus alone is part of a formula
    if strays := [
        word
        for word in rest
        if (word.startswith("-") and word != "-") or "overrides" not in options
    ]:
        parser.error(f"unrecognized arguments: {' '.join(strays)}")
    try:
        if arguments is None and options.command in _COMPUTING:
            if not getattr(options, "quiet", False):  # imports take a second and more
                given = ("file", "config", "directory")
                found = [getattr(options, name) for name in given if name in options]
                print(f"reading {found[0]}" if found else "computing the story", flush=True)
            # on some CPUs XLA logs an error for each program that it loads, though none is wrong:
            # its own tuning flags, such as prefer-no-gather, are no features of the CPU
            if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # JAX's own default
                os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
            from attnkernel import cache_programs  # noqa: PLC0415

            cache_programs()
        return _run_command(options, [*getattr(options, "overrides", []), *rest])
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRA:
            raise
        install = 'pip install "attnkernel[experiments]"'
        print(f"{package} is not installed: {install}", file=sys.stderr)
        return 2


def _run_command(options: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command named by `options.command`; returns its exit code, 2 after an expected
    error. `overrides`: the arguments that are no options, such as "seed=1".
    """
    from . import commands  # noqa: PLC0415  `--help` answers at once

    try:
        commands.prepare(options)
        return getattr(commands, options.command)(options, overrides) or 0
    except commands.EXPECTED_ERRORS as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    try:
        code = main()
        if code == 128 + signal.SIGINT:
            # all is written; XLA threads that still run would crash as the interpreter exits
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        sys.exit(1)
