"""What differs between versions of jax in the equations of a jaxpr: names and parameters of primitives."""

import contextlib
import dataclasses
import inspect
import math
import numbers
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax.extend.core
from jax.export import is_symbolic_dim

from . import owned
from .owned import is_foreign

T = TypeVar("T")

#: Primitives that are one for us, by the names that versions of jax give them.
SAME = {
    "pjit": "jit",
    "closed_call": "jit",
    "core_call": "jit",
    "core_closed_call": "jit",
    "xla_call": "jit",
    "remat": "jit",
    "remat2": "jit",
    "checkpoint": "jit",
    "custom_jvp_call": "jit",
    "custom_jvp_call_jaxpr": "jit",
    "custom_vjp_call": "jit",
    "custom_vjp_call_jaxpr": "jit",
    "custom_vmap_call": "jit",
    "custom_lin": "jit",
    "custom_partitioning": "jit",  # How it is divided is another question: `derive.divides_itself`.
    "linear_call": "jit",
    "call": "jit",
    "eval_jaxpr": "jit",
    "jaxpr_call": "jit",
    "run_state": "run_state",
    "psum2": "psum",
    "psum_invariant": "psum",
    "pmax_invariant": "pmax",
    "pmin_invariant": "pmin",
    "all_gather_invariant": "all_gather",
    "all_gather_reduced": "all_gather",
    "unreduced_psum": "psum",
    "pbroadcast": "pvary",
    "pcast": "pvary",
    "preduced": "pvary",
    "reduced_vary_cast": "pvary",
    "reduced_vary_cast_p": "pvary",
    "vary_unreduced_cast": "pvary",
    "vary_unreduced_cast_p": "pvary",
    "layout_constraint": "sharding_constraint",
    "mesh_cast": "sharding_constraint",
    "reshard": "sharding_constraint",
    "with_memory_space_constraint": "sharding_constraint",
    "psum_scatter": "reduce_scatter",
    "unreduced_psum_scatter": "reduce_scatter",
    "add_any": "add",
    "scatter-add": "scatter_add",
    "scatter-mul": "scatter_mul",
    "scatter-min": "scatter_min",
    "scatter-max": "scatter_max",
    "scatter-sub": "scatter_sub",
    "random_bits_p": "random_bits",
    "copy_p": "copy",
    "mark": "copy",
}
#: Names of operations that terms have beside those of primitives.
TERMS = frozenset({"scale", "sum", "prod", "fill", "const", "object", "input", "carry", "item", "unknown"})
#: Names under which an equation holds the jaxpr that it runs once.
BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call", "callee")
#: Parameters that say where or how a program runs, and nothing of what it computes.
NO_MEANING = frozenset(
    {
        "sharding",
        "out_sharding",
        "result_avals",
        "mesh",
        "ctx_mesh",
        "name",
        "jvp_jaxpr_fun",
        "jvp_jaxpr_thunk",
        "fwd_jaxpr_thunk",
        "bwd",
        "symbolic_zeros",
        "donated_invars",
        "keep_unused",
        "inline",
        "compiler_options_kvs",
        "in_shardings",
        "out_shardings",
        "in_layouts",
        "out_layouts",
        "copy_semantics",
        "devices",
        "srcs",
        "weak_type",
        "unroll",
        "_split_transpose",
        "linear",
        "unique_indices",
        "indices_are_sorted",
        "computation",  # Of a reduction; its jaxpr says the same.
    }
)


def primitive_name(equation: Any) -> str:
    """The name of an equation's primitive, the same in all versions: ``"psum2"`` is ``"psum"``.

    A primitive that is none of jax's own is not what others of its name are.
    """
    name: str = equation.primitive.name
    if is_foreign(equation.primitive):
        known = name in SAME or name in TERMS or name in owned.names()
        return f"{name} of your own" if known else name
    if name == "pbroadcast" and "source" in equation.params:
        return name  # From one device to all; that of `shard_map` was named so too, and only casts.
    return SAME.get(name, name)


def without_meaning(equation: Any) -> frozenset[str]:
    """Parameters of an equation's primitive that say nothing of what it computes: of jax's own alone."""
    return frozenset() if is_foreign(equation.primitive) else NO_MEANING


def inner_jaxpr(params: Mapping[str, Any]) -> Any:
    """The jaxpr that an equation runs, or None."""
    for name in BODIES:
        body = params.get(name)
        if body is not None and hasattr(getattr(body, "jaxpr", body), "eqns"):
            return body
    return None


def opened(jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """A jaxpr, closed or not, as the open one and its constants."""
    return (jaxpr.jaxpr, tuple(jaxpr.consts)) if hasattr(jaxpr, "consts") else (jaxpr, ())


def is_polynomial(dimension: Any) -> bool:
    """Whether a size with a symbol is a polynomial in it: not ``floordiv(rows, 2)``.

    It is asked of every size of a program, and its text is a hundred times as long in the making.
    """
    factors = (factor for term, _ in dimension._sorted_terms for factor, _ in term._factors)
    return all(factor.operation is None for factor in factors)


def monomials(dimension: Any) -> "list[tuple[list[int], int]]":
    """Terms of a size that is a polynomial in one symbol: powers of it that are multiplied, and how often.

    No version has a public way, and their own counts in 32 bits: the square of many rows has more.

    Raises:
        ValueError: it is none, such as ``floordiv(rows, 2)``.
    """
    if not is_polynomial(dimension):
        raise ValueError(f"{dimension} is no polynomial")
    return [
        ([int(power) for _, power in term._factors], int(times)) for term, times in dimension._sorted_terms
    ]


def size_at(dimension: Any, rows: int) -> int:
    """A size that is a polynomial in the symbol for the rows, for that many of them."""
    return sum(times * math.prod(rows**power for power in powers) for powers, times in monomials(dimension))


#: Before jax 0.7, variables have a suffix.
SUFFIX = ("",) if "suffix" in inspect.signature(jax.extend.core.Var).parameters else ()


def variable(aval: Any) -> Any:
    """A new variable of a jaxpr."""
    return jax.extend.core.Var(*SUFFIX, aval)


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many are carried; the rest are cut up."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()  # jax 0.12
    return len(constants), len(carried)


def scan_parts(params: Mapping[str, Any], operands: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
    """Of the operands of a scan: constants, the first carry, and what is cut up."""
    constants, carried = scan_sizes(params)
    end = constants + carried
    return list(operands[:constants]), list(operands[constants:end]), list(operands[end:])


def while_parts(params: Mapping[str, Any], operands: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
    """Of the operands of a while loop: constants of its test, those of its body, and the first carry."""
    tests, end = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return list(operands[:tests]), list(operands[tests:end]), list(operands[end:])


def bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """Results of an equation on some values."""
    bound = equation.primitive.get_bind_params(equation.params)
    # Before jax 0.8, functions that the equation holds came apart from its parameters.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    out = equation.primitive.bind(*functions, *values, **params)
    return list(out) if equation.primitive.multiple_results else [out]


def named_axes(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The mesh axes that a collective goes over; axes of arrays, as under vmap, are left out."""
    given = params.get("axes", params.get("axis_name", ()))
    return tuple(
        name
        for name in (given if isinstance(given, tuple) else (given,))
        if not isinstance(name, numbers.Integral)  # Of numpy, too.
    )


def sharded_dims(spec: Any) -> dict[str, int]:
    """Mesh axis to array axis, of a `PartitionSpec` or the dict of names that it was before jax 0.7.

    Where several mesh axes divide one axis of the array, the first of them goes over the larger parts.
    """
    rows = spec.items() if isinstance(spec, dict) else enumerate(spec)
    found: dict[str, int] = {}
    for dim, names in rows:
        for name in () if names is None else names if isinstance(names, tuple) else (names,):
            found[name] = dim
    return found


def shard_map_specs(params: Mapping[str, Any]) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """For each operand and each result of a `shard_map`: mesh axis to array axis."""
    given = [params.get(f"{way}_specs", params.get(f"{way}_names")) for way in ("in", "out")]
    return [sharded_dims(s) for s in given[0]], [sharded_dims(s) for s in given[1]]


def _takes_all(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


@contextlib.contextmanager
def static_slices() -> Iterator[None]:
    """While this holds, ``x[:, 0]`` is a slice where the rows of `x` are a symbol, too.

    jax would gather there, and be another program than for any number of rows. What takes some of an axis
    with a symbol is still gathered.
    """
    indexing = sys.modules.get("jax._src.numpy.indexing")
    kind = getattr(indexing, "NDIndexer", None)
    really = getattr(kind, "to_static_slice", None)
    if kind is None or really is None:
        yield
        return

    def to_static_slice(self: Any, **given: Any) -> Any:
        symbols = [axis for axis, size in enumerate(self.shape) if is_symbolic_dim(size)]
        indices = self.expand_ellipses().indices if symbols else ()
        whole = {each.consumed_axes for each in indices if _takes_all(each.index)}
        if not symbols or not whole.issuperset((axis,) for axis in symbols):
            return really(self, **given)
        # With any number in their places.
        sizes = [1 if is_symbolic_dim(size) else size for size in self.shape]
        found = really(dataclasses.replace(self, shape=tuple(sizes)), **given)
        limits = list(found.limit_indices)
        for axis in symbols:
            limits[axis] = self.shape[axis]
        return found._replace(limit_indices=limits)

    kind.to_static_slice = to_static_slice
    try:
        yield
    finally:
        kind.to_static_slice = really


def override_options(options: Mapping[str, Any]) -> None:
    """Have XLA compile with debug options, as ``XLA_FLAGS`` has them, from here on.

    They are read at each compilation. The ``compiler_options`` that a function has itself go before them, and
    XLA fails at an option that it does not know.
    """
    from jax._src import compiler

    really = compiler.get_compile_options

    def get_compile_options(*args: Any, **kwargs: Any) -> Any:
        made = really(*args, **kwargs)
        made.env_option_overrides = [*options.items(), *made.env_option_overrides]
        return made

    compiler.get_compile_options = get_compile_options
