"""The command line: options in, code and JSON to stdout, everything for people to stderr, exit codes.

Heavy modules (the pipeline, rich) are imported by the commands that need them, not here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from jax_pmap.command_options import (
    Command,
    Option,
    common,
    complete_code,
    complete_file,
    complete_target,
    generation,
    option,
    two_colons,
)
from jax_pmap.terminal import (
    Progress,
    drop_stdout,
    is_of_printing,
    open_closed_streams,
    styled,
    unwound,
    width,
    write_stdout,
)

if TYPE_CHECKING:
    from jax_pmap.checking.run import CheckRequest
    from jax_pmap.diagnostics import Diagnostic
    from jax_pmap.model import Fit, Generated, Plan, Refusal, Request, Say, Unchanged, Verified

    Answer: TypeAlias = Generated | Plan | Fit | Unchanged | Verified | Refusal

EXIT_COULD_NOT_ASK = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


# --- exit codes ---------------------------------------------------------------------------


class _Group(click.Group):
    """A group whose exit codes and last words are ours instead of click's."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **kwargs: Any
    ) -> Any:
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **kwargs)
        words = sys.argv[1:] if args is None else list(args)
        open_closed_streams()
        try:
            if args is None:
                _collect_less()
            code = super().main(words, standalone_mode=False, **kwargs)
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("jax-pmap: interrupted", err=True)
            code = EXIT_INTERRUPTED
        except BrokenPipeError:
            drop_stdout()
            code = EXIT_BROKEN_PIPE
        except OSError as error:
            if is_of_printing(error):
                _print_refusal(_stdout_failed(error))
                code = EXIT_COULD_NOT_ASK
            else:
                code = _report_bug(error, verbose=not {"-v", "--verbose"}.isdisjoint(words))
        except Exception as error:
            code = _report_bug(error, verbose=not {"-v", "--verbose"}.isdisjoint(words))
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` start with, and the rest of them."""
        if ":" in args[0]:
            ctx.fail(f"A command comes before '{args[0]}', such as: jax-pmap gen {args[0]}")
        return super().resolve_command(ctx, args)


def _print_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from jax_pmap.version import VERSION

        click.echo(f"jax-pmap {VERSION}")
        context.exit()


# --- commands -----------------------------------------------------------------------------


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\
\b
Examples:
  jax-pmap gen train.py::train_step
  jax-pmap plan train_step --output-format json
  jax-pmap explain JP043

Exit status: 0 done and proved, 1 the answer is no, 2 the question could not be asked.
""",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@click.option(
    "--confined",
    is_flag=True,
    help="Run the project's own code only, touch no other file: for commands approved beforehand.",
)
def main(confined: bool) -> None:
    """Turn a single-device JAX function into a multi-device one.

    The result is code you own, shown equal to the original on simulated devices before you get it.
    """


@main.command(
    cls=Command,
    short_help="Write the multi-device version of a function.",
    epilog="""\
\b
Examples:
  jax-pmap gen train_step
  jax-pmap gen train.py::train_step \\
      --inputs train.py::make_inputs \\
      -o train_pmap.py
  jax-pmap gen train_step \\
      --run "python train.py --steps 1"
  jax-pmap gen train.py::main.step \\
      --run "python train.py" --in-place
  jax-pmap gen model.py::predict \\
      --arg 'params={w: f32[8,2], b: f32[2]}' \\
      --arg 'x=f32[64,8]' --devices 4
""",
)
@generation
def gen(**options: Any) -> int:
    """Write the multi-device version of TARGET, proved equal to it.

    TARGET is FUNC, FILE::FUNC or package.module:FUNC. The code goes to stdout (or to FILE with -o), the
    report to stderr.
    """
    return _answer(options, _generate)


@main.command(
    cls=Command,
    short_help="Show what would be done to each argument and value.",
    epilog="""\
\b
Examples:
  jax-pmap plan train.py::train_step
  jax-pmap plan train_step --shard tokens:1
  jax-pmap plan train_step \\
      --output-format json > plan.json
  jax-pmap gen train_step --plan plan.json
""",
)
@common
def plan(**options: Any) -> int:
    """Show what would be done to each argument and value of TARGET.

    TARGET is FUNC, FILE::FUNC or package.module:FUNC. The table goes to stderr, JSON to stdout.
    """
    return _answer(options, _plan)


#: Options of the other commands that `verify` takes as well.
_VERIFY = frozenset(
    {
        "run",
        "inputs",
        "arg",
        "stub",
        "shard",
        "replicate",
        "static",
        "key",
        "donate",
        "devices",
        "python",
        "timeout",
        "memory",
    }
    | {"report", "output_format", "quiet", "verbose", "no_color"}
)


@main.command(
    cls=Command,
    short_help="Prove a multi-device function that you wrote.",
    params=[option for option in plan.params if option.name in _VERIFY],
    epilog="""\
\b
Examples:
  jax-pmap verify train.py::p_train_step \\
      --against train.py::train_step
  jax-pmap verify parallel.py::step \\
      --against train.py::train_step --layout stacked

Exit status: 0 equal, 1 not equal, 2 the question could not be asked.
""",
)
@click.argument("parallel", callback=two_colons, shell_complete=complete_target)
@option(
    "--against",
    section="Inputs",
    callback=two_colons,
    metavar="REFERENCE",
    required=True,
    help="What it should equal: the single-device function, or another parallel one.",
)
@option(
    "--layout",
    section="Inputs",
    metavar="LAYOUT",
    help="How PARALLEL is called: drop-in, stacked, batch or NAME=devices,...  [default: found by trying]",
)
@option(
    "--against-layout",
    section="Inputs",
    metavar="LAYOUT",
    help="How REFERENCE is called, where it is parallel itself, in the same words.",
)
@option(
    "--convert",
    section="Inputs",
    callback=two_colons,
    metavar="[NAME=]FILE::FUNC",
    help="Function from a tree of REFERENCE to that of PARALLEL: the same arrays, renamed.",
)
def verify(**options: Any) -> int:
    """Prove that PARALLEL gives the same results as REFERENCE.

    PARALLEL is FILE::NAME or package.module:NAME: what `jax.pmap` or `shard_map` made, or a function; or
    FILE::main.NAME, made by `main` of the program that --run names. It is run on 2, 3, 4 and 8 devices,
    imported or made anew for each, with the inputs of the reference. Where the reference takes (B, ...), it
    may take (N, B/N, ...) and copies (N, ...) of the rest. A REFERENCE that is parallel itself, as the step
    that PARALLEL is to replace, is run on as many devices.
    """
    return _answer({**options, "target": options["parallel"]}, _verify)


@main.command(
    cls=Command,
    short_help="Check parallel code, for CI.",
    epilog="""\
\b
Examples:
  jax-pmap check
  jax-pmap check src --output-format github
  jax-pmap check --select JP10 --fix train.py
  jax-pmap check - --stdin-filename train.py < train.py

Exit status: 0 nothing found, 1 something found, 2 part of it could not be checked.
""",
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=complete_file)
@option("--fix", section="Output", is_flag=True, help="Mend what can be mended for certain.")
@option("--accept", section="Output", is_flag=True, help="Prove edited generated files, and keep them.")
@option("--select", section="Rules", multiple=True, metavar="CODE", help="Only these, such as JP104 or JP1.")
@option("--ignore", section="Rules", multiple=True, metavar="CODE", help="All but these.")
@option("--stdin-filename", section="Inputs", metavar="FILE", help="Name of the text given as `-`.")
@option("--no-run", section="Running", is_flag=True, help="Read only: run nothing, prove nothing.")
@option("--python", section="Running", metavar="PATH", help="Your interpreter.  [default: as for gen]")
@option("--timeout", section="Running", metavar="SECONDS", help="Limit for each step.  [default: 300]")
@option("--no-cache", section="Running", is_flag=True, help="Look at every file anew.")
@option(
    "--output-format",
    section="Screen",
    type=click.Choice(["text", "json", "github", "sarif"]),
    default="text",
    help="Text for people, one document, or annotations.",
)
@option("-q", "--quiet", section="Screen", is_flag=True, help="No summary.")
@option("-v", "--verbose", section="Screen", is_flag=True, help="Print every step, and how long it took.")
@option("--no-color", section="Screen", is_flag=True, help="No colour, no progress line.")
def check(**options: Any) -> int:
    """Check the parallel code below each PATH (default: the current folder).

    What is found goes to stdout, a summary to stderr. A comment `# jax-pmap: ignore[JP104]` on a line
    switches a rule off there.
    """
    from jax_pmap.checking.run import check as run_check
    from jax_pmap.model import Refusal, RefusalError

    progress = Progress()
    # A file can take a minute: what is proved is named, also where nobody sees a live line.
    with progress.shown(options, lines=lambda note: not note.startswith("reading:")) as say, unwound():
        try:
            result = run_check(_check_request(options), say)
        except RefusalError as error:
            result = error.refusal
    if isinstance(result, Refusal):
        _print_report({**options, "output_format": "text"}, result, None, None)
        return EXIT_COULD_NOT_ASK
    from jax_pmap.report import findings

    form = options["output_format"]
    shown = findings.render(result, form, color=styled(sys.stdout, options))
    if result.text is not None:  # a text was given and is handed back mended: the rest goes to stderr
        write_stdout(result.text)
        click.echo(shown, err=True, nl=False)
    else:
        write_stdout(shown)
    if not options["quiet"]:
        for file, note in result.notes:
            click.echo(f"{file}: note: {note}", err=True)
        click.echo(f"jax-pmap: {findings.summary(result)}", err=True)
    if options["verbose"]:
        progress.print_stages()
    return result.exit_code


def _check_request(options: dict[str, Any]) -> CheckRequest:
    from jax_pmap.checking.run import CheckRequest
    from jax_pmap.model import DEFAULT_TIMEOUT
    from jax_pmap.options import codes, timeout

    paths = options["paths"]
    if _is_confined():
        from jax_pmap.confined import confine_check

        writes = next((f"--{name}" for name in ("fix", "accept") if options[name]), None)
        confine_check(paths, Path.cwd(), run=not options["no_run"], writes=writes)
    if options["accept"]:
        _check_accept(options)
    text = None
    if paths == ("-",):
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    return CheckRequest(
        paths=paths,
        select=codes(options["select"]),
        ignore=codes(options["ignore"]),
        fix=options["fix"],
        accept=options["accept"],
        run=not options["no_run"],
        cache=not options["no_cache"],
        python=Path(options["python"]) if options["python"] else None,
        timeout=timeout(options["timeout"]) if options["timeout"] else DEFAULT_TIMEOUT,
        text=text,
        text_name=options["stdin_filename"] or "<stdin>",
    )


def _check_accept(options: dict[str, Any]) -> None:
    from jax_pmap.options import refuse

    if not options["paths"] or options["paths"] == ("-",):
        refuse("`--accept` has no file to prove.", "Name it: `jax-pmap check --accept FILE`.")
    for name in ("no_run", "fix"):
        if options[name]:
            word = f"--{name.replace('_', '-')}"
            refuse(f"`--accept` proves what was edited by hand, and `{word}` does not.", "Drop one.")


@main.command(
    short_help="Explain a diagnostic code.",
    epilog="""\
\b
Examples:
  jax-pmap explain JP043
  jax-pmap explain
""",
)
@click.argument("code", required=False, shell_complete=complete_code)
def explain(code: str | None) -> int:
    """Say what a diagnostic CODE means, why it bites, and the cure.

    Without CODE, list them all.
    """
    import jax_pmap.diagnostics as diagnostics

    if code is None:
        write_stdout("".join(f"{name}  {_found(name).title}\n" for name in diagnostics.codes()))
        return 0
    diagnostic = diagnostics.find(code.upper())
    if diagnostic is None:
        near = diagnostics.nearest(code)
        guess = f"Did you mean {near}? " if near else ""
        click.echo(
            f"Error: {code!r} is not a diagnostic code. {guess}`jax-pmap explain` lists them all.", err=True
        )
        return EXIT_COULD_NOT_ASK
    from jax_pmap.report.explanation import explanation

    write_stdout(explanation(diagnostic, width=width(), bold=styled(sys.stdout)))
    return 0


@main.command(hidden=True)
def version() -> int:
    """Print the version, as --version does."""
    from jax_pmap.version import VERSION

    write_stdout(f"jax-pmap {VERSION}\n")
    return 0


def _found(code: str) -> Diagnostic:
    import jax_pmap.diagnostics as diagnostics

    diagnostic = diagnostics.find(code)
    assert diagnostic is not None
    return diagnostic


# --- one question, one answer -------------------------------------------------------------


def _generate(options: dict[str, Any], say: Say) -> tuple[Generated | Unchanged | Refusal, str | None]:
    """The answer of `gen`, written to its file if there is one; and the patch that was asked for."""
    import jax_pmap.options as read
    from jax_pmap.model import Generated

    output = options["output"]
    if options["in_place"]:
        return _generate_in_place(options, say)
    if options["diff"] and not output:
        read.refuse("`--diff` has no file to compare with.", "Name it: `-o FILE`, or `--in-place`.")
    if options["force"] and not output:
        read.refuse("`--force` has no file to overwrite.", "Name it: `--force -o FILE`.")
    request = _request(options)
    if output:
        _check_not_target(Path(output), request)
    if output and not options["diff"]:
        from jax_pmap.files import check_writable

        check_writable(Path(output), force=options["force"])

    result = _generated(request, options, say)
    if not isinstance(result, Generated) or not output:
        return result, None
    if options["diff"]:
        from jax_pmap.report.patch import patch

        return result, patch(Path(output), result.code)
    from jax_pmap.files import write_code

    write_code(Path(output), result.code, force=options["force"])
    return result, None


def _check_not_target(output: Path, request: Request) -> None:
    """Refuse to write over the target's own file; a target that is not found is refused with the work."""
    from jax_pmap.files import check_not_target
    from jax_pmap.locate import locate
    from jax_pmap.model import RefusalError

    if not output.is_file():
        return
    try:
        source = locate(request.target, request.directory)
    except RefusalError:
        return
    check_not_target(output, source)


def _check_report(options: dict[str, Any]) -> None:
    """Refuse now a report that could not be written when all is done."""
    import jax_pmap.options as read
    from jax_pmap.files import check_page

    if options.get("output") and Path(options["output"]).resolve() == Path(options["report"]).resolve():
        read.refuse(f"`-o` and `--report` name the same file, `{options['output']}`.", "Give each its own.")
    if _is_confined():
        from jax_pmap.confined import refuse_writing

        refuse_writing("--report")
    check_page(Path(options["report"]))
    options["report_fits"] = True


def _generated(request: Request, options: dict[str, Any], say: Say) -> Generated | Refusal:
    """The answer of the pipeline, or that of the same question with `--diff` where nothing changed since."""
    from jax_pmap.checking.proved import generate_or_recall

    result, age = generate_or_recall(request, say, keep=options["diff"])
    if age is not None:
        options["recalled"] = age
    return result


def _generate_in_place(
    options: dict[str, Any], say: Say
) -> tuple[Generated | Unchanged | Refusal, str | None]:
    """The answer of `gen --in-place`, written to the target's own file; and the patch that was asked for."""
    import jax_pmap.options as read
    from jax_pmap.files import check_writable, replace_text
    from jax_pmap.model import Generated
    from jax_pmap.pipeline import parallel_already

    for name in ("output", "force"):
        if options[name]:
            read.refuse(
                f"`--in-place` changes the file of the target; `--{name}` is for another.", "Drop one."
            )
    request = _request(options)
    unchanged = parallel_already(request)
    if unchanged is not None:
        return unchanged, "" if options["diff"] else None
    result = _generated(request, options, say)
    if not isinstance(result, Generated) or result.edited is None:
        return result, None
    source = result.edited
    if options["diff"]:
        from jax_pmap.report.patch import patch_in_place

        return result, patch_in_place(source, result.code)
    check_writable(source.path, force=True)
    replace_text(source, result.code)
    return result, None


def _request(options: dict[str, Any]) -> Request:
    """The question the options ask, with the project's own defaults."""
    import jax_pmap.options as read
    from jax_pmap.config import read_config

    request = read.request(options, read_config(Path.cwd()))
    if _is_confined():
        from jax_pmap.confined import confine

        also = {name: options.get(name) for name in ("parallel", "convert", "output")}
        confine(request, **also)
    return request


def _is_confined() -> bool:
    """Whether `--confined` stands in front of the command."""
    return bool(click.get_current_context().find_root().params.get("confined"))


def _plan(options: dict[str, Any], say: Say) -> tuple[Plan | Fit | Refusal, None]:
    if options["topology"]:
        # The form of which a compiler makes the most; pmap code takes the devices that are there.
        options = {**options, "backend": options["backend"] or "jit"}
    request = _request(options)

    # What is sent over such a mesh, only the compiler says.
    if request.topology or options["report"] or request.mesh:
        from jax_pmap.pipeline import fit

        return fit(request, say), None
    from jax_pmap.pipeline import make_plan

    return make_plan(request, say), None


def _verify(options: dict[str, Any], say: Say) -> tuple[Verified | Refusal, None]:
    # What the form of emitted code is asked with means nothing here.
    unasked = {p.name: () if p.multiple else None for p in plan.params if isinstance(p, Option)}
    request = _request({**unasked, **options, "target": options["against"]})

    from jax_pmap.pipeline import verify as hold

    how = {"against_layout": options["against_layout"], "convert": options["convert"]}
    inspect = bool(options["report"])
    return hold(options["parallel"], request, options["layout"], say, inspect=inspect, **how), None


def _answer(
    options: dict[str, Any],
    ask: Callable[[dict[str, Any], Say], tuple[Answer, str | None]],
) -> int:
    """Ask, print the answer on the right streams, and return the exit code."""
    from jax_pmap.model import Fit, Generated, Refusal, RefusalError, Verified

    patch: str | None = None
    result: Answer
    progress = Progress()
    with progress.shown(options) as say, unwound():
        try:
            if options["report"]:
                _check_report(options)
            result, patch = ask(options, say)
        except RefusalError as error:
            result = error.refusal
    refused = isinstance(result, Refusal)
    written = None if refused or options.get("diff") else options.get("output")
    if isinstance(result, Generated) and result.edited is not None and not options["diff"]:
        written = result.edited.shown_path
    report = None
    if options.get("report_fits") and isinstance(result, Generated | Fit | Verified | Refusal):
        try:
            _write_report(options, result, written)
            report = options["report"]
        except RefusalError as error:
            result = error.refusal
    try:
        if options["output_format"] == "json":
            from jax_pmap.report import as_json

            if isinstance(result, Verified) or (isinstance(result, Refusal) and "against" in options):
                document = as_json.verified_to_dict(result, options["target"], options["against"], report)
            else:
                document = as_json.report_to_dict(
                    result, target=options["target"], output=written, diff=patch, report=report
                )
            write_stdout(as_json.dumps(document | as_json.stages_to_dict(progress.stages())))
        elif patch is not None:
            write_stdout(patch)
        elif not isinstance(result, Refusal) and hasattr(result, "code") and not written:
            write_stdout(result.code)
    except OSError as error:
        result, written = _stdout_failed(error), None
        options = {**options, "output_format": "text"}  # stderr is what is left
    _print_report(options, result, written, patch, report)
    if options["verbose"]:
        progress.print_stages()
    if isinstance(result, Refusal):
        import jax_pmap.diagnostics as diagnostics

        # `verify` says no where it compared: whatever else kept it from that is no answer.
        compared = "against" not in options or result.code == "JP045"
        return diagnostics.exit_code(result.code) if compared else 2
    return 0


def _write_report(
    options: dict[str, Any], result: Generated | Fit | Verified | Refusal, written: str | None
) -> None:
    from jax_pmap.files import write_page
    from jax_pmap.options import command_line
    from jax_pmap.report.page import page

    command = command_line(options, click.get_current_context().info_name or "gen")
    html = page(result, target=options["target"], command=command, written=written)
    write_page(Path(options["report"]), html)


def _print_refusal(refusal: Refusal) -> None:
    from jax_pmap.report.console import make_console
    from jax_pmap.report.refusals import print_refusal

    print_refusal(refusal, make_console(sys.stderr, plain=not styled(sys.stderr)))


def _stdout_failed(error: OSError) -> Refusal:
    from jax_pmap.model import Refusal

    drop_stdout()
    return Refusal(
        "JP016",
        f"Standard output cannot be written: {error.strerror or error}.",
        "Write to a file with `-o FILE`.",
    )


def _print_report(
    options: dict[str, Any],
    result: Answer,
    written: str | None,
    patch: str | None,
    report: str | None = None,
) -> None:
    """What people read, on stderr; beside JSON only where nobody sees that."""
    from jax_pmap.model import Fit, Generated, Refusal, Unchanged, Verified
    from jax_pmap.report import text
    from jax_pmap.report.console import make_console, print_line
    from jax_pmap.report.refusals import print_refusal

    refused = isinstance(result, Refusal)
    if options["quiet"] and not refused:
        return
    if options["output_format"] == "json" and (sys.stdout.isatty() or not sys.stderr.isatty()):
        return
    console = make_console(sys.stderr, plain=not styled(sys.stderr, options))
    if isinstance(result, Refusal):
        print_refusal(result, console)
    elif isinstance(result, Generated):
        text.print_generated(result, console)
        if "recalled" in options:
            print_line(
                f"the proof is that of {options['recalled']:.0f} s ago: nothing changed since", console
            )
        if written:
            print_line(f"wrote {written}", console)
        elif patch == "":
            print_line(f"{options['output']} is up to date", console)
    elif isinstance(result, Unchanged):
        print_line(f"{result.target} is already parallel: nothing to do", console)
        print_line("whether it still is what its command makes: jax-pmap check", console)
        if options.get("report"):
            print_line(f"{options['report']} was not written: nothing was proved now", console)
    elif isinstance(result, Verified):
        text.print_verified(result, console)
    elif isinstance(result, Fit):
        text.print_plan(result.plan, console, result.machine, result.compiled)
    else:
        text.print_plan(result, console)
    if report:
        print_line(f"wrote {report}", console)


def _collect_less() -> None:
    """Keep the garbage collector from walking through all imported modules again and again.

    What the modules made stays to the end of the process, and the end itself would take a tenth of a second.
    """
    import atexit
    import gc

    gc.set_threshold(50_000)
    atexit.register(gc.freeze)


def _report_bug(error: Exception, *, verbose: bool) -> int:
    """One line for an exception nobody expected; the traceback only on request."""
    if verbose:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    more = "this output" if verbose else "the output of the same command under -v"
    click.echo(
        f"jax-pmap: this is a bug in jax-pmap ({what}). Please report it with {more}: see CONTRIBUTING.md.",
        err=True,
    )
    return EXIT_BUG
