"""For each rule of the placements, functions that bind its primitive, and the operands they are given.

An operand is its kind and its shape at whole size: ``"f:12,3"``. Axes of 12 are those that are divided over
devices. A function that takes `b` is given the number of rows at hand in it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name


@dataclass(frozen=True)
class Example:
    """A function that binds primitives, and the operands it is given."""

    #: The primitives.
    names: tuple[str, ...]
    run: Callable[..., Any]
    operands: tuple[str, ...]
    #: What the whole-batch program has in its stead: of collectives.
    whole: Callable[..., Any] | None = None
    #: Only the placements that matter most, of each operand.
    few: bool = False

    @property
    def takes_rows(self) -> bool:
        """Whether it is given the number of rows at hand."""
        return list(inspect.signature(self.run).parameters)[len(self.operands) :][:1] == ["b"]


#: By the first primitive that they bind.
EXAMPLES: dict[str, list[Example]] = {}


def example(
    names: str, run: Callable[..., Any], *operands: str, whole: Any = None, few: bool = False
) -> None:
    """One more way in which primitives are applied."""
    made = Example(tuple(names.split()), run, operands, whole, few or len(operands) > 2)
    EXAMPLES.setdefault(made.names[0], []).append(made)


# --- element by element -----------------------------------------------------------------------

for name, kind in {
    "exp": "f",
    "log": "p",
    "log1p": "p",
    "expm1": "f",
    "tanh": "f",
    "logistic": "f",
    "sqrt": "p",
    "cbrt": "f",
    "floor": "f",
    "ceil": "f",
    "round": "f",
    "sin": "f",
    "cos": "f",
    "tan": "u",
    "asin": "u",
    "acos": "u",
    "atan": "f",
    "sinh": "f",
    "cosh": "f",
    "asinh": "f",
    "acosh": "g",
    "atanh": "u",
    "erf": "f",
    "erfc": "f",
    "erf_inv": "u",
    "lgamma": "p",
    "digamma": "p",
    "bessel_i0e": "f",
    "bessel_i1e": "f",
    "exp2": "f",
    "is_finite": "j",
    "neg": "f",
    "abs": "f",
    "sign": "f",
    "rsqrt": "p",
    "square": "f",
    "conj": "c",
    "real": "c",
    "imag": "c",
}.items():
    example(name, getattr(lax, name), f"{kind}:12,4")
for name in ["abs", "sign", "neg", "square"]:
    example(name, getattr(lax, name), "m:12")
for name in ["clz", "population_count"]:
    example(name, getattr(lax, name), "m:12,4")
example("not", lax.bitwise_not, "b:12,4")
example("not", lax.bitwise_not, "m:12,4")
example("neg", lax.neg, "c:12")
example("integer_pow", lambda x: lax.integer_pow(x, 3), "f:12,4")
example("integer_pow", lambda x: lax.integer_pow(x, -2), "p:12,4")
example("integer_pow", lambda x: lax.integer_pow(x, 2), "m:12")
example("integer_pow", lambda x, b: lax.integer_pow(x, b), "u:4")
for kind, dtype in [
    ("f", jnp.float32),
    ("m", jnp.float64),
    ("m", jnp.int8),
    ("m", jnp.uint32),
    ("f", jnp.int32),
    ("b", jnp.float64),
    ("b", jnp.int32),
    ("f", jnp.bool_),
    ("m", jnp.bool_),
    ("w", jnp.uint8),
    ("w", jnp.int64),
    ("c", jnp.complex64),
]:
    example("convert_element_type", lambda x, dtype=dtype: lax.convert_element_type(x, dtype), f"{kind}:12,4")
#: Of a number that is known while tracing as well.
TO_INT = jax.jit(lambda x: lax.convert_element_type(x, jnp.int32))
example("convert_element_type", lambda x, b: x * TO_INT(jnp.float64(b)), "i:12")
example("convert_element_type", lambda x, b: x * TO_INT(30.0 / b), "i:12")
example("reduce_precision", lambda x: lax.reduce_precision(x, 11, 52), "f:12,4")
for name in ["regularized_incomplete_beta"]:
    example(name, lax.betainc, "p:12", "p:12", "h:12")
example("igamma", lax.igamma, "p:12", "p:12")
example("igammac", lax.igammac, "p:12", "p:12")
example("igamma_grad_a", lax.igamma_grad_a, "p:12", "p:12")
example("zeta", lax.zeta, "g:12", "g:12")
example("polygamma", lambda x: lax.polygamma(jnp.ones_like(x), x), "p:12")
example("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint64), "f:12,4")
example("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint32), "f:12")
example("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint64), "w:12,2")
example("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint64), "w:2,12,2")
#: What is added to rows alike, and what becomes of that.
example("add", lambda x, y: x + y[None], "f:12,4", "f:4")
example("sub", lambda x, y: y - x * 2.0, "f:12", "f:")
example("reduce_sum", lambda x, b: jnp.sum(jnp.broadcast_to(x, (b, 4)), 0), "f:4")
example("reduce_sum", lambda x, y, b: jnp.sum(jnp.broadcast_to(x, (b, 4)) - y, 0), "f:4", "f:4")
example("mul", lambda x, y, z: (x + y) * z, "f:12", "f:", "f:12")
example("transpose", lambda x, y: (x + y[None]).T.reshape(4, 1, -1)[:, 0] / 3.0, "f:12,4", "f:4")
example("copy", jnp.copy, "f:12,4")
example("stop_gradient", lax.stop_gradient, "f:12,4")
example("name", lambda x: checkpoint_name(x, "kept"), "f:12,4")
example("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), "f:12,4", "f:3")
example("device_put", lambda x: jax.device_put(x, jax.devices()[0]), "f:12,4")
example(
    "sharding_constraint",
    lambda x: lax.with_sharding_constraint(x, jax.sharding.SingleDeviceSharding(jax.devices()[0])),
    "f:12,4",
)
for names, run in {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "max": lax.max,
    "min": lax.min,
    "eq": lax.eq,
    "ne": lax.ne,
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
}.items():
    example(names, run, "f:12,4", "f:12,4")
    example(names, run, "f:12,4", "f:")
    if names in ("ne", "le", "gt", "ge"):
        continue  # As `eq` and `lt`.
    example(names, run, "m:12", "n:12")
    if names != "div":
        example(names, lambda x, run=run: run(x, 0.0), "f:12")
    example(names, lambda x, run=run: run(x, -2.5), "f:12")
    example(names, lambda x, b, run=run: run(x, 2.0 * b), "f:12")
    example(names, lambda x, b, run=run: run(x, 1 / b), "f:4")
    example(names, lambda x, b, run=run: run(x, b), "m:12")
    example(names, lambda x, b, run=run: run(jnp.zeros(b), x), "f:12")
    example(names, lambda x, run=run: run(jnp.zeros(4), x), "f:4")
    if names != "ge":
        example(names, lambda x, b, run=run: run(jnp.float64(b), jnp.float64(3 * b)) * x, "f:4")
for name in ["add", "sub", "mul", "div", "eq", "ne"]:
    example(name, getattr(lax, name), "c:12", "c:12")
for name in ["eq_to", "le_to", "lt_to"]:
    if hasattr(lax, f"{name}_p"):
        example(name, lambda x, y, name=name: getattr(lax, f"{name}_p").bind(x, y), "r:12", "r:12")
example("max min", lambda x, y: (lax.max(x, y), lax.min(x, y)), "b:12", "b:12")
example("lt", lambda x, b: x * lax.select(lax.lt(jnp.arange(b), 0), jnp.zeros(b), jnp.ones(b)), "f:12")
for name in ["atan2", "nextafter"]:
    example(name, getattr(lax, name), "f:12,4", "f:12,4")
example("pow", lax.pow, "p:12,4", "f:12,4")
example("pow", lax.pow, "p:12,4", "f:")
example("pow", lambda x, b: lax.pow(x, jnp.float64(b)), "p:4")
example("rem", lax.rem, "f:12", "p:12")
example("rem", lax.rem, "m:12", "n:12")
example("rem", lambda x, b: lax.rem(x, b), "m:4")
for name in ["and", "or", "xor"]:
    for kind in "bm":
        example(name, getattr(lax, f"bitwise_{name}"), f"{kind}:12,4", f"{kind}:12,4")
for name in ["shift_left", "shift_right_logical", "shift_right_arithmetic"]:
    example(name, getattr(lax, name), "m:12", "n:12")
if hasattr(lax, "one_minus_square_p"):  # jax 0.12
    example("log2", lax.log2, "p:12")
    example("one_minus_square", lax.one_minus_square_p.bind, "f:12")
    example("polynomial", lambda x, y: lax.polynomial(x, [1.0, y, 2.0, 3.0]), "f:12", "f:")
if hasattr(lax, "mulhi"):
    example("mulhi", lax.mulhi, "w:12", "w:12")
example("complex", lax.complex, "f:12", "f:12")
example("clamp", lax.clamp, "f:12", "f:12", "f:12")
example("clamp", lambda x, y: lax.clamp(-0.5, x, y), "f:12", "p:")
example("select_n", lambda w, x, y: lax.select_n(w, x, y), "b:12,2", "f:12,2", "f:12,2")
example("select_n", lambda w, x, y: lax.select_n(w, x, y), "b:", "f:12,2", "f:12,2")
example("select_n", lambda w, x: lax.select_n(w, x, jnp.zeros_like(x)), "b:12,2", "f:12,2")
example("select_n", lambda w, x: lax.select_n(w, jnp.zeros_like(x), 3.0 * x), "b:", "f:4")
example("select_n", lambda w, x, y: lax.select_n(w, x, y, x), "x3:12", "i:12", "i:12")
example("select_n", lambda w, x, b: lax.select_n(w, x, jnp.full(4, 1 / b)), "b:4", "f:4")
example("select_n", lambda x, b: lax.select_n(jnp.zeros(b, bool), x, jnp.full(b, jnp.nan)), "f:12")

# --- shapes -----------------------------------------------------------------------------------

example("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (5, *x.shape), (1, 2)), "f:12,4")
example("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (x.shape[0], 4), (0, 1)), "f:12,1")
example("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (2, x.shape[1]), (0, 1)), "f:1,12")
example("broadcast_in_dim", lambda x, b: lax.broadcast_in_dim(x, (b, *x.shape), (1,)), "f:4")
example("broadcast_in_dim", lambda x, b: lax.broadcast_in_dim(x, (b, *x.shape), (1,)), "f:12")
example("broadcast_in_dim", lambda x, b: lax.broadcast_in_dim(x, (4, b), ()), "f:")
example("broadcast_in_dim", lambda x, b: lax.broadcast_in_dim(x, (b, 4), (0, 1)), "f:1,4")
example("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (3, 4), (1,)), "m:4")
example("tile", lambda x: jnp.tile(x, (3, 2)), "f:12,4")
example("tile", lambda x, b: jnp.tile(x, (b, 1)), "f:1,4")
example("tile", lambda x, b: jnp.tile(x, (b, 2)), "f:3,4")
example("tile", lambda x, b: jnp.tile(x, (1, b)), "f:12,4")
for before, after in [
    ("12,4", lambda b: (b * 4,)),
    ("12,4", lambda b: (b, 2, 2)),
    ("4,12", lambda b: (4 * b,)),
    ("12", lambda b: (b, 1)),
    ("4,12", lambda b: (2, 2, b)),
    ("4,12", lambda b: (2, 2 * b)),
    ("2,12,3", lambda b: (2, 3 * b)),
    ("2,12,3", lambda b: (2 * b, 3)),
    ("2,12,3", lambda b: (2, 3, b)),
    ("12,4", lambda b: (4, b)),
    ("4,3", lambda b: (3, 4)),
    ("12,2", lambda b: (2 * b,)),
    ("1,12", lambda b: (b, 1)),
    ("12,1", lambda b: (1, b)),
    ("12", lambda b: (2, b // 2)),
    ("12", lambda b: (b // 2, 2)),
]:
    example("reshape", lambda x, b, after=after: lax.reshape(x, after(b)), f"f:{before}")
for before, after in [
    ("12,4", (48,)),
    ("12,4", (12, 2, 2)),
    ("4,12", (48,)),
    ("12", (2, 6)),
    ("12", (3, 4)),
    ("12", (12, 1)),
    ("4", (4, 1)),
]:
    example("reshape", lambda x, after=after: lax.reshape(x, after), f"f:{before}")
example("reshape", lambda x, b: lax.reshape(x, (4 * b,), dimensions=(1, 0)), "f:12,4")
example("reshape", lambda x, b: lax.reshape(x, (4 * b,), dimensions=(1, 0)), "f:4,12")
example("reshape", lambda x: lax.reshape(x, (12,), dimensions=(1, 0)), "f:4,3")
example("reshape", lambda x, b: lax.reshape(x, (3, 2 * b), dimensions=(1, 0, 2)), "f:12,3,2")
example("reshape", lambda x: jnp.ravel(x, order="F"), "f:12,4")
example("squeeze", lambda x: lax.squeeze(x, (0,)), "f:1,12,4")
example("squeeze", lambda x: lax.squeeze(x, (1, 2)), "f:12,1,1")
example("transpose", lambda x: lax.transpose(x, (2, 0, 1)), "f:12,4,2")
example("transpose", lambda x: lax.transpose(x, (1, 0)), "f:4,12")
example("iota", lambda x, b: x * lax.broadcasted_iota(float, (b, 4), 1), "f:12,4")
example("iota", lambda x: x * lax.iota(float, 4), "f:4")
example("iota", lambda b: lax.iota(int, b))
example("iota", lambda b: lax.broadcasted_iota(int, (4, b), 1))
example("iota", lambda x, b: x[: b // 2] + lax.iota(float, b // 2), "f:12")
for axes in [(0,), (1,), (0, 1)]:
    example("rev", lambda x, axes=axes: lax.rev(x, axes), "f:12,4")
example("slice", lambda x: lax.slice(x, (0, 1), (x.shape[0], 3)), "f:12,4")
example("slice", lambda x: lax.slice(x, (0, 0), (2, 4)), "f:12,4")
example("slice", lambda x, b: lax.slice(x, (1, 0), (b, 4)), "f:12,4")
example("slice", lambda x, b: lax.slice(x, (0, 0), (b, 4), (2, 1)), "f:12,4")
example("slice", lambda x, b: lax.slice(x, (0, 0), (b, 4), (1, 2)), "f:12,4")
example("slice", lambda x, b: lax.slice(x, (0,), (b // 3,)), "f:12")
example("slice", lambda x, b: lax.slice(x, (b // 2, 0), (b, 4)), "f:12,4")
example("slice", lambda x, b: lax.slice(x, (b // 2 - 1,), (b - 1,)), "f:12")
example("slice", lambda x, b: lax.slice(x, (0, b // 2), (3, b)), "f:3,12")
example("slice", lambda x: lax.slice(x, (1,), (3,)), "f:4")
example("slice", lambda x: lax.slice(x, (0, 0), (1, 4)), "f:4,4")
example("concatenate", lambda x, y: lax.concatenate([x, y], 1), "f:12,4", "f:12,2")
example("concatenate", lambda x, y: lax.concatenate([x, y], 0), "f:12,4", "f:12,4")
example("concatenate", lambda x, y: lax.concatenate([x, y], 0), "f:4", "f:4")
example("concatenate", lambda x, y: lax.concatenate([x, y, x], 0), "f:12", "f:12")
example("concatenate", lambda x, y: lax.concatenate([x, y], 0), "f:24,2", "f:12,2")
example("concatenate", lambda x: lax.concatenate([x, jnp.zeros(3)], 0), "f:4")
example("concatenate", lambda x: lax.concatenate([x, jnp.zeros((x.shape[0], 1))], 1), "f:12,4")
example("concatenate", lambda x, b: lax.concatenate([x, jnp.zeros(b)], 0), "f:12")
if hasattr(lax, "split"):
    example("split", lambda x: lax.split(x, (1, 3), axis=1), "f:12,4")
    example("split", lambda x, b: lax.split(x, (b // 2, b - b // 2), axis=0), "f:12,4")
    example("split", lambda x: lax.split(x, (6, 6), axis=0), "f:12,4")
for config in [
    ((0, 0, 0), (1, 2, 0)),
    ((1, 0, 0), (0, 0, 0)),
    ((0, 0, 1), (0, 0, 0)),
    ((0, -1, 0), (0, 0, 0)),
]:
    example("pad", lambda x, config=config: lax.pad(x, 0.0, config), "f:12,4")
    example("pad", lambda x, v, config=config: lax.pad(x, v, config), "f:12,4", "f:")
for low, high in [(0, 1), (2, 0), (1, 1), (0, 0.5), (-1, 2)]:
    example(
        "pad",
        lambda x, b, low=low, high=high: lax.pad(x, 0.0, ((int(low * b), int(high * b), 0), (0, 0, 0))),
        "f:12,4",
    )
example("pad", lambda x, b: lax.pad(x, 0.0, ((0, b, 1), (0, 0, 0))), "f:12,4")
if hasattr(lax, "stack_p"):
    for axis in (0, 1):
        example("stack", lambda x, y, axis=axis: lax.stack_p.bind(x, y, axis=axis), "f:12,4", "f:12,4")
        example("unstack", lambda x, axis=axis: lax.unstack_p.bind(x, axis=axis), "f:12,4")
    for axis in (0, 1):
        example("stack", lambda i, b, axis=axis: lax.stack_p.bind(jnp.arange(b), i, axis=axis), "x4:12")
    example("stack", lambda i, b: lax.stack_p.bind(i, jnp.arange(b), i, axis=1), "x4:12")
    example("stack", lambda b: lax.stack_p.bind(jnp.arange(b), jnp.arange(b), axis=1))
    example("unstack", lambda x: lax.unstack_p.bind(x, axis=1), "f:4,2,12")
    example("tile", lambda x: lax.tile_p.bind(x, reps=(1, 3)), "f:12,4")
    example("tile", lambda x: lax.tile_p.bind(x, reps=(2, 1)), "f:12,4")
    example("tile", lambda x, b: lax.tile_p.bind(x, reps=(b,)), "f:4")

# --- groups of rows ---------------------------------------------------------------------------


def groups(x: Any) -> Any:
    """The first axis in two groups: of other rows on a device than in the whole batch."""
    return lax.reshape(x, (2, x.shape[0] // 2, *x.shape[1:]))


for name, run, operands in [
    ("reshape", groups, ("f:12,4",)),
    ("reshape", lambda x: lax.reshape(groups(x), x.shape), ("f:12,4",)),
    ("reshape", lambda x: lax.reshape(groups(x), (2, x.shape[0] // 2, 2, 2)), ("f:12,4",)),
    ("reshape", lambda x: lax.reshape(groups(x), (2, x.shape[0] * 2)), ("f:12,4",)),
    ("reshape", lambda x: lax.reshape(x, (4, x.shape[1] * 3 // 4)), ("f:3,12",)),
    ("transpose reshape", lambda x: lax.transpose(groups(x), (1, 2, 0)), ("f:12,4",)),
    ("transpose reshape", lambda x: lax.reshape(lax.transpose(groups(x), (1, 0, 2)), x.shape), ("f:12,4",)),
    ("squeeze reshape", lambda x: lax.squeeze(groups(x), (2,)), ("f:12,1",)),
    ("broadcast_in_dim", lambda x: jnp.broadcast_to(groups(x), (3, 2, x.shape[0] // 2, 4)), ("f:12,4",)),
    ("tanh", lambda x: jnp.tanh(groups(x)), ("f:12,4",)),
    ("abs", lambda x: jnp.abs(groups(x)), ("f:12,4",)),
    ("neg", lambda x: -groups(x), ("f:12,4",)),
    ("add", lambda x, y: groups(x) + groups(y), ("f:12,4", "f:12,4")),
    ("mul", lambda x, y: groups(x) * y, ("f:12,4", "f:")),
    ("mul", lambda x, y: groups(x) * y, ("f:12,4", "f:4")),
    ("mul", lambda x, y: groups(x) * y[:, None, None], ("f:12,4", "f:2")),
    ("mul", lambda x, y: groups(x) * lax.reshape(y, (y.shape[0] // 2, 2)).T, ("f:12", "f:12")),
    ("mul", lambda x: groups(x) * jnp.zeros_like(groups(x)), ("f:12,4",)),
    ("div", lambda x, y: groups(x) / y, ("f:12,4", "f:")),
    ("lt", lambda x, y: groups(x) < groups(y), ("f:12,4", "f:12,4")),
    ("max", lambda x, y: lax.max(groups(x), groups(y)), ("f:12", "f:12")),
    ("select_n", lambda w, x: lax.select(groups(w), groups(x), 0 * groups(x)), ("b:12", "f:12")),
    ("convert_element_type", lambda x: groups(x).astype(int), ("f:12,4",)),
    ("bitcast_convert_type", lambda x: lax.bitcast_convert_type(groups(x), jnp.uint64), ("w:12,2",)),
    ("dot_general", lambda x, y: jnp.einsum("kbi,ij->kbj", groups(x), y), ("f:12,4", "f:4,3")),
    ("dot_general", lambda x, y: jnp.einsum("kbi,ij->jkb", groups(x), y), ("f:12,4", "f:4,3")),
    ("dot_general", lambda x, y: jnp.einsum("kbi,kij->kbj", groups(x), y), ("f:12,4", "f:2,4,3")),
    ("dot_general", lambda x, y: jnp.einsum("kbi,kbj->ij", groups(x), groups(y)), ("f:12,4", "f:12,3")),
    ("dot_general", lambda x, y: jnp.einsum("kbi,kbj->kij", groups(x), groups(y)), ("f:12,4", "f:12,3")),
    ("dot_general", lambda x, y: jnp.einsum("kbi,kbj->bij", groups(x), groups(y)), ("f:12,4", "f:12,3")),
    *(
        (name, lambda x, f=function, axes=axes: f(groups(x), axes), ("f:12,4",))
        for name, function in [
            ("reduce_sum", lax.reduce_sum),
            ("reduce_max", lax.reduce_max),
            ("reduce_prod", lax.reduce_prod),
        ]
        for axes in [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)]
    ),
    ("reduce_sum", lambda x: jnp.sum(2.0 * jnp.sum(groups(x), 1) / 3.0 - 0.0), ("f:12,4",)),
    ("reduce_sum", lambda x, y: jnp.sum(jnp.sum(groups(x), 1) * y, 0), ("f:12,4", "f:4")),
    ("reduce_sum", lambda x, y: jnp.sum(jnp.sum(groups(x), 1) * y[:, None], 0), ("f:12,4", "f:2")),
    ("reduce_sum", lambda x, y: jnp.sum(groups(x), 1) + jnp.sum(groups(y), 1), ("f:12,4", "f:12,4")),
    ("reduce_sum", lambda x: jnp.sum(jnp.sum(groups(x), 1) ** 2), ("f:12",)),
    ("argmax", lambda x: lax.argmax(groups(x), 2, int), ("f:12,4",)),
    ("argmax", lambda x: lax.argmax(groups(x), 1, int), ("f:12,4",)),
]:
    example(name, run, *operands, few=True)

# --- reductions -------------------------------------------------------------------------------

for axes in [(0,), (1,), (0, 1), (0, 2)]:
    for name, function, kind in [
        ("reduce_sum", lax.reduce_sum, "f"),
        ("reduce_max", lax.reduce_max, "f"),
        ("reduce_min", lax.reduce_min, "f"),
        ("reduce_prod", lax.reduce_prod, "f"),
        ("reduce_or", lax.reduce_or, "b"),
        ("reduce_and", lax.reduce_and, "b"),
        ("reduce_or", lax.reduce_or, "m"),
        ("reduce_and", lax.reduce_and, "m"),
        ("reduce_xor", lax.reduce_xor, "m"),
        ("reduce_xor", lax.reduce_xor, "b"),
        ("reduce_sum", lax.reduce_sum, "m"),
        ("reduce_sum", lax.reduce_sum, "c"),
    ]:
        example(name, lambda x, f=function, axes=axes: f(x, axes), f"{kind}:12,4,2")
for axis in (0, 1):
    for kind in "fm":
        example("argmax", lambda x, axis=axis: lax.argmax(x, axis, int), f"{kind}:12,4")
        example("argmin", lambda x, axis=axis: lax.argmin(x, axis, int), f"{kind}:12,4")
    for name in ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"]:
        example(name, lambda x, axis=axis, name=name: getattr(lax, name)(x, axis=axis), "f:12,4")
    example("sort", lambda x, axis=axis: lax.sort(x, dimension=axis), "f:12,4")
    example("sort", lambda x, y, axis=axis: lax.sort((x, y), dimension=axis, num_keys=1), "f:12,4", "i:12,4")
    example("reduce", lambda x, axis=axis: lax.reduce(x, 0.5, lambda p, q: p * q + p + q, (axis,)), "f:12,4")
    example("approx_top_k", lambda x, axis=axis: lax.approx_max_k(x, 2, axis), "f:12,4")
example("reduce", lambda x, y: lax.reduce(x, y, lambda p, q: p * q + p + q, (1,)), "f:12,4", "f:")
example("top_k", lambda x: lax.top_k(x, 2), "f:12,4")
example("top_k", lambda x: lax.top_k(x, 2), "f:4,12")

# --- contractions and windows -----------------------------------------------------------------

for numbers, left, right in [
    ((((1,), (0,)), ((), ())), "12,4", "4,3"),
    ((((0,), (0,)), ((), ())), "12,4", "12,3"),
    ((((1,), (1,)), ((), ())), "12,4", "12,4"),
    ((((2,), (1,)), ((0,), (0,))), "12,2,4", "12,4,3"),
    ((((1, 2), (0, 1)), ((), ())), "3,12,4", "12,4"),
    ((((2,), (2,)), ((0, 1), (1, 0))), "2,12,4", "12,2,4"),
    ((((0,), (1,)), ((1,), (0,))), "12,2", "2,12"),
]:
    example(
        "dot_general",
        lambda x, y, n=numbers: lax.dot_general(x, y, n),
        f"f:{left}",
        f"f:{right}",
        few=left != "12,4",
    )


def convolved(run: Callable[..., Any], x: str, y: str) -> None:
    """A convolution; each shape that it is given is compiled."""
    example("conv_general_dilated", run, x, y, few=True)


def convolution(*numbers: str, **given: Any) -> Callable[..., Any]:
    """A convolution in one spatial dimension."""
    return lambda x, y: lax.conv_general_dilated(x, y, (1,), "SAME", dimension_numbers=numbers, **given)


convolved(convolution("NWC", "WIO", "NWC"), "f:12,5,3", "f:3,3,2")
convolved(convolution("NWC", "WIO", "NWC", feature_group_count=2), "f:12,5,4", "f:3,2,2")
convolved(convolution("NCW", "OIW", "NCW"), "f:2,12,5", "f:3,12,3")
convolved(convolution("CWN", "IWO", "WNC"), "f:12,5,3", "f:12,3,2")
convolved(convolution("NWC", "WIO", "NWC"), "f:2,5,3", "f:3,3,12")
convolved(convolution("NWC", "WIO", "NWC"), "f:2,12,3", "f:3,3,2")
convolved(convolution("NWC", "WIO", "NWC", feature_group_count=4), "f:2,5,12", "f:3,3,12")
convolved(convolution("NWC", "WIO", "NWC", batch_group_count=4), "f:12,5,3", "f:3,3,12")
convolved(convolution("NWC", "WIO", "NWC", batch_group_count=2), "f:2,5,12", "f:3,12,2")
convolved(
    lambda x, y, b: convolution("NWC", "WIO", "NWC", feature_group_count=b)(x, y), "f:2,5,12", "f:3,1,24"
)
convolved(lambda x, y, b: convolution("NWC", "WIO", "NWC", batch_group_count=b)(x, y), "f:12,5,3", "f:3,3,24")
convolved(
    lambda x, y: jax.grad(
        lambda y: jnp.sum(convolution("NWC", "WIO", "NWC", feature_group_count=2)(x, y) ** 2)
    )(y),
    "f:12,5,4",
    "f:3,2,2",
)
for window in [(1, 2), (2, 1)]:
    strided = {"window_dimensions": window, "window_strides": window, "padding": "VALID"}
    for add, start in [(lax.add, 0.0), (lax.max, -np.inf), (lax.min, np.inf), (lax.mul, 1.0)]:
        name = {lax.add: "_sum", lax.max: "_max", lax.min: "_min"}.get(add, "")
        example(
            f"reduce_window{name}",
            lambda x, start=start, add=add, given=strided: lax.reduce_window(x, start, add, **given),
            "f:12,4",
        )
    pooled = (lambda given: lambda x: lax.reduce_window(x, -np.inf, lax.max, **given))(strided)
    example(
        "select_and_scatter_add",
        lambda x, y, f=pooled: jax.vjp(f, x)[1](y)[0],
        "f:12,4",
        f"f:{12 // window[0]},{4 // window[1]}",
    )
    example("select_and_scatter_add", lambda x, f=pooled: jax.grad(lambda x: jnp.sum(f(x) ** 2))(x), "f:12,4")
    example("select_and_gather_add", lambda x, y, f=pooled: jax.jvp(f, (x,), (y,))[1], "f:12,4", "f:12,4")
example(
    "reduce_window_sum",
    lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 1), (1, 1), [(1, 1), (0, 0)]),
    "f:12,4",
)
example("reduce_window_sum", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), "SAME"), "m:12,4")
example(
    "reduce_window_max",
    lambda x: lax.reduce_window(x, np.int64(-(2**63)), lax.max, (1, 2), (1, 1), "SAME"),
    "m:12,4",
)
if hasattr(jax._src.lax.windowed_reductions, "_select_and_scatter"):
    example(
        "select_and_scatter",
        lambda x, y: jax._src.lax.windowed_reductions._select_and_scatter(
            x, lax.ge, (1, 2), (1, 2), [(0, 0), (0, 0)], y, np.float64(0), lax.add
        ),
        "f:12,4",
        "f:12,2",
    )

# --- places held by operands ------------------------------------------------------------------

GATHERS: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (lambda x, i: x[i], ("f:5,4", "x5:12")),
    (lambda x, i: x[i], ("f:12,4", "x4:12")),
    (lambda x, i: x[i], ("f:5,12", "x5:3")),
    (lambda x, i: x[:, i], ("f:12,4", "x4:3")),
    (lambda x, i: jnp.take(x, i, axis=0), ("f:5,4", "i:12")),
    (lambda x, i: jnp.take(x, i, axis=0), ("m:5,4", "i:12")),
    (lambda x, i: jnp.take(x, i, axis=0, fill_value=1.5), ("f:5,4", "i:12")),
    (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), ("f:5,4", "i:12,2")),
    (lambda x, i: jnp.take(x, i, axis=1), ("f:12,4", "i:2,3")),
    (lambda x, i: jnp.take_along_axis(x, i, 1), ("f:12,4", "x4:12,2")),
    (lambda x, i: jnp.take_along_axis(x, i, 0), ("f:12,4", "x4:2,4")),
    (lambda x, i: jnp.take_along_axis(x, i, 0), ("f:12,4", "x4:12,4")),
    (lambda x, i, b: x[jnp.arange(b), i], ("f:12,4", "x4:12")),
    (lambda x, i, b: x[i, jnp.arange(b)], ("f:4,12", "x4:12")),
    (lambda x, i, b: x[jnp.arange(b)[:, None], i], ("f:12,4", "x4:12,2")),
    (lambda x, i, b: x[i, jnp.arange(b)], ("f:4,24", "x4:12")),
    (lambda x, b: x[jnp.arange(b)], ("f:12,4",)),
    (lambda x, b: x[jnp.arange(b)], ("f:24,4",)),
    (lambda x, b: x[jnp.arange(b), jnp.arange(b)], ("f:12,12",)),
    (lambda x, i, b: x[jnp.arange(b), :, i], ("f:12,3,4", "x4:12")),
    (lambda x, i: jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (2,)))(x, i), ("f:12,4", "x4:12")),
    (lambda x, i: jax.vmap(lambda i: lax.dynamic_slice(x, (i,), (2,)))(i), ("f:4", "x4:12")),
    (
        lambda x, i, b: lax.gather(
            x,
            jnp.stack([jnp.arange(b), i], 1),
            lax.GatherDimensionNumbers((1,), (1,), (0, 1)),
            (2, 1),
            mode="clip",
        ),
        ("f:12,4", "x4:12"),
    ),
    (
        lambda x, i, b: lax.gather(
            x, i[:, None], lax.GatherDimensionNumbers((1, 2), (), (0,)), (b, 2), mode="fill"
        ),
        ("f:12,4", "x2:3"),
    ),
]
for run, operands in GATHERS:
    example("gather", run, *operands, few=len(operands) > 1)


def written(name: str) -> Callable[..., Any]:
    """``x.at[i].set(u)`` or the like."""
    method = {"scatter": "set", "scatter_mul": "multiply", "scatter_sub": "subtract"}.get(name, name[8:])
    return lambda x, i, u: getattr(x.at[i], method)(u)


for name in ["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "scatter_sub"]:
    if name == "scatter_sub" and not hasattr(lax, "scatter_sub"):
        continue
    at = written(name)
    example(name, at, "f:5,2", "x5:12", "f:12,2")
    example(name, lambda i, u, at=at: at(jnp.zeros((5, 2)), i, u), "x5:12", "f:12,2")
    example(name, at, "f:5,12", "x5:3", "f:3,12")
    if name in ("scatter_min", "scatter_sub"):
        continue  # As `scatter_max` and `scatter_add`.
    example(name, at, "f:12,2", "x5:3", "f:3,2")
    example(
        name, lambda x, i, u, at=at, b=0: at(x, (jnp.arange(x.shape[0]), i), u), "f:12,4", "x4:12", "f:12"
    )
    example(name, lambda x, i, u, at=at: at(x, (i, jnp.arange(u.shape[0])), u), "f:4,24", "x4:12", "f:12")
    example(name, lambda i, u, b, at=at: at(jnp.zeros((b, 4)), (jnp.arange(b), i), u), "x4:12", "f:12")
    example(name, lambda x, u, at=at: at(x, 2, u), "f:4,12", "f:12", few=True)
    example(name, lambda x, u, at=at: at(x, 2, u), "f:4,3", "f:3")
    example(name, lambda x, u, at=at: at(x, (slice(None), 2), u), "f:12,3", "f:12")
    example(name, jax.vmap(at), "f:12,4", "x4:12,2", "f:12,2")
    example(name, at, "m:5", "x5:12", "m:12")
example("scatter", lambda x, i: x.at[i].apply(jnp.exp), "f:5", "x5:3")
example("scatter", lambda x, i: x.at[:, i].apply(jnp.exp), "f:12,4", "x4:3")
example("scatter_add", lambda e, i: jax.grad(lambda e: jnp.sum(e[i] ** 2))(e), "f:5,2", "x5:12")
example("scatter_add", lambda e, i: jax.grad(lambda e: jnp.sum(e[i] ** 2))(e), "f:5,2", "x5:3")
example(
    "scatter_add", lambda x, i, b: jax.grad(lambda x: jnp.sum(x[jnp.arange(b), i] ** 2))(x), "f:12,4", "x4:12"
)
example(
    "scatter_add",
    lambda x, i: jax.grad(lambda x: jnp.sum(jnp.take_along_axis(x, i, 1) ** 2))(x),
    "f:12,4",
    "x4:12,2",
)
example("scatter_add", lambda v, i: jax.ops.segment_sum(v, i, 5), "f:12,2", "x5:12")
# Differentiation labels the writes, to find which of several to one place is the last.
for columns in ((), (2,)):
    shape = "".join(f",{size}" for size in columns)

    def written(x, i, u, b, columns=columns):
        rows = jnp.arange(b).reshape(b, *(1 for _ in columns))
        return jax.grad(lambda x, u: jnp.sum(x.at[rows, i].set(u) ** 3), (0, 1))(x, u)

    example("scatter", written, "f:12,4", f"x4:12{shape}", f"f:12{shape}")
example("scatter_max", lambda v, i: jax.ops.segment_max(v, i, 5), "f:12,2", "x5:12")

OWN = "i"
for names, run, operands, whole in [
    ("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i,), (2,)), ("f:4", "x4:"), None),
    ("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 3)), ("f:12,3", "x4:"), None),
    ("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 0), (2, x.shape[1])), ("f:3,12", "x3:"), None),
    ("dynamic_slice", lambda x, i, b: lax.dynamic_slice(x, (i,), (b,)), ("f:12", "x4:"), None),
    ("dynamic_slice", lambda x: lax.dynamic_slice(x, (1, 0), (1, 4)), ("f:4,4",), None),
    (
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i,)),
        ("f:4", "f:2", "x4:"),
        None,
    ),
    ("dynamic_update_slice", lambda x, u: lax.dynamic_update_slice(x, u, (1, 0)), ("f:3,12", "f:1,12"), None),
    ("dynamic_update_slice", lambda x, u: lax.dynamic_update_slice(x, u, (0, 1)), ("f:12,3", "f:12,1"), None),
    ("dynamic_update_slice", lambda x, u: lax.dynamic_update_slice(x, u, (1, 0)), ("f:12,3", "f:2,3"), None),
    (
        "dynamic_update_slice",
        lambda x, u: lax.dynamic_update_slice(jnp.zeros((4,)), x + u, (1,)),
        ("f:2", "f:2"),
        None,
    ),
    (
        "dynamic_slice axis_index",
        lambda x, b: lax.dynamic_slice_in_dim(x, lax.axis_index(OWN) * b, b),
        ("f:12,4",),
        lambda x, b: x,
    ),
    (
        "dynamic_slice axis_index",
        lambda x, b: lax.dynamic_slice_in_dim(x, b * lax.axis_index(OWN), b, axis=1),
        ("f:4,12",),
        lambda x, b: x,
    ),
    (
        "dynamic_slice axis_index",
        lambda x, b: lax.dynamic_slice_in_dim(x, lax.axis_index(OWN) * b, b),
        ("f:24",),
        lambda x, b: x,
    ),
    (
        "dynamic_slice axis_index",
        lambda x, b: lax.dynamic_slice_in_dim(x, lax.axis_index(OWN) * 4, 4),
        ("f:12",),
        lambda x, b: x,
    ),
    (
        "dynamic_slice axis_index",
        lambda x, b: lax.dynamic_slice_in_dim(x, lax.axis_index(OWN), 1),
        ("f:4,3",),
        lambda x, b: x,
    ),
    (
        "axis_index iota",
        lambda b: lax.axis_index(OWN) * b + jnp.arange(b),
        (),
        lambda b: jnp.arange(b),
    ),
    (
        "axis_index iota",
        lambda x, b: x * ((lax.axis_index(OWN) * b).astype(float) + jnp.arange(b, dtype=float)),
        ("f:12",),
        lambda x, b: x * jnp.arange(b, dtype=float),
    ),
    (
        "axis_index iota",
        lambda x, b: x * (lax.axis_index(OWN).astype(float) + jnp.arange(b, dtype=float)),
        ("f:12",),
        lambda x, b: x * jnp.arange(b, dtype=float),
    ),
    ("axis_index", lambda b: lax.axis_index(OWN) * b, (), lambda b: jnp.zeros((), int)),
    ("axis_index", lambda: lax.axis_index(OWN), (), lambda: jnp.zeros((), int)),
    ("axis_index", lambda x: x * lax.axis_index(OWN), ("f:4",), lambda x: x),
    ("axis_index", lambda x: jnp.where(lax.axis_index(OWN) == 0, x, 0), ("f:4",), lambda x: x),
]:
    example(names, run, *operands, whole=whole)

# --- systems of equations, transforms ---------------------------------------------------------

LINALG = lax.linalg
INTERNAL = jax._src.lax.linalg
for run, names in [
    (lambda x: LINALG.cholesky(x, symmetrize_input=False), "cholesky"),
    (lambda x: LINALG.lu(x), "lu"),
    (lambda x: LINALG.qr(x), "qr"),
    (lambda x: LINALG.householder_product(*INTERNAL.geqrf(x)), "householder_product geqrf"),
    (lambda x: LINALG.eigh(x, symmetrize_input=False), "eigh"),
    (lambda x: LINALG.svd(x, full_matrices=False), "svd"),
    (lambda x: LINALG.tridiagonal(x), "tridiagonal"),
    (lambda x: LINALG.hessenberg(x), "hessenberg"),
    (lambda x: LINALG.schur(x), "schur"),
    (lambda x: LINALG.eig(x, compute_left_eigenvectors=False), "eig"),
    (lambda x: INTERNAL.geqp3(x, jnp.zeros(x.shape[:-1], np.int32)), "geqp3"),
    (lambda x: INTERNAL.ormqr(*INTERNAL.geqrf(x), x), "ormqr"),
]:
    for shape in ("12,3,3", "3,3"):
        if all(hasattr(INTERNAL, f"{name}_p") for name in names.split()):
            example(names, run, f"s:{shape}", few=True)
example("cholesky", lambda x: LINALG.cholesky(x, symmetrize_input=False), "s:12,12")
PERMUTED = "lu_pivots_to_permutation"
example(PERMUTED, lambda x: LINALG.lu_pivots_to_permutation(x.astype(np.int32), 4), "x4:12,3")
example(PERMUTED, lambda x: LINALG.lu_pivots_to_permutation(x.astype(np.int32), 12), "x4:12")
for lower, left in [("3,3", "3,12"), ("12,3,3", "12,3,2"), ("3,3", "3,2"), ("12,12", "12,3")]:
    example(
        "triangular_solve",
        lambda a, x: LINALG.triangular_solve(a, x, left_side=True, lower=True),
        f"t:{lower}",
        f"f:{left}",
        few=True,
    )
example(
    "triangular_solve", lambda a, x: LINALG.triangular_solve(a, x, lower=True), "t:3,3", "f:12,3", few=True
)
example(
    "triangular_solve",
    lambda a, x: LINALG.triangular_solve(a, x, lower=True, unit_diagonal=True),
    "t:3,3",
    "f:12,3",
    few=True,
)
example(
    "custom_linear_solve triangular_solve lu",
    lambda a, x: jnp.linalg.solve(a, x),
    "s:12,3,3",
    "f:12,3,1",
    few=True,
)
example("tridiagonal_solve", LINALG.tridiagonal_solve, "h:12,4", "g:12,4", "h:12,4", "f:12,4,2")
if hasattr(LINALG, "symmetric_product"):
    example(
        "symmetric_product", lambda x, y: LINALG.symmetric_product(x, y), "f:12,3,2", "s:12,3,3", few=True
    )
for shape in ("12,4", "4,12"):
    example("fft", jnp.fft.fft, f"c:{shape}")
    example("fft", jnp.fft.rfft, f"f:{shape}")
    example("fft", lambda x: jnp.fft.irfft(x, 6), f"c:{shape}")
    example("fft", jnp.fft.fft2, f"c:2,{shape}")

# --- collectives ------------------------------------------------------------------------------


def unchanged(x: Any) -> Any:
    """What a collective leaves of the whole-batch program."""
    return x


def spread(x: Any, b: int) -> Any:
    """The same for each row."""
    return jnp.broadcast_to(x, (b, 4))


for name in ["psum", "pmax", "pmin"]:
    example(name, lambda x, name=name: getattr(lax, name)(x, OWN), "f:12,4", whole=unchanged)
    example(name, lambda x, name=name: getattr(lax, name)(x, OWN), "m:4", whole=unchanged)
example("psum", lambda x: lax.pmean(x, OWN), "f:12,4", whole=unchanged)
example("psum", lambda x: lax.psum((x, 2 * x), OWN), "f:4", whole=lambda x: (x, 2 * x))
# A number for each row of the derivative of a mean over rows and devices.
example("psum", lambda x, b: lax.psum(jnp.broadcast_to(x, (b, 4)), OWN), "f:4", whole=spread)
for axis, tiled in [(0, True), (1, True), (0, False), (1, False)]:
    given = {"axis": axis, "tiled": tiled}
    example("all_gather", lambda x, given=given: lax.all_gather(x, OWN, **given), "f:12,4", whole=unchanged)
for axis in (0, 1):
    example(
        "reduce_scatter",
        lambda x, axis=axis: lax.psum_scatter(x, OWN, scatter_dimension=axis, tiled=True),
        "f:12,12",
        whole=unchanged,
    )
    example(
        "all_to_all",
        lambda x, axis=axis: lax.all_to_all(x, OWN, axis, 1 - axis, tiled=True),
        "f:12,12",
        whole=unchanged,
    )
example("reduce_scatter", lambda x: lax.psum_scatter(x, OWN, tiled=False), "f:3,4", whole=unchanged)
example("all_to_all", lambda x: lax.all_to_all(x, OWN, 0, 1, tiled=False), "f:3,12", whole=unchanged)
example("ppermute", lambda x: lax.ppermute(x, OWN, [(0, 1), (1, 0)]), "f:12,4", whole=unchanged)
# --- random numbers ---------------------------------------------------------------------------
# What is drawn with a device's own key is equal in distribution only: `test_keys` holds those.

example("random_seed random_bits", lambda x, b: jax.random.bits(jax.random.key(0), (b,)) + x, "w:12")
example("random_seed random_bits", lambda x: jax.random.bits(jax.random.key(0), (4,)) + x, "w:4")
example(
    "random_seed random_bits",
    lambda s: jax.vmap(lambda s: jax.random.bits(jax.random.key(s), (2,)))(s),
    "n:12",
)
example("random_wrap random_unwrap", lambda s: jax.random.key_data(jax.random.wrap_key_data(s)), "w:12,2")
example(
    "random_wrap random_split",
    lambda s: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(s), 3)),
    "w:2",
)
example(
    "random_wrap random_split",
    lambda s: jax.random.key_data(jax.vmap(lambda k: jax.random.split(k, 3))(jax.random.wrap_key_data(s))),
    "w:12,2",
)
example(
    "random_wrap random_split",
    lambda s, b: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(s), b)),
    "w:2",
)
example(
    "random_fold_in",
    lambda s, d: jax.random.key_data(
        jax.vmap(lambda s, d: jax.random.fold_in(jax.random.wrap_key_data(s), d))(s, d)
    ),
    "w:12,2",
    "n:12",
)
example(
    "random_fold_in",
    lambda s, d: jax.random.key_data(
        jax.vmap(lambda d: jax.random.fold_in(jax.random.wrap_key_data(s), d))(d)
    ),
    "w:2",
    "n:12",
)
example(
    "random_fold_in",
    lambda s, d: jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(s), d)),
    "w:2",
    "n:",
)
example(
    "random_clone", lambda s: jax.random.key_data(jax.random.clone(jax.random.wrap_key_data(s))), "w:12,2"
)
GAMMA = jax._src.random.random_gamma_p
for key, shape in [("w:2", "p:12"), ("w:2", "p:4"), ("w:12,2", "p:12")]:
    example(
        "random_gamma", lambda s, a: GAMMA.bind(jax.random.wrap_key_data(s), a, log_space=False), key, shape
    )
THREEFRY = next(module for module in list(sys.modules.values()) if hasattr(module, "threefry2x32_p"))
example("threefry2x32", lambda *given: THREEFRY.threefry2x32_p.bind(*given), "w:12", "w:12", "w:12", "w:12")
example("threefry2x32", lambda k, c: jax.extend.random.threefry_2x32((k[0], k[1]), c), "w:2", "w:12")
example("rng_bit_generator", lambda k: lax.rng_bit_generator(k, (4,)), "w:4")
example("rng_bit_generator", lambda k, b: lax.rng_bit_generator(k, (b,)), "w:4")
example("rng_uniform", lambda x: lax.rng_uniform(0.0, 1.0, (4,)) * x, "f:4")


# --- blocks on the diagonal -------------------------------------------------------------------

example("iota", lambda b: jnp.eye(b))
example("iota", lambda b: lax.iota(jnp.uint8, b)[:, None] == lax.iota(jnp.uint8, b))
example(
    "eq",
    lambda x, b: x * (lax.broadcasted_iota(int, (b, b), 1) == lax.broadcasted_iota(int, (b, b), 0)),
    "f:12",
)
example(
    "ne",
    lambda x, b: x * (lax.broadcasted_iota(int, (b, b), 1) != lax.broadcasted_iota(int, (b, b), 0)),
    "f:12",
)
example("eq", lambda b: lax.broadcasted_iota(int, (b, b), 0) + 1 == lax.broadcasted_iota(int, (b, b), 1))
example("eq", lambda b: lax.broadcasted_iota(int, (b, 2 * b), 0) == lax.broadcasted_iota(int, (b, 2 * b), 1))
for kind in "fd":
    for shape in ("12,12", "12,12,2", "12,3,12"):
        square = f"{kind}:{shape}"
        example("neg", lax.neg, square)
        example("tanh", lax.tanh, square)
        example("reduce_sum", lambda x: x.sum(0), square)
        example("reduce_sum", lambda x: x.sum(1), square)
        example("reduce_sum", lambda x: x.sum(-1), square)
        example("reduce_max", lambda x: x.max(0), square)
        example("transpose", lambda x: x.T, square)
        example("reshape", lambda x: x.reshape(x.shape[0], -1), square)
        example("reshape", lambda x: x.reshape(-1), square)
        example("cumsum", lambda x: lax.cumsum(x, 1), square)
    example("reshape", lambda x: x.reshape(x.shape[0] // 2, 2, -1), f"{kind}:12,12")
    example("reshape", lambda x: x.reshape(1, x.shape[0], x.shape[1] // 2, 2), f"{kind}:12,12")
    example("squeeze", lambda x: x.squeeze(1), f"{kind}:12,1,12")
    example("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (3, *x.shape), (1, 2)), f"{kind}:12,12")
    example("convert_element_type", lambda x: x.astype(bool), f"{kind}:12,12")
    for other in ("f:12,12", "d:12,12", "f:1,12", "f:12,1", "f:1,1"):
        for name in ("add", "sub", "mul", "max", *(["div"] if other[0] == "f" else [])):
            example(
                name,
                getattr(
                    jnp,
                    {"sub": "subtract", "mul": "multiply", "div": "divide", "max": "maximum"}.get(name, name),
                ),
                f"{kind}:12,12",
                other,
            )
    example("select_n", lambda w, x: jnp.where(w, x, 0.0), "b:12,12", f"{kind}:12,12")
    example("select_n", lambda w, x: jnp.where(w, x, 0.0), "b:1,12", f"{kind}:12,12")
    example("select_n", lambda w, x: jnp.where(w, x, 1.0), "b:12,1", f"{kind}:12,12")
    example("select_n", lambda w, x, y: jnp.where(w, x, y), "b:12,12", f"{kind}:12,12", "d:12,12")
    for dims, right in (
        ("ij,jk->ik", "12,3"),
        ("ji,jk->ik", "12,3"),
        ("ij,kj->ik", "3,12"),
        ("ij,jk->ijk", "12,3"),
        ("ij,kj->kji", "3,12"),
        ("ij,ki->kij", "3,12"),
        ("ij,kl->ikjl", "4,5"),
    ):
        example("dot_general", lambda x, y, dims=dims: jnp.einsum(dims, x, y), f"{kind}:12,12", f"f:{right}")
        left, result = dims.split("->")
        swapped = ",".join(left.split(",")[::-1]) + "->" + result
        example(
            "dot_general", lambda y, x, dims=swapped: jnp.einsum(dims, y, x), f"f:{right}", f"{kind}:12,12"
        )
    example("dot_general", lambda x, y: jnp.einsum("ibo,oh->ibh", x, y), f"{kind}:12,12,2", "f:2,3")
    example("dot_general", lambda x, y: jnp.einsum("ibh,bp->ihp", x, y), f"{kind}:12,12,3", "f:12,2")
    example("dot_general", lambda x, y: jnp.einsum("ib,ib->", x, y), f"{kind}:12,12", "d:12,12")
example("broadcast_in_dim", lambda x, b: lax.broadcast_in_dim(x, (b, *x.shape), (1, 2)), "f:12,3")
example("broadcast_in_dim", lambda x, b: lax.broadcast_in_dim(x, (b, b, 3), (2,)), "f:3")
example(
    "dot_general", lambda w, x: jax.jacrev(lambda w: jnp.tanh(x @ w[:, 0]) * w[0, 1])(w), "f:3,2", "f:12,3"
)
example("select_n", lambda w, x: jax.jacrev(lambda w: jax.nn.relu(x @ w) @ w.T[:, :2])(w), "f:3,4", "f:12,3")


# --- random programs --------------------------------------------------------------------------
# Steps of programs that hold the normal forms of meanings: of floats, and of whole numbers.


def alike(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of two arrays that takes scalars for them as well."""
    return lambda x, y: function(*jnp.broadcast_arrays(x, y))


FLOAT_STEPS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x / y,
    lambda x, y: y / x,
    lambda x, y: -x,
    *(lambda x, y, n=n: lax.integer_pow(x, n) for n in (-2, -1, 1, 2, 3, 9)),
    lambda x, y: lax.square(x),
    lambda x, y: jnp.abs(x),
    lambda x, y: jnp.exp(-jnp.abs(x)),
    alike(lax.max),
    alike(lax.min),
    lambda x, y: jnp.sum(x),
    lambda x, y: jnp.sum(x, 0) if x.ndim else x,
    lambda x, y: jnp.swapaxes(x, 0, -1) if x.ndim else x,
    lambda x, y: x.reshape(-1),
    lambda x, y: x.reshape(3, -1) if x.size % 3 == 0 else jnp.broadcast_to(x.reshape(-1)[0], (4, 3)),
    lambda x, y: jnp.ravel(x, order="F"),
    alike(lambda x, y: lax.select(x > 0, x, y)),
    lambda x, y: lax.rev(x, (0,)) if x.ndim else x,
    alike(lambda x, y: lax.select(x > y, 2.0 * x, jnp.zeros_like(x))),
    alike(lambda x, y: lax.select(y > x, 3.0 * x, 3.0 * x * x)),
    lambda x, y: x.astype(jnp.float32).astype(float),
    lambda x, y: jnp.cumsum(x, 0) if x.ndim else x,
    lambda x, y: lax.pad(x, 0.0, [(1, 0, 0)] * x.ndim),
    lambda x, y: (x * 7).astype(int),
    lambda x, y: jnp.dot(2.0 * x, 0.5 * x.T),
    lambda x, y: jnp.zeros(5).at[jnp.array([1, 1, 3])].add(3.0 * x.reshape(-1)[:3]) if x.size > 2 else x,
    *(
        lambda x, y, v=v: jnp.take(2.0 * x.reshape(-1), jnp.array([0, 90]), mode="fill", fill_value=v)
        for v in (5.0, 0.0)
    ),
    lambda x, y: jnp.concatenate([x.reshape(-1), x.reshape(-1)]),
    lambda x, y: jnp.sqrt(jnp.abs(x)),
    lambda x, y: jnp.real(lax.complex(x, x) * (1 + 2j)),
    lambda x, y: jnp.imag(jnp.conj(2j * lax.complex(x, 2 * x))),
    lambda x, y: jnp.where(jnp.arange(3) < 0, 5.0, 2.0) * jnp.sum(x),
    lambda x, y: lax.reshape(x, (x.size,), tuple(range(x.ndim))[::-1]),
]
WHOLE_STEPS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: -x,
    lambda x, y: x * x * 3,
    lambda x, y: x | y,
    alike(lambda x, y: lax.rem(x, jnp.maximum(y, 1))),
    alike(lambda x, y: lax.div(x, jnp.maximum(y, 1))),
    alike(lax.max),
    lambda x, y: (x < 0).astype(x.dtype),
    lambda x, y: (x >= 0).astype(x.dtype),
    lambda x, y: (x == y).astype(x.dtype),
    lambda x, y: x.astype(float),
    lambda x, y: x.astype(jnp.uint8),
    lambda x, y: x.astype(int),
    lambda x, y: jnp.sum(x).astype(x.dtype),
    lambda x, y: x.reshape(-1),
    lambda x, y: lax.bitwise_not(x),
    lambda x, y: jnp.where(lax.iota(x.dtype, 3) < 0, 5, 2).astype(x.dtype) * x.reshape(-1)[:1],
]
