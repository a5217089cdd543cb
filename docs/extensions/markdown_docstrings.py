"""Docstrings in Markdown: autodoc takes them as reStructuredText, so each goes into a directive
that reads its content with MyST. Examples are fenced blocks; one that starts with `>>>` outside of
a fence gets its fence here, as Markdown would read `>>>` as a quotation."""

from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.util.docutils import SphinxDirective


class Markdown(SphinxDirective):
    has_content = True

    def run(self):
        document = new_document(self.get_source_info()[0], self.state.document.settings)
        MystParser().parse("\n".join(self.content), document)
        return document.children


def fence_examples(lines):
    """Yields the lines, with a fence around each example that has none."""
    in_fence = in_example = False
    for line in lines:
        if in_example and not line.strip():
            yield "```"
            in_example = False
        if line.lstrip().startswith("```"):
            in_fence = not in_fence
        if line.startswith(">>>") and not (in_fence or in_example):
            yield "```python"
            in_example = True
        yield line
    if in_example:
        yield "```"


def wrap(app, what, name, obj, options, lines):
    lines[:] = [".. markdown::", "", *("   " + line for line in fence_examples(lines)), ""]


def setup(app):
    app.add_directive("markdown", Markdown)
    app.connect("autodoc-process-docstring", wrap)
    return {"parallel_read_safe": True}
