"""Survivors that are no faults where they were planted: each with the argument that shows it."""

from __future__ import annotations

import re

from jax_pmap.model import Plan
from mutation.faults import Mutant
from mutation.hand import Written
from mutation.sources import Source

SCALED = "sums and counts are scaled alike, a count is 0 or at least 1, and only their ratio is returned"
BOTH = "numerator and denominator are scaled alike, and only their ratio is returned"
SHIFT = "what is taken off before the exponential, whatever it is, cancels in the quotient, or its logarithm"
LINEAR = "the step in between is linear, and all else in it is whole"
SLOPE = "only its derivative is taken, which hangs on no value of it, and the mean around that divides it"
ONE_AXIS = "the array has one axis, and its first is its last"
#: Fault and source -> why its survivors there compute the same. Looked at one by one.
ARGUED: dict[tuple[str, str], str] = {
    ("op_swapped", "masked_mean"): BOTH,
    ("synchronised_twice", "masked_mean"): BOTH,
    ("factor_of_count", "masked_mean"): BOTH,
    ("a_thousandth_off", "masked_mean"): BOTH,
    ("padding_counted", "masked_mean"): "a row of zeros has a mask of zero",
    ("results_swapped", "rmse"): "the square of a difference is the same the other way round",
    ("synchronised_twice", "per_example"): SCALED,
    ("factor_of_count", "per_example"): SCALED,
    ("a_thousandth_off", "per_example"): SCALED,
    ("padding_counted", "default_reduction"): "a row of zeros adds nothing to a sum of tanh(x)",
    ("padding_counted", "early_return"): "a row of zeros has the weight zero",
    (
        "padding_counted",
        "loop_totals",
    ): "a row of zeros adds nothing to a sum, both means are scaled alike",
    ("ratio_reduced", "loop_totals"): "every device divides by the same: the denominators are whole",
    ("ratio_reduced", "minibatches"): "every device multiplies by the same number",
    ("ratio_reduced", "static_options"): "every device multiplies by the same number",
    **{
        (fault, "taken_apart_in_a_lambda"): BOTH
        for fault in ("op_swapped", "synchronised_twice", "factor_of_count", "a_thousandth_off")
    },
    **{
        (fault, "second_order"): BOTH
        for fault in ("op_swapped", "synchronised_twice", "factor_of_count", "a_thousandth_off")
    },
    **{
        (fault, "terms_of_two_kinds"): SLOPE
        for fault in ("sync_dropped", "sync_misses_a_leaf", "dropped_on_one_count", "narrowed")
    },
    **{(fault, "mixture_by_scan"): SHIFT for fault in ("sync_late", "narrowed")},
    ("padding_counted", "made_by_a_factory"): "a row of zeros has a mask of zero",
    (
        "a_thousandth_off",
        "numbers_for_all_rows",
    ): "the half of a thousandth more rows is rounded off, or is rows that `x` has not, which raises",
    **{(fault, "contrastive"): SHIFT for fault in ("op_swapped", "first_device_only", "narrowed")},
    **{(fault, "pooled"): SHIFT for fault in ("op_swapped", "first_device_only", "sync_late", "narrowed")},
    **{
        (fault, "minimised"): "`p` is whole, and the mean around it divides its gradient in the same way"
        for fault in ("sync_dropped", "sync_misses_a_leaf")
    },
    **{
        (fault, "in_parts"): "its mesh has four devices, whatever is done on other numbers of them"
        for fault in ("dropped_on_one_count", "count_written_down")
    },
    ("wrong_in_axes", "in_parts"): "every device works on all rows, and the results are means over them",
    ("wrong_in_axes", "drawn_minibatch"): ONE_AXIS,
    ("wrong_in_axes", "shuffled_epochs"): ONE_AXIS,
    ("wrong_in_axes", "private_gradients"): ONE_AXIS,
    ("wrong_in_axes", "time_before_batch"): "the mean of what is whole on every device is the mean of all",
    ("sync_after_function", "trilinear"): LINEAR,
    ("sync_after_function", "jacobian_of_residuals"): LINEAR,
    (
        "sync_after_function",
        "gradients_added_up",
    ): "the step in between is linear, or a maximum of a maximum, and all else in it is whole",
    ("ratio_reduced", "gradients_added_up"): "every device divides by the same number",
    (
        "update_lost",
        "gradients_added_up",
    ): "it is split along its minibatches instead, each of which has an axis of one more for the mean",
    ("sync_late", "views_in_one_pass"): LINEAR,
    ("update_lost", "minibatches"): "the reshape below gives `y` its minibatches in either form",
}


#: Axes of the arrays that drop-in functions of `written/` split.
RANKS = {"x": 2, "y": 1, "a": 0}


def why_equal_by_hand(source: Written, mutant: Mutant, layout: str | None) -> str:
    """The argument for a function written by hand, called in `layout`; ``""`` where there is none."""
    if mutant.fault == "wrong_out_axes" and layout != "drop-in":
        return "the same on every device: `verify` takes the copies of all devices as it takes one"
    if mutant.fault == "sync_late" and "    square = jnp.mean(x**2, 0)\n" in mutant.code:
        return "only a difference is taken in between, and the mean of differences is their difference"
    if mutant.fault == "interleaved" and source.name == "accumulation":
        return "every result is a mean over all rows, whatever device they are on"
    if mutant.fault == "misaligned":
        reversed_ = re.findall(r"\((\w+)\[::-1\] if \1\.ndim == (\d)", mutant.code)
        if reversed_ and RANKS.get(reversed_[0][0]) not in (0, int(reversed_[0][1])):
            return f"`{reversed_[0][0]}` has another number of axes, so nothing is reversed"
    return ""


def why_equivalent(source: Source, mutant: Mutant, plan: Plan) -> str:
    """The argument, or ``""`` where there is none."""
    split = [leaf for argument in plan.arguments for leaf in argument.leaves if leaf.axis is not None]
    ranks = {len(leaf.shape) for leaf in split}
    reduced = all(leaf.axis is None for leaf in plan.outputs)
    if mutant.fault == "ratio_reduced" and re.search(r"(?<![\w.])[\d.]+ \* jax\.lax\.pmean\(", mutant.line):
        return "every device multiplies by the same number"
    if mutant.fault == "interleaved" and reduced:
        return "every result is a reduction over all rows, whatever device they are on"
    if mutant.fault == "replication_checked" and "grad" not in "".join(source.files.values()):
        return "no gradient is taken, and nothing else is summed on its own"
    single = all(len(leaf.shape) == 1 for leaf in plan.outputs if leaf.axis is not None)
    if mutant.fault == "wrong_out_axes" and single and re.search(r"\bout_axes=.*-1", mutant.code):
        return "one number an example: jax returns (B, 1) for a last device axis, which is put in one row"
    if re.search(r"\n    count = (\(?1\b|_all_but_last)", mutant.code):
        return "`own_share` gives a device all rows: it does the work of all, and the results are the same"
    if mutant.fault == "one_device" and "NamedSharding(" in mutant.line and "jax.pmap" in mutant.code:
        return "it is where arrays are put ahead of the call, which puts them on all of its devices anyway"
    if mutant.fault == "misaligned":
        rank = int(re.findall(r"leaf.ndim == (\d)", mutant.code)[0])
        if rank not in ranks:
            return f"no array of {rank} axes is split, so nothing is reversed"
        if ranks == {rank} and reduced:
            return "all arrays are reversed together, and every result is a reduction over all rows"
    if source.name == "until_converged" and "jax.lax.pmax" in mutant.line:
        return "what is compared is whole: every device comes to the same of itself"
    if mutant.fault == "first_call_kept":
        name = re.findall(r"_kept.setdefault\('(\w+)'", mutant.code)[0]
        argument = next(a for a in plan.arguments if a.name == name)
        if argument.static:
            return f"`{name}` is static: the emitted file takes no other value"
    if mutant.fault == "wrong_in_axes" and "shard_map" in mutant.code and "psum" not in mutant.code:
        return (
            "every device does the work of all: slower, but means and extremes of equal values are the same"
        )
    return ARGUED.get((mutant.fault, source.name.partition("-")[0]), "")
