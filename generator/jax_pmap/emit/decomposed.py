"""Reductions that no one collective mends, written as sums, means and maxima that one does."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

#: Arguments that leave the meaning as it is written here.
PLAIN = frozenset({"axis", "keepdims"})
#: Those that devices compute together, each with the number of results that it takes from all of them.
#: The maximum in logsumexp is left to XLA: jax's own takes care of infinities.
TOGETHER = {"var": 2, "std": 2, "norm": 1}
#: What makes each of the parts of a decomposed reduction that of all devices, given the operator and source.
Collective = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A call of one of the reductions: ``jnp.std(x, axis=0)``.

    `operand` is the source of ``x``, `along` that of its other arguments with a comma in front, `kept` of
    those that keep the dimensions; `module` is what jax.numpy is called there, empty for a method of ``x``.
    """

    name: str
    operand: str
    along: str
    kept: str
    module: str

    @property
    def is_plain(self) -> bool:
        """Whether the operand is a name, an attribute or an item, which may be written twice."""
        tree = ast.parse(self.operand, mode="eval").body
        return not any(isinstance(node, ast.Call | ast.BinOp | ast.Starred) for node in ast.walk(tree))

    def written(self, collective: Collective = lambda _, source: source, jnp: str = "jnp") -> str:
        """The call as sums and means, each in a `collective`; `jnp` is jax.numpy where the call names none.

        ``"jnp.mean((x - jnp.mean(x)) ** 2)"`` of ``jnp.var(x)``.
        """
        names = self.module or jnp
        is_simple = isinstance(
            ast.parse(self.operand, mode="eval").body, ast.Name | ast.Attribute | ast.Subscript | ast.Call
        )
        x = self.operand if is_simple else f"({self.operand})"

        def reduced(op: str, by: str, source: str, keep: bool = False) -> str:
            return collective(op, f"{names}.{by}({source}{self.kept if keep else self.along})")

        if self.name in ("var", "std"):
            mean = reduced("pmean", "mean", x, keep=True)
            variance = reduced("pmean", "mean", f"({x} - {mean}) ** 2")
            return variance if self.name == "var" else f"{names}.sqrt({variance})"
        if self.name == "norm":
            return f"{names}.sqrt({reduced('psum', 'sum', f'{x} ** 2')})"
        largest = reduced("pmax", "max", x, keep=True)
        total = reduced("psum", "sum", f"{names}.exp({x} - {largest})")
        return f"{names}.log({total}) + {reduced('pmax', 'max', x)}"


def reduction(text: str) -> Reduction | None:
    """The call `text` of a variance, deviation, norm or logsumexp, or None for anything else."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    name, owner = call.func.attr, call.func.value
    if name not in ("var", "std", "norm", "logsumexp") or {k.arg for k in call.keywords} - PLAIN:
        return None
    # `x.std(0)` is a method; `jnp.linalg.norm(x)` and `jax.nn.logsumexp(x)` are functions of modules.
    module = ast.unparse(owner).split(".")[0]
    is_function = module in ("jnp", "jax", "np", "numpy", "jsp", "nn")
    arguments = list(call.args) if is_function else [owner, *call.args]
    if not 1 <= len(arguments) <= 2 or (name == "norm" and len(arguments) == 2):
        return None
    axis = next((k.value for k in call.keywords if k.arg == "axis"), arguments[1] if arguments[1:] else None)
    keepdims = next((f", keepdims={ast.unparse(k.value)}" for k in call.keywords if k.arg == "keepdims"), "")
    along = "" if axis is None else f", axis={ast.unparse(axis)}"
    return Reduction(
        name,
        ast.unparse(arguments[0]),
        along + keepdims,
        f"{along}, keepdims=True" if along else "",
        module if module in ("jnp", "np", "numpy") else "",
    )
