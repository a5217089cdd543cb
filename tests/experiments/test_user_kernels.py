"""Kernels in configs: built-in ones by name, and the user's, registered in Python or by a file."""

import inspect
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from outputs import read_csv, read_json

import attnkernel as ak
import experiments
from experiments.__main__ import main
from experiments.config.kernels import BUILT_IN, KERNELS
from experiments.config.registry import OWN
from experiments.runs.runner import load

pytestmark = pytest.mark.usefixtures("blank_figures")

DATA = "data: {source: heteroskedastic, n: 20}"
TRAINED = f"{DATA}\ntraining: {{steps: 4}}"
CONFIGS = {
    "holdout": f"study: holdout\nprecision: float64\n{TRAINED}\nhold_out: [1, 5]\n",
    "leave_one_out": f"study: leave_one_out\n{DATA}\n",
    "heads": f"study: heads\n{TRAINED}\nheads: [1, 2]\n",
    "seeds": f"study: seeds\n{TRAINED}\nhold_out: [5]\nseeds: 2\n",
    "lengthscales": f"study: lengthscales\n{DATA}\nlengthscales: [0.5, 1]\n",
}


class RoundTop(ak.kernels.Scaled):
    def log_pair(self, q, k):
        half = 0.5 * (q - k) / self.lengthscale
        return -2.0 * jnp.sum(jnp.logaddexp(half, -half))


MINE = "import jax.numpy as jnp\nimport attnkernel as ak\n\n" + inspect.getsource(RoundTop)
FILES = {f"{name}.yaml": text for name, text in CONFIGS.items()} | {"mine.py": MINE}


STUDY = """\
from typing import Literal
from experiments.studies import Study

class Squares(Study):
    study: Literal["squares"]
    value: float = 2.0

    def compute(self, key, monitor=None):
        return self.value**2

    def report(self, results, run):
        run.summary({"square": results})
"""


@pytest.fixture(autouse=True)
def forget_kernels():
    """Removes the kernels and studies that a test registers."""
    known = dict(KERNELS)
    yield
    OWN.clear()
    KERNELS.clear()
    KERNELS.update(known)


def run(study, *more, out="out", code=0):
    assert main(["run", f"{study}.yaml", "--out", out, "--quiet", *more]) == code
    return read_json(f"{out}/summary.json")


# --- built in ---


def test_all_kernels_with_a_lengthscale_have_a_name():
    kinds = {kind for kind in vars(ak.kernels).values() if isinstance(kind, type)}
    bases = {ak.kernels.Scaled, ak.kernels.Radial, ak.kernels.Compact}
    with_lengthscale = {kind for kind in kinds - bases if issubclass(kind, ak.kernels.Scaled)}
    assert set(BUILT_IN.values()) == with_lengthscale
    assert {"gaussian", "rational_quadratic", "matern32", "epanechnikov"} <= set(BUILT_IN)


def test_kernel_of_each_built_in_name(x64):
    for name, kind in BUILT_IN.items():
        config = "lengthscales" if name == "boxcar" else "holdout"
        made = load(Path(f"{config}.yaml"), [f"model.kernel={name}"]).model.make(0.7).kernel
        assert type(made) is kind
        assert float(made.lengthscale) == 0.7


@pytest.mark.parametrize("study", ["holdout", "leave_one_out", "heads", "seeds"])
def test_boxcar_cannot_be_fitted(study, error_of):
    assert "model.kernel: boxcar" in error_of("show", f"{study}.yaml", "model.kernel=boxcar")


def test_conventions_are_refused_for_other_kernels_than_the_gaussian(error_of):
    with Path("holdout.yaml").open("a") as file:
        file.write("model:\n  convention: unhalved\n  kernel: cauchy\n")
    line = error_of("show", "holdout.yaml")
    assert line.startswith("holdout.yaml:7: model.convention: unhalved ")
    assert "cauchy" in line
    assert main(["show", "holdout.yaml", "model.kernel=gaussian"]) == 0


def test_a_config_says_what_is_predicted_without_keys():
    model = load(Path("holdout.yaml"), ["model.on_empty=nearest"]).model.make(0.7)
    assert model.on_empty == "nearest"


# --- the user's ---


def test_kernel_registered_again_replaces_the_first(x64):
    experiments.register("mine", ak.Laplace)
    experiments.register("mine", RoundTop)
    assert type(load(Path("holdout.yaml"), ["model.kernel=mine"]).model.make().kernel) is RoundTop


class Fixed(ak.kernels.Kernel):
    def log_pair(self, q, k):
        return -jnp.sum(jnp.abs(q - k))


class Demanding(RoundTop):
    power: float

    def __init__(self, lengthscale, power):
        super().__init__(lengthscale)
        self.power = power


@pytest.mark.parametrize(
    ("name", "kernel", "message"),
    [
        ("gaussian", RoundTop, "'gaussian' .*built-in"),
        ("My kernel", RoundTop, "small letters.*'My kernel'"),
        ("mine", Fixed, r"subclass of ak\.kernels\.Scaled.*Fixed"),
        ("mine", ak.kernels.Radial, r"subclass of ak\.kernels\.Scaled.*log_pair.*Radial"),
        ("mine", ak.Gaussian(1.0), r"subclass of ak\.kernels\.Scaled.*Gaussian\("),
        ("mine", Demanding, r"Demanding\(1\.0\): .*power"),
    ],
)
def test_wrong_name_or_class_is_not_registered(name, kernel, message):
    known = dict(KERNELS)
    with pytest.raises(ValueError, match=message):
        experiments.register(name, kernel)
    assert known == KERNELS


def test_unknown_name_is_reported_with_the_names_of_the_users_kernels(error_of):
    command = ["show", "holdout.yaml", "model.kernel=round_tip"]
    assert "--kernels FILE.py" in error_of(*command)
    line = error_of(*command, "--kernels", "mine.py")
    assert "did you mean 'round_top'?" in line
    assert "known here: gaussian, " in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a file of Python"),
        ("from attnkernel import Gaussian\n", "there is no kernel in it"),
        ("x = y\n", "cannot be run: NameError: name 'y' is not defined"),
        ("raise SystemExit(3)\n", "cannot be run: SystemExit: 3"),
        (MINE.replace("RoundTop", "Laplace"), "'laplace' is the name of a built-in kernel"),
    ],
)
def test_file_without_a_kernel_is_refused(text, message, error_of):
    if text is not None:
        Path("wrong.py").write_text(text)
    for command in (["run", "holdout.yaml"], ["validate", "holdout.yaml"], ["resume", "nothing"]):
        (line,) = error_of(*command, "--kernels", "wrong.py").splitlines()
        assert line.startswith("--kernels wrong.py: ")
        assert message in line
    assert not Path("results").exists()


def test_file_may_register_a_kernel_by_itself(capsys):
    registers = "experiments.register('other', ak.kernels.Cauchy)"
    Path("mine.py").write_text(f"import attnkernel as ak, experiments\n{registers}\n")
    assert main(["show", "holdout.yaml", "model.kernel=other", "--kernels", "mine.py"]) == 0
    assert "kernel: other" in capsys.readouterr().out
    assert KERNELS["other"] is ak.kernels.Cauchy


def test_run_keeps_the_file_of_its_kernel_and_is_reproduced_with_it(error_of, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as for users
    run("lengthscales", "model.kernel=round_top", "--kernels", "mine.py")
    assert Path("out/kernels.py").read_text() == MINE
    KERNELS.pop("round_top")
    Path("mine.py").unlink()
    assert "add --kernels out/kernels.py" in error_of("reproduce", "out")
    assert "round_top" not in KERNELS  # nothing was run
    assert main(["reproduce", "out", "--quiet", "--kernels", "out/kernels.py"]) == 0


USERS = ["model.kernel=round_top", "training.steps=8", "--kernels", "mine.py"]


@pytest.mark.slow
def test_checkpoints_are_used_with_the_same_kernel_and_not_with_a_changed_one(capsys):
    whole = run("holdout", *USERS)

    def resumed():
        Path("out/status.json").write_text('{"state": "interrupted", "reason": "Ctrl-C"}')
        capsys.readouterr()
        assert main(["resume", "out", "--quiet", "--kernels", "mine.py"]) == 0
        return read_json("out/summary.json"), capsys.readouterr().err

    assert resumed() == (whole, "")
    Path("mine.py").write_text(MINE.replace("0.5 *", "0.25 *"))
    KERNELS.pop("round_top")
    changed, error = resumed()
    assert changed["fits"][0]["lengthscale"] != whole["fits"][0]["lengthscale"]
    assert "kernels changed" in error
    assert "training-000000008.ckpt belongs to another fit" in error


# --- studies by a file ---


@pytest.mark.slow
def test_a_study_by_a_file_is_run_reproduced_and_swept(home, capsys):
    (home / "own.py").write_text(STUDY)
    (home / "squares.yaml").write_text("study: squares\n")
    by_file = ("--studies", "own.py")
    assert run("squares", "value=3", *by_file)["square"] == 9.0
    assert Path("out/kernels.py").read_text() == STUDY
    assert main(["reproduce", "out", "--quiet", *by_file]) == 0
    of_second = ["--shard", "1/2", "--out", "many", *by_file]
    assert main(["sweep", "squares.yaml", "value=1,5", *of_second]) == 0
    assert [row["square"] for row in read_csv("many/members.csv")] == ["", "25.0"]
    OWN.clear()
    capsys.readouterr()
    assert main(["run", "squares.yaml"]) == 2
    assert "study: unknown name 'squares'" in capsys.readouterr().err
    (home / "own.py").write_text(STUDY.replace('"squares"', '"holdout"'))
    assert main(["run", "squares.yaml", *by_file]) == 2
    assert "Squares needs the field study: Literal" in capsys.readouterr().err
