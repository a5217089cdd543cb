"""Valid calls of attention."""

from typing import Any

import attnkernel as ak

from .arguments import Arguments, usual
from .values import POINTS

ROWS: Arguments = {"q": ("points", POINTS), "k": ("paired", POINTS), "v": ("paired", POINTS)}
ATTENTION: dict[str, tuple[Any, Arguments]] = {
    "attend": (
        ak.attend,
        ROWS | usual("kernel prior rule method", return_log_mass=("flag", False)),
    ),
    "softmax_state": (
        ak.attention.softmax_state,
        ROWS | usual("kernel prior rule method", exact_maximum=("flag", False)),
    ),
    "attention_weights": (
        ak.attention_weights,
        usual("kernel prior rule", q=("points", POINTS), k=("points", POINTS)),
    ),
    "select_method": (ak.select_method, ROWS | usual("kernel prior rule order")),
}
