"""Equality of a parallel program and its reference, derived operation by operation from their jaxprs.

For N devices along one mesh axis, the value ``v`` on a device stands in a relation to the value ``V`` of
the whole-batch program, its *placement* (`lattice`); ``V`` is known by its *meaning*, a hash-consed term
(`terms`). Each primitive has a *rule* that says which placement comes of which (`rules`).
"""

from . import loops, mapped, normal  # noqa: F401 (they register themselves)
