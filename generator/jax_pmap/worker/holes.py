"""Stand-ins for leaves without a shape, and for gradients and jit, which would look at every leaf at once."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp


class Touched(BaseException):
    """Something looked at a hole. No `Exception`: the user's code must not catch it."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Hole:
    """Stands for a leaf that has no shape yet."""

    def __init__(self, index: int) -> None:
        object.__setattr__(self, "_index", index)

    def __getattr__(self, name: str) -> Any:
        """Any look at an attribute is a look at the leaf."""
        raise Touched(object.__getattribute__(self, "_index"))


def _touch(self: Hole, *_: Any, **__: Any) -> Any:
    raise Touched(object.__getattribute__(self, "_index"))


_LOOKS = """
    abs add and array bool call complex contains divmod eq float floordiv format ge getitem gt hash
    index int invert iter le len lshift lt matmul mod mul ne neg next or pos pow radd rand
    rdivmod repr reversed rfloordiv rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub
    rtruediv rxor setattr setitem str sub truediv xor
"""
for _name in _LOOKS.split():
    setattr(Hole, f"__{_name}__", _touch)


def unwrapped(fn: Any) -> Any:
    """The Python function inside `jax.jit(fn)`, so that a hole can pass into it."""
    while type(fn).__name__ == "PjitFunction" and hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    return fn


def stand_in_jit(fun: Any = None, **_: Any) -> Any:
    """`jax.jit` that does not compile, in both its forms."""
    return unwrapped if fun is None else unwrapped(fun)


def stand_in_value_and_grad(fun: Any, argnums: Any = 0, has_aux: bool = False, **_: Any) -> Any:
    """`jax.value_and_grad` whose gradient is the argument itself: same structure, shapes, dtypes."""
    inner = unwrapped(fun)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        out = inner(*args, **kwargs)
        loss = out[0] if has_aux else out
        if not isinstance(loss, Hole) and jnp.shape(loss) != ():
            raise TypeError(
                f"Gradient only defined for scalar-output functions. Output had shape: {jnp.shape(loss)}."
            )
        return out, args[argnums] if isinstance(argnums, int) else tuple(args[i] for i in argnums)

    return wrapped


def stand_in_grad(fun: Any, argnums: Any = 0, has_aux: bool = False, **_: Any) -> Any:
    """`jax.grad` in the manner of `stand_in_value_and_grad`."""
    both = stand_in_value_and_grad(fun, argnums, has_aux)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        out, gradient = both(*args, **kwargs)
        return (gradient, out[1]) if has_aux else gradient

    return wrapped


@contextlib.contextmanager
def stand_ins(namespaces: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Let holes pass through gradients and jit, which would look at every leaf at once."""
    instead = {
        id(jax.grad): stand_in_grad,
        id(jax.value_and_grad): stand_in_value_and_grad,
        id(jax.jit): stand_in_jit,
    }
    before: list[tuple[dict[str, Any], str, Any]] = []
    for space in [vars(jax), *namespaces]:
        for name, value in list(space.items()):
            new = instead.get(id(value))
            if new is None and space is not vars(jax):
                inner = unwrapped(value)
                new = inner if inner is not value else None
            if new is not None:
                before.append((space, name, value))
                space[name] = new
    try:
        yield
    finally:
        for space, name, value in before:
            space[name] = value
