"""How a parallel function is called: which arguments have a device axis."""

from __future__ import annotations

from collections.abc import Mapping

from jax_pmap.model import refused
from jax_pmap.options import no_argument

#: How an argument may be given: as the reference takes it, every array of it with a device axis, or what is
#: split of it.
FORMS = ("whole", "devices", "batch")
#: Words for whole layouts.
LAYOUTS = ("drop-in", "stacked", "batch")


def layout_words(layout: Mapping[str, str]) -> str:
    """How a function is called, in words."""
    axes = [f"`{name}`" for name, form in layout.items() if form == "devices"]
    some = [f"`{name}`" for name, form in layout.items() if form == "batch"]
    if not axes and not some:
        return "as the reference is (drop-in)"
    parts = [f"a device axis on {' and '.join(axes)}"] if axes else []
    parts += [f"a device axis on what is split of {' and '.join(some)}"] if some else []
    return "with " + " and ".join(parts)


def read_layout(text: str, arrays: Mapping[str, bool], batch: set[str]) -> dict[str, str]:
    """The form of each argument in ``"drop-in"``, ``"stacked"``, ``"batch"`` or ``"NAME=FORM,…"``.

    Args:
        text: as typed.
        arrays: of each argument, whether it has arrays that could have a device axis.
        batch: arguments of which something is split.

    Raises:
        RefusalError: JP018 for an unknown word, JP007 for an unknown argument.
    """
    whole = dict.fromkeys(arrays, "whole")
    if text == "drop-in":
        return whole
    if text == "stacked":
        return {name: "devices" if has else "whole" for name, has in arrays.items()}
    if text == "batch":
        return {name: "batch" if name in batch else "whole" for name in arrays}
    for part in text.split(","):
        name, equals, form = (word.strip() for word in part.partition("="))
        if not equals or form not in FORMS:
            raise refused(
                "JP018",
                f"`--layout {text}` is not a layout",
                f"Write one of {', '.join(LAYOUTS)}, or NAME=FORM,… with the forms whole, devices and batch",
                None,
            )
        if name not in arrays:
            raise no_argument("layout", name, arrays, "the reference", None)
        whole[name] = form
    return whole
