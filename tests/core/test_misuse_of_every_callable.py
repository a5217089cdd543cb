"""Every public callable with every argument misused: a sentence that names the argument."""

import pytest
from marks import slow
from misuse.calls import CALLABLES, INSTANCES, METHODS, ODD, OTHER_CALLS, PUBLIC
from misuse.kinds import KINDS
from misuse.legal import EXCLUDED, WITHOUT_RESULT
from misuse.verdict import valid_result, verdicts

# by default one argument of each kind, and of every argument with `--all`
ONE_OF_EACH_KIND = {
    kind.rstrip("?"): (name, argument)
    for name, (_, arguments) in reversed(CALLABLES.items())
    for argument, (kind, _) in arguments.items()
}
CASES = [
    *(pytest.param(name, [of], id=f"kind {kind}") for kind, (name, of) in ONE_OF_EACH_KIND.items()),
    *(slow(name, list(args), id=name) for name, (_, args) in CALLABLES.items() if args),
]


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_misuse_is_answered_by_a_sentence_that_names_the_argument(as_users_run_it, name, arguments):
    """The call without the misuse is valid: else each misuse could pass for another reason."""
    assert (valid_result(name) is None) == (name in WITHOUT_RESULT)
    found = verdicts(name, arguments)
    assert [verdict for verdict in found if verdict.what in ("silent", "other error")] == []


def test_every_kind_of_argument_is_misused():
    assert set(ONE_OF_EACH_KIND) == set(KINDS)


def test_every_written_name_is_public():
    assert {name.rpartition(".")[2] for name in PUBLIC} >= EXCLUDED
    assert CALLABLES.keys() >= ODD.keys() | OTHER_CALLS.keys()
    assert INSTANCES.keys() >= METHODS.keys()
