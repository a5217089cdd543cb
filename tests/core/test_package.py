"""The house: which room may use which, and what importing the package brings in."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attnkernel as ak

ROOT = Path(__file__).parents[2]
FLOORS = {
    "_batches": 0,
    "_checks": 0,
    "_structure": 0,
    "_save": 1,
    "_levels": 0,
    "_distinct": 0,
    "kernels": 1,
    "priors": 1,
    "_rules": 1,
    "data": 1,
    "_frames": 1,
    "_heads": 1.5,
    "methods": 2,
    "_arguments": 2.1,
    "_auto": 2.2,
    "_attend": 2.5,
    "models": 3,
    "fit": 4,
    "plot": 5,
    "_estimator": 5,
    "sklearn": 5.5,
}


def room(path: Path) -> str:
    return path.relative_to(ROOT / "attnkernel").parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """The rooms of the package that a file imports, by relative imports."""
    depth = len(path.relative_to(ROOT / "attnkernel").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.split(".")[0] for name in names}
    return found


FILES = sorted(
    p
    for p in (ROOT / "attnkernel").rglob("*.py")
    if p.parent != ROOT / "attnkernel" or p.stem != "__init__"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_uses_only_floors_below(path):
    for used in imported_rooms(path):
        assert FLOORS[used] < FLOORS[room(path)], f"{path} imports {used}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_package_never_imports_experiments(path):
    modules = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module or "")
    assert not any(module.startswith("experiments") for module in modules)


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


def test_public_names_say_what_they_are():
    """Every public name has a docstring; a class that is meant to be made says its equation."""
    for name in dir(ak):
        thing = getattr(ak, name)
        if not name.startswith("_") and callable(thing):
            assert thing.__doc__, name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        ak.atend  # noqa: B018
