"""Meshes as a trace needs them: of other sizes than the code makes them, and set inside of a trace."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh


@contextlib.contextmanager
def of_sizes(sizes: "Sequence[int] | None", every: Sequence[Any] = ()) -> Iterator[None]:
    """Let every mesh with as many axes as there are `sizes` be made of these, of the first of its devices.

    ``np.array(jax.devices()).reshape(2, -1)`` has an axis that is 2 for any number of devices: what a program
    does with it shows where it is 3. Where a mesh has too few devices, those of `every` are taken. None
    changes nothing.
    """
    if sizes is None:
        yield
        return
    create = Mesh.__new__
    wanted = tuple(sizes)

    def of_these(cls: type[Mesh], devices: Any, axis_names: Any, *args: Any, **kwargs: Any) -> Mesh:
        given = np.asarray(devices)
        enough = given.ravel() if given.size >= math.prod(wanted) else np.asarray(every)
        if given.ndim == len(wanted) and enough.size >= math.prod(wanted):
            devices = enough[: math.prod(wanted)].reshape(wanted)
        return create(cls, devices, axis_names, *args, **kwargs)

    Mesh.__new__ = of_these
    try:
        yield
    finally:
        Mesh.__new__ = create


@contextlib.contextmanager
def set_inside() -> Iterator[None]:
    """Let ``with jax.set_mesh(mesh):`` stand in a function that is traced; jax itself refuses it there.

    What is traced depends on the mesh's axes alone, which its abstract mesh has.
    """
    saved = {(holder, name): getattr(holder, name) for holder, name in SETTERS if hasattr(holder, name)}
    for holder, name in saved if ABSTRACT is not None else ():
        setattr(holder, name, lambda mesh: ABSTRACT(mesh.abstract_mesh))  # type: ignore[misc]
    try:
        yield
    finally:
        for (holder, name), setter in saved.items():
            setattr(holder, name, setter)


#: What sets a mesh for the code below, by where it is called; and what does so inside of a trace.
SETTERS = ((jax, "set_mesh"), (jax.sharding, "set_mesh"), (jax.sharding, "use_mesh"))
ABSTRACT = getattr(jax.sharding, "use_abstract_mesh", None)
