"""JP123: simulated devices asked for when jax has its devices already."""

import ast
import re
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module

#: Functions that make jax look for its devices.
_START = frozenset(
    f"jax.{name}"
    for name in (
        *("devices", "local_devices", "device_count", "local_device_count", "default_backend", "device_put"),
        *("process_index", "process_count", "random.PRNGKey", "random.normal", "random.uniform"),
        *(
            f"numpy.{made}"
            for made in ("zeros", "ones", "arange", "array", "asarray", "full", "eye", "linspace")
        ),
    )
)
_CHILDREN = re.compile(r"subprocess|multiprocessing|os\.(?:exec|spawn|system|popen|fork)|ProcessPool|\bray\b")
_VARIABLES = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """At the top of the module, a use of devices followed by an assignment that would change their number."""
    started: ast.Call | None = None
    if _CHILDREN.search(module.text):
        return  # processes that are started later get the variable
    for statement in module.tree.body:
        if started is not None and isinstance(statement, ast.Assign) and _asks(module, statement):
            yield module.finding(
                "JP123",
                statement,
                f"the number of devices is settled: `{module.segment(started)}` in line {started.lineno} has "
                "started jax, so this changes nothing",
                "Move it to the top of the program, before jax is used",
            )
            return
        if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) and started is None:
            started = _start(module, statement)


def _start(module: Module, statement: ast.stmt) -> ast.Call | None:
    """A call that makes jax look for its devices, right when the statement runs."""
    for call in module.calls(statement):
        inside = module.enclosing_function(call) is not None
        if not inside and module.qualname(call.func) in _START:
            return call
    return None


def _asks(module: Module, statement: ast.Assign) -> bool:
    """``os.environ["XLA_FLAGS"] = "…device_count=8"``."""
    target = statement.targets[0]
    if not isinstance(target, ast.Subscript) or module.qualname(target.value) != "os.environ":
        return False
    name = module.constant(target.slice)
    if name not in _VARIABLES:
        return False
    return name != "XLA_FLAGS" or "xla_force_host_platform_device_count" in ast.unparse(statement.value)
