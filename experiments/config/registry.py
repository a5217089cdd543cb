"""All studies and benchmarks by name: a config names one by `study:`.

The study NAME is the class in `studies/NAME.py` whose field `study` is this name; `bench_NAME` is
in `benchmarks/NAME.py`.
"""

import functools
import importlib
import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Field, TypeAdapter

if TYPE_CHECKING:
    from ..studies import Study

_LISTED = """
additive associative_recall bench_accuracy bench_attention bench_gcv bench_growth
bench_latency bench_masks bench_modules bench_recurrent bench_regression bench_selection
bench_training boundary cache context_temperature coverage data derivation
head_ensemble heads heteroskedastic holdout hypothesis_tests in_context in_context_kernel
induction learned_window leave_one_out lengthscales local_polynomials peers projection regression
residual_attention retrieval_rule scaling seeds sentence state_precision temperature
test_time_regression zoo
"""
_NAMES = _LISTED.split()
_BENCHMARKS = ("peers",)  # beside those whose names say so
OWN: dict[str, "type[Study]"] = {}  # the user's, by `register`


@functools.cache
def _study_of_module(name: str) -> "type[Study]":
    """Returns the class of a study of ours."""
    module = name.removeprefix("bench_")
    room = "benchmarks" if module != name or name in _BENCHMARKS else "studies"
    for kind in vars(importlib.import_module(f"...{room}.{module}", __name__)).values():
        field = getattr(kind, "model_fields", {}).get("study")
        if field is not None and get_args(field.annotation) == (name,):
            return kind
    raise LookupError(f"no class of experiments/{room}/{module}.py is the study {name}")


class _Studies(Mapping[str, "type[Study]"]):
    """The class of each study; its module is imported as it is asked for."""

    def __getitem__(self, name: str) -> "type[Study]":
        if name in OWN:
            return OWN[name]
        if name not in _NAMES:
            raise KeyError(name)
        return _study_of_module(name)

    def __iter__(self) -> Iterator[str]:
        return iter([*_NAMES, *OWN])

    def __len__(self) -> int:
        return len(_NAMES) + len(OWN)


STUDIES = _Studies()


def register(kind: "type[Study]") -> None:
    """Lets configs say `study: NAME`, the one value of the field `study` of a class.

    **Raises:** `ValueError` for a field of another type, and for the name of a study of ours.
    """
    names = get_args(kind.model_fields["study"].annotation)
    if len(names) != 1 or names[0] in _NAMES:
        raise ValueError(
            f'{kind.__name__} needs the field study: Literal["NAME"], of a name that is not taken'
        )
    OWN[names[0]] = kind


def json_schema() -> dict[str, Any]:
    """The JSON schema of a config of any study."""
    annotated: Any = Annotated
    study = functools.reduce(operator.or_, STUDIES.values())
    return TypeAdapter(annotated[study, Field(discriminator="study")]).json_schema()
