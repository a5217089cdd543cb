"""What a run archives of how it was made: its output, the state of the sources, its kernel."""

import hashlib
import io
import subprocess
import sys
from pathlib import Path

import pytest
from outputs import read_json
from small_configs import DATA

from experiments.__main__ import main
from experiments.runs.output_log import OutputLog
from experiments.runs.provenance import Sources, read_sources
from experiments.studies.data import ShowData

pytestmark = pytest.mark.usefixtures("blank_figures")

FILES = {"c.yaml": DATA}


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
    assert main(["run", "c.yaml", "--out", "out", *quiet]) == 1
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
    assert main(["run", "c.yaml", "--out", "out", "--quiet"]) == 130
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


def test_long_patch_is_cut_and_said_to_be_incomplete(checkout, monkeypatch):
    change(checkout)
    whole = read_sources(checkout)
    monkeypatch.setattr("experiments.runs.provenance.MAX_PATCH_BYTES", 10)
    cut = read_sources(checkout)
    assert cut.patch == whole.patch[:10]
    assert cut.record["patch"] == whole.record["patch"] | {"complete": False}


def test_patch_is_kept_in_the_run_and_another_when_it_is_resumed(monkeypatch):
    state = Sources({"commit": "c", "changed": True}, b"first")
    monkeypatch.setattr("experiments.runs.directory.read_sources", lambda: state)
    assert main(["run", "c.yaml", "--out", "out", "--quiet"]) == 0
    assert Path("out/sources.patch").read_bytes() == b"first"
    assert read_json("out/meta.json")["git"] == state.record
    Path("out/status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
    state = Sources({"commit": "d", "changed": True}, b"second")
    assert main(["resume", "out", "--quiet"]) == 0
    assert Path("out/sources.patch").read_bytes() == b"first"
    assert Path("out/sources_2.patch").read_bytes() == b"second"
    assert main(["reproduce", "out", "--quiet"]) == 0
