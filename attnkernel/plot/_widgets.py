"""Sliders under a figure, where there is someone to move them."""

from collections.abc import Callable, Sequence
from typing import Any

from .._core.validation import require_function


def slide(draw: Callable[..., Any], **sliders: Sequence[int | float]) -> None:
    """Calls `draw` again whenever a slider is moved, in a live notebook; elsewhere once.

    Live is a notebook with ipywidgets whose kernel has someone at the other end: not a script, and
    not a notebook that is run to be shown.

    **Arguments:** `draw`: draws and shows a figure, from numbers by name; `sliders`: of each its
    start, least and most; three whole numbers make a slider of whole numbers.

    ```python
    ak.plot.slide(lambda query, heads: print(query, heads), query=(0.0, -3.0, 3.0), heads=(2, 1, 8))
    ```
    """
    require_function("draw", draw)
    for name, slider in sliders.items():
        if not isinstance(slider, Sequence) or isinstance(slider, str) or len(slider) != 3:
            raise ValueError(
                f"{name} must be three numbers, start, least and most; got {slider!r}."
            )
    ipywidgets = _live()
    if ipywidgets is None:
        draw(**{name: start for name, (start, _, _) in sliders.items()})
        return
    widgets = {}
    for name, (start, low, high) in sliders.items():
        if all(isinstance(number, int) for number in (start, low, high)):
            widgets[name] = ipywidgets.IntSlider(start, min=low, max=high)
        else:
            step = (high - low) / 100
            widgets[name] = ipywidgets.FloatSlider(start, min=low, max=high, step=step)
    ipywidgets.interact(draw, **widgets)


def _live() -> Any:
    """ipywidgets, if it is there and someone to move what it shows; else None."""
    try:
        import ipywidgets  # noqa: PLC0415  an extra
        from IPython import get_ipython  # noqa: PLC0415

        shell: Any = get_ipython()
        # a request of a front end allows a question back; one of a program does not
        return ipywidgets if shell.kernel.get_parent()["content"]["allow_stdin"] else None
    except (ImportError, AttributeError, KeyError):
        return None
