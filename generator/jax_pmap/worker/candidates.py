"""What is decided of the leaves so far, and the ways to fill the next one."""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .specs import Spec

Shape = tuple[int, ...]

#: Divisible by 2, 3, 4 and 8 devices.
BATCH = 24
#: Sizes of other dims, in the order they are taken: small, distinct, and no number of devices
#: that the proof uses but 3 (kept second, so that the first dim after the batch never equals one).
FRESH = (5, 3, 7, 6, 9, 11, 10, 13, 14, 15, 17, 18, 19, 21, 22, 23)
#: Sizes that can be divided into several equal parts.
EVEN = (12, 36, 60, 84)
#: Bound of integers that may be class labels, tokens or indices: below every size that is taken.
CLASSES = 3
SHAPES = re.compile(r"[(\[][\d, ]+[)\]]")
NUMBERS = re.compile(r"\d+")
#: What an error says where a size is not a multiple of something.
DIVIDING = re.compile(r"divi|reshape|split|multiple")

VECTORS = ("bias", "scale", "shift", "mean", "var", "offset")
KERNELS = ("kernel", "conv", "filter")
SCALARS = {"lr": 0.1, "rate": 0.3, "eps": 1e-3, "momentum": 0.9, "decay": 0.9, "beta": 0.9, "norm": 0.5}


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


class Candidates:
    """The leaves of one reading, what they were filled with, and what may fill the others."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        #: Hints and shapes of the arrays that were given.
        self.given: list[tuple[str, Shape]] = []
        self.chosen: dict[int, Option] = {}

    @functools.cached_property
    def batch(self) -> int:
        """Size of the batch axis."""
        batches = [shape[0] for hint, shape in self.given if shape and hint != "parameter"]
        return batches[0] if batches else BATCH

    def moves(self, error: str) -> Iterator[dict[int, Option]]:
        """What is chosen with what an error complains of changed, the likeliest first.

        Sizes that it holds against each other are made equal: those of the leaf that was decided last, of all
        leaves, of any other one.
        """
        chosen, sizes = {**self.chosen}, self.recent()
        latest = list(chosen)[::-1]
        pairs = clashes(error)
        for one, other in pairs:
            ways = (one, other), (other, one)
            for leaves in (latest[:1], latest, *([leaf] for leaf in latest[1:])):
                for old, new in ways:
                    yield from self.resized(chosen, leaves, old, new)
            for old, new in ways:
                for leaf in latest if new == self.batch else ():
                    # A number for each example in place of several, or several in place of one.
                    shape = chosen[leaf].spec.get("shape")
                    if shape in ([new, old], [new]):
                        other_rank = [new] if len(shape) > 1 else [new, old]
                        yield {**chosen, leaf: with_shape(chosen[leaf], other_rank)}
        for leaf in latest if "integer" in error else ():
            spec = chosen[leaf].spec
            for shape in (spec["shape"], spec["shape"][:-1]) if spec.get("dtype") == "float32" else ():
                if shape:
                    yield {**chosen, leaf: array("int32", shape, high=CLASSES)}
        known = {self.batch, *sizes}
        for one, other in pairs:
            # What was computed of sizes, by joining arrays or by splitting one: theirs is changed by as much.
            for old in sizes if {one, other} - known else ():
                fitting = [old + other - one, old + one - other]
                fitting += [old * a // b for a, b in ((one, other), (other, one)) if b and old * a % b == 0]
                for leaf in latest:
                    for size in fitting:
                        yield from self.resized(chosen, [leaf], old, size)
        even = [size for size in EVEN if size not in known]
        for old in sizes if even and DIVIDING.search(error) else ():
            yield from self.resized(chosen, latest, old, even[0])

    def resized(
        self, chosen: Mapping[int, Option], leaves: Sequence[int], old: int, new: int
    ) -> Iterator[dict[int, Option]]:
        """What is chosen with another size in some leaves: in all dims of it, or in one of several."""
        if old == self.batch or new == self.batch or new < 2:
            return
        at = [
            (leaf, axis)
            for leaf in leaves
            for axis, size in enumerate(chosen[leaf].spec.get("shape", ()))
            if size == old and chosen[leaf].spec["kind"] == "array"
        ]
        ways = [at, *([each] for each in at[::-1])] if len(leaves) == 1 and len(at) > 1 else [at]
        for way in ways if at else ():
            made = {**chosen}
            for leaf, axis in way:
                shape = made[leaf].spec["shape"]
                made[leaf] = with_shape(made[leaf], [*shape[:axis], new, *shape[axis + 1 :]])
            yield made

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
        """Four sizes not in use yet: no array has more, and a deep network uses many."""
        used = {self.batch, *self.recent()}
        unused = (size for size in itertools.chain(FRESH, itertools.count(25)) if size not in used)
        return list(itertools.islice(unused, 4))

    def forms(self, leaf: Leaf) -> Iterator[Option]:
        """Ways to fill a leaf that are not those before with other sizes, likeliest first.

        What others of its name are comes ahead of these: the layers of a network are alike. Parameters for
        each example come last.
        """
        named = [self.chosen[of] for of in self.chosen if self.leaves[of].word == leaf.word]
        forms: dict[Form, Option] = {}
        for option in self.options(leaf):
            forms.setdefault(form_of(option, self.batch), option)
        first = [form for option in named[:1] if (form := form_of(option, self.batch)) in forms]
        last = [form for form in forms if leaf.hint == "parameter" and self.batch in form[1]]
        order = dict.fromkeys((*first, *(form for form in forms if form not in last), *last))
        return iter([forms[form] for form in order])

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
            data = self.data(hint)
            yield from itertools.islice(data, 4)
            yield from self.weights(leaf)
            yield from data
        yield from self.integers("index")
        yield from self.masks(("bool",))
        yield number(scalar_value(leaf.word), False)
        yield from self.whole_numbers(leaf)
        yield from (number(value, False) for value in (True, False))

    def data(self, hint: str) -> Iterator[Option]:
        """Floats that have a batch axis, mostly."""
        batch, prior = self.batch, [s for s in self.shapes("-parameter") if s]
        one, two, three, four = self.fresh()
        images = [(batch, 8, 8, 3), (batch, 8, 8), (batch, 8, 8, 1)]
        shapes: list[Shape] = []
        if hint == "image":
            shapes += [images[0], (batch, one), *images]  # What was made of them is called so too.
        elif hint == "sequence":
            shapes += [*(s for s in prior if len(s) > 2), (batch, one, two), (batch, one, two, three)]
        elif hint == "scanned":
            shapes += [(two, batch, one), (two, batch)]
        elif hint == "vector":
            shapes += [(batch,)]
        shapes += [*prior, (batch, one), *(s[:-1] for s in prior if len(s) > 1), (batch,), (batch, one, two)]
        shapes += [*images, (batch, one, two, three), (batch, one, two, three, four), ()]
        yield from (array("float32", shape) for shape in shapes)

    def weights(self, leaf: Leaf) -> Iterator[Option]:
        """Floats without a batch axis: a matrix or a vector."""
        one, two, three, _ = self.fresh()
        # What comes out is a size of its own more often than what goes in.
        matrix, vectors = (two, one), [(one,), ()]
        shapes: list[Shape] = [*vectors, matrix] if is_vector(leaf.word) else [matrix, *vectors]
        kernel = 3, 3, *matrix
        first = any(part in leaf.word.lower() for part in KERNELS)
        yield from (array("float32", s) for s in ([kernel, *shapes] if first else shapes))
        yield from (array("float32", s) for s in ((three, *matrix), kernel))

    def integers(self, hint: str) -> Iterator[Option]:
        """Class labels, tokens, indices."""
        batch, fresh = self.batch, self.fresh()
        prior = self.shapes("-parameter")
        shapes: list[Shape] = [(batch, fresh[0])] if hint == "tokens" else []
        shapes += [s[:-1] for s in prior if len(s) > 1 and s[0] == batch] + [(batch,)]
        shapes += [s for s in prior if s and hint == "index"] + [(batch, fresh[0])]
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
            numbers = [*self.recent(), 10, 4, 8, 2, 1, 0]
        else:
            numbers = [4, 8, 2, 3, *self.recent(), 1, 0]
        yield from (number(value, False) for value in numbers)


def clashes(error: str) -> list[tuple[int, int]]:
    """Sizes that an error may mean with what it says of shapes: the likeliest first.

    Of ``(24, 7), (24, 9)``, which are broadcast, these are 7 and 9; of ``(24, 5)`` and ``(3, 7)`` in a
    product, 5 and 3.
    """
    shapes = [tuple(map(int, NUMBERS.findall(text))) for text in SHAPES.findall(error[:1000])]
    pairs: list[tuple[int, int]] = []
    ordered = list(itertools.combinations(shapes, 2))
    for one, other in ordered:
        pairs += zip(one[::-1], other[::-1], strict=False)
    if "broadcast" not in error:
        pairs += (pair for one, other in ordered for pair in itertools.product(one[::-1], other))
        pairs += itertools.combinations(dict.fromkeys(map(int, NUMBERS.findall(error[:1000]))), 2)
    return list(dict.fromkeys((a, b) for a, b in pairs if a != b))


def array(dtype: str, shape: Shape, **more: Any) -> Option:
    """An array option."""
    return Option({"kind": "array", "dtype": dtype, "shape": list(shape), **more})


def with_shape(option: Option, shape: Sequence[int]) -> Option:
    """An option for an array of another shape."""
    return option._replace(spec={**option.spec, "shape": list(shape)})


#: A dtype, and dims, of which those are 0 that any size will do for; what is no array has its text.
Form = tuple[str, tuple[int | str, ...]]


def form_of(option: Option, batch: int) -> Form:
    """The dtype, and which dims are the batch, 8 or 1; of what is no array, all that it is."""
    spec = option.spec
    if spec["kind"] != "array":
        return "", (f"{spec} {option.traced}",)
    return spec["dtype"], tuple(size if size in (batch, 8, 1) else 0 for size in spec["shape"])


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
