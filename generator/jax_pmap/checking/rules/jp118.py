"""JP118: a donated array that is used again."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Names that were given to a donated argument and are read further down in the same block."""
    if not mappings.pmaps:
        return
    for call in module.all_calls:
        mapping = mappings.pmap_at(call.func)
        if mapping is None or not mapping.is_jax_pmap:
            continue
        node = mapping.application.argument(99, "donate_argnums")
        donated = module.constant(node) if node is not None else ()
        statement = module.statement(call)
        if not isinstance(statement, ast.Assign) or statement.value is not call:
            continue
        for position in donated if isinstance(donated, tuple) else (donated,):
            if not isinstance(position, int) or not 0 <= position < len(call.args):
                continue
            given = call.args[position]
            if isinstance(given, ast.Name):
                again = _read_again(module, statement, given.id)
                if again is not None:
                    yield module.finding(
                        "JP118",
                        again,
                        f"`{given.id}` was donated to `{module.segment(call.func)}` above: its buffers are "
                        "gone",
                        f"Use what was returned, or leave argument {position} out of `donate_argnums`",
                    )


def _read_again(module: Module, statement: ast.Assign, name: str) -> ast.Name | None:
    """The first read of `name` in the statements after `statement`, up to where it is assigned anew."""
    if any(
        each.id == name
        for target in statement.targets
        for each in ast.walk(target)
        if isinstance(each, ast.Name)
    ):
        return None
    parent = module.parents[statement]
    blocks = [getattr(parent, part, None) for part in ("body", "orelse", "finalbody")]
    block = next((each for each in blocks if isinstance(each, list) and statement in each), [])
    for later in block[block.index(statement) + 1 :]:
        if not isinstance(later, ast.Assign | ast.Expr | ast.Return | ast.AnnAssign):
            return None  # what branches and loops do with it is not followed
        names = [each for each in ast.walk(later) if isinstance(each, ast.Name) and each.id == name]
        reads = [each for each in names if isinstance(each.ctx, ast.Load)]
        if reads:
            return reads[0]
        if names:
            return None
    return None
