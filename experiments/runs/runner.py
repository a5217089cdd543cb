"""Runs a study: settings of JAX before the first array, and records how the run ended."""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
from jax.experimental.compilation_cache import compilation_cache

import attnkernel as ak

from .. import PROGRAM
from ..config import errors, loading
from ..config.registry import STUDIES

if TYPE_CHECKING:
    from ..studies import Study
from . import distributed
from .directory import Run
from .files import OutputError, default_directory, require_run, resume_command, status_of


@contextlib.contextmanager
def without_program_cache() -> Iterator[None]:
    """Turns JAX's cache on disk off, in this process and in those started meanwhile."""
    variable, config = "JAX_ENABLE_COMPILATION_CACHE", cast(Any, jax.config)
    before, is_enabled = os.environ.get(variable), config.jax_enable_compilation_cache
    os.environ[variable] = "false"
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before
        jax.config.update("jax_enable_compilation_cache", is_enabled)
        compilation_cache.reset_cache()


@contextlib.contextmanager
def settings(study: "Study") -> Iterator[None]:
    """Sets JAX as configured, while the study runs."""
    with (
        # benchmarks time compilation, in the processes that they start too
        without_program_cache() if study.is_benchmark else contextlib.nullcontext(),
        jax.enable_x64(study.precision == "float64"),
        jax.threefry_partitionable(not study.legacy_prng),
        warnings.catch_warnings(),
    ):
        # studies put these among the notes of the run
        warnings.simplefilter("ignore", ak.FitWarning)
        # but one comes before a search that is slow, and is for who waits
        warnings.simplefilter("default", ak.fitting.CostWarning)
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        yield


@contextlib.contextmanager
def figure_style(style: str = "light") -> Iterator[None]:
    """Sets matplotlib for the figures of the block; it is not imported before."""
    import matplotlib as mpl  # noqa: PLC0415

    with mpl.rc_context(ak.plot.DARK if style == "dark" else ak.plot.STYLE):
        yield


@contextlib.contextmanager
def stop_at_interrupt(run: Run) -> Iterator[None]:
    """Ctrl-C stops the run after the current chunk; a second one stops it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python gives signals to the main thread alone
        return

    def on_interrupt(signum: int, frame: Any) -> None:
        if run.stop_requested:
            raise KeyboardInterrupt
        run.stop_requested = True
        print("stopping after this chunk; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def load(path: Path, overrides: list[str]) -> Any:
    """The validated config of a study, its data looked at.

    **Raises:** `ConfigError` with all issues at once.
    """
    source = loading.read(path, overrides)
    if "sweep" in source.values:
        raise loading.ConfigError(
            f"{source.location(('sweep',))}: sweep: this config is of many runs: "
            f"{PROGRAM} sweep {path}"
        )
    study = study_of(source)
    check(study, source)
    return study


def check(study: "Study", source: loading.Source) -> None:
    """Raise `ConfigError` for issues that need the data to be seen."""
    with settings(study):
        try:
            study.check()
        except loading.FieldError as error:
            raise errors.config_error(source, [error.issue]) from None


def study_of(source: loading.Source) -> Any:
    """The config of a study, validated without its data."""
    name = source.values.get("study")
    if not isinstance(name, str) or name not in STUDIES:
        sentence = "is required, but was not given" if name is None else f"unknown name {name!r}"
        known = errors.nearest(str(name), list(STUDIES))
        raise errors.config_error(source, [loading.ConfigIssue(("study",), sentence + known)])
    return errors.build(source, STUDIES[name])


def resume(directory: Path, *, quiet: bool) -> int:
    """Goes on with a run that was stopped, however that was; returns the exit code.

    **Raises:** `ConfigError`, `OutputError`: there is no run, or it is running.
    """
    require_run(directory)
    study = load(directory / "config.yaml", [])
    if status_of(directory)["state"] == "done":
        print(f"{directory} is done: there is nothing to go on with")
        return 0
    return execute(study, directory, quiet=quiet, resume=True)


def execute(study: "Study", out: Path | None, *, quiet: bool, resume: bool = False) -> int:
    """Runs a study into its directory; returns the exit code.

    0: done. 1: failed, with the traceback in `error.log`. 130: interrupted, with what was
    computed until then.
    """
    if jax.process_count() > 1 and not study.distributed:
        raise distributed.JoinError(f"{study.name}: this study is for one process")
    with (
        settings(study),
        figure_style(study.style),
        _run_directory(out, study.name) as directory,
        contextlib.ExitStack() as stack,
    ):
        first = jax.process_index() == 0
        try:
            run = Run(
                directory,
                study,
                quiet=quiet or not first,
                resume=resume and first,
                numbered=out is None,
            )
        except OutputError:
            distributed.all_succeeded(False)
            raise
        if not distributed.all_succeeded(True):
            return 2
        stack.enter_context(run.keeps_output())
        try:
            with stop_at_interrupt(run):
                study.run(run)
            run.close("done")
        except KeyboardInterrupt:
            _write_ending(run, "interrupted", "Ctrl-C")
            print(
                f"interrupted; what was computed is in {run.directory}\n"
                f"to go on: {resume_command(run.directory)}",
                file=sys.stderr,
            )
            return 130
        except SystemExit:  # the reader of a pipe went away
            _write_ending(run, "interrupted", "the output was closed")
            return 1
        except Exception as error:  # the last line of defence: no traceback on a terminal
            reason = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
            print(f"failed: {reason}", file=sys.stderr)
            with contextlib.suppress(OSError):
                (run.directory / "error.log").write_text(traceback.format_exc(), encoding="utf-8")
                print(f"see {run.directory / 'error.log'}", file=sys.stderr)
            _write_ending(run, "failed", reason)
            return 1
    for path in sorted((run.directory / "figures").glob("*.png")):
        run.print(f"figure  {os.fspath(path)}")
    for what, name in (("report ", "report.html"), ("predictions", "predictions.csv")):
        if (run.directory / name).exists():
            run.print(f"{what} {os.fspath(run.directory / name)}")
    run.print(f"numbers {os.fspath(run.directory / 'summary.json')}")
    return 0


@contextlib.contextmanager
def _run_directory(out: Path | None, name: str) -> Iterator[Path]:
    """Yields the directory of a run: `out`, or by default `results/NAME/TIME`. Processes other than
    the first get a temporary one.
    """
    if jax.process_index():
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "run"
    else:
        yield out if out is not None else default_directory(name)


def _write_ending(run: Run, state: str, reason: str) -> None:
    """Writes the state and the reason with which a run ended, or prints why that failed."""
    try:
        run.close(state, reason)
    except OSError as error:
        print(
            f"how it ended could not be written: {error.strerror or error}; when it can, "
            f"{resume_command(run.directory)} goes on from the last checkpoint",
            file=sys.stderr,
        )
