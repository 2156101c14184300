"""JP107: what jax no longer has."""

from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.removed import uses


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Names, parameters and options that are gone, where the code does not ask whether they are there."""
    for use in uses(module):
        if use.removal.gone:
            yield module.finding("JP107", use.node, use.message, use.hint, use.edits)
