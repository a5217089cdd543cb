"""Attention is kernel regression: one call, `attend`, and everything that is built on it.

| to | names |
|---|---|
| sum | `attend`, `attention_weights`, `votes`; layers: `MultiheadAttention`, `SelfAttention` |
| choose weights | kernels (`Gaussian`), priors (`Causal`), rules (`Softmax`), `methods` |
| model | `KernelRegression`, `LocalLikelihood`, `AdditiveRegression`, ... `density` |
| fit | `fit`, `fit_many`, `choose`; objectives: `LeaveOneOut`, `HoldOut`, `AICc`, ... |
| say how certain | `bands`, `conformal`, `quantiles`, `noise_variance`, `summarise` |
| draw, use elsewhere | `plot`, `sklearn`, `save`, `load` |

More kernels are in `ak.kernels`, more priors in `ak.priors`, and so on: `help(ak.kernels)`.
"""

from lazy_loader import attach_stub

__version__ = "0.1.0"

# each package on first use; what is in which is in the file `__init__.pyi`
_on_first_use, __dir__, _ = attach_stub(__name__, __file__)


def __getattr__(name: str):
    try:
        return _on_first_use(name)
    except AttributeError:
        from ._core import hints  # noqa: PLC0415

    known = {of: None if of in ("plot", "sklearn") else _on_first_use(of) for of in __dir__()}
    hint = hints.name_hint(name, known)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
