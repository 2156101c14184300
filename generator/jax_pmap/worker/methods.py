"""What the generator can ask of the worker."""

import dataclasses
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from . import (
    arguments,
    callees,
    capture,
    donation,
    draws,
    host_arrays,
    load,
    neighbours,
    observe,
    parallel,
    placed,
    prove,
    proving,
    proving_parallel,
    settings,
    sharing,
    strengthen,
    telling,
    witness,
)
from .arguments import Compiled, Packed, Values
from .around import Around, furnish
from .as_called import hold_against_call
from .call import Call, unbound
from .calling import Calling
from .examples import (
    MANY_BYTES,
    constants,
    describe,
    enclosed_arrays,
    identities,
    inputs_from_callable,
    inputs_from_specs,
    plain,
)
from .jaxpr.trace import Traced, abstract_leaves, counts_for, leaf_names, sizes_for
from .leaves import bytes_of, category, is_abstract, to_float64
from .marks import is_no_mark
from .parallel_reference import ParallelReference, find_layout, shapes_of
from .placements.derive import same_meaning
from .server import Answer, Problem, describe_exception, summary
from .specs import SEED
from .target import TARGET, Target, about, leaf_axes
from .tracing import find_layers, find_reductions, measured, precision, trace, traced, widened
from .trials import Emitted, OnMesh, Question, Trials
from .work import work


def forget(request: Answer) -> Answer:
    """Drop everything that is known of the target before; imported modules stay.

    With them stay settings of jax (``"set"``): another target must not have them.
    """
    vars(TARGET).update(vars(Target()))
    sharing.PLACES.clear()
    return {"set": bool(settings.changed() or settings.too_late())}


def loaded_files(request: Answer) -> Answer:
    """The source files of all modules that are imported now."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {"files": sorted({file for file in files if isinstance(file, str) and file.endswith(".py")})}


def imported(request: Answer) -> types.ModuleType:
    """The user's module."""
    load.keep_devices()
    host_arrays.tell_modes_apart()
    # `parser.parse_args()` at the top of a script must see a command line of its own, without options.
    sys.argv[:] = [request["path"]]
    return load.import_file(
        request["path"],
        request["module"],
        request["root"],
        request.get("source"),
        tolerant=request.get("tolerant", False),
    )


def parameters_of(request: Answer) -> Answer:
    """The parameters of the callable ``"name"`` of the user's module; none where it is no such thing."""
    module = imported(request)
    value = vars(module).get(request["name"])
    if not callable(value) or isinstance(value, type):
        return {"callable": False}
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        signature = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
    rows = [
        {
            "name": each.name,
            "kind": each.kind.name,
            "default": None
            if each.default is each.empty
            else repr(each.default)
            if plain(each.default)
            else "",
        }
        for each in signature.parameters.values()
    ]
    taken = load.taken(request["module"], request["path"], request["root"])
    return {"callable": not taken, "parameters": rows}


def load_target(request: Answer) -> Answer:
    """Import the user's module and define the undecorated function in it."""
    module = imported(request)
    for name in request.get("names", ()):
        value = vars(module).get(name)
        if neighbours.is_missing(value):
            raise Problem("missing", vars(value)["why"], name=name)
    forget({})
    TARGET.module, TARGET.x64 = module, bool(jax.config.jax_enable_x64)
    TARGET.called_by = request.get("called_by", "")
    TARGET.collectives, TARGET.in_place = request["collectives"], request["in_place"]
    if len(jax.devices()) < request["devices"]:
        raise Problem("import", "the module changed jax's devices while it was imported")
    if request.get("taken_from"):
        take_from(request)
    define_target(request)
    return {
        "given": list(TARGET.signature.bind_partial(*TARGET.bound_args, **TARGET.bound_kwargs).arguments),
        "settings": settings.changed(),
        "too_late": settings.too_late(),
        "taken": load.taken(request["module"], request["path"], request["root"]),
        "flags": "absl.flags" in sys.modules,
        "failed": neighbours.FINDER.failed,
    }


def take_from(request: Answer) -> None:
    """Take what the module's object ``"taken_from"`` has bound to the target, and what that closes over."""
    name = request["taken_from"]
    made = vars(TARGET.module).get(name)
    raw, args, kwargs = unbound(made)
    code = getattr(raw, "__code__", None)
    if raw is None or code is None or code.co_name != request["name"]:
        what = f"is {code.co_name!r}" if code is not None else f"is a {type(made).__name__}"
        raise Problem("other", f"`{name}` {what} once the module is imported")
    TARGET.bound_args, TARGET.bound_kwargs = args, kwargs
    if request["nested"]:
        TARGET.call = Call(raw, raw, args, kwargs, request["owner"], "")


def define_target(request: Answer) -> None:
    """Define the undecorated function where the module, or the program that ran, has it."""
    # In a copy of the module's namespace: a name the module rebinds later stays the user's.
    source = "\n" * (request["line"] - 1) + request["function"]
    TARGET.fn = TARGET.define(source, request["path"], request["name"])
    if not inspect.isfunction(TARGET.fn):
        raise Problem("import", f"`{request['name']}` did not become a function")
    TARGET.signature = inspect.signature(TARGET.fn)


def capture_call(request: Answer) -> Answer:
    """Run the user's program up to its first call of the target; see `capture.run`.

    The function that was called, with what it closes over, becomes the target, and the arguments of the
    call its example inputs.
    """
    call = capture.run(request)
    forget({})
    TARGET.call, TARGET.module, TARGET.x64 = call, call.module, call.x64
    TARGET.collectives, TARGET.in_place = request["collectives"], request["in_place"]
    define_target(request)
    TARGET.data = (arguments.bind(TARGET.signature, call.args, call.kwargs),)
    TARGET.named = tuple(call.kwargs)
    TARGET.called = arguments.bind_as_given(TARGET.signature, call.args, call.kwargs)
    return {"arguments": describe(TARGET.data[0]), "x64": TARGET.x64, "called_at": call.caller}


def reference_of(request: Answer) -> Callable[[Values], Any]:
    """The reference on one device, compiled, for a request's constants and overrides."""
    key = about(request, "statics", "overrides")
    return TARGET.once("compiled", key, lambda: Compiled(TARGET.reference, request["statics"]))


def repeats(request: Answer) -> Answer:
    """Whether the reference, traced twice, means the same both times."""
    packed = Packed(TARGET.values({}), request["statics"])
    leaves = abstract_leaves(packed, {})
    with prove.x64(TARGET.x64):
        one, other = (Traced(TARGET.reference, packed, leaves).jaxpr for _ in range(2))
    return {"same": same_meaning(one, other, leaf_names(packed))}


def found_inputs(request: Answer) -> strengthen.Found:
    """Inputs on which decisions of the reference go ways that they do not on the others."""
    statics, overrides = request["statics"], request.get("overrides", {})
    wide = widened(statics) is not None

    def search() -> strengthen.Found:
        with prove.x64(wide or TARGET.x64):
            return strengthen.find(
                [TARGET.reference],
                reference_of(request),
                tuple(TARGET.values(overrides, i) for i in range(len(TARGET.data))),
                leaf_axes(request),
                statics,
                wide=wide,
                counts=(8, 4, 3, 2),
                settled=statics,
                seed=SEED,
            )

    return TARGET.once("found", about(request, "axes", "statics", "overrides"), search)


def observe_code(request: Answer) -> Answer:
    """What each value of tapped code is on shards, beside the tapped original on the whole batch.

    `reference_code` is the tapped original, `code` the tapped original with collectives in it. It is told
    from placements: both are traced from shapes, the code on the shares of several counts of devices.

    The batch is of so many `rows`, or the given one, as far as the devices share it. Where the function
    fails on that, or on a share of it (a reshape that wants pairs), every share is as large as that batch.
    """
    base = arguments.batch_size(TARGET.values(request.get("overrides", {})), leaf_axes(request))
    count = request["count"]
    if request["rows"] is not None:
        return observed(request, request["rows"])
    try:
        answer = observed(request, base // count * count)
    except Problem as problem:
        if problem.kind != "reference":
            raise
        try:
            return observed(request, base * count)
        except Problem:
            raise problem from None
    if "raised" not in answer:
        return answer
    try:
        larger = observed(request, base * count)
    except Problem:
        return answer
    return answer if "raised" in larger else larger


def observed(request: Answer, size: int) -> Answer:
    """The answer of `observe_code` from a batch of `size`.

    Raises:
        Problem: ``"reference"``, the original is not traced for so many.
    """
    axes, statics, name = leaf_axes(request), request["statics"], request["axis_name"]
    values = TARGET.values(request.get("overrides", {}))
    count = request["count"]
    recorder = observe.Recorder(request["results"], TARGET.mutated)
    namespace = {**TARGET.namespace(), observe.RECORDER: recorder}

    def tapped(code: str, around: Around) -> Callable[[], Callable[[Values], Any]]:
        def anew() -> Callable[[Values], Any]:
            scope = dict(namespace)
            furnish(scope, around, {observe.RECORDER: recorder})
            fn: Callable[..., Any] = TARGET.define(code, "<jax-pmap>", request["name"], scope)
            fn = TARGET.over_devices(fn)
            return lambda given: recorder.call(fn, TARGET.signature, given)

        return anew

    packed = Packed(values, statics)

    def original() -> placed.Whole:
        leaves = abstract_leaves(packed, axes, size)
        anew = tapped(request["reference_code"], request["reference_around"])
        try:
            program = placed.Program(anew, recorder, packed, leaves, wrap=TARGET.one_device.run)
        except (MemoryError, Problem):
            raise
        except BaseException as error:
            found = describe_exception(error, "<jax-pmap")
            raise Problem("reference", summary(error), error=found) from error
        return placed.Whole(program, packed)

    key = about(request, "reference_code", "reference_around", "axes", "overrides"), size
    with prove.x64(TARGET.x64):
        whole = TARGET.once("placed", key, original, last=True)
        recorder.most = count * observe.largest(whole.program.events)
        shard = tapped(request["code"], request["around"])

        def share(devices: int) -> placed.Program:
            leaves = abstract_leaves(packed, axes, size // devices)
            return placed.Program(shard, recorder, packed, leaves, {name: devices})

        try:
            first = share(count)
        except MemoryError:
            raise
        except BaseException as error:
            points = [event["point"] for event in recorder.events]
            return {
                "raised": describe_exception(error, hide="_jax_pmap"),
                "last": points[-1] if points else None,
                "events": placed.compare_forms(whole.program.events, recorder.events, count),
            }
        events, idle = placed.events_of_some(
            whole, first, count, share, counts_for(size, count, 7), name, packed, axes, request["results"]
        )
    parts, all_of_it = (work(each.jaxpr, is_no_mark) for each in (first, whole.program))
    return {
        "share": parts / max(all_of_it, 1.0) if request["measure"] else None,
        "events": events,
        "idle": sorted(idle.items()),
        "reached": sorted(whole.program.reached | first.reached),
        "others": sorted(recorder.others),
    }


def repeat_rows(request: Answer) -> Answer:
    """Give the example so many `times` its rows, in another order, where the target takes them.

    ``{"arguments": the arguments described, or null}``, of shapes too.
    """
    axes, statics, times = leaf_axes(request), request["statics"], request["times"]
    size = arguments.batch_size(TARGET.data[0], axes)
    if bytes_of(TARGET.data[0]) * times > MANY_BYTES:
        return {"arguments": None}
    # Shares that were equal would hide what is taken of one of them.
    order = np.random.default_rng(SEED).permutation(np.arange(size * times) % size)
    data = tuple(
        arguments.map_batch(values, axes, lambda leaf, axis: arguments.take(leaf, axis, order))
        for values in TARGET.data
    )
    with prove.x64(TARGET.x64):
        try:
            packed = Packed(data[0], statics)
            traced(packed, packed.leaves)
        except MemoryError:
            raise
        except BaseException:
            return {"arguments": None}
    TARGET.data, TARGET.called = data, data[0]
    return {"arguments": describe(data[0])}


def synchronise(request: Answer) -> Answer:
    """Have batch norms of the target take their statistics over the devices, with the helper ``"code"``.

    On one device that changes nothing, which is tried: ``{"same": whether the results are those of before}``.
    """
    plain, wide = TARGET.fn, widened(request["statics"]) is not None
    values = TARGET.values({})
    if is_abstract(values):
        return {"same": False}

    def results() -> list[np.ndarray]:
        compiled = Compiled(TARGET.reference, request["statics"])
        given = to_float64(values) if wide else values
        with prove.x64(wide or TARGET.x64):
            leaves = jax.tree.leaves(compiled(given))
        return [np.asarray(leaf) for leaf in leaves if category(leaf) == "array"]

    before = results()
    TARGET.over_devices = load.define(request["code"], "<jax-pmap>", "over_devices", {})
    TARGET.fn = TARGET.over_devices(plain)
    # What is zero but for rounding, as the gradient of a bias ahead of such a layer, has no scale of its own.
    scale = max((float(np.abs(leaf).max(initial=0)) for leaf in before), default=0.0)
    close = (1e-9 if wide else 1e-4) * scale
    pairs = zip(before, results(), strict=True)
    return {"same": all(np.allclose(one, other, 0, close, equal_nan=True) for one, other in pairs)}


def survey_draws(request: Answer) -> Answer:
    """Which draws of the function belong to examples, and which marked keys they come from."""
    axes, statics, count = leaf_axes(request), request["statics"], request["count"]
    if not measured(statics).draws:
        return {"draws": [], "marks": [], "returned": False}
    values, _ = prove.cut_to(TARGET.values(request.get("overrides", {})), axes, count)
    marker = draws.Marker()
    scope = {**TARGET.namespace(), observe.RECORDER: marker}
    furnish(scope, request["around"], {observe.RECORDER: marker})
    fn: Callable[..., Any] = TARGET.define(request["code"], "<jax-pmap>", request["name"], scope)
    with prove.x64(TARGET.x64):
        whole = draws.whole_program(
            TARGET.fn, TARGET.signature, values, statics, TARGET.one_device.run, TARGET.mutated
        )
        try:
            return draws.survey(
                whole,
                fn,
                marker,
                TARGET.signature,
                values,
                axes,
                statics,
                request["axis_name"],
                count,
                TARGET.mutated,
            )
        except MemoryError:
            raise
        except BaseException as error:
            return {"unfollowed": summary(error)}


def trials_of(request: Answer, found: strengthen.Found, left_out: Sequence[str] = ()) -> Trials:
    """Runs of the target for a request's roles: the same ones for every question about them.

    On the inputs that were `found` too. Arguments `left_out` keep their numbers: the parallel function has
    the defaults of its own for them.
    """
    names = [
        "axes",
        "statics",
        "chain",
        "steps",
        "overrides",
        "global_view",
        "donated",
        "derived",
        "rows",
        "others",
    ]
    names += ["reference", "count"] if request.get("reference") else []
    key = about(request, *names), tuple(sorted(left_out))
    return TARGET.once("trials", key, lambda: new_trials(request, found, left_out), last=True)


def new_trials(request: Answer, found: strengthen.Found, left_out: Sequence[str]) -> Trials:
    """Runs of the target that have not been asked for; see `trials_of`."""
    given = measured(request["statics"])
    rounding = {"given": given.rounding}
    if not request.get("derived") and (wide := widened(request["statics"])) is not None:
        rounding["float64"] = wide.rounding
    donated = request.get("donated", ())

    def invoke(fn: Callable[..., Any], values: Values) -> Any:
        return TARGET.with_changes(fn, donation.fresh(values, donated))

    there = request.get("reference")
    own = parallel_reference_of(request, there["layout"], there["named"]) if there else None
    question = Question(
        reference=own or reference_of(request),
        traceable=own or TARGET.reference,
        invoke=invoke,
        data=tuple(
            values
            if request.get("rows") is None
            else arguments.cut(values, leaf_axes(request), request["rows"])
            for values in (TARGET.values(request.get("overrides", {}), i) for i in range(len(TARGET.data)))
        ),
        axes=leaf_axes(request),
        statics=tuple(request["statics"]),
        chain=tuple((name, path) for name, path in request["chain"]),
        steps=request["steps"],
        eps={kind: each.coarsest for kind, each in rounding.items()},
        rounding=rounding,
        x64=TARGET.x64,
        draws=given.draws,
        # Two functions on the same devices draw the same numbers as they are.
        repeat=given.draws and not request.get("global_view", True) and own is None,
        own_axes=TARGET.collectives,
        settled=(*request["statics"], *left_out),
        found=found,
        derived=request.get("derived", False),
        others=request.get("others", True),
        parallel=own is not None,
    )
    return Trials(question)


def parallel_reference_of(
    request: Answer, layout: Mapping[str, str], named: Sequence[str]
) -> ParallelReference:
    """The object that is the ``"reference"`` of a request, as it is called on the devices there are."""
    calling = Calling(parallel.find(request["reference"]), TARGET.signature, named)
    values = TARGET.values(request.get("overrides", {}))
    statics = request["statics"]
    return ParallelReference(
        calling, TARGET.reference, values, leaf_axes(request), statics, layout, request["count"]
    )


def emitted_of(request: Answer) -> Emitted:
    """The emitted file that a request is about."""
    return Emitted(
        request["code"],
        request["path"],
        request["module"],
        request["name"],
        tuple(request["replicated"]),
        tuple(request["donated"]),
        request["axis_name"],
        edited(request) if request.get("in_place") else None,
        on_mesh(request.get("mesh")),
    )


def on_mesh(described: "Answer | None") -> "OnMesh | None":
    """The mesh that a request describes."""
    if described is None:
        return None
    specs = (None if spec is None else PartitionSpec(*map(_entry, spec)) for spec in described["specs"])
    return OnMesh(dict(described["axes"]), described["shares"], tuple(specs))


def derive_code(request: Answer) -> Answer:
    """Derive the emitted file equal to the reference; see `witness.of_emitted`."""
    trials = trials_of({**request, "derived": True}, strengthen.Found())
    emitted = emitted_of(request)
    room, seconds, multiple = request["room"], request["seconds"], request["multiple"]
    rows = telling_rows(request, multiple) if emitted.mesh is None else ()
    return witness.of_emitted(trials.question, emitted, room, seconds, multiple, rows)


def telling_rows(request: Answer, multiple: int = 1) -> "tuple[int, ...] | None":
    """Sizes of the batch for which the target is another program than for the given one; see `telling`."""
    key = about({"overrides": {}, **request}, "axes", "statics", "overrides"), multiple

    def found() -> "tuple[int, ...] | None":
        packed = Packed(TARGET.values(request.get("overrides", {})), request["statics"])
        axes = leaf_axes(request)
        size = next(iter(sizes_for(arguments.batch_size(TARGET.data[0], axes))), 0) * multiple
        with prove.x64(TARGET.x64):
            return telling.telling(TARGET.reference, TARGET.fn, packed, axes, size, multiple)

    return TARGET.once("telling", key, found)


def tell_sizes(request: Answer) -> Answer:
    """``{"rows"}``: sizes of the batch that tell what the given one does not; see `telling`."""
    return {"rows": list(telling_rows(request) or ())}


def prove_code(request: Answer) -> Answer:
    """Run the emitted file on several device counts beside the reference; see `proving.prove_emitted`."""
    found = strengthen.Found() if request["derived"] else found_inputs(request)
    return proving.prove_emitted(
        trials_of(request, found),
        emitted_of(request),
        request["counts"],
        fixed=request["fixed"],
        remainder=request["remainder"],
    )


def prove_in_processes(request: Answer) -> Answer:
    """Run the emitted file in this one of several processes; see `processes.prove_in_processes`."""
    from . import processes

    return processes.prove_in_processes(
        trials_of(request, strengthen.Found()),
        emitted_of(request),
        request["output_axes"],
        request["multiple"],
    )


def compile_for(request: Answer) -> Answer:
    """Compile the emitted file for a machine that is not there; see `machine.compile_for`."""
    from . import machine

    specs = {
        name: {int(index): PartitionSpec(*map(_entry, spec)) for index, spec in places.items()}
        for name, places in request["specs"].items()
    }
    trials = trials_of(request, strengthen.Found())
    return machine.compile_for(trials.question, emitted_of(request), request["topology"], specs)


def _entry(names: "list[str]") -> Any:
    """The axes that divide one dimension, as a `PartitionSpec` has them."""
    return tuple(names) if names else None


def edited(request: Answer) -> Callable[[], Callable[..., Any]]:
    """Makes the function that an edit of the file leaves under the target's name.

    Under ``"program"`` that of the edited program, which was loaded; else that of the new definitions.
    """
    name, owner = request["name"], request["in_place"]["owner"]

    def of_program() -> Callable[..., Any]:
        found: Any = vars(TARGET.module)[name] if TARGET.call is None else TARGET.call.called
        return found  # type: ignore[no-any-return]

    def of_definitions() -> Callable[..., Any]:
        made: Any
        if TARGET.call is None:
            made = load.define(request["code"], request["path"], owner or name, TARGET.namespace())
            made = vars(made)[name] if owner else made
            return getattr(made, "__func__", made)  # type: ignore[no-any-return]
        return TARGET.call.define_edited(request["code"], request["path"], name, owner)

    return of_program if request["in_place"]["program"] else of_definitions


def set_reference(request: Answer) -> Answer:
    """Take the original's text as the reference, in a worker that has loaded the edited program.

    Nothing there refers any more to the ``"enclosed"`` functions beside it that have adapted copies.
    """
    namespace = TARGET.namespace()
    for text in request["enclosed"]:
        exec(compile(text, "<jax-pmap>", "exec", dont_inherit=True), namespace)
    source = "\n" * (request["line"] - 1) + request["function"]
    TARGET.fn = TARGET.define(source, request["path"], request["name"], namespace)
    TARGET.signature = inspect.signature(TARGET.fn)
    return {}


def behind_object(request: Answer) -> Answer:
    """The function of the user's that an object of the module calls in the end: its file and dotted name."""
    load.keep_devices()
    host_arrays.tell_modes_apart()
    raw, _, _ = unbound(parallel.find(request))
    found = (raw.__code__.co_filename, raw.__qualname__) if raw is not None else (None, None)
    return {"file": found[0], "qualname": found[1]}


def try_reference(request: Answer) -> Answer:
    """Find out how the user's parallel reference is called; see `parallel_reference.find_layout`.

    Answers ``{"batch", "tried"}``, or where there is no such object what the problem is under ``"problem"``.
    """
    try:
        calling = Calling(parallel.find(request["reference"]), TARGET.signature, TARGET.named)
    except Problem as problem:
        return {"tried": [], "why": str(problem)}
    axes, count = leaf_axes(request), request["count"]
    values = TARGET.values({})
    size = arguments.batch_size(values, axes) // count * count

    def make(layout: Mapping[str, str], named: Sequence[str]) -> ParallelReference:
        return parallel_reference_of({**request, "overrides": {}}, layout, named)

    with prove.x64(TARGET.x64):
        tried = find_layout(
            make, calling, arguments.cut(values, axes, size), axes, request["statics"], request.get("layouts")
        )
    return {"batch": size, "tried": tried}


def try_layouts(request: Answer) -> Answer:
    """Find out how the user's parallel function is called; see `proving_parallel.try_layouts`."""
    calling = Calling(parallel.find(request), TARGET.signature, TARGET.named)
    # To tell ways of calling apart, the user's own dtypes do.
    trials = trials_of({**request, "derived": True}, strengthen.Found(), calling.settled)
    return proving_parallel.try_layouts(trials, calling, request["count"], request.get("layouts"))


def derive_parallel(request: Answer) -> Answer:
    """Derive the user's parallel function equal to the reference, called in one layout; see `witness`.

    Its file is imported once more for each number of devices, which meshes are made for.
    """
    there = Calling(parallel.find(request), TARGET.signature, request["named"])
    left_out = there.settled
    trials = trials_of({**request, "derived": True, "reference": None}, strengthen.Found(), left_out)
    # What has a default of its own there, or is no parameter, keeps its number: it may not be given at all.
    kept = {*left_out, *there.other_defaults} - {*request["statics"]}
    question = dataclasses.replace(trials.question, statics=(*request["statics"], *sorted(kept)))
    raw = any(form != "whole" for form in request["layout"].values())
    other = request["reference"]

    def made(count: int) -> Callable[[Values], Any]:
        calling = dataclasses.replace(there, function=parallel.find_anew(request))

        def call(values: Values) -> Any:
            want = shapes_of(TARGET.reference, Packed(values, question.statics)) if raw else None
            return parallel.Caller(calling, question.axes, request["layout"], count, want)(values)

        return call

    def reference(count: int) -> Callable[[Values], Any]:
        calling = Calling(parallel.find_anew(other), TARGET.signature, other["named"])
        given, form = question.data[0], other["layout"]
        return ParallelReference(
            calling, TARGET.reference, given, question.axes, question.statics, form, count
        )

    if other:
        answer = witness.witness_of_two(question, reference, made)
    else:
        sources = [there.function, TARGET.fn]
        answer = witness.witness(
            question, made, 0, 0.0, foreign=True, telling=lambda length: telling.tried(length, sources)
        )
    if answer["repeated"]:
        with prove.only_devices(2), prove.x64(TARGET.x64):
            answer["summed"] = proving_parallel.sums_gradients(made(2), question)
    return answer


def prove_parallel(request: Answer) -> Answer:
    """Run the user's parallel function beside the reference; see `proving_parallel.prove_parallel`."""
    calling = Calling(parallel.find(request), TARGET.signature, request["named"])
    trials = trials_of(request, strengthen.Found(), calling.settled)
    if request.get("overrides") and not proving_parallel.takes(trials, request["count"]):
        return {"checks": []}
    checks, notes = proving_parallel.prove_parallel(
        trials,
        calling,
        request["layout"],
        request["count"],
        with_given=request["with_given"],
        unshown=request.get("unshown", ()),
    )
    question = trials.question
    adequacy = question.adequacy([request["count"]])
    return {"checks": checks, "equal_draws": question.repeat, "notes": notes, **adequacy}


def search_inputs(request: Answer) -> Answer:
    """Find shapes for the arguments nobody described; see `guess.find_inputs`."""
    from . import guess

    with prove.x64(TARGET.x64):
        answer: Answer = guess.find_inputs(
            lambda *args, **kwargs: TARGET.one_device.run(
                lambda: TARGET.fn(*TARGET.bound_args, *args, **{**TARGET.bound_kwargs, **kwargs})
            ),
            namespaces=[vars(TARGET.module), TARGET.fn.__globals__],
            **request,
        )
    return answer


HANDLERS: dict[str, Callable[[Answer], Answer]] = {
    "forget": forget,
    "loaded_files": loaded_files,
    "parameters": parameters_of,
    "load": load_target,
    "capture": capture_call,
    "inputs_from_callable": inputs_from_callable,
    "inputs_from_specs": inputs_from_specs,
    "search_inputs": search_inputs,
    "prove_in_processes": prove_in_processes,
    "compile_for": compile_for,
    "enclosed_arrays": enclosed_arrays,
    "constants": constants,
    "identities": identities,
    "trace": trace,
    "layers": find_layers,
    "reductions": find_reductions,
    "precision": precision,
    "repeats": repeats,
    "as_called": hold_against_call,
    "callees": callees.find_callees,
    "repeat_rows": repeat_rows,
    "synchronise": synchronise,
    "observe": observe_code,
    "telling_sizes": tell_sizes,
    "draws": survey_draws,
    "reference": set_reference,
    "derive": derive_code,
    "prove": prove_code,
    "behind_object": behind_object,
    "try_reference": try_reference,
    "try_layouts": try_layouts,
    "derive_parallel": derive_parallel,
    "prove_parallel": prove_parallel,
}
