"""Plans, evidence and refusals as JSON documents, and plans back again.

The documents are described by ``schemas/plan.schema.json``, ``schemas/report.schema.json`` and
``schemas/verify.schema.json``. Keys are the
field names of `jax_pmap.model`; an axes tree is an integer, null or an object; a number JSON does not have
is one of the strings ``"nan"``, ``"inf"`` and ``"-inf"``.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from jax_pmap.emit.decomposed import DIAGONALS, TOGETHER
from jax_pmap.emit.sizes import is_size
from jax_pmap.model import (
    ADDED,
    AROUND,
    EXCHANGE,
    FOLD,
    GATHERED,
    ON_DEVICE,
    OWN_SHARE,
    OWN_SIZE,
    PLAN_SCHEMA_VERSION,
    SCATTERED,
    Argument,
    AxesNode,
    Evidence,
    Fit,
    Generated,
    Leaf,
    Listing,
    Plan,
    Refusal,
    Role,
    Stage,
    Sync,
    Unchanged,
    Verified,
    refused,
)
from jax_pmap.worker.protocol import AXIS_ARGUMENTS

REPORT_SCHEMA_VERSION = 2
VERIFY_SCHEMA_VERSION = 1
#: Versions of plans that are read; in the first, every leaf stands by itself.
PLANS_READ = (1, PLAN_SCHEMA_VERSION)
#: What a reader asks first comes first: a large model's leaves may be cut off.
_PLAN_ORDER = ("schema_version", "target", "axis_name", "syncs", "notes", "assumed_inputs", "guards")
_PLAN_LAST = ("output_axes", "arguments", "outputs")

#: Of arrays that the devices have in parts.
IN_PARTS = (GATHERED, *SCATTERED.values())
SYNC_OPS = (
    *("psum", "pmean", "pmax", "pmin", "all_gather", EXCHANGE, *ON_DEVICE),
    *IN_PARTS,
    *TOGETHER,
    *AXIS_ARGUMENTS,
)
AXES_KINDS = ("dict", "tuple", "list", "namedtuple", "dataclass")


def schema(name: str) -> dict[str, Any]:
    """The published JSON Schema ``"plan"``, ``"report"`` or ``"verify"`` as a dict."""
    text = (Path(__file__).parent / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


# --- records to JSON ----------------------------------------------------------------------


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """`plan` as a JSON-ready dict that `plan_from_dict` takes back."""
    document: dict[str, Any] = _encode(plan)
    between = [key for key in document if key not in (*_PLAN_ORDER, *_PLAN_LAST)]
    return {key: document[key] for key in (*_PLAN_ORDER, *between, *_PLAN_LAST)}


def evidence_to_dict(evidence: Evidence) -> dict[str, Any]:
    """`evidence` as a JSON-ready dict, with the verdict under ``"proved"``."""
    return {"proved": evidence.proved, **_encode(evidence)}


def evidence_from_dict(document: Mapping[str, Any]) -> Evidence:
    """The evidence that `evidence_to_dict` made a dict of.

    Raises:
        RefusalError: JP017, naming the place in the document that does not fit.
    """
    fields = {name: value for name, value in document.items() if name != "proved"}
    evidence: Evidence = _decode(Evidence, fields, "evidence")
    return evidence


def listings_to_list(listings: tuple[Listing, ...]) -> list[Any]:
    """`listings` as a JSON-ready list, for `listings_from_list`."""
    encoded: list[Any] = _encode(listings)
    return encoded


def listings_from_list(document: object) -> tuple[Listing, ...]:
    """The listings that `listings_to_list` made a list of.

    Raises:
        RefusalError: JP017, naming the place in the document that does not fit.
    """
    listings: tuple[Listing, ...] = _decode(tuple[Listing, ...], document, "listings")
    return listings


def refusal_to_dict(refusal: Refusal) -> dict[str, Any]:
    """`refusal` as a JSON-ready dict, with its title and exit status from the registry."""
    import jax_pmap.diagnostics as diagnostics

    diagnostic = diagnostics.find(refusal.code)
    # Whether another way was worth trying is settled by now; what was found is for the page.
    told = {
        name: value
        for name, value in _encode(dataclasses.replace(refusal, found=None)).items()
        if name not in ("final", "found")
    }
    return {
        **told,
        "title": diagnostic.title if diagnostic else "",
        "exit_code": diagnostics.exit_code(refusal.code),
    }


def report_to_dict(
    result: Generated | Plan | Fit | Unchanged | Refusal,
    *,
    target: str,
    output: str | None = None,
    diff: str | None = None,
    report: str | None = None,
) -> dict[str, Any]:
    """The one document a command prints.

    Args:
        result: What the pipeline answered.
        target: The target as the user typed it.
        output: The file that was written, if one was.
        diff: The patch that was asked for instead of writing.
        report: The page that was written beside.
    """
    document: dict[str, Any] = {
        "schema_version": REPORT_SCHEMA_VERSION,
        "status": status(result),
        "target": target,
        "backend": None,
        "refusal": None,
        "evidence": None,
        "output": output,
        "diff": diff,
        "report": report,
        "code": None,
        "plan": None,
    }
    if isinstance(result, Refusal):
        document["refusal"] = refusal_to_dict(result)
    elif isinstance(result, Unchanged):
        pass
    elif isinstance(result, Plan):
        document["plan"] = plan_to_dict(result)
    elif isinstance(result, Fit):
        document["plan"] = plan_to_dict(result.plan)
        if result.machine is not None:
            document["machine"] = _encode(result.machine)
        if result.compiled is not None:
            document["compiled"] = _encode(result.compiled)
    else:
        document["backend"] = str(result.backend)
        document["code"] = result.code
        document["plan"] = plan_to_dict(result.plan)
        document["evidence"] = evidence_to_dict(result.evidence)
    return document


def stages_to_dict(stages: tuple[Stage, ...]) -> dict[str, Any]:
    """The part of a document that says how long the work took."""
    return {"stages": [{"stage": stage.name, "seconds": round(stage.seconds, 3)} for stage in stages]}


def verified_to_dict(
    result: Verified | Refusal, parallel: str, against: str, report: str | None = None
) -> dict[str, Any]:
    """The one document that `verify` prints; `parallel` and `against` as the user typed them.

    `report` is the page that was written beside.
    """
    document: dict[str, Any] = {
        "schema_version": VERIFY_SCHEMA_VERSION,
        "status": "refused",
        "parallel": parallel,
        "against": against,
        "layout": None,
        "against_layout": None,
        "assumed_inputs": [],
        "evidence": None,
        "refusal": None,
        "report": report,
    }
    if isinstance(result, Refusal):
        return {**document, "refusal": refusal_to_dict(result)}
    return {
        **document,
        "status": "proved",
        "layout": dict(result.layout),
        "against_layout": None if result.against_layout is None else dict(result.against_layout),
        "assumed_inputs": list(result.assumed_inputs),
        "evidence": evidence_to_dict(result.evidence),
    }


def status(result: Generated | Plan | Fit | Unchanged | Refusal) -> str:
    """``"proved"``, ``"planned"``, ``"unchanged"`` or ``"refused"``."""
    if isinstance(result, Unchanged):
        return "unchanged"
    if isinstance(result, Refusal):
        return "refused"
    if isinstance(result, Plan | Fit):
        return "planned"
    return "proved"


def dumps(document: Mapping[str, Any]) -> str:
    """`document` as text: two-space indent, UTF-8 characters as they are, one final newline."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _encode(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        # A lone surrogate (an undecodable file name) cannot be written as UTF-8.
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, tuple) and value and isinstance(value[0], Leaf):
        return _grouped(value)
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if dataclasses.is_dataclass(value):
        document = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, Argument):
            document["role"] = str(value.role)
        return document
    return value


def _grouped(leaves: tuple[Leaf, ...]) -> list[dict[str, Any]]:
    """Leaves that differ in their paths alone, as one entry with all of these and their places."""
    groups: dict[Leaf, dict[str, int]] = {}
    for place, leaf in enumerate(leaves):
        groups.setdefault(dataclasses.replace(leaf, path=""), {})[_encode(leaf.path)] = place
    return [
        {"paths": paths, **{name: value for name, value in _encode(leaf).items() if name != "path"}}
        for leaf, paths in groups.items()
    ]


# --- JSON to a plan -----------------------------------------------------------------------


def read_plan(path: Path) -> Plan:
    """The plan in the file at `path`: a plan document, or a report that holds one.

    Raises:
        RefusalError: JP017, when the file cannot be read or is not a plan of this version.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        _refuse(f"The plan file `{path}` cannot be read: {error.strerror or error}.")
    except UnicodeDecodeError:
        _refuse(f"The plan file `{path}` is not UTF-8 text.")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        _refuse(f"The plan file `{path}` is not JSON: {error}.")
    except RecursionError:
        _refuse(f"The plan file `{path}` is nested too deeply.")
    if isinstance(document, dict) and "status" in document and "plan" in document:
        if document["plan"] is None:
            _refuse(f"The report in `{path}` holds no plan: its status is `{document['status']}`.")
        document = document["plan"]
    return plan_from_dict(document)


def plan_from_dict(document: object) -> Plan:
    """The plan described by `document`, checked field by field.

    Raises:
        RefusalError: JP017, naming the place in the document that does not fit.
    """
    if not isinstance(document, dict):
        _refuse("A plan is a JSON object.")
    version = document.get("schema_version")
    if version not in PLANS_READ or isinstance(version, bool):
        found = "none" if version is None else f"`{version}`"
        _refuse(f"The plan's schema_version is {found}; this jax-pmap reads `{PLAN_SCHEMA_VERSION}`.")
    # Plans of 0.1 say whether they were observed.
    document = {**document, "schema_version": PLAN_SCHEMA_VERSION}
    if document.pop("observed", True) is not True:
        _refuse("The plan was made with `--no-proof`, which is gone: it holds no shapes.")
    try:
        plan: Plan = _decode(Plan, document, "plan")
    except RecursionError:
        _refuse("The plan is nested too deeply.")
    return plan


def _refuse(reason: str) -> NoReturn:
    hint = "Make the plan again: `jax-pmap plan TARGET --output-format json > plan.json`."
    raise refused("JP017", reason, hint)


@functools.cache
def _hints(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _decode(expected: Any, value: Any, path: str) -> Any:
    """`value` as an `expected`: a dataclass, an enum, a union, a tuple or a plain JSON type."""
    origin = typing.get_origin(expected)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(typing.get_args(expected), value, path)
    if origin is tuple:
        return _decode_tuple(typing.get_args(expected), value, path)
    if dataclasses.is_dataclass(expected):
        return _decode_record(typing.cast(type, expected), value, path)
    if isinstance(expected, type) and issubclass(expected, enum.Enum):
        _check_choice(value, tuple(member.value for member in expected), path)
        return expected(value)
    if expected is float and value in ("nan", "inf", "-inf"):
        return float(value)
    # JSON's true is an int to Python.
    fits = isinstance(value, expected) and not (expected is int and isinstance(value, bool))
    if not fits:
        _refuse(f"`{path}` is {_shown(value)}; it has to be {_named(expected)}.")
    return value


def _decode_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in options:
        return None
    records = [option for option in options if dataclasses.is_dataclass(option)]
    plain = [option for option in options if option not in records and option is not type(None)]
    chosen = records if isinstance(value, dict) and records else plain or records
    return _decode(chosen[0], value, path)


def _decode_tuple(items: tuple[Any, ...], value: Any, path: str) -> Any:
    if not isinstance(value, list):
        _refuse(f"`{path}` is {_shown(value)}; it has to be an array.")
    if items[0] is Leaf:
        return _decode_leaves(value, path)
    if items[-1] is Ellipsis:
        return tuple(_decode(items[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if len(value) != len(items):
        _refuse(f"`{path}` has {len(value)} entries; it has to have {len(items)}.")
    pairs = enumerate(zip(items, value, strict=True))
    return tuple(_decode(item, entry, f"{path}[{i}]") for i, (item, entry) in pairs)


def _decode_leaves(value: list[Any], path: str) -> tuple[Leaf, ...]:
    """Leaves in their order, from groups of them that differ in their paths alone, or one by one."""
    placed: dict[int, Leaf] = {}
    for i, item in enumerate(value):
        paths = item.get("paths") if isinstance(item, dict) and "path" not in item else None
        if paths is None:
            placed[i] = _decode(Leaf, item, f"{path}[{i}]")
            continue
        if not isinstance(paths, dict) or not all(type(place) is int for place in paths.values()):
            _refuse(f"`{path}[{i}].paths` is {_shown(paths)}; it has to give each path its place.")
        rest = {name: each for name, each in item.items() if name != "paths"}
        leaf = _decode(Leaf, {"path": "", **rest}, f"{path}[{i}]")
        placed |= {place: dataclasses.replace(leaf, path=name) for name, place in paths.items()}
    if sorted(placed) != list(range(sum(len(item.get("paths", "1")) for item in value))):
        _refuse(f"`{path}` has paths at the same place, or none at one between 0 and their number.")
    return tuple(placed[place] for place in range(len(placed)))


def _decode_record(record: type, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        _refuse(f"`{path}` is {_shown(value)}; it has to be an object.")
    hints = _hints(record)
    derived = {"role"} if record is Argument else set()
    for key in value:
        if key not in hints and key not in derived:
            near = difflib.get_close_matches(key, hints, n=1)
            guess = f" Did you mean `{near[0]}`?" if near else ""
            _refuse(f"`{path}` has an unknown key `{key}`.{guess}")
    for field in dataclasses.fields(record):
        no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if no_default and field.name not in value:
            _refuse(f"`{path}` lacks the key `{field.name}`.")
    decoded = record(
        **{key: _decode(hints[key], item, f"{path}.{key}") for key, item in value.items() if key in hints}
    )
    if isinstance(decoded, Argument) and value.get("role", decoded.role) != decoded.role:
        _refuse(
            f"`{path}.role` is {_shown(value['role'])}, but its leaves say `{decoded.role}`. "
            "The role follows from `static` and the leaves; change those and `axes`."
        )
    _check(decoded, path)
    return decoded


def _check(decoded: Any, path: str) -> None:
    """Refuse what has the right type and still cannot be meant; parts of it reach the emitted code."""
    if isinstance(decoded, Sync):
        _check_choice(decoded.op, SYNC_OPS, f"{path}.op")
        _check_choice(decoded.where, ("after", "wrap", AROUND, ADDED), f"{path}.where")
        if decoded.op in (FOLD, OWN_SIZE) and decoded.where == "after":
            _refuse(f"`{path}.where` is `after`; {decoded.op} goes where its value stands: `wrap`.")
        if decoded.where == AROUND and decoded.op != "fold_in":
            _refuse(f"`{path}.where` is `around`, which only fold_in can be.")
        if decoded.where == ADDED and decoded.op != "psum":
            _refuse(f"`{path}.where` is `added`, which only psum can be.")
        if decoded.op not in SCATTERED and (decoded.op in IN_PARTS) != bool(decoded.like):
            _refuse(f"`{path}` has op `{decoded.op}` and like `{decoded.like}`.")
        if (decoded.op in ("all_gather", EXCHANGE, OWN_SHARE, *DIAGONALS)) != (decoded.axis is not None):
            _refuse(f"`{path}` has op `{decoded.op}` and axis `{json.dumps(decoded.axis)}`.")
        if decoded.joined is not None and (decoded.op != "all_gather" or not is_size(decoded.joined[1])):
            _refuse(f"`{path}` has op `{decoded.op}` and joined `{json.dumps(decoded.joined)}`.")
    elif isinstance(decoded, AxesNode):
        _check_choice(decoded.kind, AXES_KINDS, f"{path}.kind")
        expected = 0 if decoded.kind in ("tuple", "list") else len(decoded.children)
        if len(decoded.keys) != expected:
            _refuse(f"`{path}` has {len(decoded.children)} children and {len(decoded.keys)} keys.")
    elif isinstance(decoded, Leaf):
        if (decoded.role is Role.BATCH) != (decoded.axis is not None):
            _refuse(f"`{path}` has role `{decoded.role}` and axis `{json.dumps(decoded.axis)}`.")
        if decoded.axis is not None and not 0 <= decoded.axis < len(decoded.shape):
            _refuse(f"`{path}.axis` is `{decoded.axis}`; the leaf has {len(decoded.shape)} axes.")
    elif isinstance(decoded, Plan):
        if not decoded.axis_name.isidentifier():
            _refuse(f"`{path}.axis_name` is {_shown(decoded.axis_name)}; it has to be an identifier.")
        known = {"", *(axis.name for axis in decoded.mesh)} - {decoded.axis_name}
        for number, sync in enumerate(decoded.syncs):
            if not sync.along or not known.issuperset(sync.along):
                named = _shown(list(sync.along))
                _refuse(f"`{path}.syncs[{number}].along` is {named}, which the mesh does not have.")


def _check_choice(value: str, known: tuple[str, ...], path: str) -> None:
    if value not in known:
        _refuse(f"`{path}` is {_shown(value)}; it has to be one of {', '.join(map(repr, known))}.")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if len(text) <= 40 else f"`{text[:37]}...`"


def _named(expected: Any) -> str:
    return {str: "a string", int: "an integer", bool: "true or false", float: "a number"}[expected]
