"""The command `attnkernel`, and `python -m attnkernel`: those of `python -m experiments`.

In a wheel they are the package `attnkernel.experiments`, in a checkout `experiments`.
"""

import importlib.util
import runpy


def main() -> None:
    """Runs the commands of the experiments: `attnkernel fit FILE.csv 'y ~ x'`; ends the process."""
    wheel = importlib.util.find_spec("attnkernel.experiments")
    package = "attnkernel.experiments" if wheel else "experiments"
    runpy.run_module(package, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
