"""How a parallel function of the user's is called: which arguments are split, and in which layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from jax_pmap.inputs.capture import program_ended
from jax_pmap.inputs.load import Loaded
from jax_pmap.locate import object_span
from jax_pmap.model import Leaf, Refusal, RefusalError, Request, Role, Source, refused
from jax_pmap.planning.no_batch import no_batch
from jax_pmap.planning.plan import chain
from jax_pmap.planning.reference import batch_of, grown_axes
from jax_pmap.planning.roles import RoleFinder, Roles
from jax_pmap.planning.search import CANDIDATES
from jax_pmap.problems import error_details, error_line, error_span
from jax_pmap.proof.layouts import layout_words, read_layout, with_axis
from jax_pmap.proof.notes import not_tried
from jax_pmap.proof.prove import STEPS
from jax_pmap.proof.reference import Reference, runs_in
from jax_pmap.proof.requests import steps_into
from jax_pmap.proof.runs import ENDS, LAYOUTS, Run
from jax_pmap.reading.target import Target
from jax_pmap.threads import at_once
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Call, Comparison, Layout, Problem

#: In what jax says where arrays do not lie on an explicit mesh as a `shard_map` wants them.
LIES_OTHERWISE = "does not match the specs of the input"
#: The score of `_choose` for results that are equal, and what each device count adds on which they are.
SURE, EVERY_COUNT = 300, 10
#: The batch axis of what is split, by argument and index of its array.
LeafAxes = Mapping[str, Mapping[int, int]]


class Calling:
    """Finds out how a parallel function is called, by calling it.

    Attributes:
        runs: the device counts that are looked at.
        left_out: arguments of the reference that the function does not take.
    """

    def __init__(
        self,
        target: Target,
        source: Source,
        called: protocol.Object,
        program: str,
        layout: str | None,
        reference: Reference,
        request: Request,
        runs: list[Run],
        say: Callable[[str], None],
    ) -> None:
        self.target, self.source, self.request, self.reference = target, source, request, reference
        self.name, self.object, self.layout, self.say = source.qualname, called, layout, say
        #: All device counts, and those that are looked at.
        self.every, self.runs = runs, runs
        #: The program that makes it, as typed; ``""`` without one.
        self.program = program
        #: Arguments that the reference changes in place.
        self.mutated: list[str] = []
        self.left_out: tuple[str, ...] = ()
        #: Arguments that look like data, and are not said to be whole.
        self.data: tuple[str, ...] = ()
        #: Arguments with arrays that are more than a number.
        self.arrays: tuple[str, ...] = ()
        #: Arguments of which something is split in the calls that were tried last.
        self.divided: tuple[str, ...] = ()

    def search(
        self,
        runs: list[Run],
        finder: RoleFinder,
        candidates: Iterable[Roles],
        loaded: Loaded,
        whole: protocol.Traced,
    ) -> tuple[int, Comparison, Layout] | None:
        """How well the best way to call ends (see `_choose`), the question with its roles, and its layout.

        None where no way runs on some of the counts that are looked at, and others are left.
        """
        self.runs = runs
        best: tuple[int, Comparison, Layout] | None = None
        ended: list[tuple[int, Roles, Layout]] = []
        tried = 0
        said = {text.partition("[")[0] for text in self.request.replicate}
        self.data = tuple(name for name in finder.likely_data() if name not in said)
        self.arrays = tuple(dict.fromkeys(leaf.argument for leaf in finder.leaves if leaf.shape))
        copied: list[str] = []
        uncalled: RefusalError | None = None
        for roles in candidates:
            if tried >= CANDIDATES:
                break
            too_small = batch_of(roles, loaded) < self.every[0].devices
            if too_small and tried:
                continue  # What the others came to says more.
            if any(finder.leaves_data_whole(roles, before) for _, before, _ in ended):
                continue  # All of the batch on every device, and nothing would be asked.
            tried += not too_small
            question = self._question(roles, loaded, whole)
            parallel = self.reference.mapped or self.reference.layout is not None or whole.mapped
            if parallel:
                try:
                    called = self._how_the_reference(roles, loaded)
                except RefusalError as refusal:
                    uncalled = uncalled or refusal
                    continue
                question = dataclasses.replace(question, reference=called)
            layouts = self._read_layouts(self.layout, roles, loaded)
            if layouts is not None and not _shares(layouts[0], roles):
                # Each device would get a copy of everything, and nothing would be asked.
                copied = [name for name, leaves in roles.axes.items() if leaves]
                continue
            self.divided = tuple(name for name, leaves in roles.axes.items() if leaves)
            self.say(f"planning: finding out how `{self.name}` is called")
            at_once(lambda run: self._try(run, roles, loaded, question, layouts), runs)  # noqa: B023
            chosen, score = self._choose()
            if chosen is not None:
                ended.append((score, roles, chosen))
            if chosen is not None and (best is None or score > best[0]):
                best = score, question, chosen
                kept = [(list(run.tried), run.skipped, run.problem) for run in self.runs]
            # A batch that is too small for some count may be no batch at all.
            if best is not None and best[0] >= SURE + EVERY_COUNT * len(self.runs):
                break
        if best is None and uncalled is not None:
            raise uncalled
        if best is None and self.runs is self.every:
            if not finder.found:
                session, replicated = self.runs[-1].session, finder.request.replicate
                raise no_batch(session, self.target, loaded, finder.trace_error, replicated)
            if copied and not any(run.tried for run in self.runs):
                names = " and ".join(f"`{name}`" for name in copied)
                raise refused(
                    "JP018",
                    f"`--layout {self.layout}` gives no device axis to what is split, which is {names}",
                    f"Give it one: --layout {copied[0]}=devices,…; or say what is split: --shard NAME",
                    self.target.facts.span,
                )
            raise RefusalError(self.not_called())
        if best is not None:
            self._hold_shares(ended, best[0], loaded, finder)
            for run, (calls, skipped, problem) in zip(self.runs, kept, strict=True):
                run.tried, run.skipped, run.problem = calls, skipped, problem
            best = (*best[:2], self._with_parts(best[1].roles.axes, best[2], loaded))
        return best

    def _with_parts(self, axes: LeafAxes, layout: Layout, loaded: Loaded) -> Layout:
        """The layout, with parts in place of copies of a second batch, where these give other results.

        On every device, all unlabelled rows beside a part of the labelled ones say nothing of parts of both.
        Nobody makes copies for a function that takes other arrays as they are, but of what is in one argument
        with the batch, where everything has a device axis.

        Raises:
            RefusalError: JP018, where all that is not the batch is given as copies.
        """
        split = {name for name, leaves in axes.items() if leaves}
        for other in self._tried_layouts():
            apart = [name for name, form in layout.items() if form != other[name]]
            parts = all((layout[name], other[name]) == ("devices", "parts") for name in apart)
            if not apart or not parts or max(run.ends(other) for run in self.runs) != ENDS.index("value"):
                continue
            if "whole" not in {layout[name] for name in self.arrays} or not split.isdisjoint(apart):
                forms = ",".join(f"{name}={form}" for name, form in with_axis(other))
                paths = [path for name in apart for path in _other_arrays(name, axes, loaded)]
                names = " and ".join(f"`{path}`" for path in paths)
                raise refused(
                    "JP018",
                    f"what is split is not clear: given {names} in parts, `{self.name}` gives other results "
                    "than the reference, and given all of it on every device, the same",
                    f"Say how your program gives it: --layout {forms} for parts, or "
                    + " ".join(f"--replicate {quoted(path)}" for path in paths),
                    self.target.facts.span,
                )
            return other
        return layout

    def _hold_shares(
        self,
        ended: Sequence[tuple[int, Roles, Layout]],
        best: int,
        loaded: Loaded,
        finder: RoleFinder,
    ) -> None:
        """Refuse to take copies of an array for shares of it, where only copies give the reference's results.

        Either may be how the function is called: an array may be as long as the batch by chance. Parameters
        may be divided by chance, too, and are then no answer for what looks more like data.
        """
        chosen = next(index for index, (score, _, _) in enumerate(ended) if score == best)
        _, roles, layout = ended[chosen]
        leaves = {argument["name"]: argument["leaves"] for argument in loaded.described}
        for score, others, _ in ended[:chosen]:
            copied = [
                (name, index)
                for name, split in others.axes.items()
                for index in split
                if index not in roles.axes.get(name, {}) and layout[name] != "whole"
            ]
            asked = batch_of(others, loaded) == batch_of(roles, loaded) or finder.likelier(others, roles)
            if score >= ENDS.index("value") * 100 and copied and asked:
                paths = [leaves[name][index]["path"] for name, index in copied]
                raise refused(
                    "JP018",
                    f"what is split is not clear: given `{paths[0]}` in shares, `{self.name}` gives other "
                    "results than the reference, and given all of it on every device, the same",
                    f'Say how your program gives it: --shard "{paths[0]}", or --replicate "{paths[0]}"',
                    self.target.facts.span,
                )

    def _question(self, roles: Roles, loaded: Loaded, whole: protocol.Traced) -> Comparison:
        """What every request of the proof says of the reference."""
        lead, facts = self.runs[-1].session, self.target.facts
        axes = grown_axes(lead, roles, batch_of(roles, loaded), whole)
        outputs = [
            Leaf(
                "result" + leaf["path"],
                Role.REPLICATED if axis is None else Role.BATCH,
                axis,
                tuple(leaf["shape"]),
                leaf["dtype"],
            )
            for leaf, axis in zip(whole.out, axes, strict=True)
        ]
        pairs = chain(loaded.described, roles, whole.tree, outputs, facts.returned_names, self.mutated)
        return Comparison(
            roles.request(),
            chain=tuple((argument, steps_into(where)) for argument, where in pairs),
            steps=STEPS if pairs else 2,
            global_view=False,
            donated=(*facts.donated_parameters, *self.request.donate),
        )

    def _how_the_reference(self, roles: Roles, loaded: Loaded) -> protocol.Called | None:
        """How the reference is called, where it runs on several devices itself; see `Reference.found`."""
        if self.reference.source is None:
            return None
        self.say(f"finding out how `{self.reference.source.qualname}` is called")
        layouts = self._read_layouts(self.reference.layout, roles, loaded, "against-layout")
        size = batch_of(roles, loaded)

        def ask(run: Run, layouts: tuple[Layout, ...] | None) -> tuple[int, Sequence[Call]]:
            return run.devices, self.reference.calls(run.session, run.devices, roles.request(), layouts)

        able = [run for run in self.runs if size >= run.devices]
        found = dict(at_once(lambda run: ask(run, layouts), able))
        layout = self.reference.chosen(found)
        if layout is not None and layouts is None:
            others = [run for run in able if not any(runs_in(each, layout) for each in found[run.devices])]
            found |= at_once(lambda run: ask(run, (layout,)), others)
        return self.reference.found(found, layout)

    def _read_layouts(
        self, typed: str | None, roles: Roles, loaded: Loaded, option: str = "layout"
    ) -> tuple[Layout, ...] | None:
        if typed is None:
            return None
        batch = {name for name, leaves in roles.axes.items() if leaves}
        arrays = {a["name"]: bool(a["leaves"]) and a["name"] not in roles.statics for a in loaded.described}
        return (read_layout(typed, arrays, batch, option),)

    def _try(
        self,
        run: Run,
        roles: Roles,
        loaded: Loaded,
        question: Comparison,
        layouts: tuple[Layout, ...] | None,
    ) -> None:
        run.tried, run.skipped, run.problem = (), self.reference.unable.get(run.devices), None
        run.short = False
        size = batch_of(roles, loaded)
        if run.skipped is not None:
            return
        if size < run.devices:
            run.skipped = f"not on {run.devices} devices: the batch of the inputs is {size}"
            run.short = True
            return
        try:
            # What the next call gets back is state, whatever its name, and no second batch.
            state = {name for name, _ in question.chain}
            unsaid = self.layout in (None, "stacked")
            data = tuple(name for name in self.data if name not in state) if unsaid else ()
            asked = protocol.TryLayouts(question, self.object, run.devices, layouts, data)
            answer = run.session.ask(asked, f"calling `{self.name}` on {run.devices} devices")
        except Problem as problem:
            if problem.kind not in protocol.NOT_FOUND:
                raise
            run.problem = problem
            return
        if answer.skipped is not None:
            run.skipped = not_tried(answer.skipped)
        else:
            run.tried, run.batch = answer.tried, answer.batch
            self.left_out = answer.left_out
            if layouts is not None and "=" in (self.layout or ""):
                self._honoured(layouts[0], run.tried[0].layout)

    def _honoured(self, asked: Mapping[str, str], called: Mapping[str, str]) -> None:
        """Refuse a layout that was asked for by argument and is not the one of the call."""
        lost = next((name for name, form in asked.items() if called[name] != form), None)
        if lost is not None:
            raise refused(
                "JP018",
                f"`--layout` says how `{lost}` is given, and `{self.name}` does not take it",
                f"Leave `{lost}` out of --layout",
                object_span(self.source),
            )

    def _choose(self) -> tuple[Layout | None, int]:
        """The layout that ends best on most device counts, and how well.

        Of some that end alike the one whose results come nearest to the reference's, then the earliest.
        """
        natural = self._natural()
        if natural is not None:
            return natural, SURE + EVERY_COUNT * len(self.runs)
        best: tuple[int, tuple[float, ...], Layout] | None = None
        for layout in self._tried_layouts():
            ends = [other.ends(layout) for other in self.runs]
            score = (
                max(ends) * 100 + sum(EVERY_COUNT for end in ends if end == max(ends)) + sum(map(bool, ends))
            )
            off = [each.off for run in self.runs for each in run.calls(layout) if each.off]
            far: tuple[float, ...] = min(off, default=())
            if max(ends) > 0 and (best is None or score > best[0] or (score == best[0] and far < best[1])):
                best = score, far, layout
        if best is None and self.layout is not None and any(run.tried for run in self.runs):
            # The way of calling was asked for: that it fails is the answer.
            return next(run.tried[0].layout for run in self.runs if run.tried), 1
        return (None, 0) if best is None else (best[2], best[0])

    def _tried_layouts(self) -> list[Layout]:
        """Every way of calling that was tried on some device count."""
        found: list[Layout] = []
        for run in self.runs:
            found += [each.layout for each in run.tried if each.layout not in found]
        return found

    def _natural(self) -> Layout | None:
        """The call as the reference is called, where it runs and gives something else.

        That answers the question: another way of calling under which the results would agree is a hint, and
        no reason to take that one. Where it runs on some device counts alone, it has to run on all of their
        devices and with several rows on each: a function that wants an axis of devices takes another axis
        for it where that is as long, or shorter.
        """
        if self.layout is not None:
            return None
        called = [
            (run, run.tried[0])
            for run in self.runs
            if run.tried and set(run.tried[0].layout.values()) == {"whole"}
        ]
        if any(each.ends == "raises" for _, each in called):
            called = [
                (run, each) for run, each in called if run.batch > run.devices and each.on == run.devices
            ]
        return next((each.layout for _, each in called if each.ends in ("value", "form")), None)

    def not_called(self) -> Refusal:
        """Why there was nothing to compare."""
        problems = [(run, run.problem) for run in self.runs if run.problem is not None]
        tried = [each for run in self.runs for each in run.tried]
        directory = self.request.directory
        if problems and not tried:
            run, problem = problems[0]
            if problem.kind == "program":
                at = object_span(self.source)
                return program_ended(problem, run.session, self.program, self.source, at, makes=True).refusal
            if problem.kind == "import":
                return Refusal(
                    "JP008",
                    f"`{self.source.shown_path}` cannot be imported: {problem.message}",
                    f"Make the file importable: `python -c 'import {self.source.module}'` must work",
                    error_span(problem.error, directory, self.source),
                    error_details(problem.error),
                )
            return Refusal(
                "JP002",
                f"`{self.source.shown_path}`: {problem.message}",
                f"Functions in it: {', '.join(f'`{name}`' for name in problem.known[:8])}"
                if problem.known
                else "Name a function, or a variable that holds one: FILE::NAME",
            )
        if not tried:
            return Refusal(
                "JP041",
                f"`{self.name}` was run on no device count: "
                + "; ".join(run.skipped for run in self.runs if run.skipped),
                "Give example inputs with a batch of 24, or another multiple of 2, 3, 4 and 8",
                self.target.facts.span,
            )
        errors: dict[str, protocol.Raised] = {}
        for each in tried:
            if each.error is not None:
                errors.setdefault(layout_words(each.layout), each.error)
        shown = [f"{words}: {error_line(error)}" for words, error in list(errors.items())[:4]]
        first = next(iter(errors.values()))
        hint = "Give it inputs it takes"
        if any(LIES_OTHERWISE in each.message for each in errors.values()):
            hint = (
                "Its mesh has axes of explicit mode, which `jax.make_mesh` makes by default, and arrays have "
                "to lie as `in_specs` say. Verify a function that puts them there: `def placed(*args): "
                f"return {self.name}(*jax.device_put(args, shardings))`, with a `NamedSharding(mesh, spec)` "
                "for each argument; or make the mesh with `axis_types=(jax.sharding.AxisType.Auto,)`, one "
                "for each axis"
            )
        else:
            if self.divided and not self.request.shard:
                split = " and ".join(f"`{name}`" for name in self.divided)
                hint += f", or say what is split, which is taken to be {split}: --shard NAME"
            if self.layout is None:
                hint += f"; or how it is called: {LAYOUTS}"
        return Refusal(
            "JP021",
            f"`{self.name}` fails in every way of calling it that was tried",
            hint,
            error_span(first, directory, self.source),
            ("\n".join(shown),),
        )


def again(known: list[Roles], candidates: Iterator[Roles]) -> Iterator[Roles]:
    """The candidates that are `known`, then the others, which are kept there."""
    yield from known
    for roles in candidates:
        known.append(roles)
        yield roles


def _other_arrays(name: str, axes: LeafAxes, loaded: Loaded) -> list[str]:
    """What of an argument is in rows beside those that are split: paths of its arrays, or all of it."""
    split = axes.get(name, {})
    leaves = next(argument["leaves"] for argument in loaded.described if argument["name"] == name)
    own = [leaf["path"] for index, leaf in enumerate(leaves) if index not in split and leaf["shape"]]
    return own if split else [name]


def quoted(path: str) -> str:
    """A path as it is typed in a shell."""
    return f'"{path}"' if "[" in path else path


def _shares(layout: Layout, roles: Roles) -> bool:
    """Whether a call in `layout` gives devices shares of what is split, or nothing a device axis at all."""
    split = {name for name, leaves in roles.axes.items() if leaves}
    with_axis = {name for name, form in layout.items() if form != "whole"}
    return not with_axis or bool(split & with_axis)
