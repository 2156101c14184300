"""Normal forms: in which other way the term of an operation is written."""

import math
from typing import Any

import jax

from .arithmetic import fold, kind_of
from .terms import COUNTING, NORMAL, Node, Normal, Shape, Term, Terms


def _add(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    if kind_of(dtype) in "b?":
        return None
    return t.add([(term, 1) for term in operands], shape, dtype)


def _sub(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    if kind_of(dtype) in "b?":
        return None
    return t.add([(operands[0], 1), (operands[1], -1)], shape, dtype)


def _neg(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    return None if kind_of(dtype) in "b?" else t.scale(-1, operands[0])


def _mul(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    return None if kind_of(dtype) in "b?" else t.multiply(operands, (), shape, dtype)


def _div(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    if kind_of(dtype) not in "fc":
        return None
    return t.multiply(operands[:1], operands[1:], shape, dtype)


def _square(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    return None if kind_of(dtype) in "b?" else t.multiply(operands * 2, (), shape, dtype)


def _integer_pow(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    y = dict(params)["y"]
    if kind_of(dtype) not in "fc" or not 1 <= abs(y) <= 8:
        return None
    return (
        t.multiply(operands * y, (), shape, dtype) if y > 0 else t.multiply((), operands * -y, shape, dtype)
    )


def _convert(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    node = t[operands[0]]
    if node.dtype == dtype:
        return operands[0]
    kinds = kind_of(node.dtype), kind_of(dtype)
    if node.op == "fill" and node.shape is not None:
        folded = fold("convert_element_type", params, [t.value(operands[0])], dtype)
        return None if folded is None else t.fill(folded, node.shape, dtype)
    plain = (("new_dtype", dtype),)
    if node.op == "convert_element_type" and t[node.operands[0]].dtype == "bool" and kinds[0] in "iuf":
        # Zeros and ones are held by all of them.
        return t.apply("convert_element_type", plain, node.operands, node.shape, dtype)
    if node.op == "reduce_sum" and node.dtype in COUNTING and dtype in ("float32", "float64"):
        counted = t[node.operands[0]]
        ahead = t[counted.operands[0]] if counted.op == "reshape" else counted
        if ahead.op == "convert_element_type" and t[ahead.operands[0]].dtype == "bool":
            # How many are true is a sum of ones, whole numbers or not.
            ones = t.apply("convert_element_type", plain, node.operands, counted.shape, dtype)
            return t.apply("reduce_sum", node.params, (ones,), node.shape, dtype)
    factor, base = t.factor(operands[0])
    if factor != 1 and kinds == ("f", "f"):
        return t.scale(factor, t.make("convert_element_type", plain, (base,), node.shape, dtype))
    return t.make("convert_element_type", plain, operands, node.shape, dtype)


def _reduce_precision(
    t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str
) -> "Term | None":
    """To as many bits as it has: so `jax.checkpoint` marks what a policy of its has kept."""
    given, own = dict(params), jax.numpy.finfo(dtype)
    kept = given["exponent_bits"] >= own.nexp and given["mantissa_bits"] >= own.nmant
    return operands[0] if kept else None


def _reshape(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    if shape is None:
        return None
    term = operands[0]
    while t[term].op == "reshape":
        term = t[term].operands[0]
    node = t[term]
    if node.shape == shape:
        return term
    if node.op == "fill":
        return t.fill(t.value(term), shape, dtype)
    factor, base = t.factor(term)
    if factor != 1 and kind_of(dtype) in "fc":
        return t.scale(factor, _reshape(t, params, (base,), shape, dtype))  # type: ignore[arg-type]
    return _spread_product(t, node, shape, dtype) or t.make("reshape", (), (term,), shape, dtype)


def _spread_product(t: Terms, node: Node, shape: Shape, dtype: str) -> "Term | None":
    """A scalar that is a product, spread factor by factor, so that each can be pulled out again."""
    if not shape or node.shape != () or node.op != "prod":
        return None
    over, under = node.operands[: node.params], node.operands[node.params :]
    every = [[t.spread(each, shape) for each in rows] for rows in (over, under)]
    return t.multiply(every[0], every[1], shape, dtype)


def _reshape_ordered(
    t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str
) -> "Term | None":
    order = dict(params).get("dimensions")
    if order is None:
        return _reshape(t, params, operands, shape, dtype)
    given = t[operands[0]].shape
    if given is None:
        return None
    sizes = tuple(given[axis] for axis in order)
    turned = t.apply("transpose", (("permutation", tuple(order)),), operands, sizes, dtype)
    return _reshape(t, (), (turned,), shape, dtype)


def _broadcast(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    node = t[operands[0]]
    if shape is not None and node.shape is not None and math.prod(node.shape) == math.prod(shape):
        return _reshape(t, params, operands[:1], shape, dtype)
    if shape and node.shape and math.prod(node.shape) == 1:
        # One number is spread as a scalar is, whatever its shape.
        scalar = _reshape(t, (), operands[:1], (), dtype)
        return None if scalar is None else t.spread(scalar, shape)
    return None if shape is None else _spread_product(t, node, shape, dtype)


def _iota(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    """Positions along one of several axes are those along one alone, spread: ``arange(n)[:, None]``."""
    if shape is None or len(shape) < 2:
        return None
    given = dict(params)
    axis = given["dimension"]
    sizes = (shape[axis],)
    alone = t.apply("iota", tuple({**given, "dimension": 0, "shape": sizes}.items()), (), sizes, dtype)
    single = tuple(size if each == axis else 1 for each, size in enumerate(shape))
    return t.spread(t.apply("reshape", (), (alone,), single, dtype), shape)


def _transpose(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    order = tuple(dict(params)["permutation"])
    node = t[operands[0]]
    if order == tuple(range(len(order))):
        return operands[0]
    moved = [axis for axis in order if node.shape is None or node.shape[axis] != 1]
    if moved == sorted(moved):
        # Axes of size 1 alone have other places.
        return _reshape(t, (), operands, shape, dtype)
    if node.op == "transpose":
        before = dict(node.params)["permutation"]
        joined = tuple(before[i] for i in order)
        return (
            _transpose(t, (("permutation", joined),), node.operands, shape, dtype)
            or t.apply("transpose", (("permutation", joined),), node.operands, shape, dtype)
            if joined != tuple(range(len(order)))
            else node.operands[0]
        )
    return None


def _reduce_sum(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    node = t[operands[0]]
    if node.op == "fill" and node.shape is not None and kind_of(dtype) in "fiuc":
        count = math.prod(node.shape[axis] for axis in dict(params)["axes"])
        return t.fill(t.value(operands[0]) * count, shape, dtype)
    if node.shape is not None and all(node.shape[axis] == 1 for axis in dict(params)["axes"]):
        return t.apply("reshape", (), operands, shape, dtype)
    return None


def _select(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    which = t.value(operands[0])
    if which is not None:
        return operands[1 + int(which)]  # type: ignore[arg-type]
    if len(set(operands[1:])) == 1:
        return operands[1]
    if t[operands[0]].dtype == "bool" and [t.value(term) for term in operands[1:]] == [0, 1]:
        # What a mask counts, however it is written.
        return t.apply("convert_element_type", (("new_dtype", dtype),), operands[:1], shape, dtype)
    if kind_of(dtype) in "fc":
        zero = [t.is_zero(term) for term in operands[1:]]
        if all(zero):
            # One of zeros is zero, as a number times zero is.
            inner = (t.factor(term)[1] for term in operands[1:])
            return t.scale(0, t.make("select_n", params, (operands[0], *inner), shape, dtype))
        rows = [(1, term) if none else t.factor(term) for none, term in zip(zero, operands[1:], strict=True)]
        factors = {factor for none, (factor, _) in zip(zero, rows, strict=True) if not none}
        if len(factors) == 1 and factors != {1}:
            made = t.make("select_n", params, (operands[0], *(term for _, term in rows)), shape, dtype)
            return t.scale(factors.pop(), made)
    return None


def _compare(below: str) -> Normal:
    def normal(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
        x, y = (operands if below in ("lt", "ge") else operands[::-1]) if len(operands) == 2 else (0, 0)
        if (
            shape is not None
            and len(operands) == 2
            and t.is_zero(y)
            and kind_of(t[x].dtype) in "iu"
            and t.not_negative(x)
        ):
            return t.fill(below in ("ge", "le"), shape, dtype)
        if shape is not None and len(operands) == 2 and t.is_zero(y) and t.positive(x):
            return t.fill(below in ("ge", "le"), shape, dtype)
        return None

    return normal


def _pad(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    of, config = t[operands[0]].shape, dict(params)["padding_config"]
    if shape is None or of is None:
        return None
    if kind_of(dtype) in "fc" and all(map(t.is_zero, operands)):
        return t.fill(0, shape, dtype)
    # With less than nothing around it is a slice: so jax differentiates what puts arrays together.
    cut = [axis for axis, row in enumerate(config) if any(row)]
    if len(cut) != 1 or max(config[cut[0]]) > 0:
        return None
    before, behind, _ = config[cut[0]]
    return _part(t, operands[0], cut[0], -before, of[cut[0]] + behind, shape, dtype)


def _slice(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    given, of = dict(params), t[operands[0]].shape
    if shape is None or of is None or any(step != 1 for step in given["strides"] or ()):
        return None
    rows = list(zip(given["start_indices"], given["limit_indices"], strict=True))
    cut = [axis for axis, row in enumerate(rows) if row != (0, of[axis])]
    if not cut:
        return operands[0]
    return _part(t, operands[0], cut[0], *rows[cut[0]], shape, dtype) if len(cut) == 1 else None


def _unstack(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    given = dict(params)
    if shape is None:
        return None
    at = int(given.get("result", 0))
    return _part(t, operands[0], given["axis"], at, at + 1, shape, dtype)


def _split(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    given = dict(params)
    if shape is None or t[operands[0]].shape is None:
        return None
    at = int(given.get("result", 0))
    start = sum(map(int, given["sizes"][:at]))
    return _part(t, operands[0], given["axis"], start, start + int(given["sizes"][at]), shape, dtype)


def _part(t: Terms, term: Term, axis: int, start: int, stop: int, shape: Shape, dtype: str) -> "Term | None":
    """What was put together, or padded, where no more than one piece of it is taken again."""
    node = t[term]
    if node.op == "stack" and dict(node.params)["axis"] == axis and stop - start == 1:
        return t.apply("reshape", (), (node.operands[start],), shape, dtype)
    if node.op == "concatenate" and dict(node.params)["dimension"] == axis:
        for operand in node.operands:
            size = t[operand].shape[axis]  # type: ignore[index]
            if (start, stop) == (0, size):
                return t.apply("reshape", (), (operand,), shape, dtype)
            start, stop = start - size, stop - size
        return None
    if node.op in ("sum", "scale"):
        members = [(each, by) for each, by in t.linear(term) if each != term]
        taken = [(_part(t, each, axis, start, stop, shape, dtype), by) for each, by in members]
        known = [(each, by) for each, by in taken if each is not None]
        return t.add(known, shape, dtype) if known and len(known) == len(taken) else None
    if node.op == "pad":
        inner, around = node.operands
        config = dict(node.params)["padding_config"]
        (before, _, between), size = config[axis], t[inner].shape[axis]  # type: ignore[index]
        if between or any(any(row) for at, row in enumerate(config) if at != axis):
            return None
        if (start, stop) == (before, before + size):
            return t.apply("reshape", (), (inner,), shape, dtype)
        if stop <= before or start >= before + size:
            return t.spread(around, shape)
    return None


def _concatenate(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    return operands[0] if len(operands) == 1 else _stack(t, params, operands, shape, dtype)


def _stack(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    values = {t.value(term) for term in operands}
    if shape is None or len(values) > 1 or None in values:
        return None
    return t.fill(values.pop(), shape, dtype)


def _scatter_add(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    if t.is_zero(operands[0]) and t.is_zero(operands[2]) and shape is not None:
        return t.fill(0, shape, dtype)
    if not t.is_zero(operands[0]) and shape is not None and kind_of(dtype) in "fciu":
        # To something the same is added as to nothing.
        added = t.apply("scatter_add", params, (t.fill(0, shape, dtype), *operands[1:]), shape, dtype)
        return t.add([(operands[0], 1), (added, 1)], shape, dtype)
    return None


def _scatter_sub(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    if shape is None or kind_of(dtype) not in "fciu":
        return None
    if t.is_zero(operands[0]):
        return None
    taken = t.apply("scatter_sub", params, (t.fill(0, shape, dtype), *operands[1:]), shape, dtype)
    return t.add([(operands[0], 1), (taken, 1)], shape, dtype)


def _abs(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    return operands[0] if kind_of(dtype) == "f" and t.positive(operands[0], or_zero=True) else None


def _sign(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
    is_one = kind_of(dtype) == "f" and shape is not None and t.positive(operands[0])
    return t.fill(1, shape, dtype) if is_one else None


def _extreme(none: float) -> Normal:
    """The largest or the smallest of two, one of which may be less, or more, than every number."""

    def normal(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
        rest = [term for term in operands if t.value(term) != none]
        return rest[0] if len(rest) == 1 and t[rest[0]].shape == shape else None

    return normal


def _inverse(other: str) -> Normal:
    def normal(t: Terms, params: Any, operands: tuple[Term, ...], shape: Any, dtype: str) -> "Term | None":
        node = t[operands[0]]
        if node.op != other or t[node.operands[0]].dtype != dtype:
            return None
        return node.operands[0] if t[node.operands[0]].shape == shape else None

    return normal


NORMAL.update(
    {
        "random_wrap": _inverse("random_unwrap"),
        "random_unwrap": _inverse("random_wrap"),
        "add": _add,
        "sub": _sub,
        "neg": _neg,
        "mul": _mul,
        "div": _div,
        "square": _square,
        "integer_pow": _integer_pow,
        "convert_element_type": _convert,
        "reduce_precision": _reduce_precision,
        "reshape": _reshape_ordered,
        "squeeze": _reshape,
        "expand_dims": _reshape,
        "broadcast_in_dim": _broadcast,
        "iota": _iota,
        "transpose": _transpose,
        "reduce_sum": _reduce_sum,
        "select_n": _select,
        "abs": _abs,
        "sign": _sign,
        "max": _extreme(-math.inf),
        "min": _extreme(math.inf),
        "lt": _compare("lt"),
        "ge": _compare("ge"),
        "gt": _compare("gt"),
        "le": _compare("le"),
        "pad": _pad,
        "slice": _slice,
        "unstack": _unstack,
        "split": _split,
        "concatenate": _concatenate,
        "stack": _stack,
        "scatter_add": _scatter_add,
        "scatter_sub": _scatter_sub,
    }
)
