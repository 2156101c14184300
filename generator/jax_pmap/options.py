"""Command-line texts to a `Request`: pure functions that refuse with JP018 what they cannot read."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jax_pmap.config import MESH, Config
from jax_pmap.model import (
    DEFAULT_TIMEOUT,
    Backend,
    Devices,
    MeshAxis,
    RefusalError,
    Request,
    Span,
    Spec,
    SpecRule,
    refused,
)

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


def package(text: str) -> str:
    """The name of a package that another stands in for."""
    if not all(part.isidentifier() for part in text.split(".")):
        refuse(f"`--stub {text}` names no package.", "Write it as code imports it: `--stub tensorflow`.")
    if text.partition(".")[0] in ("jax", "jaxlib", "numpy"):
        refuse(
            f"`--stub {text}`: nothing stands in for what computes.", "Install it: --python PATH names where."
        )
    return text


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


#: Devices of a mesh that code is derived for at most.
MOST_DEVICES = 4096


def mesh(text: str | None) -> tuple[MeshAxis, ...]:
    """``"data=4,model=2"`` as axes in that order; none for None."""
    if text is None:
        return ()
    hint = "Write each axis with its number of devices: `--mesh data=4,model=2`, or `--mesh batch=8`."
    axes: list[MeshAxis] = []
    for part in text.split(","):
        name, equals, size = (each.strip() for each in part.partition("="))
        if not equals or not (size.isascii() and size.isdigit() and len(size) < 10):
            refuse(f"`--mesh {text}` gives no number of devices for `{part.strip()}`.", hint)
        if not name.isidentifier():
            refuse(f"`--mesh {text}` names an axis `{name}`, which is no identifier.", hint)
        if any(axis.name == name for axis in axes):
            refuse(f"`--mesh {text}` names axis `{name}` twice.", "Name each axis once, with its size.")
        if int(size) == 0:
            refuse(f"`--mesh {text}` leaves axis `{name}` without devices.", hint)
        axes.append(MeshAxis(name, int(size)))
    number = math.prod(axis.size for axis in axes)
    if number > MOST_DEVICES:
        refuse(
            f"`--mesh {text}` has {number} devices, and code is derived for {MOST_DEVICES} at most.",
            "Prove the code for a smaller mesh, and change the sizes in it: they stand in `mesh()` alone.",
        )
    return tuple(axes)


def spec(text: str, axes: Sequence[MeshAxis]) -> SpecRule:
    """``"params.*kernel=None,model"`` as a rule for a mesh of `axes`.

    ``(data,model)`` divides one dimension along both.
    """
    hint = "Write a pattern of paths, and for each dimension None or an axis: `--spec '.*kernel=None,model'`."
    pattern, equals, dimensions = text.rpartition("=")
    if not equals or not pattern.strip():
        refuse(f"`--spec {text}` has no pattern of paths.", hint)
    try:
        re.compile(pattern)
    except re.error as error:
        refuse(f"`--spec {text}`: `{pattern}` is no regular expression: {error}.", hint)
    parts = re.findall(r"\s*(\([^()]*\)|[^,()]*?)\s*(?:,|$)", dimensions)
    found: Spec = tuple(_along(part, text, hint) for part in (parts[:-1] if parts[-1] == "" else parts))
    if ",".join(parts).replace(" ", "").rstrip(",") != dimensions.replace(" ", "").rstrip(",") or not found:
        refuse(f"`--spec {text}`: `{dimensions}` names no axes.", hint)
    used = [name for names in found for name in names]
    known = [axis.name for axis in axes]
    for name in used:
        if name not in known:
            refuse(
                f"`--spec {text}` names axis `{name}`, which the mesh does not have.",
                f"It has {', '.join(f'`{each}`' for each in known)}; `None` leaves a dimension whole.",
            )
        if used.count(name) > 1:
            refuse(
                f"`--spec {text}` names axis `{name}` twice.", "An axis divides one dimension of an array."
            )
    while found and not found[-1]:
        found = found[:-1]
    return SpecRule(pattern, found, text)


def _along(part: str, text: str, hint: str) -> tuple[str, ...]:
    """The axes of one dimension: none for ``None``, two for ``(data,model)``."""
    if part == "None":
        return ()
    names = tuple(name.strip() for name in part.strip("()").split(","))
    if not all(name.isidentifier() for name in names):
        refuse(f"`--spec {text}` has `{part}` for a dimension.", hint)
    return names


def _meshed(options: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """What the options of a mesh say in a `Request`.

    Raises:
        RefusalError: JP018 where they do not fit together, JP046 for a backend without meshes.
    """
    axes = mesh(options.get("mesh"))
    backend = options["backend"] or config.backend
    for name, sizes, rest in (("spec", "4,model=2", " ..."), ("fsdp", "8", "")):
        if options.get(name) and not axes:
            form = "" if backend in (Backend.JIT, Backend.SHARD_MAP, AUTO) else "--backend jit "
            along = axis_name(options["axis_name"]) or "data"
            refuse(
                f"`--{name}` divides arrays over a mesh, and there is none.",
                f"Name its axes and their devices: `{form}--mesh {along}={sizes} --{name}{rest}`.",
            )
    if not axes:
        return {}
    chosen = devices(options["devices"])
    number = math.prod(axis.size for axis in axes)
    if chosen.number not in (None, number):
        refuse(
            f"`--mesh {options['mesh']}` has {number} devices, and `--devices {options['devices']}` names "
            f"{chosen.number}.",
            f"Change one of them. Without `--devices` the code takes all devices, and asks for {number}.",
        )
    along = axis_name(options["axis_name"]) or axes[0].name
    if all(axis.name != along for axis in axes):
        refuse(
            f"`--axis-name {along}` is no axis of `--mesh {options['mesh']}`.",
            "The batch is divided along that axis: name one of the mesh, or leave it out for the first.",
        )
    divides = bool(options["spec"] or options["fsdp"])
    in_parts = backend == Backend.SHARD_MAP and divides
    if backend not in (Backend.JIT, AUTO) and not in_parts:
        form = backend or Backend.PMAP
        takes = (
            "has a mesh where --spec or --fsdp divides arrays"
            if form == Backend.SHARD_MAP
            else "divides no array but the batch"
        )
        other = "" if divides or len(axes) > 1 else f", or --devices {number} --axis-name {along}"
        raise refused(
            "JP046",
            f"`--mesh` arranges devices for `--backend jit`, where the compiler adds the communication along "
            f"each axis; `{form}` code {takes}",
            f"Use --backend jit{other}",
        )
    return {
        "axis_name": along,
        "devices": chosen,
        "mesh": axes,
        "spec": tuple(spec(text, axes) for text in options["spec"]),
        "fsdp": bool(options["fsdp"]),
    }


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


#: Processes that a proof runs at most: each imports jax for itself.
MOST_PROCESSES = 8


def processes(text: str | None) -> int:
    """A number of processes, from 2 on; 1 for None."""
    return _several(
        text,
        MOST_PROCESSES,
        f"`--processes {text}` is not a number from 2 to {MOST_PROCESSES}.",
        "The emitted code runs in any number; `--processes 2` proves it with two.",
    )


def microbatches(text: str | None) -> int:
    """A number of microbatches, from 2 on; 1 for None."""
    return _several(
        text,
        10**5,
        f"`--accumulate {text}` is not a number of microbatches from 2 on.",
        "With `--accumulate 4` each device works on its share in four parts, one after the other.",
    )


def _several(text: str | None, most: int, reason: str, hint: str) -> int:
    """A number of two or more; 1 for None."""
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 2 <= int(text) <= most):
        refuse(reason, hint)
    return int(text)


def _check_accumulate(options: Mapping[str, Any], backend: Backend) -> None:
    """Refuse what microbatches do not go with.

    Raises:
        RefusalError: JP018, JP046.
    """
    number = microbatches(options.get("accumulate"))
    if number == 1:
        return
    if backend is Backend.JIT:
        raise refused(
            "JP046",
            f"`--accumulate {number}` divides each device's own rows, and jit code has no such: it is about "
            "the batch of all devices",
            "Use --backend shard_map, or --backend pmap",
        )
    if options.get("in_place"):
        refuse("`--accumulate` makes a file of its own, and `--in-place` makes none.", "Drop one of them.")
    if (options.get("remainder") or "error") != "error":
        refuse(
            f"`--accumulate {number}` takes shares in multiples of {number} rows, and `--remainder` makes "
            "batches that the devices share evenly, and no more.",
            "Drop one: `--accumulate`, or `--remainder`.",
        )


#: The value of `--backend` that leaves the form to the proof.
AUTO = "auto"


def _check_topology(options: Mapping[str, Any], backend: Backend) -> None:
    """Refuse a machine for code that takes the devices of its own process, or in place.

    Raises:
        RefusalError: JP018, JP046.
    """
    name = options.get("topology")
    if not name:
        return
    if options.get("in_place"):
        refuse("`--target` compiles a file of its own, and `--in-place` makes none.", "Drop one of them.")
    if backend is Backend.PMAP:
        raise refused(
            "JP046",
            f"`--target {name}` is compiled from code that places arrays on a mesh, and pmap takes the "
            "devices that are there",
            "Use --backend jit, or --backend shard_map",
        )


def _check_explicit(options: Mapping[str, Any], backend: Backend, *, choose: bool) -> None:
    """Refuse explicit mode for forms in which no array is global.

    Raises:
        RefusalError: JP046.
    """
    if options.get("explicit") and (choose or backend is not Backend.JIT):
        form = AUTO if choose else backend
        raise refused(
            "JP046",
            f"`--explicit` gives the arrays of jit code their shardings as a part of their types, and "
            f"`--backend {form}` "
            + ("may take another form" if choose else "has the share of one device inside"),
            "Use --backend jit",
        )


def _check_processes(options: Mapping[str, Any]) -> None:
    """Refuse what several processes are not run with.

    Raises:
        RefusalError: JP018.
    """
    number = processes(options.get("processes"))
    if number == 1:
        return
    for name in ("devices", "in_place", "no_run", "run"):
        if options.get(name):
            word = f"--{name.replace('_', '-')}"
            refuse(
                "`--processes` runs a file of its own on all devices of several processes, and "
                f"`{word}` asks for something else.",
                f"Drop one: `--processes`, or `{word}`.",
            )
    if (options.get("remainder") or "error") != "error":
        refuse(
            "`--remainder` makes a batch even by its own rows; with `--processes` each process has others.",
            "Drop one: `--processes`, or `--remainder`.",
        )
    size = math.prod(axis.size for axis in mesh(options.get("mesh")))
    if size % number and options.get("mesh"):
        refuse(
            f"`--mesh {options['mesh']}` has {size} devices, which {number} processes do not share evenly.",
            "Change one of them.",
        )


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


def split_shard(text: str) -> tuple[str, int]:
    """``"tokens:1"`` is ``("tokens", 1)``, ``"x"`` is ``("x", 0)``; a colon in brackets is the path's."""
    name, colon, axis = text.strip().rpartition(":")
    if not colon or "]" in axis:
        return text.strip(), 0
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


def check_run(run: str | None, inputs: str | None, args: Sequence[str]) -> None:
    """Refuse what contradicts `--run`: other examples.

    Raises:
        RefusalError: JP018, naming the option.
    """
    for name, given in (("inputs", inputs), ("arg", args)):
        if run is not None and given:
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
    options = {**options, "inputs": _in_file_of(options["target"], options["inputs"] or own.inputs)}
    given = any(options[name] for name in _ROLES)
    options |= {name: options[name] or getattr(own, name) for name in (*(() if given else _ROLES), "arg")}
    # `verify` emits nothing that could be arranged.
    if "parallel" not in options and not any(options.get(name) for name in MESH):
        options |= {name: getattr(config, name) or options.get(name) for name in MESH}
    _check_roles(options)
    # The program that makes a parallel function need not be where its reference's arguments come from.
    if "parallel" not in options:
        check_run(options["run"], options["inputs"], options["arg"])
    _check_no_run(options)
    _check_processes(options)
    arranged: dict[str, Any] = {
        "axis_name": axis_name(options["axis_name"]) or config.axis_name,
        "devices": devices(options["devices"])
        if options["devices"] is not None
        else config.devices or Devices(),
    }
    arranged |= _meshed(options, config)
    backend = config.backend or Backend.PMAP
    choose = options["backend"] == AUTO
    if choose:
        backend = Backend.JIT if arranged.get("mesh") else Backend.SHARD_MAP
    elif options["backend"] is not None:
        names = [*(str(name) for name in Backend), AUTO]
        backend = Backend(one_of("--backend", options["backend"], names))
    if config.explicit and backend is Backend.JIT and not choose:
        options |= {"explicit": True}
    _check_topology(options, backend)
    _check_accumulate(options, backend)
    _check_explicit(options, backend, choose=choose)
    return Request(
        target=options["target"],
        **arranged,
        backend=backend,
        choose=choose,
        explicit=bool(options.get("explicit")),
        inputs=options["inputs"],
        args=options["arg"],
        run=options["run"],
        stub=tuple(map(package, options.get("stub", ()))),
        shard=options["shard"],
        replicate=options["replicate"],
        static=options["static"],
        key=options["key"],
        donate=options["donate"],
        helpers=tuple(dict.fromkeys(one_of("--helper", name, HELPERS) for name in options["helper"])),
        remainder=one_of("--remainder", options.get("remainder") or "error", REMAINDERS),
        processes=processes(options.get("processes")),
        accumulate=microbatches(options.get("accumulate")),
        topology=options.get("topology"),
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


def _in_file_of(target: str, reference: str | None) -> str | None:
    """`reference`; a name alone is of the same file or module as `target`."""
    if reference is None or ":" in reference:
        return reference
    return re.sub(r"[^:]*$", "", target) + reference


#: What a command line says of one, in this order.
_WORDS = (
    *("against", "layout", "against_layout", "convert", "axis_name", "devices", "run", "inputs", "plan"),
    *("backend", "mesh", "remainder", "accumulate", "processes"),
    *("stub", "arg", "shard", "replicate", "static", "key", "donate", "helper", "spec"),
    *("explicit", "fsdp", "topology", "no_run", "in_place", "output"),
)
#: Options that have another name there.
_WRITTEN = {"topology": "--target", "output": "-o"}


def command_line(options: Mapping[str, Any], command: str = "gen") -> str:
    """The command that gives the same answer anywhere; of `gen`, the same code.

    What belongs to one machine or one screen (interpreter, limits, colour, ``--diff``) is left out, so that
    the header of an emitted file does not depend on it.
    """
    words = ["jax-pmap", command, options["target"]]
    for name in _WORDS:
        given = options.get(name)
        word = _WRITTEN.get(name, f"--{name.replace('_', '-')}")
        for each in given if isinstance(given, tuple | list) else [given] if given else []:
            words += [word] if each is True else [word, each]
    return shlex.join(words)
