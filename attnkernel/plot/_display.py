"""Figures and sliders in a notebook of Jupyter or marimo; figures of a script, in files if there is
no display."""

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, cast

from matplotlib.backends.registry import BackendFilter, backend_registry

from .._core.validation import require_function, require_string

# figures that a call of `draw` has shown, for the output of `interact` in marimo
_SHOWN_BELOW_SLIDERS: ContextVar[list[Any] | None] = ContextVar("shown", default=None)


def show(name: str) -> None:
    """Shows and closes the open figures: in windows, or below the cell of a notebook.

    If the backend of matplotlib has no windows, as in a script on a machine without a display, it
    saves them and prints where: in `results/SCRIPT/NAME.png`, of several figures in `NAME_1.png`,
    `NAME_2.png` and so on. An older file of that name is replaced.

    ```python
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
    ak.plot.points(data.x, data.y)
    ak.plot.show("labels")
    ```

    **Arguments:**

    - `name`: the name of the file, if one is written.

    **Raises:** `ValueError` unless the name is a string; `OSError` if the file cannot be written.
    """
    import matplotlib.pyplot as plt  # noqa: PLC0415  starts a window system

    require_string("name", name)
    marimo, numbers = _marimo_if_running(), plt.get_fignums()
    windowless = backend_registry.list_builtin(BackendFilter.NON_INTERACTIVE)
    if marimo is None and plt.get_backend().lower() not in windowless:
        plt.show()
        return
    for number in numbers:
        if marimo is not None:
            below = _SHOWN_BELOW_SLIDERS.get()
            image = marimo.as_html(plt.figure(number))
            marimo.output.append(image) if below is None else below.append(image)
            continue
        script = Path(getattr(sys.modules["__main__"], "__file__", None) or "").stem
        path = Path("results", script, f"{name}_{number}.png" if numbers[1:] else f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        plt.figure(number).savefig(path)
        print(f"saved {path.resolve()}")
    plt.close("all")


def interact(draw: Callable[..., Any], **sliders: Sequence[int | float]) -> None:
    """Calls `draw` with the values of sliders whenever one is moved, in a live notebook.

    A notebook is live in marimo, and in Jupyter if ipywidgets is installed and a user is connected
    to its kernel. Elsewhere, in a script or in a notebook that is executed to be published, `draw`
    is called once, with the start values.

    ```python
    >>> ak.plot.interact(lambda q, heads: print(q, heads), q=(0.0, -3.0, 3.0), heads=(2, 1, 8))
    0.0 2
    ```

    **Arguments:**

    - `draw`: draws a figure and shows it by `ak.plot.show`; its arguments are the names of the
      sliders.
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
    starts = {name: start for name, (start, _, _) in sliders.items()}
    marimo = _marimo_if_running()
    front_end = _ipywidgets_if_live() if marimo is None else marimo
    if front_end is None:
        draw(**starts)
        return
    widgets = {}
    for name, (start, low, high) in sliders.items():
        whole = all(isinstance(number, int) for number in (start, low, high))
        step = 1 if whole else (high - low) / 100
        if marimo is not None:
            options = {"label": name, "show_value": True, "debounce": True}
            widgets[name] = marimo.ui.slider(low, high, step, value=start, **options)
        else:
            slider = front_end.IntSlider if whole else front_end.FloatSlider
            options = {"style": {"description_width": "initial"}}  # else long names are cut
            widgets[name] = slider(start, min=low, max=high, step=step, **options)
    if marimo is None:
        front_end.interact(draw, **widgets)
        return

    def redraw(values: dict[str, Any]) -> None:
        shown: list[Any] = []
        context = copy_context()
        context.run(_SHOWN_BELOW_SLIDERS.set, shown)
        with marimo.capture_stdout() as printed:
            context.run(draw, **values)
        # one output of one structure: the slider that was moved stays in focus
        text = marimo.plain_text(printed.getvalue())
        marimo.output.replace(marimo.vstack([group.vstack(), text, *shown]))

    group = marimo.ui.dictionary(widgets, on_change=redraw)
    cast(Any, draw).sliders = group  # marimo drops elements that nothing refers to
    redraw(starts)


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


def _marimo_if_running() -> Any:
    """Returns the module marimo in a notebook of marimo, else None."""
    marimo: Any = sys.modules.get("marimo")
    return marimo if marimo is not None and marimo.running_in_notebook() else None
