"""JP105: a reduction inside the differentiated loss."""

from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Losses whose value is a reduction over devices, unless the gradients are averaged afterwards."""
    seen: set[object] = set()
    for mapping in mappings.all:
        if mapping.kind != "pmap" and not mapping.is_unchecked:
            continue
        for made in events(mappings, mapping).gradients:
            reduction = made.loss.reduced if made.loss is not None else None
            if reduction is None or made.lost or reduction in seen:
                continue
            application = module.application(reduction)
            name = application.qualname.rpartition(".")[2] if application else "psum"
            if made.synced == {"jax.lax.psum"}:
                what = "its gradients, summed over N devices, are N times too large"
            elif not made.synced and made.updates:
                what = "its gradient is still each device's own" + (
                    ", times the number of devices" if name == "psum" else ""
                )
            else:
                continue
            seen.add(reduction)
            yield module.finding(
                "JP105",
                reduction,
                f"`{name}` is inside the function that is differentiated: {what}",
                "Return the device's own loss, and apply `jax.lax.pmean` to loss and gradients after "
                "`value_and_grad`",
            )
