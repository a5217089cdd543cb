"""Executes the cells of a page in a process of its own, which has nothing of another page.

The processes are forked from one that has imported the library, before JAX has begun to compute:
importing takes CPU seconds, a fork none.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from unittest.mock import patch

INLINE = "module://matplotlib_inline.backend_inline"
IMPORTED = ("attnkernel", "matplotlib.pyplot", "IPython", INLINE.removeprefix("module://"))


def processes(workers: int) -> ProcessPoolExecutor:
    """Returns so many processes for `execute`; each page has a new one. Warnings are shown."""
    environment = {
        "PYTHONWARNINGS": "default",
        # A folder that pages share costs as much to write as it saves.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", *IMPORTED])
    with patch.dict(os.environ, environment):
        forkserver.ensure_running()
    return ProcessPoolExecutor(workers, context, max_tasks_per_child=1)


def execute(cells: list[str], folder: str) -> list[tuple[str, list[str]]]:
    """Returns what each cell prints, and its pictures as PNG in base 64.

    **Raises:** the error of a cell; `RuntimeError` if one warns.
    """
    # imported in the process that executes, when it has its environment
    import matplotlib.pyplot as plt  # noqa: PLC0415
    from IPython.core.interactiveshell import InteractiveShell  # noqa: PLC0415
    from IPython.utils.capture import capture_output  # noqa: PLC0415
    from matplotlib_inline.backend_inline import configure_inline_support  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    os.chdir(folder)
    os.environ["IPYTHONDIR"] = folder  # not in the user's home
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    plt.switch_backend(INLINE)
    plt.ion()  # a figure that a cell does not show is shown after the cell, as in a notebook
    configure_inline_support(shell, INLINE)
    shell.displayhook.write_output_prompt = lambda: None
    outputs = []
    for cell in cells:
        with capture_output() as captured:
            result = shell.run_cell(cell, store_history=True)
        result.raise_error()
        if captured.stderr:
            raise RuntimeError(f"A cell warns: {captured.stderr}\n{cell}")
        shown = [output.data for output in captured.outputs]
        text = "".join(data["text/plain"] + "\n" for data in shown if "image/png" not in data)
        pictures = [data["image/png"] for data in shown if "image/png" in data]
        outputs.append((captured.stdout + text, pictures))
    return outputs
