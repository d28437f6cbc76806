"""Which assertions depend on what a device computed, found in the source of a test.

Where kernels do not execute (``anyxpu simulate``), a test still shows that everything is accepted, and that errors,
shapes, strides, dtypes, counts and orders are right; only what was computed means nothing. :func:`values_off` rewrites
a module so that these checks, and no others, cannot fail. Their expressions are still evaluated, so what they launch
is launched and what they raise is raised.

What an expression tells is a set of:

- TENSOR: it is a tensor or an array, or holds one, or returns one when called; sizes, strides, dtype and the like of
  such are not in the set,
- VALUE: it was read out of one (``tolist()``, ``torch.equal``, text printed by a program that prints such),
- a parameter: whatever that tells, which each call of the function says.

Names tell everything that is assigned to them in their function, whenever. An assertion that tells TENSOR or VALUE is
a check of values; of ``A and B`` each is an assertion of its own. ``python -m tests.value_checks FILE`` lists them.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
# What the rewritten module calls; defined in tests/simulated.py, and by CHILD in programs of their own.
CHECK, SAME_FORM = "_anyxpu_value_check", "_anyxpu_same_form"
CHILD = f"{CHECK} = bool\ndef {SAME_FORM}(compare, *args, **options):\n compare(*args, **options)\n return True\n"

Kind = frozenset[str]
CLEAN: Kind = frozenset()
TENSOR: Kind = frozenset({"tensor"})
VALUE: Kind = frozenset({"value"})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What a tensor or an array tells of itself without being read.
SIZES = _words("len shape size numel stride nbytes itemsize ndim dim storage_offset is_contiguous element_size")
FORM = SIZES | _words(
    """dtype device layout type data_ptr untyped_storage is_set_to is_floating_point is_complex is_conj is_neg
    get_device requires_grad grad_fn is_pinned is_leaf is_xpu is_cpu flags names filename strides _is_view
    _is_zerotensor _version returncode ctypes asm metadata n_regs n_spills"""
)
FORM_FUNCTIONS = _words("len type isinstance id hasattr callable print issubclass super")
# The last two are anyxpu's own comparisons, of the benchmarks and of the demo.
READS = _words("item tolist equal allclose array_equal string_at _wrong relative_error")
COMPARISONS = _words("equal allclose array_equal")
ASSERTING = _words("assert_close assert_allclose assert_array_equal assert_equal")
# Their results' sizes are a matter of values too.
SIZED_BY_VALUES = _words("unique unique_consecutive nonzero argwhere masked_select flatnonzero bincount")
TIMES = _words("elapsed_time elapsed")
# A kernel that does not execute is done at once: that work is still under way cannot be claimed.
PROGRESS = _words("query idle reached")
MUTATORS = _words("append add update extend insert setdefault")
# Of torch and numpy: what gives no tensor, and what does in spite of its path.
CLEAN_PATHS = tuple(
    _words(
        """torch.xpu torch.cuda torch.accelerator torch.backends torch.device torch.Size torch.iinfo torch.finfo
        torch.dtype torch._C torch._dynamo torch._inductor torch.Generator torch.manual_seed torch.get_device_module
        torch.is_ torch.library torch.profiler torch.testing torch.promote_types torch.result_type torch.can_cast
        torch.Stream torch.Event torch.get_default torch.use_ torch.no_grad torch.enable_grad torch.inference_mode
        torch.autocast torch.amp torch.are_ torch.utils torch.overrides torch.distributed torch.multiprocessing
        torch.random.fork_rng torch.version torch.__ torch.broadcast_shapes torch.seed torch.initial_seed
        numpy.dtype numpy.iinfo numpy.finfo numpy.testing numpy.ndindex"""
    )
)
TENSOR_PATHS = ("torch.xpu.get_rng_state", "torch.utils.checkpoint")


@dataclass(eq=False)
class Scope:
    """A function, a class or the module itself: what its names tell."""

    node: ast.AST
    outer: Scope | None
    label: str
    names: dict[str, Kind] = field(default_factory=dict)
    functions: dict[str, Scope] = field(default_factory=dict)
    returns: Kind = CLEAN

    def chain(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def find(self, name: str) -> Kind:
        return next((s.names[name] for s in self.chain() if name in s.names), CLEAN)

    def function(self, name: str) -> Scope | None:
        return next((s.functions[name] for s in self.chain() if name in s.functions), None)

    def parameters(self) -> list[str]:
        a: ast.arguments = self.node.args  # type: ignore[attr-defined]
        found = [*a.posonlyargs, *a.args, *filter(None, [a.vararg]), *a.kwonlyargs, *filter(None, [a.kwarg])]
        return [p.arg for p in found]

    def parameter(self, name: str) -> str:
        """Stands for what a parameter tells, in the kinds of a function."""
        return f"{self.label}:{name}"


class Module:
    """A test's source, with what every name in it tells."""

    def __init__(self, tree: ast.Module, name: str = "", helpers: bool = True) -> None:
        self._aliases: dict[str, str] = {}
        self._attributes: dict[str, Kind] = {}
        self._arguments: dict[str, Kind] = {}
        self._lambdas: dict[ast.Lambda, Scope] = {}
        self._grown = True
        self.scopes: dict[ast.AST, Scope] = {}
        top = Scope(tree, None, name)
        self.scopes[tree] = self._top = top
        self._import(tree, helpers)
        self._declare(tree.body, top)
        while self._grown:  # what is told only grows, so this ends
            self._grown = False
            for scope in self.scopes.values():
                self._walk(scope.node.body, scope, CLEAN)  # type: ignore[attr-defined]

    def is_value(self, node: ast.expr, scope: Scope) -> bool:
        """Does this depend on an element of a tensor?"""
        seen: set[str] = set()
        left = set(self._kind(node, scope))
        while left:
            atom = left.pop()
            if atom in TENSOR | VALUE:
                return True
            seen.add(atom)
            left |= self._arguments.get(atom, CLEAN) - seen
        return False

    @property
    def functions(self) -> dict[str, Scope]:
        return self._top.functions

    # --- names
    def _import(self, tree: ast.Module, helpers: bool) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    first = name.name.split(".")[0]
                    self._aliases[name.asname or first] = name.name if name.asname else first
            elif isinstance(node, ast.ImportFrom) and node.module:
                other = _helper(node.module) if helpers else None
                for name in node.names:
                    self._aliases[name.asname or name.name] = f"{node.module}.{name.name}"
                    if other is not None and name.name in other.functions:
                        self.functions[name.asname or name.name] = other.functions[name.name]

    def _declare(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for node in body:
            for inner in _own_statements(node):
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    own = Scope(inner, scope, f"{scope.label}.{inner.name}@{inner.lineno}")
                    self.scopes[inner] = own
                    self._declare(inner.body, own)
                    if isinstance(inner, ast.ClassDef):
                        continue
                    name = inner.name if not isinstance(scope.node, ast.ClassDef) else "." + inner.name
                    (scope if name == inner.name else self._top).functions.setdefault(name, own)
                    for p in ast.walk(inner.args):
                        if isinstance(p, ast.arg):
                            own.names[p.arg] = _annotated(p.annotation) | {own.parameter(p.arg)}

    def _bind(self, scope: Scope, target: ast.expr, kind: Kind, source: ast.expr | None = None) -> None:
        """``target`` now tells ``kind``; ``source`` is the expression, which may say more of the parts of a tuple."""
        if isinstance(target, ast.Tuple | ast.List):
            whole = isinstance(source, ast.Tuple | ast.List) and len(source.elts) == len(target.elts)
            whole = whole and not any(isinstance(e, ast.Starred) for e in (*source.elts, *target.elts))
            for i, element in enumerate(target.elts):
                self._bind(scope, element, self._kind(source.elts[i], scope) if whole else kind)
        elif isinstance(target, ast.Starred | ast.Subscript):
            self._bind(scope, target.value, kind)
        elif isinstance(target, ast.Name):
            # A name of a function around it may be written by what is put into it.
            owner = next((s for s in scope.chain() if target.id in s.names and s is not self._top), scope)
            self._grow(owner.names, target.id, kind)
        elif isinstance(target, ast.Attribute) and target.attr not in FORM:
            self._grow(self._attributes, target.attr, frozenset(kind & (TENSOR | VALUE)))

    def _grow(self, told: dict[str, Kind], name: str, kind: Kind) -> None:
        before = told.get(name)
        if before is None or not kind <= before:
            told[name] = (before or CLEAN) | kind
            self._grown = True

    def _iterate(self, scope: Scope, target: ast.expr, source: ast.expr) -> None:
        """Bind the target of a loop over ``source``."""
        called = _called(source) if isinstance(source, ast.Call) else ""
        parts = target.elts if isinstance(target, ast.Tuple) else []
        if called == "zip" and len(source.args) == len(parts):
            for part, one in zip(parts, source.args, strict=True):
                self._iterate(scope, part, one)
        elif called == "enumerate" and len(parts) == 2:
            self._bind(scope, parts[0], CLEAN)
            self._iterate(scope, parts[1], source.args[0])
        elif called == "items" and len(parts) == 2:
            self._bind(scope, parts[0], CLEAN)
            self._bind(scope, parts[1], self._kind(source, scope))
        elif isinstance(source, ast.Tuple | ast.List):
            for one in source.elts:
                self._bind(scope, target, self._kind(one, scope), one)
        else:
            self._bind(scope, target, self._kind(source, scope))

    # --- statements
    def _walk(self, body: Sequence[ast.stmt], scope: Scope, least: Kind) -> None:
        """Take in what statements bind; ``least`` is what decided that they run."""
        for node in body:
            self._statement(node, scope, least)

    def _statement(self, node: ast.stmt, scope: Scope, least: Kind) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        if isinstance(node, ast.Assign):
            kind = self._kind(node.value, scope) | least
            for target in node.targets:
                self._bind(scope, target, kind, None if least else node.value)
        elif isinstance(node, ast.AnnAssign):
            kind = _annotated(node.annotation) | least
            kind |= self._kind(node.value, scope) if node.value else CLEAN
            self._bind(scope, node.target, kind)
            if isinstance(scope.node, ast.ClassDef) and isinstance(node.target, ast.Name):  # a field of a dataclass
                self._grow(self._attributes, node.target.id, frozenset(kind & (TENSOR | VALUE)))
        elif isinstance(node, ast.AugAssign):
            self._bind(scope, node.target, self._kind(node.value, scope) | least)
        elif isinstance(node, ast.Return):
            self._give(scope, (self._kind(node.value, scope) if node.value else CLEAN) | least)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._iterate(scope, node.target, node.iter)
        elif isinstance(node, ast.If | ast.While):
            if self._kind(node.test, scope):
                least = least | VALUE if self.is_value(node.test, scope) else least
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                kind = self._kind(item.context_expr, scope)
                if item.optional_vars is not None:
                    self._bind(scope, item.optional_vars, kind)
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                self._statement(part, scope, least)
            elif isinstance(part, ast.ExceptHandler | ast.match_case):
                self._walk(part.body, scope, least)
            elif isinstance(part, ast.expr):
                self._put(part, scope, least)

    def _put(self, node: ast.expr, scope: Scope, least: Kind) -> None:
        """What a statement's expression puts into a container, names, yields, and hands to functions."""
        self._kind(node, scope)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            self._bind(scope, node.func.value, self._all(node.args, scope) | least)

    def _give(self, scope: Scope, kind: Kind) -> None:
        if not kind <= scope.returns:
            scope.returns |= kind
            self._grown = True

    # --- expressions
    def _kind(self, node: ast.expr, scope: Scope) -> Kind:
        method = getattr(self, "_" + type(node).__name__.lower(), None)
        return method(node, scope) if method is not None else self._all(ast.iter_child_nodes(node), scope)

    def _all(self, nodes: Iterable[ast.AST], scope: Scope) -> Kind:
        return CLEAN.union(*(self._kind(n, scope) for n in nodes if isinstance(n, ast.expr)))

    def _constant(self, node: ast.Constant, scope: Scope) -> Kind:
        return VALUE if isinstance(node.value, str) and prints_values(node.value) else CLEAN

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Kind:
        kind = self._all((v.value for v in node.values if isinstance(v, ast.FormattedValue)), scope)
        text = "".join(str(v.value) if isinstance(v, ast.Constant) else "0" for v in node.values)
        return VALUE | kind if prints_values(text) else kind

    def _name(self, node: ast.Name, scope: Scope) -> Kind:
        function = scope.function(node.id)
        return scope.find(node.id) | (CLEAN if function is None else function.returns & (TENSOR | VALUE))

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Kind:
        base = self._kind(node.value, scope)
        if node.attr in FORM:
            return _form(node.attr, base)
        return CLEAN if self._path(node) else base | self._attributes.get(node.attr, CLEAN)

    def _compare(self, node: ast.Compare, scope: Scope) -> Kind:
        kind = self._all([node.left, *node.comparators], scope)
        return CLEAN if all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops) else kind

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Kind:
        kind = self._kind(node.operand, scope)
        negated = isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Call)
        return kind | VALUE if negated and _called(node.operand) in PROGRESS else kind

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Kind:
        if node not in self._lambdas:
            self._lambdas[node] = inner = Scope(node, scope, "")
            inner.names.update(dict.fromkeys(inner.parameters(), CLEAN))
        return self._kind(node.body, self._lambdas[node])

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Kind:
        kind = self._kind(node.value, scope)
        self._bind(scope, node.target, kind)
        return kind

    def _yield(self, node: ast.Yield, scope: Scope) -> Kind:
        self._give(scope, self._kind(node.value, scope) if node.value else CLEAN)
        return CLEAN

    def _comprehension(self, node: ast.ListComp, scope: Scope) -> Kind:
        kind = CLEAN
        for generator in node.generators:
            self._iterate(scope, generator.target, generator.iter)
            kind |= self._all(generator.ifs, scope)
        return kind | self._all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt], scope)

    _listcomp = _setcomp = _generatorexp = _dictcomp = _comprehension

    def _call(self, node: ast.Call, scope: Scope) -> Kind:
        arguments = self._all([*node.args, *(k.value for k in node.keywords)], scope)
        name = _called(node)
        if isinstance(node.func, ast.Name):
            if name in FORM_FUNCTIONS:
                return _form(name, arguments)
            function = scope.function(name)
            if function is not None:
                return self._answer(function, node, scope)
        elif isinstance(node.func, ast.Attribute):
            if name in READS | TIMES | SIZED_BY_VALUES:
                return VALUE
            path = self._path(node.func)
            if path.split(".")[0] in ("torch", "numpy"):
                clean = path.startswith(CLEAN_PATHS) and not path.startswith(TENSOR_PATHS)
                return CLEAN if clean else arguments if path == "torch.compile" else arguments | TENSOR
            base = self._kind(node.func.value, scope)
            if name in FORM:
                return _form(name, base)
            method = self.functions.get("." + name)
            return base | (arguments if method is None else self._answer(method, node, scope, 1))
        return self._kind(node.func, scope) | arguments

    def _path(self, node: ast.expr) -> str:
        """``torch.xpu.Stream`` for that attribute of an imported module; nothing for an attribute of anything else."""
        words = []
        while isinstance(node, ast.Attribute):
            words.append(node.attr)
            node = node.value
        known = isinstance(node, ast.Name) and node.id in self._aliases
        return ".".join([self._aliases[node.id], *reversed(words)]) if known else ""

    def _answer(self, function: Scope, node: ast.Call, scope: Scope, skip: int = 0) -> Kind:
        """What a function's result tells, its parameters replaced by what the arguments tell."""
        names = function.parameters()[skip:]
        told: dict[str, Kind] = {}
        for i, argument in enumerate(node.args):
            name = names[min(i, len(names) - 1)] if names else ""
            told[name] = told.get(name, CLEAN) | self._kind(argument, scope)
        for keyword in node.keywords:
            name = keyword.arg if keyword.arg in names else names[-1] if names else ""
            told[name] = told.get(name, CLEAN) | self._kind(keyword.value, scope)
        answer = function.returns
        for name, kind in told.items():
            parameter = function.parameter(name)
            self._grow(self._arguments, parameter, kind)
            answer = answer - {parameter} | kind if parameter in answer else answer
        return answer


def _form(name: str, kind: Kind) -> Kind:
    """What a tensor's ``name`` tells: its sizes, where values decide them, and else nothing."""
    return kind & VALUE if name in SIZES else CLEAN


def _annotated(annotation: ast.expr | None) -> Kind:
    text = ast.unparse(annotation) if annotation is not None else ""
    return TENSOR if "Tensor" in text or "ndarray" in text else CLEAN


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _own_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    """A statement and those in it, but not those of a function or class in it."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for part in ast.iter_child_nodes(node):
            inner = part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else [part]
            for statement in inner:
                if isinstance(statement, ast.stmt):
                    yield from _own_statements(statement)


@cache
def prints_values(text: str) -> bool:
    """Is this the text of a program that prints, or ends with, what it reads from a tensor?"""
    if "print(" not in text:
        return False
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return False
    module = Module(tree, helpers=False)
    printed = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _called(n) == "print"]
    return any(module.is_value(argument, module.scopes[tree]) for call in printed for argument in call.args)


_helpers: dict[str, Module | None] = {}


def _helper(name: str) -> Module | None:
    """A module of the tests that others import from; None for another, and within itself."""
    if not name.startswith("tests."):
        return None
    if name not in _helpers:
        _helpers[name] = None
        path = TESTS.joinpath(*name.split(".")[1:]).with_suffix(".py")
        _helpers[name] = Module(ast.parse(path.read_text()), name) if path.exists() else None
    return _helpers[name]


class _Rewriter(ast.NodeTransformer):
    """Replaces what checks values by calls of CHECK and SAME_FORM; ``lines`` are those it replaced."""

    def __init__(self, module: Module, child: bool = False) -> None:
        self._module, self._child = module, child
        self._scope = next(iter(module.scopes.values()))
        self.lines: list[int] = []

    def generic_visit(self, node: ast.AST) -> ast.AST:
        outer, self._scope = self._scope, self._module.scopes.get(node, self._scope)
        try:
            return super().generic_visit(node)
        finally:
            self._scope = outer

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        # In a program of its own torch.testing and numpy.testing are as they are.
        call = node.value
        if self._child and isinstance(call, ast.Call) and _called(call) in ASSERTING:
            self.lines.append(node.lineno)
            node.value = ast.Call(ast.Name(CHECK, ast.Load()), [ast.Tuple(call.args, ast.Load())], [])
            return ast.fix_missing_locations(node)
        return node

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        both = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        made: list[ast.stmt] = []
        for test in node.test.values if both else [node.test]:  # type: ignore[attr-defined]
            if not self._module.is_value(test, self._scope):
                made.append(ast.Assert(test, node.msg))
                continue
            self.lines.append(test.lineno)
            name, arguments = CHECK, [test]
            if isinstance(test, ast.Call) and _called(test) in COMPARISONS and not self._sized_by_values(test):
                name, arguments = SAME_FORM, [test.func, *test.args]
            call = ast.Call(ast.Name(name, ast.Load()), arguments, test.keywords if name == SAME_FORM else [])
            made.append(ast.Assert(call, node.msg) if name == SAME_FORM else ast.Expr(call))
        return [ast.fix_missing_locations(ast.copy_location(one, node)) for one in made]

    def _sized_by_values(self, test: ast.Call) -> bool:
        inner = (n for n in ast.walk(test) if isinstance(n, ast.Call))
        return any(_called(n) in SIZED_BY_VALUES for n in inner)


def values_off(tree: ast.Module, child: bool = False) -> tuple[ast.Module, list[int]]:
    """The module, or a program that a test starts, with its checks of values off, in place, and their lines."""
    rewriter = _Rewriter(Module(tree), child)
    return rewriter.visit(tree), rewriter.lines


@cache
def child_program(text: str) -> tuple[str, int]:
    """A program for ``python -c`` with its checks of values off, and how many there are; as it is if it has none."""
    try:
        tree, lines = values_off(ast.parse(text), child=True)
    except SyntaxError:  # a test may want it so
        return text, 0
    return (CHILD + ast.unparse(tree) if lines else text), len(lines)


def main() -> None:
    for path in sys.argv[1:]:
        text = Path(path).read_text().splitlines()
        _, lines = values_off(ast.parse("\n".join(text)))
        for line in sorted(set(lines)):
            print(f"{path}:{line}: {text[line - 1].strip()}")


if __name__ == "__main__":
    main()
