"""Find the keys to fold with the device's index: those of draws that belong to examples.

The function is traced on the whole batch and on shares with every key marked where it stands in
the source. A draw whose shape grows with the batch needs a key that differs between devices; the
last place its key passes on the way there, where nothing else is drawn from it or made of it and it is
neither returned nor handed to the next round of a loop, is where it is folded. Keys inside objects (the
streams of Flax NNX) have no place in the source; those of an argument are folded when the function begins,
and are as they were when it ends.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jax_pmap.emit.places import Body, Expression
from jax_pmap.emit.weave import woven_source
from jax_pmap.model import AROUND, FOLD, Refusal, Sync
from jax_pmap.planning.coupling import fails_on_share, shortened
from jax_pmap.planning.events import containers_above
from jax_pmap.planning.observe import Observer
from jax_pmap.planning.roles import Roles
from jax_pmap.worker import protocol

#: Rounds of folding and looking again: one finds the folds, two open functions, one confirms.
ROUNDS = 5
#: Why a key cannot be another on every device.
SHARED = "numbers that all devices share are drawn from it too"
#: A way out of all of these.
BY_JIT = "or try --backend jit, where all is drawn as on one device"


def find_folds(
    observer: Observer,
    roles: Roles,
    overrides: Mapping[str, str],
    count: int,
    syncs: Sequence[Sync],
    *,
    settled: bool = True,
) -> tuple[Sync, ...] | Refusal:
    """The folds that `syncs` need beside them, or why the draws cannot be kept apart (JP051).

    While the collectives are not `settled`, a share that cannot be traced says nothing.
    """
    found = _folds(observer, roles, overrides, count, syncs, settled, used=False)
    if isinstance(found, Refusal) and found.code == "JP051":
        # Draws that go into no result may be the same on every device.
        again = _folds(observer, roles, overrides, count, syncs, settled, used=True)
        return found if isinstance(again, Refusal) else again
    return found


def _folds(
    observer: Observer,
    roles: Roles,
    overrides: Mapping[str, str],
    count: int,
    syncs: Sequence[Sync],
    settled: bool,
    used: bool,
) -> tuple[Sync, ...] | Refusal:
    """`find_folds` of all draws, or of those that are `used`."""
    folds: list[Sync] = []
    root = observer.call_graph.target.source.root
    find = observer.callees(roles, overrides)
    ways = iter((observer.open_called, find.open_run))
    for _ in range(ROUNDS):
        answer = _survey(observer, roles, overrides, count, [*syncs, *folds], used)
        raised = fails_on_share(observer.facts, answer.raised, None, root) if answer.raised else None
        if raised is not None and (raised.final or settled):
            return raised
        if (answer.unfollowed or raised) and not settled:
            return ()
        if answer.unfollowed:
            return Refusal(
                "JP051",
                f"the random numbers `{observer.facts.name}` draws on the whole batch and on a share of it "
                f"cannot be matched: {answer.unfollowed}",
                "Draw them outside any loop over the examples, or pass one key per example",
                observer.facts.span,
            )
        needed = {i for i, draw in enumerate(answer.draws) if draw.example and not draw.varying}
        inside = [sync.value for sync in (*syncs, *folds) if sync.op == FOLD and sync.where == AROUND]
        if inside and answer.returned:
            return Refusal(
                "JP051",
                f"random numbers that belong to examples come from the streams of `{inside[0]}`, whose keys "
                "have to be others on every device, and a copy of them is returned",
                "Return the rest without them (`nnx.state(model, nnx.Not(nnx.RngKey))`), or have `nnx.merge` "
                "and `nnx.value_and_grad` work on one model: no copy=True",
                observer.facts.span,
            )
        if not needed:
            return tuple(folds)
        found, lost = _choose(observer, answer, needed)
        if lost and (open_more := next(ways, None)) is not None:
            open_more()
            continue
        if lost or not found:
            return _entangled(observer, answer, lost or sorted(needed), find.why)
        if mixed := sorted(i for i in needed if answer.draws[i].mixed):
            return _entangled(observer, answer, mixed, {})
        folds += found
        if not settled:
            return tuple(folds)  # They are looked at again, with the collectives.
    return _entangled(observer, answer, sorted(needed), find.why)


def _survey(
    observer: Observer,
    roles: Roles,
    overrides: Mapping[str, str],
    count: int,
    syncs: Sequence[Sync],
    used: bool,
) -> protocol.Draws:
    points = [e.point for e in expressions(observer).values() if not e.in_test]

    def tapped(body: Body) -> str:
        return woven_source(
            body, syncs, points, observer.name_of(body), words=observer.words, renames=observer.renames(body)
        )

    observer.say("following the random keys")
    code, around = tapped(observer.body), observer.around(tapped)
    request = protocol.SurveyDraws(
        roles.request(),
        overrides,
        protocol.Tapped(observer.facts.name, code, around),
        observer.axis_name,
        count,
        used,
    )
    return observer.session.ask(request, "following the random keys")


def expressions(observer: Observer) -> dict[int, Expression]:
    """Every expression of the observed bodies by its point, names of other scopes too."""
    return {e.point: e for body in observer.bodies for e in (*body.expressions, *body.free)}


def _choose(observer: Observer, answer: protocol.Draws, needed: set[int]) -> tuple[list[Sync], list[int]]:
    """Folds for the needed draws, and the draws for which there is no place."""
    by_number = expressions(observer)
    # Those that differ for another reason, as in a loop that ends by the examples, take no harm from a fold.
    own = {i for i, draw in enumerate(answer.draws) if draw.example}
    passed: dict[tuple[int, str], set[int]] = {}
    surely: dict[tuple[int, str], set[int]] = {}
    barred: set[tuple[int, str]] = set()
    inside: dict[tuple[int, str], set[int]] = {}
    for number, mark in enumerate(answer.marks):
        at = mark.point, mark.path
        drawn = {i for i, draw in enumerate(answer.draws) if number in draw.marks}
        passed.setdefault(at, set()).update(drawn)
        surely.setdefault(at, set()).update(i for i in drawn if number in answer.draws[i].always)
        if mark.point < 0:
            inside[at] = drawn
            if drawn - own:
                barred.add(at)
            continue
        # A display's members speak for it, and what is subscripted may be changed there.
        holds = bool(mark.path) and not (by_number[mark.point].is_call or named(by_number[mark.point]))
        if mark.kept or mark.carried or not mark.bare or drawn - own or holds:
            barred.add(at)
    divided = {(mark.point, mark.path) for mark in answer.marks if mark.divided}

    def preference(number: int) -> tuple[bool, bool, int]:
        """The last place, if there is one, where the key has a name and no other keys are made of it."""
        mark = answer.marks[number]
        unnamed = bool(mark.path) and mark.point >= 0 and not named(by_number[mark.point])
        return not unnamed, not mark.divided, number

    chosen: list[tuple[int, str]] = []
    lost = []
    for i in sorted(needed):
        # A key that a loop carries has passed more marks, but not on its way to the first round.
        marks = {n: answer.marks[n] for n in answer.draws[i].always}
        places = {n: (mark.point, mark.path) for n, mark in marks.items()}
        free = [n for n, at in places.items() if at not in barred]
        if not free:
            lost.append(i)
        elif (best := places[max(free, key=preference)]) not in chosen:
            chosen.append(best)
    for at in list(chosen):
        # What another fold further up has kept apart already needs none of its own.
        others = {i for other in chosen if other != at for i in surely[other]}
        if passed[at] <= others:
            chosen.remove(at)
    out = [
        Sync(FOLD, value, AROUND, observer.body.head)
        for value in _objects(observer, [at for at in chosen if at in inside], inside, own)
    ]
    by_point: dict[int, list[str]] = {}
    for point, path in (at for at in chosen if at not in inside):
        by_point.setdefault(point, []).append(path)
    for point, paths in by_point.items():
        expression = by_number[point]
        downward = any((point, path) in divided for path in paths)
        tree = next((m.tree for m in answer.marks if m.point == point and m.tree), None)
        containers = () if paths == [""] else containers_above(paths, tree)
        if containers is None:
            lost += sorted(needed)
            continue
        fold = Sync(FOLD, expression.text, "wrap", expression.span, tuple(paths), containers)
        out.append(replace(fold, downward=downward))
    return sorted(out, key=lambda sync: (sync.span.line, sync.span.column)), lost


def named(expression: Expression) -> bool:
    """Whether an expression is a name, with or without attributes, that may be written several times."""
    return expression.text.replace(".", "").replace("_", "").isalnum()


def _objects(
    observer: Observer,
    chosen: Sequence[tuple[int, str]],
    inside: Mapping[tuple[int, str], set[int]],
    own: set[int],
) -> list[str]:
    """Source of the objects whose keys are folded around the body, for keys inside arguments.

    An argument as a whole, where none of its keys must stay the same on all devices; else its streams. Where
    a key is folded that nothing is drawn from, that changes nothing.
    """
    out: list[str] = []
    for point in dict.fromkeys(point for point, _ in chosen):
        name = observer.facts.parameters[-1 - point].name
        if all(drawn <= own for (other, _), drawn in inside.items() if other == point):
            out.append(name)
        else:
            out += [name + path.removesuffix(".key") for other, path in chosen if other == point]
    return out


def _entangled(
    observer: Observer, answer: protocol.Draws, lost: Sequence[int], closed: Mapping[str, str]
) -> Refusal:
    """A draw for examples whose key cannot be folded anywhere; `closed` says what was not opened, and why.

    It may have a key of its own inside.
    """
    expression: Expression | None = None
    stream = within = ""
    why = "no key of its own in the source leads to it"
    for i in lost:
        for number in answer.draws[i].marks:
            mark = answer.marks[number]
            if mark.point < 0:
                name = observer.facts.parameters[-1 - mark.point].name
                stream = name + mark.path.removesuffix(".key")
                continue
            expression = expressions(observer)[mark.point]
            same = [
                n
                for n, other in enumerate(answer.marks)
                if (other.point, other.path) == (mark.point, mark.path)
            ]
            shared = any(
                set(same) & set(draw.marks) and not (draw.example and not draw.varying)
                for draw in answer.draws
            )
            if any(answer.marks[n].kept for n in same):
                why = "it is also returned, and would then differ between devices"
            elif shared:
                why, within = SHARED, mark.path
            elif answer.draws[i].mixed:
                why = "in another round of a loop numbers that all devices share are drawn from it"
            else:
                why = "it is many keys here, not one"
    if expression is None and stream:
        return Refusal(
            "JP051",
            f"random numbers that belong to examples come from the stream `{stream}`, so its key has to be "
            "another on every device, but numbers that all devices share are drawn from it too",
            "Give those a stream of their own: `nnx.Rngs(0)` in the module that draws them, or another name "
            f"(`rngs.noise()`), with `nnx.Rngs(params=0, dropout=1, noise=2)`; {BY_JIT}",
            observer.facts.span,
        )
    # Python's own, as `len`, draw nothing.
    unknown = ((called, told) for called, told in closed.items() if told and not hasattr(builtins, called))
    unread = next((f"; nor can jax-pmap read the source of `{each}`: {told}" for each, told in unknown), "")
    if expression is None:
        return Refusal(
            "JP051",
            f"`{observer.facts.name}` draws random numbers for examples, and {why}: each device would draw "
            f"the same ones for other examples{unread}",
            "Pass the key as an argument, or split it with jax.random.split in the function itself; "
            f"{BY_JIT}",
            observer.facts.span,
        )
    way_out = (
        "Split it first (`key, noise_key = jax.random.split(key)`) and use one part for the examples alone"
    )
    if why == SHARED:
        unread = ""  # What is known to be drawn is reason enough.
        way_out = f"Draw those from another stream than `{within}`" if within else way_out
        way_out += (
            ". Where it is the dropout of flax's attention, which draws one mask for all examples, "
            "`broadcast_dropout=False` draws for each, and a rate of 0 draws none"
        )
    return Refusal(
        "JP051",
        f"random numbers that belong to examples are drawn from the key `{shortened(expression.text)}`, so "
        f"it has to be another on every device, but {why}{unread}",
        f"{way_out}; {BY_JIT}",
        expression.span,
    )
