"""Every misuse of every argument of a callable: a sentence that names the argument, or none."""

import inspect
import linecache
import re
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak

from .calls import CALLABLES
from .kinds import KINDS, Traced
from .legal import LEGAL, NOT_FINITE
from .values import AX, made, now

PACKAGE = str(Path(ak.__file__).parent)
# need the numbers of their results; all others are only traced: compiling them takes 30 s
CONCRETE = re.compile(
    r"(data|plot|sklearn)\..*|save|load|choose|econometrics.average_derivative|summarise"
)


class Verdict(NamedTuple):
    """The result of one call: "sentence", "other error", "warning", "silent" or "legal"."""

    what: str
    name: str
    argument: str
    misuse: str
    said: str


def is_sentence(error: BaseException, argument: str) -> bool:
    """Whether a `raise` of the package, or a reader of sentences, names the argument."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = last.filename.startswith(PACKAGE)
    raised = linecache.getline(last.filename, last.lineno or 0).strip().startswith("raise")
    text = str(error)
    return (
        isinstance(error, ValueError | TypeError | KeyError)
        and ours
        and raised
        and re.search(rf"\b{re.escape(argument)}\b", text) is not None
        and " " in text
    )


def called(function: Any, given: dict[str, Any], argument: str, value: Any) -> Any:
    given = {name: now(part) for name, part in given.items()}
    if not isinstance(value, Traced):
        return function(**(given | {argument: value}))

    def inside(tracer: Any) -> int:
        function(**(given | {argument: tracer}))
        return 0

    return jax.eval_shape(inside, jnp.asarray(value.value))


def forget_axes() -> None:
    plt.close("all")
    made.pop(AX.make, None)


def valid_result(name: str) -> Any:
    """The result of the valid call of a callable; its arrays may be tracers."""
    function, arguments = CALLABLES[name]
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ak.FitWarning)
        given = {argument: now(valid) for argument, (_, valid) in arguments.items()}
        if inspect.isfunction(function):  # what it reads is made before the call is traced
            read = inspect.getclosurevars(function)
            for value in (*read.globals.values(), *read.nonlocals.values()):
                now(value)

        def call() -> int:
            results.append(function(**given))
            return 0

        call() if CONCRETE.fullmatch(name) else jax.eval_shape(call)
    forget_axes()
    return results[0]


def misuses_of(kind: str, valid: Any) -> dict[str, Any]:
    """What may be wrong with an argument; None is right where it is the default."""
    wrong = KINDS[kind.rstrip("?")]
    found = dict(wrong(now(valid)) if callable(wrong) else wrong)
    if kind.endswith("?"):
        found.pop("None", None)
    return found


def verdicts(name: str, wanted: Iterable[str]) -> list[Verdict]:
    """Every misuse of each wanted argument of a callable, one at a time."""
    function, arguments = CALLABLES[name]
    given = {argument: valid for argument, (_, valid) in arguments.items()}
    found = []
    for argument in wanted:
        for misuse, value in misuses_of(*arguments[argument]).items():
            what, said = "legal", ""
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    result = called(function, given, argument, value)
                except Exception as error:
                    what = "sentence" if is_sentence(error, argument) else "other error"
                    said = f"{type(error).__name__}: {error}"
                else:
                    says = any(argument in str(warning.message) for warning in caught)
                    if (name, argument, misuse) in NOT_FINITE:
                        what = "silent" if np.all(np.isfinite(result)) else "legal"
                    elif (name, argument, misuse) not in LEGAL:
                        what = "warning" if says else "silent"
            forget_axes()
            found.append(Verdict(what, name, argument, misuse, said))
    return found
