"""`inline-calls`: replaces every call of a helper, a jitted layer or a scan body by the body of its function."""

from jaxlib.mlir import ir

from jaxpp._compat import inline_call
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.canonicalize import take_known_branches
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import replace
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, callee, functions, may_refer, nested_by_name, reachable, symbols_in

_MAY_BE_IDENTITIES = tuple("stablehlo." + name for name in ("broadcast_in_dim", "convert", "reshape", "transpose"))
_ORDERS = ("broadcast_dimensions", "permutation")


class InlineCalls(Pass):
    """Replaces each `func.call` by the body of its callee, everywhere, and erases unused functions.

    JAX lowers helpers, jitted layers and the bodies of scans as functions. The marks inside must move to the body of
    the microbatch loop, where later passes cut.

    Callees are inlined first, so that each body is cloned once per call and never walked twice. Functions to which
    other operations refer by name (`stablehlo.composite`, custom calls) stay.

    The pass also removes casts, reshapes, broadcasts and transpositions that change nothing. In each iteration JAX
    casts the Python number from which a sum starts to the type that it has already.

    A conditional on a constant of its own function is replaced by the branch that it takes, before inlining:
    `lax.platform_dependent` branches on such a constant.

    A `stablehlo.composite "jaxpp.stage_boundary"` becomes a stage mark, with the composite's attributes.

    Preconditions: there is a `@main`; no function calls itself.

    ```mlir
    %0 = call @layer(%w, %x)             ==>   %0 = stablehlo.dot_general %x, %w
    func.func private @layer(%w, %x) {
      %0 = stablehlo.dot_general %x, %w
      return %0 }
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Inlines all calls of `module`.

        Raises:
            PassError: on recursion, without a `@main`, or when a callee is unknown or has not exactly one block.
        """
        by_name = functions(module)
        if "main" not in by_name:
            raise PassError("the module has no function @main", hint="give a module as JAX lowers it")
        done: dict[str, bool] = {}
        referred: set[str] = set()
        _inline_into("main", by_name, done, referred, ())
        kept = {"main"}.union(*(reachable(name, by_name) for name in referred & by_name.keys()))
        for name in by_name.keys() - kept:
            by_name[name].erase()


def _inline_into(
    name: str, by_name: dict[str, ir.Operation], done: dict[str, bool], referred: set[str], above: tuple[str, ...]
) -> None:
    """Inlines all calls of the function `name`. Its callees come first.

    Args:
        name: the function.
        by_name: all functions of the module.
        done: for each function whose calls are inlined, whether it has conditionals; gains `name` and its callees.
        referred: gains the symbols to which operations other than calls refer.
        above: the callers of `name`, from `@main` on.

    Raises:
        PassError: on recursion, or when a callee is unknown or has not exactly one block.
    """
    ops = nested_by_name(by_name[name])
    for op in list(filter(boundary.is_composite_mark, ops["stablehlo.composite"])):
        replace(op, boundary.mark_of_composite(op))
        ops["stablehlo.composite"].remove(op)
    has_conditionals = bool(ops["stablehlo.case"] or ops["stablehlo.if"])
    if has_conditionals:
        take_known_branches(body_of(by_name[name]))
        ops = nested_by_name(by_name[name])
    for op in (op for kind, alike in ops.items() if kind != "func.call" and may_refer(kind) for op in alike):
        referred.update(symbols_in(op))
    for op in (op for kind in _MAY_BE_IDENTITIES for op in ops[kind]):
        if _is_identity(op):
            replace(op, op.operands)
    for op in ops["func.call"]:
        target = callee(op)
        if target in (*above, name):
            raise PassError(f"@{target} calls itself", location=op.location, hint="recursion can't be lowered")
        blocks = len(by_name[target].regions[0].blocks) if target in by_name else 0
        if blocks != 1:
            found = f"which has {blocks} blocks, expected one" if blocks else "which has no body in this module"
            raise PassError(f"call of @{target}, {found}", location=op.location)
        if target not in done:
            _inline_into(target, by_name, done, referred, (*above, name))
        with ir.InsertionPoint(op):
            values = inline_call(by_name[target], list(op.operands))
        replace(op, values)
        has_conditionals |= done[target]
    if has_conditionals and ops["func.call"]:  # a caller may know which branch its callee takes
        take_known_branches(body_of(by_name[name]))
    done[name] = has_conditionals


def _is_identity(op: ir.Operation) -> bool:
    """Whether `op` returns its operand: the type is the same, and so is the order of the dimensions."""
    if op.operands[0].type != op.results[0].type:
        return False
    order = [number for name in _ORDERS for number in at.integers(op, name)]
    has_more = any(name not in _ORDERS for name in op.attributes)  # such as a sharding
    return order == sorted(order) and not has_more
