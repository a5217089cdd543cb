"""The first calls whose latency is timed, as `first_calls.yaml` declares them."""

from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

import yaml

from .fresh_process import Script

OURS, EQUINOX = "attnkernel", "Equinox"
CACHED = ", from disk"
PACKAGES = {  # of contenders that need not be installed
    "statsmodels": "statsmodels.nonparametric.kernel_regression",
    "statsmodels, lowess": "statsmodels.nonparametric.smoothers_lowess",
    "scikit-learn, neighbours": "sklearn.neighbors",
    "scikit-learn, Gaussian process": "sklearn.gaussian_process",
}
R_PACKAGES = {"R: np": "np", "R: KernSmooth": "KernSmooth", "R: locfit": "locfit"}
# order 0: one lengthscale per column, without a choice
CONTENDERS = (OURS, OURS + CACHED, f"{OURS}, float64", f"{OURS}, order 0", EQUINOX)
CONTENDERS += (EQUINOX + CACHED, *PACKAGES, *R_PACKAGES)
CPU, WALL, PROGRAMS, MEMORY = "CPU seconds", "seconds", "programs", "growth of memory"
COLUMNS = {CPU: "median", WALL: "wall", PROGRAMS: "compiled", MEMORY: "growth"}  # of a row


class Call(NamedTuple):
    """A first call: its contenders, and the most that ours may take of a measure."""

    label: str
    contenders: Mapping[str, Script]
    limit: float
    disk_limit: float | None = None  # with programs from a disk cache; None: not measured
    measure: str = CPU
    over: str | None = None  # the contender whose measure divides ours
    package: str | None = None  # without which no contender runs


def make_calls(length: int, rows: int, fits: int) -> dict[str, Call]:
    """All calls by name: attention to `length` tokens, a fit of `rows`, memory of `fits` fits."""
    text = (resources.files(__package__ or "") / "first_calls.yaml").read_text(encoding="utf-8")
    declared, names = yaml.safe_load(text), {"length": length, "rows": rows, "fits": fits}

    def expand(part: str) -> str:
        """Returns the text of lines, from their name or as they are."""
        found = declared["lines"].get(part, part)
        return found if isinstance(found, str) else "\n".join(map(expand, found))

    def make(name: str, fields: dict[str, Any]) -> Call:
        label = fields.pop("label", name.replace("_", " ")).format(**names)
        limits, is_process = fields.pop("limits"), fields.pop("is_process", False)
        rest = {key: fields.pop(key) for key in ("measure", "over", "package") if key in fields}
        scripts = {}
        for contender, parts in fields.items():
            *before, call = map(expand, parts)
            if is_process:
                before, call = [], "\n".join([*before, call])
            scripts[contender] = Script("\n".join(before), call, is_process, names)
        return Call(label, scripts, *limits, **rest)

    return {name: make(name, fields) for name, fields in declared["calls"].items()}
