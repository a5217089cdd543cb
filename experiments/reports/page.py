"""A report of a run as one HTML file: words, tables and figures inline, no script, no network."""

import base64
import html
import string
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import attnkernel as ak
from attnkernel._core.saving import write_atomically

from .. import PACKAGE
from ..runs import Run

Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # its columns, and its rows of text


class Picture(NamedTuple):
    """A figure of the run, by its name, and the sentence below it."""

    name: str
    caption: str


class Section(NamedTuple):
    """A part of a report: its title, a text, tables and figures."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


def write_page(
    run: Run, title: str, lead: str, sections: Sequence[Section], *, is_dark: bool = False
) -> None:
    """Writes `report.html` into the directory of a run, with the figures that it has saved.

    The notes of the run come first; a section without content is left out.
    """
    pages = resources.files(f"{PACKAGE}.pages")
    notes = [f"<li>{html.escape(each)}</li>" for each in run.notes]
    listed = f'<ul class="notes">{"".join(notes)}</ul>' if notes else ""
    body = "\n".join(_section(run, each) for each in sections if each.tables or each.pictures)
    content = string.Template((pages / "report.html").read_text(encoding="utf-8")).substitute(
        style=(pages / "style.css").read_text(encoding="utf-8"),
        theme="dark" if is_dark else "light",
        title=html.escape(title),
        lead=html.escape(lead),
        notes=listed,
        body=body,
        version=ak.__version__,
    )
    write_atomically(run.file("report.html"), content.encode())


def _section(run: Run, section: Section) -> str:
    """Returns a section as HTML."""
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f'<p class="text">{html.escape(section.text)}</p>')
    parts += map(_table, section.tables)
    if section.pictures:
        pictures = "".join(_picture(run, each) for each in section.pictures)
        parts.append(f'<div class="pictures">{pictures}</div>')
    return f"<section>\n{''.join(parts)}\n</section>"


def _table(table: Table) -> str:
    """Returns a table as HTML, which scrolls where it is wider than the page."""
    columns, rows = table
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns) if any(columns) else ""
    lines = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="scroll"><table>{top}<tbody>{lines}</tbody></table></div>'


def _picture(run: Run, picture: Picture) -> str:
    """Returns a saved figure of a run as HTML, its bytes inline."""
    data = (run.directory / "figures" / f"{picture.name}.png").read_bytes()
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    caption = html.escape(picture.caption, quote=True)
    return (
        f'<figure class="picture"><img alt="{caption}" src="{source}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
