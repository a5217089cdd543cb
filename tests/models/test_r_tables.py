"""Tables of R's packages that other tests read are what the scripts beside them print."""

import io
import subprocess
from pathlib import Path

import pandas as pd
import pytest

import attnkernel as ak

HERE = Path(__file__).parent
CSV_FOLDER = Path(ak.__file__).parent / "data" / "csv"
needs_r = pytest.mark.needs_r


@pytest.mark.cli
@pytest.mark.parametrize(
    ("name", "atol"),
    [
        pytest.param("locfit", 0.0, marks=needs_r("locfit")),
        pytest.param("lowess", 0.0, marks=needs_r("stats")),
        pytest.param("lprq", 1e-10, marks=[needs_r("quantreg"), pytest.mark.slow]),
    ],
)
def test_the_table_is_what_r_prints(name, atol):
    command = ["Rscript", "--vanilla", str(HERE / f"{name}.R"), str(CSV_FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed, kept = map(pd.read_csv, (io.StringIO(done.stdout), HERE / f"{name}.csv"))
    pd.testing.assert_frame_equal(printed, kept, rtol=1e-8, atol=atol)
