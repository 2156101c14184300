"""How a program is to be compiled that runs a few times: as a rule, as quickly as XLA can.

A chain of operations is fused into everything that reads its end, again and again: where each of many
results hangs on a long chain of its own, as the gradients of a deep product do, compile time grows with
the square of the length. Without fusing it grows with the length, but costs more for short chains.

Convolutions that no library does for XLA become loops, which run a hundred times slower where they are
not optimized: those in float64 that are strided (their gradients are dilated), grouped, or not over images.
"""

import os
from typing import Any

from .jaxpr.forward import Sources
from .jaxpr.versions import opened, override_options, primitive_name
from .jaxpr.walk import subjaxprs
from .work import work

#: Operations that are computed element by element, or only move elements.
FUSED = """
abs add and atan2 broadcast_in_dim cbrt ceil clamp convert_element_type copy cos cosh div eq erf exp
exp2 expand_dims expm1 floor ge gt integer_pow iota is_finite le log log1p logistic lt max min mul ne neg
nextafter not or pad pow real reduce_precision rem reshape rev round rsqrt select_n shift_left
shift_right_arithmetic shift_right_logical sign sin sinh slice sqrt square squeeze stop_gradient sub tan tanh
transpose xor
"""
#: What compiling takes without fusing, in operations that are repeated in fused kernels: about 30 us each in
#: jaxlib 0.10. A kernel of each kind, by its operation and the types of its operands, and each kernel.
KIND, KERNEL = 500, 10
#: Kinds of kernels that one operation stands for, where it draws random numbers.
DRAWN = 50
#: Products in loops of convolutions from which on optimizing them takes less time than running them.
PRODUCTS = 200_000


class Compiling:
    """How this process compiles: as jax does, until it has begun to do it quickly.

    Options that are set in ``XLA_FLAGS`` are the user's own.
    """

    def __init__(self) -> None:
        #: Debug options of XLA, which it reads at each compilation.
        self.options: dict[str, Any] = {}
        self._begun = self._older = False

    def begin(self, jaxlib_version: str) -> None:
        """Compile quickly from here on."""
        self._begun = True
        # The older way of generating code takes half the time, and XLA knows it up to jaxlib 0.10.
        self._older = tuple(int(part) for part in jaxlib_version.split(".")[:2]) < (0, 11)
        override_options(self.options)
        self._set(unfused=False, optimized=False)

    def suit(self, jaxpr: Any) -> None:
        """Compile this program, and others like it, as is quickest together with their runs."""
        if self._begun:
            self._set(unfused=better_unfused(jaxpr), optimized=work(jaxpr, looped) > PRODUCTS)

    def _set(self, *, unfused: bool, optimized: bool) -> None:
        options: dict[str, Any] = {
            "xla_llvm_disable_expensive_passes": True,
            "xla_backend_optimization_level": int(optimized),
        }
        if unfused:
            options["xla_disable_hlo_passes"] = "fusion"
        elif self._older:
            options["xla_cpu_use_fusion_emitters"] = False
        own = os.environ.get("XLA_FLAGS", "")
        self.options.clear()
        self.options.update((name, value) for name, value in options.items() if f"--{name}=" not in own)


#: How the programs of this worker are compiled.
COMPILING = Compiling()


def looped(equation: Any) -> bool:
    """Whether an operation is a convolution that becomes loops."""
    if equation.primitive.name != "conv_general_dilated":
        return False
    params = equation.params
    dilated = any(step > 1 for step in (*params["lhs_dilation"], *params["rhs_dilation"]))
    grouped = params["feature_group_count"] > 1 or params["batch_group_count"] > 1
    return dilated or grouped or len(params["window_strides"]) != 2


def better_unfused(jaxpr: Any) -> bool:
    """Whether a program compiles quicker without the fusing of operations."""
    repeated, single, kinds = count(jaxpr)
    return repeated > KIND * kinds + KERNEL * single


def count(jaxpr: Any) -> tuple[int, int, int]:
    """Operations in all fused kernels together, operations that are fused, and kinds of operations."""
    counter = _Counter()
    counter.program(jaxpr)
    drawn = sum(name.startswith(("random_", "threefry")) for name, _ in counter.kinds)
    return counter.repeated, counter.single, len(counter.kinds) + DRAWN * drawn


class _Counter(Sources):
    """Follows the operations behind every value that a kernel would compute again: a set, as bits."""

    enters = frozenset({"jit"})
    fused = frozenset(FUSED.split())

    def __init__(self) -> None:
        super().__init__()
        self.repeated = 0
        self.single = 0
        self.kinds = set[tuple[str, tuple[Any, ...]]]()

    def program(self, jaxpr: Any) -> None:
        """Count the kernels of a program, whose constants may be operands of the primitive that has it."""
        body, constants = opened(jaxpr)
        self.ends(self.run(jaxpr, [0] * (len(body.constvars) + len(body.invars) - len(constants))))

    def ends(self, behind: list[int]) -> None:
        """Count kernels that compute values with these operations behind them."""
        self.repeated += sum(each.bit_count() for each in behind)

    def operation(self, equation: Any, behind: list[int]) -> list[int]:
        name = primitive_name(equation)
        self.kinds.add((name, tuple(v.aval for v in (*equation.invars, *equation.outvars))))
        if name in self.fused:
            behind = [*behind, 1 << self.single]
            self.single += 1
            return super().operation(equation, behind)
        # A kernel ends before it.
        self.ends(behind)
        for each in subjaxprs(equation):
            self.program(each)
        return [0] * len(equation.outvars)
