"""How a run ends: done, interrupted, failed or diverged; what it prints, and what it archives of
how it was made: its output, the state of the sources."""

import hashlib
import io
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from outputs import read_json, start
from small_configs import DATA, TRAINED

from attnkernel.fitting import CostWarning, FitWarning
from experiments.__main__ import main
from experiments.runs.files import status_of
from experiments.runs.output_log import OutputLog
from experiments.runs.provenance import Sources, read_sources
from experiments.studies.data import ShowData

pytestmark = pytest.mark.usefixtures("blank_figures")


SIMULATED = "data: {source: heteroskedastic, n: 20}\n"
FILES = {
    "holdout.yaml": TRAINED,
    "lengthscales.yaml": f"study: lengthscales\n{SIMULATED}lengthscales: [1.0, 0.3]\n",
    "data.yaml": DATA,
}


def written(study):
    """The words of the lines that name the files of a run into `out`."""
    figure, numbers = Path("out", "figures", f"{study}.png"), Path("out", "summary.json")
    return [["figure", str(figure)], ["numbers", str(numbers)]]


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
    first, reading, *lines = out.splitlines()
    assert reading == "reading data.yaml"
    assert first == "devices started: False"
    assert [line.split() for line in lines] == written("data")
    assert status_of(home / "out")["state"] == "done"
    assert read_json(home / "out" / "meta.json")["seed"] == 3
    assert (home / "out" / "figures" / "data.png").read_bytes().startswith(b"\x89PNG")
    assert len(read_json(home / "out" / "summary.json")["y"]) == 20


@pytest.mark.slow
def test_run_without_a_terminal_prints_plain_lines_with_the_loss(capsys):
    assert main(["run", "holdout.yaml", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    steps = re.findall(r"^training: (\d)/5  loss \d+\.\d+ \d+\.\d+$", out, re.MULTILINE)
    assert steps == ["1", "2", "3", "4", "5"]


def test_terminal_without_greek_letters_fails_no_run(monkeypatch):
    with io.TextIOWrapper(io.BytesIO(), encoding="cp1252") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["run", "lengthscales.yaml", "--out", "out"]) == 0


# --- interrupted ---


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


@pytest.mark.parametrize(("interrupts", "done"), [(1, [1]), (2, [])], ids=["one", "at once"])
def test_interrupt_stops_after_the_current_chunk(home, monkeypatch, capsys, interrupts, done):
    handler = signal.getsignal(signal.SIGINT)
    assert interrupted_run(monkeypatch, interrupts, 3) == (130, done)
    assert read_json(home / "out" / "status.json")["state"] == "interrupted"
    told = capsys.readouterr().err
    assert told.startswith("stopping after this chunk; Ctrl-C again")
    assert "\ninterrupted; " in told
    assert "python -m experiments resume out" in told
    assert read_json(home / "out" / "meta.json")["seconds"]["total"] > 0
    assert signal.getsignal(signal.SIGINT) is handler


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


# --- output ---


def talk(self, run):
    print("printed")
    print("a warning", file=sys.stderr)
    run.note(["kept"])
    run.table("Numbers", ["ℓ", "loss"], [["1.5", "0.25"]])
    with run.progress("work", 2) as tick:
        tick(1, "half")
        print("printed meanwhile")
        tick(2, "whole")
    raise RuntimeError("out of luck")


LOG = """\
printed
a warning
note: kept
Numbers
ℓ    loss
1.5  0.25
work: 1/2  half
printed meanwhile
work: 2/2  whole
failed: RuntimeError: out of luck
see out/error.log
"""


class Terminal(io.StringIO):
    """A stream that shows a moving bar."""

    def isatty(self):
        return True


@pytest.mark.parametrize("where", ["file", "quiet", "terminal"])
def test_output_of_a_run_is_kept_as_lines(monkeypatch, capsys, where):
    monkeypatch.setattr(ShowData, "run", talk)
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal() if where == "terminal" else sys.stdout
    monkeypatch.setattr(sys, "stdout", shown)
    quiet = ["--quiet"] if where == "quiet" else []
    assert main(["run", "data.yaml", "--out", "out", *quiet]) == 1
    assert sys.stdout is shown
    text = Path("out/output.log").read_text(encoding="utf-8")
    assert [line.rstrip() for line in text.splitlines()] == LOG.splitlines()
    printed = shown.getvalue() if where == "terminal" else capsys.readouterr().out
    assert ("\x1b" in printed) == (where == "terminal")
    assert ("note: kept" in printed) == (where != "quiet")
    assert "printed meanwhile" in printed
    assert (printed == "printed\nprinted meanwhile\n") == (where == "quiet")


def test_parts_of_a_resumed_run_add_to_the_output(monkeypatch):
    def interrupted(self, run):
        run.note(["first"])
        raise KeyboardInterrupt

    draw = ShowData.run
    monkeypatch.setattr(ShowData, "run", interrupted)
    assert main(["run", "data.yaml", "--out", "out", "--quiet"]) == 130
    monkeypatch.setattr(ShowData, "run", lambda self, run: (run.note(["second"]), draw(self, run)))
    assert main(["resume", "out", "--quiet"]) == 0
    lines = Path("out/output.log").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("note: first", "note: second")
    assert any(line.startswith("interrupted; ") for line in lines)


def test_full_disk_ends_the_log_and_not_the_message(capsys):
    output = OutputLog(Path("/dev/full"), quiet=False)
    with output.streams():
        output.print("to the terminal")
        print("too")
    output.close()
    assert capsys.readouterr().out == "to the terminal\ntoo\n"


# --- sources ---


def git(*arguments, cwd):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def checkout(home):
    """A repository with one commit."""
    folder = home / "checkout"
    (folder / "attnkernel").mkdir(parents=True)
    (folder / "attnkernel" / "old.py").write_text("x = 1\n")
    (folder / ".gitignore").write_text("*.pyc\n")
    git("init", "-q", cwd=folder)
    git("add", "-A", cwd=folder)
    git("commit", "-q", "-m", "First", cwd=folder)
    return folder


def change(checkout):
    """Changes a file, and makes a new one, one that git ignores and one outside of the packages."""
    (checkout / "attnkernel" / "old.py").write_text("x = 2\n")
    (checkout / "attnkernel" / "größe.py").write_text("y = 1\n")
    (checkout / "attnkernel" / "new.pyc").write_text("ignored\n")
    (checkout / "data.csv").write_text("a,b\n")


def test_patch_turns_the_commit_into_the_sources(checkout, home):
    change(checkout)
    listed = git("status", "--porcelain", cwd=checkout)
    record, patch = read_sources(checkout)
    commit, digest = git("rev-parse", "HEAD", cwd=checkout), hashlib.sha256(patch).hexdigest()
    kept = {"sha256": digest, "bytes": len(patch), "complete": True}
    assert record == {"commit": commit.strip(), "changed": True, "patch": kept}
    assert git("status", "--porcelain", cwd=checkout) == listed
    (home / "sources.patch").write_bytes(patch)
    git("clone", "-q", str(checkout), "copy", cwd=home)
    git("apply", "../sources.patch", cwd=home / "copy")
    for name in ("old.py", "größe.py"):
        content = (home / "copy" / "attnkernel" / name).read_text()
        assert content == (checkout / "attnkernel" / name).read_text()
    assert not (home / "copy" / "data.csv").exists()


def test_sources_without_changes_or_git_have_no_patch(checkout, home):
    clean = read_sources(checkout)
    assert (clean.record["changed"], clean.patch) == (False, b"")
    assert "patch" not in clean.record
    assert read_sources(home / "nowhere") == Sources(None, b"")


def test_patch_is_kept_in_the_run_and_another_when_it_is_resumed(monkeypatch):
    state = Sources({"commit": "c", "changed": True}, b"first")
    monkeypatch.setattr("experiments.runs.directory.read_sources", lambda: state)
    assert main(["run", "data.yaml", "--out", "out", "--quiet"]) == 0
    assert Path("out/sources.patch").read_bytes() == b"first"
    assert read_json("out/meta.json")["git"] == state.record
    Path("out/status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
    state = Sources({"commit": "d", "changed": True}, b"second")
    assert main(["resume", "out", "--quiet"]) == 0
    assert Path("out/sources.patch").read_bytes() == b"first"
    assert Path("out/sources_2.patch").read_bytes() == b"second"
    assert main(["reproduce", "out", "--quiet"]) == 0
