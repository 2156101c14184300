"""Calls in a traced function that act on more than its values: on Python, or on how devices hold them."""

from typing import Any

from .jaxpr.frames import frames
from .jaxpr.walk import equations
from .origins import is_users
from .protocol import Site

#: What users call, by primitive; an older jax prints by a callback.
CALLBACKS = {
    "debug_callback": "jax.debug",
    "debug_print": "jax.debug.print",
    "io_callback": "io_callback",
    "sharding_constraint": "jax.lax.with_sharding_constraint",
}


def callbacks(jaxpr: Any) -> tuple[Site, ...]:
    """Each place that calls back, or says how devices hold a value, and what is called there."""
    found = dict.fromkeys(
        Site(*place_of(equation), what)
        for equation in equations(jaxpr)
        if (what := CALLBACKS.get(equation.primitive.name)) is not None
    )
    return tuple(found)


def place_of(equation: Any) -> tuple[str, int]:
    """The innermost line of the user's that an equation comes from; ``("", 0)`` where none is known."""
    for place in frames(equation):
        if is_users(place.file):
            return place.file, place.line
    return "", 0
