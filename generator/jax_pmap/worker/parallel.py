"""A parallel function the user wrote: how it is called, and what its outputs stand for.

Drop-in code is called as the reference is. Raw code, such as what `jax.pmap` returns, wants arrays
with a device axis in front: of a batch leaf its shares (N, B/N, …), of any other leaf N copies (N, …).
Which arguments have that axis is the layout.
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import capture, load, prove
from .arguments import LeafAxes, Values, copied, take
from .calling import Calling
from .distance import distance, same_bits
from .exceptions import describe_exception
from .generator import moved
from .jaxpr.trace import LCM
from .leaves import category, is_key, is_key_leaf, leaf_paths, shape_of, to_host
from .protocol import Call, Failure, Object, Problem

#: ``"whole"``: as the reference takes it; ``"devices"``: every leaf has the device axis; ``"batch"``: only
#: the leaves that are split over devices have it; ``"inner"``: those too, right before the axis that is
#: split; ``"parts"``: every leaf, of what is not as long as the batch its rows, along the first axis;
#: ``"keys"``: every leaf has it, and of a key every device another one.
Layout = Mapping[str, str]
#: Those in which what is not divided is given as copies.
STACKED = ("devices", "parts", "keys")
#: Ways of calling a parallel function that are tried.
MOST_LAYOUTS = 48


def find(asked: Object) -> Callable[..., Any]:
    """Import the user's file, or find it imported, and take the object out of it; or run what makes it.

    Raises:
        Problem: ``"import"``; ``"program"``; ``"inputs"`` where there is no such object, or it cannot be
            called.
    """
    if asked.made is not None:
        value = made_by_program(asked)
    else:
        module = load.import_file(asked.module)
        if load.is_in_part(module) and not hasattr(module, asked.name.partition(".")[0]):
            # The reference needs less of the same file than this: that it fails is to be said.
            with not_imported(asked):
                module = load.import_file(asked.module)
        value = module
        for part in asked.name.split("."):
            if not hasattr(value, part):
                known = tuple(name for name, it in vars(module).items() if callable(it) and name[:1] != "_")
                raise Problem("inputs", f"it has no `{part}` once it is imported", known=known)
            value = getattr(value, part)
    if not callable(value):
        raise Problem("inputs", f"`{asked.name}` is a {type(value).__name__}, not a function")
    function: Callable[..., Any] = value
    return function


@functools.cache
def made_by_program(asked: Object) -> Any:
    """What a program makes; it is run once in a process, and again where that is asked for.

    Raises:
        Problem: as `capture.make`.
    """
    assert asked.made is not None
    with not_imported(asked):
        return capture.make(asked, asked.made)


@contextlib.contextmanager
def not_imported(asked: Object) -> Iterator[None]:
    """Have the next import of the object's module run its file once more."""
    names = {asked.module.name, load.private_name(asked.module.name)} & sys.modules.keys()
    before = {name: sys.modules.pop(name) for name in names}
    try:
        yield
    finally:
        sys.modules.update(before)


def find_anew(asked: Object) -> Callable[..., Any]:
    """The object out of the user's file imported once more, so that it is made for the devices there are now.

    Raises:
        Problem: as `find`.
    """
    made_by_program.cache_clear()
    with not_imported(asked):
        return find(asked)


def layouts(
    calling: Calling,
    values: Values,
    axes: LeafAxes,
    statics: Sequence[str],
    data: Sequence[str] = (),
    count: int = 1,
) -> Iterator[dict[str, str]]:
    """Ways of calling, the likeliest first: drop-in, all stacked, only the batch stacked, mixtures.

    Arguments that look like `data` and are not as long as the batch may be another batch, divided over
    `count` devices too, and so may what is beside the batch in one of them: they are given so before they
    are given as copies.
    """
    whole = dict.fromkeys(values, "whole")
    batch = [name for name in values if axes.get(name)]
    # What has no arrays, or is a compile-time constant, cannot have a device axis.
    state = [
        name
        for name, value in values.items()
        if name not in batch and name not in statics and calling.takes(name) and jax.tree.leaves(value)
    ]
    mixed = [name for name in batch if len(axes[name]) < len(jax.tree.leaves(values[name]))]
    yield whole
    split = {**whole, **dict.fromkeys(batch, "devices")}
    seen = []
    apart = [name for name in state if name in data and has_own_rows(values[name], count)]
    with_others = [name for name in mixed if name in data and has_other_rows(values[name], axes[name], count)]
    others = [name for name in state if name not in apart]
    for form, form_of_mixed in (
        (("whole", "batch"), ("parts", "parts")) if batch and (apart or with_others) else ()
    ):
        given = {**split, **dict.fromkeys(apart, form), **dict.fromkeys(with_others, form_of_mixed)}
        for chosen in (others, [], [name for name in others if shape_of_any(values[name])]):
            layout = {**given, **dict.fromkeys(chosen, "devices")}
            if layout not in seen:
                seen.append(layout)
                yield layout
    for forms in itertools.product(("devices", "batch"), repeat=len(mixed)):
        base = {**split, **dict(zip(mixed, forms, strict=True))}
        for chosen in (state, [], *([name for name in state if len(shape_of_any(values[name])) > 0],)):
            layout = {**base, **dict.fromkeys(chosen, "devices")}
            if layout not in seen:
                seen.append(layout)
                yield layout
        for number in range(len(state) - 1, 0, -1):
            for chosen in map(list, itertools.combinations(state, number)):
                layout = {**base, **dict.fromkeys(chosen, "devices")}
                if layout not in seen:
                    seen.append(layout)
                    yield layout
    inner = [name for name in batch if any(axes[name].values())]
    if inner:
        # As for `in_axes=1`: (steps, devices, rows, …).
        base = {**split, **dict.fromkeys(inner, "inner")}
        for chosen in (state, []):
            yield {**base, **dict.fromkeys(chosen, "devices")}
    keyed = [name for name in state if holds_key(values[name])]
    if keyed:
        # As a caller gives them who has split a key: (devices, …). `shard_map` splits the batch by itself.
        yield {**whole, **dict.fromkeys(keyed, "keys")}
        for chosen in (state, keyed):
            yield {**split, **dict.fromkeys(chosen, "devices"), **dict.fromkeys(keyed, "keys")}
    if state:
        # As `shard_map` takes what every device has its own of, beside a batch that it splits.
        yield {**whole, **dict.fromkeys(state, "devices")}


def with_parts(
    layout: Layout, values: Values, axes: LeafAxes, data: Sequence[str], count: int
) -> Iterator[dict[str, str]]:
    """A layout that gives each array a device axis, before it with parts of what may be another batch."""
    apart = [
        name
        for name, form in layout.items()
        if form == "devices"
        and name in data
        and (
            has_other_rows(values[name], axes[name], count)
            if axes.get(name)
            else has_own_rows(values[name], count)
        )
    ]
    if apart:
        yield {**layout, **dict.fromkeys(apart, "parts")}
    yield dict(layout)


def has_own_rows(value: Any, count: int) -> bool:
    """Whether all arrays of a value are equally long, and so many devices share that evenly."""
    shapes = [shape_of(leaf) for leaf in jax.tree.leaves(value)]
    rows = {shape[0] if shape else 0 for shape in shapes}
    return len(rows) == 1 and not holds_key(value) and min(rows) >= count and min(rows) % count == 0


def has_other_rows(value: Any, split: Mapping[int, int], count: int) -> bool:
    """Whether a value has arrays beside those that are `split` whose rows so many devices share evenly."""
    leaves = enumerate(jax.tree.leaves(value))
    return any(index not in split and has_rows(leaf, count) for index, leaf in leaves)


def has_rows(leaf: Any, count: int) -> bool:
    """Whether a leaf is an array whose first axis so many devices share evenly."""
    shape = shape_of(leaf)
    return bool(shape) and not is_key_leaf(leaf) and shape[0] >= count and shape[0] % count == 0


def holds_key(value: Any) -> bool:
    """Whether a key is among the leaves of a value, typed or raw."""
    return any(is_key_leaf(leaf) for leaf in jax.tree.leaves(value))


def fitting(calling: Calling, layout: Layout) -> dict[str, str]:
    """`layout` without a device axis on arguments the function does not take."""
    return {name: form if calling.takes(name) else "whole" for name, form in layout.items()}


def shape_of_any(value: Any) -> tuple[int, ...]:
    """Shape of the leaf of highest rank."""
    return max((shape_of(leaf) for leaf in jax.tree.leaves(value)), key=len, default=())


def put(values: Values, axes: LeafAxes, layout: Layout, count: int, given: "Values | None" = None) -> Values:
    """`values` with device axes as the layout says.

    What has an axis of devices already, beside the `given` values of one device, keeps it.
    """
    out = dict(values)
    for name, form in layout.items():
        if form == "whole":
            continue
        # From the host: an array that lies on the devices keeps its place there when it is stacked.
        value = values[name] if traced(values[name]) else to_host(values[name])
        leaves, tree = jax.tree.flatten(value)
        like = jax.tree.leaves(given[name]) if given is not None else ()
        for index, leaf in enumerate(leaves):
            axis = axes.get(name, {}).get(index)
            if form == "parts" and axis is None and shape_of(leaf):
                axis = axis_of_parts(leaf, count, mixed=bool(axes.get(name)))
            if axis is None and len(like) == len(leaves) and is_stacked(leaf, like[index], count):
                continue
            if form == "inner":
                if axis is not None:
                    shape = shape_of(leaf)
                    leaves[index] = leaf.reshape(
                        *shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]
                    )
            elif form == "keys" and is_key_leaf(leaf):
                leaves[index] = own_keys(leaf, count)
            elif isinstance(leaf, jax.core.Tracer) and (axis is not None or form in STACKED):
                leaves[index] = with_device_axis(leaf, axis, count)
            elif axis is not None:
                size = shape_of(leaf)[axis] // count
                leaves[index] = stacked(
                    [take(leaf, axis, slice(i * size, (i + 1) * size)) for i in range(count)]
                )
            elif form in STACKED and category(leaf) != "opaque":
                leaves[index] = stacked([leaf] * count)
        out[name] = jax.tree.unflatten(tree, leaves)
    return out


def axis_of_parts(leaf: Any, count: int, *, mixed: bool) -> "int | None":
    """The axis along which a leaf that is not as long as the batch is given in parts, None for copies.

    These are for what is in one argument with the batch (`mixed`) and has no rows: a weight for each class.

    Raises:
        ValueError: so many devices do not share its rows evenly.
    """
    if has_rows(leaf, count):
        return 0
    rows = shape_of(leaf)[0]
    if mixed and rows % LCM:
        return None
    raise ValueError(f"{rows} rows in parts are not shared evenly by {count} devices")


def is_stacked(leaf: Any, given: Any, count: int) -> bool:
    """Whether a leaf is `given`, one device's, with an axis of devices in front."""
    return shape_of(leaf) == (count, *shape_of(given)) and category(given) != "opaque"


def own_keys(leaf: Any, count: int) -> Any:
    """A key for each device, which draws for its share as the given one does for the batch."""
    words = jax.random.key_data(leaf) if is_key(leaf) else leaf
    moves = jax.vmap(
        lambda block: jax.numpy.vectorize(lambda w: moved(w, block), signature="(k)->(k)")(words)
    )
    keys = moves(jax.numpy.arange(count, dtype="uint32"))
    return jax.random.wrap_key_data(keys, impl=jax.random.key_impl(leaf)) if is_key(leaf) else keys


def with_device_axis(leaf: Any, axis: "int | None", count: int) -> Any:
    """A traced leaf with a device axis in front: of its shares along `axis`, or of copies."""
    if axis is None:
        return jax.numpy.broadcast_to(leaf, (count, *leaf.shape))
    shape = (*leaf.shape[:axis], count, leaf.shape[axis] // count, *leaf.shape[axis + 1 :])
    parts = leaf.reshape(shape)
    return parts if axis == 0 else jax.numpy.moveaxis(parts, axis, 0)


def traced(value: Any) -> bool:
    """Whether any leaf is seen while a function is traced, and has no numbers."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def stacked(parts: Sequence[Any]) -> Any:
    """`parts` along a new first axis; of host arrays a host array."""
    if is_key(parts[0]) or isinstance(parts[0], jax.Array):
        return jax.numpy.stack(parts)
    return np.stack([np.asarray(part) for part in parts])


def taken(got: Any, want: Any, count: int) -> Any:
    """The outputs of raw code as the reference returns them.

    An output of the reference's own shape is taken as it is; copies on all devices become one,
    and shares are put together along the axis that makes them the reference's.

    Raises:
        prove.Differs: copies that differ between devices, or a shape that is neither.
    """
    if jax.tree.structure(got) != jax.tree.structure(want):
        return got  # Said better by whoever compares.
    leaves, apart = each_taken(got, want, count)
    if apart:
        # What would mend the first of them may not mend the others.
        copies = {i: [prove.host(leaf)] for i, leaf in enumerate(leaves) if i not in apart}
        copies |= {i: [*each.copies[i]] for i, each in apart.items()}
        raise prove.Differs(next(iter(apart.values())).failure, copies)
    return jax.tree.unflatten(jax.tree.structure(got), leaves)


def each_taken(got: Any, want: Any, count: int) -> tuple[list[Any], dict[int, prove.Differs]]:
    """The output leaves of raw code as `want` has them, and of copies that differ, which stay, how they do.

    Raises:
        prove.Differs: a shape that is neither that of the reference, nor of copies or shares of it.
    """
    leaves, apart = [], {}
    for index, ((path, leaf), target) in enumerate(
        zip(prove.leaf_table(got), jax.tree.leaves(want), strict=True)
    ):
        try:
            leaves.append(one_taken(index, path, leaf, shape_of(target), count))
        except prove.Differs as differs:
            if differs.failure.what != "replicas":
                raise
            apart[index] = differs
            leaves.append(leaf)
    return leaves, apart


def one_taken(index: int, path: str, leaf: Any, want: tuple[int, ...], count: int) -> Any:
    """One output of raw code as the reference returns it; see `taken`."""
    shape = shape_of(leaf)
    if shape == want:
        return leaf
    for axis in range(len(shape)):
        if shape[axis] == count and shape[:axis] + shape[axis + 1 :] == want:
            if traced(leaf):
                return jax.lax.index_in_dim(leaf, 0, axis, keepdims=False)
            copies = [take(leaf, axis, i) for i in range(count)]
            bits = [prove.host(copy) for copy in copies]
            if any(not same_bits(part, bits[0]) for part in bits):
                failure = Failure("replicas", path=path, leaf=index, why=prove.UNLIKE)
                raise prove.Differs(failure, {index: bits})
            return copies[0]
    for axis, size in enumerate(want):
        if axis and size % count == 0 and shape == (*want[:axis], count, size // count, *want[axis + 1 :]):
            return leaf.reshape(want)
    if len(shape) == len(want) + 1 and shape[0] == count:
        for axis, size in enumerate(want):
            if shape[1:] == (*want[:axis], size // count, *want[axis + 1 :]) and size % count == 0:
                if traced(leaf):
                    return jax.numpy.moveaxis(leaf, 0, axis).reshape(want) if axis else leaf.reshape(want)
                return jax.numpy.concatenate([leaf[i] for i in range(count)], axis)
    wanted = f"{want}, {(count, *want)} or shares of it with a device axis of {count} in front"
    raise prove.Differs(Failure("shape", path=path, got=str(shape), want=wanted))


class Caller:
    """A parallel function that is called with the reference's values, in one layout."""

    def __init__(
        self,
        calling: Calling,
        axes: LeafAxes,
        layout: Layout,
        count: int,
        shapes: Any,
        given: "Values | None" = None,
    ) -> None:
        self.calling = calling
        self.axes, self.layout, self.count = axes, layout, count
        #: The example inputs, as one device takes them; see `put`.
        self.given = given
        #: The reference's result on these inputs, for the shapes of the outputs.
        self.want = shapes
        #: Whether outputs were copies with a device axis, which `taken` compared.
        self.copies = False

    @property
    def raw(self) -> bool:
        """Whether any argument has a device axis."""
        return any(form != "whole" for form in self.layout.values())

    def laid_out(self, values: Values) -> Any:
        """Lay the values out, call, and return the outputs as they are."""
        return self.calling(put(copied(values), self.axes, self.layout, self.count, self.given))

    def __call__(self, values: Values) -> Any:
        """Lay the values out, call, and return the outputs as the reference does."""
        laid = put(copied(values), self.axes, self.layout, self.count, self.given)
        out = self.calling(laid)
        if not self.raw:
            return out
        got = taken(out, self.want, self.count)
        self.copies = any(
            shape_of(a) != shape_of(b) and shape_of(a)[:1] == (self.count,) and shape_of(a)[1:] == shape_of(b)
            for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(self.want), strict=False)
        )
        return got


def changed_in_place(run: Callable[[Values], Any], values: Values) -> list[str]:
    """Paths of what a call leaves changed in its arguments: containers, and the numbers of NumPy arrays."""
    given = copied(values)
    before = {name: (leaf_paths(value), jax.tree.leaves(value)) for name, value in given.items()}
    run(dict(given))
    found = []
    for name, (paths, leaves) in before.items():
        if leaf_paths(given[name]) != paths:
            found.append(name)
            continue
        after, were = jax.tree.leaves(given[name]), jax.tree.leaves(values[name])
        for path, old, new, was in zip(paths, leaves, after, were, strict=True):
            if new is not old or (isinstance(old, np.ndarray) and old.tobytes() != was.tobytes()):
                found.append(name + path)
    return found


def inconsistent(leaves: Sequence[tuple[str, Any]], count: int) -> Failure | None:
    """The first output of which two devices hold different bits of the same part."""
    unlike = (path for path, leaf in leaves if isinstance(leaf, jax.Array) and prove.is_unlike(leaf))
    return next((Failure("replicas", path=path, why=prove.UNLIKE) for path in unlike), None)


def devices_of(result: Any) -> int:
    """On how many devices the outputs lie; 0 where they are no jax arrays."""
    return max((len(x.devices()) for x in jax.tree.leaves(result) if isinstance(x, jax.Array)), default=0)


def attempt(caller: Caller, values: Values, allowed: Sequence[float]) -> Call:
    """How one call in one layout ends: what differs, or ``"equal"``."""
    ended = functools.partial(Call, caller.layout, tuple(caller.calling.named))
    try:
        laid = put(copied(values), caller.axes, caller.layout, caller.count)
        out = caller.calling(laid)
        jax.block_until_ready(out)
    except MemoryError:
        raise
    except BaseException as error:
        return ended("raises", describe_exception(error))
    try:
        got = taken(out, caller.want, caller.count) if caller.raw else out
    except prove.Differs as differs:
        if differs.failure.what != "replicas":
            return ended("form")
        got = [differs.copies[index][0] for index in sorted(differs.copies)]
        return ended("value", off=off(got, jax.tree.leaves(caller.want), allowed))
    if prove.same_form(got, caller.want):
        return ended("form")
    far = off(jax.tree.leaves(got), jax.tree.leaves(caller.want), allowed)
    return ended("value" if far[0] else "equal", off=far, on=devices_of(out))


def off(got: Sequence[Any], want: Sequence[Any], allowed: Sequence[float]) -> tuple[float, float]:
    """The share of some results that differ, and how far at most, of their size."""
    found = []
    for one, other, bound in zip(got, want, allowed, strict=True):
        error, scale = distance(prove.host(one), prove.host(other))
        found.append(0.0 if error <= bound else min(error / (scale or 1.0), 1e30))
    different = [far for far in found if far]
    return len(different) / max(len(found), 1), max(different, default=0.0)
