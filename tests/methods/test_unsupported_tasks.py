"""What a method does not take, it names; `attend`, moments and states of sums refuse it."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from refusals import assert_raises

import attnkernel as ak
from attnkernel import priors
from attnkernel.attention import softmax_state
from attnkernel.kernels import Biweight, Cauchy, EluFeatures, RandomFeatures, SoftCapped
from attnkernel.methods import Fourier, Fused, Linear, Sharded, Sorted, Task
from attnkernel.rules import Uniform

N = 5
TASK = Task(ak.Gaussian(0.3), None, ak.Softmax(), N, N, 1, 1, *2 * [jnp.dtype("float32")])
SORTED, FINITE, SEGMENTS = Biweight(), EluFeatures(), priors.Segments(np.arange(N) // 2)
LEFT_OUT = {"kernel": SORTED, "prior": priors.ExcludeSelf()}
CUDNN, TPU = (Fused("bfloat16", platform=platform) for platform in ("cuda", "tpu"))
CAPPED = SoftCapped(ak.DotProduct(), ak.fixed(2.0))
FEATURES = eqx.filter_eval_shape(lambda: RandomFeatures(4, 2, key=jax.random.key(0)))
SYMBOLIC = dict(zip(("queries", "keys"), export.symbolic_shape("n, m"), strict=True))
NO_SYMBOLS = r"symbolic sizes of jax\.export; use Dense"
UNSUPPORTED = (
    (Fourier(), {"kernel": ak.Laplace(0.3)}, "Gaussian.*Laplace"),
    (Fourier(), {"dim": 4}, "1 to 3.*4"),
    (Fourier(), {"prior": ak.Causal()}, "HeldOut and ExcludeSelf.*causal"),
    (Fourier(), {"prior": ak.Window(2, 1)}, "takes no prior.*got Window"),
    (Fourier(), {"dim": 2, "degree": 1}, "one dimension, not 2"),
    (Fourier(), {"rule": ak.Softmax(log_sink_mass=0.0), "degree": 1}, "no sink"),
    (Fourier(), SYMBOLIC, NO_SYMBOLS),
    (Sorted(), {}, "Laplace, Boxcar, .* Triweight.*Gaussian"),
    (Sorted(), {"kernel": SORTED, "dim": 2}, "one dimension.*2"),
    (Sorted(), {"kernel": SORTED, "prior": ak.Causal()}, "HeldOut and ExcludeSelf.*causal"),
    (Sorted(), LEFT_OUT | {"queries": 3}, "same rows.*3 queries.*5 keys"),
    (Sorted(), {"kernel": SORTED, "rule": ak.Softmax(0.5)}, "Biweight.*temperature 1"),
    (Sorted(), {"kernel": SORTED, "rule": ak.Softmax(1.0)}, "Biweight.*temperature 1"),
    (Sorted(), SYMBOLIC | {"kernel": SORTED}, NO_SYMBOLS),
    (Linear(), {}, "Gaussian.*features="),
    (Linear(), {"kernel": Cauchy()}, "random features.*Cauchy"),
    (Linear(), {"kernel": FINITE, "prior": ak.Window(2, 0)}, r"HeldOut and Causal\(\).*got Window"),
    (Linear(), {"kernel": FINITE, "prior": ak.Causal(3)}, "got Causal of another offset"),
    (
        Linear(),
        {"kernel": FINITE, "prior": priors.ExcludeSelf()},
        "takes no prior.*excludes the row",
    ),
    (Linear(), {"kernel": FINITE, "rule": ak.Entmax(1.5)}, "Softmax.*Entmax"),
    (Linear(), {"kernel": FINITE, "rule": ak.Softmax(0.5)}, "finite rank.*temperature 1"),
    (Linear(FEATURES), {"dim": 3}, "2 dimensions.*3"),
    (Sharded(), {"rule": ak.Entmax(ak.fixed(2.0))}, "Entmax.*keys"),
    (Sharded(inner=Sorted()), {}, "Sorted.*kernels"),
    (Sharded(), SYMBOLIC, NO_SYMBOLS),
    (Fused(), {}, "cpu.*ak.methods.Blockwise"),
    (Fused(platform="tpu"), {}, "takes bfloat16, not float32.*Blockwise"),
    (Fused(platform="cuda"), {}, "takes bfloat16 and float16, not float32.*Blockwise"),
    (TPU, {"kernel": ak.Epanechnikov(0.3)}, "DotProduct, and SoftCapped.*got Epanechnikov$"),
    (CUDNN, {"kernel": CAPPED}, "Gaussian and DotProduct; got SoftCapped$"),
    (CUDNN, {"rule": Uniform()}, "Softmax.*Uniform"),
    (CUDNN, {"prior": ak.Causal(1)}, "got Causal of another offset"),
    (CUDNN, {"prior": ak.Window(3, 3)}, "to the left alone"),
    (CUDNN, {"prior": SEGMENTS}, "Window.*got Segments"),
    (CUDNN, {"prior": priors.ExcludeSelf()}, "excludes the row"),
    (TPU, {"kernel": SoftCapped(ak.DotProduct(), 50.0)}, r"ak\.fixed.*got SoftCapped"),
    (TPU, {"kernel": CAPPED, "rule": ak.Softmax(2.0)}, "temperature that is fixed"),
    (Fused("float16", platform="cuda"), {"dim": 127}, "128.*130"),
    (Fused(), SYMBOLIC, NO_SYMBOLS),
)


@pytest.mark.multi_device
def test_reasons_name_what_a_method_does_not_take():
    for method, changes, reason in UNSUPPORTED:
        assert re.search(reason, method.unsupported_reason(TASK._replace(**changes)) or ""), reason
    supported = (Sorted(), SORTED), (Linear(), FINITE), (Sharded(), SORTED), (TPU, CAPPED)
    for method, kernel in (*supported, (CUDNN, TASK.kernel)):
        assert method.unsupported_reason(TASK._replace(kernel=kernel)) is None


def test_calls_refuse_what_the_method_does_not_take():
    x = np.zeros((N, 2), np.float32)
    model = ak.KernelRegression(ak.Gaussian(0.3), order=1, method=Fourier())
    gaussian, dot = {"kernel": ak.Gaussian(0.3)}, {"kernel": ak.DotProduct()}
    laplace = {"kernel": ak.Laplace(0.5), "method": Sorted()}
    message = "^Fourier cannot evaluate this: .*Gaussian.*Laplace"
    assert_raises("^Sorted cannot evaluate", ak.attend, x, x, x, **gaussian, method=Sorted())
    assert_raises(message, Fourier().count_recomputed, x, x, x, kernel=ak.Laplace(0.3))
    assert_raises("^Fourier cannot .*one dimension, not 2.*Auto", model, x, x, x[:, 0])
    message = "rule must weigh each key by itself.*Entmax"
    assert_raises(message, softmax_state, x, x, x, **dot, rule=ak.Entmax(1.5))
    assert_raises("Sorted cannot evaluate", softmax_state, x, x, x, **dot, method=Sorted())
    message, line = r"exact_maximum=True needs method=.*Dense\(\) or .*; got Sorted", x[:, :1]
    assert_raises(message, softmax_state, line, line, x, **laplace, exact_maximum=True)
