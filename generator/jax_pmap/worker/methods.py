"""What the generator can ask of the worker."""

import dataclasses
import functools
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import (
    arguments,
    callees,
    capture,
    donation,
    draws,
    few,
    host_arrays,
    load,
    neighbours,
    observe,
    observing,
    opened,
    parallel,
    protocol,
    prove,
    proving,
    proving_parallel,
    settings,
    sharing,
    telling,
    witness,
)
from .arguments import Compiled, Packed, Values
from .around import furnish
from .as_called import compare_with_call
from .call import Call
from .calling import Calling
from .captured import captured
from .equality import padding
from .equality.claims import Claim
from .examples import (
    MANY_BYTES,
    constants,
    describe,
    draw_inputs,
    enclosed_arrays,
    identities,
    inputs_from_callable,
    inputs_from_specs,
    plain,
    switch,
)
from .exceptions import attempted, describe_exception
from .following import asked_sizes, follow, for_all_sizes, traced_as
from .functions import unwrapped
from .jaxpr.symbolic import is_exact
from .jaxpr.trace import Traced, abstract_leaves, arrays_of, leaf_names, sizes_for, traced_arrays
from .jaxpr.walk import is_mapped
from .kept_state import left_by_calls
from .leaves import bytes_of, category, is_abstract, to_float64
from .listed import listing
from .one_device import OneDevice
from .origins import file_of, is_users, is_users_object, loaded, namespace_of
from .parallel_reference import ParallelReference, find_layout, shapes_of
from .placements.derive import same_meaning
from .protocol import Comparison, Problem
from .renaming import rename
from .server import Handlers
from .sites import find_sites
from .specs import SEED
from .target import ANSWERS, Target, become, current, leaf_axes
from .tracing import (
    find_minibatches,
    find_module_methods,
    find_reductions,
    measured,
    precision,
    returns_alike,
    trace,
    widened,
)
from .trials import Emitted, Question, Trials
from .written import check_is_written, uncompiled
from .written import is_definition as is_made_by

#: Libraries that are no code of the user's either where a clone of them is installed.
CLONED = frozenset({"jax", "jaxlib", "flax", "haiku", "equinox", "optax", "numpy"})


def forget(request: protocol.Forget) -> bool:
    """Drop everything that is known of the target before; see `protocol.Forget`."""
    become(Target())
    sharing.PLACES.clear()
    return bool(settings.changed() or settings.too_late())


def loaded_files(request: protocol.LoadedFiles) -> tuple[str, ...]:
    """The source files of all modules that are imported now, and what else was read."""
    imported_now = {file for _, file in loaded() if file.endswith(".py")}
    return tuple(sorted({*imported_now, *opened.opened()}))


def find_importing(request: protocol.FindImporting) -> protocol.Importing:
    """How modules of the user's were imported: the folder of ``pkg/__init__.py`` is that around it."""
    found, names = dict[str, None](), list[str]()
    for name, module in list(sys.modules.items()):
        if load.is_of(module, request.path):
            spec = getattr(module, "__spec__", None)
            names += [name] if name != "__main__" else [spec.name] if spec else []
        if "." in name or name in CLONED:
            continue
        # A package without an `__init__.py` has no file, and may be in several folders.
        places = namespace_of(module).get("__path__") or [file_of(module)]
        users = [each for each in places if isinstance(each, str) and each and is_users(each + os.sep)]
        found.update(dict.fromkeys(os.path.dirname(os.path.abspath(each)) for each in users))
    return protocol.Importing(tuple(found), tuple(names))


def imported(
    module: protocol.Module, source: str | None = None, *, tolerant: bool = False
) -> types.ModuleType:
    """The user's module; see `protocol.Load`."""
    load.keep_devices()
    host_arrays.tell_modes_apart()
    # `parser.parse_args()` at the top of a script must see a command line of its own, without options.
    sys.argv[:] = [module.path]
    return load.import_file(module, source, tolerant=tolerant)


def parameters_of(request: protocol.FindParameters) -> tuple[protocol.Parameter, ...] | None:
    """The parameters of a callable of the user's module."""
    made = request.object
    value = vars(imported(made.module)).get(made.name)
    if not callable(value) or isinstance(value, type) or load.taken(made.module):
        return None
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        signature = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
    return tuple(
        protocol.Parameter(
            each.name,
            each.kind.name,
            None if each.default is each.empty else repr(each.default) if plain(each.default) else "",
        )
        for each in signature.parameters.values()
    )


def is_definition(request: protocol.IsDefinition) -> bool:
    """Whether the user's module has by a name what its ``def`` makes, as where that is entered in a table."""
    module = request.object.module
    value = uncompiled(vars(imported(module)).get(request.object.name))
    return not load.taken(module) and is_made_by(value, request.definition, request.written)


def load_target(request: protocol.Load) -> protocol.Loaded:
    """Import the user's module and define the undecorated function in it."""
    module = imported(request.module, request.source, tolerant=request.tolerant)
    for name in request.names:
        value = vars(module).get(name)
        if neighbours.is_missing(value):
            raise Problem("missing", vars(value)["why"], name=name)
    forget(protocol.Forget())
    target = Target(
        module=module,
        x64=bool(jax.config.jax_enable_x64),
        called_by=request.called_by,
        collectives=request.collectives,
        in_place=request.in_place,
        axis=request.axis,
        axis_given=request.axis_given,
    )
    if len(jax.devices()) < request.devices:
        raise Problem("import", "the module changed jax's devices while it was imported")
    if request.taken_from:
        target = taking_from(target, request, request.taken_from)
    if request.written is not None:
        check_is_written(vars(module).get(request.definition.name), request.definition, request.written)
    target = become(defining(target, request.definition))
    return protocol.Loaded(
        given=tuple(target.signature.bind_partial(*target.bound_args, **target.bound_kwargs).arguments),
        settings=settings.changed(),
        too_late=settings.too_late(),
        taken=load.taken(request.module),
        flags="absl.flags" in sys.modules,
        failed=tuple(neighbours.FINDER.failed),
    )


def taking_from(target: Target, request: protocol.Load, taken: protocol.Object) -> Target:
    """The target with what the object `taken` of a module has bound to it, and what that closes over."""
    module, name = target.module, taken.name
    if taken.module != request.module:
        module = imported(taken.module)
    made: Any = module
    for part in name.split("."):
        made = getattr(made, part, None)
    raw, args, kwargs = unwrapped(made, all_the_way=True)
    code = getattr(raw, "__code__", None)
    if raw is None or code is None or code.co_name != request.definition.name:
        what = f"is {code.co_name!r}" if code is not None else f"is a {type(made).__name__}"
        raise Problem("other", f"`{name}` {what} once the module is imported")
    call = Call(raw, raw, args, kwargs, request.owner, "") if request.nested else None
    return dataclasses.replace(target, bound_args=args, bound_kwargs=kwargs, call=call)


def defining(
    target: Target, definition: protocol.Definition, namespace: dict[str, Any] | None = None
) -> Target:
    """The target with its undecorated function, where the module, or the program that ran, has it."""
    # In a copy of the module's namespace: a name the module rebinds later stays the user's.
    source = "\n" * (definition.line - 1) + definition.text
    fn = target.define(source, definition.path, definition.name, namespace)
    if not inspect.isfunction(fn):
        raise Problem("import", f"`{definition.name}` did not become a function")
    return dataclasses.replace(target, fn=fn, signature=inspect.signature(fn))


def capture_call(request: protocol.Capture) -> protocol.Captured:
    """Run the user's program up to its first call of the target; see `capture.run`.

    The function that was called, with what it closes over, becomes the target, and the arguments of the
    call its example inputs.
    """
    call = capture.run(request)
    owner = getattr(call.module, request.place.owner or "", None)
    if request.on_its_class and call.args[0] is not owner:
        given = getattr(call.args[0], "__name__", "")
        raise Problem("program", f"its class is `{given}` there, which may have other methods")
    forget(protocol.Forget())
    target = Target(
        call=call,
        module=call.module,
        x64=call.x64,
        collectives=request.collectives,
        in_place=request.in_place,
        axis=request.axis,
        axis_given=request.axis_given,
        named=tuple(call.kwargs),
        maker=vars(sys.modules["__main__"]).get(protocol.MAKER),
    )
    target = become(defining(target, request.definition))
    data = arguments.bind(target.signature, call.args, call.kwargs)
    called = arguments.bind_as_given(target.signature, call.args, call.kwargs)
    become(dataclasses.replace(target, data=(data,), called=called))
    return protocol.Captured(describe(data), call.caller)


def reference_of(statics: Sequence[str], overrides: Mapping[str, str]) -> Callable[[Values], Any]:
    """The reference on one device, compiled, for some constants and overrides."""
    target = current()
    key = protocol.encode((statics, overrides))
    return target.once("compiled", key, lambda: Compiled(target.reference, statics))


def repeats(request: protocol.Repeats) -> protocol.Repeated:
    """What the reference means where it is traced again: see `protocol.Repeats`."""
    target = current()
    packed = Packed(target.values({}), request.statics)
    leaves, names = abstract_leaves(packed, {}), leaf_names(packed)

    def traced() -> Any:
        with prove.x64(target.x64):
            return Traced.of(target.reference, packed, leaves).jaxpr

    one = traced()
    with prove.repeated_devices(len(jax.devices()) + 1):
        more = attempted(traced)  # So many devices may not share the batch, say.
    if more is not None and is_same(one, more, names):
        return "same"
    # What else may have changed shows where there are as many devices.
    if is_same(one, traced(), names):
        return "devices"
    return "mapped" if is_mapped(one) else "other"


def is_same(one: Any, other: Any, names: Sequence[str]) -> bool:
    """Whether two traces of a function are of one program.

    Operations of libraries may hold functions that are made anew, which tell no meaning: then the text does.
    Of a map over devices it does not, which may be over as many as are there.
    """
    if same_meaning(one, other, names):
        return True
    if is_mapped(one):
        return False
    one_text, other_text = (re.sub(r"0x[0-9a-f]+", "", str(each.jaxpr)) for each in (one, other))
    return one_text == other_text and all(
        np.all(before == after) for before, after in zip(one.consts, other.consts, strict=True)
    )


def find_changed(request: protocol.FindChanged) -> str:
    """What each call of the reference changes of the objects among its arguments."""
    target = current()
    packed = Packed(target.values({}), request.statics)
    leaves = abstract_leaves(packed, {})

    def traced() -> None:
        with prove.x64(target.x64):
            Traced.of(target.reference, packed, leaves)

    for name, value in target.data[0].items():
        if is_users_object(value) and (left := left_by_calls(value, traced)):
            return f"{name}.{left}"
    return ""


def runs_in_map(request: protocol.RunsInMap) -> protocol.Raised | None:
    """What the reference raises inside a map over devices that are all given the same."""
    target, whole = current(), jax.sharding.PartitionSpec()
    packed = Packed(target.values({}), request.statics)
    run, mesh = arrays_of(target.reference, packed), jax.sharding.AbstractMesh((2,), ("devices",))
    mapped = jax.shard_map(run, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    try:
        with prove.x64(target.x64):
            jax.eval_shape(mapped, abstract_leaves(packed, {}))
    except MemoryError:
        raise
    except BaseException as error:
        return describe_exception(error)
    return None


def repeat_rows(request: protocol.RepeatRows) -> tuple[protocol.Row, ...] | None:
    """Give the example so many times its rows, in another order, where the target takes them, shapes too."""
    target = current()
    axes, times = leaf_axes(request.roles), request.times
    size = arguments.batch_size(target.data[0], axes)
    if bytes_of(target.data[0]) * times > MANY_BYTES:
        return None
    # Shares that were equal would hide what is taken of one of them.
    order = np.random.default_rng(SEED).permutation(np.arange(size * times) % size)
    data = tuple(
        arguments.map_batch(values, axes, lambda leaf, axis: arguments.take(leaf, axis, order))
        for values in target.data
    )
    with prove.x64(target.x64):
        if attempted(follow, data[0], request.roles.statics, watched=False) is None:
            return None
    become(dataclasses.replace(target, data=data, called=data[0], of_fewer_rows=target))
    return describe(data[0])


def take_rows_back(request: protocol.TakeRowsBack) -> None:
    """Have the example as it was before its rows were repeated."""
    before = current().of_fewer_rows
    if before is not None:
        become(before)


def synchronise(request: protocol.Synchronise) -> bool:
    """Have layers of the target take the statistics of a batch over the devices.

    On one device that changes nothing: what is traced means the same, or gives the same, which is tried.
    """
    target, wide = current(), widened(request.statics) is not None
    values = target.values({})
    packed = Packed(values, request.statics)
    over_devices = load.define(request.code, "<jax-pmap>", "over_devices", {})
    # The axis that it needs is none of the target's as it was.
    told = dataclasses.replace(
        target,
        over_devices=over_devices,
        fn=over_devices(target.fn),
        one_device=OneDevice(target.one_device.axes),
    )
    with prove.x64(target.x64):
        one, other = (traced_arrays(each.reference, packed) for each in (target, told))
    if one is not None and other is not None and same_meaning(one, other, leaf_names(packed)):
        become(told)
        return True
    if is_abstract(values):
        return False

    def results() -> list[np.ndarray]:
        compiled = Compiled(current().reference, request.statics)
        given = to_float64(values) if wide else values
        with prove.x64(wide or target.x64):
            leaves = jax.tree.leaves(compiled(given))
        return [np.asarray(leaf) for leaf in leaves if category(leaf) == "array"]

    before = results()
    become(told)
    # What is zero but for rounding, as the gradient of a bias ahead of such a layer, has no scale of its own.
    scale = max((float(np.abs(leaf).max(initial=0)) for leaf in before), default=0.0)
    close = (1e-9 if wide else 1e-4) * scale
    pairs = zip(before, results(), strict=True)
    same = all(np.allclose(one, other, 0, close, equal_nan=True) for one, other in pairs)
    if not same:
        become(target)
    return same


def survey_draws(request: protocol.SurveyDraws) -> protocol.Draws:
    """Which draws of the function belong to examples, and which marked keys they come from.

    A plan that is begun anew asks some questions again: the latest are answered once.
    """
    if not measured(request.roles.statics, request.overrides).draws:
        return protocol.Draws()
    return current().once("surveyed", protocol.encode(request), lambda: _surveyed(request), most=ANSWERS)


def _surveyed(request: protocol.SurveyDraws) -> protocol.Draws:
    target = current()
    axes, statics, count = leaf_axes(request.roles), request.roles.statics, request.count
    values, _ = prove.cut_to(target.values(request.overrides), axes, count)
    marker = draws.Marker()
    scope = {**target.namespace(), observe.RECORDER: marker}
    furnished = furnish(scope, request.tapped.around, {observe.RECORDER: marker})
    fn: Callable[..., Any] = target.over_devices(
        furnished(target.define(request.tapped.code, "<jax-pmap>", request.tapped.name, scope))
    )
    packed = Packed(values, statics)
    with prove.x64(target.x64):
        try:
            return draws.survey(
                traced_as(target.reference, packed, packed.leaves).jaxpr,
                fn,
                marker,
                target.signature,
                values,
                axes,
                statics,
                request.axis_name,
                count,
                target.mutated,
                request.used,
            )
        except MemoryError:
            raise
        except BaseException as error:
            return protocol.Draws(raised=describe_exception(error))


def trials_of(comparison: Comparison, left_out: Sequence[str] = (), count: int = 0) -> Trials:
    """Runs of the target in its roles: the same ones for every question about them.

    Arguments `left_out` keep their numbers: the parallel function has the defaults of its own for them. A
    reference that is parallel runs on `count` devices.
    """
    target = current()
    key = protocol.encode(comparison), tuple(sorted(left_out)), count if comparison.reference else 0
    return target.once("trials", key, lambda: new_trials(comparison, left_out, count), most=1)


def new_trials(comparison: Comparison, left_out: Sequence[str], count: int) -> Trials:
    """Runs of the target that have not been asked for; see `trials_of`."""
    target = current()
    roles, overrides = comparison.roles, comparison.overrides
    given = measured(roles.statics)
    try:
        # Another mode may draw where the given one does not, and the reverse.
        drawing = measured(roles.statics, overrides).draws
    except Problem:  # Of a constant that the function does not take, which the runs tell.
        drawing = given.draws
    rounding = {"given": given.rounding}
    if not comparison.derived and (wide := widened(roles.statics)) is not None:
        rounding["float64"] = wide.rounding

    def invoke(fn: Callable[..., Any], values: Values) -> Any:
        return target.with_changes(fn, donation.fresh(values, comparison.donated))

    own = None
    if comparison.reference is not None:
        own = parallel_reference_of(comparison.reference, roles, overrides, count)
    data = tuple(target.values(overrides, index) for index in range(len(target.data)))
    if comparison.rows is not None:
        data = tuple(arguments.cut(values, leaf_axes(roles), comparison.rows) for values in data)
    question = Question(
        reference=own or reference_of(roles.statics, overrides),
        traceable=own or target.reference,
        invoke=invoke,
        data=data,
        axes=leaf_axes(roles),
        statics=roles.statics,
        chain=comparison.chain,
        steps=comparison.steps,
        eps={kind: each.coarsest for kind, each in rounding.items()},
        rounding=rounding,
        x64=target.x64,
        draws=drawing,
        loops=given.loops,
        # Two functions on the same devices draw the same numbers as they are.
        repeat=drawing and not comparison.global_view and own is None,
        minibatches=roles.minibatches,
        own_axes=target.collectives,
        settled=(*roles.statics, *left_out),
        sources=(target.fn,),
        derived=comparison.derived,
        others=comparison.others,
        exact=lambda: None if (wide := widened(roles.statics)) is None else wide.rounding,
    )
    return Trials(question)


def parallel_reference_of(
    called: protocol.Called, roles: protocol.Roles, overrides: Mapping[str, str], count: int
) -> ParallelReference:
    """The object that is the reference, as it is called on the devices there are."""
    target = current()
    calling = calling_of(called.object, called.named)
    values = target.values(overrides)
    axes, statics = leaf_axes(roles), roles.statics
    return ParallelReference(
        calling, target.reference, values, axes, statics, called.layout, count, target.renaming
    )


def emitted_of(comparison: Comparison, emitted: protocol.Emitted) -> Emitted:
    """The emitted file that a request is about."""
    if emitted.imports is not None and current().call is not None:
        load.import_program(emitted.imports)
    there = None if emitted.in_place is None else edited(emitted, emitted.in_place)
    return Emitted(emitted, comparison.donated, there)


def calling_of(
    asked: protocol.Object,
    named: Sequence[str],
    find: Callable[[protocol.Object], Callable[..., Any]] = parallel.find,
) -> Calling:
    """An object of the user's that takes the reference's arguments, found in its file."""
    target = current()
    return Calling(find(asked), target.signature, tuple(named), target.mutated)


def derive_code(request: protocol.Derive) -> protocol.Derivation:
    """Derive the emitted file equal to the reference; see `witness`."""
    trials = trials_of(dataclasses.replace(request.comparison, derived=True))
    emitted = emitted_of(request.comparison, request.emitted)
    multiple, asked = request.multiple, request.comparison
    rows = telling_rows(asked.roles, asked.overrides, multiple) if emitted.mesh is None else ()
    uniform = emitted.mesh is None and one_for_all(asked.roles, asked.overrides) is not None
    if rows:
        # Code that is another program with so many rows, which no devices share evenly, is run with them.
        rows = tuple(filter(telling.is_shared, rows))
    question = trials.question

    def made(count: int) -> Callable[[Values], Any]:
        function = emitted.define(count, question.x64)
        return lambda values: question.invoke(function, values)

    claim = Claim(
        question,
        made,
        multiple=multiple,
        mesh=emitted.mesh,
        refused=request.too_few,
        uniform=uniform,
        telling=lambda operations: rows or (),
        room=request.room,
        seconds=request.seconds,
    )
    return witness.witness(claim, request.zeros)


def one_for_all(roles: protocol.Roles, overrides: Mapping[str, str]) -> Traced | None:
    """The target's program with a symbol for its rows; None where no one program is for all of them."""
    with prove.x64(current().x64):
        followed = for_all_sizes(roles, overrides)
    return followed.program if followed is not None and is_exact(followed.jaxpr) else None


def telling_rows(
    roles: protocol.Roles, overrides: Mapping[str, str], multiple: int = 1
) -> "tuple[int, ...] | None":
    """Sizes of the batch for which the target is another program than for the given one; see `telling`."""
    target = current()

    def found() -> "tuple[int, ...] | None":
        packed = Packed(target.values(overrides), roles.statics)
        size = next(iter(sizes_for(arguments.batch_size(target.data[0], leaf_axes(roles)))), 0) * multiple
        one = one_for_all(roles, overrides)
        with prove.x64(target.x64):
            numbers = named_sizes(packed, roles, overrides)
            return telling.telling(target.reference, one, numbers, packed, leaf_axes(roles), size, multiple)

    return target.once("telling", protocol.encode((roles, overrides, multiple)), found)


def named_sizes(packed: Packed, roles: protocol.Roles, overrides: Mapping[str, str]) -> tuple[int, ...]:
    """Numbers that the code of the target may compare its rows with."""
    sources = [current().fn, *packed.constants.values()]
    return telling.named(sources, asked_sizes(roles, overrides))


def tell_sizes(request: protocol.TellSizes) -> tuple[int, ...]:
    """Sizes of the batch that tell what the given one does not, and that devices share; see `telling`."""
    rows = telling_rows(request.roles, {}) or ()
    return tuple(filter(telling.is_shared, rows))


def tell_few(request: protocol.TellFew) -> tuple[tuple[int, int], ...]:
    """Rows with which the target is another program than with many; see `few`.

    None where it is one program for a symbol: of one row, what is broadcast is the same.
    """
    target, roles, multiple = current(), request.roles, request.multiple

    def found() -> tuple[tuple[int, int], ...]:
        if one_for_all(roles, request.overrides) is not None:
            return ()
        packed, axes = Packed(target.values(request.overrides), roles.statics), leaf_axes(roles)
        size = next(iter(sizes_for(arguments.batch_size(target.data[0], axes))), 0) * multiple
        if not size:
            return ()
        with prove.x64(target.x64):
            numbers = named_sizes(packed, roles, request.overrides)
            # Those that devices share are among the sizes that it is derived for.
            numbers = tuple(number for number in numbers if not telling.is_shared(number))
            return few.few_rows(target.reference, packed, axes, size, multiple, named=numbers)

    return target.once("few", protocol.encode((roles, request.overrides, multiple)), found)


def tell_padded(request: protocol.TellPadded) -> tuple[int, ...]:
    """Two sizes of the batch of which added rows are not seen to make one; see `padding.apart_by_size`.

    None where it is one program for a symbol. Batches of up to `few` rows are not looked at.
    """
    asked, multiple = request.comparison, request.multiple
    if one_for_all(asked.roles, asked.overrides) is not None:
        return ()
    question = trials_of(dataclasses.replace(asked, derived=True)).question
    packed = question.packed
    base = next(iter(sizes_for(question.rows)), 0) * multiple
    with prove.x64(current().x64):
        numbers = telling.beside(named_sizes(packed, asked.roles, asked.overrides))
    sizes = {base, *few.FIRST, *(telling_rows(asked.roles, asked.overrides, multiple) or ()), *numbers}
    return padding.apart_by_size(question, [size for size in sizes if size > request.few], request.zeros)


def prove_code(request: protocol.Prove) -> protocol.Checks:
    """Run the emitted file on several device counts beside the reference; see `proving.prove_emitted`."""
    asked = request.comparison
    trials = trials_of(asked)
    if not asked.derived:
        key = protocol.encode((asked.roles, asked.overrides, asked.rows))
        found = current().once("found", key, lambda: trials.search((), (8, 4, 3, 2)))
        trials.question = dataclasses.replace(trials.question, found=found)
    return proving.prove_emitted(trials, emitted_of(asked, request.emitted), request)


def prove_in_processes(request: protocol.ProveInProcesses) -> protocol.Checks:
    """Run the emitted file in this one of several processes; see `processes.prove_in_processes`."""
    from . import processes

    trials = trials_of(request.comparison)
    return processes.prove_in_processes(trials, emitted_of(request.comparison, request.emitted), request)


def intermediate(request: protocol.Intermediate) -> int:
    """Bytes of the reference's intermediate values; see `machine.intermediate`."""
    from . import machine

    return machine.intermediate(trials_of(request.comparison).question, request.rows)


def compile_for(request: protocol.CompileFor) -> protocol.Machine:
    """Compile the emitted file for a machine that is not there; see `machine.compile_for`."""
    from . import machine

    specs = {
        name: {index: prove.spec_of(each) for index, each in places.items()}
        for name, places in request.specs.items()
    }
    trials = trials_of(request.comparison)
    emitted = emitted_of(request.comparison, request.emitted)
    return machine.compile_for(trials.question, emitted, request.topology, specs)


def edited(emitted: protocol.Emitted, edit: protocol.InPlace) -> Callable[[], Callable[..., Any]]:
    """Makes the function that an edit of the file leaves under the target's name.

    That of the edited program, which was loaded, or that of the new definitions.
    """
    target = current()
    name, owner = emitted.name, edit.owner

    def of_program() -> Callable[..., Any]:
        found: Any = vars(target.module)[name] if target.call is None else target.call.called
        return found  # type: ignore[no-any-return]

    def of_definitions() -> Callable[..., Any]:
        made: Any
        if target.call is None:
            made = load.define(emitted.code, emitted.path, owner or name, target.namespace())
            made = vars(made)[name] if owner else made
            return getattr(made, "__func__", made)  # type: ignore[no-any-return]
        return target.call.define_edited(emitted.code, emitted.path, name, owner)

    return of_program if edit.program else of_definitions


def set_reference(request: protocol.SetReference) -> None:
    """Take the original's text as the reference, in a worker that has loaded the edited program.

    Nothing there refers any more to the enclosed functions beside it that have adapted copies.
    """
    target = current()
    namespace = target.namespace()
    for text in request.enclosed:
        exec(compile(text, "<jax-pmap>", "exec", dont_inherit=True), namespace)
    become(defining(target, request.definition, namespace))


def behind_object(request: protocol.FindBehind) -> tuple[str, str] | None:
    """The function of the user's that an object of the module calls in the end: its file and dotted name."""
    load.keep_devices()
    host_arrays.tell_modes_apart()
    raw, _, _ = unwrapped(parallel.find(request.object), all_the_way=True)
    return (raw.__code__.co_filename, raw.__qualname__) if raw is not None else None


def try_reference(request: protocol.TryReference) -> protocol.Calls:
    """Find out how the user's parallel reference is called; see `parallel_reference.find_layout`."""
    target = current()
    try:
        calling = calling_of(request.object, target.named)
    except Problem:
        return protocol.Calls()
    roles, count = request.roles, request.count
    values = target.values({})
    size = arguments.batch_size(values, leaf_axes(roles)) // count * count

    def make(layout: Mapping[str, str], named: Sequence[str]) -> ParallelReference:
        called = protocol.Called(request.object, layout, tuple(named))
        return parallel_reference_of(called, roles, {}, count)

    with prove.x64(target.x64):
        given = arguments.cut(values, leaf_axes(roles), size)
        tried = find_layout(make, calling, given, leaf_axes(roles), roles.statics, request.layouts)
    return protocol.Calls(size, tuple(tried))


def try_layouts(request: protocol.TryLayouts) -> protocol.Calls:
    """Find out how the user's parallel function is called; see `proving_parallel.try_layouts`."""
    target = current()
    calling = calling_of(request.object, target.named)
    # To tell ways of calling apart, the user's own dtypes do.
    asked = dataclasses.replace(request.comparison, derived=True)
    trials = trials_of(asked, calling.settled, request.count)
    return proving_parallel.try_layouts(trials, calling, request)


def _called_anew(
    called: protocol.Called, comparison: protocol.Comparison
) -> tuple[Question, Callable[..., Callable[[Values], Any]]]:
    """The user's parallel function for a number of devices, called in one layout, and the question about it.

    Its file is imported once more for each number, which meshes are made for.
    """
    target = current()
    there = calling_of(called.object, called.named)
    left_out = there.settled
    asked = dataclasses.replace(comparison, derived=True, reference=None)
    trials = trials_of(asked, left_out)
    # What has a default of its own there, or is no parameter, keeps its number: it may not be given at all.
    kept = {*left_out, *there.other_defaults} - {*asked.roles.statics}
    question = dataclasses.replace(trials.question, statics=(*asked.roles.statics, *sorted(kept)))
    raw = any(form != "whole" for form in called.layout.values())

    def made(count: int, function: "Callable[..., Any] | None" = None) -> Callable[[Values], Any]:
        calling = dataclasses.replace(there, function=function or parallel.find_anew(called.object))

        def call(values: Values) -> Any:
            want = shapes_of(target.reference, Packed(values, question.statics)) if raw else None
            return parallel.Caller(calling, question.axes, called.layout, count, want)(values)

        return call

    return question, made


def list_parallel(request: protocol.ListParallel) -> protocol.Listing:
    """Tell the placements of the values of the user's parallel function; see `listed`."""
    return listing(*witness.programs_of(Claim(*_called_anew(request.parallel, request.comparison))))


def derive_parallel(request: protocol.DeriveParallel) -> protocol.Derivation:
    """Derive the user's parallel function equal to the reference, called in one layout; see `witness`."""
    target = current()
    called, other = request.parallel, request.comparison.reference
    question, made = _called_anew(called, request.comparison)

    def reference(count: int) -> Callable[[Values], Any]:
        assert other is not None
        calling = calling_of(other.object, other.named, parallel.find_anew)
        given, form = question.data[0], other.layout
        axes, statics = question.axes, question.statics
        return ParallelReference(
            calling, target.reference, given, axes, statics, form, count, target.renaming
        )

    sources = [calling_of(called.object, called.named).function, target.fn]
    tell = functools.partial(telling.in_all_and_on_each, sources=sources)
    claim = Claim(question, made, foreign=True, telling=tell)
    if other is not None:
        sources = [*sources, calling_of(other.object, other.named).function]
        claim = Claim(question, made, reference, foreign=True)
    answer = witness.witness(dataclasses.replace(claim, counts=telling.counts_in(sources)))
    if answer.complete:
        answer = _of_first_calls(answer, called.object, question, made)
    if answer.repeated:
        with prove.only_devices(2), prove.x64(target.x64):
            summed = proving_parallel.sums_gradients(made(2), question)
        answer = dataclasses.replace(answer, summed=summed)
    return answer


def _of_first_calls(
    answer: protocol.Derivation,
    asked: protocol.Object,
    question: Question,
    made: Callable[..., Callable[[Values], Any]],
) -> protocol.Derivation:
    """The answer; it is not complete where the parallel function or the reference keeps what calls did."""
    target = current()
    packed = question.packed
    leaves = abstract_leaves(packed, question.axes, answer.batch)

    def trace(function: Callable[[Values], Any]) -> None:
        jax.clear_caches()
        Traced.of(function, packed, leaves)

    def left_on(count: int) -> str:
        with prove.only_devices(count), prove.x64(target.x64):
            function = parallel.find_anew(asked)
            calls = ((function, made(count, function)), (target.fn, question.traceable))
            return next(
                filter(None, (left_by_calls(own, functools.partial(trace, f)) for own, f in calls)), ""
            )

    for count in answer.counts:
        try:
            left = left_on(count)
        except MemoryError:
            raise
        except BaseException:  # It takes no such number of devices.
            continue
        if not left:
            break
        why = f"each call changes `{left}`, and what calls do that follow is not shown"
        return dataclasses.replace(answer, endings=(protocol.Ending(0, why),))
    return answer


def prove_parallel(request: protocol.ProveParallel) -> protocol.Checks:
    """Run the user's parallel function beside the reference; see `proving_parallel.prove_parallel`."""
    called, count = request.parallel, request.count
    calling = calling_of(called.object, called.named)
    trials = trials_of(request.comparison, calling.settled, count)
    if request.comparison.overrides and not proving_parallel.takes(trials, count):
        return protocol.Checks(())
    return proving_parallel.prove_parallel(trials, calling, request)


def search_inputs(request: protocol.SearchInputs) -> protocol.InputsFound:
    """Find shapes for the arguments nobody described; see `guess.find_inputs`."""
    target = current()
    from . import guess

    with prove.x64(target.x64):
        return guess.find_inputs(
            lambda *args, **kwargs: target.one_device.run(
                lambda: target.fn(*target.bound_args, *args, **{**target.bound_kwargs, **kwargs})
            ),
            request.parameters,
            request.readings,
            namespaces=[vars(target.module), target.fn.__globals__],
        )


#: What answers each request; `server` has those of the process.
HANDLERS: Handlers = {
    protocol.Forget: forget,
    protocol.LoadedFiles: loaded_files,
    protocol.FindImporting: find_importing,
    protocol.FindParameters: parameters_of,
    protocol.IsDefinition: is_definition,
    protocol.Load: load_target,
    protocol.Capture: capture_call,
    protocol.SetReference: set_reference,
    protocol.InputsFromCallable: inputs_from_callable,
    protocol.InputsFromSpecs: inputs_from_specs,
    protocol.DrawInputs: draw_inputs,
    protocol.Switch: switch,
    protocol.Rename: rename,
    protocol.SearchInputs: search_inputs,
    protocol.RepeatRows: repeat_rows,
    protocol.TakeRowsBack: take_rows_back,
    protocol.Constants: constants,
    protocol.Identities: identities,
    protocol.FindCaptured: captured,
    protocol.EnclosedArrays: enclosed_arrays,
    protocol.Trace: trace,
    protocol.Precision: precision,
    protocol.Repeats: repeats,
    protocol.FindChanged: find_changed,
    protocol.RunsInMap: runs_in_map,
    protocol.Synchronise: synchronise,
    protocol.FindReductions: find_reductions,
    protocol.FindSites: find_sites,
    protocol.FindMinibatches: find_minibatches,
    protocol.CompareWithCall: compare_with_call,
    protocol.FindCallees: callees.find_callees,
    protocol.FindModuleMethods: find_module_methods,
    protocol.Observe: observing.observe_code,
    protocol.TellSizes: tell_sizes,
    protocol.TellFew: tell_few,
    protocol.ReturnsAlike: returns_alike,
    protocol.TellPadded: tell_padded,
    protocol.SurveyDraws: survey_draws,
    protocol.Derive: derive_code,
    protocol.Prove: prove_code,
    protocol.ProveInProcesses: prove_in_processes,
    protocol.CompileFor: compile_for,
    protocol.Intermediate: intermediate,
    protocol.FindBehind: behind_object,
    protocol.TryReference: try_reference,
    protocol.TryLayouts: try_layouts,
    protocol.DeriveParallel: derive_parallel,
    protocol.ListParallel: list_parallel,
    protocol.ProveParallel: prove_parallel,
}
