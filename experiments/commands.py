"""What each command does: a function of its options and of its arguments that are no options, such
as "seed=1". It returns an exit code; None is success.
"""

import json
import os
import sys
import webbrowser
from argparse import Namespace
from pathlib import Path

from attnkernel._core.saving import write_atomically
from attnkernel.data import BUNDLED
from attnkernel.kernels import LETTERS

from . import PROGRAM
from .config import ConfigError, dump, formula, kernels, read, registry, schema as fields
from .runs import OutputError, check, distributed, output_errors, runner, study_of
from .runs.files import default_directory
from .runs.output_log import show_progress, terminal
from .runs.reproduce import reproduce as reproduce_run
from .sweeps import members as sweep_members, slurm
from .sweeps.section import Sweep

EXPECTED_ERRORS = (ConfigError, OutputError, distributed.JoinError)


def prepare(options: Namespace) -> None:
    """Joins the processes of a distributed run, then registers the kernels of `options.kernels`, a
    file of Python, if one is given.
    """
    if "distributed" in options:
        distributed.start(options.distributed, options.coordinator, options.process)
    if getattr(options, "kernels", None) is not None:
        kernels.load(options.kernels)


def run(options: Namespace, overrides: list[str]) -> int:
    study = runner.load(options.config, overrides)
    return runner.execute(study, options.out, quiet=options.quiet)


def fit(options: Namespace, words: list[str]) -> int:
    """Runs the study `regression` of a CSV file; `words`: a formula, such as "y ~ x1 + x2"."""
    given = {field: getattr(options, flag[2:]) for field, flag in formula.FLAGS.items()}
    given |= {"data.dates": formula.dates_of(options.date)}
    given |= {"model.periods": formula.periods_of(options.periodic)}
    source = formula.source_of(options.file, words, given)
    study = study_of(source)
    check(study, source)
    return runner.execute(study, options.out, quiet=options.quiet)


def resume(options: Namespace, _: list[str]) -> int:
    return runner.resume(options.directory, quiet=options.quiet)


def reproduce(options: Namespace, _: list[str]) -> int:
    return reproduce_run(options.directory, options.out, options.kernels, quiet=options.quiet)


def sweep(options: Namespace, arguments: list[str]) -> int:
    if options.submit:
        return _submit(options, arguments)
    if options.slurm:
        raise OutputError("--slurm goes with --submit")
    from .sweeps import sweep as sweeps  # noqa: PLC0415  figures

    with runner.figure_style():
        return sweeps.sweep(
            options.config,
            arguments,
            out=options.out,
            jobs=options.jobs,
            shard=options.shard,
            kernels=options.kernels,
            console=terminal(quiet=options.quiet),
        )


def _submit(options: Namespace, arguments: list[str]) -> int:
    """Submits a sweep to Slurm as an array of `options.submit` jobs, and prints the command that
    reports on it; returns the exit code.
    """
    plan = sweep_members.read_plan(options.config, arguments)
    if plan.rounds is not None:
        raise OutputError(
            "--submit starts all jobs at once, and rounds come one after the other: use --jobs N"
        )
    members = plan.members()
    from .sweeps import sweep as sweeps  # noqa: PLC0415

    out = sweeps.directory_of(members, options.out)
    whole = [os.fspath(options.config), *arguments]
    if options.kernels is not None:
        whole += ["--kernels", os.fspath(options.kernels)]
    number, folder = slurm.submit(whole, out, options.submit, options.slurm, options.jobs)
    print(
        f"{len(members)} members in {options.submit} jobs of the array {number}; logs in {folder}"
    )
    print(f"when they are done: {PROGRAM} sweep {' '.join(whole)} --out {out}")
    return 0


def compare(options: Namespace, _: list[str]) -> None:
    out = options.out if options.out is not None else default_directory("compare")
    from .reports import compare as comparisons  # noqa: PLC0415  figures

    with runner.figure_style():
        comparisons.compare(options.runs, out, terminal(quiet=False))


def index(options: Namespace, _: list[str]) -> None:
    from .reports import compare as comparisons  # noqa: PLC0415

    comparisons.index(options.folder, terminal(quiet=False))


def export(options: Namespace, _: list[str]) -> None:
    from .reports import export as exports  # noqa: PLC0415

    print("\n".join(exports.export(options.runs, options.to, options.out)))


def page(options: Namespace, overrides: list[str]) -> None:
    """Writes the interactive pages of a study, one HTML file each."""
    from . import pages  # noqa: PLC0415  the pages alone need it

    source = read(options.config, overrides)
    study = runner.load(options.config, overrides)
    command = [*PROGRAM.split(), "page", options.config.as_posix(), *overrides]
    out = options.out if options.out is not None else Path("results") / f"{study.name}.html"
    if out.is_dir():
        raise OutputError(f"{out} is a folder: name a file in it, such as {out / study.name}.html")
    for ending, content in pages.make(study, source, command).items():
        _write_page(out.with_stem(out.stem + ending), content)


def explain(options: Namespace, _: list[str]) -> None:
    """Writes the story from an average to attention as one HTML file, with links to the interactive
    pages that lie beside it.
    """
    from . import pages  # noqa: PLC0415

    out = options.out if options.out is not None else Path("results") / "explain.html"
    beside = [path.stem for path in sorted(out.parent.glob("*.html")) if path != out]
    with show_progress(terminal(quiet=False), "story", pages.STAGES) as tick:
        story = pages.make_story([*PROGRAM.split(), "explain"], beside, tick)
    _write_page(out, story)
    if options.open:
        webbrowser.open(out.resolve().as_uri())


def _write_page(out: Path, content: str) -> None:
    """Writes an HTML file; `OutputError` if it cannot be written."""
    whole = content.encode()
    with output_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, whole)
    print(f"{out}: {len(whole) / 1000:.0f} kB; open it in a browser")


def show(options: Namespace, overrides: list[str]) -> None:
    """Prints a config with all defaults."""
    print(dump(runner.load(options.config, overrides)), end="")


def validate(options: Namespace, _: list[str]) -> int:
    """Checks configs without running them."""
    code = 0
    for path in options.configs:
        try:
            if "sweep" in read(path).values:
                members = sweep_members.read_plan(path, []).members(console=terminal(quiet=False))
                print(f"{path}: valid, a sweep of {len(members)} members")
            else:
                runner.load(path, [])
                print(f"{path}: valid")
        except ConfigError as error:
            print(error, file=sys.stderr)
            code = 2
    return code


def schema(*_: object) -> None:
    """Prints the JSON schema of configs."""
    studies, sweep = registry.json_schema(), Sweep.model_json_schema()
    definitions = studies.pop("$defs")
    definitions |= sweep.pop("$defs") | {"Sweep": sweep}
    # one that extends a file, or is of a sweep, may lack fields of its study
    part = {
        "properties": {"extends": {"type": "string"}, "sweep": {"$ref": "#/$defs/Sweep"}},
        "anyOf": [{"required": ["extends"]}, {"required": ["sweep"]}],
    }
    print(json.dumps({"anyOf": [studies, part], "$defs": definitions}, indent=2))


def list(*_: object) -> None:
    """Prints the names that configs may use."""
    for what, names in (
        ("study", registry.STUDIES),
        ("data.source", fields.SOURCES),
        ("data.name (bundled)", BUNDLED),
        ("model.kernel", kernels.KERNELS),
        ("model.convention", LETTERS),
        ("training.optimizer", fields.OPTIMIZERS),
    ):
        print(f"{what}: {', '.join(names)}")
