"""Run a function whose values are tapped, whole and on shards, and say what each value is."""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from . import kinds
from .arguments import LeafAxes, Packed, Values, cut, invoke, shards
from .functions import guarded, in_place_of, named, unwrapped
from .generator import looks_raw, without_block
from .leaves import category, skeleton
from .work import work

#: The name tapped code calls; the generator's weaver writes it.
RECORDER = "__jax_pmap__"
#: The attribute of a function that holds its tapped copies.
PROBES = "__jax_pmap_probes__"


def largest(events: Sequence[dict[str, Any]]) -> int:
    """Elements of the largest array in `events`."""
    return max((math.prod(leaf.get("shape", ())) for event in events for leaf in event["leaves"]), default=0)


class Recorder:
    """Collects what tapped code passes through it while a function is traced."""

    def __init__(
        self, results: Sequence[int] = (), mutated: Sequence[str] = (), *, blocks: bool = False
    ) -> None:
        #: Arguments that the function changes in place: recorded after it as points -1, -2, …
        self.mutated = tuple(mutated)
        #: Whether keys carry the number of a block, which is no part of what they are.
        self.blocks = blocks
        #: Scopes of functions whose tapped copies are run, by what holds them.
        self.inside: list[int] = []
        #: Points of the returned values, whose containers are always wanted.
        self.results = frozenset(results)
        #: Elements of a value at which a trace ends: a collective in a loop may multiply it each time.
        self.most = math.inf
        self.reset()

    def reset(self) -> None:
        """Forget everything; called at the start of every trace."""
        #: Set while the types of values are asked for: the axis they may vary over.
        self.axis_name: str | None = None
        self.events: list[dict[str, Any]] = []
        self.arrays: list[Any] = []
        #: Where a value is in `arrays`: parameters pass many points, and are many.
        self.places: dict[int, int] = {}
        self.reached: set[int] = set()
        #: Methods that objects have in place of one that has a copy: its scope, and their name.
        self.others: set[tuple[int, str]] = set()

    def tap(self, point: int, value: Any) -> Any:
        """Record `value` as seen at `point` and hand it on."""
        leaves = []
        try:
            paths, _ = jax.tree_util.tree_flatten_with_path(value)
        except Exception:  # A container jax cannot flatten says nothing of its leaves.
            paths = []
        for path, leaf in paths:
            # The shape of an array is none; only inputs may be known by theirs.
            kind = "opaque" if isinstance(leaf, jax.ShapeDtypeStruct) else category(leaf)
            entry: dict[str, Any] = {"path": jax.tree_util.keystr(path), "category": kind}
            if kind in ("array", "key"):
                entry["shape"], entry["dtype"] = list(leaf.shape), str(leaf.dtype)
                if leaf.size > self.most:
                    raise OverflowError(f"a value grows to shape {tuple(leaf.shape)}")
                if self.axis_name is not None:
                    entry["varies"] = self.axis_name in varying_axes(leaf)
                array = jax.random.key_data(leaf) if kind == "key" else leaf
                if self.blocks and looks_raw(array):
                    # A folded key differs between devices, and is still the key it is on the whole batch.
                    entry["key"], array = True, without_block(array)
                entry["index"] = self.places.setdefault(id(array), len(self.arrays))
                if entry["index"] == len(self.arrays):
                    self.arrays.append(array)
            elif kind != "opaque":
                entry["value"] = leaf
            leaves.append(entry)
        event: dict[str, Any] = {"point": point, "leaves": leaves}
        if point in self.results or len(leaves) > 1:
            event["tree"] = skeleton(value)
        self.events.append(event)
        return value

    def call(self, fn: Callable[..., Any], signature: inspect.Signature, values: Values) -> None:
        """Run tapped code from the start, and record what it left of the arguments it changes."""
        invoke(fn, signature, values)
        for index, name in enumerate(self.mutated):
            self.tap(-1 - index, values[name])

    def test(self, point: int, value: Any) -> Any:
        """Record `value` where it is made of Python numbers, as `tap` does, and hand it on.

        Arrays may belong to a transformation that runs the function inside.
        """
        leaves = value if isinstance(value, tuple | list) else [value]
        numbers = all(isinstance(leaf, bool | int | float) for leaf in leaves)
        return self.tap(point, value) if numbers else value

    def reach(self, branch: int) -> None:
        """Note that a branch of the body was entered."""
        self.reached.add(branch)

    def guarded(self, scope: int, owner: type, name: str, copy: Any) -> Callable[..., Any]:
        """The copy of a method, that of its class for objects of others, which is noted."""

        def other(receiver: Any) -> Any:
            self.others.add((scope, getattr(getattr(type(receiver), name), "__qualname__", name)))
            return getattr(receiver, name)

        return guarded(copy, owner, name, other)

    def guarded_probe(self, owner: type, name: str, probe: Any) -> Callable[..., Any]:
        """The tapped copy of a method, for objects that have it."""
        return guarded(probe, owner, name, lambda _: lambda *_, **__: None)

    def in_place_of(self, scope: int, given: Any, module: str, name: str, copy: Any) -> Any:
        """The copy of a function of a module that a value holds; another function is noted, and stays."""
        found = in_place_of(given, named(module, name), copy)
        if found is None:
            raw = unwrapped(given)[0]
            self.others.add((scope, type(given).__name__ if raw is None else raw.__qualname__))
        return given if found is None else found

    def in_place_of_probe(self, given: Any, module: str, name: str, probe: Any) -> Any:
        """The tapped copy of it, or what does nothing."""
        return in_place_of(given, named(module, name), probe) or (lambda *_, **__: None)

    def probing(self, scope: int, function: Any, probe: Any) -> Any:
        """Have the tapped copy of a function be found by the function itself, wherever it is called."""
        raw = unwrapped(function)[0]
        if raw is not None:
            vars(raw).setdefault(PROBES, {})[scope] = probe
        return function

    def probe(self, scope: int, function: Any) -> Callable[..., Any]:
        """The tapped copy of `function`, where it is the inner function `scope`; else what does nothing."""
        raw, args, kwargs = unwrapped(function)
        found = vars(raw).get(PROBES, {}).get(scope) if raw is not None else None
        return functools.partial(found, *args, **kwargs) if found is not None else lambda *_, **__: None

    def diverting(self, scope: int, probe: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a function that others hold, and run: its tapped copy is run where they are `within`."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            def either(*args: Any, **kwargs: Any) -> Any:
                return (probe if scope in self.inside else function)(*args, **kwargs)

            either.__name__ = getattr(function, "__name__", "either")
            return either

        return decorate

    def within(self, scope: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, which holds and runs another one, with the tapped copy of that."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self.inside.append(scope)
            try:
                return function(*args, **kwargs)
            finally:
                self.inside.pop()

        return run

    def side(self, point: int, value: Any) -> Any:
        """Note that an expression was evaluated, and hand its value on."""
        self.reached.add(point)
        return value


def varying_axes(leaf: Any) -> frozenset[str]:
    """Mesh axes that the type of `leaf` says it may differ along (``.vma``, since jax 0.10 ``.mat``)."""
    kind = jax.typeof(leaf)
    holder, name = (kind.mat, "varying") if hasattr(kind, "mat") else (kind, "vma")
    axes: frozenset[str] = getattr(holder, name, frozenset())
    return axes


def run_whole(
    fn: Callable[..., Any], recorder: Recorder, signature: inspect.Signature, packed: Packed, wrap: Any
) -> Callable[[Sequence[Any]], list[np.ndarray]]:
    """A compiled function from packed leaves to the recorded arrays, on one device."""

    def run(leaves: Sequence[Any]) -> list[Any]:
        def body() -> list[Any]:
            recorder.reset()
            recorder.call(fn, signature, packed.unpack(leaves))
            return list(recorder.arrays)

        return list(wrap(body))

    compiled = jax.jit(run)
    return lambda leaves: [np.asarray(array) for array in compiled(list(leaves))]


def run_shards(
    fn: Callable[..., Any],
    recorder: Recorder,
    signature: inspect.Signature,
    one: Packed,
    in_axes: list[int | None],
    axis_name: str,
    count: int,
) -> Callable[[Sequence[Any]], list[np.ndarray]]:
    """The same on `count` devices under pmap; recorded arrays are stacked over devices on axis 0."""

    def run(*leaves: Any) -> list[Any]:
        recorder.reset()
        recorder.call(fn, signature, one.unpack(leaves))
        return list(recorder.arrays)

    mapped = jax.pmap(run, axis_name=axis_name, in_axes=tuple(in_axes), devices=jax.devices()[:count])
    return lambda leaves: [kinds.stacked(array) for array in mapped(*leaves)]


Recorded = tuple[list[dict[str, Any]], list[list[np.ndarray]], list[int]]
#: For every set of leaves, how far each array is off by rounding alone; measured when it is asked for.
Noise = Callable[[], list[list[float]]]
#: How many times the change by a jitter counts as rounding.
SLACK = 64.0


def rounding_noise(
    compiled: Callable[..., list[np.ndarray]],
    arrays: Sequence[Sequence[np.ndarray]],
    jittered: Sequence[Sequence[Any]],
) -> list[list[float]]:
    """How far the `arrays` that a function gave are off by rounding alone.

    The gradient of a bias in front of a normalisation is zero, and comes out as what rounding leaves of
    numbers that cancel: of no size of its own to compare with. Inputs changed by a rounding, those of
    `jittered`, give another such remainder.
    """

    def moved(one: np.ndarray, other: np.ndarray) -> float:
        if one.dtype.kind not in "fc" or one.shape != other.shape:
            return 0.0
        apart = np.abs(one - other)
        return SLACK * float(np.max(apart, initial=0.0, where=np.isfinite(apart)))

    return [
        [moved(one, other) for one, other in zip(given, compiled(leaves), strict=True)]
        for given, leaves in zip(arrays, jittered, strict=True)
    ]


def record(
    compiled: Callable[..., list[np.ndarray]], recorder: Recorder, data: Sequence[Sequence[Any]]
) -> Recorded:
    """Events, their arrays for every set of leaves in `data`, and the branches reached."""
    return recorded(recorder, [compiled(leaves) for leaves in data])


def recorded(recorder: Recorder, arrays: list[list[np.ndarray]]) -> Recorded:
    """What `recorder` met, with the arrays that came of it for every set of leaves."""
    return list(recorder.events), arrays, sorted(recorder.reached)


def compare(
    whole: Recorded,
    parts: Recorded,
    count: int,
    coarsest: float,
    results: Sequence[int],
    noise: Noise,
    eps: float = 0.0,
) -> list[dict[str, Any]]:
    """Kinds of every leaf of every event, in the order of execution.

    An event is ``{"point", "occurrence", "leaves": [{"path", "category", "kind", "shape",
    "dtype"}]}``. A point that is passed a different number of times on a shard than on the
    whole batch (a loop over rows) has the single kind ``"unaligned"``. `eps` is the coarsest rounding in
    the function.
    """
    lost = underflowing(whole[1], eps)
    whole_at: dict[int, list[dict[str, Any]]] = {}
    parts_at: dict[int, list[dict[str, Any]]] = {}
    for events, table in ((whole[0], whole_at), (parts[0], parts_at)):
        for event in events:
            table.setdefault(event["point"], []).append(event)
    seen: dict[int, int] = {}
    known: dict[tuple[int, int], list[set[str] | None]] = {}
    out = []
    for event in parts[0]:
        point = event["point"]
        occurrence = seen.get(point, 0)
        seen[point] = occurrence + 1
        others = whole_at.get(point, [])
        answer: dict[str, Any] = {"point": point, "occurrence": occurrence}
        if len(others) != len(parts_at[point]) or len(others[occurrence]["leaves"]) != len(event["leaves"]):
            answer["unaligned"] = True
            answer["leaves"] = []
        else:
            answer["leaves"] = [
                leaf_kind(left, right, whole[1], parts[1], count, coarsest, noise, known, lost)
                for left, right in zip(others[occurrence]["leaves"], event["leaves"], strict=False)
            ]
            settle(answer["leaves"])
            if event["point"] in results or len({leaf["kind"] for leaf in answer["leaves"]}) > 1:
                answer["tree"] = event.get("tree")
        out.append(answer)
    return out


def underflowing(arrays: Sequence[Sequence[np.ndarray]], eps: float) -> frozenset[int]:
    """Sets of data on which values that the first gives are too small for float16, where `eps` is its own.

    Perturbed data may scale a loss so far down that nothing is left of its gradients but the last bits.
    """
    half = np.finfo(np.float16)
    if eps != float(half.eps):
        return frozenset()
    least = SLACK**2 * float(half.smallest_subnormal)

    def size(array: np.ndarray) -> float:
        return float(np.max(np.abs(array), initial=0.0)) if array.dtype.kind == "f" else 0.0

    usual = [size(array) for array in arrays[0]]
    return frozenset(
        index
        for index, given in enumerate(arrays)
        if any(0 < size(array) <= least < first for array, first in zip(given, usual, strict=True))
    )


def settle(leaves: Sequence[dict[str, Any]]) -> None:
    """Where rounding hides which reduction a leaf needs, take that of the leaves beside it."""
    sure = [leaf["kind"] for leaf in leaves if "allowed" not in leaf and leaf["kind"] in kinds.PARTIAL]
    for leaf in leaves:
        allowed = leaf.pop("allowed", ())
        if leaf["kind"] in allowed:
            leaf["kind"] = next((kind for kind in sure if kind in allowed), leaf["kind"])


def compare_forms(whole: Recorded, events: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """What can be said of `events`, those of a run on shards that did not come to its end.

    That is kinds of Python numbers, and of arrays along which axis they have the shape of a share.
    """
    at: dict[int, list[dict[str, Any]]] = {}
    for event in whole[0]:
        at.setdefault(event["point"], []).append(event)
    out = []
    for event in events:
        seen = at.get(event["point"], [])
        if not seen or len(seen[0]["leaves"]) != len(event["leaves"]):
            continue
        leaves = []
        for left, right in zip(seen[0]["leaves"], event["leaves"], strict=True):
            if "value" in left and "value" in right:
                leaves.append(leaf_kind(left, right, [], [], count, 0.0, list, {}))
            elif "index" in left and "index" in right:
                split = split_axis(left["shape"], right["shape"], count)
                form = {key: left[key] for key in ("shape", "dtype")}
                leaves.append({**right, **form, "kind": "unknown", "split": split})
        if len(leaves) == len(event["leaves"]):
            out.append({"point": event["point"], "occurrence": 0, "leaves": leaves})
    return out


def constant(values: list[np.ndarray]) -> bool:
    """Whether a value is the same on several sets of data."""
    return len(values) > 1 and all(np.array_equal(value, values[0], equal_nan=True) for value in values)


def split_axis(whole: Sequence[int], part: Sequence[int], count: int) -> int | None:
    """The axis along which `part` has the shape of one of `count` shares of `whole`, or None."""
    if len(whole) != len(part):
        return None
    axes = [axis for axis, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
    return axes[0] if len(axes) == 1 and part[axes[0]] * count == whole[axes[0]] else None


def leaf_kind(
    left: dict[str, Any],
    right: dict[str, Any],
    whole: list[list[np.ndarray]],
    parts: list[list[np.ndarray]],
    count: int,
    coarsest: float,
    noise: Noise,
    known: dict[tuple[int, int], list[set[str] | None]],
    lost: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """Kind of one leaf: `left` from the whole batch, `right` from the shards."""
    answer = {
        "path": right["path"],
        "category": right["category"],
        "shape": left.get("shape", []),
        "dtype": left.get("dtype", ""),
    }
    if "index" in left and "index" in right:

        def judged(noise: Sequence[Sequence[float]]) -> list[set[str] | None]:
            found: list[set[str] | None] = []
            for index, (one, many) in enumerate(zip(whole, parts, strict=False)):
                value = one[left["index"]]
                if found and value.dtype.kind in "fc" and not np.isfinite(value).all():
                    found.append(None)  # Perturbed data left the function's domain: no statement.
                elif index in lost:
                    found.append(None)
                else:
                    off = noise[index][left["index"]] if noise else 0.0
                    found.append(kinds.candidates(value, many[right["index"]], coarsest, off))
            return found

        pair = left["index"], right["index"]
        if pair not in known:
            known[pair] = judged(())
        found = known[pair]
        answer["kind"] = kinds.agree(found)
        if answer["kind"] == kinds.VARYING and whole[0][left["index"]].dtype.kind in "fc":
            found = judged(noise())
            answer["kind"] = kinds.agree(found)
            answer["allowed"] = sorted(kinds.common(found) & set(kinds.PARTIAL))
        if answer["kind"] in ("pmax", "pmin") and constant([one[left["index"]] for one in whole]):
            # What is clipped on all data has a maximum and a minimum by chance.
            answer["kind"] = kinds.VARYING
            answer["options"] = sorted(kinds.common(found) & set(kinds.PARTIAL))
        if right.get("varies") and answer["kind"] == kinds.REPLICATED:
            seen = [one[left["index"]] for one in whole]
            changes = any(not np.array_equal(value, seen[0], equal_nan=True) for value in seen)
            if changes or seen[0].dtype.kind in "biu":
                # Equal on this data only (a constant float is one on any data, such as zeros). Which
                # reduction it is, the data cannot tell.
                answer["kind"] = kinds.VARYING
                answer["options"] = sorted(kinds.common(found) & set(kinds.PARTIAL))
        if answer["kind"] == kinds.VARYING:
            answer["split"] = split_axis(left["shape"], right["shape"], count)
        if right["category"] == "key" and answer["kind"] != kinds.REPLICATED:
            answer["kind"] = answer["kind"] if answer["kind"].startswith("sharded") else kinds.VARYING
    elif "value" in left and "value" in right:
        values = np.asarray(left["value"]), np.stack([np.asarray(right["value"])] * count)
        answer["kind"] = kinds.agree([kinds.candidates(*values, coarsest)])
        answer["number"] = True
    elif "index" not in left and "index" not in right:
        answer["kind"] = kinds.REPLICATED
    else:
        # A Python number on one side, an array on the other (psum of a number stays a number).
        single = whole[0][left["index"]] if "index" in left else np.asarray(left["value"])
        number = np.asarray(right.get("value", 0))
        stack = parts[0][right["index"]] if "index" in right else np.stack([number] * count)
        answer["kind"] = kinds.agree([kinds.candidates(single, stack, coarsest)])
    return answer


def shard_run(
    fn: Callable[..., Any],
    recorder: Recorder,
    signature: inspect.Signature,
    data: Sequence[Values],
    axes: LeafAxes,
    statics: Sequence[str],
    axis_name: str,
    count: int,
) -> Recorded:
    """Run tapped code on shards of every set of values in `data`."""
    prepared = [shards(values, axes, count, statics) for values in data]
    one, _, in_axes = prepared[0]
    compiled = run_shards(fn, recorder, signature, one, in_axes, axis_name, count)
    return record(compiled, recorder, [leaves for _, leaves, _ in prepared])


def share_of_work(
    whole: Callable[..., Any],
    part: Callable[..., Any],
    signature: inspect.Signature,
    values: Values,
    axes: LeafAxes,
    statics: Sequence[str],
    axis_name: str,
    count: int,
    wrap: Any,
) -> float:
    """The part of the work of `whole`, on the whole batch, that `part` does on each of `count` devices."""
    packed = Packed(values, statics)
    one, leaves, in_axes = shards(values, axes, count, statics)

    def run(fn: Callable[..., Any], arguments: Packed, leaves: Sequence[Any]) -> list[Any]:
        invoke(fn, signature, arguments.unpack(leaves))
        return []

    mapped = jax.pmap(
        lambda *given: run(part, one, given),
        axis_name=axis_name,
        in_axes=tuple(in_axes),
        devices=jax.devices()[:count],
    )
    alone = jax.make_jaxpr(lambda given: wrap(lambda: run(whole, packed, given)))(packed.leaves)
    return work(jax.make_jaxpr(mapped)(*leaves).jaxpr) / max(work(alone.jaxpr), 1.0)


@contextlib.contextmanager
def gathering_typed(count: int) -> Iterator[None]:
    """While functions are traced for their types alone, let ``all_gather`` say that its result is whole."""
    saved = jax.lax.all_gather

    def all_gather(x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False, **_: Any) -> Any:
        def gathered(leaf: Any) -> Any:
            copies = [leaf] * count
            joined = jax.numpy.concatenate(copies, axis) if tiled else jax.numpy.stack(copies, axis)
            return (jax.lax.psum if joined.dtype.kind == "c" else jax.lax.pmax)(joined, axis_name)

        return jax.tree.map(gathered, x)

    jax.lax.all_gather = all_gather
    try:
        yield
    finally:
        jax.lax.all_gather = saved


def note_varying(
    fn: Callable[..., Any],
    recorder: Recorder,
    signature: inspect.Signature,
    values: Values,
    axes: LeafAxes,
    statics: Sequence[str],
    axis_name: str,
    events: list[dict[str, Any]],
) -> None:
    """Mark the leaves of `events` whose *type* says that they may differ between devices.

    Traced under ``shard_map(check_vma=True)``, where jax has it: a second witness, on all data,
    for what the numbers say on some. ``jnp.all(jnp.isfinite(x))`` is the same on every shard of
    tame data and still varies. Where that trace fails (it is stricter than pmap about the carry
    of a scan), nothing is marked.
    """
    if not hasattr(jax, "typeof") or not hasattr(jax, "shard_map"):
        return
    count = 2
    whole = Packed(cut(values, axes, count), statics)
    one = Packed(cut(values, axes, 1), statics)
    spec = jax.sharding.PartitionSpec
    in_specs = [spec() if axis is None else spec(*[None] * axis, axis_name) for axis in whole.axes(axes)]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]), (axis_name,))
    tables: list[list[dict[str, Any]]] = []

    def run(*leaves: Any) -> list[Any]:
        recorder.reset()
        recorder.axis_name = axis_name
        recorder.call(fn, signature, one.unpack(leaves))
        tables.append(recorder.events)
        return []

    try:
        mapped = jax.shard_map(run, mesh=mesh, in_specs=tuple(in_specs), out_specs=[], check_vma=True)
        with gathering_typed(count):
            jax.eval_shape(mapped, *whole.leaves)
    except MemoryError:
        raise
    except Exception:
        return
    if [event["point"] for event in tables[-1]] != [event["point"] for event in events]:
        return
    for typed, event in zip(tables[-1], events, strict=True):
        for one_type, leaf in zip(typed["leaves"], event["leaves"], strict=False):
            leaf["varies"] = one_type.get("varies", False) and "key" not in leaf
