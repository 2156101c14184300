"""What the generator can ask of the worker, and the state kept between its questions."""

import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from . import arguments, capture, donation, draws, load, neighbours, observe, parallel, prove, proving
from .arguments import LeafAxes, Packed, Values
from .around import Around, furnish
from .generator import Shares, rekeyed, repeat_draws
from .server import Answer, Problem, describe_exception, summary, text_of

SEED = 20260
#: Errors of jax that mean: this Python code needs the number, not a traced value.
CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.TracerArrayConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def needs_number(error: BaseException) -> bool:
    """Whether an error says that Python code met a traced value where it needs the number."""
    if isinstance(error, CONCRETE) or "concrete value" in text_of(error):
        return True
    # The bounds of a slice are refused with an error of Python's.
    return isinstance(error, IndexError) and "must be static" in text_of(error)


class Target:
    """The user's module, the function as written less its compiling decorators, and its example inputs."""

    def __init__(self) -> None:
        self.module: types.ModuleType = types.ModuleType("none")
        self.path = ""
        #: The call of it that a run of the user's program came to, when there was one.
        self.call: capture.Call | None = None
        self.fn: Callable[..., Any] = lambda: None
        self.signature = inspect.signature(self.fn)
        self.axis_names: list[str] = []
        self.x64 = False
        #: Argument values by parameter name, one dict for each set of inputs.
        self.data: list[Values] = []
        self.whole: dict[str, observe.Recorded] = {}
        self.eps: dict[str, float] = {}
        #: The same by output.
        self.rounding: dict[str, prove.Rounding] = {}
        #: Whether the function draws random numbers.
        self.draws = False
        #: Runs of the reference that the last proof used.
        self.trials: dict[str, proving.Trials] = {}
        #: Whether the caller sees changes in the arguments, and the arguments that were seen to change.
        self.in_place = False
        self.mutated: tuple[str, ...] = ()

    def namespace(self) -> dict[str, Any]:
        """A new namespace in which the target's code means what it means where the user wrote it.

        That of the module, and of a captured function also what the functions around it hold.
        """
        return dict(vars(self.module)) if self.call is None else self.call.namespace()

    def define(self, source: str, filename: str, name: str, namespace: dict[str, Any] | None = None) -> Any:
        """The function `name` that `source` defines, in `namespace` or a new one of the target's."""
        namespace = self.namespace() if namespace is None else namespace
        if self.call is None:
            return load.define(source, filename, name, namespace)
        return self.call.define(source, filename, name, namespace)

    def bound(self, body: Callable[[], Any]) -> Any:
        """Run `body` with the axes of its own collectives bound to one device."""
        if not self.axis_names:
            return body()

        made: list[Callable[[Sequence[Any]], Any]] = []

        def run(_: Any) -> list[Any]:
            arrays, again = arguments.held_apart(body())
            made.append(again)
            return arrays

        fn: Callable[..., Any] = run
        for name in self.axis_names:
            fn = jax.vmap(fn, axis_name=name, axis_size=1, in_axes=None)
        out = fn(0)
        for _ in self.axis_names:
            out = jax.tree.map(lambda x: x[0], out)
        return made[-1](out)

    def reference(self, values: Values) -> Any:
        """The target on the whole batch, on one device, uncompiled.

        With the arguments it changes in place, where there are any: ``(result, (model, optimizer))``.
        """
        return self.bound(lambda: self.with_changes(self.fn, values))

    def with_changes(self, fn: Callable[..., Any], values: Values) -> Any:
        """Call `fn` with `values`, and hand out beside its result what it may change in place."""
        if not self.mutated:
            return arguments.invoke(fn, self.signature, values)
        given = {
            name: arguments.fresh(value) if name in self.mutated else value for name, value in values.items()
        }
        result = arguments.invoke(fn, self.signature, given)
        return result, tuple(given[name] for name in self.mutated)

    def compiled(self, statics: Sequence[str]) -> Callable[[Values], Any]:
        """`reference`, compiled once for each shape of its values."""
        cache: dict[Any, Any] = {}

        def run(values: Values) -> Any:
            packed = Packed(values, statics)
            shapes = tuple((arguments.shape_of(x), arguments.dtype_of(x)) for x in packed.leaves)
            key = packed.key, shapes, bool(jax.config.jax_enable_x64)
            if key not in cache:
                made: list[Callable[[Sequence[Any]], Any]] = []

                def body(leaves: Sequence[Any]) -> list[Any]:
                    arrays, again = arguments.held_apart(self.reference(packed.unpack(leaves)))
                    made.append(again)
                    return arrays

                cache[key] = jax.jit(body), made
            compiled, made = cache[key]
            arrays = compiled(packed.leaves)
            return made[-1](arrays)

        return run

    def values(self, overrides: dict[str, str], index: int = 0) -> Values:
        """Example inputs, with `overrides` (Python source by parameter) in place of static ones."""
        values = dict(self.data[index])
        for name, source in overrides.items():
            values[name] = eval(source, self.namespace())
        return values


TARGET = Target()


def leaf_axes(request: Answer) -> LeafAxes:
    """``{"batch": {"0": 0}}`` as JSON has it, with int keys."""
    return {
        name: {int(i): axis for i, axis in leaves.items()} for name, leaves in request.get("axes", {}).items()
    }


def forget(request: Answer) -> Answer:
    """Drop everything that is known of the target before; imported modules stay."""
    vars(TARGET).update(vars(Target()))
    return {}


def loaded_files(request: Answer) -> Answer:
    """The source files of all modules that are imported now."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {"files": sorted({file for file in files if isinstance(file, str) and file.endswith(".py")})}


def load_target(request: Answer) -> Answer:
    """Import the user's module and define the undecorated function in it."""
    load.keep_devices()
    before = jax.config.jax_enable_x64
    # `parser.parse_args()` at the top of a script must see a command line of its own, without options.
    sys.argv[:] = [request["path"]]
    module = load.import_file(
        request["path"],
        request["module"],
        request["root"],
        request.get("source"),
        tolerant=request.get("tolerant", False),
    )
    for name in request.get("names", ()):
        value = vars(module).get(name)
        if neighbours.is_missing(value):
            raise Problem("missing", vars(value)["why"], name=name)
    TARGET.module, TARGET.path = module, request["path"]
    # What was found out of another target in this worker holds no more.
    TARGET.trials, TARGET.whole, TARGET.eps, TARGET.rounding = {}, {}, {}, {}
    TARGET.x64 = bool(jax.config.jax_enable_x64)
    TARGET.axis_names = request["axis_names"]
    TARGET.in_place, TARGET.mutated = request["in_place"], ()
    if len(jax.devices()) < request["devices"]:
        raise Problem("import", "the module changed jax's devices while it was imported")
    define_target(request)
    return {
        "x64_before": before,
        "x64": TARGET.x64,
        "taken": load.taken(request["module"], request["path"], request["root"]),
        "flags": "absl.flags" in sys.modules,
        "failed": neighbours.FINDER.failed,
    }


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
    TARGET.call, TARGET.module, TARGET.path, TARGET.trials = call, call.module, request["path"], {}
    TARGET.x64, TARGET.axis_names = call.x64, request["axis_names"]
    TARGET.in_place, TARGET.mutated = request["in_place"], ()
    define_target(request)
    TARGET.data = [arguments.bind(TARGET.signature, call.args, call.kwargs)]
    return {"arguments": describe(TARGET.data[0]), "x64": TARGET.x64, "called_at": call.caller}


def describe(values: Values) -> list[Answer]:
    """Leaves and containers of every argument."""
    table = []
    for name, value in values.items():
        paths = arguments.leaf_paths(value)
        leaves = jax.tree.leaves(value)
        constants = arguments.constants(value)
        table.append(
            {
                "name": name,
                "none": value is None,
                "repr": repr(value)[:200] if all(arguments.category(x) != "array" for x in leaves) else "",
                "hashable": hashable(value),
                "callable": callable(value),
                "default": is_default(value, TARGET.signature.parameters[name].default),
                "type": type(value).__name__,
                "tree": arguments.skeleton(value),
                "partition": arguments.partition_of(value),
                "leaves": [
                    {
                        "path": name + path,
                        "shape": list(arguments.shape_of(leaf)),
                        "dtype": given_dtype(leaf),
                        "category": arguments.category(leaf),
                        "constant": index in constants,
                        "repr": repr(leaf)[:80] if index in constants else "",
                    }
                    for index, (path, leaf) in enumerate(zip(paths, leaves, strict=False))
                ],
            }
        )
    return table


def is_default(value: Any, default: Any) -> str:
    """How a value can be told from others by its parameter's default: ``"is"``, ``"=="`` or not at all.

    Functions and modules compare by identity, which only another name of the same object shares;
    objects of a class with an equality of its own also equal what their source makes anew.
    """
    if type(value) is not type(default) or isinstance(value, (jax.Array, np.ndarray)):
        return ""
    try:
        if "__eq__" in vars(type(value)) and bool(value == default):
            return "=="
    except Exception:
        return ""
    return "is" if value is default else ""


def given_dtype(leaf: Any) -> str:
    """The dtype a leaf has once jax takes it, in the user's own 64-bit mode."""
    if arguments.category(leaf) == "array":
        return str(jax.dtypes.canonicalize_dtype(leaf.dtype))
    return arguments.dtype_of(leaf)


def hashable(value: Any) -> bool:
    """Whether a value can be a static argument."""
    try:
        hash(value)
    except Exception:
        return False
    return True


def inputs_from_callable(request: Answer) -> Answer:
    """Call the user's input function, with fresh seeds where it takes one."""
    make = load.resolve(request["reference"], request["directory"], request["file"])
    if not callable(make):
        raise Problem("inputs", f"`{request['reference']}` is a {type(make).__name__}, not a callable")
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    needed = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if [name for name in needed if name != "seed"] and len(needed) > 1:
        raise Problem(
            "inputs", f"`{request['reference']}` needs arguments {needed}; it may take `seed` and no other"
        )
    seeds = [0, 1] if "seed" in parameters or len(needed) == 1 else [None]
    TARGET.data, TARGET.trials = [], {}
    for seed in seeds:
        try:
            if seed is None:
                made = make()
            elif "seed" in parameters:
                made = make(seed=seed)
            else:
                made = make(seed)
        except MemoryError:
            raise
        except BaseException as error:
            raise Problem("inputs", summary(error), error=describe_exception(error)) from error
        load.check_made(made)
        args, kwargs = split_call(made)
        TARGET.data.append(arguments.bind(TARGET.signature, args, kwargs))
    return {"arguments": describe(TARGET.data[0]), "seeds": len(seeds)}


def split_call(made: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """The argument tuple, or ``(args, kwargs)``."""
    parameters = TARGET.signature.parameters.values()
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if (
        type(made) is tuple
        and len(made) == 2
        and isinstance(made[0], (tuple, list))
        and isinstance(made[1], dict)
        and all(isinstance(key, str) for key in made[1])
        and (any_name or set(made[1]) <= set(TARGET.signature.parameters))
    ):
        return made[0], made[1]
    if type(made) is tuple:
        return made, {}
    if isinstance(made, list) and len(made) == len(TARGET.signature.parameters):
        return made, {}
    return (made,), {}


def inputs_from_specs(request: Answer) -> Answer:
    """Make arguments from the specs of `--arg`, annotations and defaults."""
    from . import specs

    TARGET.data, TARGET.trials = [], {}
    for seed in (0, 1):
        try:
            values = specs.materialize_arguments(request["specs"], SEED + seed, TARGET.namespace())
        except MemoryError:
            raise
        except Exception as error:
            message = summary(error)
            raise Problem("inputs", message, error=describe_exception(error)) from error
        args, kwargs = [], {}
        for parameter in TARGET.signature.parameters.values():
            if parameter.name not in values:
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                args.extend(values[parameter.name])
            elif parameter.kind is parameter.VAR_KEYWORD:
                kwargs.update(values[parameter.name])
            elif parameter.kind is parameter.POSITIONAL_ONLY:
                args.append(values[parameter.name])
            else:
                kwargs[parameter.name] = values[parameter.name]
        if any(p.kind is p.VAR_POSITIONAL for p in TARGET.signature.parameters.values()):
            args = []
            for parameter in TARGET.signature.parameters.values():
                if parameter.kind is parameter.VAR_POSITIONAL:
                    args.extend(values.get(parameter.name, ()))
                elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                    args.append(values[parameter.name])
                    kwargs.pop(parameter.name, None)
        TARGET.data.append(arguments.bind(TARGET.signature, args, kwargs))
    return {"arguments": describe(TARGET.data[0]), "seeds": 2}


def trace(request: Answer) -> Answer:
    """Whether the reference can be traced with the batch leaves cut to `size` rows (null: uncut).

    Answers with the shapes and the containers of the result.
    """
    axes, statics = leaf_axes(request), request["statics"]
    values = TARGET.values(request.get("overrides", {}))
    if request.get("size") is not None:
        values = arguments.cut(values, axes, request["size"])
    packed = Packed(values, statics)
    with prove.x64(TARGET.x64):
        try:
            out, extra = traced(packed)
        except Problem:
            raise
        except MemoryError:
            raise
        except BaseException as error:
            return {
                "traced": False,
                "concrete": needs_number(error),
                "error": describe_exception(error),
            }
    if request.get("size") is None:
        TARGET.mutated = tuple(change["name"] for change in extra["mutated"])
    return {"traced": True, "out": out, **extra}


def traced(packed: Packed) -> tuple[list[Answer], Answer]:
    """Shapes of the result's leaves, its containers, and its leaves that are no arrays.

    ``"kept"`` are the parts of the result that hold the constants of an argument, as a returned
    module holds its activation function: path in the result, name of the argument. ``"opaque"``
    are the leaves that are no arrays and in no such part.
    """
    extra: Answer = {}
    table: list[Answer] = []
    mutated: dict[str, bool] = {}

    def run(leaves: Sequence[Any]) -> list[Any]:
        given = packed.unpack(leaves)

        def body() -> Any:
            own = {name: arguments.fresh(value) for name, value in given.items()}
            before = {name: jax.tree.flatten(value) for name, value in own.items()}
            out = arguments.invoke(TARGET.fn, TARGET.signature, own)
            if TARGET.in_place:
                for name, value in own.items():
                    if arguments.changed(before[name], value):
                        mutated[name] = jax.tree.structure(value) == before[name][1]
            return out

        out = TARGET.bound(body)
        kept = arguments.kept_parts(out, {name: given[name] for name, _ in packed.fixed})
        flat = jax.tree.leaves(out)
        constant = arguments.constant_leaves(out, [path for path, _ in kept])
        table[:] = [
            {"path": path, "category": arguments.category(leaf), "constant": index in constant}
            for index, (path, leaf) in enumerate(zip(arguments.leaf_paths(out), flat, strict=True))
        ]
        opaque = [
            {"path": row["path"], "type": type(leaf).__name__}
            for row, leaf in zip(table, flat, strict=True)
            if row["category"] == "opaque" and not row["constant"]
        ]
        extra.update(tree=arguments.skeleton(out), kept=kept, opaque=opaque)
        for row, leaf in zip(table, flat, strict=True):
            row["dtype"] = type(leaf).__name__
        constant |= {i for i, row in enumerate(table) if row["category"] == "opaque"}
        return [leaf for index, leaf in enumerate(flat) if index not in constant]

    shapes = iter(jax.eval_shape(run, packed.leaves))
    for row in table:
        shape = None if row["constant"] or row["category"] == "opaque" else next(shapes)
        row["shape"] = [] if shape is None else list(shape.shape)
        row["dtype"] = row["dtype"] if shape is None else str(shape.dtype)
    extra["mutated"] = [
        {
            "name": name,
            "graph": bool(arguments.graph_variables(TARGET.data[0][name])),
            "same_structure": same_structure,
        }
        for name, same_structure in mutated.items()
    ]
    return table, extra


def eps_of_input(leaf: Any) -> float:
    """The unit of rounding of an argument; 0 where it has none."""
    return float(jax.numpy.finfo(leaf.dtype).eps) if arguments.is_float(leaf) else 0.0


def precision(request: Answer) -> Answer:
    """Whether the function runs with float64 throughout; the coarsest rounding in it either way."""
    statics = request["statics"]
    values = TARGET.values({})
    for name, enabled, cast in (("float64", True, True), ("given", TARGET.x64, False)):
        packed = Packed(arguments.to_float64(values) if cast else values, statics)
        with prove.x64(enabled):
            try:
                jaxpr = jax.make_jaxpr(
                    lambda leaves, p=packed: arguments.held_apart(TARGET.reference(p.unpack(leaves)))[0]
                )(packed.leaves)
            except MemoryError:
                raise
            except BaseException as error:
                if name == "given":
                    raise Problem(
                        "reference", summary(error), error=describe_exception(error, "<jax-pmap")
                    ) from error
                continue
        eps = prove.coarsest_eps(jaxpr.jaxpr)
        TARGET.draws = prove.draws_numbers(jaxpr.jaxpr)
        if name == "given":
            kinds = [leaf.dtype for leaf in packed.leaves if hasattr(leaf, "dtype")]
            floats = [float(jax.numpy.finfo(k).eps) for k in kinds if jax.dtypes.issubdtype(k, np.inexact)]
            eps = max([eps, *floats])
        TARGET.eps[name] = eps
        floats = [0.0 if enabled and cast else eps_of_input(leaf) for leaf in packed.leaves]
        if len(floats) == len(jaxpr.jaxpr.invars):
            leaves = prove.output_eps(jaxpr.jaxpr, floats)
            TARGET.rounding[name] = prove.Rounding(eps, tuple(leaves))
        else:
            TARGET.rounding[name] = prove.Rounding(eps)
    return {"eps": TARGET.eps}


def observing_data(request: Answer, axes: LeafAxes) -> list[Values]:
    """The sets of values to observe: as given and in generic position, cut to fit, in float64 if it runs."""
    statics = request["statics"]
    wide = "float64" in TARGET.eps
    data = []
    for index in range(len(TARGET.data)):
        given, _ = prove.cut_to(TARGET.values(request.get("overrides", {}), index), axes, request["count"])
        data.append(given)
    data.append(arguments.perturb(data[0], axes, statics, SEED))
    data.append(arguments.perturb(data[0], axes, statics, SEED + 1, wild=True))
    data.append(arguments.shrink(data[len(TARGET.data)], axes))
    # Inputs made with another seed may differ in shape; they are left to the proof.
    form = str(describe(data[0]))
    data = [values for values in data if str(describe(values)) == form]
    shares = shares_of(data[0], axes, request["count"])
    return [rekeyed(arguments.to_float64(values) if wide else values, shares) for values in data]


def shares_of(values: Values, axes: LeafAxes, count: int) -> Shares | None:
    """The shares that random numbers are drawn for while a function is compared with itself."""
    rows = arguments.batch_size(values, axes)
    return Shares(-(-rows // count), rows) if TARGET.draws and rows else None


def observe_code(request: Answer) -> Answer:
    """Run tapped code on shards and compare with the tapped original on the whole batch.

    `reference_code` is the tapped original, `code` the tapped original with collectives in it.
    """
    axes, statics, count = leaf_axes(request), request["statics"], request["count"]
    wide = "float64" in TARGET.eps
    data = observing_data(request, axes)
    recorder = observe.Recorder(request["results"], TARGET.mutated, blocks=TARGET.draws)
    namespace = {**TARGET.namespace(), observe.RECORDER: recorder}

    def function(code: str, around: Around) -> Callable[..., Any]:
        scope = dict(namespace)
        furnish(scope, around, {observe.RECORDER: recorder})
        fn: Callable[..., Any] = TARGET.define(code, "<jax-pmap>", request["name"], scope)
        return fn

    key = repr(
        (
            request["reference_code"],
            request["reference_around"],
            request.get("axes"),
            request.get("overrides"),
            count,
        )
    )
    with prove.x64(wide or TARGET.x64), repeat_draws(shares_of(data[0], axes, count)):
        if key not in TARGET.whole:
            packed = Packed(data[0], statics)
            compiled = observe.run_whole(
                function(request["reference_code"], request["reference_around"]),
                recorder,
                TARGET.signature,
                packed,
                TARGET.bound,
            )
            try:
                TARGET.whole[key] = observe.record(
                    compiled, recorder, [Packed(v, statics).leaves for v in data]
                )
            except MemoryError:
                raise
            except BaseException as error:
                raise Problem(
                    "reference", summary(error), error=describe_exception(error, "<jax-pmap")
                ) from error
        recorder.most = count * observe.largest(TARGET.whole[key][0])
        try:
            sharded = function(request["code"], request["around"])
            parts = observe.shard_run(
                sharded, recorder, TARGET.signature, data, axes, statics, request["axis_name"], count
            )
            if not TARGET.axis_names:
                observe.note_varying(
                    sharded,
                    recorder,
                    TARGET.signature,
                    data[0],
                    axes,
                    statics,
                    request["axis_name"],
                    parts[0],
                )
        except MemoryError:
            raise
        except BaseException as error:
            points = [event["point"] for event in recorder.events]
            return {
                "raised": describe_exception(error, hide="_jax_pmap"),
                "last": points[-1] if points else None,
                "events": observe.compare_numbers(TARGET.whole[key], recorder.events, count),
            }
        share = None
        if request["measure"]:
            reference = function(request["reference_code"], request["reference_around"])
            share = observe.share_of_work(
                reference, sharded, TARGET.signature, data[0], axes, statics, request["axis_name"], count
            )
    coarsest = min(TARGET.eps["float64" if wide else "given"], 2e-2 / 4096)
    whole = TARGET.whole[key]
    return {
        "share": share,
        "events": observe.compare(whole, parts, count, coarsest, request["results"]),
        "reached": sorted(set(whole[2]) | set(parts[2])),
    }


def survey_draws(request: Answer) -> Answer:
    """Which draws of the function belong to examples, and which marked keys they come from."""
    axes, statics, count = leaf_axes(request), request["statics"], request["count"]
    if not TARGET.draws:
        return {"draws": [], "marks": []}
    values, _ = prove.cut_to(TARGET.values(request.get("overrides", {})), axes, count)
    marker = draws.Marker()
    scope = {**TARGET.namespace(), observe.RECORDER: marker}
    furnish(scope, request["around"], {observe.RECORDER: marker})
    fn: Callable[..., Any] = TARGET.define(request["code"], "<jax-pmap>", request["name"], scope)
    with prove.x64(TARGET.x64):
        whole = draws.whole_program(TARGET.fn, TARGET.signature, values, statics, TARGET.bound)
        try:
            return draws.survey(
                whole, fn, marker, TARGET.signature, values, axes, statics, request["axis_name"], count
            )
        except MemoryError:
            raise
        except BaseException as error:
            return {"unfollowed": summary(error)}


def trials_of(request: Answer, left_out: Sequence[str] = ()) -> proving.Trials:
    """Runs of the target for a request's roles: the same ones for every question about them.

    Arguments `left_out` keep their numbers: the parallel function has the defaults of its own for them.
    """
    names = ("axes", "statics", "chain", "steps", "overrides", "global_view", "donated")
    key = repr([*(request.get(name) for name in names), sorted(left_out)])
    if key in TARGET.trials:
        return TARGET.trials[key]
    donated = request.get("donated", ())

    def invoke(fn: Callable[..., Any], values: Values) -> Any:
        return TARGET.with_changes(fn, donation.fresh(values, donated))

    question = proving.Question(
        reference=TARGET.compiled(request["statics"]),
        invoke=invoke,
        data=tuple(TARGET.values(request.get("overrides", {}), i) for i in range(len(TARGET.data))),
        axes=leaf_axes(request),
        statics=tuple(request["statics"]),
        chain=tuple((name, path) for name, path in request["chain"]),
        steps=request["steps"],
        eps=TARGET.eps,
        rounding=TARGET.rounding,
        x64=TARGET.x64,
        draws=TARGET.draws,
        repeat=TARGET.draws and not request.get("global_view", True),
        own_axes=bool(TARGET.axis_names),
        settled=(*request["statics"], *left_out),
    )
    TARGET.trials = {key: proving.Trials(question)}
    return TARGET.trials[key]


def prove_code(request: Answer) -> Answer:
    """Run the emitted file on several device counts beside the reference; see `proving.prove_emitted`."""
    emitted = proving.Emitted(
        request["code"],
        request["path"],
        request["module"],
        request["name"],
        tuple(request["replicated"]),
        tuple(request["donated"]),
        request["axis_name"],
        edited(request) if request.get("in_place") else None,
    )
    return proving.prove_emitted(
        trials_of(request),
        emitted,
        request["counts"],
        fixed=request["fixed"],
        remainder=request["remainder"],
    )


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


def try_layouts(request: Answer) -> Answer:
    """Find out how the user's parallel function is called; see `proving.try_layouts`."""
    function = parallel.find(request)
    trials = trials_of(request, parallel.left_out(function, TARGET.signature))
    return proving.try_layouts(trials, function, TARGET.signature, request["count"], request.get("layouts"))


def prove_parallel(request: Answer) -> Answer:
    """Run the user's parallel function beside the reference; see `proving.prove_parallel`."""
    function = parallel.find(request)
    trials = trials_of(request, parallel.left_out(function, TARGET.signature))
    checks = proving.prove_parallel(
        trials,
        function,
        TARGET.signature,
        request["layout"],
        request["count"],
        with_given=request["with_given"],
    )
    return {"checks": checks, "equal_draws": trials.question.repeat}


def search_inputs(request: Answer) -> Answer:
    """Find shapes for the arguments nobody described; see `guess.find_inputs`."""
    from . import guess

    with prove.x64(TARGET.x64):
        answer: Answer = guess.find_inputs(
            lambda *args, **kwargs: TARGET.bound(lambda: TARGET.fn(*args, **kwargs)),
            namespaces=[vars(TARGET.module), TARGET.fn.__globals__],
            **request,
        )
    return answer


HANDLERS: dict[str, Callable[[Answer], Answer]] = {
    "forget": forget,
    "loaded_files": loaded_files,
    "load": load_target,
    "capture": capture_call,
    "inputs_from_callable": inputs_from_callable,
    "inputs_from_specs": inputs_from_specs,
    "search_inputs": search_inputs,
    "trace": trace,
    "precision": precision,
    "observe": observe_code,
    "draws": survey_draws,
    "reference": set_reference,
    "prove": prove_code,
    "try_layouts": try_layouts,
    "prove_parallel": prove_parallel,
}
