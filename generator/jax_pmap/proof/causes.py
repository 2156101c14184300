"""What is likeliest wrong where an output differs, in plain words."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from jax_pmap.worker.protocol import SHIFTED, WAYS, Failure

#: What the worker found an output to be instead of the reference's value, after "it is".
INSTEAD = {
    "first": "what the first device has by itself: it is not synchronised over the devices",
    "last": "what the last device has by itself: it is not synchronised over the devices",
    "mean": "the mean of what each device has by itself, which is not the value of the whole batch: the "
    "shares have different weights (a masked mean), or something nonlinear comes before the mean",
    "sum": "the sum of what each device has by itself, which is not the value of the whole batch",
    "max": "the maximum of what each device has by itself, which is not the value of the whole batch",
    "min": "the minimum of what each device has by itself, which is not the value of the whole batch",
    "order": "the same numbers in another order: rows are interleaved, reversed or shifted",
    "zero": "all zeros",
    "dropped": "the value without the last rows: what the devices do not share evenly is left out",
    "zeros": "the value with rows of zeros added to share the batch evenly, and they count",
    "repeated": "the value with copies of the last row added to share the batch evenly, and they count",
    "kept": "what was given, unchanged: an update is left out that the reference makes",
    "let in": "no number where the reference's is one: a NaN or an infinity among the rows is let into it",
    "passed": "a number where the reference's is none: a NaN among the rows is passed over",
    "nan": "no number where the reference's is one: a share without any valid row divides by zero",
}
#: Characters of an expression that stands for an output without a name.
LONGEST = 40
#: What tells that a factor is not there on the inputs as they are given; see `Failure.on`.
ALTERED = "the given inputs, altered"
ON_THESE = (
    "and on the given inputs it is equal: a limit or a comparison goes by what a device has by itself, or a "
    "branch that is taken here has another collective"
)
#: The largest number that is taken for one of devices, steps or rows.
MOST_COUNTED = 64
#: Relative errors that float32 in the place of float64 explains.
NARROWED = (1e-11, 1e-6)
#: Relative errors in float64 that the square of a number a thousand times its spread explains.
CANCELLED = 1e-8


def likeliest_cause(found: Failure, precision: str, devices: int) -> str | None:
    """In plain words, what makes an output differ like this; after "it is" or as a sentence."""
    ratio, step = found.ratio, found.step
    if ratio is not None:
        scaled = _scaled(ratio, devices)
        if scaled and found.on.startswith(ALTERED):
            return f"it is {scaled.partition(',')[0]}, {ON_THESE}"
        if scaled:
            return f"it is {scaled}"
    cause = found.cause
    if cause in INSTEAD:
        return f"it is {INSTEAD[cause]}"
    if cause.startswith("missing "):
        means = {"pmean": "mean", "psum": "sum", "pmax": "maximum"}[cause.removeprefix("missing ")]
        return f"the {means} over the devices is the reference's value, so a {cause[8:]} is missing"
    if found.drawn:
        return (
            "other random numbers are drawn, or others go together; those of `fold_in(key, axis_index)` and "
            "of one key a device from `split(key, devices)` can be compared"
        )
    # One number is a multiple of any other: it says something where that is a whole one.
    telling = found.differing[1] > 1 or (ratio is not None and _is_whole(ratio))
    if ratio is not None and found.what == "value" and telling and abs(ratio - 1) > 1e-3:
        return f"it is {ratio:.4g} × the reference"
    if step and found.on not in WAYS:
        return (
            "the first call agrees and a later one does not, so some state is not carried or not synchronised"
        )
    wide = found.what == "value" and precision == "float64"
    if wide and SHIFTED in found.on and found.off <= CANCELLED:
        return (
            "digits are lost where numbers are large beside their spread, as in `mean(x**2) - mean(x)**2`, "
            "whose terms cancel; no collective is missing, and `mean((x - mean)**2)` keeps them"
        )
    if wide and NARROWED[0] < found.off <= NARROWED[1]:
        return "the error is of the size of float32's rounding: something may be narrowed to it"
    return None


def _is_whole(ratio: float) -> bool:
    """Whether a factor, or one over it, is a small whole number."""
    factors = (ratio, 1 / ratio) if ratio else ()
    return any(abs(each - round(each)) < 1e-4 and 1 <= round(each) <= MOST_COUNTED for each in factors)


def _scaled(ratio: float, devices: int) -> str | None:
    """The words for an output that is a constant of the device count times the reference's."""
    if abs(ratio - devices) < 1e-2 * devices:
        return f"{ratio:.2g} × the reference, summed where a mean is needed"
    if abs(ratio * devices - 1) < 1e-2:
        return f"1/{devices} of the reference, averaged where a sum is needed"
    if devices > 1 and abs(ratio - devices**2) < 1e-2 * devices**2:
        return f"{ratio:.3g} × the reference, {devices} × {devices}: summed twice"
    return None


def output_name(definition: ast.AST, path: str, mutated: Sequence[str] = ()) -> str:
    """The output at `path` of the result by the name the function returns it under: ``"grads['w']"``.

    Arguments that are changed in place come behind the result: ``(result, (model, optimizer))``.
    """
    if mutated:
        behind = re.match(r"\[1\]\[(\d+)\]", path)
        if behind:
            return mutated[int(behind[1])] + path[behind.end() :]
        path = path.removeprefix("[0]")
    returns = [node for node in _own(definition) if isinstance(node, ast.Return) and node.value]
    if not returns:
        return f"result{path}"
    value = returns[-1].value
    match = re.match(r"\[(\d+)\]", path)
    if isinstance(value, ast.Tuple | ast.List) and match and int(match[1]) < len(value.elts):
        value, path = value.elts[int(match[1])], path[match.end() :]
    elif path and not isinstance(value, ast.Name):
        return f"result{path}"
    text = ast.unparse(value) if value else ""
    if isinstance(value, ast.Name | ast.Attribute) or (not path and len(text) <= LONGEST):
        return text + path
    return f"result{match[0] if match else ''}{path}"


def _own(definition: ast.AST) -> list[ast.AST]:
    """Nodes of a function that are not in a function inside it."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(definition):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            found += [child, *_own(child)]
    return found
