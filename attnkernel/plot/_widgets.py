"""Sliders under a figure in a live notebook."""

from collections.abc import Callable, Sequence
from typing import Any

from .._core.validation import require_function


def interact(draw: Callable[..., Any], **sliders: Sequence[int | float]) -> None:
    """Calls `draw` with the values of sliders whenever one is moved, in a live notebook.

    A notebook is live if ipywidgets is installed and a user is connected to its kernel. Elsewhere,
    in a script or in a notebook that is executed to be published, `draw` is called once, with the
    start values.

    ```python
    >>> ak.plot.interact(lambda q, heads: print(q, heads), q=(0.0, -3.0, 3.0), heads=(2, 1, 8))
    0.0 2
    ```

    **Arguments:**

    - `draw`: draws and shows a figure; its arguments are the names of the sliders.
    - `sliders`: for each the start value, the minimum and the maximum. Three integers make a slider
      of integers.

    **Raises:** `ValueError` unless each slider has three numbers.
    """
    require_function("draw", draw)
    for name, slider in sliders.items():
        if not isinstance(slider, Sequence) or isinstance(slider, str) or len(slider) != 3:
            raise ValueError(
                f"{name} must be three numbers, start, minimum and maximum; got {slider!r}."
            )
    ipywidgets = _ipywidgets_if_live()
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


def _ipywidgets_if_live() -> Any:
    """Returns the module ipywidgets if a user is connected to a notebook, else None."""
    try:
        import ipywidgets  # noqa: PLC0415  an extra
        from IPython import get_ipython  # noqa: PLC0415

        shell: Any = get_ipython()
        # a front end accepts questions of the kernel; a program that executes a notebook does not
        return ipywidgets if shell.kernel.get_parent()["content"]["allow_stdin"] else None
    except (ImportError, AttributeError, KeyError):
        return None
