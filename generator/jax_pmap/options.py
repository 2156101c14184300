"""Command-line texts to a `Request`: pure functions that refuse with JP018 what they cannot read."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jax_pmap.config import Config
from jax_pmap.model import DEFAULT_TIMEOUT, Backend, Devices, RefusalError, Request, Span, refused

HELPERS = ("place", "devices")
REMAINDERS = ("error", "pad", "drop")

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)


def refuse(reason: str, hint: str) -> NoReturn:
    """Raise the refusal of a bad option value."""
    raise refused("JP018", reason, hint)


def no_argument(option: str, name: str, known: Iterable[str], of: str, span: Span | None) -> RefusalError:
    """JP007: the refusal of an option for what is none of the arguments `known`."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    meant = f"Did you mean `{near[0]}`? " if near else ""
    return refused(
        "JP007",
        f"--{option} names `{name}`, which is no argument of {of}",
        f"{meant}It takes: {', '.join(known) or 'nothing'}",
        span,
    )


def devices(text: str | None) -> Devices:
    """``"4"`` is a count, ``"0,2,4"`` and ``"2,"`` are device ids, None is all devices."""
    if text is None:
        return Devices()
    hint = "Write a count (`--devices 4`) or device ids (`--devices 0,2,4`; for one id, `--devices 2,`)."
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and parts[-1] == "":
        parts.pop()
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        refuse(f"`--devices {text}` is neither a count nor a list of device ids.", hint)
    numbers = [int(part) for part in parts]
    if "," not in text:
        if numbers[0] == 0:
            refuse("`--devices 0` leaves no device to run on.", hint)
        return Devices(count=numbers[0])
    for number in numbers:
        if numbers.count(number) > 1:
            refuse(f"`--devices {text}` names device {number} twice.", hint)
    return Devices(ids=tuple(numbers))


def axis_name(text: str | None) -> str | None:
    """An identifier, or None for the name the body uses."""
    if text is not None and not text.isidentifier():
        refuse(
            f"`--axis-name {text}` is not an identifier.",
            "Use letters, digits and underscores, for instance `--axis-name batch`.",
        )
    return text


def memory(text: str | None) -> int | None:
    """``"8G"``, ``"512MiB"`` or a plain number of bytes; units are powers of 1024."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match:
        size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if not 0 < size < 2**63:
        refuse(f"`--memory {text}` is not a size.", "Write a number and a unit, for instance `--memory 8G`.")
    return size


def timeout(text: str) -> float:
    """A positive, finite number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        refuse(
            f"`--timeout {text}` is not a positive number of seconds.",
            "Write a number, for instance `--timeout 600`.",
        )
    return seconds


def codes(texts: Sequence[str]) -> tuple[str, ...]:
    """``("jp104,JP105", "JP11")`` as ``("JP104", "JP105", "JP11")``."""
    return tuple(part.strip().upper() for text in texts for part in text.split(",") if part.strip())


#: Options that give arguments their roles; given by hand, those of pyproject.toml do not count.
_ROLES = ("shard", "replicate", "static", "key", "donate")


def one_of(option: str, text: str, known: Sequence[str]) -> str:
    """`text`, if it is one of `known`."""
    if text not in known:
        near = difflib.get_close_matches(text.lower(), known, n=1)
        choices = ", ".join(f"`{name}`" for name in known)
        hint = f"Did you mean `{option} {near[0]}`?" if near else f"Choose one of {choices}."
        refuse(f"`{option} {text}` is not one of {choices}.", hint)
    return text


def split_shard(text: str) -> tuple[str, int | None]:
    """``"tokens:1"`` is ``("tokens", 1)``, ``"x"`` is ``("x", None)``; a colon in brackets is the path's."""
    name, colon, axis = text.rpartition(":")
    if not colon or "]" in axis:
        return text, None
    if not (axis.isascii() and axis.isdigit() and len(axis) < 4) or not name:
        refuse(
            f"`--shard {text}` does not end in an axis.",
            "Write a name, or a name and a batch axis counted from 0: `--shard tokens:1`.",
        )
    return name, int(axis)


def _check_roles(options: Mapping[str, Any]) -> None:
    """Refuse empty names and a name that two role options claim."""
    claimed: dict[str, str] = {}
    for role in ("shard", "replicate", "static", "key"):
        for text in options[role]:
            name = split_shard(text)[0] if role == "shard" else text
            if not name.strip():
                refuse(f"`--{role}` has no name.", f"Name an argument: `--{role} x`.")
            other = claimed.setdefault(name, role)
            if other != role:
                refuse(
                    f"`{name}` is given to both `--{other}` and `--{role}`.",
                    "An argument has one role: drop one.",
                )


def _check_run(options: Mapping[str, Any]) -> None:
    """Refuse what contradicts `--run`: other examples."""
    if options["run"] is None:
        return
    for name in ("inputs", "arg"):
        if options[name]:
            refuse(
                f"`--run` takes the arguments from the program, and `--{name}` gives others.",
                f"Drop one: `--run`, or `--{name}`.",
            )


def _check_no_run(options: Mapping[str, Any]) -> None:
    """Refuse what only a run shows."""
    remainder = options.get("remainder") or "error"
    if options.get("no_run") and remainder != "error":
        refuse(
            f"`--remainder {remainder}` is shown by running uneven batches, and `--no-run` runs none.",
            "Drop one: `--no-run`, or `--remainder`.",
        )


def request(options: Mapping[str, Any], config: Config) -> Request:
    """The `Request` that a command's parsed options ask for; `config` fills what they leave open.

    Raises:
        RefusalError: JP018, naming the option, its value and what it takes.
    """
    config, own = config.for_target(options["target"])
    options = {**options, "inputs": options["inputs"] or own.inputs}
    given = any(options[name] for name in _ROLES)
    options |= {name: options[name] or getattr(own, name) for name in (*(() if given else _ROLES), "arg")}
    _check_roles(options)
    _check_run(options)
    _check_no_run(options)
    return Request(
        target=options["target"],
        axis_name=axis_name(options["axis_name"]) or config.axis_name,
        devices=devices(options["devices"])
        if options["devices"] is not None
        else config.devices or Devices(),
        backend=Backend(one_of("--backend", options["backend"], [str(name) for name in Backend]))
        if options["backend"] is not None
        else config.backend or Backend.PMAP,
        inputs=options["inputs"],
        args=options["arg"],
        run=options["run"],
        shard=options["shard"],
        replicate=options["replicate"],
        static=options["static"],
        key=options["key"],
        donate=options["donate"],
        helpers=tuple(dict.fromkeys(one_of("--helper", name, HELPERS) for name in options["helper"])),
        remainder=one_of("--remainder", options.get("remainder") or "error", REMAINDERS),
        python=Path(options["python"]) if options["python"] else None,
        timeout=timeout(options["timeout"])
        if options["timeout"] is not None
        else config.timeout or DEFAULT_TIMEOUT,
        memory=memory(options["memory"]),
        run_code=not options.get("no_run"),
        in_place=bool(options.get("in_place")),
        plan=Path(options["plan"]) if options.get("plan") else None,
        command=command_line(options),
    )


def command_line(options: Mapping[str, Any]) -> str:
    """The command that makes the same code anywhere.

    What belongs to one machine or one screen (interpreter, limits, colour, ``--diff``) is left out, so that
    the header of an emitted file does not depend on it.
    """
    words = ["jax-pmap", "gen", options["target"]]
    for name in ("axis_name", "devices", "run", "inputs", "plan", "backend", "remainder"):
        if options.get(name):
            words += [f"--{name.replace('_', '-')}", options[name]]
    for name in ("arg", "shard", "replicate", "static", "key", "donate", "helper"):
        for value in options[name]:
            words += [f"--{name}", value]
    if options.get("no_run"):
        words.append("--no-run")
    if options.get("in_place"):
        words.append("--in-place")
    if options.get("output"):
        words += ["-o", options["output"]]
    return shlex.join(words)
