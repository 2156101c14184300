"""What is decided of the leaves so far, and the ways to fill the next one."""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .specs import Spec

Shape = tuple[int, ...]

#: Divisible by 2, 3, 4 and 8 devices.
BATCH = 24
#: Sizes of other dims, in the order they are taken: small, distinct, and no number of devices
#: that the proof uses but 3 (kept second, so that the first dim after the batch never equals one).
FRESH = (5, 3, 7, 6, 9, 11, 10, 13, 14, 15, 17, 18, 19, 21, 22, 23)
#: Bound of integers that may be class labels, tokens or indices: below every size that is taken.
CLASSES = 3
SHAPES = re.compile(r"[(\[][\d, ]+[)\]]")
NUMBERS = re.compile(r"\d+")

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

    def __init__(self, sizes: Sequence[int]) -> None:
        #: Numbers in the source that may be dims.
        self.sizes = list(sizes)
        self.leaves: list[Leaf] = []
        #: Hints and shapes of the arrays that were given.
        self.given: list[tuple[str, Shape]] = []
        self.chosen: dict[int, Option] = {}
        #: Sizes that errors spoke of, the latest first.
        self.mined: list[int] = []

    @functools.cached_property
    def batch(self) -> int:
        """Size of the batch axis."""
        batches = [shape[0] for hint, shape in self.given if shape and hint != "parameter"]
        return batches[0] if batches else BATCH

    @functools.cached_property
    def last_matrix(self) -> int:
        """Number of the last leaf that is likely a matrix of parameters, or -1."""
        matrices = [leaf for leaf in self.leaves if leaf.hint == "parameter" and not is_vector(leaf.word)]
        return matrices[-1].number if matrices else -1

    def mine(self, error: BaseException) -> None:
        """Keep the sizes in the shapes that an error speaks of, such as that of a flattened image."""
        known = {self.batch, *self.recent()}
        for shape in SHAPES.findall(str(error)[:1000]):
            for size in map(int, NUMBERS.findall(shape)):
                if 2 < size <= 8192 and size not in known:
                    self.mined = [size, *(other for other in self.mined if other != size)][:2]

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


def array(dtype: str, shape: Shape, **more: Any) -> Option:
    """An array option."""
    return Option({"kind": "array", "dtype": dtype, "shape": list(shape), **more})


def form_of(option: Option) -> tuple[str, int]:
    """The dtype and the number of dims; none, and -1, of what is no array."""
    spec = option.spec
    return (spec["dtype"], len(spec["shape"])) if spec["kind"] == "array" else ("", -1)


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
