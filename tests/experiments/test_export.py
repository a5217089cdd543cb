"""`export`: a run for TensorBoard, MLflow and CSV; their packages only if they are installed."""

import csv
import importlib
import inspect
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.__main__ import main

CONFIG = """\
study: holdout
seed: 3
data: {source: heteroskedastic, n: 23}
training: {steps: 4}
hold_out: [2, 7]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a finished run, with its figures."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "c.yaml").write_text(CONFIG)
    out = folder / "results" / "holdout" / "one"
    assert main(["run", str(folder / "c.yaml"), "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """The name of a copy of it below the current directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "results" / "holdout" / "one")
    return "results/holdout/one"


def read(path):
    return json.loads(Path(path).read_text())


def metrics_of(run):
    """The loss of each step of the first hold-out size, as `metrics.jsonl` has it."""
    rows = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows if row["hold_out"] == 2]


def table(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_metrics_numbers_and_the_config(run, capsys):
    assert main(["export", run, "--to", "csv"]) == 0
    assert capsys.readouterr().out.startswith("results/csv/holdout/one: config.csv")
    folder = Path("results/csv/holdout/one")
    rows = table(folder / "metrics.csv")
    assert list(rows[0]) == ["step", "member", "loss", "lengthscale"]
    found = [(int(r["step"]), float(r["loss"])) for r in rows if r["member"] == "hold_out 2"]
    assert found == metrics_of(run)
    config = {row["name"]: row["value"] for row in table(folder / "config.csv")}
    assert (config["data.n"], config["hold_out.1"], config["study"]) == ("23", "7", "holdout")
    numbers = {row["name"]: row["value"] for row in table(folder / "summary.csv")}
    assert float(numbers["fits.1.loss"]) == read(f"{run}/summary.json")["fits"][1]["loss"]
    assert main(["export", run, "--to", "csv"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_lists_of_metrics_are_columns(run):
    line = json.dumps({"step": 1, "heads": 2, "loss": None, "weights": [0.25, 0.75]})
    Path(run, "metrics.jsonl").write_text(f"{line}\n{{damaged\n")
    status = {"state": "interrupted", "reason": "Ctrl-C"}
    Path(run, "status.json").write_text(json.dumps(status))
    assert main(["export", run, "--to", "csv", "--out", "x"]) == 0
    (row,) = table("x/holdout/one/metrics.csv")
    assert row == {
        "step": "1",
        "member": "heads 2",
        "loss": "",
        "weights.0": "0.25",
        "weights.1": "0.75",
    }


@pytest.mark.parametrize(
    ("target", "package"), [("tensorboard", "tensorboardX"), ("mlflow", "mlflow")]
)
def test_absent_package_is_named_with_what_installs_it(run, target, package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["export", run, "--to", target]) == 2
    assert capsys.readouterr().err == (
        f'--to {target} needs {package}: pip install "attnkernel[export]"\n'
    )
    assert not Path("results", target).exists()


def test_only_runs_are_exported(run, capsys):
    assert main(["export", "nowhere", "--to", "csv"]) == 2
    assert "nowhere is no run" in capsys.readouterr().err
    assert main(["export", run, run, "--to", "csv"]) == 2
    assert "two of these runs are named holdout/one" in capsys.readouterr().err
    Path(run, "summary.json").write_text("{}")
    assert main(["export", run, "--to", "csv"]) == 2
    assert "is damaged: summary.json" in capsys.readouterr().err
    Path("file").touch()
    Path(run, "status.json").write_text('{"state": "interrupted", "reason": null}')
    assert main(["export", run, "--to", "csv", "--out", "file"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", run, "--to", "excel"])


# --- stand-ins, whose signatures are compared with the packages where these are installed ---


class SummaryWriter:
    """That of tensorboardX: notes what it is given."""

    written = []

    def __init__(self, logdir=None, comment="", write_to_disk=True):
        SummaryWriter.written = [("logdir", logdir)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.written.append(("closed",))

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        self.written.append((tag, scalar_value, global_step, walltime))

    def add_text(self, tag, text_string, global_step=None, walltime=None):
        self.written.append((tag, text_string))

    def add_image(self, tag, img_tensor, global_step=None, walltime=None, dataformats="CHW"):
        self.written.append((tag, np.asarray(img_tensor).shape, dataformats))


class MlflowClient:
    """That of MLflow: notes what it is given."""

    calls = []

    def __init__(self, tracking_uri=None):
        self.calls.append(("uri", tracking_uri))

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name, artifact_location=None):
        self.calls.append(("experiment", name, artifact_location))
        return "7"

    def search_runs(self, experiment_ids, filter_string=""):
        return [run for run in self.calls if run[0] == "run" and run[1] in filter_string]

    def create_run(self, experiment_id, start_time=None, tags=None, run_name=None):
        self.calls.append(("run", tags["attnkernel"], start_time, run_name, tags))
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.calls.append(("batch", list(metrics), list(params)))

    def log_artifact(self, run_id, local_path, artifact_path=None):
        self.calls.append(("artifact", Path(local_path).name, artifact_path))

    def set_terminated(self, run_id, status=None, end_time=None):
        self.calls.append(("ended", status, end_time))


def Metric(key, value, timestamp, step):
    return (key, value, timestamp, step)


def Param(key, value):
    return (key, value)


def test_tensorboard_gets_scalars_images_and_the_config(run, monkeypatch, capsys):
    module = SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    assert main(["export", run, "--to", "tensorboard", "--out", "tb"]) == 0
    assert capsys.readouterr().out == "tb/holdout/one: tensorboard --logdir tb\n"
    written = SummaryWriter.written
    assert (written[0], written[-1]) == (("logdir", "tb/holdout/one"), ("closed",))
    losses = [entry for entry in written if entry[0] == "loss/hold_out_2"]
    assert [(step, value) for _, value, step, _ in losses] == metrics_of(run)
    expected = read(f"{run}/summary.json")["fits"][0]["lengthscale"]
    (length,) = [entry for entry in written if entry[0] == "summary/fits.0.lengthscale"]
    assert length[1:3] == (expected, 4)
    assert length[3] >= losses[0][3] > 1.7e9  # seconds since 1970
    (figure,) = [entry for entry in written if entry[0] == "figures/training"]
    assert (figure[1][2], figure[2]) == (3, "HWC")
    (config,) = [entry for entry in written if entry[0] == "config"]
    assert "    study: holdout" in config[1]


def test_mlflow_gets_metrics_parameters_and_artifacts(run, monkeypatch, capsys):
    monkeypatch.setattr(MlflowClient, "calls", [])
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=MlflowClient))
    for needed in ("sqlalchemy", "alembic"):
        monkeypatch.setitem(sys.modules, needed, SimpleNamespace())
    entities = SimpleNamespace(Metric=Metric, Param=Param)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    assert main(["export", run, "--to", "mlflow"]) == 0
    assert capsys.readouterr().out == (
        "holdout/one in holdout: mlflow ui --backend-store-uri sqlite:///results/mlflow/mlflow.db\n"
    )
    calls = MlflowClient.calls
    store = Path("results/mlflow").resolve()
    assert calls[0] == ("uri", f"sqlite:///{store}/mlflow.db")
    assert calls[1] == ("experiment", "holdout", f"{store.as_uri()}/artifacts")
    (metrics, _), (_, params) = [call[1:] for call in calls if call[0] == "batch"]
    losses = [(step, value) for key, value, _, step in metrics if key == "loss/hold_out_2"]
    assert losses == metrics_of(run)
    final = {key: value for key, value, *_ in metrics if key.startswith("fits.")}
    assert final["fits.1.loss"] == read(f"{run}/summary.json")["fits"][1]["loss"]
    assert {("data.n", "23"), ("study", "holdout"), ("hold_out.1", "7")} <= set(params)
    artifacts = {call[1:] for call in calls if call[0] == "artifact"}
    assert {("config.yaml", None), ("training.png", "figures")} <= artifacts
    ((_, status, ended),) = [call for call in calls if call[0] == "ended"]
    assert status == "FINISHED"
    assert ended > 1.7e12  # milliseconds since 1970
    tags = next(call for call in calls if call[0] == "run")[4]
    assert tags["versions.jax"] == read(f"{run}/meta.json")["versions"]["jax"]
    assert main(["export", run, "--to", "mlflow"]) == 2
    assert "is in results/mlflow already" in capsys.readouterr().err


SIGNATURES = [
    ("tensorboardX", "SummaryWriter", SummaryWriter),
    ("mlflow", "MlflowClient", MlflowClient),
    ("mlflow.entities", "Metric", Metric),
    ("mlflow.entities", "Param", Param),
]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("module", "name", "stand_in"), SIGNATURES)
def test_stand_ins_take_what_the_packages_take(module, name, stand_in):
    pytest.importorskip(module)
    real = getattr(importlib.import_module(module), name)
    pairs = [(stand_in, real)]
    if inspect.isclass(stand_in):
        methods = {key: value for key, value in vars(stand_in).items() if key[0] != "_"}
        pairs += [
            (value, getattr(real, key))
            for key, value in methods.items()
            if inspect.isfunction(value)
        ]
    for ours, theirs in pairs:
        taken = inspect.signature(theirs).parameters
        assert inspect.signature(ours).parameters.keys() <= taken.keys(), theirs


@pytest.mark.filterwarnings("default")
def test_event_files_are_read_back(run):
    pytest.importorskip("tensorboardX")
    event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
    assert main(["export", run, "--to", "tensorboard", "--out", "tb"]) == 0
    (path,) = Path("tb/holdout/one").glob("events*")
    data, losses = path.read_bytes(), []
    while data:  # length, its checksum, the event, its checksum
        size = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        losses += [
            (event.step, value.simple_value)
            for value in event.summary.value
            if value.tag == "loss/hold_out_2"
        ]
    assert losses == [(step, pytest.approx(value, rel=1e-6)) for step, value in metrics_of(run)]


@pytest.mark.filterwarnings("default")
def test_store_of_mlflow_is_read_back(run):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    assert main(["export", run, "--to", "mlflow", "--out", "store"]) == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{Path('store/mlflow.db').resolve()}")
    experiment = client.get_experiment_by_name("holdout").experiment_id
    (found,) = client.search_runs([experiment])
    assert found.info.status == "FINISHED"
    assert found.data.params["data.n"] == "23"
    losses = client.get_metric_history(found.info.run_id, "loss/hold_out_2")
    assert [(one.step, one.value) for one in losses] == metrics_of(run)
    assert len(list(Path("store/artifacts").rglob("training.png"))) == 1
    assert main(["export", run, "--to", "mlflow", "--out", "store"]) == 2
