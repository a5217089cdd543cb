"""Hints for names of other libraries: what the same thing is called here."""

import difflib
import functools
from collections.abc import Callable, Mapping
from inspect import ismodule, signature
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable)

# in lower case
NAMES = {
    "rbf": "ak.Gaussian",
    "squaredexponential": "ak.Gaussian",
    "nadarayawatson": "ak.KernelRegression",
    "locallinear": "ak.KernelRegression(kernel, order=1)",
    "loess": "ak.KernelRegression(kernel, order=1)",
    "lowess": "ak.KernelRegression(kernel, order=1)",
    "kde": "ak.density, or the model ak.KernelDensity",
    "scaled_dot_product_attention": "ak.attend(q, k, v, kernel=ak.DotProduct())",
    "predict": "the call of a fit, fit(x_new)",
}
ARGUMENTS = {
    "mask": "a mask is a prior, prior=ak.priors.MaskArray(mask)",
    "attn_mask": "a mask is a prior, prior=ak.priors.MaskArray(mask)",
    "causal": "a causal mask is a prior, prior=ak.Causal()",
    "is_causal": "a causal mask is a prior, prior=ak.Causal()",
    "bandwidth": "a bandwidth is the lengthscale of a kernel, ak.Gaussian(lengthscale=0.3)",
    "length_scale": "the word is lengthscale=",
    "scale": "scores are divided by a temperature, rule=ak.Softmax(temperature=2.0)",
    "bias": "a bias of scores is a prior, such as ak.priors.BiasTable",
}
ATTRIBUTES = {
    "predict": "call the fit itself, fit(x_new)",
    "lengthscale": "it is fit.model.kernel.lengthscale",
    "summary": "the report is ak.summarise(fit)",
    "plot": "the figure is ak.plot.fit(fit)",
}


def explained(function: Function) -> Function:
    """Decorates a function, so that keyword arguments of other libraries raise `TypeError`.

    These are the names in `ARGUMENTS` that the function does not take itself. The error gives the
    word of this library. For a class, `__init__` is decorated in place, and the class returned.
    """
    if isinstance(function, type):
        setattr(function, "__init__", explained(function.__init__))  # noqa: B010
        return cast(Function, function)
    foreign = ARGUMENTS.keys() - signature(function).parameters.keys()

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for name in foreign & given.keys():
            owner = function.__qualname__.removesuffix(".__init__")
            raise TypeError(f"{owner} takes no {name!r}: {ARGUMENTS[name]}.")
        return function(*args, **given)

    return cast(Function, call)


def name_hint(name: str, public: Mapping[str, Any]) -> str:
    """Returns a hint for a name that the package does not have, such as ": try ak.Gaussian".

    `public` maps the public names to modules and other values. A name in `NAMES` comes first, then
    the same name in a public module, then a similar public name. The hint is "" if there is none.
    """
    homes = [f"ak.{at}.{name}" for at, of in public.items() if ismodule(of) and hasattr(of, name)]
    near = [f"ak.{one}" for one in difflib.get_close_matches(name, public, n=1, cutoff=0.7)]
    found = [NAMES[name.lower()]] if name.lower() in NAMES else homes + near
    return f": try {found[0]}" if found else ""
