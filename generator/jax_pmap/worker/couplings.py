"""What couples the rows of an array: reductions over them, and loops that go from one to the next."""

from collections.abc import Iterator
from typing import Any

from .jaxpr.forward import Sources, union
from .jaxpr.versions import opened, scan_parts
from .jaxpr.walk import walk
from .layers import OURS
from .placements.microbatched import adds_up, is_replaced

#: Equations that make one value of several along ``axes``.
REDUCING = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})


def reductions(whole: Any, twice: Any) -> Iterator[list[tuple[str, int, str]]]:
    """Where each reduction along an axis that grows with the batch stands: its frames, the outermost first.

    `whole` and `twice` are jaxprs of one function on batches of two sizes. What is not the same in both but
    for shapes is passed over, and so is what a jax without frames says nothing of.
    """
    for rows in walk(whole, twice):
        path, (left, right) = [row[0] for row in rows], rows[-1]
        # In a gradient it sums what the function itself spread.
        if left.primitive.name not in REDUCING or any(map(is_transposed, path)):
            continue
        shapes = left.invars[0].aval.shape, right.invars[0].aval.shape
        if any(shapes[0][axis] != shapes[1][axis] for axis in left.params["axes"]):
            yield [frame for equation in path for frame in frames(equation)]


def is_transposed(equation: Any) -> bool:
    """Whether an equation was made by transposing another one."""
    return "transpose(" in str(getattr(equation.source_info, "name_stack", ""))


def frames(equation: Any) -> list[tuple[str, int, str]]:
    """File, line and function of the calls that led to an equation, the outermost first."""
    traceback = getattr(equation.source_info, "traceback", None)
    found = [(f.file_name, f.line_num, f.function_name) for f in getattr(traceback, "frames", ())]
    return [frame for frame in reversed(found) if not frame[0].startswith(OURS)]


def steps(jaxpr: Any) -> list[set[int]]:
    """For each input of a jaxpr the lengths of the loops over it in which a round needs the one before.

    What a gradient goes over backwards is left out: it has what the loop itself has kept.
    """
    found: list[set[int]] = [set() for _ in opened(jaxpr)[0].invars]
    _Steps(found).run(jaxpr, [1 << index for index in range(len(found))])
    return found


class _Steps(Sources):
    """Finds loops, while it follows the inputs that go into each value."""

    def __init__(self, found: list[set[int]]) -> None:
        super().__init__()
        self.found = found

    def scan(self, equation: Any, facts: list[int]) -> list[int]:
        params = equation.params
        body = opened(params["jaxpr"])[0]
        _, first, slices = scan_parts(params, range(len(facts)))
        needed = (
            not adds_up(body, given, index)
            and not is_replaced(body, given)
            and body.invars[given] is not body.outvars[index]
            for index, given in enumerate(first)
        )
        if any(needed) and not is_transposed(equation):
            over = union(facts[index] for index in slices)
            for index, lengths in enumerate(self.found):
                if over >> index & 1:
                    lengths.add(params["length"])
        return super().scan(equation, facts)
