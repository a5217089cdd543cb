"""The commands of `python -m experiments`."""

import argparse
import io
import json
import os
import signal
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path

from .arguments import make_parser

EXTRA = ("pydantic", "yaml", "rich", "matplotlib")  # packages beyond those of the library
_COMPUTING = ("run", "fit", "resume", "reproduce", "sweep", "page", "explain")  # commands


def _is_option(word: str) -> bool:
    """Whether a word of the command line is an option; a minus alone is part of a formula."""
    return word.startswith("-") and word != "-"


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit code: 2 for a user's error, without a traceback.

    `arguments`: default, those of the process; compiled programs are then kept on disk.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # ℓ on a terminal that has no ℓ
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    # argparse takes positional arguments in one group only; overrides may follow an option
    if strays := [word for word in rest if _is_option(word) or "overrides" not in options]:
        parser.error(f"unrecognized arguments: {' '.join(strays)}")
    try:
        if arguments is None and options.command in _COMPUTING:
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
    # imported here: `--help` answers at once
    from .config import loading  # noqa: PLC0415
    from .runs import files  # noqa: PLC0415
    from .runs.distributed import JoinError  # noqa: PLC0415

    try:
        return _COMMANDS[options.command](options, overrides)
    except (loading.ConfigError, files.OutputError, JoinError) as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace, overrides: list[str]) -> int:
    """The command `run`: runs a config, with fields replaced by `overrides` such as "seed=1", into
    a run directory; returns the exit code.
    """
    from .runs import distributed, runner  # noqa: PLC0415

    distributed.start(options.distributed, options.coordinator, options.process)
    _load_user_kernels(options)
    study = runner.load(options.config, overrides)
    return runner.execute(study, options.out, quiet=options.quiet)


def _fit(options: argparse.Namespace, words: list[str]) -> int:
    """The command `fit`: runs the study `regression` of a CSV file, whose columns are those of a
    formula in `words`, such as "y ~ x1 + x2"; returns the exit code.
    """
    from .config import formula  # noqa: PLC0415
    from .runs import runner  # noqa: PLC0415

    _load_user_kernels(options)
    fields = {
        f"data.{name}": getattr(options, name) for name in ("delimiter", "decimal", "missing")
    }
    fields |= {"data.categories": options.category, "data.dates": formula.dates_of(options.date)}
    source = formula.source_of(options.file, words, fields | {"model.order": options.order})
    study = runner.study_of(source)
    runner.check(study, source)
    return runner.execute(study, options.out, quiet=options.quiet)


def _resume(options: argparse.Namespace, _: list[str]) -> int:
    """The command `resume`: continues the stopped run in a directory; returns the exit code."""
    from .runs import distributed, runner  # noqa: PLC0415

    distributed.start(options.distributed, options.coordinator, options.process)
    _load_user_kernels(options)
    return runner.resume(options.directory, quiet=options.quiet)


def _reproduce(options: argparse.Namespace, _: list[str]) -> int:
    """The command `reproduce`: runs a finished run again and compares the files; returns the exit
    code, 1 if they differ.
    """
    from .runs import reproduce  # noqa: PLC0415

    _load_user_kernels(options)
    return reproduce.reproduce(options.directory, options.out, options.kernels, quiet=options.quiet)


def _load_user_kernels(options: argparse.Namespace) -> None:
    """Registers the kernels of the Python file `options.kernels`, if one is given."""
    from .config import kernels  # noqa: PLC0415

    if options.kernels is not None:
        kernels.load(options.kernels)


def _sweep(options: argparse.Namespace, arguments: list[str]) -> int:
    """The command `sweep`: runs a config for all combinations of values in `arguments`, such as
    "seed=0..9", and of its section `sweep`, or submits them to Slurm; returns the exit code.
    """
    import matplotlib as mpl  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    from attnkernel.plot import STYLE  # noqa: PLC0415

    from .runs import files  # noqa: PLC0415
    from .sweeps import sweep  # noqa: PLC0415

    console = Console(highlight=False, markup=False, soft_wrap=True, quiet=options.quiet)
    _load_user_kernels(options)
    if options.submit:
        return _submit(options, arguments)
    if options.slurm:
        raise files.OutputError("--slurm goes with --submit")
    with mpl.rc_context(STYLE):
        return sweep.sweep(
            options.config,
            arguments,
            out=options.out,
            jobs=options.jobs,
            shard=options.shard,
            kernels=options.kernels,
            console=console,
        )


def _submit(options: argparse.Namespace, arguments: list[str]) -> int:
    """Submits a sweep to Slurm as an array of `options.submit` jobs, and prints the command that
    reports on it; returns the exit code.
    """
    from .runs import files  # noqa: PLC0415
    from .sweeps import slurm, sweep  # noqa: PLC0415

    plan = sweep.read_plan(options.config, arguments)
    if plan.rounds is not None:
        raise files.OutputError(
            "--submit starts all jobs at once, and rounds come one after the other: use --jobs N"
        )
    members = plan.members()
    out = sweep.directory_of(members, options.out)
    whole = [os.fspath(options.config), *arguments]
    if options.kernels is not None:
        whole += ["--kernels", os.fspath(options.kernels)]
    number, folder = slurm.submit(whole, out, options.submit, options.slurm, options.jobs)
    print(
        f"{len(members)} members in {options.submit} jobs of the array {number}; logs in {folder}"
    )
    print(f"when they are done: python -m experiments sweep {' '.join(whole)} --out {out}")
    return 0


def _compare(options: argparse.Namespace, _: list[str]) -> int:
    """The command `compare`: writes tables and a figure of several runs; returns the exit code."""
    import matplotlib as mpl  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    from attnkernel.plot import STYLE  # noqa: PLC0415

    from .reports import compare  # noqa: PLC0415
    from .runs import files  # noqa: PLC0415

    out = options.out if options.out is not None else files.default_directory("compare")
    with mpl.rc_context(STYLE):
        compare.compare(options.runs, out, Console(highlight=False, markup=False, soft_wrap=True))
    return 0


def _index(options: argparse.Namespace, _: list[str]) -> int:
    """The command `index`: writes `index.csv` of all runs below a folder; returns the exit code."""
    from rich.console import Console  # noqa: PLC0415

    from .reports import compare  # noqa: PLC0415

    compare.index(options.folder, Console(highlight=False, markup=False, soft_wrap=True))
    return 0


def _export(options: argparse.Namespace, _: list[str]) -> int:
    """The command `export`: copies runs into the format of another tool; returns the exit code."""
    from .reports import export  # noqa: PLC0415

    print("\n".join(export.export(options.runs, options.to, options.out)))
    return 0


def _page(options: argparse.Namespace, overrides: list[str]) -> int:
    """The command `page`: writes the interactive pages of a study, one HTML file each; returns the
    exit code.
    """
    from . import pages  # noqa: PLC0415
    from .config import loading  # noqa: PLC0415
    from .runs import runner  # noqa: PLC0415

    _load_user_kernels(options)
    source = loading.read(options.config, overrides)
    study = runner.load(options.config, overrides)
    command = ["python", "-m", "experiments", "page", options.config.as_posix(), *overrides]
    made = pages.make(study, source, command)
    out = options.out if options.out is not None else Path("results") / f"{study.name}.html"
    for ending, content in made.items():
        _write_page(out.with_stem(out.stem + ending), content)
    return 0


def _explain(options: argparse.Namespace, _: list[str]) -> int:
    """The command `explain`: writes the story from an average to attention as one HTML file, with
    links to the interactive pages that lie beside it; returns the exit code.
    """
    from . import pages  # noqa: PLC0415

    out = options.out if options.out is not None else Path("results") / "explain.html"
    beside = [path.stem for path in sorted(out.parent.glob("*.html")) if path != out]
    content = pages.make_story(["python", "-m", "experiments", "explain"], beside)
    _write_page(out, content)
    if options.open:
        webbrowser.open(out.resolve().as_uri())
    return 0


def _write_page(out: Path, content: str) -> None:
    """Writes an HTML file; `OutputError` if it cannot be written."""
    from attnkernel._core.saving import write_atomically  # noqa: PLC0415

    from .runs import files  # noqa: PLC0415

    whole = content.encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, whole)
    except OSError as error:
        raise files.OutputError(f"cannot write {out}: {error.strerror}") from None
    print(f"{out}: {len(whole) / 1000:.0f} kB; open it in a browser")


def _show(options: argparse.Namespace, overrides: list[str]) -> int:
    """The command `show`: prints a config with all defaults and `overrides`, such as "seed=1";
    returns the exit code.
    """
    from .config import plain_yaml  # noqa: PLC0415
    from .runs import runner  # noqa: PLC0415

    _load_user_kernels(options)
    print(plain_yaml.dump(runner.load(options.config, overrides)), end="")
    return 0


def _validate(options: argparse.Namespace, _: list[str]) -> int:
    """The command `validate`: checks configs without running them; returns the exit code."""
    from .config import loading  # noqa: PLC0415
    from .runs import runner  # noqa: PLC0415
    from .sweeps import members as sweep_members  # noqa: PLC0415

    _load_user_kernels(options)
    code = 0
    for path in options.configs:
        try:
            if "sweep" in loading.read(path).values:
                members = sweep_members.read_plan(path, []).members()
                print(f"{path}: valid, a sweep of {len(members)} members")
            else:
                runner.load(path, [])
                print(f"{path}: valid")
        except loading.ConfigError as error:
            print(error, file=sys.stderr)
            code = 2
    return code


def _schema(*_: object) -> int:
    """The command `schema`: prints the JSON schema of configs; returns the exit code."""
    from .config.registry import json_schema  # noqa: PLC0415
    from .sweeps.section import Sweep  # noqa: PLC0415

    studies = json_schema()
    definitions = studies.pop("$defs")
    sweep = Sweep.model_json_schema()
    definitions |= sweep.pop("$defs") | {"Sweep": sweep}
    # one that extends a file, or is of a sweep, may lack fields of its study
    part = {
        "properties": {"extends": {"type": "string"}, "sweep": {"$ref": "#/$defs/Sweep"}},
        "anyOf": [{"required": ["extends"]}, {"required": ["sweep"]}],
    }
    print(json.dumps({"anyOf": [studies, part], "$defs": definitions}, indent=2))
    return 0


def _list(*_: object) -> int:
    """The command `list`: prints the names that configs may use; returns the exit code."""
    from attnkernel.data import BUNDLED  # noqa: PLC0415

    from .config import kernels, schema  # noqa: PLC0415
    from .config.registry import STUDIES  # noqa: PLC0415

    for what, names in (
        ("study", STUDIES),
        ("data.source", schema.SOURCES),
        ("data.name (bundled)", BUNDLED),
        ("model.kernel", kernels.KERNELS),
        ("model.convention", schema.SYMBOL),
        ("training.optimizer", schema.OPTIMIZERS),
    ):
        print(f"{what}: {', '.join(names)}")
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "run": _run,
    "fit": _fit,
    "resume": _resume,
    "reproduce": _reproduce,
    "sweep": _sweep,
    "compare": _compare,
    "index": _index,
    "export": _export,
    "page": _page,
    "explain": _explain,
    "show": _show,
    "validate": _validate,
    "schema": _schema,
    "list": _list,
}


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
