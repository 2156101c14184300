"""The question of a proof, and the runs of its reference: on which inputs, precision and batch."""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from . import arguments, load, protocol, prove, strengthen
from .arguments import LeafAxes, Packed, Values
from .decisions import Decisions
from .exceptions import attempted
from .generator import Groups, Shares, rekeyed, repeat_draws
from .jaxpr.trace import Traced, arrays_of
from .leaves import is_float, is_key, shape_of, to_float64
from .perturb import jitter
from .protocol import Adequacy, Dtypes, Failure, Problem
from .prove import Trial
from .rounded import rounded
from .units import Rounding, rounding_of, unit_of

#: Seed of the perturbed inputs.
SEED = 20260
#: Runs on inputs changed by a rounding, where floats are narrow or nothing else measures what rounding does.
JITTERS = 4
#: The same where equality is derived.
JITTERS_DERIVED = 2
#: Results that are further off, of their size, are so for another reason than rounding, unless it is more.
ROUNDING = 2.0**-12
#: The rounding of float16, which holds no number above 65504.
HALF = 2.0**-10
Bounds = list[list[float]]
#: Whether a result that is reshaped stays on its devices; before 0.8, what pmap returned did not.
PLACED = jax.__version_info__ >= (0, 8)


NOTHING = strengthen.Found()


@dataclass(frozen=True, slots=True)
class Question:
    """The reference and the inputs that another function is held to."""

    #: The reference on one device, compiled.
    reference: Callable[[Values], Any]
    #: The same uncompiled.
    traceable: Callable[[Values], Any]
    #: Calls a function with values bound as the reference's signature binds them.
    invoke: Callable[[Callable[..., Any], Values], Any]
    #: Sets of example inputs.
    data: tuple[Values, ...]
    axes: LeafAxes
    statics: tuple[str, ...]
    #: Argument and path into the result of what feeds the next call.
    chain: tuple[tuple[str, Sequence[Any]], ...]
    steps: int
    #: Coarsest rounding by precision: ``"given"``, and ``"float64"`` where the reference runs in it.
    eps: Mapping[str, float]
    #: The same by output.
    rounding: Mapping[str, Rounding]
    #: The user's own 64-bit mode.
    x64: bool
    #: Whether the reference draws random numbers.
    draws: bool
    #: Whether those are drawn by a generator that gives one device and several equal ones.
    repeat: bool = False
    #: Whether that generator gives every device its own of as many keys as there are devices.
    siblings: bool = False
    #: In how many groups of rows each device has its part: those of one are drawn for together.
    minibatches: int = 1
    #: Whether collectives stand in the reference's own text.
    own_axes: bool = False
    #: Arguments whose numbers are never changed.
    settled: tuple[str, ...] = ()
    #: Inputs on which decisions go ways that they do not on the others, and decisions that never do.
    found: strengthen.Found = NOTHING
    #: The first inputs with many more rows, other numbers in them first, where those are asked for.
    large: tuple[Values, ...] = ()
    #: Whether the parallel function was derived equal for all inputs: runs in the user's own dtypes, on the
    #: given inputs and once on others, are then the second witness, and no more are needed.
    derived: bool = False
    #: Whether there is room for other inputs than those given, where that is so.
    others: bool = True
    #: Measures `rounding` in float64, where that was not done; None of a reference that does not run so.
    exact: Callable[[], "Rounding | None"] = lambda: None
    #: The reference's code, in which names stand that it may look up.
    sources: tuple[Any, ...] = ()
    #: Whether the reference has loops of unknown length.
    loops: bool = False
    #: Among how many devices the batch is divided, where these are not all; 0 where they are.
    among: int = 0
    #: Of axes of a mesh that divide it together, how many shares apart devices along each have theirs.
    strides: tuple[tuple[str, int], ...] = ()
    #: In how many groups of rows those lie that are drawn for; see `Shares.groups`.
    groups: Groups = ()

    @property
    def rows(self) -> int:
        """Rows of the given batch."""
        return arguments.batch_size(self.data[0], self.axes)

    @property
    def packed(self) -> Packed:
        """The given inputs, taken apart."""
        return Packed(self.data[0], self.statics)

    @property
    def wide(self) -> bool:
        """Whether the verdict is in float64."""
        return "float64" in self.eps and not self.derived

    @property
    def kind(self) -> Dtypes:
        """The precision of the verdict."""
        return "float64" if self.wide else "given"

    @property
    def jitters(self) -> int:
        """How many runs tell what a rounding of the inputs does."""
        return JITTERS_DERIVED if self.derived else JITTERS

    def plans(self, with_given: bool) -> list[tuple[Dtypes, int]]:
        """(precision, index of the inputs) of the runs on one device count.

        Indices past `data` are perturbed inputs, and past those the ones that were searched for.
        """
        if self.derived:
            # Other numbers: what a call leaves behind for the next one is not in any trace. A share of right
            # answers may be the same for those of another seed.
            others = [*range(1, len(self.data))[:1], len(self.data)] if with_given and self.others else []
            return [("given", index) for index in (0, *others)]
        # In narrow floats, numbers far out are all rounding.
        kind = self.kind
        narrow = self.eps[kind] > prove.NARROW
        forms = [
            i for i, form in enumerate(strengthen.PERTURBED) if not (narrow and form in ("far", "shifted"))
        ]
        # Where sums overflow, so do those of some shares and not of others.
        short = self.eps[kind] == HALF
        more = range(len(strengthen.PERTURBED), len(strengthen.PERTURBED) + len(self.found.inputs))
        if short:
            more = range(0)
        given = range(len(self.data))
        every = (*given, *(len(self.data) + i for i in (*forms, *more)))
        # Beside float64, sums of integers have 64 bits.
        own = (*given, *filter(self.may_wrap, every)) if with_given and self.wide else ()
        return [*((kind, index) for index in every), *(("given", index) for index in own)]

    def described(self, index: int) -> str:
        """Inputs `index` in words, after "on"; see `Trials.values`."""
        given = len(self.data)
        if index < 0:
            masks = "; a mask all True, or all but one element" if index < -2 else ""
            return f"the given inputs, altered (each row repeated to make thousands{masks})"
        if index < given:
            return "the given inputs" if index == 0 else f"the inputs of seed {index}"
        if index < given + len(strengthen.PERTURBED):
            return f"the given inputs, altered ({strengthen.ALTERED[strengthen.PERTURBED[index - given]]})"
        nan = " with a NaN" if self.has_nan(index) else ""
        return f"the given inputs, altered{nan} (so that a comparison or a branch goes another way)"

    def has_nan(self, index: int) -> bool:
        """Whether inputs that were searched for have a number in them that is none."""
        found = index - len(self.data) - len(strengthen.PERTURBED)
        leaves = jax.tree.leaves(self.found.inputs[found]) if found >= 0 else []
        floats = [leaf for leaf in leaves if not is_key(leaf) and np.asarray(leaf).dtype.kind in "fc"]
        return any(bool(np.isnan(leaf).any()) for leaf in floats)

    def may_wrap(self, index: int) -> bool:
        """Whether inputs that were searched for have integers of which 32 bits do not hold the sum of two."""
        found = index - len(self.data) - len(strengthen.PERTURBED)
        leaves = jax.tree.leaves(self.found.inputs[found]) if found >= 0 else []
        whole = [leaf for leaf in leaves if not is_key(leaf) and np.asarray(leaf).dtype.kind in "iu"]
        return any(bool((np.asarray(leaf) == strengthen.LATE).any()) for leaf in whole)

    def shares(self, rows: int, count: int) -> Shares | None:
        """The shares of `rows` on `count` devices that random numbers are drawn for, if they are."""
        rows, number = rows // self.minibatches, self.among or count
        if not self.repeat or not rows:
            return None
        return Shares(-(-rows // number), rows, self.siblings, self.strides, self.groups)

    def widths(self, kind: Dtypes) -> bool:
        """Whether integers have the widths in a precision that they have in the user's 64-bit mode."""
        return self.x64 or kind == "given"

    def precision(self, kind: Dtypes) -> bool:
        """The 64-bit mode of a precision."""
        return True if kind == "float64" else self.x64


class Trials:
    """Runs of the reference, each made once however many device counts ask for it."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._made: dict[tuple[Dtypes, int, int, Shares | None], tuple[Trial, Bounds]] = {}
        self._rounded = rounded(question.traceable, question.statics)
        #: The loops of the reference, by precision and shapes of the inputs.
        self._followed: dict[Any, Decisions | None] = {}

    def at(self, kind: Dtypes, index: int, size: int, shares: Shares | None) -> tuple[Trial, Bounds]:
        """The reference in precision `kind` on the first `size` rows of inputs `index`, and its bounds.

        Random numbers are drawn for `shares`.
        """
        asked = (kind, index, size, shares)
        if asked not in self._made:
            with repeat_draws(shares):
                self._made[asked] = self._make(*asked)
        return self._made[asked]

    def widen(self) -> bool:
        """Whether the reference runs in float64; from here on there are bounds for what it gives there."""
        question = self.question
        if "float64" in question.eps:
            return True
        wide = question.exact()
        if wide is not None:
            eps, rounding = {"float64": wide.coarsest}, {"float64": wide}
            self.question = replace(
                question, eps={**question.eps, **eps}, rounding={**question.rounding, **rounding}
            )
        return wide is not None

    def _run(self, kind: Dtypes, index: int, values: Values) -> Trial:
        question = self.question
        # Fed back into the function, results of wildly scaled inputs only show how far rounding spreads.
        steps = 1 if index > len(question.data) or (index < 0 and index != -2) else question.steps
        if kind == "float64":
            values = to_float64(values)
        try:
            with prove.x64(question.precision(kind)):
                runs = self._ends(kind, index, values)
                return Trial(question.reference, values, question.chain, steps if runs else 0)
        except (MemoryError, Problem):
            raise
        except Exception:
            if 0 <= index < len(question.data):
                raise
            # A function may refuse, when it runs, inputs that are not the user's own.
            return Trial(question.reference, values, question.chain, 0)

    def _ends(self, kind: Dtypes, index: int, values: Values) -> bool:
        """Whether the loops of the reference end in time; what converges on given inputs may not on others.

        No run of XLA can be stopped.
        """
        question = self.question
        if not question.loops or 0 <= index < len(question.data):
            return True
        packed = Packed(values, question.statics)
        shapes = kind, *map(shape_of, packed.leaves)
        if shapes not in self._followed:
            size = arguments.batch_size(values, question.axes)
            given = arguments.cut(question.data[0], question.axes, size)
            first = Packed(to_float64(given) if kind == "float64" else given, question.statics)
            # What is mapped by an old `pmap` is not followed.
            self._followed[shapes] = attempted(Decisions, arrays_of(question.traceable, first), first.leaves)
        followed = self._followed[shapes]
        return followed is None or followed.end(packed.leaves)

    def _make(self, kind: Dtypes, index: int, size: int, shares: Shares | None) -> tuple[Trial, Bounds]:
        question, given = self.question, self.question.rounding["given"]
        values = self.values(index)
        if kind == "float64" or not arguments.comparable(values, question.data[0]):
            values = self._alike(kind, values)
        elif question.derived and index > 0:
            # What is derived holds for the constants of all: those that were made anew are compiled for anew.
            values = arguments.alike(values, question.data[0], ())
        values = rekeyed(arguments.cut(values, question.axes, size), shares)
        trial = self._run(kind, index, values)
        eps, own = question.eps[kind], question.rounding[kind]
        narrow = eps > prove.NARROW
        # The run in the other precision measures rounding for both; its random numbers would be others.
        compared = question.wide and not question.draws
        if compared:
            fine = kind == "float64"
            measure = (
                self._run("given", index, values) if fine else self.at("float64", index, size, shares)[0]
            )
            allowed = prove.bounds(trial, measure, given, own)
            if not narrow:
                return trial, allowed
        # In the precision of the run: float32 would round so small a change away.
        exact = to_float64(values) if kind == "float64" else values
        if not compared:
            others = [jitter(exact, question.statics, eps, SEED + i) for i in range(question.jitters)]
            runs = [self._run(kind, index, other) for other in others if other is not None]
            allowed = prove.jittered_bounds(trial, [run for run in runs if run.results], eps, own)
        if narrow and trial.results:
            allowed = prove.tightened(allowed, trial, self._inside(kind, trial, shares))
        return trial, allowed

    def _inside(self, kind: Dtypes, trial: Trial, shares: Shares | None) -> list[Trial]:
        """The runs of `trial` with the roundings inside moved, and the inputs that are narrow themselves."""
        eps, statics = self.question.eps[kind], self.question.statics
        ways = range(self.question.jitters)
        firsts = [jitter(trial.values[0], statics, eps, SEED + way, narrow=True) for way in ways]
        with prove.x64(self.question.precision(kind)):
            return [self._moved(kind, trial, way, shares, firsts[way]) for way in ways]

    def _moved(
        self, kind: Dtypes, trial: Trial, way: int, shares: Shares | None, first: Values | None = None
    ) -> Trial:
        """A run like `trial`, or from other inputs, with the roundings inside moved in this `way`."""

        def run(values: Values) -> Any:
            return self._rounded(values, way, key=shares)

        given = trial.values[0] if first is None else first
        return Trial(run, self._alike(kind, given), self.question.chain, len(trial.results))

    def _alike(self, kind: Dtypes, values: Values) -> Values:
        """`values` in the form that the first ones have when a call gets them back, in precision `kind`."""
        with prove.x64(self.question.precision(kind)):
            return arguments.alike(values, self.question.data[0], [name for name, _ in self.question.chain])

    def wider(
        self, kind: Dtypes, trial: Trial, allowed: Bounds, shares: Shares | None, failure: Failure
    ) -> Bounds | None:
        """What `allowed` becomes if the roundings inside the reference are measured too.

        That takes one more compilation, so it is done where numbers are drawn, which another precision does
        not measure, where both functions were derived equal, and where a `failure` could be rounding: an
        output is off by little of its size, or is rounding for the most part. Where a matrix is nearly
        singular, the run in float32 has no digit left, and how far it is off says nothing of float64. None
        elsewhere. To be called while random numbers are drawn for `shares`.
        """
        question = self.question
        eps, own = question.eps[kind], question.rounding[kind]
        if trial is not trial.plain:
            return None  # A call may have changed or taken what it was given: another one is no second try.
        # What a run in the user's own dtypes shows that has no digit left.
        lost = min(prove.SLACK * eps / max(question.eps.values()), ROUNDING)
        if eps > prove.NARROW or not (
            question.draws or question.derived or failure.off <= ROUNDING or failure.tolerance >= lost
        ):
            return None
        runs = [self._moved(kind, trial, way, shares) for way in range(question.jitters)]
        inside = prove.jittered_bounds(trial, runs, eps, own)
        more = [[*map(max, *rows)] for rows in zip(allowed, inside, strict=True)]
        self._made |= {asked: (trial, more) for asked, (made, _) in self._made.items() if made is trial}
        return more

    def coarser(
        self, kind: Dtypes, trial: Trial, allowed: Bounds, call: Callable[[Values], Any]
    ) -> Bounds | None:
        """What `allowed` becomes if `call`, held to `trial`, rounds where the reference is exact, or None.

        A count in float32 is the same number in float64, and a mean of it, over the rows of a device, is not.
        """
        known = self.question.rounding[kind]
        packed = Packed(trial.values[0], self.question.statics)
        units = [0.0 if kind == "float64" else unit_of(leaf) for leaf in packed.leaves]
        # A drop-in may prepare its batch with numbers, and is not traced.
        program = attempted(Traced.of, call, packed, packed.leaves)
        own = None if program is None else rounding_of(program, units)
        rounding = known.with_that_of(own)
        more = [
            [one * rounding.at(step, leaf) / (known.at(step, leaf) or 1.0) for leaf, one in enumerate(row)]
            for step, row in enumerate(allowed)
        ]
        return None if more == allowed else more

    def search(self, programs: Sequence[Callable[[Values], Any]], counts: Sequence[int]) -> strengthen.Found:
        """Inputs on which decisions of the reference and of `programs` go other ways."""
        with prove.x64(self.question.precision(self.question.kind)):
            return strengthen.find(self.question, programs, counts, SEED)

    def values(self, index: int) -> Values:
        """Inputs `index`: as given, or past those perturbed, or past those found; below 0 with many rows."""
        question, given = self.question, len(self.question.data)
        if index < 0:
            return question.large[-1 - index]
        if index < given:
            return question.data[index]
        if index >= given + len(strengthen.PERTURBED):
            return question.found.inputs[index - given - len(strengthen.PERTURBED)]
        form = strengthen.PERTURBED[index - given]
        return strengthen.perturbed(question, question.data[0], form, SEED + index)

    def adequacy(self, counts: Sequence[int]) -> Adequacy:
        """What the inputs show, and what they do not; to be asked once the reference has run on them."""
        question = self.question
        given = [trial for (_, index, _, _), (trial, _) in self._made.items() if index == 0 and trial.results]
        table = prove.leaf_table(given[0].results[0]) if given else []
        return Adequacy(
            weak=tuple(strengthen.weaknesses(question.data[0], question.axes, counts)),
            sets=len({index for _, index in question.plans(False)}) - len(question.data),
            stuck=tuple(question.found.stuck),
            exchanges=tuple(question.found.exchanges),
            own=tuple(question.found.own),
            half=HALF in question.eps.values(),
            narrow=question.eps[question.kind] > prove.NARROW,
            nans=tuple(path for path, leaf in table if is_float(leaf) and leaf.size and np.isnan(leaf).all()),
        )

    def forget(self, index: int) -> None:
        """Leave out the runs of inputs `index`, in whose place others come."""
        self._made = {asked: made for asked, made in self._made.items() if asked[1] != index}

    def was_found(self, index: int) -> bool:
        """Whether inputs were searched for; of those, results that are no numbers are left out one by one."""
        return index >= len(self.question.data) + len(strengthen.PERTURBED)

    def left_domain(self, index: int, size: int, shares: Shares | None) -> bool:
        """Whether perturbing made the reference fail, or return what is no number, and it did not before."""
        if index < len(self.question.data):
            return False
        kind = self.question.kind
        perturbed, given = (self.at(kind, i, size, shares)[0] for i in (index, 0))
        left = not self.was_found(index) and not perturbed.finite and given.finite
        return left or not perturbed.results


@dataclass(frozen=True, slots=True)
class Emitted:
    """Code that was emitted, as it is asked about."""

    asked: protocol.Emitted
    #: Arguments whose arrays a call takes with it.
    donated: tuple[str, ...] = ()
    #: Makes the function where the original stands; None for a file of its own.
    there: Callable[[], Callable[..., Any]] | None = None

    @property
    def mesh(self) -> protocol.Mesh | None:
        """The mesh of its devices; None where they are one axis of as many as there are."""
        return self.asked.mesh

    def define(self, count: int, x64: bool) -> Callable[..., Any]:
        """The function, made in a new module or where the original stands."""
        if self.there is not None:
            with prove.x64(x64):
                return self.there()
        asked = self.asked
        module = types.ModuleType(asked.module)
        module.__file__ = asked.path
        with prove.x64(x64):
            load.define(asked.code, asked.path, asked.name, vars(module))

        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(module, asked.name)(*args, **kwargs)

        return call

    def replicas(self, leaves: Sequence[tuple[str, Any]], count: int) -> Failure | None:
        """The first output that should be the same on all devices and is not, or lies elsewhere."""
        if self.mesh is not None:
            for (path, leaf), spec in zip(leaves, self.mesh.specs, strict=True):
                why = None if spec is None else prove.lies_elsewhere(leaf, spec, self.mesh.axes)
                if why:
                    return Failure("mesh", path=path, why=why)
            return None
        for index in self.asked.replicated:
            why = prove.replicas_differ(leaves[index][1], count)
            if why:
                return Failure("replicas", path=leaves[index][0], why=why)
        for index, (path, leaf) in enumerate(leaves):
            if not PLACED or not isinstance(leaf, jax.Array) or is_key(leaf):
                continue
            if index not in self.asked.replicated and len(leaf.sharding.device_set) != count:
                why = f"it lies on {len(leaf.sharding.device_set)} devices, not {count}"
                return Failure("shares", path=path, why=why)
        return None
