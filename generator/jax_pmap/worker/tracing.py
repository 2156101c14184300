"""What tracing tells of the target: whether it can be, the shapes of its results, how coarsely it rounds."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax

from . import arguments, couplings, effects, layers, minibatches, modules, protocol, prove, sharing
from .arguments import Packed, Values
from .compiling import COMPILING
from .exceptions import attempted, describe_exception, raising, text_of
from .following import (
    OF_INPUTS,
    Returned,
    asks_sizes,
    for_all_sizes,
    is_given_alike,
    of_inputs,
    of_others,
    of_shapes,
    traced_as,
)
from .jaxpr.trace import abstract_leaves, arrays_of
from .jaxpr.walk import equations, is_mapped
from .leaves import shape_of, to_float64
from .own_axis import bind_own_axis
from .protocol import NOT_TAKEN, Problem, Traced, unless
from .target import current, leaf_axes
from .type_tests import CONCRETE
from .units import Rounding, rounding_of, unit, unit_of


def needs_number(error: BaseException) -> bool:
    """Whether an error says that Python code met a traced value where it needs the number."""
    if isinstance(error, CONCRETE) or "concrete value" in text_of(error):
        return True
    # The bounds of a slice are refused with an error of Python's, and so is `f"{loss:.3f}"`.
    if isinstance(error, TypeError) and "Tracer.__format__" in text_of(error):
        return True
    return isinstance(error, IndexError) and "must be static" in text_of(error)


def trace(request: protocol.Trace) -> Traced:
    """Whether the reference can be traced with so many rows in the batch leaves, and what it returns.

    With a number of rows, that alone is told.
    """
    target = current()
    statics = request.roles.statics
    with prove.x64(target.x64):
        try:
            if request.size is not None:
                sized = of_size(request.roles, request.size)
                return Traced(out=sized.rows, tree=sized.tree)
            bind_own_axis(statics)
            found = of_inputs(statics, watched=request.watched and is_given_alike(statics))
        except (MemoryError, Problem):
            raise
        except BaseException as error:
            return Traced(describe_exception(error), needs_number(error))
    returned = found.returned
    changes = (
        protocol.Mutated(name, bool(arguments.graph_variables(target.data[0][name])), same_structure)
        for name, same_structure in returned.mutated.items()
    )
    return Traced(
        out=returned.rows,
        tree=returned.tree,
        axes=tuple(protocol.Axis(name, error) for name, error in target.one_device.axes.items()),
        shared=tuple(sharing.PLACES),
        kept=returned.kept,
        opaque=returned.opaque,
        callbacks=effects.callbacks(found.jaxpr),
        mapped=is_mapped(found.jaxpr),
        mutated=tuple(changes),
        layers=tuple(layers.apart_from(found.layers, target.one_device.axes)),
        steps=tuple(
            (*found.packed.owners[at], length)
            for at, lengths in zip(found.at, couplings.steps(found.jaxpr), strict=True)
            for length in sorted(lengths & {*shape_of(found.packed.leaves[at])})
        ),
    )


def returns_alike(request: protocol.ReturnsAlike) -> bool:
    """Whether the target returns leaves at the same paths with other values; True where it is not traced."""

    def paths(returned: Returned) -> list[str]:
        return [row["path"] for row in returned.rows if row["category"] != "opaque"]

    target = current()
    with prove.x64(target.x64):
        given = target.known(OF_INPUTS) or (of_inputs(request.roles.statics, watched=False),)
        other = of_others(request.roles, request.overrides)
    return other is None or paths(given[-1].returned) == paths(other.returned)


def of_size(roles: protocol.Roles, rows: int) -> Returned:
    """What the target returns of so many rows."""
    for_all = None if asks_sizes() else for_all_sizes(roles, {})
    if for_all is not None:
        return for_all.with_rows(rows)
    packed = Packed(current().values({}), roles.statics)
    return of_shapes(roles.statics, abstract_leaves(packed, leaf_axes(roles), rows)).returned


def find_module_methods(request: protocol.FindModuleMethods) -> tuple[protocol.ModuleMethod, ...]:
    """Methods of the user's modules that libraries run; see `modules.find`.

    Every assignment of roles that is tried asks for them, and they hang on none.
    """
    target = current()

    def found() -> tuple[protocol.ModuleMethod, ...]:
        packed = Packed(target.values({}), request.statics)
        with prove.x64(target.x64):
            rows = modules.find(lambda: jax.eval_shape(arrays_of(target.reference, packed), packed.leaves))
        return tuple(rows)

    return target.once("module methods", request.statics, found)


def find_reductions(request: protocol.FindReductions) -> tuple[tuple[protocol.Frame, ...], ...]:
    """Where the function reduces over the examples; see `couplings.reductions`."""
    target = current()
    axes, statics = leaf_axes(request.roles), request.roles.statics
    values = target.values({})
    size, packed = arguments.batch_size(values, axes), Packed(values, statics)

    def program(rows: int) -> Any:
        return jax.make_jaxpr(arrays_of(target.reference, packed))(abstract_leaves(packed, axes, rows))

    with prove.x64(target.x64):
        # A function that takes so many rows mostly takes twice as many, and not always half of them.
        few, more = attempted(program, size), attempted(program, 2 * size)
        return () if few is None or more is None else tuple(map(tuple, couplings.reductions(few, more)))


def find_minibatches(request: protocol.FindMinibatches) -> protocol.Minibatches:
    """The groups that the function cuts its batch into, and those of other sizes that it takes."""
    target = current()
    axes, statics = leaf_axes(request.roles), request.roles.statics
    values = target.values({})
    size, packed = arguments.batch_size(values, axes), Packed(values, statics)
    in_order = [axis == 0 for axis in packed.axes(axes)]

    def traced(rows: int) -> Any:
        return traced_as(target.reference, packed, abstract_leaves(packed, axes, rows)).jaxpr

    def found(rows: int) -> set[minibatches.Cut]:
        return set(minibatches.cuts(traced(rows), in_order, rows))

    def sizes(cuts: set[minibatches.Cut], rows: int) -> set[int]:
        # A batch of one minibatch is not cut.
        return {rows, *(rows // number for number, reshaped in cuts if reshaped)}

    with prove.x64(target.x64):
        always, groups = found(size), set(minibatches.groups(traced(size), size))
        each, looked_at = sizes(always, size), 1
        for rows in (2 * size, *request.sizes) if always else ():
            if (other := attempted(found, rows)) is None:
                continue  # The function may not take so many.
            always, each, looked_at = always & other, each & sizes(other, rows), looked_at + 1
    number = math.lcm(*(number for number, _ in always))
    fixed = max(each - {size}, default=0) if looked_at > 1 and number == 1 else 0
    reshaped = all(reshaped for _, reshaped in always)
    return protocol.Minibatches(number, reshaped, fixed, tuple(sorted(groups)))


def precision(request: protocol.Precision) -> None:
    """Whether the coarsest rounding in the function can be told, in the user's own dtypes; see `measured`."""
    measured(request.statics)


@dataclass(frozen=True, slots=True)
class Measured:
    """What there is to know of the numbers in the function."""

    rounding: Rounding
    #: Whether it draws random ones, and has loops of unknown length.
    draws: bool
    loops: bool = False


def measured(statics: Sequence[str], overrides: Mapping[str, str] = MappingProxyType({})) -> Measured:
    """What there is to know of the function in the user's own dtypes, with `overrides` of its constants.

    Raises:
        Problem: ``"reference"``, it is not traced.
    """
    target = current()
    key = tuple(statics), tuple(sorted(overrides.items()))
    return target.once("given", key, lambda: measure(statics, overrides, wide=False))


def widened(statics: Sequence[str]) -> "Measured | None":
    """The same with float64 throughout, as runs have it; None where the function does not run so."""
    target = current()

    def tried() -> "Measured | None":
        return unless(NOT_TAKEN, measure, statics, {}, wide=True)

    return target.once("float64", tuple(statics), tried)


def measure(statics: Sequence[str], overrides: Mapping[str, str], *, wide: bool) -> Measured:
    """Measure the rounding in the function, with all numbers `wide` or in the user's own dtypes.

    Raises:
        Problem: ``"reference"``, it is not traced so.
    """
    target = current()
    values = target.values(overrides)
    packed = Packed(to_float64(values) if wide else values, statics)
    return measure_in(target.reference, packed, wide=wide, x64=wide or target.x64)


def measure_in(function: Callable[[Values], Any], packed: Packed, *, wide: bool, x64: bool) -> Measured:
    """Measure the rounding in a function of the values that are `packed`, in float64 if `wide`.

    Raises:
        Problem: ``"reference"``, it is not traced so.
    """
    with prove.x64(x64):
        with raising("reference", "<jax-pmap"):
            program = traced_as(function, packed, packed.leaves)
        rounding = rounding_of(program, [0.0 if wide else unit_of(leaf) for leaf in packed.leaves])
    if not wide:
        COMPILING.suit(program.jaxpr)  # Its runs come next.
        given = [unit(leaf.dtype) for leaf in packed.leaves if hasattr(leaf, "dtype")]
        rounding = dataclasses.replace(rounding, coarsest=max([rounding.coarsest, *given]))
    loops = any(equation.primitive.name == "while" for equation in equations(program.jaxpr))
    return Measured(rounding, prove.draws_numbers(program.jaxpr), loops)
