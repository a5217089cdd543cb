"""The studies: one module each. A config names one by `study:`."""

from typing import Annotated, get_args

import pydantic

from ..parts import Study
from .bench_attention import BenchAttention
from .bench_gpu import BenchGPU
from .bench_memory import BenchMemory
from .bench_modules import BenchModules
from .bench_regression import BenchRegression
from .bench_selection import BenchSelection
from .bench_sweep import BenchSweep
from .bench_training import BenchTraining
from .boundary import Boundary
from .cache import Cache
from .coverage import Coverage
from .data import ShowData
from .derivation import Derivation
from .heads import Heads
from .heteroskedastic import Heteroskedasticity
from .holdout import HoldOut
from .in_context import InContext
from .induction import Induction
from .leave_one_out import LeaveOneOut
from .lengthscales import Lengthscales
from .million import Million
from .peers import Peers
from .projection import Projection
from .retrieval_rule import RetrievalRule
from .scaling import Scaling
from .seeds import Seeds
from .sentence import Sentences
from .temperature import Temperature
from .zoo import Zoo

AnyStudy = Annotated[
    BenchAttention
    | BenchGPU
    | BenchMemory
    | BenchModules
    | BenchRegression
    | BenchSelection
    | BenchSweep
    | BenchTraining
    | Boundary
    | Cache
    | Coverage
    | Derivation
    | Heads
    | Heteroskedasticity
    | HoldOut
    | InContext
    | Induction
    | LeaveOneOut
    | Lengthscales
    | Million
    | Peers
    | Projection
    | RetrievalRule
    | Scaling
    | Seeds
    | Sentences
    | ShowData
    | Temperature
    | Zoo,
    pydantic.Field(discriminator="study"),
]

STUDIES: dict[str, type[Study]] = {
    get_args(study.model_fields["study"].annotation)[0]: study
    for study in get_args(get_args(AnyStudy)[0])
}
