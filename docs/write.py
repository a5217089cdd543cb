"""Writes README.md and the pages `docs/*.md` from their sources: `python docs/write.py [PAGE...]`.

A page keeps the outputs of its cells, unless the cells have changed, the page is named on the
command line, or `--execute` asks for all. Numbers in templates come from the kept runs in
`docs/summaries/`. An error or a warning of a cell ends the command.
"""

import argparse
import base64
import io
import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS), str(DOCS / "extensions")]

import cells  # noqa: E402
import keep  # noqa: E402
import pages  # noqa: E402
import templates  # noqa: E402

README = DOCS / "templates" / "README.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="execute the cells of these")
    parser.add_argument("--execute", action="store_true", help="execute the cells of all pages")
    options = parser.parse_args()
    sources = {name: pages.read(name) for name in pages.sources()}
    unknown = set(options.pages) - set(sources)
    if unknown:
        parser.error(f"no page {', '.join(unknown)}; there are {', '.join(sources)}")
    outputs = {name: pages.kept(name) for name in sources}
    chosen = [
        name
        for name, source in sources.items()
        if pages.cells(source) != [code for code, _ in outputs[name]]
        or (pages.cells(source) and (options.execute or name in options.pages))
    ]
    outputs = {name: [output for _, output in kept] for name, kept in outputs.items()}
    if chosen:
        outputs |= execute({name: sources[name] for name in chosen})
    # all are made before one is removed: an error keeps the outputs of the old ones
    written = {name: pages.plain(name, source, outputs[name]) for name, source in sources.items()}
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")
    for old in [*DOCS.glob("*.md"), *DOCS.glob("api/*.md"), *DOCS.glob("notebooks/*.md")]:
        old.unlink()
    for name, text in written.items():
        path = DOCS / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def readme() -> str:
    return pages.with_math(templates.render(README.read_text(encoding="utf-8")))


def execute(sources: dict[str, str]) -> dict[str, list[str]]:
    """Executes pages, as many at a time as there are processors; returns their outputs."""
    outputs = {}
    workers = min(len(sources), os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder, cells.processes(workers) as pool:
        running = {name: start(pool, source, folder) for name, source in sources.items()}
        for name, future in running.items():
            outputs[name] = as_markdown(name, sources[name], future.result(), DOCS)
            print(f"executed {name}", flush=True)
    return outputs


def start(pool: ProcessPoolExecutor, source: str, folder: str) -> Future:
    """Begins to execute a page in a process of its own, whose working directory is `folder`."""
    return pool.submit(cells.execute, pages.cells(source), folder)


def as_markdown(name: str, source: str, outputs: list, folder: Path) -> list[str]:
    """Returns the outputs of each cell as Markdown; writes the pictures into `folder`."""
    place = folder / "outputs" / name
    shutil.rmtree(place, ignore_errors=True)
    pictures, written = 0, []
    for (options, _), (printed, drawn) in zip(pages.CELL.findall(source), outputs, strict=True):
        blocks = [f"```output\n{printed.rstrip()}\n```"] if printed else []
        alt = re.search(r"^ *alt: (.*)$", options, re.MULTILINE)
        for picture in drawn:
            pictures += 1
            path = place / f"{pictures}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(keep.reduced_png(io.BytesIO(base64.b64decode(picture))))
            link = os.path.relpath(path, (folder / name).parent)
            blocks.append(f"![{alt.group(1) if alt else 'What this code draws'}]({link})")
        written.append("".join(f"\n\n{block}" for block in blocks))
    return written


if __name__ == "__main__":
    main()
