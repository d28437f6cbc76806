"""Calls that Triton's inliner leaves: of a function that returns early, inside a loop or a branch.

Such a function has several basic blocks, and MLIR's structured loops and branches take one. In C they may have labels
and jumps inside, so the function's blocks are put there, a copy for each call.
"""

from __future__ import annotations

from typing import Any

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton.ir import Block, Function, Module, Op, Region, Value, blocks

# An op of ours: its region's entry takes the operands, and each `tt.return` inside gives the results.
INLINED = "anyxpu.inlined"

_DEPTH = 100


def inline(module: Module) -> bool:
    """Put the functions that the kernel calls where it calls them; whether there were any.

    Raises:
        UnsupportedOperation: a function calls itself.
    """
    functions = {function.name: function for function in module.functions}
    found = False
    for _ in range(_DEPTH):
        assert module.kernel.body is not None
        calls = [op for block in blocks(module.kernel.body) for op in block.ops if op.name == "tt.call"]
        if not calls:
            return found
        found = True
        for op in calls:
            _replace(op, functions[str(op.attrs["callee"])])
    raise UnsupportedOperation("a function that calls itself")


def _replace(call: Op, function: Function) -> None:
    assert function.body is not None
    call.name = INLINED
    call.regions = [_copy(function.body, {})]
    # A function's arguments are values of their own, and its first block's are not printed.
    entry = call.regions[0].entry
    entry.args = [Value(arg.name, arg.type, entry) for arg in function.args]
    _rename(call.regions[0], dict(zip(function.args, entry.args, strict=True)))


def _copy(region: Region, renamed: dict[Value, Value]) -> Region:
    """The region with values of its own; what it uses from outside stays."""
    made = Region([_copy_block(block, renamed) for block in region.blocks])
    _rename(made, renamed)
    return made


def _copy_block(block: Block, renamed: dict[Value, Value]) -> Block:
    made = Block(block.label)
    made.args = [_fresh(arg, made, renamed) for arg in block.args]
    for op in block.ops:
        copy = Op(op.name, list(op.operands), [], dict(op.attrs), list(op.words), [], list(op.successors))
        copy.results = [_fresh(result, copy, renamed) for result in op.results]
        copy.regions = [Region([_copy_block(b, renamed) for b in region.blocks]) for region in op.regions]
        made.ops.append(copy)
    return made


def _fresh(value: Value, owner: Op | Block, renamed: dict[Value, Value]) -> Value:
    made = renamed[value] = Value(value.name, value.type, owner)
    made.multiple = value.multiple
    return made


def _rename(region: Region, renamed: dict[Value, Value]) -> None:
    for block in blocks(region):
        for op in block.ops:
            op.operands = [renamed.get(v, v) for v in op.operands]
            op.successors = [(label, [renamed.get(v, v) for v in values]) for label, values in op.successors]
            op.attrs = {name: _renamed(value, renamed) for name, value in op.attrs.items()}


def _renamed(attribute: Any, renamed: dict[Value, Value]) -> Any:
    if isinstance(attribute, Value):
        return renamed.get(attribute, attribute)
    if isinstance(attribute, list):
        return [_renamed(a, renamed) for a in attribute]
    return attribute
