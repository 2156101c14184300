"""Follow keys through a traced program to the random numbers drawn from them.

A draw belongs to *examples* when its shape on a share of the batch is another than on all of it,
else to *everybody*. On every device the same key gives the same numbers, so a draw for examples
needs a key that differs between devices, and one for everybody must not have one.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax.interpreters import ad, batching, partial_eval

from . import protocol
from .arguments import LeafAxes, Packed, Values, graph_keys, invoke, shards
from .drawn_keys import DRAWING, of_both_kinds
from .functions import guarded, in_place_of, named
from .jaxpr.forward import Forward
from .jaxpr.trace import computed
from .jaxpr.versions import inner_jaxpr, opened, primitive_name, shard_map_specs
from .leaves import is_graph_node, is_key, skeleton, with_paths
from .prove import draws_numbers

#: Equations that make keys of keys, or of numbers.
KEEPING = frozenset(
    {"random_wrap", "random_unwrap", "random_split", "random_fold_in", "random_seed", "random_clone"}
)
#: Those of them whose result is the same key in another form.
SAME_KEY = frozenset({"random_wrap", "random_unwrap", "random_clone"})
#: Collectives whose result is the same on every device.
LEVELLING = frozenset({"psum", "pmax", "pmin", "all_gather"})
#: Collectives whose result is another on every device.
SPREADING = frozenset({"ppermute", "all_to_all", "reduce_scatter", "pgather", "axis_index"})

#: Where in a program an equation is: indices of equations, outermost first.
Place = tuple[int, ...]

mark_p = jax.extend.core.Primitive("jax_pmap_mark")
mark_p.def_impl(lambda x, *, point, path, bare: x)
mark_p.def_abstract_eval(lambda x, *, point, path, bare: x)
# Under vmap the key at a mark is many keys; they are better kept apart where they are still one.
batching.primitive_batchers[mark_p] = lambda args, axes, *, point, path, bare: (
    mark_p.bind(*args, point=point, path=path, bare=False),
    axes[0],
)
ad.primitive_jvps[mark_p] = lambda primals, tangents, **params: (mark_p.bind(*primals, **params), tangents[0])


class Unfollowed(Exception):
    """Random numbers are drawn inside an operation this module does not know."""


class Marker:
    """What marked code calls: puts an equation where the value of an expression is a key or holds keys."""

    def __init__(self) -> None:
        self.key_shape = np.shape(jax.random.PRNGKey(0))
        #: Containers of the marked values that are no single arrays, by point.
        self.trees: dict[int, Any] = {}

    def tap(self, point: int, value: Any) -> Any:
        """`value`, with the keys in it marked.

        Only plain containers are looked into. Objects of Flax NNX in them stay the very ones: what changes
        them later has to reach those that are returned.
        """
        if type(value) in (dict, tuple):
            paths, tree = with_paths(value, is_graph_node)
            if not any(self.bare(leaf) for _, leaf in paths):
                return value
            self.trees[point] = skeleton(value)
            leaves = [
                mark_p.bind(leaf, point=point, path=jax.tree_util.keystr(path), bare=True)
                if self.bare(leaf)
                else leaf
                for path, leaf in paths
            ]
            return jax.tree.unflatten(tree, leaves)
        if not isinstance(value, (jax.Array, np.ndarray)):
            return value
        raw = value.dtype == np.uint32 and value.shape[-1:] == self.key_shape
        if is_key(value) or raw:
            return mark_p.bind(value, point=point, path="", bare=self.bare(value))
        return value

    def guarded(self, _: int, owner: type, name: str, copy: Any) -> Callable[..., Any]:
        """The copy of a method, that of its class for objects of others."""
        return guarded(copy, owner, name, lambda receiver: getattr(receiver, name))

    def in_place_of(self, _: int, given: Any, module: str, name: str, copy: Any) -> Any:
        """The copy of a function of a module that a value holds, or the value where it holds another."""
        return in_place_of(given, named(module, name), copy) or given

    def enter(self, signature: inspect.Signature, values: Values) -> None:
        """Mark the keys of Flax NNX streams in the arguments: of the first parameter as point -1, and so on.

        They are no values of the body, which draws from them by calling the objects that hold them.
        """
        for index, name in enumerate(signature.parameters):
            for path, variable in graph_keys(values.get(name)):
                key = variable[...]
                variable[...] = mark_p.bind(key, point=-1 - index, path=path, bare=self.bare(key))

    def bare(self, leaf: Any) -> bool:
        """Whether a leaf is one key, raw or typed."""
        if is_key(leaf):
            return bool(leaf.ndim == 0)
        is_array = isinstance(leaf, (jax.Array, np.ndarray))
        return is_array and leaf.dtype == np.uint32 and leaf.shape == self.key_shape

    def before(self, _: int, value: Any) -> Any:
        """The operand of a collective."""
        return value

    def reach(self, branch: int) -> None:
        """Branches are noted elsewhere."""


@dataclass(frozen=True)
class Flow:
    """What is known of one value."""

    #: Marks that a key in it has passed.
    marks: frozenset[Place] = frozenset()
    #: Those of them that it passed whichever way it came: of a loop's carry, not those of earlier rounds.
    always: frozenset[Place] = frozenset()
    #: Whether it may differ between devices.
    varying: bool = False
    #: Whether it is computed from the device's own index.
    index: bool = False
    #: Whether a key in it was folded with that index.
    folded: bool = False
    #: Whether numbers drawn from a folded key went into it.
    noisy: bool = False
    #: Numbers of the keys that it may be, if it is one, alike for the same key; and of those it was made of.
    keys: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()

    def __or__(self, other: "Flow") -> "Flow":
        """What is known of a value made from both."""
        return Flow(
            self.marks | other.marks,
            self.always | other.always,
            self.varying or other.varying,
            self.index or other.index,
            self.folded or other.folded,
            self.noisy or other.noisy,
            self.keys | other.keys,
            self.behind | other.behind,
        )

    def either(self, other: "Flow") -> "Flow":
        """What is known of a value that is one of both."""
        return dataclasses.replace(self | other, always=self.always & other.always)

    def unmarked(self) -> "Flow":
        """What is known of a value made from this one that is no key."""
        none: frozenset[Any] = frozenset()
        return dataclasses.replace(self, marks=none, always=none, keys=none, behind=none)


#: What is known of values that are no keys: whether they vary, come of the index, and have noise in them.
NO_KEY = {
    known: Flow(varying=known[0], index=known[1], noisy=known[2])
    for known in itertools.product((False, True), repeat=3)
}


@dataclass(frozen=True)
class Draw:
    """One place where random numbers are drawn."""

    #: Lengths of the loops around it, then its own shape.
    shape: tuple[int, ...]
    key: Flow
    #: Whether it draws for several keys at once with a generator that takes the first of them for all.
    of_first: bool
    #: How many loops are around it.
    loops: int

    def is_as_large(self, other: "Draw") -> bool:
        """Whether it draws what another one does, in one loop more at most: that over microbatches."""
        around = self.shape[: self.loops]
        fewer = [around, *(around[:at] + around[at + 1 :] for at in range(self.loops))]
        return any(each + self.shape[self.loops :] == other.shape for each in fewer)


def of_first(keys: Any) -> bool:
    """Whether numbers for all of some keys are drawn with the first, as with the `rbg` generators of jax."""
    return bool(keys.shape) and "rbg" in str(keys.dtype)


@dataclass(frozen=True)
class Passed:
    """A mark, and what came by."""

    point: int
    path: str
    #: Whether one key stands there.
    bare: bool
    keys: frozenset[int]
    #: Whether it comes by again in the next round of a loop.
    carried: bool


@dataclass
class Followed:
    """What `follow` found in a program."""

    program: Any
    draws: list[Draw]
    marks: dict[Place, "Passed"]
    results: list[Flow]


def follow(closed: Any) -> Followed:
    """Follow keys through a closed jaxpr whose inputs are the same on all devices.

    Raises:
        Unfollowed: random numbers are drawn inside an operation this module cannot look into.
    """
    keys = _Keys()
    given = [Flow(keys=keys.key(("given", i))) for i in range(len(closed.in_avals))]
    results = keys.run(closed, given)
    return Followed(closed, keys.draws, keys.marks, results)


def used(closed: Any) -> Any:
    """A closed jaxpr without what goes into no result."""
    jaxpr = closed.jaxpr
    live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return jax.extend.core.ClosedJaxpr(live, closed.consts)


def follow_both(whole: Any, parts: Any, live: bool) -> tuple[Followed, Followed]:
    """Follow keys through a program on the whole batch and one on shares of it.

    `jax.grad` leaves out of a compiled function the draws that nothing uses, and keeps them elsewhere: where
    one program has more draws, or those that are `live` count alone, the others are left out of both.

    Raises:
        Unfollowed: as for `follow`.
    """
    both = (follow(whole), follow(parts)) if not live else None
    if both is None or len(both[0].draws) != len(both[1].draws):
        both = follow(used(whole)), follow(used(parts))
    return both


def union(flows: Sequence[Flow]) -> Flow:
    """What is known of a value made from others."""
    first, *others = flows or (Flow(),)
    for flow in others:
        if flow is not first:
            first |= flow
    return first


class _Keys(Forward[Flow]):
    """Follows keys to where numbers are drawn from them."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []
        self.marks: dict[Place, Passed] = {}
        self._numbers: dict[Any, int] = {}
        #: Axes of meshes along which there is one device, which is the first.
        self._single: set[Any] = set()

    def key(self, how: Any) -> frozenset[int]:
        """The key that is made in such a way."""
        return frozenset({self._numbers.setdefault(how, len(self._numbers))})

    def constant(self, value: Any) -> Flow:
        if np.ndim(value):
            return Flow(keys=self.key(id(value)))
        if is_key(value):
            return Flow(keys=self.key(repr(value)))
        number = value.item() if hasattr(value, "item") else value
        return Flow(keys=self.key((type(number), getattr(value, "dtype", None), number)))

    def join(self, one: Flow, other: Flow) -> Flow:
        return one.either(other)

    def under(self, fact: Flow, choice: Flow) -> Flow:
        """What differs in a choice differs in its result."""
        return fact | choice.unmarked()

    def share(self, equation: Any, facts: list[Flow]) -> list[Flow]:
        """What is split over devices differs between them; of keys that are split each gets one."""
        params = equation.params
        if "in_axes" in params:  # pmap up to jax 0.7
            split = [axis is not None for axis in params["in_axes"]]
        else:
            self._single |= {axis for axis, size in dict(params["mesh"].shape).items() if size == 1}
            split = [not dims.keys() <= self._single for dims in shard_map_specs(params)[0]]
        return [
            dataclasses.replace(fact, varying=fact.varying or one, folded=fact.folded or (one and key))
            for fact, one, key in zip(facts, split, map(one_key_each, equation.invars), strict=True)
        ]

    def operation(self, equation: Any, flows: list[Flow]) -> list[Flow]:
        name, count, params = primitive_name(equation), len(equation.outvars), equation.params
        together = union(flows)
        if equation.primitive is mark_p:
            if self.settled:
                again = self.path in together.marks
                self.marks[self.path] = Passed(**params, keys=together.keys, carried=again)
            here = {self.path}
            return [dataclasses.replace(together, marks=together.marks | here, always=together.always | here)]
        if name in DRAWING:
            if self.settled:
                shape = (*self.loops, *equation.outvars[-1].aval.shape)
                first = of_first(equation.invars[0].aval)
                self.draws.append(Draw(shape, flows[0], first, len(self.loops)))
            # A key that is taken out of many by the device's index is another on each, as a folded one is.
            own = flows[0].folded or flows[0].index
            return [Flow(varying=together.varying, noisy=together.noisy or own)] * count
        keyed = any(map(holds_key, equation.outvars))
        keys = self.which(equation, flows) if keyed else [frozenset[int]()] * count
        if name == "random_fold_in":
            key, number = flows
            varying, folded = key.varying or number.varying, key.folded or number.index
            behind = key.behind | key.keys
            return [dataclasses.replace(key, varying=varying, folded=folded, keys=keys[0], behind=behind)]
        if name in LEVELLING:
            return [dataclasses.replace(together, varying=False, index=False)] * count
        if name == "axis_index" and equation.params["axis_name"] in self._single:
            return [together]
        if name in SPREADING:
            return [dataclasses.replace(together, varying=True, index=name == "axis_index")] * count
        inner = inner_jaxpr(params)
        if inner is not None and len(opened(inner)[0].invars) == len(flows):
            return self.inside(0, inner, flows)
        unknown = name.startswith(("random_", "rng_")) and name not in KEEPING
        if unknown or (inner is not None and draws_numbers(inner)):
            raise Unfollowed(name)
        plain = NO_KEY[together.varying, together.index, together.noisy]
        if not keyed:
            return [plain] * count
        behind = together.behind | (frozenset() if name in SAME_KEY else together.keys)
        return [
            dataclasses.replace(together, keys=which, behind=behind) if holds_key(var) else plain
            for var, which in zip(equation.outvars, keys, strict=True)
        ]

    def which(self, equation: Any, flows: list[Flow]) -> list[frozenset[int]]:
        """Which keys the results of an operation are: the same where it does the same to the same."""
        name, count = primitive_name(equation), len(equation.outvars)
        if name in SAME_KEY:
            return [union(flows).keys] * count
        # What goes round a loop is one of several, and an operation there makes one key in all rounds.
        once = all(len(flow.keys) == 1 for flow in flows)
        how = (name, str(equation.params), *(flow.keys for flow in flows)) if once else self.path
        return [self.key((how, result)) for result in range(count)]


def one_key_each(var: Any) -> bool:
    """Whether a variable is a list of keys, typed or raw, which is split into single ones."""
    return holds_key(var) and len(var.aval.shape) == (2 if var.aval.dtype == np.uint32 else 1)


def holds_key(var: Any) -> bool:
    """Whether a variable's type is one that a key, raw or typed, can have."""
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and (dtype == np.uint32 or jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def survey(
    whole: Any,
    fn: Callable[..., Any],
    marker: Marker,
    signature: inspect.Signature,
    values: Values,
    axes: LeafAxes,
    statics: Sequence[str],
    axis_name: str,
    count: int,
    mutated: Sequence[str],
    live: bool = False,
) -> protocol.Draws:
    """Every draw of `fn` on shares of the batch, and the marks that its key has passed.

    `whole` is the jaxpr of the function on all of the batch; behind its results, what it leaves of the
    arguments `mutated`. With `live`, draws that go into no result are left out.
    """
    one, leaves, in_axes = shards(values, axes, count, statics)

    def run(_: Any, *leaves: Any) -> list[Any]:
        given = one.unpack(leaves)
        marker.enter(signature, given)
        result = invoke(fn, signature, given)
        return computed(jax.tree.leaves((result, [given[name] for name in mutated])))

    devices = jax.devices()[:count]
    # The first is for a function of which no argument is split: pmap has to map over one.
    mapped = jax.pmap(run, axis_name=axis_name, in_axes=(0, *in_axes), devices=devices)
    try:
        parts = jax.make_jaxpr(mapped)(np.arange(count), *leaves)
        before, after = follow_both(whole, parts, live)
    except Unfollowed as error:
        return protocol.Draws(unfollowed=f"inside `{error}`")
    if len(before.draws) != len(after.draws):
        times = f"{len(before.draws)} times on the whole batch, {len(after.draws)} on a share"
        return protocol.Draws(unfollowed=times)
    examples = [left.shape != right.shape for left, right in zip(before.draws, after.draws, strict=True)]
    # Where every device has its own key by now, this was asked before.
    to_fold = any(each and not draw.key.varying for each, draw in zip(examples, after.draws, strict=True))
    mixed = of_both_kinds(before.program, Packed(values, statics).leaves, examples) if to_fold else []
    numbers = {place: number for number, place in enumerate(after.marks)}
    # Keys of examples may be returned: they are split over the devices like the examples.
    kept = {
        place
        for result, old, new in zip(after.results, whole.out_avals, parts.out_avals, strict=True)
        if old.shape == new.shape[1:]
        for place in result.marks
    }
    #: What all devices have in common of what is drawn and returned.
    shared = [
        *(
            right.key
            for left, right in zip(before.draws, after.draws, strict=True)
            if left.shape == right.shape
        ),
        *(
            flow
            for flow, old, new in zip(after.results, whole.out_avals, parts.out_avals, strict=True)
            if old.shape == new.shape[1:]
        ),
    ]
    returned = any(
        flow.folded and old.shape == new.shape[1:]
        for flow, old, new in zip(after.results, whole.out_avals, parts.out_avals, strict=True)
    )
    return protocol.Draws(
        tuple(
            protocol.Draw(
                example=example,
                varying=draw.key.varying,
                marks=tuple(sorted(numbers[place] for place in draw.key.marks)),
                always=tuple(sorted(numbers[place] for place in draw.key.always)),
                mixed=at in mixed,
            )
            for at, (draw, example) in enumerate(zip(after.draws, examples, strict=True))
        ),
        tuple(
            protocol.Mark(
                mark.point,
                mark.path,
                mark.bare,
                place in kept,
                any(mark.keys & flow.behind and place not in flow.marks for flow in shared),
                mark.carried,
                marker.trees.get(mark.point) if mark.path else None,
            )
            for place, mark in after.marks.items()
        ),
        returned,
    )


def misuse(before: Followed, emitted: Followed, own_collectives: bool) -> str | None:
    """What is wrong with the keys that parallel code draws from, or None.

    `before` is what the original does on the whole batch. Where the original itself uses the
    device's index (`own_collectives`), a key of its own that differs is its own affair.
    """
    if len(before.draws) != len(emitted.draws):
        return (
            f"the original draws random numbers in {len(before.draws)} places and the parallel code in "
            f"{len(emitted.draws)}"
        )
    for left, right in zip(before.draws, emitted.draws, strict=True):
        if not right.is_as_large(left) and not right.key.varying:
            return (
                f"the draw of shape {left.shape} belongs to examples, and every device draws the same "
                "numbers for other examples"
            )
        if right.is_as_large(left) and right.key.varying and not own_collectives:
            return (
                f"the draw of shape {left.shape} belongs to all devices, and every device draws other numbers"
            )
    return None
