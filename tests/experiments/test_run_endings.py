"""How a run ends: done, interrupted, failed or diverged; and what it prints."""

import contextlib
import io
import os
import re
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
from outputs import read_json, read_lines, start
from small_configs import DATA, HOLDOUT

from attnkernel.fitting import CostWarning, FitWarning
from experiments.__main__ import main
from experiments.runs.files import status_of
from experiments.runs.output_log import Ticker
from experiments.studies.data import ShowData

pytestmark = pytest.mark.usefixtures("blank_figures")


SIMULATED = "data: {source: heteroskedastic, n: 20}\n"
FILES = {
    "holdout.yaml": HOLDOUT,
    "lengthscales.yaml": f"study: lengthscales\n{SIMULATED}lengthscales: [1.0, 0.3]\n",
    "data.yaml": DATA,
}


def warn_of_cost_and_end(self, run):
    warnings.warn("this search is slow", CostWarning, stacklevel=1)
    warnings.warn("a minimum at a bound", FitWarning, stacklevel=1)


@pytest.fixture
def broken(monkeypatch):
    """Makes the study `data` raise an error as it runs."""

    def make(error):
        def run(self, run):
            raise error

        monkeypatch.setattr(ShowData, "run", run)

    return make


# --- done ---


# `python -m experiments`, once it is seen that importing all studies starts no device: else flags
# of XLA come too late, and several processes cannot find each other
LATE = """
import runpy
import experiments.config.registry, experiments.runs.runner
from jax._src import xla_bridge

print("devices started:", bool(xla_bridge._backends), flush=True)
runpy.run_module("experiments", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.cli
def test_run_in_a_process_of_its_own(home):
    arguments = ("run", "data.yaml", "--out", "out", "seed=3")
    with start(*arguments, program=("-c", LATE)) as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    first, *lines = out.splitlines()
    assert first == "devices started: False"
    assert [line.split() for line in lines] == [
        ["figure", os.path.join("out", "figures", "data.png")],
        ["numbers", os.path.join("out", "summary.json")],
    ]
    assert status_of(home / "out")["state"] == "done"
    assert read_json(home / "out" / "meta.json")["seed"] == 3
    assert (home / "out" / "figures" / "data.png").read_bytes().startswith(b"\x89PNG")
    assert len(read_json(home / "out" / "summary.json")["y"]) == 20


def test_run_without_a_terminal_prints_plain_lines_with_the_loss(capsys):
    assert main(["run", "holdout.yaml", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    steps = re.findall(r"^training: (\d)/4  loss \d+\.\d+ \d+\.\d+$", out, re.MULTILINE)
    assert steps == ["1", "2", "3", "4"]


def test_run_prints_a_table_and_its_files(capsys):
    assert main(["run", "lengthscales.yaml", "--out", "out"]) == 0
    lines = capsys.readouterr().out.splitlines()
    figure = Path("out", "figures", "lengthscales.png")
    assert [line.split() for line in lines[-2:]] == [
        ["figure", str(figure)],
        ["numbers", str(Path("out", "summary.json"))],
    ]
    assert any(line.split()[:1] == ["0.3"] for line in lines)


@pytest.mark.parametrize("out", ["a[bold]b", "a[/b]"])
def test_run_directory_may_have_square_brackets(capsys, out):
    assert main(["run", "data.yaml", "--out", out]) == 0
    assert f"{out}/summary.json" in capsys.readouterr().out.replace("\\", "/")


def test_terminal_without_greek_letters_fails_no_run(monkeypatch):
    with io.TextIOWrapper(io.BytesIO(), encoding="cp1252") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["run", "lengthscales.yaml", "--out", "out"]) == 0


# --- interrupted ---


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, blank_figures):
    """The directory of a hold-out run interrupted at its second step, and what it printed."""
    folder, tick = tmp_path_factory.mktemp("interrupted"), Ticker.__call__
    (folder / "holdout.yaml").write_text(HOLDOUT)

    def interrupt(self, done, state):
        if done == 2:
            raise KeyboardInterrupt
        tick(self, done, state)

    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(Ticker, "__call__", interrupt)
        assert main(["run", str(folder / "holdout.yaml"), "--out", str(folder / "out")]) == 130
    return folder / "out", (out.getvalue(), err.getvalue())


def test_interrupted_run_is_reported_with_how_to_resume(interrupted):
    directory, (out, err) = interrupted
    assert read_json(directory / "status.json")["state"] == "interrupted"
    assert "interrupted" not in out
    assert err.startswith("interrupted; ")
    assert f"python -m experiments resume {directory}" in err


def test_interrupted_run_keeps_its_metrics_and_seconds(interrupted):
    directory, _ = interrupted
    rows = read_lines(directory / "metrics.jsonl")
    assert [(row["step"], row["hold_out"]) for row in rows] == [(1, 1), (1, 10), (2, 1), (2, 10)]
    assert read_json(directory / "meta.json")["seconds"]["total"] > 0


def interrupted_run(monkeypatch, interrupts, ticks):
    """A run that gets Ctrl-C so often and then shows progress: its exit code, its last tick."""
    done = []

    def run(self, run):
        for _ in range(interrupts):
            signal.raise_signal(signal.SIGINT)
        with run.progress("work", ticks) as tick:
            for number in range(1, ticks + 1):
                done.append(number)
                tick(number, "")

    monkeypatch.setattr(ShowData, "run", run)
    return main(["run", "data.yaml", "--quiet", "--out", "out"]), done


def test_interrupt_stops_after_the_current_chunk(home, monkeypatch, capsys):
    handler = signal.getsignal(signal.SIGINT)
    assert interrupted_run(monkeypatch, 1, 3) == (130, [1])
    assert read_json(home / "out" / "status.json")["state"] == "interrupted"
    assert capsys.readouterr().err.startswith("stopping after this chunk; Ctrl-C again")
    assert signal.getsignal(signal.SIGINT) is handler


def test_second_interrupt_stops_at_once(home, monkeypatch):
    assert interrupted_run(monkeypatch, 2, 3) == (130, [])
    assert read_json(home / "out" / "status.json")["state"] == "interrupted"


@pytest.mark.slow
@pytest.mark.cli
def test_interrupt_while_a_program_compiles(home):
    with start("run", "holdout.yaml", "--out", "out") as process:
        while not (home / "out" / "status.json").exists():  # the training starts with it
            time.sleep(0.05)
            assert process.poll() is None
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "\ninterrupted; " in err
    assert read_json(home / "out" / "status.json")["state"] == "interrupted"


# --- failed ---


def test_the_cost_of_a_search_is_printed_before_it(monkeypatch, capsys):
    monkeypatch.setattr(ShowData, "run", warn_of_cost_and_end)
    assert main(["run", "data.yaml", "--quiet"]) == 0
    assert capsys.readouterr().err == "warning: this search is slow\n"


def test_traceback_of_a_failed_run_is_in_a_file_only(home, broken, capsys):
    broken(RuntimeError("out of luck"))
    assert main(["run", "data.yaml", "--out", "out"]) == 1
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert "RuntimeError: out of luck" in out + err
    assert "error.log" in out + err
    assert "Traceback" in (home / "out" / "error.log").read_text()
    status = read_json(home / "out" / "status.json")
    assert status == {"state": "failed", "reason": "RuntimeError: out of luck"}


@pytest.mark.parametrize("message", ["got [inf] and [/b]", "[bold]axis", "\nwhat is wrong\n"])
def test_quiet_run_prints_and_keeps_its_failure(home, broken, capsys, message):
    """With its square brackets, and without empty lines."""
    broken(ValueError(message))
    assert main(["run", "data.yaml", "--quiet", "--out", "out"]) == 1
    assert message.strip() in capsys.readouterr().err
    assert message.strip() in read_json(home / "out" / "status.json")["reason"]


def test_diverged_training_is_reported_with_its_cause(capsys):
    assert main(["run", "holdout.yaml", "--out", "out", "training.learning_rate=100"]) == 1
    printed = capsys.readouterr()
    assert "learning rate" in printed.out
    assert "failed: Diverged: " in printed.err
    status = read_json(Path("out") / "status.json")
    assert status["state"] == "failed"
    assert "diverged at step" in status["reason"]
    # of the other fits, and of this one until then
    assert len(read_json(Path("out") / "summary.json")["fits"]) > 0


def test_run_whose_output_is_closed_ends(home, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

        def fileno(self):
            return spare.fileno()

    with (home / "spare").open("w") as spare:
        monkeypatch.setattr(sys, "stdout", Closed())
        assert main(["run", "lengthscales.yaml", "--out", "out"]) == 1
    assert read_json(home / "out" / "status.json")["state"] != "running"
