"""The arguments of the command line, by command."""

import argparse
from pathlib import Path
from typing import Any


def _parse_positive_integer(text: str) -> int:
    """Returns the text of an option as an integer; an error of argparse unless it is at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1; got {text!r}")
    return int(text)


def _parse_shard(text: str) -> tuple[int, int]:
    """Returns `i/N`, the text of an option, as (i, N); an error of argparse unless 0 ≤ i < N."""
    place, slash, number = text.partition("/")
    if not (slash and place.isdigit() and number.isdigit() and int(place) < int(number)):
        raise argparse.ArgumentTypeError(
            f"expected i/N with i from 0 to N - 1, such as 0/4; got {text!r}"
        )
    return int(place), int(number)


def _parse_delimiter(text: str) -> str:
    """Returns the text of an option as it is, a backslash and t as a tab."""
    return "\t" if text == "\\t" else text


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands: `options.command` is one of those of `__main__`."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description="Runs the experiments of attnkernel from configs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument(
        "--kernels", type=Path, metavar="FILE.py", help="run it: its kernels may be named"
    )
    overrides = argparse.ArgumentParser(add_help=False, parents=[own])
    overrides.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file")
    overrides.add_argument(
        "overrides", nargs="*", metavar="field.sub=value", help="instead of what the file says"
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--distributed", action="store_true", help="one of several processes, as Slurm or a cloud"
    )
    shared.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    shared.add_argument("--process", type=_parse_shard, metavar="i/N", help="which of N processes")
    run = commands.add_parser(
        "run", parents=[overrides, shared], help="run a config into a directory"
    )
    run.add_argument("--out", type=Path, metavar="DIR", help="default: results/NAME/TIME")
    run.add_argument("--quiet", action="store_true", help="print nothing but errors")
    fit = commands.add_parser(
        "fit", parents=[own], help="fit a CSV file: fit FILE.csv 'y ~ x1 + x2', with a report"
    )
    fit.add_argument("file", type=Path, metavar="FILE.csv", help="with a header line")
    fit.add_argument(
        "overrides",
        nargs="+",
        metavar="y ~ x1 + x2",
        help="the columns, y ~ . for all, y ~ . - x for all but x; then field.sub=value of "
        "configs/regression.yaml",
    )
    fit.add_argument(
        "--delimiter", type=_parse_delimiter, metavar="CHARACTER", help="between cells; default: ,"
    )
    fit.add_argument("--decimal", choices=[".", ","], help="decimal mark; default: .")
    fit.add_argument("--missing", choices=["error", "drop"], help="drop rows with empty cells")
    fit.add_argument(
        "--category", action="append", metavar="COLUMN", help="of numbers that are categories"
    )
    fit.add_argument(
        "--date", action="append", metavar="COLUMN=FORMAT", help="such as day=%%d.%%m.%%Y"
    )
    fit.add_argument("--order", type=int, choices=[0, 1, 2], help="of the polynomial; default: 1")
    fit.add_argument("--out", type=Path, metavar="DIR", help="default: results/NAME/TIME")
    fit.add_argument("--quiet", action="store_true", help="print nothing but errors")
    resume = commands.add_parser(
        "resume", parents=[own, shared], help="go on with a run that was stopped"
    )
    resume.add_argument("directory", type=Path, metavar="RUN", help="the directory of the run")
    resume.add_argument("--quiet", action="store_true", help="print nothing but errors")
    reproduce = commands.add_parser(
        "reproduce", parents=[own], help="run a finished run again, and compare every byte"
    )
    reproduce.add_argument("directory", type=Path, metavar="RUN", help="the directory of the run")
    reproduce.add_argument("--out", type=Path, metavar="DIR", help="default: RUN_reproduced")
    reproduce.add_argument("--quiet", action="store_true", help="print nothing but errors")
    _add_sweep(commands, own)
    _add_commands_on_runs(commands)
    page = commands.add_parser(
        "page", parents=[overrides], help="write an interactive page, one HTML file"
    )
    page.add_argument("--out", type=Path, metavar="FILE", help="default: results/NAME.html")
    explain = commands.add_parser(
        "explain", help="write the story from an average to attention, one HTML file"
    )
    explain.add_argument("--out", type=Path, metavar="FILE", help="default: results/explain.html")
    explain.add_argument("--open", action="store_true", help="open it in a browser")
    commands.add_parser("show", parents=[overrides], help="print the resolved config")
    validate = commands.add_parser(
        "validate", parents=[own], help="check configs and their data; run nothing"
    )
    validate.add_argument("configs", nargs="+", type=Path, metavar="CONFIG")
    commands.add_parser("schema", help="print the JSON schema of configs, for editors")
    commands.add_parser("list", help="print what configs can name")
    return parser


def _add_sweep(commands: Any, own: argparse.ArgumentParser) -> None:
    """Adds the command `sweep`; `own`: the parser of the option `--kernels`."""
    sweep = commands.add_parser(
        "sweep",
        parents=[own],
        help="run a config for many values: field=a,b seed=0..99, or its section sweep",
    )
    sweep.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file")
    sweep.add_argument(
        "overrides", nargs="*", metavar="field=a,b,c", help="values; of a range: seed=0..99"
    )
    sweep.add_argument(
        "--jobs", type=_parse_positive_integer, default=1, metavar="N", help="processes at a time"
    )
    sweep.add_argument(
        "--shard",
        type=_parse_shard,
        default=(0, 1),
        metavar="i/N",
        help="every N-th member, from i = 0",
    )
    sweep.add_argument(
        "--submit", type=_parse_positive_integer, metavar="N", help="as N shards, by Slurm"
    )
    sweep.add_argument(
        "--slurm", action="append", default=[], metavar="KEY=VALUE", help="timeout_min=60, ..."
    )
    sweep.add_argument("--out", type=Path, metavar="DIR", help="default: results/NAME-sweep")
    sweep.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _add_commands_on_runs(commands: Any) -> None:
    """Adds the commands that read runs."""
    compare = commands.add_parser("compare", help="runs side by side: tables and a figure")
    compare.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs")
    compare.add_argument("--out", type=Path, metavar="DIR", help="default: results/compare/TIME")
    index = commands.add_parser("index", help="write index.csv, a line for each run in a folder")
    index.add_argument("folder", nargs="?", type=Path, default=Path("results"), metavar="FOLDER")
    export = commands.add_parser("export", help="copy runs into TensorBoard, MLflow or CSV files")
    export.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs")
    export.add_argument("--to", required=True, choices=["tensorboard", "mlflow", "csv"])
    export.add_argument("--out", type=Path, metavar="DIR", help="default: results/FORMAT")
