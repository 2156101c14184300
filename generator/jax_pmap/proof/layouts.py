"""How a parallel function is called: which arguments have a device axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax_pmap.model import refused
from jax_pmap.options import no_argument

#: How an argument may be given: as the reference takes it; every array of it with a device axis; what is
#: split of it; that with the device axis right before the one that is split; in parts of its own rows; with
#: a key for each device.
FORMS = ("whole", "devices", "batch", "inner", "parts", "keys")
#: Words for whole layouts.
LAYOUTS = ("drop-in", "stacked", "batch")


@dataclass(frozen=True, slots=True)
class Layouts:
    """How the two functions are called, as typed (see `read_layout`); None to find out by trying.

    Raises:
        RefusalError: JP018 for what is no layout.
    """

    parallel: str | None = None
    #: Of a reference that is parallel itself.
    reference: str | None = None
    #: ``FILE::FUNC`` or ``NAME=FILE::FUNC``: makes of the reference's tree that of the parallel function.
    convert: str | None = None

    def __post_init__(self) -> None:
        """Hold the words to those there are, before anything is run."""
        for text, option in ((self.parallel, "layout"), (self.reference, "against-layout")):
            if text is not None:
                forms_of(text, option)

    def hold(self, parameters: Sequence[str]) -> None:
        """Refuse a name that is none of the reference's parameters, before anything is run.

        Raises:
            RefusalError: JP007.
        """
        for text, option in ((self.parallel, "layout"), (self.reference, "against-layout")):
            for name, _ in forms_of(text, option) if text is not None else ():
                if name not in parameters:
                    raise no_argument(option, name, parameters, "the reference", None)


def read_convert(text: str) -> tuple[str, str]:
    """``"state=new.py::f"`` → ``("state", "new.py::f")``; ``"new.py::f"`` → ``("", "new.py::f")``."""
    name, equals, function = text.partition("=")
    return (name.strip(), function.strip()) if equals else ("", text.strip())


def with_axis(layout: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(argument, form) of those that are not passed as one device takes them."""
    return tuple((name, form) for name, form in layout.items() if form != "whole")


def layout_words(layout: Mapping[str, str]) -> str:
    """How a function is called, in words."""
    said = {
        "devices": "a device axis on",
        "batch": "a device axis on what is split of",
        "inner": "a device axis right before the batch's in",
        "parts": "a device axis on the rows of",
        "keys": "a key for each device in",
    }
    parts = [
        f"{words} {' and '.join(names)}"
        for form, words in said.items()
        if (names := [f"`{name}`" for name, given in layout.items() if given == form])
    ]
    return f"with {' and '.join(parts)}" if parts else "as the reference is (drop-in)"


def read_layout(
    text: str, arrays: Mapping[str, bool], batch: set[str], option: str = "layout"
) -> dict[str, str]:
    """The form of each argument in ``"drop-in"``, ``"stacked"``, ``"batch"`` or ``"NAME=FORM,…"``.

    Args:
        text: as typed.
        arrays: of each argument, whether it has arrays that could have a device axis.
        batch: arguments of which something is split.
        option: what it was given with.

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
    for name, form in forms_of(text, option):
        if name not in arrays:
            raise no_argument(option, name, arrays, "the reference", None)
        whole[name] = form
    return whole


def forms_of(text: str, option: str) -> list[tuple[str, str]]:
    """``"x=devices, key=keys"`` → ``[("x", "devices"), ("key", "keys")]``; empty for one of `LAYOUTS`.

    Raises:
        RefusalError: JP018 for what is neither.
    """
    if text in LAYOUTS:
        return []
    found = []
    for part in text.split(","):
        name, equals, form = (word.strip() for word in part.partition("="))
        if not equals or form not in FORMS:
            raise refused(
                "JP018",
                f"`--{option} {text}` is not a layout",
                f"Write one of {', '.join(LAYOUTS)}, or NAME=FORM,… with the forms {', '.join(FORMS)}",
                None,
            )
        found.append((name, form))
    return found
