"""What annotations say of arguments: jaxtyping shapes, array types, Python types, containers of those."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from jax_pmap.inputs.forms import Classes
from jax_pmap.inputs.spec import Spec, array
from jax_pmap.syntax.resolve import Resolver

#: Size of the batch: divisible by 2, 3, 4 and 8 devices.
BATCH = 24
#: Sizes of other named dims, in the order they are met: small, distinct.
FRESH = (5, 3, 7, 6, 9, 11, 10, 13, 14, 15, 17, 18, 19, 21, 22, 23)
BATCH_NAMES = frozenset({"b", "batch", "n", "bs", "batch_size", "n_batch", "bsz", "num_examples", "examples"})
#: Integers of an annotation may be labels or tokens: below every size above.
_CLASSES = 3

_JAXTYPING = {
    "Float": "float32",
    "Inexact": "float32",
    "Num": "float32",
    "Real": "float32",
    "Shaped": "float32",
    "Float16": "float16",
    "Float32": "float32",
    "Float64": "float64",
    "BFloat16": "bfloat16",
    "Int": "int32",
    "Integer": "int32",
    "Int8": "int8",
    "Int16": "int16",
    "Int32": "int32",
    "Int64": "int64",
    "UInt": "uint32",
    "UInt8": "uint8",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "Bool": "bool",
    "Complex": "complex64",
    "Complex64": "complex64",
    "Complex128": "complex128",
}
_KEYS = frozenset({"jaxtyping.PRNGKeyArray", "jax.random.PRNGKey", "jax.random.KeyArray", "chex.PRNGKey"})
_ARRAYS = frozenset(
    {
        "jax.Array",
        "jax.numpy.ndarray",
        "numpy.ndarray",
        "jax.typing.ArrayLike",
        "jaxtyping.Array",
        "jaxtyping.ArrayLike",
        "chex.Array",
        "chex.ArrayDevice",
        "numpy.typing.ArrayLike",
        "numpy.typing.NDArray",
    }
)
_SIMPLE = {
    "builtins.int": "int",
    "builtins.float": "float",
    "builtins.bool": "bool",
    "builtins.str": "string",
}
_CONTAINERS = {
    "builtins.tuple": "tuple",
    "typing.Tuple": "tuple",
    "builtins.list": "list",
    "typing.List": "list",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


@dataclass(slots=True)
class Dims:
    """Sizes of named dims, shared by all the annotations of a function."""

    sizes: dict[str, int] = field(default_factory=dict)
    anonymous: int = 0

    def size(self, name: str) -> int:
        """Size of a named dim; ``"_"`` is another one each time."""
        if name == "_":
            self.anonymous += 1
            name = f"_ {self.anonymous}"
        if name not in self.sizes:
            used = set(self.sizes.values())
            self.sizes[name] = next(size for size in (*FRESH, *range(25, 10_000)) if size not in used)
        return self.sizes[name]


def read_dims(
    annotations: Iterable[tuple[str, ast.expr]], resolver: Resolver, replicated: Iterable[str]
) -> Dims:
    """Give the batch dim its size: the one named so, else the first dim of the first data argument."""
    names: list[str] = []
    first: list[str] = []
    for argument, annotation in annotations:
        for shape in _shape_strings(annotation, resolver):
            dims = [name for token in shape.split() for name in _NAME.findall(_plain(token))]
            names += dims
            if dims and not first and argument not in replicated:
                first = dims[:1]
    batch = next((name for name in names if name.lower() in BATCH_NAMES), first[0] if first else None)
    return Dims({batch: BATCH} if batch else {})


def _shape_strings(annotation: ast.expr, resolver: Resolver) -> Iterator[str]:
    for node in ast.walk(_unquoted(annotation, resolver)):
        if isinstance(node, ast.Subscript) and _jaxtyping(node, resolver):
            shape = _shape_text(node)
            if shape is not None:
                yield shape


def _unquoted(annotation: ast.expr, resolver: Resolver) -> ast.expr:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return resolver.expression(annotation.value, resolver.tree)
        except SyntaxError:
            return annotation
    return annotation


def _jaxtyping(node: ast.Subscript, resolver: Resolver) -> str:
    module, _, name = (resolver.qualname(node.value) or "").rpartition(".")
    return name if module == "jaxtyping" and (name in _JAXTYPING or name == "Key") else ""


def _shape_text(node: ast.Subscript) -> str | None:
    inner = node.slice
    if isinstance(inner, ast.Tuple) and len(inner.elts) == 2:
        shape = inner.elts[1]
        if isinstance(shape, ast.Constant) and isinstance(shape.value, str):
            return shape.value
    return None


def _plain(token: str) -> str:
    """A dim without jaxtyping's modifiers and without the ``name=`` before a size."""
    return "" if token == "..." else token.lstrip("*#?").rpartition("=")[2]


def shape_of(text: str, dims: Dims) -> list[int]:
    """Sizes for a jaxtyping shape string. ``*name`` becomes one dim and ``...`` none."""
    shape = []
    for token in text.split():
        plain = _plain(token)
        if not plain:
            continue
        if plain.isdigit():
            shape.append(int(plain))
        elif plain.isidentifier():
            shape.append(dims.size("_" if plain == "_" else plain.lstrip("_")))
        else:
            shape.append(_arithmetic(plain, dims))
    return shape


def _arithmetic(text: str, dims: Dims) -> int:
    """A symbolic size such as ``dim-1`` or ``2*dim``; anything stranger is a dim of its own."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return dims.size(node.id)
        if isinstance(node, ast.BinOp):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.FloorDiv) and right:
                return left // right
        raise ValueError(text)

    try:
        return max(value(ast.parse(text, mode="eval").body), 1)
    except (SyntaxError, ValueError):
        return dims.size(text)


def form_of_annotation(
    annotation: ast.expr, resolver: Resolver, dims: Dims, classes: Classes, word: str
) -> Spec | None:
    """The form an annotation gives: a whole spec, one with unknown leaves, or None when it says nothing."""
    annotation = _unquoted(annotation, resolver)
    name = resolver.qualname(annotation) or (annotation.id if isinstance(annotation, ast.Name) else "")
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        options = [annotation.left, annotation.right]
        real = [item for item in options if not (isinstance(item, ast.Constant) and item.value is None)]
        forms = [form_of_annotation(item, resolver, dims, classes, word) for item in real]
        return next((form for form in forms if form is not None), None)
    if name in _KEYS:
        return {"kind": "key", "typed": True, "shape": []}
    if name in _ARRAYS:
        return {"kind": "unknown", "word": word, "hint": "array"}
    if name in _SIMPLE:
        return {"kind": "unknown", "word": word, "hint": _SIMPLE[name]}
    if name in classes.fields:
        return {"kind": "class", "type": name}
    if not isinstance(annotation, ast.Subscript):
        return None
    outer = resolver.qualname(annotation.value) or ""
    if jaxtyping := _jaxtyping(annotation, resolver):
        text = _shape_text(annotation)
        if text is None or "..." in text.split():
            return None
        shape = shape_of(text, dims)
        if jaxtyping == "Key":
            return {"kind": "key", "typed": True, "shape": shape}
        dtype = _JAXTYPING[jaxtyping]
        return array(dtype, shape, **({"high": _CLASSES} if dtype.startswith("int") else {}))
    if outer in ("typing.Optional", "typing.Annotated"):
        inner = annotation.slice
        inner = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
        return form_of_annotation(inner, resolver, dims, classes, word)
    if outer in _CONTAINERS:
        return _sequence(annotation, _CONTAINERS[outer], resolver, dims, classes, word)
    return None


def _sequence(
    annotation: ast.Subscript, kind: str, resolver: Resolver, dims: Dims, classes: Classes, word: str
) -> Spec | None:
    inner = annotation.slice
    items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if kind == "list" or (items and isinstance(items[-1], ast.Constant) and items[-1].value is ...):
        items = [items[0], items[0]]
    forms = [form_of_annotation(item, resolver, dims, classes, word) for item in items]
    # Types alone do not say how many layers a list has; the body does, if a leaf is left open.
    if any(form is None or not whole(form) for form in forms):
        return None
    return {"kind": kind, "items": forms}


def whole(form: Spec) -> bool:
    """Whether a form is a spec: nothing in it is left to find."""
    if form["kind"] in ("unknown", "class", "like", "missing"):
        return False
    items = form.get("items", [])
    return all(whole(item) for item in (row[1] if isinstance(row, list) else row for row in items))
