"""Applies the faults of `faults.toml` one at a time, and tells which of them the tests catch.

    python tests/faults/catch.py --suite default --jobs 2
    python tests/faults/catch.py --suite all --jobs 2

Each job works on a clone of what is committed. It changes the one place of a fault, runs tests
up to the first failure, and restores the file: first the test that caught the fault in an earlier
run, then the folder of tests that mirrors the changed module, then all tests. Results are added to
those that `--out` holds, and the second command runs just what the default tests did not catch.
With another `--out`, of which there is no file, earlier runs are forgotten. The tests must pass
without faults. JAX_COMPILATION_CACHE_DIR=FOLDER with JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
lets the faults share compiled programs.
"""

import argparse
import concurrent.futures
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def clone_into(folder: Path) -> Path:
    """A clone of what is committed, which Python imports from."""
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    code = "import attnkernel, experiments; print(attnkernel.__file__, experiments.__file__)"
    command = [sys.executable, "-c", code]
    paths = subprocess.check_output(command, cwd=folder, env=environment(folder), text=True)
    if not all(path.startswith(os.fspath(folder)) for path in paths.split()):
        raise SystemExit(f"Python imports {paths.strip()}, not the copy in {folder}.")
    return folder


def environment(folder: Path) -> dict[str, str]:
    """The copy first on the path; and bytecode, which makes small tests 1.5 times as fast."""
    same = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return same | {"PYTHONPATH": os.fspath(folder)}


def batches_of(earlier: str | None, file: str) -> list[str]:
    """What each run of pytest takes: the test of an earlier run, the mirrored folder, all tests."""
    top, package, *_ = Path(file).parts
    mirrored = top if top == "experiments" else package.removeprefix("_")
    is_test = re.match(r"tests/\S+\.py::", earlier or "")
    return [*([earlier] if earlier and is_test else []), f"tests/{mirrored}", "tests"]


def run_tests(
    folder: Path, batches: list[str], suite: str, seconds: float
) -> tuple[str, str | None]:
    """Says "caught", "survived" or "out of time", and the first test that fails."""
    end = time.monotonic() + seconds
    for batch in batches:
        # the list of faults does not fit sources with one; a number of lines is no behaviour
        ignored = ("tests/faults", "tests/core/test_budgets.py")
        options = ["-q", "-x", "-n", "0", "--tb=no", *(f"--ignore={path}" for path in ignored)]
        command = [sys.executable, "-m", "pytest", *options, batch]
        process = subprocess.Popen(
            [*command, "--all"] if suite == "all" else command,
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "out of time", None
        failed = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\](?= - |$))?)", said, re.MULTILINE)
        if process.returncode in (1, 2) and failed:
            return "caught", failed[1]
        if process.returncode < 0:
            return "caught", f"signal {-process.returncode} among {batch}"
        has_no_test = process.returncode == 4 and "::" in batch  # renamed since the earlier run
        if process.returncode not in (0, 5) and not has_no_test:  # 5: no test is in this suite
            raise SystemExit(f"{' '.join(command)} in {folder} ended unexpectedly:\n{said[-2000:]}")
    return "survived", None


def totals_of(found: dict[str, dict]) -> dict:
    """How many faults each suite was asked about and caught, in all and by package."""

    def count(rows: list[dict], key: str) -> dict[str, int]:
        return {"asked": sum(key in r for r in rows), "caught": sum(bool(r.get(key)) for r in rows)}

    packages: dict[str, list[dict]] = {"all": list(found.values())}
    for row in found.values():
        packages.setdefault("/".join(row["file"].split("/")[:-1]), []).append(row)
    keys = ("caught_by_default", "caught_by_all")
    return {name: {key: count(rows, key) for key in keys} for name, rows in packages.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.partition("\n")[0])
    parser.add_argument("--suite", choices=("default", "all"), default="default")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults alone")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one fault")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "faults.json")
    return parser


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    listed = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
    faults = {fault["name"]: fault for fault in listed["fault"]}
    if unknown := set(options.only or ()) - faults.keys():
        parser.error(f"no fault is named {', '.join(sorted(unknown))}")
    known = json.loads(options.out.read_text())["faults"] if options.out.is_file() else {}
    found = {name: row for name, row in known.items() if name in faults}
    key = f"caught_by_{options.suite}"
    copies: queue.Queue[Path] = queue.Queue()

    def write() -> dict:
        rows = {name: found[name] for name in faults if name in found}
        content = {"totals": totals_of(rows), "faults": rows}
        options.out.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return content["totals"]

    def catch(fault: dict) -> None:
        folder, begun = copies.get(), time.monotonic()
        earlier = found.get(fault["name"], {}).get("first_test")
        batches = batches_of(earlier, fault["file"])
        place = folder / fault["file"]
        text, before = place.read_text(encoding="utf-8"), place.stat().st_mtime_ns
        try:
            place.write_text(text.replace(fault["old"], fault["new"]), encoding="utf-8")
            how, test = run_tests(folder, batches, options.suite, options.limit)
        finally:
            place.write_text(text, encoding="utf-8")
            os.utime(place, ns=(before, before))  # its bytecode is known by this time
            copies.put(folder)
        seconds = round(time.monotonic() - begun, 1)
        print(f"{fault['name']:<40} {how:<12} {seconds:6.0f} s  {test or ''}", flush=True)
        row = found.get(fault["name"], {}) | {name: fault[name] for name in ("breaks", "file")}
        row |= {key: how == "caught", "how": how, "first_test": test, "seconds": seconds}
        found[fault["name"]] = row
        write()

    chosen = [faults[name] for name in faults if name in (options.only or faults)]
    if options.suite == "all":  # the default tests are among all
        for row in found.values():
            row |= {key: True} if row.get("caught_by_default") else {}
        chosen = [f for f in chosen if not found.get(f["name"], {}).get("caught_by_default")]
    with tempfile.TemporaryDirectory() as work:
        for job in range(options.jobs):
            copies.put(clone_into(Path(work).resolve() / f"copy-{job}"))
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            waiting = [pool.submit(catch, fault) for fault in chosen]
            try:
                for done in concurrent.futures.as_completed(waiting):
                    done.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    for name, counts in write().items():
        print(f"{name:<28}", *(f"{k}: {v['caught']} of {v['asked']}" for k, v in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
