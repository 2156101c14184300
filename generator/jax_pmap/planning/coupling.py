"""What to say when no collective makes a value whole: which code, which line, which way out."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jax_pmap.emit.decomposed import DIAGONALS, UPDATES, reduction
from jax_pmap.emit.places import Expression, Statement
from jax_pmap.model import Refusal, Span
from jax_pmap.problems import error_line, error_span, shown_file
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.syntax.text import in_one_line
from jax_pmap.worker.origins import is_users
from jax_pmap.worker.protocol import Raised

#: How jax and equinox speak of values whose types say that they differ between devices, or lie on a mesh,
#: where a loop, a closure or a state was made for values that do not. What is printed of both is the same.
NOT_INSIDE_A_MAP = re.compile(
    r"Closure-converted function|manual axis types do not match|to='varying'"
    r"|The old value is (.+) and the new value is \1\.$"
    r"|ShapeDtypeStruct\((shape=\([\d, ]*\), dtype=\w+)\)"
    r".+ShapeDtypeStruct\(\2, sharding=NamedSharding\(mesh=AbstractMesh",
    re.DOTALL,
)
#: The layer whose mode "ema" puts a constant into the state, where a map has a value of its own.
EQUINOX_BATCH_NORM = ("equinox", "nn", "_batch_norm.py")

#: Refusals of what no set of collectives makes whole: an operation, the statistics of a layer, a call
#: whose source cannot be read, a share that the function fails on, places that need two things at once.
COUPLED = frozenset({"JP043", "JP066", "JP067", "JP068", "JP069"})
#: Why the source of a function cannot be read, where nothing else is known of it.
UNKNOWN = "no module or class of yours defines it under that name, or its decorator is not known"


def coupled(
    facts: FunctionFacts,
    statement: Statement,
    culprit: Expression | None,
    closed: Mapping[str, str] = MappingProxyType({}),
) -> Refusal:
    """A value that is neither whole, nor a share, nor partial, made by `culprit`.

    `closed` is what was called and not found when it was to be looked into, and why.
    """
    span = culprit.span if culprit else statement.span
    text = culprit.text if culprit else ", ".join(name for name, _ in statement.names) or "this statement"
    short = shortened(text)
    called = [name for name in facts.called_parameters if short.startswith(f"{name}(")]
    if called:
        return Refusal(
            "JP053",
            f"`{short}` couples the examples of the batch inside `{called[0]}`, which is an argument",
            f"Call the function `{called[0]}` stands for directly, so that its reductions can be seen",
            span,
        )
    if re.match(r"[\w.]*\bwhile_loop\(", short):
        return Refusal(
            "JP067",
            f"`{short}` works on the whole batch in each round, and jax-pmap cannot read the source of what "
            "it runs or of what decides whether it goes on: devices that disagree would wait for each other "
            "for ever",
            "Write both as functions of this module; or count the rounds (jax.lax.fori_loop, or jax.lax.scan "
            "with length=), or try --backend jit, where the compiler keeps the global meaning",
            span,
        )
    unopened = unreadable(text, span, closed)
    if unopened is not None:
        return unopened
    return Refusal(
        "JP043",
        f"`{short}` couples the examples of the batch: on shards it is neither a share of the whole value "
        "nor a mean, sum, maximum or minimum of it",
        way_out(text, culprit.called if culprit else ""),
        span,
    )


def way_out(text: str, called: str) -> str:
    """What to do about an expression that couples the examples, maybe by what is `called` in it."""
    if not called and (bound := re.match(r"(?:functools\.)?partial\(\s*([\w.]+)", text)):
        called = bound[1]
    found = reduction(text, called)
    found = None if found is not None and found.name in DIAGONALS else found
    instead = f"Write it as `{found.written()}`" if found else "Compute it from sums or means over the batch"
    if found is not None and found.name in UPDATES.values():
        # Summing it apart from the table was tried.
        instead = "Make what each example gives with jax.vmap, and sum or stack that"
    if found is None and called and not called.startswith("jax."):
        instead = (
            f"Write what `{called}` does in a function of your own, from sums or means over the batch (where "
            "it is handed a loss of a library, a function of yours that calls that will do)"
        )
    if picks_rows(text, called):
        instead = (
            "Shuffle or pick rows before the call, and generate the function that works on them (the step on "
            "one minibatch)"
        )
    return (
        f"{instead}, keep it on one device, or try --backend jit, where the compiler keeps the global meaning"
    )


def picks_rows(text: str, called: str) -> bool:
    """Whether an expression takes rows by an array of positions, as what shuffles a batch does."""
    if called.rpartition(".")[2] in ("permutation", "shuffle", "take"):
        return True
    node: ast.AST | None = None
    with contextlib.suppress(SyntaxError):
        node = parsed_expression(text)
    positions = node.slice if isinstance(node, ast.Subscript) else None
    return isinstance(positions, ast.Name | ast.Call | ast.Subscript)


def unreadable(text: str, span: Span, closed: Mapping[str, str]) -> Refusal | None:
    """What couples examples is a call of one of `closed`, whose source cannot be read; None if it is not."""
    found = [each for each in closed if re.search(rf"(?<![\w.]){re.escape(each)}(?!\w)", text)]
    if not found:
        return None
    # What `getattr(self, name)` gives, and not `getattr`.
    called = max(found, key=len)
    return Refusal(
        "JP067",
        f"`{shortened(text)}` couples the examples of the batch, and jax-pmap cannot read the source of "
        f"`{shortened(called)}`: {closed[called] or UNKNOWN}",
        "Call the function by its own name there, or inside functools.partial, so that its reductions can be "
        "seen; write what a library's function does in one of your own; or try --backend jit, where the "
        "compiler keeps the global meaning",
        span,
    )


def result_not_whole(statement: Statement, leaves: Sequence[Mapping[str, Any]], all_partial: bool) -> Refusal:
    """A result whose `leaves` stay partial or varying although nothing before it is to blame."""
    if all_partial:
        paths = ", ".join(leaf["path"] or "result" for leaf in leaves[:4])
        return Refusal(
            "JP054",
            f"the result's leaves {paths} need different collectives, and their container cannot be rebuilt",
            "Assign the values to names before they are put into the container",
            statement.span,
        )
    return Refusal(
        "JP043",
        "the result couples the examples of the batch, and no collective makes it whole",
        "Compute it from sums or means over the batch, or try --backend jit",
        statement.span,
    )


def fails_in_any_map(name: str, error: Raised, span: Span, where: str = "") -> Refusal | None:
    """The refusal where a library of function `name` raises an `error` that it does inside every map."""
    if not NOT_INSIDE_A_MAP.search(error.message):
        return None
    of_equinox = any(Path(frame[0]).parts[-3:] == EQUINOX_BATCH_NORM for frame in error.frames)
    first = 'Give `eqx.nn.BatchNorm` mode="batch", which runs inside them; or try' if of_equinox else "Try"
    return Refusal(
        "JP068",
        f"a loop or a library that `{name}` uses does not run inside jax.pmap or jax.shard_map, "
        f"whatever the batch{where}: {error_line(error)}",
        f"{first} --backend jit, where nothing is mapped, or keep it on one device",
        span,
        final=True,
    )


def fails_on_share(facts: FunctionFacts, error: Raised, last: Statement | None, root: Path) -> Refusal:
    """The function runs on the whole batch and raises `error` on one device's share of it.

    Args:
        facts: of the function.
        error: what it raises.
        last: the statement that was begun last, of those that are looked into.
        root: the folder from which files are named.
    """
    where = f" after line {last.span.line}" if last else ""
    span = last.span if last else facts.span
    unmapped = fails_in_any_map(facts.name, error, error_span(error, root) or span, where)
    if unmapped is not None:
        return unmapped
    said = next((line.strip() for line in error.message.splitlines() if line.strip()), "")
    # Copies of what is looked into stand in no file.
    frames = [frame for frame in error.frames if frame[0].startswith("<") or is_users(frame[0])]
    if frames and Path(frames[-1][0]).is_file():
        span = Span(shown_file(frames[-1][0], root), frames[-1][1])
        where = f" in line {span.line} of {span.file}"
    return Refusal(
        "JP068",
        f"on one device's share of the batch the function fails{where}: {error.type}: {said}".rstrip(": "),
        "Some size in the function belongs to the whole batch (a constant, a reshape); take it from a "
        "shape instead, name the roles (--shard / --replicate), or try --backend jit",
        span,
    )


def shortened(text: str) -> str:
    """An expression on one line, at most 60 characters."""
    line = in_one_line(text)
    return line if len(line) <= 60 else line[:57] + "…"
