"""Checkpoints: a stopped training resumes to the same bits; damaged files are set aside."""

import importlib

import jax
import numpy as np
import optax
import pytest
from marks import slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel.fitting import Checkpoints, CheckpointWarning

MODULE = importlib.import_module("attnkernel.fitting._checkpoints")  # `ak.fit` is a function
ADAM = optax.adam(0.05)
KEYS = np.array([[0, 5], [1, 6], [2, 7]], np.uint32)


class Stop(Exception):
    """Ends a training, as Ctrl-C does."""


def rows(seed):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3, 3, 31))
    return x, np.sin(x) + 0.1 * rng.normal(size=31)


def regression(**options):
    return ak.KernelRegression(ak.Gaussian(1.0), **options)


def trained(path=None, *, stop=None, many=False, steps=53, report=None, of="", seed=0):
    x, y = rows(seed)
    seen = []

    def callback(done, history):
        seen.append((done, history["loss"].shape[-1]))
        if stop is not None and done >= stop:
            raise Stop

    options = {"optimizer": ADAM, "steps": steps, "callback": callback, "chunk": 10}
    if path is not None:
        options["checkpoints"] = Checkpoints(path, of=of, report=report)
    model, key = regression(), jax.device_put(KEYS[0])
    if many:
        options |= {"in_axes": (None, None, 0), "key": jax.device_put(KEYS)}
        objective = ak.HoldOut(np.array([2, 5, 7]), at_most=7)
        return ak.fit_many(model, x, y, objective=objective, **options), seen
    return ak.fit(model, x, y, objective=ak.HoldOut(5), key=key, **options), seen


@pytest.fixture
def save_every_chunk(monkeypatch):
    """Checkpoints are written whatever time that takes."""
    monkeypatch.setattr(MODULE, "MAX_WRITE_SHARE", np.inf)


@pytest.mark.usefixtures("save_every_chunk")
@pytest.mark.parametrize("many", [False, slow(True)], ids=["fit", "fit_many"])
def test_stopped_training_resumes_to_the_same_bits(tmp_path, many):
    whole, _ = trained(many=many)
    for stop in (10, 40):
        path = tmp_path / str(stop) / "fit"
        with pytest.raises(Stop):
            trained(path, stop=stop, many=many)
        again, seen = trained(path, many=many)
        assert seen[0] == (stop - 10, stop - 10) if stop > 10 else (10, 10)
        jax.tree.map(np.testing.assert_array_equal, again, whole)
        finished, seen = trained(path, many=many)
        assert seen == [(53, 53)]
        np.testing.assert_array_equal(finished.history["loss"], whole.history["loss"])


@pytest.mark.usefixtures("save_every_chunk")
def test_last_two_checkpoints_are_kept_and_continued(tmp_path):
    trained(tmp_path / "fit")
    names = [file.name for file in Checkpoints(tmp_path / "fit").files()]
    assert names == ["fit-000000050.ckpt", "fit-000000053.ckpt"]
    longer, seen = trained(tmp_path / "fit", steps=73)
    assert seen[0] == (53, 53)
    assert longer.history["loss"].shape == (73,)
    assert_raises("73 steps", trained, tmp_path / "fit")


def damage(how, older, newest):
    """Damages the newest of two checkpoints."""
    content = newest.read_bytes()
    if how == "truncated":
        newest.write_bytes(content[: len(content) // 2])
    elif how == "bit flipped":
        newest.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif how == "empty":
        newest.write_bytes(b"")
    elif how == "copy of the older":
        newest.write_bytes(older.read_bytes())
    elif how == "of other data":
        trained(newest.parent / "other" / "fit", seed=1, steps=50)
        (newest.parent / "other" / "fit-000000050.ckpt").replace(newest)


@pytest.mark.usefixtures("save_every_chunk")
@pytest.mark.parametrize(
    "how", ["truncated", "bit flipped", "empty", "copy of the older", "of other data"]
)
def test_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, how):
    whole, _ = trained()
    trained(tmp_path / "fit", steps=50)
    files = Checkpoints(tmp_path / "fit").files()
    damage(how, *files)
    reports = []
    again, seen = trained(tmp_path / "fit", report=reports.append)
    assert seen[0] == (40, 40)
    (report,) = reports
    assert "fit-000000050.ckpt" in report
    assert "fit-000000050.ckpt.aside" in report
    assert (tmp_path / "fit-000000050.ckpt.aside").exists()
    np.testing.assert_array_equal(again.model.kernel.lengthscale, whole.model.kernel.lengthscale)


@pytest.mark.usefixtures("save_every_chunk")
def test_checkpoints_of_another_label_are_not_used(tmp_path):
    trained(tmp_path / "fit", steps=20, of="adam 0.05")
    with pytest.warns(CheckpointWarning, match=r"fit-.*\.ckpt"):
        _, seen = trained(tmp_path / "fit", steps=20, of="adam 0.1")
    assert seen[0] == (10, 10)
    assert len(list(tmp_path.glob("*.aside"))) == 2


def test_checkpoints_take_at_most_a_twentieth_of_the_time(tmp_path, monkeypatch):
    written, clock = [], iter(np.arange(0.0, 1e6, 1.0))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    record = lambda path, tree, about: written.append(about["done"])  # noqa: E731
    monkeypatch.setattr(MODULE, "write_tree", record)
    checkpoints = Checkpoints(tmp_path / "fit")
    for done in range(100):  # each look at the clock, and each write, takes a second
        checkpoints.save(done, np.zeros(2), [])
    assert written[:3] == [0, 20, 40]
    checkpoints.save(100, np.zeros(2), [], last=True)
    assert written[-1] == 100


def test_checkpoints_of_a_search_are_refused(tmp_path):
    options = {"objective": ak.LeaveOneOut(), "checkpoints": Checkpoints(tmp_path / "fit")}
    assert_raises(r"checkpoints=.*optimizer", ak.fit, regression(), *rows(0), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"model": regression(rule=ak.Softmax(2.0))}, id="temperature"),
        pytest.param({"objective": ak.HoldOut(6)}, id="hold-out size"),
        pytest.param({"optimizer": optax.adam(0.5)}, id="learning rate"),
        pytest.param({"objective": ak.HoldOut(5, score=ak.losses.absolute_error)}, id="score"),
        pytest.param({"model": ak.KernelRegression(ak.Laplace(1.0))}, id="kernel"),
        pytest.param({"model": regression(order=1)}, id="polynomial order"),
        pytest.param({"model": regression(on_empty="mean")}, id="policy"),
    ],
)
def test_checkpoints_of_another_training_are_not_used(tmp_path, changed):
    """Though all arrays have the same names and shapes, and the same values at first."""
    trained(tmp_path / "fit")
    x, y = rows(0)
    options = {"model": regression(), "objective": ak.HoldOut(5), "optimizer": ADAM, "steps": 7}
    options |= {"key": jax.device_put(KEYS[0])} | changed
    with pytest.warns(CheckpointWarning, match=r"fit-.*\.ckpt"):
        again = ak.fit(x=x, y=y, checkpoints=Checkpoints(tmp_path / "fit"), **options)
    alone = ak.fit(x=x, y=y, **options)
    jax.tree.map(np.testing.assert_array_equal, again, alone)
