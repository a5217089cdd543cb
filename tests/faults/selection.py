"""Which test files reach a changed line: by coverage data, or by the static imports."""

import ast
import functools
import os
import re
from collections import Counter
from pathlib import Path

# folders of tests, lower layers first, and the package that each of them mirrors
PACKAGES = (
    *("_core", "kernels", "priors", "rules", "families", "losses", "data", "methods"),
    *("recurrent", "attention", "nn", "models", "objectives", "fitting", "inference"),
    *("plot", "sklearn"),
)
LAYERS = {name.removeprefix("_"): f"attnkernel.{name}" for name in PACKAGES}
LAYERS |= {"experiments": "experiments", "docs": "experiments.notebooks"}


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


@functools.cache
def imports_of(checkout: Path) -> dict[str, set[str]]:
    """The modules that each module of the library and of the experiments imports."""
    paths = [p for top in ("attnkernel", "experiments") for p in (checkout / top).rglob("*.py")]
    known = {module_of(path.relative_to(checkout).as_posix()): path for path in paths}
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
                names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
        found[module] = {name for name in names if name in known}
    return found


def by_imports(fault: dict, checkout: Path) -> list[str]:
    """Test files by the static imports: the mirrored folder, then those of importing modules."""
    changed, imports = module_of(fault["file"]), imports_of(checkout)
    reach, new = set(), {changed}
    while new:
        reach |= new
        new = {module for module, names in imports.items() if names & reach} - reach

    def closeness(folder: str) -> int:
        """The length of the mirrored name, if the changed module is in that package."""
        package = LAYERS[folder]
        return len(package) if is_in(changed, package) else 0

    folders = [
        folder
        for folder, package in LAYERS.items()
        if any(is_in(module, package) for module in reach)
    ]
    folders.sort(key=lambda folder: -closeness(folder))  # stable: else by layers
    words = set(re.findall(r"[a-z]{3,}", f"{Path(fault['file']).stem} {fault['name']}"))
    files: list[str] = []
    for folder in folders:
        here = sorted((checkout / "tests" / folder).glob("test_*.py"))
        here.sort(key=lambda path: -sum(word in path.stem for word in words))
        files += [path.relative_to(checkout).as_posix() for path in here]
    return files


def by_coverage(fault: dict, checkout: Path, data: Path) -> list[str]:
    """Test files that execute the changed function, by how many of their tests run the change."""
    import coverage  # noqa: PLC0415  only who measured it needs it

    source = (checkout / fault["file"]).read_text(encoding="utf-8")
    first = source[: source.index(fault["old"])].count("\n") + 1
    last = first + fault["old"].rstrip("\n").count("\n")
    functions = [
        range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    ]
    around = [lines for lines in functions if lines.start <= first and last < lines.stop]
    lines = min(around, key=len) if around else {line for each in functions for line in each}
    found = coverage.CoverageData(os.fspath(data))
    found.read()
    if found.measured_contexts() <= {""}:  # of --dist=worksteal without -n
        raise SystemExit(
            f"{data} says of no line which test ran it: pytest -n 2 --cov-context=test"
        )
    paths = [p for p in found.measured_files() if p.endswith(f"/{fault['file']}")]
    tests: dict[str, set[str]] = {}
    running: Counter[str] = Counter()
    by_line = found.contexts_by_lineno(paths[0]) if paths else {}
    for line, contexts in by_line.items():
        for context in contexts:
            file, colons, _ = context.partition("::")
            if colons and line in lines:
                tests.setdefault(file, set()).add(context)
                running[file] += first <= line <= last
    files = sorted(tests, key=lambda file: (-running[file], -len(tests[file])))
    return [file for file in files if (checkout / file).is_file()]


def test_files(fault: dict, checkout: Path, data: Path | None) -> list[str]:
    """The test files that may catch a fault, most likely first."""
    if data is None:
        return by_imports(fault, checkout)
    files = by_coverage(fault, checkout, data) or by_imports(fault, checkout)
    if fault["file"].startswith("experiments/"):  # whose commands are processes of their own
        files += [file for file in by_imports(fault, checkout) if file not in files]
    return files
