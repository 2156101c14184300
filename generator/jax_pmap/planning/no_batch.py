"""JP040: no axis to split, and where the batch is instead."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from collections.abc import Sequence

from jax_pmap.inputs.load import Loaded
from jax_pmap.model import Refusal, RefusalError, refused
from jax_pmap.problems import error_span, first_line
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.syntax.definitions import statements
from jax_pmap.worker import protocol
from jax_pmap.worker.scopes import bound_names, own_nodes, parameters

#: Rows from which on an array may be a batch.
ROWS = 8
#: Arrays around the target, and leaves of each of its arguments, that a message names.
SHOWN, LEAVES = 4, 6


def no_batch(
    session: Session,
    target: Target,
    loaded: Loaded,
    error: protocol.Raised | None,
    replicated: Sequence[str],
    only_state: bool = False,
) -> RefusalError:
    """The refusal of inputs without a batch.

    `error` is the one of tracing with fewer rows, if any, and `replicated` what `--replicate` names. With
    `only_state`, all arguments are parameters and the like by their names and uses, and why those cannot be
    cut says nothing.
    """
    error = None if only_state else error
    leaves = [leaf for argument in loaded.described for leaf in argument["leaves"]]
    scalars = bool(leaves) and not any(leaf["shape"] for leaf in leaves)
    listed = []
    for argument in loaded.described:
        listed += [f"{leaf['path']} {tuple(leaf['shape'])}" for leaf in argument["leaves"][:LEAVES]]
        if more := argument["leaves"][LEAVES:]:
            listed.append(f"{len(more)} more of `{argument['name']}`")
    shapes = ", ".join(listed)
    where = error_span(error, session.directory, target.source)
    why = ""
    if error:
        said = error.message.strip()
        if not said and where is not None and where.file == target.source.shown_path:
            # What a bare assert asks for stands in the file alone.
            said = f"`{target.parsed.lines[where.line - 1].strip()}`"
        why = f" (with fewer rows: {error.type}{f': {first_line(said)}' if said else ''})"
    reason = f"no axis was found along which the inputs of `{target.facts.name}` can be split{why}: "
    reason += shapes or "no arrays"
    if only_state:
        reason += "; by their names and uses, they are parameters and state"
    hint = f"{'Take sizes from shapes, or name the batch' if error else 'Name it'}: --shard NAME or "
    hint += "--shard NAME:AXIS"
    if option := other_axis(loaded):
        hint += f", here maybe {option}"
    if replicated:
        options = " ".join(f"--replicate {each}" for each in replicated)
        reason += f"; `{options}` keeps that whole on every device"
        hint = f"Leave `{options}` out, or name the batch: --shard NAME or --shard NAME:AXIS"
    if scalars:
        reason = f"all arrays among the arguments of `{target.facts.name}` are scalars ({shapes}): there is "
        reason += "no axis to split"
        hint = "Pass the examples as an array with an axis for them, and loop or vmap over it inside"
    if enclosed := enclosed_arrays(session, target):
        reason += f". It also reads {_listed(target, enclosed)}, no arguments of it"
        hint = f"If that is the batch: {_pass_it(target, enclosed)}. If not: {hint[0].lower()}{hint[1:]}"
    return refused("JP040", reason, hint, where or target.facts.span)


def other_axis(loaded: Loaded) -> str:
    """``"--shard x:1 --shard y:1"``: arguments that are equally long along another axis than the first."""
    places: dict[int, list[str]] = {}
    for argument in loaded.described:
        shapes = [leaf["shape"] for leaf in argument["leaves"] if leaf["shape"]]
        for size in {size for shape in shapes[:1] for size in shape[1:] if size >= ROWS}:
            axes = {shape.index(size) if size in shape else 0 for shape in shapes}
            if len(axes) == 1 and 0 not in axes:
                places.setdefault(size, []).append(f"--shard {argument['name']}:{axes.pop()}")
    most = max(places.values(), key=len, default=[])
    return " ".join(most) if len(most) > 1 else ""


def with_enclosed(session: Session, target: Target, refusal: Refusal) -> Refusal:
    """`refusal`, and what else may be the batch: arrays with the same number of rows around the function."""
    enclosed = enclosed_arrays(session, target)
    if len(enclosed) < 2:
        return refusal
    said = f"`{target.facts.name}` also reads {_listed(target, enclosed)}, no arguments of it. If that is "
    said += f"the batch: {_pass_it(target, enclosed)}"
    return dataclasses.replace(refusal, details=(*refusal.details, said))


def enclosed_arrays(session: Session, target: Target) -> list[protocol.EnclosedArray]:
    """Arrays around the target, or of its object, that may be a batch by their rows.

    Where some have the same number of rows, as inputs and labels have, those.
    """
    facts = target.facts
    read = {
        f"{facts.receiver}.{node.attr}": None
        for node in ast.walk(target.parsed.definition)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == facts.receiver
    }
    names = [*facts.closure_names, *facts.module_names, *sorted(read)]
    found = session.ask(protocol.EnclosedArrays(tuple(names)), "looking for the batch")
    arrays = [row for row in found if row.shape and row.shape[0] >= ROWS]
    rows, many = next(iter(Counter(row.shape[0] for row in arrays).most_common(1)), (0, 0))
    return [row for row in arrays if many == 1 or row.shape[0] == rows]


def _listed(target: Target, arrays: list[protocol.EnclosedArray]) -> str:
    """``"`x` (24, 3) and `y` (24,) of line 7"``."""
    words = []
    for row in arrays[:SHOWN]:
        line = _line_of(target, row.name)
        at = f" of line {line}" if line else ""
        words.append(f"`{row.path}` {row.shape}{at}")
    if len(arrays) > SHOWN:
        words.append(f"{len(arrays) - SHOWN} more")
    return ", ".join(words[:-1]) + f"{' and ' if words[1:] else ''}{words[-1]}"


def _pass_it(target: Target, arrays: list[protocol.EnclosedArray]) -> str:
    """What to type to have the batch as an argument."""
    known = {parameter.arg for parameter in parameters(target.parsed.definition.args)}
    names = [row.name.rpartition(".")[2] for row in arrays[:SHOWN]]
    through = list(dict.fromkeys(f"`{row.through}`" for row in arrays[:SHOWN] if row.through))
    made = ", ".join([*(p.arg for p in parameters(target.parsed.definition.args)), *dict.fromkeys(names)])
    if known & set(names):
        return "pass it as an argument"
    inner = f" and of {', '.join(through)}, where it is read" if through else ""
    return f"make it an argument, `def {target.facts.name}({made})`{inner}, and pass it where that is called"


def _line_of(target: Target, name: str) -> int | None:
    """The line where a name around the target, or an attribute of its object, gets its value."""
    for outer in reversed((target.parsed.tree, *target.parsed.enclosing)):
        if "." in name and isinstance(outer, ast.ClassDef):
            found = [
                node.lineno
                for node in ast.walk(outer)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node) == name
            ]
            return found[0] if found else None
        if "." in name or isinstance(outer, ast.ClassDef):
            continue
        if not isinstance(outer, ast.Module) and name in {p.arg for p in parameters(outer.args)}:
            return outer.lineno
        for statement, _ in statements(outer.body):
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef) and name in bound_names([statement]):
                stores = [n for n in own_nodes([statement]) if isinstance(n, ast.Name) and n.id == name]
                return stores[0].lineno
    return None
