"""Emitted code compiled, and not run: what a device holds, and what devices say to each other.

For TPUs that are not there, or for the simulated devices of this process.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

from . import meshes, prove
from .budget import peak, variable_bytes
from .compiled import memory_of, read
from .exceptions import summary
from .jaxpr.trace import Traced, abstract_leaves
from .jaxpr.walk import equations
from .protocol import HERE, Machine, Problem
from .trials import Emitted, Question


def compile_for(
    question: Question,
    emitted: Emitted,
    name: str,
    specs: "Mapping[str, Mapping[int, PartitionSpec]]",
) -> Machine:
    """What the compiler makes of emitted code for a topology such as ``"v5e:2x4"``, or for simulated devices.

    Where the memory of a chip does not suffice, the compiler's words alone.

    Args:
        question: the reference with its inputs, of which only shapes are used.
        emitted: the code.
        name: of the topology; `HERE` for as many simulated devices as the mesh of the code has.
        specs: how leaves of arguments lie, by argument and place; others are whole.

    Raises:
        Problem: ``"topology"`` for a name that the compiler does not know, or of other devices than the code
            takes; ``"inputs"`` for too small a batch.
    """
    if name == HERE and emitted.mesh is not None:
        devices = list(jax.devices()[: emitted.mesh.devices])
    else:
        devices = _devices(name)
    count = len(devices)
    if emitted.mesh is not None and emitted.mesh.devices != count:
        axes = ", ".join(f"{axis}={size}" for axis, size in emitted.mesh.axes.items())
        raise Problem("topology", f"it has {count} chips, and the mesh of {axes} {emitted.mesh.devices}")
    shares = (emitted.mesh.shares if emitted.mesh is not None else count) * question.minibatches
    base = question.rows
    size = base // shares * shares
    if not size:
        raise Problem("inputs", f"a batch of {base} is too small for the {shares} parts it is divided into")
    packed = question.packed
    leaves = abstract_leaves(packed, question.axes, size)
    jax.clear_caches()
    with prove.x64(question.x64), prove.shown(devices, len(devices)):
        function = emitted.define(count, question.x64)
        with meshes.set_inside():
            traced = Traced.of(lambda values: question.invoke(function, values), packed, leaves)
        mesh = next(_meshes(traced.jaxpr), None)
        if mesh is None:
            raise Problem("topology", "the code places nothing on a mesh")
        lie = [
            NamedSharding(mesh, specs.get(owner, {}).get(index, PartitionSpec()))
            for owner, index in packed.owners
        ]
        given = [i for i, (owner, _) in enumerate(packed.owners) if owner in emitted.donated]
        program = jax.jit(jaxpr_as_fun(traced.jaxpr), in_shardings=tuple(lie), donate_argnums=tuple(given))
        about = devices[0].device_kind, count, size
        try:
            compiled = program.lower(*leaves).compile()
        except Exception as error:
            lacks = lacking(str(error))
            if not lacks:
                raise Problem("topology", f"it does not compile: {summary(error)}") from error
            return Machine(*about, None, None, lacks)
    collectives = read(compiled.as_text() or "", size, dict(mesh.shape))
    return Machine(*about, memory_of(compiled.memory_analysis()), collectives, "")


def lacking(error: str) -> str:
    """What a compiler's error says of memory of a chip that does not suffice; ``""`` of another error.

    Compilers word it in several ways. Other memories (vmem) are of one kernel, and no array is to blame.
    """
    lines = re.sub(r"^(?:\w+: )?RESOURCE_EXHAUSTED: ", "", error).splitlines()
    said = (line for line in lines if re.search(r"(?:ran out of memory|exceed).*\bhbm\b", line, re.I))
    return next(said, "").strip()


def intermediate(question: Question, rows: int) -> int:
    """Bytes that the reference takes besides its arguments and results, for a batch of `rows`.

    They are counted operation by operation: a compiler that fuses operations takes less. 0 where the
    reference cannot be traced on so many rows.
    """
    packed = question.packed
    leaves = abstract_leaves(packed, question.axes, rows)
    with prove.x64(question.x64):
        try:
            jaxpr = Traced.of(question.traceable, packed, leaves).jaxpr.jaxpr
        except Exception:
            return 0
    at_rest = sum(map(variable_bytes, (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars)))
    return max(peak(jaxpr) - at_rest, 0)


def _devices(name: str) -> "list[Any]":
    """The chips of a topology."""
    from jax.experimental import topologies

    try:
        found = topologies.get_topology_desc(topology_name=name, platform="tpu")
    except Exception as error:
        raise Problem("topology", summary(error).partition("\n")[0]) from error
    return list(found.devices)


def _meshes(jaxpr: Any) -> Iterator[Any]:
    """The meshes of devices that stand in a program."""
    for equation in equations(jaxpr):
        waiting = [*equation.params.values()]
        while waiting:
            value = waiting.pop()
            if isinstance(value, (tuple, list)):
                waiting += value
            elif isinstance(value, NamedSharding) and isinstance(value.mesh, jax.sharding.Mesh):
                yield value.mesh
            elif isinstance(value, jax.sharding.Mesh):
                yield value
