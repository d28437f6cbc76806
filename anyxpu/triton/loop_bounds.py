"""Loop bounds of u32, which Triton compares as signed numbers.

A constant of 2**31 and more is u32 by Triton's rules, and ``scf.for`` compares its 32 bits as i32: ``range(0, 2**31)``
never runs, on any backend. Inductor writes such bounds into reductions over 2**31 elements. For xpu such a loop counts
in i64, which is also its variable's type in the body.
"""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any


class _Bound(ast.expr):
    """An argument of ``range``, which our ``visit__Bound`` makes a value that fits a signed type."""

    _fields = ("value",)

    def __init__(self, value: ast.expr) -> None:
        super().__init__()
        self.value = value
        ast.copy_location(self, value)


def widen(module: ModuleType) -> None:
    """Change ``triton.compiler.code_generator``: a loop's bounds of u32 are i64, in kernels for xpu."""
    generator: Any = module.CodeGenerator  # type: ignore[attr-defined]
    language: Any = module.language  # type: ignore[attr-defined]
    visit_for = generator.visit_For

    def visit_loop(self: Any, node: ast.For) -> Any:
        call: Any = node.iter
        if self.builder.options.backend_name == "intel" and self.visit(call.func) in (range, language.range):
            call.args = [a if isinstance(a, (_Bound, ast.Starred)) else _Bound(a) for a in call.args]
        return visit_for(self, node)

    def visit_bound(self: Any, node: _Bound) -> Any:
        value = self.visit(node.value)
        number = value.value if isinstance(value, language.constexpr) else value
        if isinstance(number, int) and 1 << 31 <= number < 1 << 32:
            return language.core.tensor(self.builder.get_int64(number), language.int64)
        if isinstance(value, language.core.tensor) and value.type == language.uint32:
            return self.semantic.cast(value, language.int64)
        return value

    generator.visit_For = visit_loop
    generator.visit__Bound = visit_bound
