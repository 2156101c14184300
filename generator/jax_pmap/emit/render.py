"""From a woven function and its plan to the text of a module.

Decisions are made in `context`, syntax is in the Jinja templates, layout is black's.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jax_pmap.emit.axes import used_axes
from jax_pmap.emit.context import LIBRARIES, Context, libraries_of, over_devices
from jax_pmap.emit.function import EmitUnit
from jax_pmap.emit.header import Header
from jax_pmap.emit.imports import import_block
from jax_pmap.emit.names import ALIASES, names_for
from jax_pmap.emit.templates import environment
from jax_pmap.files import seal
from jax_pmap.model import Backend, Plan

#: Columns of an emitted file.
WIDTH = 88


def render(unit: EmitUnit, plan: Plan, backend: Backend, header: Header) -> str:
    """Return the text of the module that runs `unit` on many devices.

    The same arguments always give the same text, and black leaves it as it is.

    Args:
        unit: the function. Its body holds collectives for pmap and shard_map, none for jit.
        plan: what happens to each argument and output; one `Argument` per parameter, in order.
        backend: the form of the code; picks the template.
        header: what the first lines record.

    Raises:
        ValueError: there is no batch, or plan and parameters do not fit together.
    """
    context = _context(unit, plan, backend, header).values()
    return seal(tidy(environment().get_template("module.py.jinja").render(context)))


def contents_source() -> str:
    """The helper `contents` of emitted code as a module of its own."""
    names = names_for("f", frozenset())
    imports = import_block((), (), (), names, ("functools", "hashlib", "jax", "np", "sys", "types"))
    template = environment().get_template("partials/contents.jinja")
    return f"{imports}\n\n{template.render(n=names, scales=True)}"


def over_devices_source(layers: Sequence[str], in_maps: bool, axis_name: str) -> str:
    """The helper `over_devices` of emitted code, for the libraries of a plan, as a module of its own."""
    names = names_for("f", frozenset())
    used = [alias for alias, module in LIBRARIES.items() if module in libraries_of(layers)]
    used += ["nnx"] if "flax.nnx" in layers else []
    used += ["eqx"] if "equinox.nn" in layers else []
    imports = import_block((), (), (), names, ("functools", "jax", *used))
    template = environment().get_template("partials/over_devices.jinja")
    helper = template.render(n=names, **over_devices(names, layers, in_maps))
    return f"{imports}\n\n{names.axis} = {axis_name!r}\n\n{helper}"


@dataclass(frozen=True, slots=True)
class Pieces:
    """What goes into the user's own file; layout is black's, the width that of a module."""

    #: Axis name and helpers, behind the imports.
    helpers: str
    #: Mapped function and drop-in, with `BODY`, `DOCSTRING` and ``def DROP_IN():`` for the user's text.
    function: str
    #: The body of the mapped function, dedented.
    body: str
    #: (module, name) pairs of the container types that the code names.
    types: tuple[tuple[str, str], ...]
    #: Keys of `ALIASES` that the code uses.
    needed: frozenset[str]


#: Stand for lines of the user's, which are put there as they are.
BODY, DOCSTRING, DROP_IN = "__jax_pmap_body__", "__jax_pmap_docstring__", "__jax_pmap_drop_in__"


def render_pieces(
    unit: EmitUnit, plan: Plan, backend: Backend, header: Header, at: str, width: int
) -> Pieces:
    """The same code as `render` gives, in the pieces that an edit of the user's file needs.

    Args:
        unit: the function, with `chosen_names` that fit the file.
        plan: what happens to each argument and output.
        backend: the form of the code.
        header: what the mark above the function records.
        at: what stands before the names of functions beside a method: ``"Trainer."``.
        width: columns for the function.

    Raises:
        ValueError: as `render`.
    """
    made = _context(unit, plan, backend, header, at)
    context = {**made.values(), "signature": f"def {DROP_IN}():", "body": f"    {BODY}"}
    if backend is Backend.SHARD_MAP:
        context["body"] = f"        {BODY}"
    if unit.docstring is not None:
        context["user_docstring"] = f'"""{DOCSTRING}"""'
    helpers = tidy(environment().get_template("in_place_helpers.py.jinja").render(context))
    function = tidy(environment().get_template("in_place_function.py.jinja").render(context), width)
    ahead = "\n".join(made.first_lines())
    body = made.partition.body(unit.body, tidy(ahead, width - 4).splitlines() if ahead else ())
    used = {
        node.id
        for text in (helpers, function, body)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name)
    }
    return Pieces(
        helpers,
        function,
        body,
        tuple(made.types),
        frozenset(alias for alias in ALIASES if getattr(unit.names, alias) in used),
    )


def _context(unit: EmitUnit, plan: Plan, backend: Backend, header: Header, at: str = "") -> Context:
    if [a.name for a in plan.arguments] != [p.name for p in unit.parameters]:
        raise ValueError(f"the plan's arguments are not those of {unit.name}")
    if not plan.made and not any(used_axes(a.axes) for a in plan.arguments):
        raise ValueError(f"no argument of {unit.name} holds a batch")
    return Context(unit, plan, backend, header, at)


def tidy(code: str, width: int = WIDTH) -> str:
    """Format as black does, for the oldest Python the emitted code runs on."""
    import black
    from black.mode import TargetVersion

    mode = black.Mode(line_length=width, target_versions={TargetVersion.PY310})
    return black.format_str(code, mode=mode)
