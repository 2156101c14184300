"""Reductions that no collective mends whole, written as sums, means and maxima that one does."""

from __future__ import annotations

import ast

#: Reduction by name to its form: ``x`` the operand, ``a`` the axis with a comma in front, ``k`` the same for
#: what must keep its dimensions, ``n`` the module of the numpy functions.
FORMS = {
    "var": "{n}.mean(({x} - {n}.mean({x}{k})) ** 2{a})",
    "std": "{n}.sqrt({n}.mean(({x} - {n}.mean({x}{k})) ** 2{a}))",
    "norm": "{n}.sqrt({n}.sum({x} ** 2{a}))",
    "logsumexp": "{n}.log({n}.sum({n}.exp({x} - {n}.max({x}{k})){a})) + {n}.max({x}{a})",
}
#: Arguments that leave the meaning as it is written here.
PLAIN = frozenset({"axis", "keepdims"})


def decomposed(text: str) -> str | None:
    """The call `text` of a variance, deviation, norm or logsumexp as it can be made whole, or None.

    ``"jnp.mean((x - jnp.mean(x)) ** 2)"`` of ``"jnp.var(x)"``.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    form, owner = FORMS.get(call.func.attr), call.func.value
    if form is None or {keyword.arg for keyword in call.keywords} - PLAIN:
        return None
    # `x.std(0)` is a method; `jnp.linalg.norm(x)` and `jax.nn.logsumexp(x)` are functions of modules.
    module = ast.unparse(owner).split(".")[0]
    is_function = module in ("jnp", "jax", "np", "numpy", "jsp", "nn")
    arguments = list(call.args) if is_function else [owner, *call.args]
    if not 1 <= len(arguments) <= 2 or (call.func.attr == "norm" and len(arguments) == 2):
        return None
    axis = next((k.value for k in call.keywords if k.arg == "axis"), arguments[1] if arguments[1:] else None)
    kept = next((f", keepdims={ast.unparse(k.value)}" for k in call.keywords if k.arg == "keepdims"), "")
    along = "" if axis is None else f", axis={ast.unparse(axis)}"
    operand = ast.unparse(arguments[0])
    if not isinstance(arguments[0], ast.Name | ast.Attribute | ast.Subscript | ast.Call):
        operand = f"({operand})"
    names = module if module in ("jnp", "np", "numpy") else "jnp"
    return form.format(x=operand, a=along + kept, k=f"{along}, keepdims=True" if along else "", n=names)
