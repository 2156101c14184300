"""The rules over one text: parse it, ask every rule, leave out what comments switch off."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from jax_pmap.checking.findings import Finding, sorted_findings
from jax_pmap.checking.suppress import unsuppressed
from jax_pmap.model import RefusalError, Span

if TYPE_CHECKING:
    from jax_pmap.checking.mapped import Mappings
    from jax_pmap.checking.module import Module

#: Finds one mistake that can be seen without running, wherever it is in a module.
Rule = Callable[["Module", "Mappings"], Iterator[Finding]]

#: Mistakes that end in an error: code that catches it shows it on purpose.
_RAISE = frozenset({"JP101", "JP102", "JP103", "JP108", "JP109", "JP115", "JP116"})
#: A text without one of these words has nothing that a rule is about, and is not even parsed.
ABOUT = re.compile(
    rb"pmap|shard_map|p(?:sum|mean|max|min)\b|all_gather|psum_scatter|axis_index|device_put_(?:repl|shard)"
    rb"|PmapSharding|device_count|JAX_NUM_CPU_DEVICES|PositionalSharding"
    rb"|use_mesh|experimental|jax\.interpreters|global_device_array|\bMesh\b|make_mesh|with_sharding_constraint"
    rb"|GSPMDSharding|pvary|\.vma\b|axis_frame|axis_env|host_count|host_id|jax\.lib\b|jax_cpu_enable_gloo"
)


@functools.cache
def rules() -> tuple[Rule, ...]:
    """The `find` of each file in `rules/`, in the order of the codes; adding a file registers it."""
    from jax_pmap.checking import rules as package

    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(importlib.import_module(f"{package.__name__}.{name}").find for name in names)


def check_text(text: str, shown: str) -> list[Finding]:
    """Every finding of every rule in a Python text.

    Args:
        text: the decoded text of a file.
        shown: the file's name in messages.
    """
    from jax_pmap.sources import parse

    try:
        tree = parse(text, shown)
        return _check_tree(text, shown, tree)
    except RefusalError as error:
        assert error.refusal.span is not None
        return [Finding("JP005", error.refusal.reason, error.refusal.hint, error.refusal.span)]
    except RecursionError:
        reason = f"`{shown}` is nested too deeply to be read"
        return [Finding("JP005", reason, "Break up its longest expression.", Span(shown, 1))]


def _check_tree(text: str, shown: str, tree: ast.Module) -> list[Finding]:
    from jax_pmap.checking.mapped import Mappings
    from jax_pmap.checking.module import Module

    module = Module(text, shown, tree)
    mappings = Mappings(module)
    caught = module.caught_lines()
    found = [
        finding
        for find in rules()
        for finding in find(module, mappings)
        if not (finding.code in _RAISE and finding.span.line in caught)
    ]
    # A function inside another is met in both, and one that is mapped twice is looked at twice.
    return unsuppressed(sorted_findings(list(dict.fromkeys(found))), module.lines)
