"""Runs whose files were damaged, removed or edited: told by name, never taken for done."""

import os
import re
import shutil

import pytest
from marks import slow
from outputs import read_csv
from small_configs import DATA, HOLDOUT

from experiments.__main__ import main
from experiments.runs.files import read_json, status_of
from experiments.studies.data import ShowData

FILES = {"data.yaml": DATA, "holdout.yaml": HOLDOUT}


@pytest.fixture
def run(home, finished_run):
    """A copy of a run that is done."""
    return shutil.copytree(finished_run(DATA), home / "run")


def index(folder, capsys):
    """The lines of `index.csv`, and what was said."""
    capsys.readouterr()
    assert main(["index", str(folder)]) == 0
    return read_csv(folder / "index.csv"), capsys.readouterr()


def test_status_of_a_run_that_is_done_holds_the_checksums_of_its_files(run):
    status = read_json(run / "status.json")
    assert status["state"] == "done"
    expected = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert status["files"].keys() == expected - {
        "meta.json",
        "status.json",
        "output.log",
        "sources.patch",
    }
    assert status_of(run) == status


def damage(path, how):
    """Writes something else into a file, or removes it."""
    if how is None:
        path.unlink()
    else:
        path.write_text(how)


TEXTS = ('{"state": [1], "seconds": 3, "git": "x"}', "[" * 100_000, "7")
DAMAGES = {
    "cut": '{"n": 2',
    "empty": "",
    "edited": '{"n": 20, "notes": []}',
    "a list": "[1, 2]",
    "deep": "[" * 100_000,
    "removed": None,
}


@pytest.mark.parametrize(
    "name", [one if one in ("cut", "removed") else slow(one) for one in DAMAGES]
)
def test_damaged_summary_is_known_and_made_again_by_resume(run, home, capsys, name):
    before = (run / "summary.json").read_bytes()
    damage(run / "summary.json", DAMAGES[name])
    (row,), _ = index(home, capsys)
    assert row["state"] == "damaged"
    assert "summary.json" in row["reason"]
    assert main(["resume", "run", "--quiet"]) == 0
    assert (run / "summary.json").read_bytes() == before
    assert status_of(run)["state"] == "done"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("status.json", TEXTS[0]),
        ("meta.json", TEXTS[1]),
        ("metrics.jsonl", TEXTS[2]),
        *(
            slow(file, text)
            for file in ("status.json", "meta.json", "summary.json", "metrics.jsonl")
            for text in TEXTS
        ),
    ],
)
def test_any_damaged_json_is_read_without_a_traceback(run, home, capsys, file, text):
    shutil.copytree(run, home / "other")
    (run / file).write_text(text)
    rows, _ = index(home, capsys)
    states = {row["run"]: row["state"] for row in rows}
    assert states["other"] == "done"
    assert states["run"] == {"status.json": "unknown", "meta.json": "done"}.get(file, "damaged")
    assert main(["compare", "run", "other", "--out", f"compared-{file}"]) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert main(["resume", "run", "--quiet"]) == 0
    assert status_of(run)["state"] == "done"


@pytest.mark.slow
@pytest.mark.usefixtures("member_processes_in_process")
def test_damaged_member_of_a_sweep_is_computed_again(home, capsys):
    """Also where `status.json` says that it is done."""
    sweep = ["sweep", "data.yaml", "seed=0,1", "--out", "swept"]
    assert main(sweep) == 0
    members = sorted((home / "swept" / "members").glob("*/summary.json"))
    assert len(members) == 2
    before = members[0].read_bytes()
    members[0].write_text("{")
    capsys.readouterr()
    assert main(sweep) == 0
    assert "1 of them to do" in capsys.readouterr().out
    assert members[0].read_bytes() == before


def test_runs_started_in_the_same_second_each_have_a_directory(home, monkeypatch):
    """Another run takes the name after this one saw that it was free."""
    monkeypatch.setattr("experiments.runs.files.time.strftime", lambda _: "2026-01-01_00-00-00")
    lexists = os.path.lexists

    def seen_before_it_was_taken(path):
        found = lexists(path)
        if str(path).endswith("00-00-00"):
            (home / path / "figures").mkdir(parents=True)
        return found

    monkeypatch.setattr("experiments.runs.directory.os.path.lexists", seen_before_it_was_taken)
    assert main(["run", "data.yaml", "--quiet"]) == 0
    names = sorted(path.name for path in (home / "results" / "data").iterdir())
    assert names == ["2026-01-01_00-00-00", "2026-01-01_00-00-00_2"]
    assert status_of(home / "results" / "data" / names[1])["state"] == "done"


@pytest.mark.parametrize("removed", ["", slow("config.yaml"), slow("metrics.jsonl")])
def test_run_whose_files_are_removed_midway_is_not_done(home, monkeypatch, capsys, removed):
    study = ShowData.run

    def run(self, run):
        study(self, run)
        path = run.directory / removed
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    monkeypatch.setattr(ShowData, "run", run)
    assert main(["run", "data.yaml", "--out", "run", "--quiet"]) == 1
    said = capsys.readouterr().err
    assert re.search(r"failed: .*is gone: it was removed while the run was at work", said)
    assert "Traceback" not in said
    assert status_of(home / "run")["state"] != "done"


def test_dead_run_is_shown_as_stopped(run, home, capsys):
    (run / "status.json").write_text('{"state": "running", "reason": null}')
    (row,), _ = index(home, capsys)
    assert (row["state"], row["reason"]) == ("stopped", "its process is gone")


def test_run_at_work_is_shown_as_running(run, home, capsys):
    fcntl = pytest.importorskip("fcntl", reason="Windows has no fcntl: needs a POSIX system")
    (run / "status.json").write_text('{"state": "running", "reason": null}')
    handle = os.open(run, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    (row,), _ = index(home, capsys)
    os.close(handle)
    assert row["state"] == "running"


def test_seed_edited_before_resume_is_told(run, capsys):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("seed: 2024", "seed: 7"))
    (run / "status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
    assert main(["resume", "run", "--quiet"]) == 0
    assert re.search(r"since this run began, config, seed changed", capsys.readouterr().err)
    meta = read_json(run / "meta.json")
    assert meta["seed"] == 7
    assert meta["resumed"][0]["changed"]["seed"] == [2024, 7]


def test_commands_to_type_are_quoted(home, capsys):
    assert main(["run", "data.yaml", "--out", "a run; of $mine", "--quiet"]) == 0
    assert main(["run", "data.yaml", "--out", "a run; of $mine", "--quiet"]) == 2
    assert "python -m experiments resume 'a run; of $mine'" in capsys.readouterr().err
