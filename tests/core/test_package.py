"""The package: which subpackage may import which, and what `import attnkernel` brings in."""

import ast
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import attnkernel as ak

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "attnkernel"
# a module or subpackage imports only those of layers below its own
LAYERS = {
    "_sizes": 0,
    "_batches": 1,
    "_checks": 1,
    "_distinct": 1,
    "_levels": 2,
    "_mesh_axes": 1,
    "_structure": 1,
    "_frames": 2,
    "_parameters": 2,
    "_rules": 3,
    "_save": 2,
    "data": 2,
    "kernels": 3,
    "priors": 3,
    "_heads": 4,
    "methods": 5,
    "_arguments": 6,
    "_auto": 7,
    "_attend": 8,
    "models": 9,
    "fit": 10,
    "_estimator": 11,
    "plot": 11,
    "sklearn": 12,
}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def subpackage(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_subpackages(path: Path) -> set[str]:
    """The subpackages that a file imports, by relative imports."""
    depth = len(path.relative_to(PACKAGE).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.split(".")[0] for name in names}
    return found


def absolute_imports(path: Path) -> set[str]:
    """The top-level packages that a file imports by their names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def test_every_subpackage_has_a_layer():
    assert {subpackage(path) for path in FILES} == set(LAYERS)


def test_a_subpackage_imports_only_layers_below():
    wrong = [
        f"{path.relative_to(ROOT)} imports {used}"
        for path in FILES
        for used in imported_subpackages(path)
        if LAYERS[used] >= LAYERS[subpackage(path)]
    ]
    assert wrong == []


def test_the_package_imports_neither_experiments_nor_itself_by_name():
    wrong = [path for path in FILES if absolute_imports(path) & {"experiments", "attnkernel"}]
    assert wrong == []


@pytest.mark.cli
def test_import_brings_in_nothing_heavy():
    heavy = (
        "matplotlib",
        "pydantic",
        "pandas",
        "sklearn",
        "yaml",
        "rich",
        "experiments",
        "scipy.stats",
    )
    script = f"import sys, attnkernel; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_every_public_callable_has_a_docstring():
    for name in dir(ak):
        public = getattr(ak, name)
        if not name.startswith("_") and callable(public):
            assert public.__doc__, name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'atend'"):
        ak.atend  # noqa: B018


def test_the_compiler_does_not_read_what_it_has_overwritten():
    """jax 0.11.1 does, on a CPU (openxla/xla#49176): pyproject.toml leaves it out."""
    rows = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    shifted = jax.jit(lambda a: a.at[1:].set(a[:-1]).reshape(2, 6))(rows)
    np.testing.assert_array_equal(shifted, np.concatenate([rows[:1], rows[:-1]]).reshape(2, 6))
