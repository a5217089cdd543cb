"""The kernels that a config may name: those with a lengthscale, and the user's own.

A config names no file and runs no code. What a name beyond the built-in ones means is the user's
word: `experiments.register("mine", Mine)` in Python, `--kernels FILE.py` on the command line, or
`--studies FILE.py`, which is the same: the file may define both.
"""

import hashlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import attnkernel as ak

from .. import PACKAGE
from . import registry
from .errors import nearest
from .plain_yaml import ConfigError

Scaled = ak.kernels.Scaled


def name_of(kernel: type) -> str:
    """`rational_quadratic` of `RationalQuadratic`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kernel.__name__).lower()


BUILT_IN = ak.kernels.BY_NAME
KERNELS = dict(BUILT_IN)


def register(name: str, kernel: type[Scaled]) -> None:
    """Lets configs say `model.kernel: NAME`.

    **Arguments:** `name`: in small letters, digits and `_`; a name of your own that is known
    already then means this kernel. `kernel`: a subclass of `ak.kernels.Scaled`, made as
    `kernel(lengthscale)`.

    **Raises:** `ValueError` for another name or class, and for the name of a built-in kernel.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"expected a name in small letters, digits and _; got {name!r}")
    if name in BUILT_IN:
        raise ValueError(f"{name!r} is the name of a built-in kernel; take another")
    if not _is_kernel_class(kernel):
        raise ValueError(
            f"expected a subclass of ak.kernels.Scaled with a log_pair, such as ak.Gaussian; got "
            f"{kernel!r}"
        )
    try:
        kernel(1.0)
    except Exception as error:
        what = f"{kernel.__name__} must be made of a lengthscale alone, {kernel.__name__}(1.0)"
        raise ValueError(f"{what}: {error}") from None
    KERNELS[name] = kernel


def load(path: Path) -> None:
    """Runs a file of Python, and registers the kernels and studies that it defines by their names.

    `class RoundTop(ak.kernels.Scaled)` is `round_top`; a study is a subclass of
    `experiments.studies.Study`, named by its field `study`.

    **Raises:** `ConfigError` if it cannot be run, or there is neither in it.
    """
    known = dict(KERNELS)
    place = f"--kernels {path}"
    spec = importlib.util.spec_from_file_location(f"kernels_of_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"{place}: expected a file of Python, such as kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the module that its classes name
    try:
        # the loader of `spec` would write bytecode beside the file, which may be that of a run
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        raise ConfigError(f"{place}: cannot be run: {said}") from None
    own = [one for one in vars(module).values() if getattr(one, "__module__", "") == spec.name]
    studies = [one for one in own if "study" in getattr(one, "model_fields", {})]
    try:
        for kernel in filter(_is_kernel_class, own):
            if kernel not in KERNELS.values():
                register(name_of(kernel), kernel)
        for study in studies:
            registry.register(study)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None
    if known == KERNELS and not studies:
        raise ConfigError(
            f"{place}: there is no kernel in it: expected a class that is an ak.kernels.Scaled, "
            f"with a log_pair; or a study, an {PACKAGE}.studies.Study"
        )


def require_known(name: str, *more: str) -> str:
    """The name, of a kernel that is there or one of `more`; `ValueError` with the nearest else."""
    if name in (known := [*more, *KERNELS]):
        return name
    if name == "periodic" and "auto" in more:
        raise ValueError(
            "a column round a circle needs its period: --periodic hour=24, or model.periods: "
            "{hour: 24}"
        )
    raise ValueError(
        f"unknown name {name!r}{nearest(name, known)}; and yours, by --kernels FILE.py"
    )


def user_kernel(study: Any) -> dict[str, str]:
    """The user's study, or the user's kernel that a study names, and a digest of the file that it
    is from."""
    text = source_of_kernel(study)  # none: typed into a notebook or a shell
    digest = "of no file" if text is None else hashlib.sha256(text).hexdigest()
    return dict.fromkeys(_user_classes(study), digest)


def source_of_kernel(study: Any) -> bytes | None:
    """The file of the user's study, or of the user's kernel; None without one."""
    try:
        return Path(inspect.getfile(*_user_classes(study).values())).read_bytes()
    except (OSError, TypeError):
        return None


def _user_classes(study: Any) -> dict[str, type]:
    """Returns the class of a study, or else of its kernel, by name, if a user has registered it."""
    if type(study) in registry.OWN.values():
        return {study.study: type(study)}
    name = getattr(getattr(study, "model", None), "kernel", None)
    return {} if name in BUILT_IN or name not in KERNELS else {name: KERNELS[name]}


def _is_kernel_class(value: Any) -> bool:
    """Whether a value is a class of kernels with a lengthscale (`Scaled`) that is not abstract."""
    is_class = isinstance(value, type) and issubclass(value, Scaled)
    return is_class and not inspect.isabstract(value)
