"""Shapes for arguments nobody described: found by tracing the function with small candidates.

Leaves are decided one at a time, in the order the function first uses them. Those not yet decided
are `Hole` objects that stop the trace as soon as anything looks at them; the leaf that was looked
at is decided next. A wrong shape so fails at its first use, before the later leaves multiply the
number of tries. (Lazy narrowing, as in lazy functional test generators.)
"""

import contextlib
import io
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import specs
from .specs import Spec

Shape = tuple[int, ...]

#: Divisible by 2, 3, 4 and 8 devices.
BATCH = 24
#: Sizes of other dims, in the order they are taken: small, distinct, and no number of devices
#: that the proof uses but 3 (kept second, so that the first dim after the batch never equals one).
FRESH = (5, 3, 7, 6, 9, 11, 10, 13, 14, 15, 17, 18, 19, 21, 22, 23)
#: Bound of integers that may be class labels, tokens or indices: below every size that is taken.
CLASSES = 3
SEED = 20260

#: Primitives that are undefined for part of the reals.
PARTIAL = frozenset(
    {"log", "log1p", "sqrt", "rsqrt", "pow", "acos", "asin", "acosh", "atanh", "lgamma", "digamma"}
)

SHAPES = re.compile(r"[(\[][\d, ]+[)\]]")
NUMBERS = re.compile(r"\d+")

VECTORS = ("bias", "scale", "shift", "mean", "var", "offset")
KERNELS = ("kernel", "conv", "filter")
SCALARS = {"lr": 0.1, "rate": 0.3, "eps": 1e-3, "momentum": 0.9, "decay": 0.9, "beta": 0.9, "norm": 0.5}


class Touched(BaseException):
    """Something looked at a hole. No `Exception`: the user's code must not catch it."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Hole:
    """Stands for a leaf that has no shape yet."""

    def __init__(self, index: int) -> None:
        object.__setattr__(self, "_index", index)

    def __getattr__(self, name: str) -> Any:
        """Any look at an attribute is a look at the leaf."""
        raise Touched(object.__getattribute__(self, "_index"))


def _touch(self: Hole, *_: Any, **__: Any) -> Any:
    raise Touched(object.__getattribute__(self, "_index"))


_LOOKS = """
    abs add and array bool call complex contains divmod eq float floordiv format ge getitem gt hash
    index int invert iter le len lshift lt matmul mod mul ne neg next or pos pow radd rand
    rdivmod repr reversed rfloordiv rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub
    rtruediv rxor setattr setitem str sub truediv xor
"""
for _name in _LOOKS.split():
    setattr(Hole, f"__{_name}__", _touch)


class Option(NamedTuple):
    """One way to fill a leaf."""

    spec: Spec
    #: Whether the function sees a tracer; else the Python value itself.
    traced: bool = True


class Leaf(NamedTuple):
    """A leaf to be found."""

    number: int
    #: Python source: ``"batch['x']"``.
    path: str
    #: Last name in the path, which hints at what the leaf is.
    word: str
    hint: str
    #: Literals the body compares it with, for strings.
    values: tuple[str, ...]
    #: Number of dims, where the body says it.
    rank: int | None = None
    #: The `python` spec that makes it, for ``"expression"``.
    form: Spec | None = None


class Exhausted(Exception):
    """The number of tries or the time is spent."""


def find_inputs(
    fn: Callable[..., Any],
    parameters: Sequence[Mapping[str, Any]],
    readings: Sequence[Mapping[str, Spec]] = (),
    sizes: Sequence[int] = (),
    namespaces: Sequence[dict[str, Any]] = (),
    limit: int = 600,
    seconds: float = 10.0,
    **_: Any,
) -> dict[str, Any]:
    """Specs under which `fn` traces.

    Args:
        fn: the function, with the axes of its own collectives bound.
        parameters: ``{"name", "how", "hint"}`` in order; `how` is ``"positional"``, ``"keyword"``,
            ``"var_positional"`` or ``"var_keyword"``.
        readings: possible forms of the arguments, likeliest first. A form is a spec that may have
            ``unknown`` leaves, ``like`` another argument, or be ``missing``.
        sizes: numbers in the source that may be dims.
        namespaces: module namespaces the function and its helpers live in; the last one wins.
        limit: most traces to try.
        seconds: most time to take.

    Returns:
        ``{"specs": {name: spec}, "assumed": [name, …], "tried": n}``, or ``{"failed": {"argument",
        "path", "reason", "error"}, "tried": n}``.
    """
    failed: dict[str, Any] | None = None
    tried = 0
    deadline = time.monotonic() + seconds
    for position, forms in enumerate(readings):
        # A reading that never traces must leave something for the ones after it.
        share = limit - tried if position == len(readings) - 1 else (limit - tried) * 2 // 3
        search = Search(fn, parameters, forms, sizes, namespaces, share, deadline)
        if search.missing is not None:
            failed = failed or search.missing
            continue
        with quiet():
            solved = search.run()
        tried += search.tried
        if solved:
            return {"specs": search.result(), "assumed": search.assumed(), "tried": tried}
        failed = failed or search.failure()
    return {
        "failed": failed or {"argument": "", "path": "", "reason": "no reading", "error": ""},
        "tried": tried,
    }


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
        sizes: Sequence[int],
        namespaces: Sequence[dict[str, Any]],
        limit: int,
        deadline: float,
    ) -> None:
        self.fn, self.parameters, self.sizes, self.namespaces = (
            unwrapped(fn),
            parameters,
            list(sizes),
            namespaces,
        )
        self.limit, self.deadline, self.tried = limit, deadline, 0
        self.namespace: dict[str, Any] = {}
        for space in namespaces:
            self.namespace.update(space)
        self.leaves: list[Leaf] = []
        self.given: list[tuple[str, Shape]] = []
        self.missing: dict[str, Any] | None = None
        self.forms: dict[str, Spec] = {}
        self.chosen: dict[int, Option] = {}
        self.closest: tuple[int, str, BaseException] = (-1, "", RuntimeError("nothing was tried"))
        self.assumed_names: list[str] = []
        #: Sizes that errors spoke of, the latest first.
        self.mined: list[int] = []
        self.last_error = ""
        hints = {parameter["name"]: parameter.get("hint", "") for parameter in parameters}
        # Arguments that are like another one come after it.
        for name in sorted(forms, key=lambda name: forms[name]["kind"] == "like"):
            before = len(self.leaves)
            form = forms[name]
            self.forms[name] = self.expand(form, name, hints.get(name, ""))
            if len(self.leaves) > before or form["kind"] in ("like", "python") or form.get("assumed"):
                self.assumed_names.append(name)
        batches = [shape[0] for hint, shape in self.given if shape and hint != "parameter"]
        self.batch = batches[0] if batches else BATCH
        matrices = [
            leaf.number for leaf in self.leaves if leaf.hint == "parameter" and not is_vector(leaf.word)
        ]
        self.last_matrix = matrices[-1] if matrices else -1

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
            self.missing = {
                "argument": path.partition("[")[0].partition(".")[0],
                "path": path,
                "reason": form["reason"],
                "error": "",
            }
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
            self.given.append((hint, tuple(form["shape"])))
        return form

    def fill(self, form: Spec) -> Spec:
        """The form with what was chosen; leaves nobody looked at take their first option."""
        kind = form["kind"]
        if kind == "unknown":
            if form["index"] not in self.chosen:
                self.chosen[form["index"]] = next(self.options(self.leaves[form["index"]]))
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
        if self.tried >= self.limit or time.monotonic() > self.deadline:
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
        """Whether some choice traces; it is then in `chosen`."""
        try:
            if not self.solve():
                return False
            self.complete()
        except Exhausted:
            return False
        return True

    def solve(self) -> bool:
        """Decide the leaf that is looked at next, and so on until the function traces."""
        outcome = self.attempt(standing_in=True)
        if outcome is None:
            # The stand-ins for gradients let things through that the real ones refuse.
            outcome = self.attempt(standing_in=False)
            if outcome is None:
                return True
        if not isinstance(outcome, Touched):
            # Code that inspects types (flax does) may refuse a hole without looking into it.
            waiting = (
                leaf.number
                for leaf in self.leaves
                if leaf.form is not None and leaf.number not in self.chosen
            )
            unmade = next(waiting, None)
            if unmade is not None:
                outcome = Touched(unmade)
        if not isinstance(outcome, Touched):
            self.mine(outcome)
            self.last_error = str(outcome)
            if len(self.chosen) > self.closest[0]:
                last = list(self.chosen)[-1] if self.chosen else -1
                path = self.leaves[last].path if last >= 0 else ""
                self.closest = (len(self.chosen), path, outcome)
            return False
        index = outcome.index
        seen: list[Option] = []
        errors: list[str] = []
        hopeless: set[int] = set()
        while True:
            # Listed anew each time, because what failed since may have shown new sizes.
            options = (o for o in self.options(self.leaves[index]) if rank_of(o) not in hopeless)
            option = next((o for o in options if o not in seen), None)
            if option is None:
                return False
            seen.append(option)
            self.chosen[index] = option
            if self.solve():
                return True
            del self.chosen[index]
            errors.append(self.last_error)
            # The same complaint whatever this leaf is: another leaf is to blame.
            patience = 2 if rank_of(option) < 0 else 12
            if len(errors) >= patience and len(set(errors[-patience:])) == 1:
                hopeless.update(rank_of(o) for o in seen[-patience:])

    def mine(self, error: BaseException) -> None:
        """Keep the sizes in the shapes that an error speaks of, such as that of a flattened image."""
        known = {self.batch, *self.recent()}
        for shape in SHAPES.findall(str(error)[:1000]):
            for size in map(int, NUMBERS.findall(shape)):
                if 2 < size <= 8192 and size not in known:
                    self.mined = [size, *(other for other in self.mined if other != size)][:2]

    def failure(self) -> dict[str, Any]:
        """The argument that could not be found, with the error of the trace that came furthest."""
        _, path, error = self.closest
        text = str(error).strip().splitlines()
        return {
            "argument": path.partition("[")[0].partition(".")[0],
            "path": path,
            "reason": "no shape tried for it traces" if path else "the function does not trace",
            "error": f"{type(error).__name__}: {' '.join(text[:3])}"[:400],
        }

    # --- options -------------------------------------------------------------------------

    def shapes(self, *hints: str) -> list[Shape]:
        """Shapes decided or given so far of leaves that are (or are not, with a ``-``) of a kind."""
        found = [(hint, shape) for hint, shape in self.given]
        for index, option in self.chosen.items():
            if option.spec["kind"] == "array":
                hint, shape = self.leaves[index].hint, tuple(option.spec["shape"])
                # Of what a scan goes over, one step is what other leaves have to fit.
                found.append((hint, shape[1:] if hint == "scanned" else shape))
        return [
            shape for hint, shape in found if hint in hints or (hint != "parameter" and "-parameter" in hints)
        ]

    def recent(self) -> list[int]:
        """Sizes in use other than the batch, the latest first."""
        found: list[int] = []
        for shape in self.shapes("-parameter", "parameter"):
            for size in shape:
                if size != self.batch:
                    found = [other for other in found if other != size] + [size]
        return found[::-1]

    def fresh(self) -> list[int]:
        """Sizes not in use yet."""
        used = self.recent()
        return [size for size in FRESH if size not in used and size != self.batch]

    def options(self, leaf: Leaf) -> Iterator[Option]:
        """Ways to fill a leaf, likeliest first; they may repeat."""
        if leaf.rank is not None:
            yield from (o for o in self.all_options(leaf) if len(o.spec.get("shape", ())) == leaf.rank)
        yield from self.all_options(leaf)

    def all_options(self, leaf: Leaf) -> Iterator[Option]:
        """Ways to fill a leaf of any number of dims."""
        hint = leaf.hint
        if leaf.form is not None:
            yield Option(leaf.form, False)
            return
        if hint == "key":
            for typed in (True, False):
                yield Option({"kind": "key", "typed": typed, "shape": []})
            return
        if hint == "string":
            yield from (Option({"kind": "literal", "value": value}, False) for value in leaf.values)
            return
        if hint in ("int", "float", "bool"):
            yield from self.annotated_numbers(leaf)
            return
        if hint == "flag":
            yield from (number(value, False) for value in (True, False))
        elif hint == "callable":
            yield from (Option({"kind": "python", "expr": text}, False) for text in ("jnp.tanh", "jnp.sum"))
        elif hint == "size":
            yield from self.whole_numbers(leaf)
        elif hint == "step":
            yield from (number(3, traced) for traced in (True, False))
        elif hint == "scalar":
            yield from (number(scalar_value(leaf.word), traced) for traced in (True, False))
            yield from (number(2, traced) for traced in (True, False))
        elif hint == "seed":
            yield number(0, True)
        elif hint in ("index", "labels", "tokens"):
            yield from self.integers(hint)
        elif hint == "mask":
            yield from self.masks()
        elif hint == "parameter":
            yield from self.weights(leaf)
        if hint not in ("index", "tokens"):
            yield from self.data(hint)
            yield from self.weights(leaf)
        yield from self.integers("index")
        yield from self.masks(("bool",))
        yield number(scalar_value(leaf.word), False)
        yield from self.whole_numbers(leaf)
        yield from (number(value, False) for value in (True, False))

    def data(self, hint: str) -> Iterator[Option]:
        """Floats that have a batch axis, mostly."""
        batch, fresh, recent = self.batch, self.fresh(), self.recent()
        prior = self.shapes("-parameter")
        shapes: list[Shape] = []
        if hint == "image":
            shapes += [(batch, 8, 8, 3), (batch, 8, 8), (batch, 8, 8, 1)]
        elif hint == "sequence":
            shapes += [s for s in prior if len(s) > 2] + [
                (batch, fresh[0], fresh[1]),
                (batch, fresh[0], fresh[1], fresh[2]),
            ]
        elif hint == "scanned":
            shapes += [(fresh[1], batch, fresh[0]), (fresh[1], batch)]
        elif hint == "vector":
            shapes += [(batch,)]
        shapes += [s for s in prior if s]
        if not prior:
            # What the first layer takes, where the layers are known first.
            matrices = [s for s in self.shapes("parameter") if len(s) == 2]
            shapes += [(batch, matrices[0][0] if matrices else (recent or fresh)[0])]
        shapes += [s[:-1] for s in prior if len(s) > 1]
        shapes += [(*s[:-1], size) for s in prior if len(s) > 1 for size in recent]
        shapes += [(batch,), *((batch, size) for size in recent), *((batch, size) for size in self.sizes)]
        shapes += [(batch, fresh[0])]
        shapes += [(batch, fresh[0], size) for size in (*recent[:2], fresh[1])]
        shapes += [(batch, *s[-2:]) for s in prior if len(s) > 2]
        shapes += [(batch, 8, 8, 3), (batch, 8, 8, 1), (batch, 8, 8)]
        if recent:
            shapes += [(batch, 8, 8, size) for size in recent[:2]]
        for size in (*self.mined, *self.sizes):
            shapes += [
                (batch, size),
                (batch, fresh[0], size),
                (batch, size, size),
                (batch, size, size, 1),
                (batch, size, size, 3),
            ]
            shapes += [(batch, size * size)]
        shapes += [(batch, fresh[0], fresh[1], fresh[2]), (batch, fresh[0], fresh[1], fresh[2], fresh[3]), ()]
        yield from (array("float32", shape) for shape in shapes)

    def weights(self, leaf: Leaf) -> Iterator[Option]:
        """Floats without a batch axis: a matrix that takes the latest size, or a vector of it."""
        fresh, recent = self.fresh(), self.recent()
        images = [s for s in self.shapes("-parameter") if len(s) == 4]
        mined = [size for size in self.mined if size not in recent]
        # Sizes in the source (`one_hot(y, 10)`) are what a last layer must come out at.
        sizes = [*mined, *self.sizes]
        new = [*sizes, fresh[0]] if leaf.number == self.last_matrix else [fresh[0], *sizes]
        kernels = [(3, 3, size, out) for size in recent[:3] for out in new]
        matrices = [(size, out) for size in mined for out in [fresh[0], *recent, *self.sizes]]
        matrices += [(size, out) for size in recent for out in new]
        matrices += [(out, size) for size in recent for out in new] + [(fresh[0], fresh[1])]
        matrices += [(size, other) for size in recent for other in recent]
        matrices += [(size, out) for size in self.sizes for out in [*new, *recent]]
        vectors = [(size,) for size in [*recent, *mined, fresh[0], *self.sizes]]
        deeper = [(fresh[0], *pair) for pair in matrices[:6]] + [(*pair, fresh[1]) for pair in matrices[:6]]
        low = is_vector(leaf.word)
        shapes: list[Shape] = [*vectors, (), *matrices] if low else [*matrices, *vectors, ()]
        if images and any(part in leaf.word.lower() for part in KERNELS):
            shapes = [*kernels, *shapes]
        shapes += [*deeper, *kernels]
        yield from (array("float32", shape) for shape in shapes)

    def integers(self, hint: str) -> Iterator[Option]:
        """Class labels, tokens, indices."""
        batch, fresh = self.batch, self.fresh()
        prior = self.shapes("-parameter")
        shapes: list[Shape] = [(batch, fresh[0])] if hint == "tokens" else []
        shapes += [s[:-1] for s in prior if len(s) > 1 and s[0] == batch] + [(batch,)]
        if hint == "index":
            shapes += [s for s in prior if s] + [(batch, fresh[0])]
        shapes += [(batch, size) for size in self.recent()]
        yield from (array("int32", shape, high=CLASSES) for shape in shapes)
        if hint == "index":
            yield array("int32", (), high=CLASSES)

    def masks(self, dtypes: Sequence[str] = ("float32", "bool")) -> Iterator[Option]:
        """Zeros and ones."""
        prior = self.shapes("-parameter")
        shapes = [
            (self.batch,),
            *(s[:-1] for s in prior if len(s) > 1),
            *(s for s in prior if s),
            (self.batch, self.fresh()[0]),
        ]
        for dtype in dtypes:
            extra = {"mask": True} if dtype == "float32" else {}
            yield from (array(dtype, shape, **extra) for shape in shapes)

    def annotated_numbers(self, leaf: Leaf) -> Iterator[Option]:
        """Python numbers of the type the annotation names."""
        if leaf.hint == "float":
            yield from (number(scalar_value(leaf.word), traced) for traced in (True, False))
        elif leaf.hint == "bool":
            yield from (number(value, False) for value in (True, False))
        else:
            yield number(3, True)
            yield from self.whole_numbers(leaf)

    def whole_numbers(self, leaf: Leaf) -> Iterator[Option]:
        """Python ints: counts, sizes, axes."""
        if "axis" in leaf.word or leaf.word == "dim":
            numbers = [-1, 1, 0, 2]
        elif "class" in leaf.word or "size" in leaf.word or "dim" in leaf.word:
            numbers = [*self.recent(), *self.sizes, 10, 4, 8, 2, 1, 0]
        else:
            numbers = [4, 8, 2, 3, *self.recent(), 1, 0]
        yield from (number(value, False) for value in numbers)

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
                found[path] = specs.materialize(spec, SEED, self.namespace)
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
            if not PARTIAL & set(primitives(jaxpr.jaxpr)):
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


def array(dtype: str, shape: Shape, **more: Any) -> Option:
    """An array option."""
    return Option({"kind": "array", "dtype": dtype, "shape": list(shape), **more})


def rank_of(option: Option) -> int:
    """Number of dims; -1 of what is no array."""
    return len(option.spec["shape"]) if option.spec["kind"] == "array" else -1


def number(value: Any, traced: bool) -> Option:
    """A Python number option."""
    return Option({"kind": "scalar", "type": type(value).__name__, "value": value}, traced)


def is_vector(word: str) -> bool:
    """Whether a parameter of this name has one dim more likely than two."""
    name = word.lower().rstrip("0123456789_")
    return name in ("b", "beta", "gamma", "c") or any(part in name for part in VECTORS)


def scalar_value(word: str) -> float:
    """A likely value of a named scalar."""
    return next((value for part, value in SCALARS.items() if part in word.lower()), 0.7)


def finite(leaves: Sequence[Any]) -> bool:
    """Whether no number among the leaves is NaN or infinite."""
    return all(
        bool(jnp.isfinite(leaf).all())
        for leaf in leaves
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    )


def primitives(jaxpr: Any) -> Iterator[str]:
    """Names of all primitives in a jaxpr and the ones inside it."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


# --- stand-ins -----------------------------------------------------------------------------


def unwrapped(fn: Any) -> Any:
    """The Python function inside `jax.jit(fn)`, so that a hole can pass into it."""
    while type(fn).__name__ == "PjitFunction" and hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    return fn


def stand_in_jit(fun: Any = None, **_: Any) -> Any:
    """`jax.jit` that does not compile, in both its forms."""
    return unwrapped if fun is None else unwrapped(fun)


def stand_in_value_and_grad(fun: Any, argnums: Any = 0, has_aux: bool = False, **_: Any) -> Any:
    """`jax.value_and_grad` whose gradient is the argument itself: same structure, shapes, dtypes."""
    inner = unwrapped(fun)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        out = inner(*args, **kwargs)
        loss = out[0] if has_aux else out
        if not isinstance(loss, Hole) and jnp.shape(loss) != ():
            raise TypeError(
                f"Gradient only defined for scalar-output functions. Output had shape: {jnp.shape(loss)}."
            )
        return out, args[argnums] if isinstance(argnums, int) else tuple(args[i] for i in argnums)

    return wrapped


def stand_in_grad(fun: Any, argnums: Any = 0, has_aux: bool = False, **_: Any) -> Any:
    """`jax.grad` in the manner of `stand_in_value_and_grad`."""
    both = stand_in_value_and_grad(fun, argnums, has_aux)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        out, gradient = both(*args, **kwargs)
        return (gradient, out[1]) if has_aux else gradient

    return wrapped


@contextlib.contextmanager
def stand_ins(namespaces: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Let holes pass through gradients and jit, which would look at every leaf at once."""
    instead = {
        id(jax.grad): stand_in_grad,
        id(jax.value_and_grad): stand_in_value_and_grad,
        id(jax.jit): stand_in_jit,
    }
    before: list[tuple[dict[str, Any], str, Any]] = []
    for space in [vars(jax), *namespaces]:
        for name, value in list(space.items()):
            new = instead.get(id(value))
            if new is None and space is not vars(jax):
                inner = unwrapped(value)
                new = inner if inner is not value else None
            if new is not None:
                before.append((space, name, value))
                space[name] = new
    try:
        yield
    finally:
        for space, name, value in before:
            space[name] = value
