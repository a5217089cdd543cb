"""Every public callable with every argument misused: a sentence that names the argument."""

import inspect
import operator
import runpy

import pytest
from marks import slow
from misuse.kinds import KINDS
from misuse.legal import EXCLUDED, WITHOUT_RESULT
from misuse.models import MODELS
from misuse.verdict import CALLABLES, valid_result, verdicts
from paths import DOCS

import attnkernel as ak

PUBLIC = runpy.run_path(str(DOCS / "extensions" / "names.py"))["public"]


def public_names() -> set[str]:
    """Every public class and function, by its name in the reference."""
    names = {name.partition(".")[2] for name in PUBLIC()}
    return {name for name in names if callable(operator.attrgetter(name)(ak))}


# by default one argument of each kind, and of every argument with `--all`
ONE_OF_EACH_KIND = {
    kind.rstrip("?"): (name, argument)
    for name, (_, arguments) in reversed((MODELS | CALLABLES).items())
    for argument, (kind, _) in arguments.items()
}
CASES = [
    *(pytest.param(name, [of], id=f"kind {kind}") for kind, (name, of) in ONE_OF_EACH_KIND.items()),
    *(slow(name, list(arguments), id=name) for name, (_, arguments) in CALLABLES.items()),
]


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_misuse_is_answered_by_a_sentence_that_names_the_argument(as_users_run_it, name, arguments):
    """The call without the misuse is valid: else each misuse could pass for another reason."""
    assert (valid_result(name) is None) == (name in WITHOUT_RESULT)
    found = verdicts(name, arguments)
    assert [verdict for verdict in found if verdict.what in ("silent", "other error")] == []


def test_every_kind_of_argument_is_misused():
    assert set(ONE_OF_EACH_KIND) == set(KINDS)


def test_every_public_callable_is_misused_or_excluded():
    short = {name.rpartition(".")[2] for name in public_names()}
    excluded = {name for names in EXCLUDED.values() for name in names.split()}
    misused = {name.rpartition(".")[2] for name in CALLABLES}
    assert short - misused - excluded == set()
    assert excluded <= short


def test_every_argument_of_a_callable_is_misused():
    left_out = {}
    for name, (function, _) in CALLABLES.items():
        expected = set(inspect.signature(function).parameters)
        if "given" in expected or "parameters" in expected:  # a call of what is made first
            continue
        of_variants = {
            argument
            for other, (same, more) in CALLABLES.items()
            if same is function or other.startswith(f"{name} ")
            for argument in more
        }
        if missing := expected - of_variants - {"options", "sliders"}:
            left_out[name] = missing
    assert left_out == {}
