"""How options are declared: under headings of the help, and those that several commands take."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

#: Headings of the help, in order; options without one (``--help``) go under the last.
_SECTIONS = ("Output", "Inputs", "Roles", "Rules", "Parallel code", "Running", "Screen")


class Option(click.Option):
    """An option that knows under which heading the help shows it."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Take the value, unless that is the option behind it: ``--axis-name --devices 4``."""
        value = opts.get(self.name or "")
        if any(value in each.opts for each in ctx.command.params if isinstance(value, str)):
            raise click.BadOptionUsage(
                self.opts[0],
                f"Option '{self.opts[0]}' requires an argument, and '{value}' is an option.",
                ctx,
            )
        return super().handle_parse_result(ctx, opts, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What a shell offers for the value: by the word that the help shows for it."""
        metavar = self.metavar or ""
        if metavar in ("PATH", "FILE"):
            return complete_file(ctx, self, incomplete)
        if metavar in ("FILE::FUNC", "REFERENCE"):
            return complete_target(ctx, self, incomplete)
        if metavar == "CODE":
            return complete_code(ctx, self, incomplete)
        words = metavar.split("|")
        return (
            _those(words, incomplete)
            if all(map(str.islower, words))
            else super().shell_complete(ctx, incomplete)
        )


def two_colons(ctx: click.Context, param: click.Parameter, reference: str | None) -> str | None:
    """``FILE::FUNC`` or ``package.module:FUNC``, where a file may be followed by one colon as well."""
    return reference and re.sub(r"(?<=\.py):(?!:)", "::", reference)


def complete_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, which the shell itself lists."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, and behind ``FILE::`` the functions in it."""
    file, double, _ = incomplete.partition("::")
    if not double:
        return complete_file(ctx, param, incomplete)
    from jax_pmap.sources import decode, parse, read_bytes
    from jax_pmap.syntax.definitions import functions_in

    try:
        tree = parse(decode(read_bytes(Path(file)) or b"", file).text, file)
    except Exception:  # half a file, half a name: nothing to offer, and nobody to tell
        return []
    return _those([f"{file}::{name}" for name in functions_in(tree)], incomplete)


def complete_code(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Diagnostic codes."""
    import jax_pmap.diagnostics as diagnostics

    return _those(sorted(diagnostics.codes()), incomplete.upper())


def _those(words: list[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class Command(click.Command):
    """A command whose help lists the options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each heading a section."""
        for heading in _SECTIONS:
            options = [p for p in self.get_params(ctx) if getattr(p, "section", _SECTIONS[-1]) == heading]
            records = [o.get_help_record(ctx) for o in options if isinstance(o, click.Option)]
            if any(records):
                with formatter.section(heading):
                    formatter.write_dl([record for record in records if record is not None])


def option(*names: str, section: str, **kwargs: Any) -> Decorator:
    """`click.option`, shown under a heading."""
    return click.option(*names, cls=Option, section=section, **kwargs)


def _no_proof_is_gone(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given:
        raise click.UsageError(
            "`--no-proof` is gone: all code is shown equal. "
            "`gen --no-run` derives that and does not run the code.",
            context,
        )


#: What options that are given once for each argument have in common.
_MANY: dict[str, Any] = {"multiple": True, "metavar": "NAME"}
#: Outermost first.
_COMMON: tuple[Decorator, ...] = (
    click.argument("target", callback=two_colons, shell_complete=complete_target),
    option(
        "--report",
        section="Output",
        metavar="FILE",
        help="Also write what was found as one HTML page.",
    ),
    option(
        "--run",
        section="Inputs",
        metavar="COMMAND",
        help="Your program, such as 'python train.py': its first call of TARGET is the example.",
    ),
    option(
        "--inputs",
        section="Inputs",
        callback=two_colons,
        metavar="FILE::FUNC",
        help="Function that returns the arguments.",
    ),
    option(
        "--arg",
        section="Inputs",
        multiple=True,
        metavar="NAME=SPEC",
        help="Example for one argument: 'x=f32[64,8]', 'batch={x: f32[64,8], y: i32[64]<10}', 'rng=key'.",
    ),
    option(
        "--stub",
        section="Inputs",
        multiple=True,
        metavar="PACKAGE",
        help="Import nothing of a package that only loads data or logs: every use of it does nothing.",
    ),
    option("--shard", section="Roles", multiple=True, metavar="NAME[:AXIS]", help="Split over devices."),
    option("--replicate", section="Roles", **_MANY, help="Whole on every device."),
    option("--static", section="Roles", **_MANY, help="Compile-time constant."),
    option("--key", section="Roles", **_MANY, help="PRNG key."),
    option("--donate", section="Roles", **_MANY, help="Let the call reuse its buffers."),
    option(
        "--axis-name",
        section="Parallel code",
        metavar="NAME",
        help="Name of the mapped axis.  [default: the one in the body, else batch]",
    ),
    option(
        "--devices",
        section="Parallel code",
        metavar="N|ID,ID,...",
        help="How many devices, or which.  [default: all]",
    ),
    option(
        "--backend",
        section="Parallel code",
        metavar="pmap|shard_map|jit|auto",
        help="Form of the code; auto: the best of those that are proved.  [default: pmap]",
    ),
    option(
        "--explicit",
        section="Parallel code",
        is_flag=True,
        help="In jit code, axes of jax's explicit mode: shardings are part of the types of arrays.",
    ),
    option(
        "--mesh",
        section="Parallel code",
        metavar="AXIS=N,...",
        help="Arrange devices: 'data=4,model=2'. The batch goes along --axis-name, else the first.",
    ),
    option(
        "--spec",
        section="Parallel code",
        multiple=True,
        metavar="PATHS=AXES",
        help="Divide arrays over the mesh: '.*kernel=None,model', a pattern of paths, an axis a dimension.",
    ),
    option(
        "--fsdp",
        section="Parallel code",
        is_flag=True,
        help="Divide large parameters and their state along the axis of the batch.",
    ),
    option(
        "--helper",
        section="Parallel code",
        multiple=True,
        metavar="place|devices",
        help="Also emit: place the next batch early; report the devices in use.",
    ),
    option(
        "--remainder",
        section="Parallel code",
        metavar="error|pad|drop",
        help="What to do with a batch that does not divide.  [default: error]",
    ),
    option(
        "--no-proof",
        section="Running",
        is_flag=True,
        hidden=True,
        expose_value=False,
        callback=_no_proof_is_gone,
    ),
    option(
        "--python",
        section="Running",
        metavar="PATH",
        help="Your interpreter.  [default: $VIRTUAL_ENV, ./.venv, this one]",
    ),
    option(
        "--timeout",
        section="Running",
        metavar="SECONDS",
        help="Limit for each step.  [default: 300]",
    ),
    option("--memory", section="Running", metavar="SIZE", help="Memory limit, such as 8G.  [default: 8G]"),
    option(
        "--target",
        "topology",
        section="Running",
        metavar="MACHINE",
        help="Also compile for TPUs that are not there, such as v5e:2x4: what a chip holds, and what fits.",
    ),
    option(
        "--output-format",
        section="Screen",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Text for people, or one JSON document.",
    ),
    option("-q", "--quiet", section="Screen", is_flag=True, help="Print refusals only."),
    option("-v", "--verbose", section="Screen", is_flag=True, help="Print every step, and how long it took."),
    option("--no-color", section="Screen", is_flag=True, help="No colour, no progress line."),
)


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options every command that runs a target takes."""
    for decorate in reversed(_COMMON):
        function = decorate(function)
    return function


#: What `gen` takes besides; outermost first.
_GENERATION: tuple[Decorator, ...] = (
    option(
        "-o",
        "--output",
        section="Output",
        metavar="FILE",
        # As everywhere: "-" is stdout.
        callback=lambda ctx, param, output: None if output == "-" else output,
        help="Write the code to FILE instead of stdout.",
    ),
    option(
        "--in-place", section="Output", is_flag=True, help="Change TARGET where it stands, in its own file."
    ),
    option("--diff", section="Output", is_flag=True, help="Print the patch; change no file of yours."),
    option("--force", section="Output", is_flag=True, help="Overwrite FILE, whoever wrote or edited it."),
    option(
        "--accumulate",
        section="Parallel code",
        metavar="K",
        help="Work on each device's share in K parts, one after the other, and add up: less memory.",
    ),
    option(
        "--processes",
        section="Parallel code",
        metavar="N",
        help="Code for several processes (jax.distributed), proved by running N of them.",
    ),
    option("--plan", section="Output", metavar="FILE", help="Emit this plan, from `jax-pmap plan`, as JSON."),
    option(
        "--no-run", section="Running", is_flag=True, help="Derive the proof; do not run the emitted code."
    ),
)


def generation(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and the options of `gen`, which `check` reads in the header of a file, too."""
    for each in reversed(_GENERATION):
        function = each(function)
    return common(function)
