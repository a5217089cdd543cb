"""Valid calls of attention."""

from typing import Any

import attnkernel as ak

from .arguments import PARTS, Arguments
from .values import POINTS

ATTENTION: dict[str, tuple[Any, Arguments]] = {
    "attend": (
        ak.attend,
        {
            "q": ("points", POINTS),
            "k": ("paired", POINTS),
            "v": ("paired", POINTS),
            **PARTS,
            "return_log_mass": ("flag", False),
        },
    ),
    "softmax_state": (
        ak.softmax_state,
        {
            "q": ("points", POINTS),
            "k": ("paired", POINTS),
            "v": ("paired", POINTS),
            **PARTS,
            "exact_maximum": ("flag", False),
        },
    ),
    "attention_weights": (
        ak.attention_weights,
        {
            "q": ("points", POINTS),
            "k": ("points", POINTS),
            **{name: PARTS[name] for name in ("kernel", "prior", "rule")},
        },
    ),
    "select_method": (
        ak.select_method,
        {
            "q": ("points", POINTS),
            "k": ("paired", POINTS),
            "v": ("paired", POINTS),
            **{name: PARTS[name] for name in ("kernel", "prior", "rule")},
            "order": ("whole from 0", 0),
        },
    ),
}
