"""Docstrings in Markdown: autodoc takes them as reStructuredText, so each goes into a directive
that reads its content with MyST."""

from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.util.docutils import SphinxDirective


class Markdown(SphinxDirective):
    has_content = True

    def run(self):
        document = new_document(self.get_source_info()[0], self.state.document.settings)
        MystParser().parse("\n".join(self.content), document)
        return document.children


def wrap(app, what, name, obj, options, lines):
    lines[:] = [".. markdown::", "", *("   " + line for line in lines), ""]


def setup(app):
    app.add_directive("markdown", Markdown)
    app.connect("autodoc-process-docstring", wrap)
    return {"parallel_read_safe": True}
