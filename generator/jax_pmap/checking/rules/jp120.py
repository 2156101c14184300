"""JP120: gradients that `shard_map` has summed already are averaged over the devices."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.arguments import split_axes
from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mapping, Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.values import Gradient, Reduction, leaves


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Gradients of replicated parameters, of a loss without a collective, that a collective takes."""
    seen: set[object] = set()
    for mapping in mappings.all:
        if mapping.kind != "shard_map" or mapping.function is None or not _is_checked(mapping):
            continue
        happened = events(mappings, mapping)
        axes_of = split_axes(module, mapping)
        for made in happened.gradients:
            if made.loss is None or not made.of or not made.local or made.loss.foreign:
                continue
            if made.divided or made.loss.counted:
                continue
            reduction = _first(happened.reductions, made)
            if reduction is None or reduction.call in seen:
                continue
            axes = set().union(*(axes_of.get(name, set()) for name in made.loss.shares))
            if reduction.axis not in axes or (made.loss.total and reduction.name == "pmean"):
                continue  # of a sum, what `shard_map` adds up is the gradient of the whole
            seen.add(reduction.call)
            yield module.finding(
                "JP120",
                reduction.call,
                f"this is the gradient of `{_source(module, made)}`, which `shard_map` has summed over the "
                f"devices already; after `{reduction.name}` it is N times too large",
                "Pass `check_vma=False` (`check_rep=False` before jax 0.7) to `shard_map`, as a `pmap` body "
                "needs it; or take the gradient of `jax.lax.pmean(loss, …)` and leave this out",
            )


def _source(module: Module, made: Gradient) -> str:
    """What a gradient is taken of, as it is written: ``state.params``."""
    given = made.call.args[0] if made.call.args else None
    is_name = isinstance(given, ast.Name | ast.Attribute)
    return module.segment(given) if is_name and given is not None else sorted(made.of)[0]


def _is_checked(mapping: Mapping) -> bool:
    """Whether the replication of values is followed, as it is unless it is switched off."""
    application = mapping.application
    off = [application.keywords.get(name) for name in ("check_vma", "check_rep", "auto", "axis_names")]
    return not application.open and application.qualname == "jax.shard_map" and not any(off)


def _first(reductions: list[Reduction], made: Gradient) -> Reduction | None:
    """The first collective that takes a gradient, if it is a `psum` or `pmean` of the gradient itself."""
    for reduction in reductions:
        for array in leaves(reduction.value):
            if made in array.gradients:
                is_plain = array.is_gradient and reduction.name in ("psum", "pmean")
                return reduction if is_plain else None
    return None
