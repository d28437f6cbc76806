"""TTGIR text to :mod:`anyxpu.triton.ir`.

MLIR's printed forms differ an op, but nearly all are one sequence: operands, bare keywords, ``key = value`` pairs, an
attribute dictionary, then types after a colon. :meth:`_Parser._plain` reads that sequence whatever the op; only ops
with regions or block successors have a form of their own (the table at the end). What type the results have where the
text does not say it is the one thing known here an op (:data:`_RESULT_TYPES`).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Any

from anyxpu.errors import AnyxpuError
from anyxpu.triton.ir import Block, Encoding, Function, Module, Op, Opaque, Pointer, Region, Scalar, Tensor, Type, Value


class ParseError(AnyxpuError):
    """The text is not TTGIR as this parser knows it; the message quotes the line."""


_SPACE = re.compile(r"(?:\s+|//[^\n]*)+")
_VALUE = re.compile(r"%([\w$.-]+)(#\d+)?")
_NAME = re.compile(r"[A-Za-z_][\w$.]*")
_NUMBER = re.compile(r"-?0x[0-9A-Fa-f]+|-?\d+(?:\.\d*(?:[eE][-+]?\d+)?)?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(\\|[0-9A-Fa-f]{2})")  # in MLIR's strings: a backslash, or a byte in hex
_SYMBOL = re.compile(r'@(?:([\w$.-]+)|"([^"]*)")')
_ALIAS = re.compile(r"#[\w.$]+")
_LABEL = re.compile(r"\^[\w$.-]+")
_SCALAR = re.compile(r"index|none|[su]?i\d+|bf16|tf32|f\d+(?:E\w+)?")
_DIM = re.compile(r"(\d+)x")
_OP_NAME = re.compile(r'"([\w.$]+)"|[A-Za-z_][\w$]*(?:\.[\w$]+)+|unrealized_conversion_cast')
_ANGLE = re.compile(r"[<>]")

_FLOAT_FORMATS = {"f16": ("<H", "<e"), "f32": ("<I", "<f"), "f64": ("<Q", "<d")}


def parse(text: str) -> Module:
    """Read one module.

    Raises:
        ParseError: the text has a form that is not known here.
    """
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.pos = text, 0
        self.aliases: dict[str, Any] = {}
        self.types: dict[str, Type] = {}
        self.scopes: list[dict[str, Value]] = [{}]

    # --- characters

    def skip(self) -> None:
        m = _SPACE.match(self.text, self.pos)
        if m:
            self.pos = m.end()

    def peek(self, literal: str) -> bool:
        self.skip()
        return self.text.startswith(literal, self.pos)

    def accept(self, literal: str) -> bool:
        if self.peek(literal):
            self.pos += len(literal)
            return True
        return False

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            raise self.error(f"expected {literal!r}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self.skip()
        m = pattern.match(self.text, self.pos)
        if m:
            self.pos = m.end()
        return m

    def need(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        m = self.match(pattern)
        if m is None:
            raise self.error(f"expected {what}")
        return m

    def error(self, message: str) -> ParseError:
        line = self.text.count("\n", 0, self.pos) + 1
        start = self.text.rfind("\n", 0, self.pos) + 1
        end = self.text.find("\n", self.pos)
        where = f"TTGIR line {line}, column {self.pos - start + 1}"
        return ParseError(f"{where}: {message}: {self.text[start:end].strip()}")

    def list_of(self, item: Callable[[], Any], close: str) -> list[Any]:
        """Items between commas up to ``close``, which is consumed."""
        out: list[Any] = []
        while not self.accept(close):
            out.append(item())
            if not self.accept(","):
                self.expect(close)
                break
        return out

    # --- types and attributes

    def type(self) -> Type:
        self.skip()
        start = self.pos
        end = self._type_end(start)
        text = self.text[start:end]
        known = self.types.get(text)
        if known is None:
            known = self.types[text] = self._type()
        self.pos = end
        return known

    def _type_end(self, start: int) -> int:
        m = re.compile(r"[!\w.$]+").match(self.text, start)
        if m is None:
            raise self.error("expected a type")
        end = m.end()
        if end < len(self.text) and self.text[end] == "<":
            depth = 0
            for m in _ANGLE.finditer(self.text, end):
                depth += 1 if m.group() == "<" else -1
                if depth == 0:
                    return m.end()
        return end

    def _type(self) -> Type:
        if self.accept("tensor<"):
            shape = []
            while m := self.match(_DIM):
                shape.append(int(m.group(1)))
            element = self.type()
            encoding = self.attribute() if self.accept(",") else None
            if not isinstance(element, (Scalar, Pointer)):
                raise self.error(f"a tensor of {element}")
            return Tensor(tuple(shape), element, encoding)
        if self.accept("!tt.ptr<"):
            return Pointer(self.type())
        m = self.match(_SCALAR)
        if m:
            return Scalar(m.group())
        return Opaque(self.text[self.pos : self._type_end(self.pos)])

    def type_list(self) -> list[Type]:
        """``T``, ``T, T``, ``T * T`` or ``(T, T)``."""
        if self.accept("("):
            return self.list_of(self.type, ")")
        out = [self.type()]
        while self.accept(",") or self.accept("* ") or self.accept("x "):
            out.append(self.type())
        return out

    def attribute(self) -> Any:
        """An attribute's value as plain Python; an encoding as :class:`Encoding`."""
        if m := self.match(_STRING):
            return _string(m.group(1))
        if self.accept("["):
            return tuple(self.list_of(self.attribute, "]"))
        if self.accept("{"):
            return self.dictionary()
        if m := self.match(_ALIAS):
            return self._alias(m.group())
        if m := self.match(_SYMBOL):
            return m.group(1) or m.group(2)
        if m := self.match(_NUMBER):
            return self.number(m.group(), self.type() if self.accept(":") else None)
        m = self.match(_NAME)
        if m is None:
            raise self.error("expected an attribute")
        return self._named_attribute(m.group())

    def _alias(self, name: str) -> Any:
        if name in self.aliases:
            return self.aliases[name]
        kind = name.removeprefix("#").removeprefix("ttg.")
        params: dict[str, Any] = {}
        if self.accept("<"):
            params = self.dictionary() if self.accept("{") else {"text": self._angle_rest()}
            self.accept(">")
        return Encoding(kind, tuple(params.items()))

    def _angle_rest(self) -> str:
        start, depth = self.pos, 1
        for m in _ANGLE.finditer(self.text, start):
            depth += 1 if m.group() == "<" else -1
            if depth == 0:
                self.pos = m.start()
                return self.text[start : m.start()]
        raise self.error("unbalanced <")

    def _named_attribute(self, name: str) -> Any:
        if name in ("true", "false"):
            return name == "true"
        if name == "dense" and self.accept("<"):
            value = self.attribute()
            self.expect(">")
            if self.accept(":"):
                self.type()
            return value
        if name == "array" and self.accept("<"):
            self.type()
            out = tuple(self.list_of(self.attribute, ">")) if self.accept(":") else ()
            self.accept(">")
            return out
        if self.accept("<"):
            rest = self._angle_rest()
            self.expect(">")
            return f"{name}<{rest}>"
        return name

    def dictionary(self) -> dict[str, Any]:
        """``key = value, key`` up to ``}``; the opening brace is already read."""

        def item() -> tuple[str, Any]:
            m = self.match(_STRING)
            key = m.group(1) if m else self.need(_NAME, "an attribute's name").group()
            return key, self.attribute() if self.accept("=") else True

        return dict(self.list_of(item, "}"))

    def number(self, text: str, type: Type | None) -> int | float:
        element = type.element if isinstance(type, Tensor) else type
        if isinstance(element, Scalar) and element.is_float:
            return _float(text, element.name)
        if text.lstrip("-").startswith("0x") or "." not in text:
            return int(text, 0) if "x" in text else int(text)
        return float(text)

    # --- values

    def use(self, name: str) -> Value:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise self.error(f"%{name} is not defined")

    def define(self, name: str, type: Type) -> Value:
        value = self.scopes[-1][name] = Value(name.replace("#", "_"), type)
        return value

    def operand(self) -> Value:
        m = self.need(_VALUE, "a value")
        return self.use(m.group(1) + (m.group(2) or ""))

    def argument(self) -> Value:
        """``%name: type {attributes}``, defined in the innermost scope."""
        name = self.need(_VALUE, "an argument").group(1)
        self.expect(":")
        value = self.define(name, self.type())
        if self.accept("{"):
            value.multiple = int(self.dictionary().get("tt.divisibility", 1))
        return value

    # --- structure

    def module(self) -> Module:
        while m := self.match(re.compile(r"(#[\w.$]+)\s*=")):
            self.aliases[m.group(1)] = self.attribute() if not self.peek("loc(") else self._skip_loc()
        self.expect("module")
        self.match(_SYMBOL)
        attrs = self.dictionary() if self.accept("attributes") and self.accept("{") else {}
        self.expect("{")
        functions = []
        while not self.accept("}"):
            functions.append(self.function())
        return Module(functions, attrs)

    def _skip_loc(self) -> Any:
        end = self.text.find("\n", self.pos)
        self.pos = end if end >= 0 else len(self.text)

    def function(self) -> Function:
        self.expect("tt.func")
        word = self.match(re.compile("public|private"))
        m = self.need(_SYMBOL, "the function's name")
        self.scopes.append({})
        self.expect("(")
        args: list[Value] = self.list_of(self.argument, ")")
        results = self.type_list() if self.accept("->") else []
        attrs = self.dictionary() if self.accept("attributes") and self.accept("{") else {}
        body = self.region() if self.peek("{") else None
        self.scopes.pop()
        public = word is not None and word.group() == "public"
        return Function(m.group(1) or m.group(2), args, results, body, public, attrs)

    def region(self, args: list[Value] | None = None) -> Region:
        """``{ … }``: the entry block may be without a label; ``args`` are then its arguments."""
        self.expect("{")
        self.scopes.append({a.name: a for a in args or ()})
        region = Region()
        block = Block("entry", list(args or ()))
        region.blocks.append(block)
        while not self.accept("}"):
            if self.peek("^"):
                block = self._block_header(region, block)
            else:
                block.ops.append(self.op())
        self.scopes.pop()
        return region

    def _block_header(self, region: Region, current: Block) -> Block:
        label = self.need(_LABEL, "a label").group()
        args = self.list_of(self.argument, ")") if self.accept("(") else []
        self.expect(":")
        if len(region.blocks) == 1 and not current.ops and not current.args:
            region.blocks.pop()
        block = Block(label, args)
        region.blocks.append(block)
        return block

    # --- operations

    def op(self) -> Op:
        names: list[tuple[str, int]] = []
        if self.peek("%"):
            while True:
                m = self.need(_VALUE, "a result")
                count = self.match(re.compile(r":(\d+)"))
                names.append((m.group(1), int(count.group(1)) if count else 0))
                if not self.accept(","):
                    break
            self.expect("=")
        m = self.need(_OP_NAME, "an operation")
        op = Op(m.group(1) or m.group())
        reader = _generic if m.group(1) else _FORMS.get(op.name, _Parser._plain)
        types = reader(self, op)
        self._define_results(op, names, types)
        return op

    def _define_results(self, op: Op, names: list[tuple[str, int]], types: list[Type]) -> None:
        slots = [(n, i) for n, count in names for i in (range(count) if count else (None,))]
        if len(types) == 1 and len(slots) > 1:  # tt.split: one type for both halves
            types = types * len(slots)
        if len(slots) != len(types):
            if slots or not types:
                raise self.error(f"{op.name} has {len(slots)} results, {len(types)} types are known")
            slots = [(f"_unused{self.pos}_{i}", None) for i in range(len(types))]
        for (name, i), type in zip(slots, types, strict=True):
            value = self.define(name if i is None else f"{name}#{i}", type)
            if i == 0:
                self.scopes[-1][name] = value
            value.owner = op
            op.results.append(value)

    def _plain(self, op: Op) -> list[Type]:
        """Operands, keywords and attributes in any order, then the types."""
        while True:
            self.skip()
            if self._at_end():
                return _no_types(op)
            if self.accept(":"):
                return self._types(op)
            if self.accept("->"):  # an operation on nothing
                return self.type_list()
            if self.peek("%"):
                op.operands.append(self.operand())
            elif self.accept("{"):
                op.attrs.update(self.dictionary())
            elif self.peek('"') or self.peek("#") or self.peek("@"):
                op.attrs.setdefault("values", []).append(self.attribute())
            elif m := self.match(_NUMBER):
                op.attrs["value"] = m.group()
            elif not any(map(self.accept, ",[]()")):
                self._keyword(op)

    def _at_end(self) -> bool:
        """Ops without a trailing type (``ttg.barrier local``, ``tt.return``) end where the next line begins."""
        line_start = self.text.rfind("\n", 0, self.pos) + 1
        return self.text[line_start : self.pos].strip() == "" or self.peek("}")

    def _keyword(self, op: Op) -> None:
        word = self.need(_NAME, "a keyword").group()
        if self.accept("="):
            op.attrs[word] = self.attribute()
        elif word == "dense" or self.peek("<"):
            op.attrs["value" if word == "dense" else word] = self._raw_angle()
        else:
            op.words.append(word)

    def _raw_angle(self) -> str:
        self.expect("<")
        rest = self._angle_rest()
        self.expect(">")
        return rest

    def _types(self, op: Op) -> list[Type]:
        if self.peek("%"):  # tt.print: operands come after the colon
            op.operands += [self.operand()]
            while self.accept(","):
                op.operands.append(self.operand())
            self.expect(":")
        operand_types = self.type_list()
        if self.accept("->") or self.accept("to "):
            return self.type_list()
        if op.name == "arith.constant":
            op.attrs["value"] = self._constant(op, operand_types[0])
        return _RESULT_TYPES.get(op.name, _first_type)(op, operand_types)

    def _constant(self, op: Op, type: Type) -> Any:
        text = str(op.attrs["value"])
        if text.startswith("["):
            raise self.error("a dense constant that is not a splat")
        if text in ("true", "false"):
            return int(text == "true")
        return self.number(text, type)


def _string(text: str) -> str:
    """What an MLIR string between its quotes stands for."""
    raw = _ESCAPE.sub(lambda m: b"\\" if m[1] == b"\\" else bytes.fromhex(m[1].decode()), text.encode())
    return raw.decode(errors="replace")


def _float(text: str, name: str) -> float:
    """MLIR prints a float in decimal, or its bits in hex where decimal would not do (NaN, infinities)."""
    if "x" not in text:
        return float(text)
    bits = int(text, 16)
    if name == "bf16":
        bits, name = bits << 16, "f32"
    if name == "f8E5M2":  # the upper half of an f16
        bits, name = bits << 8, "f16"
    if name == "f8E4M3FN" and bits & 0x7F == 0x7F:  # it has no infinities, and one NaN of each sign
        return math.copysign(math.nan, -1.0 if bits & 0x80 else 1.0)
    if name not in _FLOAT_FORMATS:
        raise ParseError(f"the bits {text} of a {name} constant are not understood")
    to, back = _FLOAT_FORMATS[name]
    return struct.unpack(back, struct.pack(to, bits))[0]


# --- the result types of ops whose printed form leaves them out


def _first_type(op: Op, types: list[Type]) -> list[Type]:
    return types[:1]


def _no_types(op: Op, types: list[Type] | None = None) -> list[Type]:
    if op.name == "arith.constant":  # `arith.constant true`
        op.attrs["value"] = int(op.words.pop() == "true")
        return [Scalar("i1")]
    return []


def _like(type: Type, element: Scalar | Pointer) -> Type:
    return Tensor(type.shape, element, type.encoding) if isinstance(type, Tensor) else element


def _comparison(op: Op, types: list[Type]) -> list[Type]:
    return [_like(types[0], Scalar("i1"))]


def _select(op: Op, types: list[Type]) -> list[Type]:
    return [types[-1]]


def _pointee(op: Op, types: list[Type]) -> list[Type]:
    pointer = types[0].element if isinstance(types[0], Tensor) else types[0]
    assert isinstance(pointer, Pointer)
    return [_like(types[0], pointer.pointee)]  # type: ignore[arg-type]


_RESULT_TYPES: dict[str, Callable[[Op, list[Type]], list[Type]]] = {
    "arith.cmpi": _comparison,
    "arith.cmpf": _comparison,
    "arith.select": _select,
    "arith.mulsi_extended": lambda op, types: [types[0], types[0]],
    "arith.mului_extended": lambda op, types: [types[0], types[0]],
    "tt.load": _pointee,
    "tt.unsplat": lambda op, types: [op.operands[0].element],
    "tt.store": _no_types,
    "tt.return": _no_types,
    "tt.assert": _no_types,
    "tt.print": _no_types,
    "tt.dot": lambda op, types: [op.operands[2].type],
    "scf.yield": _no_types,
    "scf.condition": _no_types,
    "tt.reduce.return": _no_types,
    "tt.scan.return": _no_types,
    "tt.map_elementwise.return": _no_types,
    "llvm.intr.assume": _no_types,
    "ttg.local_store": _no_types,
    "ttg.local_dealloc": _no_types,
}


# --- ops with a form of their own


def _generic(p: _Parser, op: Op) -> list[Type]:
    """``"name"(operands) <{attributes}> ({ region }, …) {attributes} : (types) -> types``."""
    p.expect("(")
    op.operands = p.list_of(p.operand, ")")
    if p.accept("["):
        op.successors = [(label, []) for label in p.list_of(lambda: p.need(_LABEL, "a label").group(), "]")]
    if p.accept("<{"):
        op.attrs.update(p.dictionary())
        p.expect(">")
    if p.accept("("):
        op.regions = p.list_of(p.region, ")")
    if p.accept("{"):
        op.attrs.update(p.dictionary())
    p.expect(":")
    p.type_list()
    p.expect("->")
    return p.type_list()


def _for(p: _Parser, op: Op) -> list[Type]:
    """Operands: lower, upper, step, then the carried values; the body's arguments: the counter, then the carried."""
    if p.accept("unsigned"):
        op.attrs["unsigned"] = True
    counter = p.need(_VALUE, "the loop's counter").group(1)
    p.expect("=")
    op.operands = [p.operand()]
    p.expect("to")
    op.operands.append(p.operand())
    p.expect("step")
    op.operands.append(p.operand())
    names, types = _carried(p, op, "iter_args")
    if p.accept(":"):
        p.type()
    body_args = [Value(counter, op.operands[0].type), *map(Value, names, types)]
    op.regions = [_yielding(p.region(body_args))]
    if p.accept("{"):
        op.attrs.update(p.dictionary())
    return types


def _yielding(region: Region) -> Region:
    """Add the terminator that MLIR does not print where it yields nothing."""
    if not region.entry.ops or region.entry.ops[-1].name != "scf.yield":
        region.entry.ops.append(Op("scf.yield"))
    return region


def _carried(p: _Parser, op: Op, keyword: str) -> tuple[list[str], list[Type]]:
    names: list[str] = []

    def pair() -> None:
        names.append(p.need(_VALUE, "a carried value").group(1))
        p.expect("=")
        op.operands.append(p.operand())

    if p.accept(keyword) and p.accept("("):
        p.list_of(pair, ")")
    types = p.type_list() if names and p.accept("->") else []
    return names, types


def _if(p: _Parser, op: Op) -> list[Type]:
    op.operands = [p.operand()]
    types = p.type_list() if p.accept("->") else []
    op.regions = [_yielding(p.region())]
    if p.accept("else"):
        op.regions.append(_yielding(p.region()))
    if p.accept("{"):
        op.attrs.update(p.dictionary())
    return types


def _while(p: _Parser, op: Op) -> list[Type]:
    """Regions: before (its arguments are the carried values) and after (those that the condition passes on)."""
    names: list[str] = []

    def pair() -> None:
        names.append(p.need(_VALUE, "a carried value").group(1))
        p.expect("=")
        op.operands.append(p.operand())

    if p.accept("("):
        p.list_of(pair, ")")
    p.expect(":")
    types = p.type_list()
    p.expect("->")
    results = p.type_list()
    op.regions = [p.region(list(map(Value, names, types)))]
    p.expect("do")
    op.regions.append(p.region())
    if p.accept("attributes") and p.accept("{"):
        op.attrs.update(p.dictionary())
    return results


def _successor(p: _Parser) -> tuple[str, list[Value]]:
    label = p.need(_LABEL, "a label").group()
    values: list[Value] = []
    if p.accept("("):
        while not p.accept(":"):
            values.append(p.operand())
            p.accept(",")
        p.list_of(p.type, ")")
    return label, values


def _branch(p: _Parser, op: Op) -> list[Type]:
    if op.name == "cf.cond_br":
        op.operands = [p.operand()]
        p.expect(",")
    op.successors = [_successor(p)]
    while p.accept(","):
        op.successors.append(_successor(p))
    if p.accept("{"):
        op.attrs.update(p.dictionary())
    return []


def _call(p: _Parser, op: Op) -> list[Type]:
    m = p.need(_SYMBOL, "the callee")
    op.attrs["callee"] = m.group(1) or m.group(2)
    p.expect("(")
    op.operands = p.list_of(p.operand, ")")
    if p.accept("{"):
        op.attrs.update(p.dictionary())
    p.expect(":")
    p.type_list()
    p.expect("->")
    return p.type_list()


def _dot_scaled(p: _Parser, op: Op) -> list[Type]:
    """``a [scale s], b [scale s], c lhs = form rhs = form {attributes} : types -> type``.

    ``op.attrs["operands"]`` has a, its scale, b, its scale, with None for a scale that is not there.
    """
    slots: list[Value | None] = []
    for _ in range(2):
        slots += [p.operand(), p.operand() if p.accept("scale") else None]
        p.expect(",")
    c = p.operand()
    op.operands = [v for v in (slots[0], slots[2], c, slots[1], slots[3]) if v is not None]
    for side in ("lhs", "rhs"):
        p.expect(side)
        p.expect("=")
        op.attrs[side] = p.need(_NAME, "an element type").group()
    if p.accept("{"):
        op.attrs.update(p.dictionary())
    op.attrs["operands"] = slots
    p.expect(":")
    while not p.accept("->"):
        p.type()
        p.accept(",")
        p.accept("*")
    return [p.type()]


_FORMS: dict[str, Callable[[_Parser, Op], list[Type]]] = {
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "cf.br": _branch,
    "cf.cond_br": _branch,
    "tt.call": _call,
    "tt.dot_scaled": _dot_scaled,
}
