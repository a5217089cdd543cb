"""All studies and benchmarks by name: a config names one by `study:`."""

import functools
import importlib
import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

if TYPE_CHECKING:
    from ..studies import Study

_PLACES = {
    "additive": "studies.additive.Additive",
    "associative_recall": "studies.associative_recall.AssociativeRecall",
    "bench_attention": "benchmarks.attention.BenchAttention",
    "bench_gcv": "benchmarks.gcv.BenchGCV",
    "bench_gpu": "benchmarks.gpu.BenchGPU",
    "bench_latency": "benchmarks.latency.BenchLatency",
    "bench_masks": "benchmarks.masks.BenchMasks",
    "bench_memory": "benchmarks.memory.BenchMemory",
    "bench_modules": "benchmarks.modules.BenchModules",
    "bench_recurrent": "benchmarks.recurrent.BenchRecurrent",
    "bench_regression": "benchmarks.regression.BenchRegression",
    "bench_selection": "benchmarks.selection.BenchSelection",
    "bench_sweep": "benchmarks.sweeps.BenchSweep",
    "bench_training": "benchmarks.training.BenchTraining",
    "boundary": "studies.boundary.Boundary",
    "cache": "studies.cache.Cache",
    "context_temperature": "studies.context_temperature.ContextTemperature",
    "coverage": "studies.coverage.Coverage",
    "data": "studies.data.ShowData",
    "derivation": "studies.derivation.Derivation",
    "head_ensemble": "studies.head_ensemble.HeadEnsemble",
    "heads": "studies.heads.Heads",
    "heteroskedastic": "studies.heteroskedastic.Heteroskedasticity",
    "holdout": "studies.holdout.HoldOut",
    "hypothesis_tests": "studies.hypothesis_tests.HypothesisTests",
    "in_context": "studies.in_context.InContext",
    "induction": "studies.induction.Induction",
    "learned_window": "studies.learned_window.LearnedWindow",
    "leave_one_out": "studies.leave_one_out.LeaveOneOut",
    "lengthscales": "studies.lengthscales.Lengthscales",
    "million": "benchmarks.million.Million",
    "peers": "benchmarks.peers.Peers",
    "projection": "studies.projection.Projection",
    "regression": "studies.regression.Regression",
    "retrieval_rule": "studies.retrieval_rule.RetrievalRule",
    "robust": "studies.robust.Robust",
    "scaling": "studies.scaling.Scaling",
    "seeds": "studies.seeds.Seeds",
    "sentence": "studies.sentence.Sentences",
    "temperature": "studies.temperature.Temperature",
    "test_time_regression": "studies.test_time_regression.TestTimeRegression",
    "zoo": "studies.zoo.Zoo",
}


class _Studies(Mapping[str, "type[Study]"]):
    """The class of each study; its module is imported as it is asked for."""

    def __getitem__(self, name: str) -> "type[Study]":
        module, _, kind = _PLACES[name].rpartition(".")
        return getattr(importlib.import_module(f"experiments.{module}"), kind)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


STUDIES = _Studies()


def json_schema() -> dict[str, Any]:
    """The JSON schema of a config of any study."""
    annotated: Any = Annotated
    study = functools.reduce(operator.or_, STUDIES.values())
    return TypeAdapter(annotated[study, Field(discriminator="study")]).json_schema()
