"""JP107: functions that jax no longer has."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Edit, Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.rule import Rule, diagnostic

INVALID = (
    """\
import jax


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())
""",
    """\
from jax.experimental import maps

mesh = maps.Mesh([[0]], ("x", "y"))
""",
    """\
from jax.experimental.maps import xmap
""",
    """\
from jax.experimental.maps import Mesh as M
""",
    """\
import jax
import jax.numpy as jnp

kind = jax.sharding.PmapSharding.default((8, 2))
""",
)
VALID = (
    """\
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicate(tree):
    mesh = Mesh(np.array(jax.local_devices()), ("batch",))
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
""",
    """\
import jax

if hasattr(jax, "device_put_replicated"):
    put = jax.device_put_replicated
try:
    from jax.experimental.maps import Mesh
except ImportError:
    from jax.sharding import Mesh
""",
    """\
class Mine:
    device_put_replicated = None


jax = Mine()
jax.device_put_replicated
""",
)

_PUT = "place a copy with `jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))`"
#: Name -> since which version it is gone, what to use, and the name that is the very same thing.
_REMOVED: dict[str, tuple[str, str, str]] = {
    "jax.device_put_replicated": ("0.10", _PUT, ""),
    "jax.device_put_sharded": (
        "0.10",
        "stack the parts and place them with `jax.device_put(x, NamedSharding(mesh, PartitionSpec(axis)))`",
        "",
    ),
    "jax.sharding.PmapSharding": ("0.10", "use `jax.sharding.NamedSharding`", ""),
    "jax.sharding.PositionalSharding": ("0.10", "use `jax.sharding.NamedSharding`", ""),
    "jax.experimental.maps.Mesh": ("0.5", "use `jax.sharding.Mesh`", "jax.sharding.Mesh"),
    "jax.experimental.maps.xmap": ("0.5", "use `jax.shard_map`", ""),
    "jax.experimental.maps": ("0.5", "use `jax.shard_map` and `jax.sharding.Mesh`", ""),
    "jax.experimental.PartitionSpec": (
        "0.5",
        "use `jax.sharding.PartitionSpec`",
        "jax.sharding.PartitionSpec",
    ),
    "jax.experimental.global_device_array": ("0.5", "use `jax.make_array_from_callback`", ""),
    "jax.interpreters.sharded_jit": ("0.5", "use `jax.jit` with `in_shardings`", ""),
    "jax.interpreters.pxla.ShardedDeviceArray": ("0.5", "there is one array type: `jax.Array`", ""),
    "jax.interpreters.pxla.PartitionSpec": (
        "0.6",
        "use `jax.sharding.PartitionSpec`",
        "jax.sharding.PartitionSpec",
    ),
    "jax.interpreters.pxla.Mesh": ("0.6", "use `jax.sharding.Mesh`", "jax.sharding.Mesh"),
    "jax.soft_pmap": ("0.5", "use `jax.pmap` of a `jax.vmap`", ""),
    "jax.sharding.use_mesh": ("0.10", "use `jax.set_mesh`", ""),
}


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Uses and imports of what was removed, where the code does not ask whether it is there."""
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from _report(module, node, full)
        elif isinstance(node, ast.Attribute):
            name = module.qualname(node)
            parent = module.parents.get(node)
            whole = f"{name}.{parent.attr}" if isinstance(parent, ast.Attribute) else ""
            if name and whole not in _REMOVED:
                yield from _report(module, node, name)


def _report(module: Module, node: ast.ImportFrom | ast.Attribute, name: str) -> Iterator[Finding]:
    if name not in _REMOVED or module.is_guarded(node):
        return
    if isinstance(node, ast.ImportFrom) and name == "jax.experimental.maps" and _uses(module, node):
        return  # each use is reported, with its own cure
    since, cure, same = _REMOVED[name]
    edits: tuple[Edit, ...] = ()
    if same and isinstance(node, ast.Attribute) and not name.startswith("jax.experimental.maps"):
        edits = (module.replace(node, same), *module.import_edit("import jax"))
    elif same and isinstance(node, ast.ImportFrom) and len(node.names) == 1:
        package, _, last = same.rpartition(".")
        alias = f" as {node.names[0].asname}" if node.names[0].asname else ""
        edits = (module.replace(node, f"from {package} import {last}{alias}"),)
    yield module.finding(
        "JP107",
        node,
        f"`{name}` is gone since jax {since}",
        f"{cure[0].upper()}{cure[1:]}",
        edits,
    )


def _uses(module: Module, node: ast.ImportFrom) -> bool:
    names = {alias.asname or alias.name for alias in node.names}
    return any(
        isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id in names
        and module.qualname(each) in _REMOVED
        for each in module.nodes
    )


RULE = Rule(
    diagnostic(
        "JP107",
        "removed from jax",
        meaning="The code uses a function of jax for parallel work that current versions no longer have.",
        why="It is an `AttributeError` or `ImportError` as soon as jax is upgraded.",
        cure=(
            "Place arrays with `jax.device_put` and a `NamedSharding`; map with `jax.pmap` or "
            "`jax.shard_map`. "
            "Code that asks first (`hasattr`, `try`, a version) is left alone."
        ),
        invalid=INVALID[0],
        valid=VALID[0],
    ),
    find,
    VALID,
    INVALID,
)
DIAGNOSTIC = RULE.diagnostic
