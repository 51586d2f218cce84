"""Reads a module from bytes; errors in it become `file:line:col: error: ...`."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp._compat import make_context
from jaxpp._foreign import exported_bytecode
from jaxpp._versions import UnsupportedJaxError
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.shardy.import_shardings import ImportShardings
from jaxpp.ir.errors import PassError, one_line
from jaxpp.ir.gate import check_module
from jaxpp.tools import diagnostics, streams
from jaxpp.tools.streams import InputError, display_name

EXPECTED = "an MLIR module"
"""The input that tools expect, in messages."""
BYTECODE_MAGIC = b"ML\xefR"
_SEPARATOR = re.compile(rb"^// -----[ \t]*\r?$", re.MULTILINE)
_MPMD_CALL = re.compile(rb'mpmd\.call(?: |".*?callee = )@("[^"]*"|[\w$.-]+)')
_DEFINED = re.compile(rb'func\.func\b[^@(]*@("[^"]*"|[\w$.-]+)')
_HLO = re.compile(rb"(?:\s|//.*\n)*(HloModule\b)")
_MODULE = re.compile(rb"^module\b", re.MULTILINE)
_DEEPEST = 500
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"([{<")], _STEPS[list(b")]}>")] = 1, -1


def split(data: bytes) -> Iterator[bytes]:
    """Splits a text at the lines `// -----`. Each part begins with newlines that keep its line numbers."""
    start = 0
    for end in [match.start() for match in _SEPARATOR.finditer(data)] + [len(data)]:
        yield b"\n" * data.count(b"\n", 0, start) + data[start:end]
        start = end


def read(path: str, context: ir.Context, most: int | None = None, steps: Sequence[Pass] = ()) -> ir.Module:
    """Reads the module in a file, or in stdin if the path is `-`. Raises InputError, also above `most` bytes."""
    data = streams.read(path, EXPECTED, most)
    try:
        return parse(data, path, context, whole=True, steps=steps)
    except PassError as error:
        raise InputError(diagnostics.explained(error, display_name(path))) from None


def parse(data: bytes, path: str, context: ir.Context, *, whole: bool, steps: Sequence[Pass] = ()) -> ir.Module:
    """Parses the module in `data` for some passes; `whole` if `data` is all of the file `path`.

    `data` is text, bytecode, a portable artifact of StableHLO or what `jax.export` writes.

    Raises:
        InputError: the module does not parse or does not verify.
        PassError: the module has an attribute or a sharding that jaxpp would silently ignore.
    """
    name = display_name(path)
    if BYTECODE_MAGIC in data and not data.startswith(BYTECODE_MAGIC):  # these bytes are in no text
        data = bytecode_of_exported(data, name)
    if data.startswith(BYTECODE_MAGIC):
        _check_bytecode(data, name)
    else:
        _check_text(data, name)
    with diagnostics.collected(context, name) as lines:
        try:
            if (
                whole
                and name == path
                and path.isascii()
                and os.path.isfile(path)
                and not data.startswith(BYTECODE_MAGIC)
            ):
                module = ir.Module.parseFile(path, context)  # then the locations have the file's name, not `-`
            else:
                module = _read(data, context)
        except (ir.MLIRError, ValueError, MemoryError) as error:
            what = one_line(str(error))
            raise InputError("\n".join(lines) or f"{name}: error: not a readable module: {what}") from None
    _check_symbols(module, name)
    _check_modules(module, name)
    if is_vhlo(module):
        raise InputError(f"{name}: error: a module of VHLO, expected StableHLO: give the portable artifact as it is")
    with context:
        check_module(module, gspmd=isinstance(next(iter(steps), None), ImportShardings))
    return module


def bytecode_of_exported(data: bytes, name: str) -> bytes:
    """Returns the bytecode of the module in a file of `jax.export`. Raises InputError for a damaged file."""
    try:
        bytecode = exported_bytecode(data)
    except ModuleNotFoundError as error:
        if error.name != "flatbuffers":
            raise
        what = "a file of jax.export, which needs flatbuffers: pip install 'jaxpp[export]'"
        raise InputError(f"{name}: error: {what}") from None
    except UnsupportedJaxError:
        raise
    except Exception:  # of any kind: flatbuffers reads whatever offsets it finds
        bytecode = b""
    if not bytecode.startswith(BYTECODE_MAGIC):
        raise InputError(
            f"{name}: error: MLIR bytecode inside of a file of another form, or a damaged file of jax.export"
        )
    return bytecode


def _read(data: bytes, context: ir.Context) -> ir.Module:
    """Reads a module. A portable artifact, which is bytecode of another dialect, becomes StableHLO."""
    module = ir.Module.parse(data, context)
    if data.startswith(BYTECODE_MAGIC) and is_vhlo(module):
        return stablehlo.deserialize_portable_artifact(context, data)
    return module


def _check_modules(module: ir.Module, name: str) -> None:
    """Refuses modules inside of the module, which no pass would see."""
    inner = [op for op in module.body.operations if op.operation.name == "builtin.module"]
    if inner:
        raise _several("a module inside of the module", diagnostics.place(inner[0].location, name))


def _place(data: bytes, offset: int, name: str) -> str:
    """Returns `file:line:column` of a byte."""
    line, column = data.count(b"\n", 0, offset) + 1, offset - data.rfind(b"\n", 0, offset)
    return f"{name}:{line}:{column}"


def _several(what: str, place: str) -> InputError:
    hint = "give each a file, or a line '// -----' between two of them and --split-input-file"
    return InputError(f"{place}: error: {what}, expected one alone: {hint}")


def is_vhlo(module: ir.Module) -> bool:
    """Whether a module is one of VHLO, the dialect of portable artifacts."""
    return any(op.operation.name.startswith("vhlo.") for op in module.body.operations)


def _check_symbols(module: ir.Module, name: str) -> None:
    """Refuses names that Python can't hold."""
    for op in module.body.operations:
        symbol = op.attributes.get("sym_name")
        try:
            str(symbol.value if isinstance(symbol, ir.StringAttr) else "")
        except (RuntimeError, ValueError):
            raise InputError(f"{diagnostics.place(op.location, name)}: error: {diagnostics.NOT_UTF8}") from None


def _check_bytecode(data: bytes, name: str) -> None:
    """Refuses damaged bytecode, on which MLIR's reader would crash or loop. A child process reads it first."""
    limit = 10 + len(data) // 100_000
    code = f"import sys; from jaxpp.tools import source; source.try_bytecode(sys.stdin.buffer.read(), {limit})"
    # -P: a folder named jaxpp in the current one is not the package.
    child = subprocess.run([sys.executable, "-P", "-c", code], input=data, capture_output=True, check=False)
    if child.returncode == -signal.SIGXCPU:
        raise InputError(f"{name}: error: damaged MLIR bytecode: MLIR's reader does not come to an end")
    if child.returncode != 0:
        raise InputError(f"{name}: error: damaged MLIR bytecode: MLIR's reader crashes on it")


def try_bytecode(data: bytes, seconds: int) -> None:
    """Parses, verifies and prints a module, to see whether MLIR survives it; errors in it do not matter here.

    After `seconds` of the processor's time, SIGXCPU ends this process. The clock would be no measure on a busy machine.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    context = make_context()
    with diagnostics.collected(context, ""), contextlib.suppress(Exception):
        str(_read(data, context))


def _check_text(data: bytes, name: str) -> None:
    """Refuses text that is not UTF-8, and text that would crash MLIR's parser: nested brackets, missing functions."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        message = "neither text in UTF-8, nor MLIR bytecode, nor a file of jax.export"
        raise InputError(f"{_place(data, error.start, name)}: error: {message}") from None
    hlo = _HLO.match(data)
    if hlo is not None:
        message = "HLO text, expected an MLIR module of StableHLO: write lowered.as_text(), not compiled.as_text()"
        raise InputError(f"{_place(data, hlo.start(1), name)}: error: {message}")
    modules = list(_MODULE.finditer(data))
    if len(modules) > 1:
        raise _several(f"{len(modules)} modules in the input", _place(data, modules[1].start(), name))
    found = set(_DEFINED.findall(data)) if b"mpmd.call" in data else set[bytes]()
    missing = next((call for call in _MPMD_CALL.finditer(data) if call[1] not in found), None)
    if missing is not None:  # jaxlib's verifier would end the process
        message = f"mpmd.call calls @{missing[1].decode()}, and there is no such function"
        raise InputError(f"{_place(data, missing.start(), name)}: error: {message}")
    depth = _STEPS[np.frombuffer(data.replace(b"->", b""), np.uint8)].cumsum().max(initial=0)
    if depth > _DEEPEST:
        raise InputError(f"{name}: error: brackets are nested {depth} deep; more than {_DEEPEST} is not supported")
