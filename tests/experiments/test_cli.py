"""The commands `validate`, `show`, `schema` and `list`, every shipped config, and wrong usage."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from marks import slow
from outputs import start
from paths import CONFIGS
from small_configs import DATA, HOLDOUT

from experiments.__main__ import main
from experiments.config.kernels import BUILT_IN
from experiments.config.registry import STUDIES
from experiments.runs.runner import load

SHIPPED = sorted(CONFIGS.glob("*.yaml"))
SHOWN = ("bench_latency", "holdout", "induction", "mcycle")
FILES = {"holdout.yaml": HOLDOUT, "data.yaml": DATA}


def names(directory):
    return sorted(os.listdir(directory))


def test_validate_reports_every_config_and_runs_none(home, capsys):
    (home / "bad.yaml").write_text("study: hold_out\n")
    assert main(["run", "holdot"]) == 2
    assert capsys.readouterr().err == "holdot: there is no such file: did you mean holdout.yaml?\n"
    assert main(["page", "holdout.yaml", "--out", "."]) == 2
    assert ". is a folder: name a file in it, such as " in capsys.readouterr().err
    before = names(home)
    assert main(["validate", "bad.yaml", "data.yaml", "missing.yaml", "holdout.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == ["data.yaml: valid", "holdout.yaml: valid"]
    assert names(home) == before
    first, second = err.splitlines()
    assert first.startswith("bad.yaml:1: study: unknown name 'hold_out'")
    assert second.startswith("missing.yaml: there is no such file")


@pytest.mark.slow
def test_commands_that_draw_nothing_import_no_matplotlib(home):
    (home / "a.csv").write_text("x,y\n1,2\n2,3\n4,5\n")
    commands = [
        ["list"],
        ["validate", str(CONFIGS / "mcycle.yaml")],
        ["show", str(CONFIGS / "regression.yaml")],
        ["show", "none.yaml"],
        ["fit", "a.csv", "y ~ z"],
        ["fit", "a.csv", "y ~ x", "--objective", "none"],
        ["resume", "none"],
        ["reproduce", "none"],
    ]
    code = f"""
import sys
from experiments.__main__ import main
from experiments.config.registry import STUDIES
codes, studies = [main(words) for words in {commands}], [*STUDIES.values()]
print(codes, [name for name in sys.modules if name.startswith("matplotlib")])
"""
    with start(program=("-c", code)) as process:
        out, err = process.communicate()
    assert out.splitlines()[-1] == "[0, 0, 0, 2, 2, 2, 2, 2] []", err


@pytest.mark.cli
def test_missing_extra_is_reported_with_the_line_that_installs_it():
    code = "import sys; sys.modules['pydantic'] = None; from experiments.__main__ import main"
    with start(program=("-c", f"{code}; sys.exit(main(['list']))")) as process:
        _, err = process.communicate()
    expected = 'pydantic is not installed: pip install "attnkernel[experiments]"\n'
    assert (process.returncode, err) == (2, expected)


def show(home, capsys, *arguments):
    """The config that `show` prints."""
    assert main(["show", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    (home / "shown.yaml").write_text(out, encoding="utf-8")
    return load(Path("shown.yaml"), [])


@pytest.mark.parametrize(
    "path",
    [path if path.stem in SHOWN else slow(path) for path in SHIPPED],
    ids=lambda path: path.stem,
)
def test_shipped_config_is_valid_and_shown_in_whole(home, capsys, path):
    shown = show(home, capsys, str(path))
    assert shown == load(path, [])
    written = yaml.safe_load((home / "shown.yaml").read_text())
    assert written.keys() == type(shown).model_fields.keys()


WRONG_FIELDS = [  # a shipped config, a field whose value does not suit the study, and the error
    ("boundary", "lengthscales=[0.0001, 0.01]", r"lengthscales: .*0\.0005.*20000.*0\.125"),
    ("peers", "folds=80", r"folds: .*58.*data\.1.*88.*80"),
    ("retrieval_rule", "prior=[1.0, 2.0]", "priors.*2 and 5"),
    ("associative_recall", "key_tokens=4", "expected at most as many pairs as keys"),
    ("bench_latency", "calls=[fit, fits]", r"calls\.1: expected one of import, fit"),
    ("bench_growth", "precision=float32", "did you mean .float64"),
]


@pytest.mark.parametrize(("name", "override", "message"), WRONG_FIELDS)
def test_field_that_does_not_suit_its_study_is_refused(name, override, message, error_of):
    assert re.search(message, error_of("show", CONFIGS / f"{name}.yaml", override))


@pytest.mark.parametrize(
    "column", ["1e-2", "1e5", "1.5e3", "2024", "on", "true", "null", "a: b", "größe"]
)
def test_show_quotes_a_column_name_that_looks_like_something_else(home, capsys, column):
    (home / "mine.csv").write_text(f'"{column}",b\n1,2\n2,3\n3,4\n', encoding="utf-8")
    text = f"study: data\ndata: {{source: csv, path: mine.csv, x: '{column}', y: b}}\n"
    (home / "csv.yaml").write_text(text, encoding="utf-8")
    assert show(home, capsys, "csv.yaml").data.x == column


def test_schema_has_every_field_of_every_study(capsys):
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    listed = {choice["$ref"].rpartition("/")[2] for choice in schema["anyOf"][0]["oneOf"]}
    assert listed == {study.__name__ for study in STUDIES.values()}
    for study in STUDIES.values():
        assert schema["$defs"][study.__name__]["properties"].keys() == study.model_fields.keys()
    kernel = schema["$defs"]["Model"]["properties"]["kernel"]
    assert kernel["anyOf"][0]["enum"] == list(BUILT_IN)


def test_list_prints_the_names_that_a_config_can_use(capsys):
    assert main(["list"]) == 0
    listed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert set(STUDIES) <= set(listed["study"].split(", "))
    fields = {"data.source", "data.name (bundled)", "model.kernel", "training.optimizer"}
    assert fields < listed.keys()


@pytest.mark.parametrize(
    "words",
    [
        *("", "walk", "run", "run data.yaml --ouf out", "run data.yaml --out"),
        *("run data.yaml --seed=3", "list seed=3", "validate"),
    ],
)
def test_wrong_command_line_is_refused_with_its_usage(home, capsys, words):
    before = names(home)
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words.split())
    out, err = capsys.readouterr()
    assert (out, err.startswith("usage: python -m experiments")) == ("", True)
    assert names(home) == before
