"""Parameters of the equations of a jaxpr, which versions of jax name differently."""

from typing import Any


def inner_jaxpr(params: Any) -> Any:
    """The jaxpr that an equation runs, or None."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if hasattr(getattr(params.get(name), "jaxpr", params.get(name)), "eqns"):
            return params[name]
    return None


def scan_sizes(params: Any) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many are carried; the rest are cut up."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()  # jax 0.12
    return len(constants), len(carried)
