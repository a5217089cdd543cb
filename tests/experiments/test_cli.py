"""The command line: its exit codes, its words, and the directory that a run leaves behind."""

import gc
import importlib.metadata
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from experiments.__main__ import main
from experiments.results import Ticker, default_directory
from experiments.runner import load
from experiments.studies import STUDIES
from experiments.studies.data import ShowData

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
SIMULATED = "data:\n  source: heteroskedastic\n  n: 20\n"
TINY = {
    "holdout": f"study: holdout\n{SIMULATED}training:\n  steps: 4\nhold_out: [1, 0.5]\n",
    "heads": f"study: heads\n{SIMULATED}training:\n  steps: 4\nheads: [1, 2]\n",
    # fewer points are too few for a minimum
    "leave_one_out": f"study: leave_one_out\n{SIMULATED}starts: 2\n".replace("20", "60"),
    "lengthscales": f"study: lengthscales\n{SIMULATED}lengthscales: [1.0, 0.3]\n",
    "data": f"study: data\n{SIMULATED}",
}
FIGURES = {
    "holdout": {"holdout", "training"},
    "heads": {"heads"},
    "leave_one_out": {"leave_one_out"},
    "lengthscales": {"lengthscales"},
    "data": {"data"},
}
CHECKPOINTS = {"holdout": {"training-000000004.ckpt"}, "heads": {"training-000000004.ckpt"}}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The current directory, with a config of each tiny study in it."""
    monkeypatch.chdir(tmp_path)
    for study, text in TINY.items():
        (tmp_path / f"{study}.yaml").write_text(text)
    return tmp_path


@pytest.fixture
def broken(monkeypatch):
    """Makes the study `data` raise this as it runs."""

    def make(error):
        def run(self, run):
            raise error

        monkeypatch.setattr(ShowData, "run", run)

    return make


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def files(directory):
    """All files below a directory, with their content."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


# --- a run directory ---


@pytest.fixture(scope="module", params=list(TINY))
def twice(request, tmp_path_factory):
    """A study, its run, and the run of the config.yaml that it left."""
    study, folder = request.param, tmp_path_factory.mktemp(request.param)
    (folder / "config.yaml").write_text(TINY[study])
    first, second = folder / "first", folder / "second"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiments", "run", study])
        assert main(["run", str(folder / "config.yaml"), "--quiet", "--out", str(first)]) == 0
        assert main(["run", str(first / "config.yaml"), "--quiet", "--out", str(second)]) == 0
    return study, first, second


def test_run_is_complete_and_says_so(twice):
    study, first, _ = twice
    assert read_json(first / "status.json") == {"state": "done", "reason": None}
    figures = {f"figures/{f}.{end}" for f in FIGURES[study] for end in ("png", "pdf", "npz")}
    numbers = {f"{f}.json" for f in ("meta", "status", "summary")}
    kept = {f"checkpoints/{name}" for name in CHECKPOINTS.get(study, ())}
    assert set(files(first)) == figures | numbers | kept | {"config.yaml", "metrics.jsonl"}


def test_run_again_from_its_config_is_identical_but_for_meta(twice):
    _, first, second = twice
    one, two = files(first), files(second)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == ["meta.json"]


def test_config_of_a_run_is_complete(twice):
    study, first, _ = twice
    said = yaml.safe_load((first / "config.yaml").read_text())
    assert said.keys() == STUDIES[study].model_fields.keys()


def test_meta_says_what_the_numbers_hang_on(twice):
    study, first, _ = twice
    meta = read_json(first / "meta.json")
    assert (meta["seed"], meta["command"]) == (2024, ["experiments", "run", study])
    assert meta["precision"] == ("float64" if study == "leave_one_out" else "float32")
    for package in ("jax", "numpy", "equinox", "optax"):
        assert meta["versions"][package] == importlib.metadata.version(package)
    assert meta["git"] is None or re.fullmatch(r"[0-9a-f]{40}", meta["git"]["commit"])
    assert all(seconds >= 0 for seconds in meta["seconds"].values())
    assert meta["seconds"]["total"] > 0
    assert meta["started"] <= meta["ended"]


def test_times_are_in_meta_only(twice):
    _, first, _ = twice
    day = read_json(first / "meta.json")["started"][:10]
    dates = [day.encode(), day.replace("-", "").encode()]
    dated = [name for name, data in files(first).items() if any(date in data for date in dates)]
    assert dated == ["meta.json"]


def test_metrics_are_a_line_per_step_and_fit(twice):
    study, first, _ = twice
    rows = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    expected = {"holdout": ("hold_out", [1, 10]), "heads": ("heads", [1, 2])}
    if study in expected:
        name, fits = expected[study]
        pairs = [(row["step"], row[name]) for row in rows]
        assert pairs == [(step, fit) for step in (1, 2, 3, 4) for fit in fits]
    elif study == "leave_one_out":
        assert {row["start"] for row in rows} == {0, 1}
    else:
        assert rows == []


def test_metrics_begin_at_the_start_and_end_at_the_loss_of_the_summary(home):
    assert main(["run", "holdout.yaml", "--quiet", "--out", "out", "model.lengthscale=0.5"]) == 0
    lines = (home / "out" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["lengthscale"] for row in rows[:2]] == [pytest.approx(0.5)] * 2
    fits = read_json(home / "out" / "summary.json")["fits"]
    assert [row["loss"] for row in rows[-2:]] == [fit["loss"] for fit in fits]


def test_fractions_of_rows_become_rows(home):
    assert main(["run", "holdout.yaml", "--quiet", "--out", "out", "hold_out=[0.5, 0.8]"]) == 0
    fits = read_json(home / "out" / "summary.json")["fits"]
    assert [fit["hold_out"] for fit in fits] == [10, 16]


def test_arrays_beside_a_figure_are_what_it_shows(home):
    assert main(["run", "lengthscales.yaml", "--quiet", "--out", "out"]) == 0
    with np.load(home / "out" / "figures" / "lengthscales.npz") as arrays:
        assert arrays["x"].shape == arrays["y"].shape == (20,)
        assert arrays["predictions"].shape == (2, *arrays["grid"].shape)


def test_run_is_in_the_config_and_state_running_from_its_first_moment(home, monkeypatch):
    seen = {}
    monkeypatch.setattr(ShowData, "run", lambda self, run: seen.update(files(run.directory)))
    assert main(["run", "data.yaml", "--quiet", "--out", "out"]) == 0
    assert json.loads(seen["status.json"]) == {"state": "running", "reason": None}
    assert {"config.yaml", "meta.json", "status.json"} <= seen.keys()


def test_overrides_may_stand_on_both_sides_of_an_option(home):
    words = ["training.steps=2", "--out", "out", "seed=3", "--quiet", "hold_out=[2]"]
    assert main(["run", "holdout.yaml", *words]) == 0
    config = yaml.safe_load((home / "out" / "config.yaml").read_text())
    assert (config["training"]["steps"], config["seed"], config["hold_out"]) == (2, 3, [2])


def test_other_seed_gives_other_numbers(home):
    for seed in ("1", "2"):
        assert main(["run", "data.yaml", "--quiet", "--out", seed, f"seed={seed}"]) == 0
    one, two = (read_json(home / seed / "summary.json")["y"] for seed in ("1", "2"))
    assert one != two


def test_without_out_the_directory_is_named_by_name_and_time(home):
    assert main(["run", "data.yaml", "--quiet", "name=mine"]) == 0
    (directory,) = (home / "results" / "mine").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", directory.name)
    assert (directory / "summary.json").is_file()


def test_two_runs_in_one_second_have_two_directories(monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    for name in ("now", "now_2", "now_3"):
        directory = default_directory("mine")
        assert directory == Path("results", "mine", name)
        directory.mkdir(parents=True)


# --- where a run may not go ---


def occupy(path, kind):
    if kind == "directory":
        path.mkdir()
    elif kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to("nowhere")


def names(directory):
    return sorted(os.listdir(directory))


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_run_takes_no_name_that_is_taken(home, capsys, kind):
    occupy(home / "out", kind)
    before = names(home)
    assert main(["run", "data.yaml", "--out", "out"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("out exists already")) == ("", True)
    assert "Traceback" not in err
    assert names(home) == before
    assert (home / "out").is_symlink() or files(home).get("out", b"mine") == b"mine"


@pytest.mark.parametrize("out", ["data.yaml/out", "data.yaml/deep/out", "x" * 300])
def test_run_that_cannot_write_says_so(home, capsys, out):
    before = names(home)
    assert main(["run", "data.yaml", "--out", out]) == 2
    printed, err = capsys.readouterr()
    assert (printed, err.startswith(f"{out} cannot be written: ")) == ("", True)
    assert "Traceback" not in err
    assert names(home) == before


def test_run_that_fills_the_disk_at_its_start_leaves_nothing(home, capsys, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("experiments.results._write_json", full)
    before = names(home)
    assert main(["run", "data.yaml", "--out", "out"]) == 2
    assert capsys.readouterr().err == "out cannot be written: No space left on device\n"
    assert names(home) == before


def test_wrong_config_makes_no_directory(home, capsys):
    assert main(["run", "data.yaml", "--out", "out", "data.n=1"]) == 2
    assert "data.n" in capsys.readouterr().err
    assert not (home / "out").exists()


# --- how a run can end ---


@pytest.fixture
def interrupted(home, monkeypatch, capsys):
    """The directory of a hold-out run that got a Ctrl-C at its second step, and its output."""
    tick, done = Ticker.__call__, []

    def interrupt(self, *arguments):
        done.append(arguments)
        if len(done) == 2:
            raise KeyboardInterrupt
        tick(self, *arguments)

    monkeypatch.setattr(Ticker, "__call__", interrupt)
    assert main(["run", "holdout.yaml", "--out", "out"]) == 130
    return home / "out", capsys.readouterr()


def test_interrupted_run_says_so(interrupted):
    directory, (out, err) = interrupted
    assert read_json(directory / "status.json")["state"] == "interrupted"
    assert "interrupted" not in out
    assert err.startswith("interrupted; what was computed is in ")


def test_interrupted_run_keeps_its_metrics(interrupted):
    directory, _ = interrupted
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["hold_out"]) for row in rows] == [(1, 1), (1, 10), (2, 1), (2, 10)]


def test_interrupted_run_says_how_long_it_took(interrupted):
    directory, _ = interrupted
    assert read_json(directory / "meta.json")["seconds"]["total"] > 0


def test_interrupt_that_a_callback_swallows_comes_again(home, monkeypatch):
    def run(self, run):
        def callback(phase, info):
            if phase == "start":
                signal.raise_signal(signal.SIGINT)

        gc.callbacks.append(callback)
        gc.collect()
        gc.callbacks.remove(callback)
        for _ in range(1000):
            time.sleep(0.01)

    monkeypatch.setattr(ShowData, "run", run)
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    handler = signal.getsignal(signal.SIGINT)
    assert main(["run", "data.yaml", "--quiet", "--out", "out"]) == 130
    assert read_json(home / "out" / "status.json")["state"] == "interrupted"
    assert signal.getsignal(signal.SIGINT) is handler
    assert sys.unraisablehook == printed.append
    assert not printed


def test_real_interrupt_while_a_program_compiles(home):
    command = [sys.executable, "-m", "experiments", "run", "holdout.yaml", "--out", "out"]
    at_root = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, env=at_root, stderr=subprocess.PIPE, text=True) as process:
        while not (home / "out" / "status.json").exists():  # the training starts with it
            time.sleep(0.05)
            assert process.poll() is None
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith("interrupted; what was computed is in ")
    assert read_json(home / "out" / "status.json")["state"] == "interrupted"


def test_failed_run_keeps_the_traceback_from_the_terminal(home, broken, capsys):
    broken(RuntimeError("out of luck"))
    assert main(["run", "data.yaml", "--out", "out"]) == 1
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert "RuntimeError: out of luck" in out + err
    assert "error.log" in out + err
    assert "Traceback" in (home / "out" / "error.log").read_text()
    status = read_json(home / "out" / "status.json")
    assert status == {"state": "failed", "reason": "RuntimeError: out of luck"}


@pytest.mark.parametrize("message", ["got [inf] and [/b]", "[bold]axis"])
def test_square_brackets_of_an_error_are_printed(broken, capsys, message):
    broken(ValueError(message))
    assert main(["run", "data.yaml", "--out", "out"]) == 1
    printed = capsys.readouterr()
    assert message in printed.out + printed.err


def test_reason_of_an_error_whose_first_line_is_empty_is_told(home, broken):
    broken(ValueError("\nwhat is wrong\n"))
    assert main(["run", "data.yaml", "--quiet", "--out", "out"]) == 1
    assert "what is wrong" in read_json(home / "out" / "status.json")["reason"]


def test_failed_run_is_not_quiet(broken, capsys):
    broken(RuntimeError("out of luck"))
    assert main(["run", "data.yaml", "--quiet", "--out", "out"]) == 1
    assert "out of luck" in capsys.readouterr().err


def test_training_that_diverges_is_told_by_its_cause(capsys):
    assert main(["run", "holdout.yaml", "--out", "out", "training.learning_rate=100"]) == 1
    printed = capsys.readouterr()
    assert "a learning rate too large" in printed.out
    assert "failed: Diverged: " in printed.err
    status = read_json(Path("out") / "status.json")
    assert status["state"] == "failed"
    assert "diverged at step" in status["reason"]
    assert (
        len(read_json(Path("out") / "summary.json")["fits"]) > 0
    )  # the others, and how far it came


def test_run_whose_reader_is_gone_is_not_left_running(home, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

        def fileno(self):
            return spare.fileno()

    with (home / "spare").open("w") as spare:
        monkeypatch.setattr(sys, "stdout", Closed())
        assert main(["run", "lengthscales.yaml", "--out", "out"]) == 1
    assert read_json(home / "out" / "status.json")["state"] != "running"


# --- what is printed ---


def test_quiet_run_prints_nothing(capsys):
    assert main(["run", "holdout.yaml", "--quiet", "--out", "out"]) == 0
    assert capsys.readouterr() == ("", "")


def test_piped_run_has_plain_lines_with_the_loss(capsys):
    assert main(["run", "holdout.yaml", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    steps = re.findall(r"^training: (\d)/4  loss \d+\.\d+ \d+\.\d+$", out, re.MULTILINE)
    assert steps == ["1", "2", "3", "4"]


def test_run_prints_a_table_and_the_files_that_it_made(capsys):
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


def test_terminal_that_cannot_show_every_letter_fails_no_run(monkeypatch):
    with io.TextIOWrapper(io.BytesIO(), encoding="cp1252") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["run", "lengthscales.yaml", "--out", "out"]) == 0


# --- validate, show, schema, list ---


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_is_valid(path, capsys):
    assert main(["validate", str(path)]) == 0
    assert capsys.readouterr() == (f"{path}: valid\n", "")


def test_validate_tells_of_every_config(home, capsys):
    (home / "bad.yaml").write_text("study: hold_out\n")
    assert main(["validate", "bad.yaml", "data.yaml", "missing.yaml", "heads.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == ["data.yaml: valid", "heads.yaml: valid"]
    first, second = err.splitlines()
    assert first.startswith("bad.yaml:1: study: unknown name 'hold_out'")
    assert second.startswith("missing.yaml: cannot be read")


def test_validate_runs_nothing(home):
    before = names(home)
    assert main(["validate", "holdout.yaml", "data.yaml"]) == 0
    assert names(home) == before


def shown_again(home, capsys, *arguments):
    """What `show` prints, as a config."""
    assert main(["show", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    (home / "shown.yaml").write_text(out, encoding="utf-8")
    return load(Path("shown.yaml"), [])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_show_prints_the_whole_config(home, capsys, path):
    shown = shown_again(home, capsys, str(path))
    assert shown == load(path, [])
    assert (
        yaml.safe_load((home / "shown.yaml").read_text()).keys() == type(shown).model_fields.keys()
    )


def test_show_prints_overrides_resolved(home, capsys):
    words = ["seed=7", "training.learning_rate=1e-2"]
    shown = shown_again(home, capsys, "holdout.yaml", *words)
    assert (shown.seed, shown.training.learning_rate) == (7, 0.01)


@pytest.mark.parametrize(
    "column", ["1e-2", "1e5", "1.5e3", "2024", "on", "true", "null", "a: b", "größe"]
)
def test_show_quotes_a_column_name_that_looks_like_something_else(home, capsys, column):
    (home / "mine.csv").write_text(f'"{column}",b\n1,2\n2,3\n3,4\n', encoding="utf-8")
    (home / "csv.yaml").write_text(
        f"study: data\ndata: {{source: csv, path: mine.csv, x: '{column}', y: b}}\n",
        encoding="utf-8",
    )
    assert shown_again(home, capsys, "csv.yaml").data.x == column


def test_show_quotes_a_name_that_looks_like_a_number(home, capsys):
    assert shown_again(home, capsys, "data.yaml", 'name="1e-2"').name == "1e-2"


def test_schema_has_every_field_of_every_study(capsys):
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {choice["$ref"].rpartition("/")[2] for choice in schema["oneOf"]} == {
        study.__name__ for study in STUDIES.values()
    }
    for study in STUDIES.values():
        assert schema["$defs"][study.__name__]["properties"].keys() == study.model_fields.keys()


@pytest.mark.parametrize(
    ("field", "some"),
    [
        ("study", list(STUDIES)),
        ("data.source", ["heteroskedastic", "bundled", "csv"]),
        ("data.name (bundled)", ["cps71", "mcycle"]),
        ("model.kernel", ["gaussian"]),
        ("model.convention", ["standard", "unhalved"]),
        ("training.optimizer", ["adam", "sgd"]),
    ],
)
def test_list_says_what_a_config_can_name(capsys, field, some):
    assert main(["list"]) == 0
    listed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert set(some) <= set(listed[field].split(", "))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["walk"],
        ["run"],
        ["run", "data.yaml", "--ouf", "out"],
        ["run", "data.yaml", "--out"],
        ["run", "data.yaml", "--seed=3"],
        ["list", "seed=3"],
        ["validate"],
    ],
)
def test_wrong_command_line_is_refused_with_its_usage(home, capsys, words):
    before = names(home)
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words)
    out, err = capsys.readouterr()
    assert (out, err.startswith("usage: python -m experiments")) == ("", True)
    assert names(home) == before
