"""Trace tapped code for a plan: the original on the whole batch, beside it the woven code on shares."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import arguments, observe, placed, protocol, prove
from .arguments import Packed, Values
from .around import furnish
from .budget import size as operations
from .exceptions import attempted, describe_exception, summary
from .following import for_all_sizes
from .jaxpr import symbolic
from .jaxpr.trace import Traced, abstract_leaves, counts_for, resized
from .marks import is_no_mark
from .protocol import Problem
from .target import Target, current, leaf_axes
from .work import work

#: Leaves of values in all answers that are kept.
MOST_LEAVES = 300_000


def observe_code(request: protocol.Observe) -> protocol.Observation:
    """What each value of tapped code is on shards, beside the tapped original on the whole batch.

    A plan that is begun anew asks the same questions until it decides otherwise: they are answered once.
    """
    return current().once(
        "observed", protocol.encode(request), lambda: _answer(request), most=MOST_LEAVES, weigh=_leaves
    )


def _leaves(answer: protocol.Observation) -> int:
    return sum(len(event["leaves"]) for event in answer.events)


def _answer(request: protocol.Observe) -> protocol.Observation:
    """The answer to a question that was not asked lately.

    It is told from placements: both are traced from shapes, the code on the shares of several counts of
    devices.

    The batch is of so many `rows`, or the given one, as far as the devices share its minibatches. Where the
    function fails on that, or on a share of it (a reshape that wants pairs), every share is as large as that
    batch; so it is where a share is another program than the whole: `jnp.einsum` contracts in an order that
    is best for the sizes there are. A function that is one program for all sizes does not fail for one of
    them, and what a larger batch was once of no use for is not asked of it again.
    """
    target, axes, count = current(), leaf_axes(request.roles), request.count
    if request.own_sizes:
        return observed(request, None)
    base = arguments.batch_size(target.values(request.overrides), axes)
    unit = count * request.roles.minibatches
    if isinstance(axes, arguments.MadeInside):
        return observed(request, request.rows or base)
    if request.rows is not None:
        return observed(request, -(-request.rows // unit) * unit)
    at = functools.cache(functools.partial(observed, request))
    larger = target.once("larger", protocol.encode((request.roles, request.overrides, count)), _Larger)
    if larger.is_of_use and (found := at(base * count)).raised is None and not found.apart:
        return found
    try:
        answer = at(base // unit * unit or base * count)
    except Problem as problem:
        if problem.kind != "reference":
            raise
        try:
            return at(base * count)
        except Problem:
            raise problem from None
    if answer.raised is None and (not answer.apart or larger.is_of_use is False):
        return answer
    if answer.raised is not None and is_one_program(request, target):
        return answer
    try:
        found = at(base * count)
    except Problem:
        return answer
    is_better = found.raised is None and (not found.apart or answer.raised is not None)
    if answer.raised is None:
        larger.is_of_use = is_better
    return found if is_better else answer


@dataclass
class _Larger:
    """Whether a share of a larger batch was the program that the whole is, where one of this is another.

    None where that was not asked.
    """

    is_of_use: bool | None = None


def is_one_program(request: protocol.Observe, target: Target) -> bool:
    """Whether the original is one program for all sizes of its batch, also on a share.

    Collectives of its own may make other numbers of the number of devices: code with such is traced for one
    number of them too, once.
    """
    roles = request.roles
    if request.own_sizes or roles.made or roles.minibatches > 1:
        return False
    with prove.x64(target.x64):
        if for_all_sizes(roles, request.overrides) is None:
            return False
        if not target.collectives and not target.one_device.axes:
            return True
        about = protocol.encode((roles, request.overrides, request.axis_name, request.count))
        return target.once("one on all devices", about, lambda: _takes_any_number(request, target))


def _takes_any_number(request: protocol.Observe, target: Target) -> bool:
    """Whether woven code with a symbol in place of its rows is what it is with numbers, of devices too."""
    count = request.count
    rows = arguments.batch_size(target.values(request.overrides), leaf_axes(request.roles)) // count
    traces = Traces(request, target, rows * count)
    if (program := traces.symbolic(request.tapped)) is None:
        return False
    made = attempted(traces.with_numbers, request.tapped, count)
    return made is not None and symbolic.is_at(program.jaxpr, rows, made.jaxpr, count)


def observed(request: protocol.Observe, size: int | None) -> protocol.Observation:
    """The answer of `observe_code` from a batch of `size`, or from leaves as they are.

    Raises:
        Problem: ``"reference"``, the original is not traced for so many.
    """
    target = current()
    traces = Traces(request, target, size)
    with prove.x64(target.x64):
        whole = traces.whole()
        try:
            first = traces.share(request.count)
        except MemoryError:
            raise
        except BaseException as error:
            events = traces.recorder.events
            return protocol.Observation(
                tuple(placed.compare_forms(whole.program.events, events, request.count)),
                describe_exception(error, hide="_jax_pmap"),
                events[-1]["point"] if events else None,
                operations=operations(whole.program.jaxpr),
            )
        # Collectives are operations that only shares have: what the first trace shows, without any, counts.
        otherwise = target.once("otherwise", traces.about, lambda: traces.is_another(whole.program, first))
        events, idle, alone = placed.events_of_some(
            whole,
            first,
            request.count,
            traces.share,
            traces.counts,
            request.axis_name,
            traces.packed,
            traces.axes,
            request.roles.minibatches,
            request.results,
            request.own_sizes,
        )
    parts, all_of_it = (work(each.jaxpr, is_no_mark) for each in (first, whole.program))
    return protocol.Observation(
        tuple(events),
        share=parts / max(all_of_it, 1.0),
        idle=tuple(sorted(idle.items())),
        reached=tuple(sorted(whole.program.reached | first.reached)),
        others=tuple(sorted(first.others)),
        apart=alone or otherwise,
        operations=operations(whole.program.jaxpr),
    )


@dataclass
class _Latest:
    """Whether the code that was traced last on a share did not come to its end."""

    failed: bool = False


class Traces:
    """The traces that one request asks for.

    Where the original is one program for all sizes of its batch, a share is traced once, with a symbol for
    its rows, and the shares of all counts of devices are made of that: tracing is most of what a plan takes.

    Attributes:
        recorder: what tapped code writes to.
        packed: the inputs, taken apart.
        axes: their batch axes.
        counts: numbers of devices that shares may be traced for.
        about: what the traces are about besides the text of the code.
    """

    def __init__(self, request: protocol.Observe, target: Target, size: int | None) -> None:
        self._request, self._target = request, target
        self.axes = leaf_axes(request.roles)
        self.recorder = observe.Recorder(request.results, target.mutated)
        self.packed = Packed(target.values(request.overrides), request.roles.statics)
        given = abstract_leaves(self.packed, self.axes, size)
        self._leaves = list(zip(given, self.packed.axes(self.axes), strict=True))
        told = self.axes, request.overrides, request.own_sizes, request.results, request.axis_name
        #: The same of traces with a symbol in place of the size.
        self._about_all = protocol.encode(told)
        self.about = self._about_all, size
        if size is None:
            # What shares all of them evenly. What has a size of 1 is broadcast, which is another program.
            sizes = [leaf.shape[axis] for leaf, axis in self._leaves if axis is not None]
            self._size = math.gcd(*sizes)
            counts = counts_for(self._size, request.count, 7)
            self.counts = [*(each for each in counts if each < min(sizes)), 1]
        else:
            self._size = size
            self.counts = counts_for(size // request.roles.minibatches, request.count, 7)

    def whole(self) -> placed.Whole:
        """The original on the whole batch.

        Raises:
            Problem: ``"reference"``, it is not traced so.
        """
        key = protocol.encode(self._request.original), *self.about
        whole = self._target.once("placed", key, self._whole, most=2)
        self.recorder.most = self._request.count * observe.largest(whole.program.events)
        return whole

    def share(self, devices: int) -> placed.Program:
        """The woven code on one of the shares of so many devices.

        With a symbol for its rows first, unless the code before it failed: so does most code after that which
        gathers something else, and what fails with numbers fails with symbols.
        """
        code, latest = self._request.tapped, self._target.once("latest", (), _Latest)
        failed, latest.failed = latest.failed, True
        made = self.with_numbers(code, devices) if failed else None
        program = self.symbolic(code) if self._is_one else None
        numbers = unfolded(self._size // devices, devices)
        if program is None:
            program, numbers = made or self.with_numbers(code, devices), unfolded(self._size)
        latest.failed = False
        return program.with_numbers(numbers)

    def is_another(self, whole: placed.Program, share: placed.Program) -> bool:
        """Whether a share is another program than the whole batch."""
        return not self._is_one and placed.is_another(whole, share)

    @functools.cached_property
    def _is_one(self) -> bool:
        """Whether the original is one program for all sizes of its batch."""
        return is_one_program(self._request, self._target)

    def with_numbers(self, code: protocol.Tapped, devices: int) -> placed.Program:
        """Tapped code on one of the shares of so many devices."""
        leaves = [
            leaf if axis is None else resized(leaf, axis, leaf.shape[axis] // devices)
            for leaf, axis in self._leaves
        ]
        return self._traced(code, leaves, devices)

    def symbolic(self, code: protocol.Tapped) -> placed.Program | None:
        """Tapped code on a share of any size; None where Python code has to know it."""

        def made() -> placed.Program | None:
            rows = symbolic.rows()
            leaves = [leaf if axis is None else resized(leaf, axis, rows) for leaf, axis in self._leaves]
            self.recorder.most = None
            program = symbolic.traced(lambda: self._traced(code, leaves, symbolic.DEVICES))
            return program if program is not None and program.has_polynomials() else None

        # The original stays while the code beside it changes from round to round.
        question = "original" if code == self._request.original else "woven"
        key = protocol.encode(code), self._about_all
        found: placed.Program | None = self._target.once(f"{question}, with symbols", key, made, most=1)
        return found

    def _whole(self) -> placed.Whole:
        code, leaves = self._request.original, [leaf for leaf, _ in self._leaves]
        # An axis of its own is that of one device here.
        own = self._target.collectives or self._target.one_device.axes
        made = self.symbolic(code) if self._is_one and not own else None
        if made is not None:
            return placed.Whole(made.with_numbers(unfolded(self._size, 1)), self.packed)
        try:
            program = placed.Program.of(
                self._tapped(code), self.recorder, self.packed, leaves, wrap=self._target.one_device.run
            )
        except (MemoryError, Problem):
            raise
        except BaseException as error:
            # The lines are those of the user's own text.
            found = untraced(self.packed, leaves) or describe_exception(error, "<jax-pmap")
            raise Problem("reference", summary(error), error=found) from error
        return placed.Whole(program.with_numbers(unfolded(self._size)), self.packed)

    def _traced(self, code: protocol.Tapped, leaves: Sequence[Any], devices: int) -> placed.Program:
        axes = {self._request.axis_name: devices}
        return placed.Program.of(self._tapped(code), self.recorder, self.packed, leaves, axes)

    def _tapped(self, code: protocol.Tapped) -> Callable[[], Callable[[Values], Any]]:
        target, recorder = self._target, self.recorder

        def anew() -> Callable[[Values], Any]:
            scope = {**target.namespace(), observe.RECORDER: recorder}
            furnished = furnish(scope, code.around, {observe.RECORDER: recorder})
            fn: Callable[..., Any] = target.define(code.code, "<jax-pmap>", code.name, scope)
            fn = target.over_devices(furnished(fn))
            return lambda given: recorder.call(fn, target.signature, given)

        return anew


def unfolded(rows: int, devices: int = symbolic.DEVICES) -> symbolic.Numbers:
    """Numbers for what is observed, whole or on shares: ``1e-3 / 7`` stays a division, and is not rounded."""
    return symbolic.Numbers(rows, devices, folds=False)


def untraced(packed: Packed, leaves: Sequence[Any]) -> protocol.Raised | None:
    """Why the reference is not traced with these leaves; None where it is."""
    try:
        Traced.of(current().reference, packed, leaves)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        return describe_exception(error)
    return None
