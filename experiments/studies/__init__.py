"""The studies: one module each. A config names one by `study:`."""

from typing import Annotated, get_args

import pydantic

from ..parts import Study
from .bench_attention import BenchAttention
from .bench_memory import BenchMemory
from .bench_regression import BenchRegression
from .bench_selection import BenchSelection
from .bench_training import BenchTraining
from .data import ShowData
from .derivation import Derivation
from .heads import Heads
from .holdout import HoldOut
from .leave_one_out import LeaveOneOut
from .lengthscales import Lengthscales
from .million import Million
from .retrieval_rule import RetrievalRule
from .seeds import Seeds
from .temperature import Temperature

AnyStudy = Annotated[
    BenchAttention
    | BenchMemory
    | BenchRegression
    | BenchSelection
    | BenchTraining
    | Derivation
    | Heads
    | HoldOut
    | LeaveOneOut
    | Lengthscales
    | Million
    | RetrievalRule
    | Seeds
    | ShowData
    | Temperature,
    pydantic.Field(discriminator="study"),
]

STUDIES: dict[str, type[Study]] = {
    get_args(study.model_fields["study"].annotation)[0]: study
    for study in get_args(get_args(AnyStudy)[0])
}
