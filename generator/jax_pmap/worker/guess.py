"""Shapes for arguments nobody described: found by tracing the function with small candidates.

Leaves are decided one at a time, in the order the function first uses them. Those not yet decided
are `Hole` objects that stop the trace as soon as anything looks at them; the leaf that was looked
at is decided next. A wrong shape so fails at its first use, before the later leaves multiply the
number of tries. (Lazy narrowing, as in lazy functional test generators.)

Options say how many dims a leaf has, and of what dtype it is. Its sizes are all different at first:
where the function refuses them, jax says which do not fit, and these are made equal (`mended`).
"""

import contextlib
import io
import itertools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import specs
from .candidates import Candidates, Leaf, Option
from .holes import Hole, Touched, stand_ins, unwrapped
from .jaxpr.walk import equations
from .protocol import InputsFound, NotFound
from .specs import Spec

#: Primitives that are undefined for part of the reals.
PARTIAL = frozenset(
    {"log", "log1p", "sqrt", "rsqrt", "pow", "acos", "asin", "acosh", "atanh", "lgamma", "digamma"}
)

#: Changes of sizes that are tried for one error, and in a row.
FEW, PATIENCE = 16, 40
#: How unlikely what is chosen may be at most.
MOST = 16


@dataclass(frozen=True)
class Outcome:
    """How a trace ended.

    Attributes:
        looked_at: the leaf without a shape that stopped it.
        error: what it was refused with, if so: ``"TypeError: add got incompatible shapes …"``.
        reached: where in the user's code it ended, as something that is larger further on.
    """

    looked_at: int | None = None
    error: str = ""
    reached: tuple[int, ...] = ()

    @property
    def traced(self) -> bool:
        """Whether the function was traced to its end."""
        return self.looked_at is None and not self.error

    @staticmethod
    def by(error: BaseException, spaces: Sequence[Mapping[str, Any]]) -> "Outcome":
        """What an error ended, for code whose globals are one of `spaces`."""
        if isinstance(error, Touched):
            return Outcome(error.index)
        steps, at = [], error.__traceback__
        while at is not None:
            if any(at.tb_frame.f_globals is space for space in spaces):
                steps.append(at.tb_lasti)
            at = at.tb_next
        # Once what is called has returned, its caller is further on than all that is in it.
        return Outcome(None, f"{type(error).__name__}: {error}", (*steps, sys.maxsize))


class Exhausted(Exception):
    """The number of tries or the time is spent."""


def find_inputs(
    fn: Callable[..., Any],
    parameters: Sequence[Mapping[str, Any]],
    readings: Sequence[Mapping[str, Spec]] = (),
    namespaces: Sequence[dict[str, Any]] = (),
    limit: int = 900,
    seconds: float = 6.0,
) -> InputsFound:
    """Specs under which `fn` traces.

    Args:
        fn: the function, with the axes of its own collectives bound.
        parameters: ``{"name", "how", "hint"}`` in order; `how` is ``"positional"``, ``"keyword"``,
            ``"var_positional"`` or ``"var_keyword"``.
        readings: possible forms of the arguments, likeliest first. A form is a spec that may have
            ``unknown`` leaves, ``like`` another argument, or be ``missing``.
        namespaces: module namespaces the function and its helpers live in; the last one wins.
        limit: most traces to try.
        seconds: most CPU time to take.

    Returns:
        Specs by name, or why there are none.
    """
    failed: NotFound | None = None
    tried = 0
    deadline = time.process_time() + seconds
    for position, forms in enumerate(readings):
        # A reading that never traces must leave something for the ones after it.
        share = limit - tried if position == len(readings) - 1 else (limit - tried) * 2 // 3
        search = Search(fn, parameters, forms, namespaces, share, deadline)
        if search.missing is not None:
            failed = failed or search.missing
            continue
        with quiet():
            solved = search.run()
        tried += search.tried
        if solved:
            return InputsFound(tried, search.result(), tuple(search.assumed()))
        failed = failed or search.failure()
    return InputsFound(tried, failed=failed or NotFound("", "", "no reading", ""))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what the user's code prints at each trace, and what jax warns of, to ourselves."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


class Search:
    """Depth-first search over the leaves of one reading."""

    def __init__(
        self,
        fn: Callable[..., Any],
        parameters: Sequence[Mapping[str, Any]],
        forms: Mapping[str, Spec],
        namespaces: Sequence[dict[str, Any]],
        limit: int,
        deadline: float,
    ) -> None:
        self.fn, self.parameters, self.namespaces = unwrapped(fn), parameters, namespaces
        self.limit, self.deadline, self.tried = limit, deadline, 0
        self.namespace: dict[str, Any] = {}
        for space in namespaces:
            self.namespace.update(space)
        self.known = Candidates()
        self.leaves, self.chosen = self.known.leaves, self.known.chosen
        self.missing: NotFound | None = None
        self.forms: dict[str, Spec] = {}
        #: How far the trace came that came furthest, the leaf that was decided last, and how it ended.
        self.closest = (-1, tuple[int, ...]()), "", Outcome(error="RuntimeError: nothing was tried")
        #: The latest one that was an error.
        self.latest = Outcome()
        #: All of them, by what was chosen.
        self.outcomes: dict[str, Outcome] = {}
        #: Whether options were left out that are too unlikely so far.
        self.left_out = False
        self.assumed_names: list[str] = []
        hints = {parameter["name"]: parameter.get("hint", "") for parameter in parameters}
        # Arguments that are like another one come after it.
        for name in sorted(forms, key=lambda name: forms[name]["kind"] == "like"):
            before = len(self.leaves)
            form = forms[name]
            self.forms[name] = self.expand(form, name, hints.get(name, ""))
            if len(self.leaves) > before or form["kind"] in ("like", "python") or form.get("assumed"):
                self.assumed_names.append(name)

    # --- forms ---------------------------------------------------------------------------

    def expand(self, form: Spec, path: str, hint: str) -> Spec:
        """The form with every unknown leaf numbered."""
        kind = form["kind"]
        if kind == "unknown":
            index = len(self.leaves)
            values = tuple(form.get("values", ()))
            word, own = form.get("word", path), form.get("hint", "") or hint
            self.leaves.append(Leaf(index, path, word, own, values, form.get("rank")))
            return {**form, "index": index}
        if kind == "python":
            # Evaluated when it is first looked at: what it is made from is decided by then.
            index = len(self.leaves)
            self.leaves.append(Leaf(index, path, path, "expression", (), None, form))
            return {"kind": "unknown", "index": index}
        if kind == "like":
            return self.forms[form["of"]]
        if kind == "missing" and self.missing is None:
            self.missing = NotFound(path.partition("[")[0].partition(".")[0], path, form["reason"], "")
        if kind in ("dict", "object"):
            place = "{}[{!r}]" if kind == "dict" else "{}.{}"
            items = [[n, self.expand(item, place.format(path, n), hint)] for n, item in form["items"]]
            return {**form, "items": items}
        if kind in ("tuple", "list"):
            return {
                **form,
                "items": [self.expand(x, f"{path}[{i}]", hint) for i, x in enumerate(form["items"])],
            }
        if kind == "array":
            self.known.given.append((hint, tuple(form["shape"])))
        return form

    def fill(self, form: Spec) -> Spec:
        """The form with what was chosen; leaves nobody looked at take their first option."""
        kind = form["kind"]
        if kind == "unknown":
            if form["index"] not in self.chosen:
                self.chosen[form["index"]] = next(self.known.options(self.leaves[form["index"]]))
            return self.chosen[form["index"]].spec
        if kind in ("dict", "object"):
            return {**form, "items": [[name, self.fill(item)] for name, item in form["items"]]}
        if kind in ("tuple", "list"):
            return {**form, "items": [self.fill(item) for item in form["items"]]}
        return {key: value for key, value in form.items() if key != "assumed"}

    def result(self) -> dict[str, Spec]:
        """Specs by name, in the order of the parameters."""
        filled = {name: self.fill(form) for name, form in self.forms.items()}
        return {parameter["name"]: filled[parameter["name"]] for parameter in self.parameters}

    def assumed(self) -> list[str]:
        """Names of the arguments that were not given."""
        return [parameter["name"] for parameter in self.parameters if parameter["name"] in self.assumed_names]

    # --- tracing -------------------------------------------------------------------------

    def call(self, make: Callable[[Spec, str], Any]) -> Any:
        """Call the function with its arguments made by `make`, one array, key or leaf at a time."""
        forms = {name: self.evaluated(form) for name, form in self.forms.items()}
        values = specs.build_arguments(forms, self.namespace, make)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        named = False
        for parameter in self.parameters:
            name, how = parameter["name"], parameter["how"]
            if name not in values:
                # A positional default before others that are given: they must go by name.
                named = True
            elif how == "var_positional":
                args.extend(values[name])
            elif how == "var_keyword":
                kwargs.update(values[name])
            elif how == "keyword" or named:
                kwargs[name] = values[name]
            else:
                args.append(values[name])
        return self.fn(*args, **kwargs)

    def evaluated(self, form: Spec) -> Spec:
        """The form with those expressions in it that are to be evaluated now."""
        kind = form["kind"]
        if kind == "unknown" and form["index"] in self.chosen:
            return self.leaves[form["index"]].form or form
        if kind in ("dict", "object"):
            return {**form, "items": [[name, self.evaluated(item)] for name, item in form["items"]]}
        if kind in ("tuple", "list"):
            return {**form, "items": [self.evaluated(item) for item in form["items"]]}
        return form

    def attempt(self, standing_in: bool) -> BaseException | None:
        """Trace once; None when it works, `Touched` when an undecided leaf was looked at."""
        if self.tried >= self.limit or time.process_time() > self.deadline:
            raise Exhausted
        self.tried += 1
        structs = {i: abstract(option.spec) for i, option in self.chosen.items() if option.traced}

        def traced(tracers: dict[int, Any]) -> None:
            arrays: dict[str, Any] = {}

            def make(spec: Spec, path: str) -> Any:
                if spec["kind"] != "unknown":
                    # Of given arrays the values matter no more than of found ones.
                    if path not in arrays:
                        arrays[path] = (
                            jnp.zeros(spec["shape"], spec["dtype"]) if spec["kind"] == "array" else key(spec)
                        )
                    return arrays[path]
                index = spec["index"]
                if index not in self.chosen:
                    return Hole(index)
                if index in tracers:
                    return tracers[index]
                return specs.build(self.chosen[index].spec, self.namespace, make, path)

            self.call(make)

        spaces = [*self.namespaces, getattr(self.fn, "__globals__", {})] if standing_in else None
        try:
            with stand_ins(spaces) if spaces is not None else contextlib.nullcontext():
                jax.eval_shape(traced, structs)
        except (MemoryError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return error
        return None

    def run(self) -> bool:
        """Whether some choice traces; it is then in `chosen`.

        Those come first in which few leaves are anything but what is likeliest. That an early one is
        something else may be shown by the last ones alone.
        """
        try:
            for unlikely in range(MOST):
                self.left_out = False
                if self.solve(unlikely):
                    self.complete()
                    return True
                if not self.left_out:
                    return False
        except Exhausted:
            pass
        return False

    def solve(self, unlikely: int) -> bool:
        """Decide the leaf that is looked at next, and so on until the function traces.

        The options taken for it, and for the leaves after it, are at most as `unlikely` in all.
        """
        outcome = self.mended()
        if outcome.traced:
            return True
        index = outcome.looked_at
        if index is None:
            # Code that inspects types (flax does) may refuse a hole without looking into it.
            unmade = (leaf.number for leaf in self.leaves if leaf.form is not None)
            index = next((number for number in unmade if number not in self.chosen), None)
        if index is None:
            self.latest = outcome
            reached = len(self.chosen), outcome.reached
            if reached > self.closest[0]:
                path = self.leaves[next(reversed(self.chosen))].path if self.chosen else ""
                self.closest = reached, path, outcome
            return False
        before = {**self.chosen}
        complaints = Counter[tuple[str, str]]()
        for at, option in enumerate(self.known.forms(self.leaves[index])):
            cost = (at + 1).bit_length() - 1
            if cost > unlikely:
                self.left_out = True
                break
            dtype = option.spec.get("dtype", "")
            # The same complaint whatever its shape: another leaf is to blame, or it is of another dtype.
            if any(of == dtype and times > 2 for (of, _), times in complaints.items()):
                continue
            self.choose({**before, index: option})
            if self.solve(unlikely - cost):
                return True
            complaints[dtype, self.latest.error] += 1
        self.choose(before)
        return False

    def choose(self, options: Mapping[int, Option]) -> None:
        """Take these options and no others."""
        self.chosen.clear()
        self.chosen.update(options)

    def outcome(self) -> Outcome:
        """How tracing with what is chosen ends."""
        key = repr(sorted((index, option.spec, option.traced) for index, option in self.chosen.items()))
        if key not in self.outcomes:
            # The stand-ins for gradients let things through that the real ones refuse.
            error = self.attempt(standing_in=True) or self.attempt(standing_in=False)
            spaces = [*self.namespaces, getattr(self.fn, "__globals__", {})]
            self.outcomes[key] = Outcome() if error is None else Outcome.by(error, spaces)
        return self.outcomes[key]

    def mended(self) -> Outcome:
        """How tracing ends once sizes are made equal that errors hold against each other.

        A change is kept where the function comes further with it than without.
        """
        before, outcome = {**self.chosen}, self.outcome()
        tried = [before]
        while outcome.error:
            kept: tuple[Outcome, dict[int, Option]] | None = None
            moves = (move for move in self.known.moves(outcome.error) if move not in tried)
            for move in itertools.islice(moves, FEW):
                tried.append(move)
                self.choose(move)
                after = self.outcome()
                if not after.error or after.reached > outcome.reached:
                    kept = after, move
                    break
                if kept is None and after.reached == outcome.reached and after.error != outcome.error:
                    kept = after, move
            if kept is None or len(tried) > PATIENCE:
                self.choose(before)
                return outcome
            outcome, move = kept
            self.choose(move)
        return outcome

    def failure(self) -> NotFound:
        """The argument that could not be found, with the error of the trace that came furthest."""
        _, path, outcome = self.closest
        kind, _, text = outcome.error.partition(": ")
        return NotFound(
            path.partition("[")[0].partition(".")[0],
            path,
            "no shape tried for it traces" if path else "the function does not trace",
            f"{kind}: {' '.join(text.strip().splitlines()[:3])}"[:400],
        )

    # --- after the shapes ----------------------------------------------------------------

    def complete(self) -> None:
        """Bound floats away from where the function is undefined, if it comes out undefined."""
        for form in self.forms.values():
            self.fill(form)
        floats = {
            index: option
            for index, option in self.chosen.items()
            if option.spec.get("dtype") == "float32" and not option.spec.get("mask")
        }
        if not floats:
            return

        def run(values: dict[str, Any]) -> list[Any]:
            out = self.call(lambda spec, path: values[path])
            return [leaf for leaf in jax.tree.leaves(out) if isinstance(leaf, (jax.Array, float))]

        def values() -> dict[str, Any]:
            found: dict[str, Any] = {}

            def record(spec: Spec, path: str) -> Any:
                if spec["kind"] == "unknown":
                    spec = self.chosen[spec["index"]].spec
                found[path] = specs.materialize(spec, specs.SEED, self.namespace)
                return found[path]

            forms = {name: self.evaluated(form) for name, form in self.forms.items()}
            specs.build_arguments(forms, self.namespace, record)
            return found

        try:
            given = values()
            dynamic = {
                path: value for path, value in given.items() if isinstance(value, (np.ndarray, jax.Array))
            }
            static = {path: value for path, value in given.items() if path not in dynamic}
            jaxpr = jax.make_jaxpr(lambda v: run({**static, **v}))(dynamic)
            if not PARTIAL & {each.primitive.name for each in equations(jaxpr)}:
                return
            compiled = jax.jit(lambda v: run({**static, **v}))
            if finite(compiled(dynamic)):
                return
            data = [index for index in floats if self.leaves[index].hint != "parameter"]
            for indices in (data, list(floats)):
                for index in indices:
                    self.chosen[index] = Option({**floats[index].spec, "low": 0.1, "high": 0.9})
                made = values()
                if finite(compiled({path: made[path] for path in dynamic})):
                    return
            self.chosen.update(floats)
        except Exception:
            # It traced, so the shapes stand; what running it says is for the stages that run it.
            self.chosen.update(floats)


def abstract(spec: Spec) -> Any:
    """What to trace a found leaf as: a Python number stays one, and so is weakly typed."""
    return spec["value"] if spec["kind"] == "scalar" else specs.abstract(spec)


def key(spec: Spec) -> Any:
    """A key for tracing."""
    return specs.make_key(spec, np.random.default_rng(0))


def finite(leaves: Sequence[Any]) -> bool:
    """Whether no number among the leaves is NaN or infinite."""
    return all(
        bool(jnp.isfinite(leaf).all())
        for leaf in leaves
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    )
