"""`reproduce`: a run again from its own config, every byte compared, every difference named; runs
whose files were damaged, removed or edited: told by name, never taken for done."""

import functools
import json
import os
import re
import shutil
from pathlib import Path

import equinox as eqx
import matplotlib.image
import numpy as np
import pytest
from outputs import read_csv, read_json
from small_configs import DATA

from experiments.__main__ import main
from experiments.runs.files import status_of
from experiments.runs.reproduce import compare, differences
from experiments.studies.data import ShowData

pytestmark = pytest.mark.usefixtures("blank_figures")

CONFIG = f"{DATA}seed: 3\n"
FIGURES = {f"figures/data.{end}" for end in ("npz", "pdf", "png")}
COMPARED = {"config.yaml", "metrics.jsonl", "summary.json"} | FIGURES


@pytest.fixture
def run(finished_run, home):
    """A finished run in the current directory."""
    return shutil.copytree(finished_run(CONFIG, "data.n=21"), home / "run")


def edit(path, **entries):
    Path(path).write_text(json.dumps(read_json(path) | entries))


def test_run_without_its_first_config_is_reproduced_byte_by_byte(run, capsys):
    edit(run / "meta.json", started="2020-01-01T00:00:00+0000")
    assert main(["reproduce", "run"]) == 0
    report = read_json("run_reproduced/reproduction.json")
    assert (report["run"], report["reproduced"], report["different"]) == ("run", True, {})
    assert set(report["equal"]) - {"output.log", "sources.patch"} == COMPARED
    # times are named one by one
    times = report["set_aside"]["meta.json"]
    assert times["started"].startswith('"2020-01-01T00:00:00+0000" -> ')
    assert "seconds.total" in times
    assert {name.partition(".")[0] for name in times} <= {"command", "started", "ended", "seconds"}
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "run_reproduced equals run; see run_reproduced/reproduction.json"
    assert main(["reproduce", "run", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert Path("run_reproduced_2/reproduction.json").is_file()


@pytest.fixture
def altered(monkeypatch):
    """The study draws another fourth label than it did."""
    compute = ShowData.compute

    def shifted(self, *arguments):
        data = compute(self, *arguments)
        return eqx.tree_at(lambda data: data.y, data, data.y.at[3].add(2.0))

    monkeypatch.setattr(ShowData, "compute", shifted)


@pytest.mark.usefixtures("altered")
def test_differences_are_named_with_what_may_be_their_cause(run, capsys):
    versions = read_json(run / "meta.json")["versions"]
    edit(run / "meta.json", versions=versions | {"jax": "0.0.1"}, devices=["an abacus"])
    assert main(["reproduce", "run", "--out", "again"]) == 1
    printed = capsys.readouterr().out
    for text in (
        "  summary.json: y.3: ",
        "  figures/data.npz: y: 1 of 21 values differ, by up to 2\n",
        "a difference may come from:\n",
        f'  versions.jax: "0.0.1" -> "{versions["jax"]}"\n',
        '  devices.0: "an abacus" -> ',
        "again differs from run",
    ):
        assert text in printed
    assert "y.2" not in printed
    report = read_json("again/reproduction.json")
    assert report["reproduced"] is False
    assert report["different"].keys() == {"summary.json", "figures/data.npz"}


def test_failed_repetition_is_no_comparison(run, monkeypatch, capsys):
    def fail(self, run):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(ShowData, "run", fail)
    assert main(["reproduce", "run", "--out", "again"]) == 1
    printed = capsys.readouterr()
    assert "RuntimeError: out of luck" in printed.err
    assert "compared" not in printed.out
    assert not Path("again/reproduction.json").exists()


def test_only_a_finished_run_is_reproduced(run, error_of):
    refused = functools.partial(error_of, "reproduce")
    assert "nowhere is no run" in refused("nowhere")
    Path("sweep").mkdir()
    Path("sweep/members.csv").touch()
    assert "name one of its members/ID" in refused("sweep")
    assert "run exists already" in refused("run", "--out", "run")
    shutil.copytree(run, "stopped")
    edit("stopped/status.json", state="interrupted", reason="Ctrl-C")
    assert "To finish it: python -m experiments resume stopped" in refused("stopped")
    (run / "summary.json").write_text("{}")
    assert "run is damaged (summary.json is not as it was written)" in refused("run")
    assert {path.name for path in Path().iterdir()} == {"data.yaml", "run", "stopped", "sweep"}


# --- files ---


def make_run(folder, seconds, figure=b"one"):
    """A directory as that of a run, whose summary has times."""
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / "a.pdf").write_bytes(figure)
    for name, content in (
        ("summary", {"seconds": seconds, "rows": 7}),
        ("meta", {"seconds": {"total": seconds}, "versions": {"jax": "1"}}),
        ("status", {"state": "done"}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_times_of_a_benchmark_are_set_aside_and_named(tmp_path):
    one, two = make_run(tmp_path / "one", 1.5), make_run(tmp_path / "two", 2.0, b"two")
    found = compare(one, two, is_benchmark=True)
    assert found.different == {}
    assert found.set_aside["summary.json"] == {"seconds": "1.5 -> 2.0 (0.3 of it)"}
    assert found.set_aside.keys() == {"meta.json", "summary.json", "figures/a.pdf"}
    assert compare(one, two).different.keys() == {"summary.json", "figures/a.pdf"}
    for run, seed in ((one, 1), (two, 2)):
        (run / "config.yaml").write_text(f"seed: {seed}\n")
    found = compare(one, two, is_benchmark=True)
    assert found.different == {"config.yaml": {"seed": "1 -> 2 (1 of it)"}}


@pytest.mark.parametrize("is_benchmark", [False, True])
def test_missing_and_further_files_are_differences(tmp_path, is_benchmark):
    one, two = make_run(tmp_path / "one", 1.0), make_run(tmp_path / "two", 1.0)
    (one / "figures" / "a.pdf").unlink()
    (two / "summary.json").unlink()
    (two / "output.log").touch()  # of a run by an older version
    found = compare(one, two, is_benchmark=is_benchmark)
    of_run, of_repetition = ({"file": f"only in {one}"} for one in ("the run", "its repetition"))
    assert found.different == {"figures/a.pdf": of_repetition, "summary.json": of_run}
    assert found.set_aside["output.log"] == of_repetition


def save_pixels(path, value):
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[1, 2, 0] = value
    matplotlib.image.imsave(path, pixels)


def save_text(path, text):
    path.write_text(text)


def save_arrays(path, arrays):
    np.savez(path, **arrays)


NAN = float("nan")
PAIRS = {
    "json": (".json", save_text, '{"a": [1, {"b": 2}], "c": 0}', '{"a": [1, {"b": 3}], "d": 0}'),
    "jsonl": (".jsonl", save_text, '{"a": 1}\n{"a": 2.5}\n', '{"a": 1}\n{"a": 5.0}\n'),
    "npz": (
        ".npz",
        save_arrays,
        {"a": [1.0, NAN, 3], "w": ["x"]},
        {"a": [1.0, NAN, 4], "w": ["y"]},
    ),
    "shape": (".npz", save_arrays, {"a": np.zeros(2)}, {"a": np.zeros(3, np.float32)}),
    "png": (".png", save_pixels, 0, 255),
    "unreadable": (".json", save_text, "{", '{"a": 1}'),
    "unknown": (".pdf", save_text, "abc", "abdc"),
}
EXPECTED = {
    "json": {"a.1.b": "2 -> 3 (0.5 of it)", "c": "only before: 0", "d": "only now: 0"},
    "jsonl": {"line 2: a": "2.5 -> 5.0 (1 of it)"},
    "npz": {"a": "1 of 3 values differ, by up to 1", "w": "1 of 1 values differ"},
    "shape": {"a": "float64[2] -> float32[3]"},
    "png": {"pixels": "1 of 24 values differ, by up to 1"},
    "unreadable": {"bytes": "differ from byte 1 on, of 1 -> 8"},
    "unknown": {"bytes": "differ from byte 2 on, of 3 -> 4"},
}


@pytest.mark.parametrize("pair", PAIRS)
def test_differences_are_said_in_the_words_of_the_format(tmp_path, pair):
    ending, save, before, now = PAIRS[pair]
    paths = [tmp_path / f"{name}{ending}" for name in ("before", "now", "same")]
    for path, content in zip(paths, (before, now, before), strict=True):
        save(path, content)
    assert differences(paths[0], paths[1]) == EXPECTED[pair]
    assert differences(paths[0], paths[2]) == {}


FILES = {"data.yaml": DATA}


def index(folder, capsys):
    """The lines of `index.csv`, and what was said."""
    capsys.readouterr()
    assert main(["index", str(folder)]) == 0
    return read_csv(folder / "index.csv"), capsys.readouterr()


def test_status_of_a_run_that_is_done_holds_the_checksums_of_its_files(run):
    status = read_json(run / "status.json")
    assert status["state"] == "done"
    expected = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    without = {"meta.json", "status.json", "output.log", "sources.patch"}
    assert status["files"].keys() == expected - without
    assert status_of(run) == status


@pytest.mark.parametrize("text", ['{"n": 2', '{"n": 20, "notes": []}', None])
def test_damaged_summary_is_known_and_made_again_by_resume(run, home, capsys, text):
    before = (run / "summary.json").read_bytes()
    (run / "summary.json").unlink()
    if text is not None:
        (run / "summary.json").write_text(text)
    (row,), _ = index(home, capsys)
    assert row["state"] == "damaged"
    assert "summary.json" in row["reason"]
    assert main(["resume", "run", "--quiet"]) == 0
    assert (run / "summary.json").read_bytes() == before
    assert status_of(run)["state"] == "done"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("status.json", '{"state": [1], "seconds": 3, "git": "x"}'),
        ("meta.json", "[" * 100_000),
        ("metrics.jsonl", "7"),
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


def test_run_whose_files_are_removed_midway_is_not_done(home, monkeypatch, capsys):
    study = ShowData.run

    def run(self, run):
        study(self, run)
        shutil.rmtree(run.directory)

    monkeypatch.setattr(ShowData, "run", run)
    assert main(["run", "data.yaml", "--out", "run", "--quiet"]) == 1
    said = capsys.readouterr().err
    assert re.search(r"failed: .*is gone: it was removed while the run was at work", said)
    assert "Traceback" not in said
    assert status_of(home / "run")["state"] != "done"


def test_dead_run_is_shown_as_stopped_and_one_at_work_as_running(run, home, capsys):
    fcntl = pytest.importorskip("fcntl", reason="Windows has no fcntl: needs a POSIX system")
    (run / "status.json").write_text('{"state": "running", "reason": null}')
    (row,), _ = index(home, capsys)
    assert (row["state"], row["reason"]) == ("stopped", "its process is gone")
    handle = os.open(run, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    (row,), _ = index(home, capsys)
    os.close(handle)
    assert row["state"] == "running"


def test_seed_edited_before_resume_is_told(run, capsys):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("seed: 3", "seed: 7"))
    (run / "status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
    assert main(["resume", "run", "--quiet"]) == 0
    assert re.search(r"since this run began, config, seed changed", capsys.readouterr().err)
    meta = read_json(run / "meta.json")
    assert meta["seed"] == 7
    assert meta["resumed"][0]["changed"]["seed"] == [3, 7]


def test_commands_to_type_are_quoted(home, capsys):
    assert main(["run", "data.yaml", "--out", "a run; of $mine", "--quiet"]) == 0
    assert main(["run", "data.yaml", "--out", "a run; of $mine", "--quiet"]) == 2
    assert "python -m experiments resume 'a run; of $mine'" in capsys.readouterr().err
