"""Type checks of the tests: signatures that are equal share one, others do not."""

from typing import Annotated

import pytest
from beartype.roar import BeartypeCallHintParamViolation
from cached_beartype import check
from jaxtyping import Float
from numpy import ones


def inner(annotation, *default):
    """A function that is defined anew at every call, as those inside others are."""
    if default:

        def function(x: annotation = default[0]):
            return x
    else:

        def function(x: annotation):
            return x

    return check(function)


def test_equal_signatures_are_checked_once():
    assert inner(int) is inner(int)
    assert inner(Float[object, "rows"]) is inner(Float[object, "rows"])
    assert inner(int, 1) is inner(int, 2)


def test_other_signatures_are_checked_by_their_own_annotations():
    vector, matrix = ones(3), ones((3, 2))
    for annotation, right, wrong in (
        (int, 1, "a"),
        (str, "a", 1),
        (Float[object, "rows"], vector, matrix),
        (Float[object, "rows columns"], matrix, vector),
        (Annotated[int, []], 1, "a"),  # without a hash
    ):
        assert inner(annotation)(right) is right
        with pytest.raises(BeartypeCallHintParamViolation):
            inner(annotation)(wrong)
    assert inner(int, 1)() == 1
    with pytest.raises(TypeError, match="missing"):
        inner(int)()
