"""The wheel holds the library, its data, and the experiments under the package's own name."""

import os
import subprocess
import sys
import zipfile

import pytest
from paths import ROOT

README = """
import sys
import attnkernel as ak, matplotlib
matplotlib.use("agg")
for block in open(sys.argv[1], encoding="utf-8").read().split("```python")[1:2]:
    exec(block.partition("```")[0])
print(ak.__file__, ak.data.load("mcycle").x.shape, matplotlib.pyplot.get_fignums())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the checkout, in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", folder, ROOT], check=True)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.cli
def test_a_wheel_alone_runs_the_readme_and_fits_a_file(wheel, tmp_path):
    assert wheel.stat().st_size < 1_000_000
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"attnkernel", wheel.name.rpartition("-py3")[0] + ".dist-info"}
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "two.csv").write_text("x,y\n" + "\n".join(f"{i},{i % 7}" for i in range(40)))

    def run(*arguments, code=0, **more):
        environment = os.environ | {"PYTHONPATH": os.fspath(site)} | more
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    printed = run("-c", README, os.fspath(ROOT / "README.md"))
    shown = (ROOT / "README.md").read_text("utf-8").split("```text\n")[1].partition("```")[0]
    assert printed == f"{shown}{site}/attnkernel/__init__.py (133, 1) [1]\n"
    run("-m", "attnkernel", "fit", "two.csv", "y ~ x", "--out", "fitted", "--quiet")
    assert (tmp_path / "fitted" / "report.html").is_file()
    (site / "yaml.py").write_text("raise ModuleNotFoundError(name='yaml')")
    said = run("-m", "attnkernel", "fit", "two.csv", "y ~ x", "--quiet", code=2)
    assert said == 'yaml is not installed: pip install "attnkernel[experiments]"\n'
