"""The package: its layers, and what `import attnkernel` brings in."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "attnkernel"
X = np.linspace(0.0, 1.0, 7)[:, None]
MODEL = ak.KernelRegression(ak.Gaussian(0.3))
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def mcycle():
    data = ak.data.load("mcycle")
    return data.x, data.y


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def absolute_imports(path: Path) -> set[str]:
    """The top-level packages that a file imports by their names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def test_packages_import_only_layers_below_their_own():
    """The contracts of import-linter in pyproject.toml; no module is outside a layer."""
    done = run(Path(sys.executable).with_name("lint-imports"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_function_shadows_a_package():
    packages = {path.parent.name for path in FILES if path.name == "__init__.py"} - {"_core"}
    assert [name for name in packages if not inspect.ismodule(getattr(ak, name))] == []


def test_the_package_imports_neither_experiments_nor_itself_by_name():
    wrong = [path for path in FILES if absolute_imports(path) & {"experiments", "attnkernel"}]
    assert wrong == []


@pytest.mark.cli
def test_import_brings_in_nothing_heavy():
    heavy = "matplotlib pydantic pandas sklearn yaml rich experiments scipy.stats"
    script = f"import sys, attnkernel; print([m for m in {heavy!r}.split() if m in sys.modules])"
    done = run(sys.executable, "-c", script)
    assert (done.returncode, done.stdout.strip()) == (0, "[]")


def test_the_compiler_does_not_read_what_it_has_overwritten():
    """jax 0.11.1 does, on a CPU (openxla/xla#49176): pyproject.toml leaves it out."""
    rows = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    shifted = jax.jit(lambda a: a.at[1:].set(a[:-1]).reshape(2, 6))(rows)
    np.testing.assert_array_equal(shifted, np.concatenate([rows[:1], rows[:-1]]).reshape(2, 6))


def test_the_compiler_adds_products_rightly():
    """jax 0.10.2 does not, on a CPU, beyond 16 384 columns (jax-ml/jax#39103): left out too."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 1, 20_000)), rng.normal(size=(3, 2, 20_000))
    ours = jax.jit(lambda a, b: jnp.sum(a * b, axis=0))(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_allclose(ours, np.sum(a * b, axis=0), atol=1e-5)


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda: ak.RBF, "try ak.Gaussian"),
        (lambda: ak.Matern32, "try ak.kernels.Matern32"),
        (lambda: ak.KernelRegresion, "try ak.KernelRegression"),
        (lambda: ak.attend(X, X, X, kernel=ak.Gaussian(), mask=None), "MaskArray"),  # pyright: ignore[reportCallIssue]
        (lambda: ak.Gaussian(bandwidth=0.3), "lengthscale"),  # pyright: ignore[reportCallIssue]
        (lambda: ak.KernelRegression(bandwidth=0.3), "lengthscale"),  # pyright: ignore[reportCallIssue]
        (lambda: ak.attend(X, X, X, kernel=ak.Gaussian(), prior=X > 0), "MaskArray"),
        (lambda: ak.fit(X, X[:, 0], MODEL), r"ak.fit\(model, x, y\)"),
        (lambda: ak.fit(MODEL, *mcycle(), objective="gcv", starts=1).predict, r"fit\(x_new\)"),
        (lambda: ak.fit(MODEL, X, np.array(list("abcdefg"))), "KernelClassifier"),
    ],
)
def test_what_newcomers_ask_for_is_answered_by_the_right_word(as_users_run_it, ask, answer):
    with pytest.raises((AttributeError, TypeError, ValueError), match=answer):
        ask()
