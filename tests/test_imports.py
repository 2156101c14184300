"""Modules of the package import each other one way only."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import jax_pmap

PACKAGE = Path(jax_pmap.__file__).parent


def imported(tree: ast.AST) -> Iterator[str]:
    """What a module imports, also in its functions; what it imports for its annotations alone left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (name for alias in node.names for name in (node.module, f"{node.module}.{alias.name}"))
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from imported(node)


def test_no_module_imports_itself_by_way_of_others():
    paths = {path.relative_to(PACKAGE.parent).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    modules = {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}
    graph = {
        module: {name for name in imported(ast.parse(path.read_bytes())) if name in modules} - {module}
        for module, path in modules.items()
    }
    for module, names in graph.items():
        # `from package import module` names the package, too, which need not know its modules.
        graph[module] = names - {name for name in names if any(o.startswith(f"{name}.") for o in names)}
    list(graphlib.TopologicalSorter(graph).static_order())
    assert len(graph) > 300
