"""Specs: what an example argument looks like, as text on the command line and as JSON for the worker.

========================================================================  =================================
JSON                                                                      text
========================================================================  =================================
``{"kind": "array", "dtype": "float32", "shape": [64, 8]}``               ``f32[64,8]``
the same with ``"low": 0.1`` (inclusive), ``"high": 1`` (exclusive)       ``f32[64,8]>=0.1<1``
``{"kind": "array", "dtype": "float32", "shape": [64], "mask": True}``    ``mask[64]`` (zeros and ones)
``{"kind": "key", "typed": True, "shape": []}``                           ``key``, ``key[8]``, ``raw_key``
``{"kind": "dict", "items": [["x", SPEC], …]}``                           ``{x: SPEC, 'odd key': SPEC}``
``{"kind": "tuple", "items": [SPEC, …]}`` (or ``"list"``)                 ``(SPEC, SPEC)``, ``[SPEC]``
``{"kind": "object", "type": "Params", "items": [["w", SPEC], …]}``       ``Params{w: SPEC}``
``{"kind": "scalar", "type": "int", "value": 3}`` (float, bool)           ``3``, ``0.1``, ``True``
``{"kind": "literal", "value": "'train'"}``                               ``'train'``, ``None``
``{"kind": "python", "expr": "tx.init(params)"}``                         ``py:tx.init(params)``
``{"kind": "default"}``                                                   ``default``
========================================================================  =================================

A `python` expression is evaluated in the user's module, with the other arguments in scope.
"""

from __future__ import annotations

import ast
import keyword
import re
from typing import Any, NoReturn, TypeAlias

from jax_pmap.model import Refusal, RefusalError

#: A spec as plain JSON, see the module's table.
Spec: TypeAlias = dict[str, Any]

DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "c64": "complex64",
    "c128": "complex128",
    "bool": "bool",
}
_SHORT = {name: short for short, name in DTYPES.items()}

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*(?:\.[A-Za-z_][A-Za-z_0-9]*)*")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_ACCEPTED = (
    "Accepted: `f32[64,784]`, `i32[64]<10`, `mask[64]`, `key`, `0.1`, `'train'`, `py:jnp.tanh`, and "
    "`{x: …, y: …}`, `(…, …)`, `[…, …]` of these."
)


def parse_argument(text: str) -> tuple[str, Spec]:
    """Name and spec of one ``NAME=SPEC``.

    Raises:
        RefusalError: JP006, with the place in the text marked.
    """
    reader = _Reader(text)
    name, equals, _ = text.partition("=")
    if not equals:
        reader.fail("there is no `=` in it", len(text))
    if not name.strip().isidentifier() or keyword.iskeyword(name.strip()):
        reader.fail("the part before `=` is not the name of an argument", 0)
    reader.at = len(name) + 1
    spec = reader.value()
    reader.skip()
    if reader.at < len(text):
        reader.fail("something follows the specification")
    return name.strip(), spec


def format_argument(name: str, spec: Spec) -> str:
    """``NAME=SPEC``, the inverse of `parse_argument`."""
    return f"{name}={format_spec(spec)}"


def format_spec(spec: Spec) -> str:
    """Text of a spec, as `parse_argument` reads it."""
    kind = spec["kind"]
    if kind == "array":
        return _format_array(spec)
    if kind == "key":
        shape = ",".join(map(str, spec.get("shape", [])))
        return ("key" if spec["typed"] else "raw_key") + (f"[{shape}]" if shape else "")
    if kind in ("dict", "object"):
        inner = ", ".join(f"{_format_name(name)}: {format_spec(item)}" for name, item in spec["items"])
        return f"{spec.get('type', '')}{{{inner}}}"
    if kind == "tuple":
        items = [format_spec(item) for item in spec["items"]]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if kind == "list":
        return f"[{', '.join(map(format_spec, spec['items']))}]"
    if kind == "python":
        return f"py:{spec['expr']}"
    if kind == "default":
        return "default"
    return repr(spec["value"]) if kind == "scalar" else str(spec["value"])


def _format_name(name: Any) -> str:
    return name if isinstance(name, str) and name.isidentifier() else repr(name)


def _format_array(spec: Spec) -> str:
    shape = f"[{','.join(map(str, spec['shape']))}]"
    if spec.get("mask"):
        return f"mask{shape}"
    text = f"{_SHORT.get(spec['dtype'], spec['dtype'])}{shape}"
    if spec.get("low") is not None:
        text += f">={spec['low']}"
    if spec.get("high") is not None:
        text += f"<{spec['high']}"
    return text


class _Reader:
    """Recursive descent over one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        column = self.at if at is None else at
        raise RefusalError(
            Refusal(
                "JP006",
                f"`--arg {self.text}` cannot be read: {problem} (column {column + 1}).",
                _ACCEPTED,
                details=(f"{self.text}\n{' ' * column}^",),
            )
        )

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def peek(self) -> str:
        self.skip()
        return self.text[self.at : self.at + 1]

    def take(self, pattern: re.Pattern[str]) -> str | None:
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def expect(self, character: str) -> None:
        if self.peek() != character:
            self.fail(f"expected `{character}`")
        self.at += 1

    def value(self) -> Spec:
        first = self.peek()
        start = self.at
        if not first:
            self.fail("a specification is missing here")
        if first == "{":
            return {"kind": "dict", "items": self.named_items(any_key=True)}
        if first == "(":
            items, comma = self.items(")")
            if len(items) == 1 and not comma:
                return items[0]
            return {"kind": "tuple", "items": items}
        if first == "[":
            return {"kind": "list", "items": self.items("]")[0]}
        if first in "'\"":
            string = self.take(_STRING)
            if string is None:
                self.fail("this string has no end")
            return {"kind": "literal", "value": repr(self.literal(string, start))}
        if self.text.startswith("py:", self.at):
            return {"kind": "python", "expr": self.expression()}
        if first.isdigit() or first in "+-.":
            number = self.take(_NUMBER)
            if number is None:
                self.fail("this is not a number")
            return scalar(self.literal(number, start))
        word = self.take(_WORD)
        if word is None:
            self.fail(f"`{first}` starts no specification")
        return self.after_word(word, start)

    def literal(self, text: str, start: int) -> Any:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            self.fail(f"`{text}` is not a Python literal", start)

    def after_word(self, word: str, start: int) -> Spec:
        if word in ("True", "False"):
            return scalar(word == "True")
        if word == "None":
            return {"kind": "literal", "value": "None"}
        if word == "default":
            return {"kind": "default"}
        following = self.text[self.at : self.at + 1]
        if word in ("key", "raw_key"):
            shape = self.shape() if following == "[" else []
            return {"kind": "key", "typed": word == "key", "shape": shape}
        if word == "mask" and following == "[":
            return {"kind": "array", "dtype": "float32", "shape": self.shape(), "mask": True}
        dtype = DTYPES.get(word) or (word if word in _SHORT else None)
        if dtype is not None:
            if following != "[":
                self.fail(f"a shape must follow `{word}`, as in `{word}[64,8]` or `{word}[]` for a scalar")
            return self.bounds({"kind": "array", "dtype": dtype, "shape": self.shape()})
        if following == "{":
            return {"kind": "object", "type": word, "items": self.named_items(any_key=False)}
        self.fail(f"`{word}` is no dtype; strings take quotes, Python names `py:`", start)

    def shape(self) -> list[int]:
        self.expect("[")
        sizes: list[int] = []
        while self.peek() != "]":
            found = self.take(re.compile(r"\d+"))
            if found is None:
                self.fail("a size must be a whole number")
            sizes.append(int(found))
            if self.peek() == ",":
                self.at += 1
            elif self.peek() != "]":
                self.fail("expected `,` or `]`")
        self.at += 1
        return sizes

    def bounds(self, spec: Spec) -> Spec:
        start = self.at
        whole = spec["dtype"].lstrip("u").startswith("int")
        while self.peek() in ("<", ">") and self.peek():
            sign = self.take(re.compile(r"<=|>=|<|>"))
            place = self.at
            number = self.take(_NUMBER)
            if number is None:
                self.fail(f"a number must follow `{sign}`")
            bound = self.literal(number, place)
            if whole and not isinstance(bound, int):
                self.fail("the bound of whole numbers must be one", place)
            # Bounds of floats are drawn with probability 0, so there `>` and `>=` mean the same.
            if sign in ("<", "<="):
                spec["high"] = bound + 1 if whole and sign == "<=" else bound
            else:
                spec["low"] = bound + 1 if whole and sign == ">" else bound
        low, high = spec.get("low", 0 if whole else None), spec.get("high")
        if (
            spec["dtype"] in ("bool", "complex64", "complex128")
            and self.at > start
            and (low, high) != (None, None)
        ):
            self.fail(f"{spec['dtype']} takes no bounds", start)
        if low is not None and high is not None and low >= high:
            self.fail(f"no number is at least {low} and below {high}", start)
        return spec

    def items(self, end: str) -> tuple[list[Spec], bool]:
        self.at += 1
        found: list[Spec] = []
        comma = False
        while self.peek() != end:
            found.append(self.value())
            comma = self.peek() == ","
            if comma:
                self.at += 1
            elif self.peek() != end:
                self.fail(f"expected `,` or `{end}`")
        self.at += 1
        return found, comma

    def named_items(self, *, any_key: bool) -> list[list[Any]]:
        self.expect("{")
        found: list[list[Any]] = []
        while self.peek() != "}":
            place = self.at
            name: Any = self.take(_WORD)
            if name is None and any_key:
                text = self.take(_STRING) or self.take(re.compile(r"-?\d+"))
                name = self.literal(text, place) if text is not None else None
            if name is None or (isinstance(name, str) and "." in name and self.text[place] not in "'\""):
                self.fail("a name, `NAME: SPEC`, must stand here", place)
            if name in [other for other, _ in found]:
                self.fail(f"`{name}` is there twice", place)
            self.expect(":")
            found.append([name, self.value()])
            if self.peek() == ",":
                self.at += 1
            elif self.peek() != "}":
                self.fail("expected `,` or `}`")
        self.at += 1
        return found

    def expression(self) -> str:
        self.at += len("py:")
        start = self.at
        depth = 0
        while self.at < len(self.text):
            character = self.text[self.at]
            if character in "'\"" and (string := _STRING.match(self.text, self.at)):
                self.at = string.end()
                continue
            if depth == 0 and character in ",)]}":
                break
            depth += (character in "([{") - (character in ")]}")
            self.at += 1
        text = self.text[start : self.at].strip()
        try:
            ast.parse(text, mode="eval")
        except SyntaxError:
            self.fail("what follows `py:` is not a Python expression", start)
        return text


def scalar(value: bool | int | float) -> Spec:
    """Spec of a Python number."""
    if isinstance(value, bool):
        return {"kind": "scalar", "type": "bool", "value": value}
    return {"kind": "scalar", "type": type(value).__name__, "value": value}


def array(dtype: str, shape: list[int] | tuple[int, ...], **bounds: float) -> Spec:
    """Spec of an array; `bounds` are `low` and `high`."""
    return {"kind": "array", "dtype": dtype, "shape": list(shape), **bounds}
