"""Sites of numpyro models of which there is a value for each example of the batch."""

import sys
from typing import Any

import jax

from . import arguments, prove
from .arguments import Packed
from .exceptions import attempted
from .jaxpr.trace import abstract_leaves, arrays_of
from .protocol import FindSites
from .target import current, leaf_axes


def find_sites(request: FindSites) -> tuple[str, ...] | None:
    """Names of the sites that grow with the batch, and that the model does not scale to a fixed size itself.

    The mean over devices of a sum over such a site is that over the batch once each counts for all devices.
    None where no site grows with the batch.
    """
    target, library = current(), sys.modules.get("numpyro.primitives")
    axes = leaf_axes(request.roles)
    values = target.values({})
    size, packed = arguments.batch_size(values, axes), Packed(values, request.roles.statics)

    def sites(rows: int) -> dict[str, tuple[Any, Any]]:
        found: dict[str, tuple[Any, Any]] = {}

        class Noted(library.Messenger):  # type: ignore[misc, name-defined]
            def process_message(self, msg: dict[str, Any]) -> None:
                if msg["type"] == "sample":
                    shapes = msg["fn"].shape(), jax.numpy.shape(msg["value"]) if msg["is_observed"] else ()
                    found[msg["name"]] = shapes, msg["scale"] or 1

        with Noted():
            jax.eval_shape(arrays_of(target.reference, packed), abstract_leaves(packed, axes, rows))
        return found

    if library is None:
        return None
    with prove.x64(target.x64):
        few, more = (attempted(sites, rows) or {} for rows in (size, 2 * size))
    grown = [name for name in few.keys() & more.keys() if few[name][0] != more[name][0]]
    if not grown:
        return None
    # A plate of a fixed size scales what it has of that.
    return tuple(sorted(name for name in grown if attempted(_ratio, few[name][1], more[name][1]) != 2))


def _ratio(few: Any, more: Any) -> float:
    return float(few / more)
