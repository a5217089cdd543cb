"""Kernels in configs: the built-in ones by name, and the user's own, of Python or of a file."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
import experiments
from experiments.__main__ import main
from experiments.kernels import BUILT_IN, KERNELS
from experiments.results import Run
from experiments.runner import load

HOLDOUT = """\
study: holdout
precision: float64
data: {source: heteroskedastic, n: 20}
training: {steps: 4}
hold_out: [1, 5]
"""
LEAVE_ONE_OUT = """\
study: leave_one_out
data: {source: bundled, name: mcycle}
"""
OTHERS = {
    "heads": "study: heads\ndata: {source: heteroskedastic, n: 20}\ntraining: {steps: 4}\n"
    "heads: [1, 2]\n",
    "seeds": "study: seeds\ndata: {source: heteroskedastic, n: 20}\ntraining: {steps: 4}\n"
    "hold_out: [5]\nseeds: 2\n",
    "lengthscales": "study: lengthscales\ndata: {source: heteroskedastic, n: 20}\n"
    "lengthscales: [0.5, 1]\n",
}
MINE = """\
import jax.numpy as jnp
import attnkernel as ak

class RoundTop(ak.kernels.Scaled):
    def log_pair(self, q, k):
        half = 0.5 * (q - k) / self.lengthscale
        return -2.0 * jnp.sum(jnp.logaddexp(half, -half))
"""


class RoundTop(ak.kernels.Scaled):
    def log_pair(self, q, k):
        half = 0.5 * (q - k) / self.lengthscale
        return -2.0 * jnp.sum(jnp.logaddexp(half, -half))


@pytest.fixture(autouse=True)
def _at_home(tmp_path, monkeypatch):
    """Configs and a file of kernels; what a test registers is forgotten."""
    known = dict(KERNELS)
    monkeypatch.chdir(tmp_path)
    for name, text in {"holdout": HOLDOUT, "leave_one_out": LEAVE_ONE_OUT, **OTHERS}.items():
        Path(f"{name}.yaml").write_text(text)
    Path("mine.py").write_text(MINE)
    yield
    KERNELS.clear()
    KERNELS.update(known)


def read(path):
    return json.loads(Path(path).read_text())


def run(study, *more, out="out", code=0):
    assert main(["run", f"{study}.yaml", "--out", out, "--quiet", *more]) == code
    return read(f"{out}/summary.json")


def complaint(capsys, *command):
    """The one line that a wrong command gives: exit code 2 and nothing else."""
    assert main(list(command)) == 2
    out, err = capsys.readouterr()
    assert (out, "Traceback" in err) == ("", False)
    (line,) = err.splitlines()
    return line


# --- built in ---


def test_all_kernels_with_a_lengthscale_have_a_name():
    kinds = [getattr(ak, name) for name in dir(ak) if isinstance(getattr(ak, name), type)]
    with_lengthscale = {kind for kind in kinds if issubclass(kind, ak.kernels.Scaled)}
    assert set(BUILT_IN.values()) == with_lengthscale
    assert {"gaussian", "rational_quadratic", "matern32", "epanechnikov"} <= set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_kernel_of_a_name(name, x64):
    model = load(Path("holdout.yaml"), [f"model.kernel={name}"]) if name != "boxcar" else None
    model = (model or load(Path("lengthscales.yaml"), ["model.kernel=boxcar"])).model
    x = jnp.linspace(-1.0, 1.0, 7)[:, None]
    expected = BUILT_IN[name](0.7).pairwise(x, x)
    np.testing.assert_array_equal(model.make(0.7).kernel.pairwise(x, x), expected)


def test_fit_of_another_kernel_is_the_one_of_python(x64):
    found = run("leave_one_out", "model.kernel=matern52")
    data = ak.data.load("mcycle")
    model = ak.KernelRegression(ak.Matern52(1.0))
    fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
    assert (found["kernel"], found["convention"]) == ("matern52", "standard")
    assert found["lengthscale"] == float(fit.model.kernel.lengthscale)
    assert found["criterion"] == float(fit.loss)


@pytest.mark.parametrize("study", ["holdout", "leave_one_out", "heads", "seeds", "lengthscales"])
def test_every_study_of_a_model_takes_another_kernel(study):
    found = run(study, "model.kernel=rational_quadratic")
    assert found["kernel"] == "rational_quadratic"
    others = {"holdout": "fits", "heads": "table", "leave_one_out": "minima"}
    if study in others:  # what else was fitted is told
        assert all("log_alpha" in row for row in found[others[study]])


def test_bounds_of_a_lengthscale_leave_the_rest_free():
    free = run("leave_one_out", "model.kernel=rational_quadratic", "bounds=[0.1, 100]")
    assert 0.1 < free["lengthscale"] < 100
    assert free["log_alpha"] != 0.0


@pytest.mark.parametrize("study", ["holdout", "leave_one_out", "heads", "seeds"])
def test_no_fit_moves_a_boxcar(study, capsys):
    line = complaint(capsys, "show", f"{study}.yaml", "model.kernel=boxcar")
    assert "model.kernel: boxcar has no slope" in line


def test_conventions_are_of_the_gaussian(capsys):
    with Path("holdout.yaml").open("a") as file:
        file.write("model:\n  convention: unhalved\n  kernel: cauchy\n")
    line = complaint(capsys, "show", "holdout.yaml")
    assert line.startswith("holdout.yaml:7: model.convention: unhalved is a convention of the gau")
    assert main(["show", "holdout.yaml", "model.kernel=gaussian"]) == 0


def test_a_compact_kernel_may_predict_where_it_reaches_nothing():
    start = ["model.kernel=triangular", "model.lengthscale=0.01"]
    notes = run("holdout", *start, code=1)["notes"]
    assert any("diverged" in note for note in notes)
    fits = run("holdout", *start, "model.on_empty=nearest", out="nearest")
    assert not any("diverged" in note for note in fits["notes"])


def test_schema_lists_the_built_in_names(capsys):
    assert main(["schema"]) == 0
    of_kernel = json.loads(capsys.readouterr().out)["$defs"]["Model"]["properties"]["kernel"]
    assert of_kernel["anyOf"][0]["enum"] == list(BUILT_IN)


# --- one's own ---


def test_registered_in_python(x64):
    experiments.register("mine", RoundTop)
    found = run("leave_one_out", "model.kernel=mine")
    data = ak.data.load("mcycle")
    model = ak.KernelRegression(RoundTop(1.0))
    fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
    assert found["kernel"] == "mine"
    assert found["lengthscale"] == float(fit.model.kernel.lengthscale)


def test_registered_anew_takes_the_place(x64):
    experiments.register("mine", ak.Laplace)
    experiments.register("mine", RoundTop)
    assert type(load(Path("holdout.yaml"), ["model.kernel=mine"]).model.make().kernel) is RoundTop


class Fixed(ak.Kernel):
    def log_pair(self, q, k):
        return -jnp.sum(jnp.abs(q - k))


class Demanding(RoundTop):
    power: float

    def __init__(self, lengthscale, power):
        super().__init__(lengthscale)
        self.power = power


@pytest.mark.parametrize(
    ("name", "kernel", "sentence"),
    [
        ("gaussian", RoundTop, "'gaussian' is the name of a built-in kernel"),
        ("My kernel", RoundTop, "expected a name in small letters"),
        ("mine", Fixed, "expected a subclass of ak.kernels.Scaled"),
        ("mine", ak.kernels.Radial, "expected a subclass of ak.kernels.Scaled with a log_pair"),
        ("mine", ak.Gaussian(1.0), "expected a subclass of ak.kernels.Scaled"),
        ("mine", Demanding, "Demanding must be made of a lengthscale alone, Demanding(1.0): "),
    ],
)
def test_what_cannot_be_registered(name, kernel, sentence):
    known = dict(KERNELS)
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        experiments.register(name, kernel)
    assert known == KERNELS


def test_unknown_name_is_told_with_ones_own(capsys):
    command = ["show", "holdout.yaml", "model.kernel=round_tip"]
    assert "--kernels FILE.py" in complaint(capsys, *command)
    line = complaint(capsys, *command, "--kernels", "mine.py")
    assert "did you mean 'round_top'?" in line
    assert "known here: gaussian, " in line


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "expected a file of Python"),
        ("x = 1\n", "there is no kernel in it"),
        ("from attnkernel import Gaussian\n", "there is no kernel in it"),
        ("x = y\n", "cannot be run: NameError: name 'y' is not defined"),
        ("def f(:\n", "cannot be run: SyntaxError"),
        ("raise SystemExit(3)\n", "cannot be run: SystemExit: 3"),
        (MINE.replace("RoundTop", "Laplace"), "'laplace' is the name of a built-in kernel"),
    ],
)
def test_a_file_that_gives_no_kernel(text, sentence, capsys):
    if text is not None:
        Path("wrong.py").write_text(text)
    for command in (["run", "holdout.yaml"], ["validate", "holdout.yaml"], ["resume", "nothing"]):
        line = complaint(capsys, *command, "--kernels", "wrong.py")
        assert line.startswith("--kernels wrong.py: ")
        assert sentence in line
    assert not Path("results").exists()


def test_a_file_may_register_by_itself():
    Path("mine.py").write_text(
        "import attnkernel as ak, experiments\nexperiments.register('other', ak.Cauchy)\n"
    )
    assert run("holdout", "model.kernel=other", "--kernels", "mine.py")["kernel"] == "other"


def test_config_of_a_run_is_read_again(capsys):
    first = run("holdout", "model.kernel=round_top", "--kernels", "mine.py")
    again = ["run", "out/config.yaml", "--out", "again", "--quiet"]
    assert main([*again, "--kernels", "mine.py"]) == 0
    assert read("again/summary.json") == first
    assert list(read("out/meta.json")["kernels"]) == ["round_top"]
    assert main(["validate", "out/config.yaml", "--kernels", "mine.py"]) == 0
    KERNELS.pop("round_top")
    capsys.readouterr()
    assert "unknown name 'round_top'" in complaint(capsys, "validate", "out/config.yaml")
    assert "unknown name 'round_top'" in complaint(capsys, "resume", "out")


def test_a_stopped_run_goes_on_with_its_kernel(monkeypatch, capsys):
    more = ["model.kernel=round_top", "training.steps=8", "--kernels", "mine.py"]
    whole = run("holdout", *more)
    with monkeypatch.context() as patch:

        def stop(*_, **__):
            raise KeyboardInterrupt

        patch.setattr(Run, "table", stop)
        assert main(["run", "holdout.yaml", "--out", "b", "--quiet", *more]) == 130
    assert main(["resume", "b", "--quiet", "--kernels", "mine.py"]) == 0
    assert read("b/summary.json") == whole
    assert "changed" not in capsys.readouterr().err

    with monkeypatch.context() as patch:
        patch.setattr(Run, "table", stop)
        assert main(["run", "holdout.yaml", "--out", "c", "--quiet", *more]) == 130
    Path("mine.py").write_text(MINE.replace("0.5 *", "0.25 *"))
    KERNELS.pop("round_top")
    assert main(["resume", "c", "--quiet", "--kernels", "mine.py"]) == 0
    said = capsys.readouterr().err
    assert "since this run began, kernels changed" in said
    assert "is of something else" in said  # its checkpoints: of the kernel as it was
    assert read("c/summary.json") != whole


def test_a_sweep_of_kernels(monkeypatch, capsys):
    """As one program, and as processes, which are told of the file."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    mine = ["--kernels", "mine.py", "--quiet"]
    command = ["sweep", "holdout.yaml", "model.kernel=laplace,round_top", "seed=1,2", *mine]
    assert main([*command, "--out", "together"]) == 0
    apart = ["sweep", "lengthscales.yaml", "model.kernel=round_top", "seed=1,2", *mine]
    assert main([*apart, "--out", "apart"]) == 0
    assert len(list(Path("apart/members").iterdir())) == 2
    found = {
        group["asked"].get("model.kernel"): group["numbers"]["fits.0.leave_one_out"]
        for of in ("together", "apart")
        for group in read(f"{of}/summary.json")["groups"]
    }
    for name, study in (("laplace", "holdout"), ("round_top", "holdout"), (None, "lengthscales")):
        kernel = f"model.kernel={name or 'round_top'}"
        alone = [run(study, kernel, f"seed={s}", out=f"{name}{s}") for s in (1, 2)]
        mean = np.mean([one["fits"][0]["leave_one_out"] for one in alone])
        assert found[name]["mean"] == pytest.approx(mean, rel=1e-9)
    # members of a kernel that changed are others; those of the rest are there
    Path("mine.py").write_text(MINE.replace("0.5 *", "0.25 *"))
    KERNELS.pop("round_top")
    capsys.readouterr()
    assert main([*command[:-1], "--out", "together"]) == 0
    assert "4 members, 4 of this shard, 2 of them to do" in capsys.readouterr().out
