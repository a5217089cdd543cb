"""Public names: which they are, their signatures as the source has them, and links to them.

A literal such as `ak.Gaussian(0.3)` in text, or `Gaussian` in a docstring, links to the reference.
{source}`attnkernel.kernels.Gaussian.log_of` links to the lines of the source.
"""

import ast
import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxRole

PACKAGES = (
    "",
    *(".data", ".kernels", ".priors", ".rules", ".families", ".losses"),
    *(".methods", ".recurrent", ".attention", ".local", ".nn", ".models"),
    *(".objectives", ".fitting", ".inference", ".econometrics", ".plot", ".sklearn"),
)
# names in signatures that get no link: types of other packages, and private aliases
UNLINKED = re.compile(
    "Any|AnyArray|Array|ArrayLike|Axes|Bool|Callable|DTypeLike|Float|GradientTransformation|Int|"
    "Literal|Fixed|Matrix|Mesh|Number|PRNGKeyArray|Path|PathLike|PyTree|Sequence|"
    "ShapeDtypeStruct|ndarray|"
    "BatchOfKeys|BatchOfQueries|CachedRows|Inputs|Keys|OfKeys|Queries|Scores|"
    "Labels|NewInputs|Predictions|RowWeights|Scalar|Values|"
    "Callback|Estimator|History|InfluenceSums|Kept|LocalFit|Numbers|OfHeads|OnEmpty|ProcessHeads|Projection|"
    "Parts|Precision|QueryFrame|Rows|ScoreOfPair|Tree"
)


def public() -> dict[str, set[str]]:
    """Returns each public object by its name in the reference, with all of its public names.

    A name is public if its package, or the stub of its package, imports it `as` itself, or defines
    it without an underscore.
    """
    found, of_thing = {}, {}
    for package in PACKAGES:
        module = import_module("attnkernel" + package)
        path, stub = (Path(module.__file__).with_suffix(ending) for ending in (".py", ".pyi"))
        for name in _exported(ast.parse((stub if stub.is_file() else path).read_text())):
            thing, full = getattr(module, name), f"{module.__name__}.{name}"
            if not inspect.ismodule(thing):
                first = of_thing.setdefault(id(thing), full) if callable(thing) else full
                found.setdefault(first, set()).add(full)
    return found


def _exported(tree: ast.Module | ast.If) -> list[str]:
    names = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.If):  # what is imported at its first use
            names += _exported(node)
    return [name for name in names if not name.startswith("_")]


def signature_from_source(app, what, name, thing, options, signature, returns):
    """Returns the signature of the source: shapes of arrays as strings, defaults as expressions."""
    if what == "class":
        if not isinstance(thing, type) or issubclass(thing, Exception):
            return "", None
        try:
            arguments, _ = _parsed(thing.__init__)
        except (OSError, TypeError):
            return f"({', '.join(_fields(thing))})", None
        return f"({arguments.removeprefix('self').removeprefix(', ')})", None
    if what in ("function", "method"):
        arguments, returns = _parsed(thing)
        return f"({re.sub('^(self|cls)(, )?', '', arguments)})", returns
    return None


def _parsed(function) -> tuple[str, str | None]:
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise OSError(f"{function} has no definition in a source file")
    return ast.unparse(node.args), node.returns and ast.unparse(node.returns)


def _fields(thing: type) -> list[str]:
    """Returns the annotated fields of a class, from which its constructor is made."""
    fields = {}
    for base in reversed(thing.__mro__):
        if not base.__module__.startswith("attnkernel"):
            continue
        for node in ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body:
            if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
                fields[node.target.id] = ast.unparse(node)
    return list(fields.values())


def link_literals(app, doctree):
    """Replaces literals that are public names by references."""
    linked = nodes.reference | addnodes.pending_xref | nodes.title
    for literal in list(doctree.findall(nodes.literal)):
        found = re.fullmatch(r"(ak\.|attnkernel\.)?([A-Za-z_][\w.]*)(\(.*\))?", literal.astext())
        if not found or isinstance(literal.parent, linked):
            continue
        prefix, name, _ = found.groups()
        if not prefix and not re.search("[A-Z_.]", name):
            continue  # `fit` without `ak.` may be the name of an argument
        names = app.env.attnkernel_names if prefix or "." in name else app.env.attnkernel_bare
        if name in names:
            link = addnodes.pending_xref("", refdomain="py", reftype="obj", refwarn=True)
            link["reftarget"], link["refdoc"] = names[name], app.env.current_document.docname
            literal.replace_self(link)
            link += literal


def add_source_anchors(app, doctree):
    """Adds the anchors to which viewcode links from a source file.

    viewcode assumes one package for all names of a file, but `attnkernel.kernels.Kernel` and
    `attnkernel.kernels.Product` share a file.
    """
    here = app.env.current_document.docname
    for entry in filter(None, vars(app.env).get("_viewcode_modules", {}).values()):
        _, _, used, prefix = entry
        for signature in doctree.findall(addnodes.desc_signature):
            name = signature.get("fullname")
            if used.get(name) == here and f"{prefix}.{name}" not in signature["ids"]:
                signature["ids"].append(f"{prefix}.{name}")


def resolve_by_last_part(app, env, node, contnode):
    """Resolves a name in a signature by its last part; names of other packages stay text."""
    target = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py":
        return None
    if UNLINKED.fullmatch(target):
        return contnode
    full = env.attnkernel_bare.get(target)
    if full is not None and full != node["reftarget"]:
        node = node.copy()
        node["reftarget"], node["reftype"] = full, "obj"
        return env.domains["py"].resolve_xref(
            env, node["refdoc"], app.builder, "obj", full, node, contnode
        )
    return None


def defined(text: str) -> tuple[Any, str]:
    """Returns an object by its full name, unwrapped, and the part of the name after the module."""
    parts = text.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = import_module(".".join(parts[:cut]))
            break
        except ModuleNotFoundError:
            continue
    for part in parts[cut:]:
        thing = getattr(thing, part)
    thing = inspect.unwrap(thing.fget if isinstance(thing, property) else thing)
    return thing, ".".join(parts[cut:])


class Source(SphinxRole):
    """Links to the lines of the source that define an object."""

    def run(self):
        thing, _ = defined(self.text)
        module, name = thing.__module__, thing.__qualname__
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.find_tags()
        if name not in analyzer.tags:
            raise ExtensionError(f"{module} defines no {name}")
        modules = vars(self.env).setdefault("_viewcode_modules", {})
        if not modules.get(module):
            modules[module] = analyzer.code, analyzer.tags, {}, module
        _, _, used, prefix = modules[module]
        here = self.env.current_document.docname
        # the source links back to this place, unless the reference documents the object
        place = nodes.inline(
            "", "", ids=[f"{prefix}.{name}"] if used.setdefault(name, here) == here else []
        )
        uri = self.env._app.builder.get_relative_uri(here, "_modules/" + module.replace(".", "/"))
        place += nodes.reference("", "", nodes.literal("", name), refuri=f"{uri}#{name}")
        return [place], []


def collect_public_names(app):
    """Stores the public names, qualified and, if unambiguous, by their last part."""
    named, bare = {}, {}
    for full, aliases in public().items():
        named |= {alias.removeprefix("attnkernel."): full for alias in aliases}
        bare.setdefault(full.rpartition(".")[2], set()).add(full)
    app.env.attnkernel_names = named
    app.env.attnkernel_bare = {name: full.pop() for name, full in bare.items() if len(full) == 1}


def setup(app):
    app.connect("builder-inited", collect_public_names)
    app.connect("autodoc-process-signature", signature_from_source)
    app.connect("doctree-read", link_literals)
    app.connect("doctree-read", add_source_anchors, priority=600)  # after viewcode
    app.connect("missing-reference", resolve_by_last_part)
    app.add_role("source", Source())
    return {"parallel_read_safe": True}
