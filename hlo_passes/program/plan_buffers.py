"""`plan-buffers`: finds the last use of each value and what may reuse its buffer; then merges equal functions."""

from collections import Counter, defaultdict, deque
from collections.abc import Container

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, bytecode_of, functions, terminator
from jaxpp.ir.mesh_functions import task_functions
from jaxpp.ir.mesh_lines import Literal, MeshLine, MeshLines
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.program import Call, Send
from jaxpp.ir.read_lines import mesh_lines
from jaxpp.ir.steps import leave
from jaxpp.ir.values import defining_op


class PlanBuffers(Pass):
    """Marks last uses of values, and arguments whose buffers a task function may reuse; merges equal task functions.

    - `jaxpp.last_use = array<i64: ...>` lists the operands that nothing on this mesh uses afterwards. It never lists
      constants, arguments that the user did not donate, or values that the mesh function returns.
    - `tf.aliasing_output = k` on an argument of a task function: result k may reuse the buffer. Result k is computed
      elementwise from the argument and has its type and sharding, such as an accumulator or an updated weight. Every
      call is the last use of the value that it passes there.
    - Of task functions that differ only in their name, stage and source locations, one stays, so that each is compiled
      once. Twelve equal layers in six equal stages have one forward and one backward. The function that stays loses its
      `jaxpp.stage`; the calls keep theirs. Functions with different donated arguments are different.

    Preconditions: `insert-transfers` ran.

    ```mlir
    %s1 = call @backward_0(%w, %a, %s0)   ==>   %s1 = call @backward_0(%w, %a, %s0) {jaxpp.last_use = array<i64: 1, 2>}
    func.func private @backward_0(%w, %a, %s)   func.func private @backward_0(%w, %a, %s {tf.aliasing_output = 0})

    %a = call @forward_1(%w1, %x)         ==>   %a = call @forward_1(%w1, %x)
    %b = call @forward_2(%w2, %a)               %b = call @forward_1(%w2, %a)
    ```
    """

    takes_lines = True

    def run(self, module: ir.Module) -> None:
        """Finds the last uses, writes the aliases, and merges functions."""
        dying: set[tuple[str, tuple[int, ...]]] = set()
        lines = mesh_lines(module, last_uses=False).lines
        for line in lines:
            dying |= _find_last_uses(line)
        by_name = functions(module)
        always: dict[str, set[int]] = {}
        for name, numbers in dying:
            always[name] = always.get(name, set(numbers)).intersection(numbers)
        for name, numbers in always.items():
            _alias(by_name[name], numbers)
        renamed = _merge_equal(module)
        for line in lines:
            line.is_changed = True
            for each in line.sequence if renamed else ():
                if isinstance(each, Call) and each.function in renamed:
                    each.function = renamed[each.function]
        leave(module, MeshLines(lines))


def _find_last_uses(line: MeshLine) -> set[tuple[str, tuple[int, ...]]]:
    """Notes for each instruction of a mesh the registers that nothing uses afterwards.

    Returns for each call the callee, and the indices of the operands that have their last use there and are passed only
    once.
    """
    kept = {register for register, border in enumerate(line.arguments) if not border.donated}
    kept.update(line.returned)
    kept.update(each.result for each in line.sequence if isinstance(each, Literal))
    dying: set[tuple[str, tuple[int, ...]]] = set()
    for each in reversed(line.sequence):
        if isinstance(each, Call):
            operands = each.operands
            last = [position for position, register in enumerate(operands) if register not in kept]
            each.frees = tuple(sorted({operands[position] for position in last}))
            if len(each.frees) < len(last):
                last = [position for position in last if operands.count(operands[position]) == 1]
            kept.update(each.frees)
            dying.add((each.function, tuple(last)))
        elif isinstance(each, Send):
            each.frees = () if each.operand in kept else (each.operand,)
            kept.update(each.frees)
    return dying


def _alias(function: ir.Operation, dying: set[int]) -> None:
    """Lets results of `function` take over the buffers of arguments with the indices `dying`."""
    block = body_of(function)
    arguments = at.argument_attributes(function)
    results = at.result_attributes(function)
    if any(at.MEMORY in entry for entry in (*arguments, *results)):
        return  # values in different memories can't share a buffer
    for entry in arguments:
        entry.pop(at.ALIAS, None)  # from an earlier run of the pass
    free: defaultdict[tuple[ir.Type, ir.Attribute | None], dict[ir.Value, int]] = defaultdict(dict)
    for number in sorted(dying):
        argument = block.arguments[number]
        free[argument.type, arguments[number].get(at.SHARDING)][argument] = number
    for index, value in enumerate(terminator(block).operands):
        alike = free[value.type, results[index].get(at.SHARDING)]
        source = _elementwise_source(value, alike) if alike else None
        if source is not None:
            number = alike.pop(source)
            arguments[number][at.ALIAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), index)
    at.set_tables(function, arguments=arguments)


def _elementwise_source(value: ir.Value, free: Container[ir.Value]) -> ir.Value | None:
    """Returns the nearest value of `free` from which cheap operations compute `value`; None if they use none of `free`.

    The values in `free` have the type of `value`; the search follows only operands of that type.
    """
    if value in free:
        return value
    work, seen = deque([value]), {value}
    while work:
        op = defining_op(work.popleft())  # breadth first, so that a weight is found before its gradient
        if op is None or not is_cheap(op):
            continue
        for operand in op.operands:
            if operand in free:
                return operand
            if operand not in seen and operand.type == value.type:
                seen.add(operand)
                work.append(operand)
    return None


def _merge_equal(module: ir.Module) -> dict[str, str]:
    """Erases each task function that is equal to an earlier one; returns the name of that for the name of the other."""
    first: dict[bytes, tuple[str, ir.Operation]] = {}
    renamed: dict[str, str] = {}
    tasks = task_functions(module)
    alike = Counter(map(_size, tasks.values()))
    for name, function in tasks.items():
        if alike[_size(function)] == 1:
            continue  # skips writing it as bytecode, which takes long
        same, other = first.setdefault(bytecode_of(function), (name, function))
        if same != name:
            renamed[name] = same
            function.erase()
            if at.STAGE in other.attributes:
                del other.attributes[at.STAGE]
    return renamed


def _size(function: ir.Operation) -> tuple[ir.Attribute | int, ...]:
    """Returns the type of a function, and the number of operations in each block: equal for equal functions."""
    return function.attributes["function_type"], *(len(block.operations) for block in function.regions[0].blocks)
