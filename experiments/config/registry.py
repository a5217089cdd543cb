"""All studies and benchmarks by name: a config names one by `study:`."""

from typing import Annotated, get_args

import pydantic

from ..benchmarks.attention import BenchAttention
from ..benchmarks.gcv import BenchGCV
from ..benchmarks.gpu import BenchGPU
from ..benchmarks.latency import BenchLatency
from ..benchmarks.masks import BenchMasks
from ..benchmarks.memory import BenchMemory
from ..benchmarks.million import Million
from ..benchmarks.modules import BenchModules
from ..benchmarks.peers import Peers
from ..benchmarks.recurrent import BenchRecurrent
from ..benchmarks.regression import BenchRegression
from ..benchmarks.selection import BenchSelection
from ..benchmarks.sweeps import BenchSweep
from ..benchmarks.training import BenchTraining
from ..studies.additive import Additive
from ..studies.associative_recall import AssociativeRecall
from ..studies.boundary import Boundary
from ..studies.cache import Cache
from ..studies.context_temperature import ContextTemperature
from ..studies.coverage import Coverage
from ..studies.data import ShowData
from ..studies.derivation import Derivation
from ..studies.head_ensemble import HeadEnsemble
from ..studies.heads import Heads
from ..studies.heteroskedastic import Heteroskedasticity
from ..studies.holdout import HoldOut
from ..studies.hypothesis_tests import HypothesisTests
from ..studies.in_context import InContext
from ..studies.induction import Induction
from ..studies.learned_window import LearnedWindow
from ..studies.leave_one_out import LeaveOneOut
from ..studies.lengthscales import Lengthscales
from ..studies.projection import Projection
from ..studies.regression import Regression
from ..studies.retrieval_rule import RetrievalRule
from ..studies.robust import Robust
from ..studies.scaling import Scaling
from ..studies.seeds import Seeds
from ..studies.sentence import Sentences
from ..studies.study import Study
from ..studies.temperature import Temperature
from ..studies.test_time_regression import TestTimeRegression
from ..studies.zoo import Zoo

AnyStudy = Annotated[
    Additive
    | AssociativeRecall
    | BenchAttention
    | BenchGCV
    | BenchGPU
    | BenchLatency
    | BenchMasks
    | BenchMemory
    | BenchModules
    | BenchRecurrent
    | BenchRegression
    | BenchSelection
    | BenchSweep
    | BenchTraining
    | Boundary
    | Cache
    | ContextTemperature
    | Coverage
    | Derivation
    | HeadEnsemble
    | Heads
    | Heteroskedasticity
    | HoldOut
    | HypothesisTests
    | InContext
    | Induction
    | LearnedWindow
    | LeaveOneOut
    | Lengthscales
    | Million
    | Peers
    | Projection
    | Regression
    | RetrievalRule
    | Robust
    | Scaling
    | Seeds
    | Sentences
    | ShowData
    | Temperature
    | TestTimeRegression
    | Zoo,
    pydantic.Field(discriminator="study"),
]

STUDIES: dict[str, type[Study]] = {
    get_args(study.model_fields["study"].annotation)[0]: study
    for study in get_args(get_args(AnyStudy)[0])
}
