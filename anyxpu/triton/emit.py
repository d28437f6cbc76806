"""From the IR to OpenCL C: the printer's core, which every op's own printer builds on.

A scalar is a C variable, the same in every work-item. A tensor is, in each work-item, as many elements as its layout
has registers. Elementwise ops are not printed one by one: they wait in a list, and when something needs their values
(:meth:`Emitter.flush`) they are printed as few loops over the register number as their dependences allow, with C
variables for what stays inside a loop and arrays for what leaves it. Loops over at most UNROLL_LIMIT registers are
unrolled, so that their arrays become registers; longer ones are left rolled, which was faster to compile and, for what
is not accumulated, no slower to run on Intel's CPU driver.

Ops that are cheap and pure (index arithmetic, masks, splats, ranges, and everything that only renames registers) have
no place of their own: they are printed inside each loop that wants them.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton import held, tables, wrapping
from anyxpu.triton import layout as layouts
from anyxpu.triton.elements import ELEMENT_PRINTERS, Array, Elements, Join, Loop, Read, Recomputed, Splat, View
from anyxpu.triton.ir import Block, Function, Op, Pointer, Region, Scalar, Tensor, Type, Value, walk
from anyxpu.triton.layout import BitMap, Layout
from anyxpu.triton.storage import Request, size_of

# The name of the op that :func:`anyxpu.triton.control.assign` makes: overwrite the array ``target`` with the operand.
ASSIGN = "assign"

# The name of the op that a reduction makes: take the operands' elements into partial results, in the loop that the
# attribute ``loop`` opens.
ACCUMULATE = "accumulate"

# Arrays of up to this many elements are private and the loops over them unrolled: the device's compiler then keeps them
# in registers. On a CPU that is up to six times faster than an accumulator in memory; an AVX-512 core has 32 registers.
UNROLL_LIMIT = 16

# A chain of recomputed ops longer than this is computed once and kept.
RECOMPUTE_LIMIT = 40


Handler = Callable[["Emitter", Op], None]


class Emitter:
    """Prints one function; see the module's docstring for how tensors become loops."""

    def __init__(
        self,
        function: Function,
        handlers: dict[str, Handler],
        warps: int,
        lanes: int,
        local_arrays: bool,
        matrix: bool = False,
        outer: bool = False,
        tiles: bool = False,
        turns: bool = False,
        ends: Sequence[str] = (),
    ) -> None:
        self.function, self.handlers = function, handlers
        self.warps, self.lanes, self.local_arrays = warps, lanes, local_arrays
        self.matrix = matrix  # whether products go to a matrix engine
        self.outer = outer  # or else are outer products
        self.tiles = tiles  # but those that a CPU's tile registers take
        self.ends = ends  # what a program does at its end
        self.turns = turns  # whether assembly transposes tensors
        # AVX2 has no masked accesses that are worth it; sub-groups of so few are its. See held.py.
        self.masks_are_slow = local_arrays and lanes <= 8
        self.divides = local_arrays and warps == 1 and lanes >= 8  # see wrapping.py
        self.arrays: list[Request] = []
        self.lines: list[str] = []
        self.assertions: list[str] = []  # their messages
        self.depth = 1
        self.counter = 0
        self.shared_bytes = 0
        self.scalars: dict[Value, str] = {}
        self.tensors: dict[Value, Elements] = {}
        self.buffers: list[tuple[str, int]] = []  # declarations of local memory for the whole kernel, and their bytes
        self.layouts: dict[Value, Layout] = {}  # of values that the printer made itself
        self.elsewhere: dict[Value, Value] = {}  # the same elements in another layout, where there are two of them
        self.renamed: dict[Value, Value] = {}  # operands of products that stay where they are
        self.turned: dict[Value, Value] = {}  # products' operands as they read them, made before a loop
        self.staged: dict[tuple[Value, int], str] = {}  # and as its tiles read them: the array, by the product's side
        self.carried: dict[Value, Value] = {}  # what a loop's variables become at its end, and which
        self.labels: dict[str, tuple[Block, str]] = {}  # of the blocks around: each with its label in C
        self.mapped: tuple[list[str], str] = ([], "")  # where a mapped function's results go, and the label behind it
        # In a function put where it is called: where its results go, and the label behind it.
        self.called: tuple[Sequence[Value], str] | None = None
        self.pending: list[Op] = []
        self.users: dict[Value, list[Op]] = defaultdict(list)
        assert function.body is not None
        for op in walk(function.body):
            for operand in op.operands:
                self.users[operand].append(op)
            for _, values in op.successors:
                for v in values:
                    self.users[v].append(op)

    # --- text

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def leave(self) -> None:
        """End the program, in every lane."""
        for text in self.ends:
            self.line(text)
        self.line("return;")

    @contextlib.contextmanager
    def braces(self, head: str, tail: str = "}") -> Iterator[None]:
        self.line(f"{head} {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line(tail)

    def fresh(self, stem: str = "v") -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def variable(self, c_type: str, expression: str | None = None) -> str:
        name = self.fresh()
        self.line(f"{c_type} {name};" if expression is None else f"{c_type} {name} = {expression};")
        return name

    @contextlib.contextmanager
    def loop(self, count: int, unroll: bool | None = None) -> Iterator[Loop]:
        """A loop over ``count`` registers (a power of two); unrolled, as short ones are, arrays can be registers."""
        loop = Loop(self, count)
        k = loop.counter
        if count == 1:
            yield loop
            return
        if count <= UNROLL_LIMIT if unroll is None else unroll:
            self.line("#pragma unroll")
        with self.braces(f"for (int {k} = 0; {k} < {count}; ++{k})"):
            yield loop

    def declare(
        self, type: Scalar | Pointer, registers: int, layout: Layout | None = None, indexed: bool = False
    ) -> Array:
        """An array that holds one tensor, of the layout where that is given; ``indexed`` in loops not written out.

        What all lanes of the only sub-group hold alike they share, in local memory: the device's compiler then sees
        that what is read from it is the same in each, and addresses made of it contiguous.
        """
        name, c = self.fresh("a"), tables.storage_type(type)
        if self.local_arrays and (registers > UNROLL_LIMIT or (indexed and registers > 1)):
            shared = layout is not None and self.warps == 1 and not any(layout.lane)
            items = 1 if shared else self.lanes * self.warps
            self._request(name, c, registers * items)
            return Array(name, registers, type, " * 1" if shared else f" * {items} + item")
        self.line(f"{c} {name};" if registers == 1 else f"{c} {name}[{registers}];")
        return Array(name, registers, type)

    def array(self, c_type: str, elements: int) -> str:
        """Local memory of the printer's own, for as long as the text mentions it; its name."""
        name = self.fresh("a")
        self._request(name, c_type, elements)
        return name

    def _request(self, name: str, c_type: str, elements: int) -> None:
        self.arrays.append(Request(name, c_type, elements, len(self.lines), self.depth))
        self.line("//")  # its declaration, once all arrays are known

    def local(self, type: Type, elements: int) -> str:
        """A typed pointer to the work-group's scratch memory, which must be idle; `barrier` before it is used again."""
        return self.locals([(type, elements)])[0]

    def locals(self, wanted: Iterable[tuple[Type, int]]) -> list[str]:
        """Several such pointers: each a type and how many elements."""
        names, offset = [], 0
        for t, elements in wanted:
            c = tables.storage_type(t)
            c = "ulong" if "*" in c else c
            offset = -(-offset // 8) * 8
            name = self.fresh("s")
            self.line(f"__local {c}* {name} = (__local {c}*)(shared + {offset});")
            names.append(name)
            offset += elements * size_of(c)
        self.shared_bytes = max(self.shared_bytes, offset)
        return names

    def barrier(self, memory: str = "CLK_LOCAL_MEM_FENCE") -> None:
        """All work-items of the work-group come here before one goes on, and see what the others wrote.

        The lanes of an only sub-group go together on a CPU, whose barrier of a work-group has to be avoided: of what is
        loaded under a condition and used on both sides of one, Intel's compiler makes the load whatever the condition.
        Kernels with more sub-groups (``keep_warps``) are still exposed to that.
        """
        alone = self.local_arrays and self.warps == 1
        self.line(f"{'sub_group_barrier' if alone else 'barrier'}({memory});")

    # --- values

    def layout(self, value: Value) -> Layout:
        assert isinstance(value.type, Tensor)
        return self.layouts.get(value) or layouts.of(value.type)

    def scalar(self, value: Value) -> str:
        return self.scalars[value]

    def elements(self, value: Value) -> Elements:
        return self.tensors[value]

    def define(self, value: Value, expression: str) -> None:
        """Give a scalar its C variable."""
        self.scalars[value] = self.variable(tables.register_type(value.type), expression)

    def expression(self, op: Op, args: Sequence[str]) -> str:
        printer = tables.ELEMENTWISE.get(op.name)
        if printer is None:
            raise UnsupportedOperation(f"the operation {op.name} is not supported")
        return printer(op, args)

    def registers(self, op: Op) -> int:
        value = op.results[0] if op.results else op.operands[0]
        return self.layout(value).registers

    # --- blocks

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        handler = self.handlers.get(op.name)
        if handler is not None:
            handler(self, op)
        elif op.name in tables.ELEMENTWISE:
            self.elementwise(op)
        else:
            raise UnsupportedOperation(f"the operation {op.name} is not supported")

    def elementwise(self, op: Op) -> None:
        if not op.results[0].is_tensor:
            self.define(op.result, self.expression(op, [self.scalar(o) for o in op.operands]))
            return
        cost = self.recompute_cost(op)
        if cost is not None:
            self.tensors[op.result] = Recomputed(op, cost)
        else:
            self.pending.append(op)

    def recompute_cost(self, op: Op) -> int | None:
        """How many ops recomputing ``op`` repeats, or None where it should be kept."""
        if self.tiles and self._scales_array(op):
            return 1
        if op.name not in tables.RECOMPUTED or (op.name == "arith.select" and op.result.element.is_float):
            return None
        cost = 1
        for operand in op.operands:
            cost += self._cost(operand)
        return cost if cost <= RECOMPUTE_LIMIT or op.name == "tt.addptr" else None

    def _scales_array(self, op: Op) -> bool:
        """Whether it multiplies what lies in memory by one number: then to keep the products would cost more."""
        held = [self.tensors.get(o) for o in op.operands]
        scaled = any(isinstance(h, Array) and h.item for h in held) and any(isinstance(h, Splat) for h in held)
        return op.name == "arith.mulf" and op.result.element == Scalar("f32") and scaled

    def _cost(self, value: Value) -> int:
        e = self.tensors.get(value)
        if isinstance(e, Recomputed):
            return e.cost
        if isinstance(e, View):
            return self._cost(e.source)
        return 0

    # --- loops of elementwise ops

    def reads_before_waiting(self) -> bool:
        """Whether what is read now may be read before the waiting ops: none writes, or ends a program that may not."""
        return not any(op.name in ("tt.store", "tt.assert") for op in self.pending)

    def flush(self) -> None:
        """Print every waiting op."""
        ops, self.pending = self._small_loads_first(self.pending), []
        while ops:
            ops = self._print_loop(ops)

    def _small_loads_first(self, ops: list[Op]) -> list[Op]:
        """Those before, of ops that wait, that have fewer registers than the first: loads, and what they are made of.

        A loop of the others then has their values, as of a row's factor, where without them it would have to end and
        keep all that it has loaded.
        """
        if not any(op.name == "tt.load" and self.registers(op) < self.registers(ops[0]) for op in ops[1:]):
            return ops
        waiting = {r for op in ops for r in op.results}
        early: dict[Op, None] = {}
        made: set[Value] = set()
        for op in ops:
            if op.name == "tt.load":
                plain = "looked_up" not in op.attrs and not op.attrs.get("isVolatile")
            else:
                plain = op.name in tables.ELEMENTWISE
            if not plain:
                break  # it may change what is read behind it, or is to be read where it stands
            sources = {leaf for v in op.operands for leaf, _ in self.sources(v, waiting)} & waiting
            if self.registers(op) < self.registers(ops[0]) and sources <= made:
                early[op] = None
                made.update(op.results)
        return [*early, *(op for op in ops if op not in early)]

    def _print_loop(self, ops: list[Op]) -> list[Op]:
        """Print one loop with as many of ``ops`` as fit; return the others."""
        chosen, left = self._choose(ops)
        members = set(chosen)
        leaving = [op for op in chosen if any(self._used_outside(r, members) for r in op.results)]
        kept = {
            op.result: self.declare(op.result.element, self.registers(op), self.layout(op.result)) for op in leaving
        }
        whole = self.held_at_once(chosen)
        if whole:
            with self.braces(f"if ({' && '.join(dict.fromkeys(whole.values()))})"):
                self._print_body(chosen, kept, whole)
            with self.braces("else"):
                self._print_body(chosen, kept)
        else:
            self._print_body(chosen, kept)
        for op in chosen:
            if op.name in LOOP_ENDS:
                LOOP_ENDS[op.name](self, op)
        self.tensors.update(kept)
        return left

    def held_at_once(self, chosen: list[Op]) -> dict[Value, str]:
        """What masks of a loop are made of and need not be, each with its condition, where it is worth two loops."""
        if not self.masks_are_slow:
            return {}
        return {part: c for op in chosen for m in _masks(op) for part, c in held.parts(m, self.scalar).items()}

    def _print_body(self, chosen: list[Op], kept: dict[Value, Array], true: Iterable[Value] = ()) -> None:
        """Print the loop of ``chosen``, where the masks ``true`` hold."""
        taking = next((op for op in chosen if op.name == ACCUMULATE), None)
        with taking.attrs["loop"]() if taking else self.loop(self.registers(chosen[0])) as loop:
            loop.true = frozenset(true)
            self._print_once(loop, chosen, kept)

    def _print_once(self, loop: Loop, chosen: list[Op], kept: dict[Value, Array]) -> None:
        """Print what one turn of a loop does, where it divides once for each body that wrapping.py tells of."""
        if not self.divides or not self._loads_or_stores(chosen):
            return self._print_turn(loop, chosen, kept)
        printed, arrays = len(self.lines), len(self.arrays)
        known, checked = dict(loop.known), list(loop.checked)
        self._print_turn(loop, chosen, kept)
        asked = list(loop.divisions)
        if len(self.arrays) > arrays:
            return None
        if not asked and self.masks_are_slow:
            del self.lines[printed:]
            loop.known, loop.checked = known, checked
            return self._print_where_inside(loop, chosen, kept)
        if not 0 < len(asked) <= wrapping.MOST:
            return None
        del self.lines[printed:]
        loop.known, loop.checked = known, list(checked)
        condition, whole = wrapping.chosen(loop, asked)
        known, true = dict(loop.known), loop.true

        def turn(whole: Mapping[wrapping.Key, tuple[str, str]], true: frozenset[Value]) -> None:
            loop.known, loop.checked, loop.whole, loop.true = dict(known), list(checked), dict(whole), true
            self._print_turn(loop, chosen, kept)

        with self.braces(f"if ({condition})"):
            loop.whole = dict(whole)
            masks = [m for op in chosen for m in _masks(op)] if self.masks_are_slow else []
            inside = wrapping.inside(loop, masks)
            if inside:
                # One after the other they would be branches; together the device's compiler finds the few that matter.
                compared = dict.fromkeys(c for conditions in inside.values() for c in conditions.split(" && "))
                with self.braces(f"if ({' & '.join(f'({c})' for c in compared)})"):
                    turn(whole, true | frozenset(inside))
                    self._stay_apart()
                with self.braces("else"):
                    turn(whole, true)
            else:
                turn(whole, true)
        with self.braces("else"):
            turn({}, true)
        return None

    def _print_where_inside(self, loop: Loop, chosen: list[Op], kept: dict[Value, Array]) -> None:
        """Print what one turn of a loop does: without masks where they hold of all lanes of the registers at hand."""
        inside = wrapping.inside_here(loop, [m for op in chosen for m in _masks(op)])
        if not inside:
            return self._print_turn(loop, chosen, kept)
        known, checked = dict(loop.known), list(loop.checked)

        def turn(true: Iterable[wrapping.Bit] = (), false: Iterable[wrapping.Bit] = ()) -> None:
            loop.known, loop.checked = dict(known), list(checked)
            loop.decided = dict.fromkeys(true, "true") | dict.fromkeys(false, "false")
            self._print_turn(loop, chosen, kept)

        nothing = self._nothing_to_do(loop, chosen, kept)
        # The mask of nothing is slow to read by: registers behind the end only take what stands for it.
        empty = next(((bit, here.none) for bit, here in inside.items() if here.none is not None), None)
        with self.braces(f"if ({' && '.join(dict.fromkeys(here.all for here in inside.values()))})"):
            turn(true=inside)
            self._stay_apart()
        if nothing:
            with self.braces(f"else if (!({' || '.join(f'({c})' for c in nothing)}))"):
                turn()
        elif empty is not None:
            with self.braces(f"else if ({empty[1]})"):
                turn(false=[empty[0]])
            with self.braces("else"):
                turn()
        else:
            with self.braces("else"):
                turn()
        loop.decided = {}
        return None

    def _stay_apart(self) -> None:
        """Keep the device's compiler from making this body and the one with masks the same, with masks for both.

        It moves what two branches have in common behind them, but not across a barrier; between the lanes of one
        thread that is nothing at all.
        """
        self.line("sub_group_barrier(CLK_LOCAL_MEM_FENCE);")

    @staticmethod
    def _nothing_to_do(loop: Loop, chosen: list[Op], kept: dict[Value, Array]) -> list[str]:
        """Conditions, under any of which a turn does nothing: all that it leaves are stores behind one mask."""
        stores = [op for op in chosen if op.name == "tt.store"]
        plain = all(
            op.name in ("tt.load", "tt.store", "tt.extern_elementwise") or op.name in tables.ELEMENTWISE
            for op in chosen
        )
        if kept or not plain or not stores or any(_masks(op) != _masks(stores[0]) for op in stores):
            return []
        wanted = wrapping.inside_here(loop, _masks(stores[0]))
        return list(dict.fromkeys(here.none for here in wanted.values() if here.none is not None))

    def viewed(self, value: Value) -> tuple[Value, BitMap] | None:
        """Of another tensor's registers in another order: which, and how."""
        e = self.tensors.get(value)
        return (e.source, e.map) if isinstance(e, View) else None

    def is_recomputed(self, value: Value) -> bool:
        """Whether a tensor is printed where it is wanted."""
        return isinstance(self.tensors.get(value), Recomputed)

    def is_made_here(self, value: Value) -> bool:
        """Whether all that a tensor is made of, back to divisions and ranges, is printed where it is wanted."""
        op = value.owner
        if not value.is_tensor or not isinstance(op, Op):
            return True
        known = self.tensors.get(value)
        if op.name in wrapping.DIVISIONS:
            return isinstance(known, Recomputed)
        return not isinstance(known, (Array, Read)) and all(self.is_made_here(o) for o in op.operands)

    @staticmethod
    def _loads_or_stores(chosen: list[Op]) -> bool:
        return any(op.name in ("tt.load", "tt.store") for op in chosen)

    def _print_turn(self, loop: Loop, chosen: list[Op], kept: dict[Value, Array]) -> None:
        for op in chosen:
            name = None if op.name == ASSIGN else self.print_element(loop, op)
            if name is None:
                continue
            loop.known[op.result, loop.here] = name
            if op.result in kept:
                self.line(f"{kept[op.result].element(loop.counter)} = {name};")
        # Read all before the first is overwritten.
        assigned = [(op.attrs["target"], loop.value(op.operands[0])) for op in chosen if op.name == ASSIGN]
        if len(assigned) > 1:
            assigned = [(t, v if v[0] == "v" else loop.temporary(t.type, v)) for t, v in assigned]
        for target, value in assigned:
            self.line(f"{target.element(loop.counter)} = {value};")

    def print_element(self, loop: Loop, op: Op) -> str | None:
        """Print one op for one register; the result's variable, or None where it has none."""
        printer = ELEMENT_PRINTERS.get(op.name)
        args = [loop.value(o) for o in op.operands]
        if printer is not None:
            return printer(loop, op, args)
        return loop.temporary(op.result.element, self.expression(op, args))

    def _choose(self, ops: list[Op]) -> tuple[list[Op], list[Op]]:
        """Split ``ops`` into those that one loop can hold and the rest, keeping memory accesses in order."""
        count = self.registers(ops[0])
        waiting = {r for op in ops for r in op.results}
        inside: set[Value] = set()
        chosen: list[Op] = []
        left: list[Op] = []
        stored = left_memory = left_store = checked = left_check = False
        for op in ops:
            reads, writes = op.name == "tt.load", op.name == "tt.store"
            fits = self.registers(op) == count and all(
                leaf not in waiting or (leaf in inside and index.is_identity)
                for operand in op.operands
                for leaf, index in self.sources(operand, waiting)
            )
            if (reads and (stored or left_store)) or (writes and left_memory):
                fits = False
            # What an assertion looks at is known behind its loop; until then accesses that it may be about are masked,
            # where the condition is on what their addresses are made of in this very loop.
            checks = op.name == "tt.assert"
            looked_up = "looked_up" in op.attrs and (left_check or (checked and not self._made_in(op, inside, waiting)))
            if looked_up or (checks and left_store):
                fits = False
            if fits:
                chosen.append(op)
                inside.update(op.results)
                stored |= writes
                checked |= checks
            else:
                left.append(op)
                left_memory |= reads or writes
                left_store |= writes
                left_check |= checks
        return self._postpone_assignments(chosen, left, waiting)

    def _made_in(self, access: Op, inside: set[Value], waiting: set[Value]) -> bool:
        """Whether all of an access's addresses that is no range is made of values of ``inside``."""
        return all(leaf in inside for leaf, _ in self.sources(access.operands[0], waiting))

    def _postpone_assignments(self, chosen: list[Op], left: list[Op], waiting: set[Value]) -> tuple[list[Op], list[Op]]:
        """Take out of the loop each assignment to an array that something else still reads elsewhere."""
        while True:
            still_read = {leaf for op in left for v in op.operands for leaf, _ in self.sources(v, waiting)}
            still_read |= {
                leaf
                for op in chosen
                for v in op.operands
                for leaf, index in self.sources(v, waiting)
                if not index.is_identity
            }
            early = [op for op in chosen if op.name == ASSIGN and op.attrs["target"] in still_read]
            if not early:
                return chosen, left
            chosen = [op for op in chosen if op not in early]
            left = left + early

    def sources(self, value: Value, waiting: set[Value]) -> list[tuple[Value | Array, BitMap]]:
        """What computing ``value`` reads: values of ``waiting`` and arrays, each with the map of registers it reads."""
        if not value.is_tensor:
            return []
        if value in waiting:
            return [(value, layouts.identity(self.layout(value).registers))]
        e = self.tensors[value]
        if isinstance(e, Array):
            return [(e, layouts.identity(e.registers))]
        found = [s for v in e.inputs() for s in self.sources(v, waiting)]
        if isinstance(e, (View, Join)):
            return [(leaf, index.after(e.map)) for leaf, index in found]
        return found

    def _used_outside(self, value: Value, members: set[Op]) -> bool:
        """Whether any op that is not of the loop of ``members`` needs the value."""
        for user in self.users[value]:
            if user in members:
                continue
            e = self.tensors.get(user.results[0]) if user.results else None
            if not isinstance(e, (Recomputed, View, Join)):
                return True
            if any(self._used_outside(r, members) for r in user.results):
                return True
        return False

    # --- combine functions of reductions and scans

    def inline(self, region: Region, args: Iterable[str]) -> list[str]:
        """Print a region of scalar ops on ``args``; the C expressions of what it returns."""
        for value, arg in zip(region.entry.args, args, strict=True):
            self.scalars[value] = arg
        for op in region.entry.ops:
            if op.name.endswith(".return"):
                return [self.scalar(v) for v in op.operands]
            self.op(op)
        raise UnsupportedOperation("a combine function without a return")


def _masks(op: Op) -> Sequence[Value]:
    """Of a load or store of tensors."""
    first = {"tt.load": 1, "tt.store": 2}.get(op.name)
    return () if first is None else op.operands[first : first + 1]


# What ops that wait for a loop still print behind it; filled by the modules that know them.
LOOP_ENDS: dict[str, Handler] = {}
