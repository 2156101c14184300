"""The primitive that a value passes where tracing it is to be seen, under every transformation of jax."""

from typing import Any

import jax
import jax.extend.core
from jax.interpreters import ad, batching, mlir

#: Hands on its operand. Its parameters: `index`, the number of the value, and `mapped`, the axes that `vmap`
#: has put into the operand, the innermost first.
mark_p = jax.extend.core.Primitive("jax_pmap_mark")
mark_p.def_impl(lambda x, **_: x)
mark_p.def_abstract_eval(lambda x, **_: x)
ad.primitive_jvps[mark_p] = lambda primals, tangents, **params: (mark_p.bind(*primals, **params), tangents[0])
ad.primitive_transposes[mark_p] = lambda cotangent, _, **__: [cotangent]
batching.primitive_batchers[mark_p] = lambda operands, axes, *, index, mapped: (
    mark_p.bind(*operands, index=index, mapped=(*mapped, axes[0])),
    axes[0],
)
# What is compiled while tracing, as under `jax.ensure_compile_time_eval`, may hold marks too.
mlir.register_lowering(mark_p, lambda _, operand, **__: [operand])


def is_no_mark(equation: Any) -> bool:
    """Whether an equation computes something."""
    return equation.primitive is not mark_p


def mark(value: Any, index: int) -> Any:
    """`value`, an array, with the number `index` in the jaxpr of whatever traces it."""
    return mark_p.bind(value, index=index, mapped=())
