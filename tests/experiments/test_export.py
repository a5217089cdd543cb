"""`export`: a run for TensorBoard, MLflow and CSV; their packages only if they are installed."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from outputs import read_csv, read_json, read_lines
from small_configs import TRAINED

from experiments.__main__ import main

LOSS = "loss/hold_out_2"


@pytest.fixture
def run(finished_run, home):
    """The name of a finished run below the current directory, with its figures."""
    shutil.copytree(finished_run(TRAINED), home / "results" / "holdout" / "one")
    return "results/holdout/one"


def metrics_of(run):
    """The loss of each step of the first hold-out size, as `metrics.jsonl` has it."""
    rows = read_lines(Path(run, "metrics.jsonl"))
    return [(row["step"], row["loss"]) for row in rows if row["hold_out"] == 2]


def test_csv_has_metrics_numbers_and_the_config(run, capsys):
    assert main(["export", run, "--to", "csv"]) == 0
    assert capsys.readouterr().out.startswith("results/csv/holdout/one: config.csv")
    folder = Path("results/csv/holdout/one")
    rows = read_csv(folder / "metrics.csv")
    assert list(rows[0]) == ["step", "member", "loss", "lengthscale"]
    found = [(int(r["step"]), float(r["loss"])) for r in rows if r["member"] == "hold_out 2"]
    assert found == metrics_of(run)
    config = {row["name"]: row["value"] for row in read_csv(folder / "config.csv")}
    assert (config["data.n"], config["hold_out.1"], config["study"]) == ("23", "7", "holdout")
    numbers = {row["name"]: row["value"] for row in read_csv(folder / "summary.csv")}
    assert float(numbers["fits.1.loss"]) == read_json(f"{run}/summary.json")["fits"][1]["loss"]
    assert main(["export", run, "--to", "csv"]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["csv", "tensorboard"])
def test_an_export_that_dies_half_way_is_not_there(target, run, monkeypatch, capsys):
    module = MagicMock()
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    words = ["export", run, "--to", target]
    with monkeypatch.context() as broken:
        dies = MagicMock(side_effect=KeyboardInterrupt)
        broken.setattr("experiments.reports.export.write_csv", dies)
        module.SummaryWriter.return_value.__enter__.return_value.add_text = dies
        with pytest.raises(KeyboardInterrupt):
            main(words)
    assert [path for path in Path("results", target).rglob("*") if path.is_file()] == []
    module.SummaryWriter.return_value.__enter__.return_value.add_text = MagicMock()
    assert main(words) == 0
    assert Path("results", target, "holdout", "one").is_dir()


def test_lists_of_metrics_are_columns(run):
    line = json.dumps({"step": 1, "heads": 2, "loss": None, "weights": [0.25, 0.75]})
    Path(run, "metrics.jsonl").write_text(f"{line}\n{{damaged\n")
    Path(run, "status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
    assert main(["export", run, "--to", "csv", "--out", "x"]) == 0
    (row,) = read_csv("x/holdout/one/metrics.csv")
    expected = {"step": "1", "member": "heads 2", "loss": ""}
    assert row == expected | {"weights.0": "0.25", "weights.1": "0.75"}


@pytest.mark.parametrize(
    ("target", "package"), [("tensorboard", "tensorboardX"), ("mlflow", "mlflow")]
)
def test_absent_package_is_named_with_what_installs_it(run, target, package, monkeypatch, error_of):
    monkeypatch.setitem(sys.modules, package, None)
    error = error_of("export", run, "--to", target)
    assert error == f'--to {target} needs {package}: pip install "attnkernel[export]"\n'
    assert not Path("results", target).exists()


def test_only_runs_are_exported(run, error_of):
    to_csv = ["--to", "csv"]
    assert "nowhere is no run" in error_of("export", "nowhere", *to_csv)
    assert "two of these runs are named holdout/one" in error_of("export", run, run, *to_csv)
    Path(run, "summary.json").write_text("{}")
    assert "is damaged: summary.json" in error_of("export", run, *to_csv)
    Path("file").touch()
    Path(run, "status.json").write_text('{"state": "interrupted", "reason": null}')
    assert "cannot be written" in error_of("export", run, *to_csv, "--out", "file")
    with pytest.raises(SystemExit):
        main(["export", run, "--to", "excel"])


# --- what the packages would be given: they may not be installed ---


def test_tensorboard_gets_scalars_images_and_the_config(run, monkeypatch, capsys):
    module = MagicMock()
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    assert main(["export", run, "--to", "tensorboard", "--out", "tb"]) == 0
    assert capsys.readouterr().out == "tb/holdout/one: tensorboard --logdir tb\n"
    module.SummaryWriter.assert_called_once()
    # temporary folders are absolute from Python 3.12 on
    draft = Path(module.SummaryWriter.call_args.kwargs["logdir"]).absolute()
    assert (draft.relative_to(Path.cwd()).parts[:2], draft.name) == (("tb", "holdout"), "one")
    assert (draft.exists(), Path("tb/holdout/one").is_dir()) == (False, True)
    opened = module.SummaryWriter.return_value
    opened.__exit__.assert_called_once()
    writer, scalars, times = opened.__enter__.return_value, {}, []
    for (tag, value), options in writer.add_scalar.call_args_list:
        assert options.keys() == {"global_step", "walltime"}
        scalars.setdefault(tag, []).append((options["global_step"], value))
        times.append(options["walltime"])
    assert scalars["loss/hold_out_2"] == metrics_of(run)
    expected = read_json(f"{run}/summary.json")["fits"][0]["lengthscale"]
    assert scalars["summary/fits.0.lengthscale"] == [(5, expected)]
    assert times == sorted(times)
    assert times[0] > 1.7e9  # seconds since 1970
    images = {call.args[0]: call for call in writer.add_image.call_args_list}
    (_, pixels), options = images["figures/training"]
    assert options.keys() == {"global_step", "walltime", "dataformats"}
    assert (pixels.shape[2], options["dataformats"]) == (3, "HWC")
    name, text = writer.add_text.call_args.args
    assert name == "config"
    assert "    study: holdout" in text


def test_mlflow_gets_metrics_parameters_and_artifacts(run, monkeypatch, error_of, capsys):
    module = MagicMock()
    client = module.MlflowClient.return_value
    client.get_experiment_by_name.return_value, client.search_runs.return_value = None, []
    entities = SimpleNamespace(Metric=lambda *parts: parts, Param=lambda *parts: parts)
    modules = {"mlflow": module, "mlflow.entities": entities}
    for name, stand_in in (modules | {"sqlalchemy": module, "alembic": module}).items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    assert main(["export", run, "--to", "mlflow"]) == 0
    command = "mlflow ui --backend-store-uri sqlite:///results/mlflow/mlflow.db"
    assert capsys.readouterr().out == f"holdout/one in holdout: {command}\n"
    store = Path("results/mlflow").resolve()
    module.MlflowClient.assert_called_once_with(tracking_uri=f"sqlite:///{store}/mlflow.db")
    artifacts = f"{store.as_uri()}/artifacts"
    client.create_experiment.assert_called_once_with("holdout", artifact_location=artifacts)
    metrics, params = (call.kwargs for call in client.log_batch.call_args_list)
    losses = [(step, value) for key, value, _, step in metrics["metrics"] if key == LOSS]
    assert losses == metrics_of(run)
    final = {key: value for key, value, *_ in metrics["metrics"]}
    assert final["fits.1.loss"] == read_json(f"{run}/summary.json")["fits"][1]["loss"]
    expected = {("data.n", "23"), ("study", "holdout"), ("hold_out.1", "7")}
    assert expected <= set(params["params"])
    artifacts = {(Path(path).name, *to) for (_, path, *to), _ in client.log_artifact.call_args_list}
    assert {("config.yaml",), ("training.png", "figures")} <= artifacts
    assert client.set_terminated.call_args.kwargs["status"] == "FINISHED"
    client.search_runs.return_value = ["the run"]
    assert "is in results/mlflow already" in error_of("export", run, "--to", "mlflow")
    wanted = client.search_runs.call_args.kwargs["filter_string"]
    names = [name for name, *_ in client.method_calls]
    assert names.index("log_artifact") < names.index("set_tag") < names.index("set_terminated")
    _, name, digest = client.set_tag.call_args.args  # of an export that is complete
    assert wanted == f"tags.{name} = '{digest}'"
