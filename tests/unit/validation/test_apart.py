"""What can't be compared, or run: each is named, and what XLA crashes on ends a child process alone."""

import re
from pathlib import Path

import pytest
import runline
from unit.validation.edits import becomes, nothing, validate

from jaxpp.tools import opt
from jaxpp.validation import ValidationError
from jaxpp.validation.apart import Apart


def module(body: str, results: str = "tensor<4xf32>", returned: str = "%0") -> str:
    return f"""
    module attributes {{mhlo.num_partitions = 1 : i32}} {{
      func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> ({results}) {{
        {body}
        return {returned} : {results}
      }}
    }}"""


RANDOM = """
    %low = stablehlo.constant dense<0.0> : tensor<f32>
    %high = stablehlo.constant dense<1.0> : tensor<f32>
    %shape = stablehlo.constant dense<4> : tensor<1xi64>
    %r = stablehlo.rng %low, %high, %shape, distribution = UNIFORM
        : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>
"""


def summary_of(text: str) -> list[str]:
    return validate(text, nothing).splitlines()


def test_results_that_are_not_deterministic_are_named_and_not_counted() -> None:
    two = "tensor<4xf32>, tensor<4xf32>"
    text = module(f"{RANDOM} %0 = stablehlo.add %r, %a : tensor<4xf32>", two, "%0, %b")
    changed = text.replace("stablehlo.add", "stablehlo.multiply")
    said = "warning: result 0 is not deterministic: not compared"
    assert validate(text, becomes(changed)).splitlines()[1:] == [said]
    assert validate(text, nothing).startswith("validated: 1 results agree")


@pytest.mark.parametrize("chance", ["2.0", "-1.0"])
def test_a_result_that_is_the_same_in_two_runs_by_chance(chance: str) -> None:
    """It depends on a generator, in a loop, in a conditional and in a function that is called."""
    text = f"""
    func.func public @main(%a: tensor<4xf32>) -> (tensor<4xi1>, tensor<i32>, tensor<4xf32>) {{
      %0 = func.call @draw(%a) : (tensor<4xf32>) -> tensor<4xi1>
      %c0 = stablehlo.constant dense<0> : tensor<i32>
      %c1 = stablehlo.constant dense<1> : tensor<i32>
      %1:3 = stablehlo.while(%i = %c0, %x = %0, %y = %a) : tensor<i32>, tensor<4xi1>, tensor<4xf32>
        cond {{
          %go = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %go : tensor<i1>
        }} do {{
          %j = stablehlo.add %i, %c1 : tensor<i32>
          %not = stablehlo.not %x : tensor<4xi1>
          %z = stablehlo.tanh %y : tensor<4xf32>
          stablehlo.return %j, %not, %z : tensor<i32>, tensor<4xi1>, tensor<4xf32>
        }}
      %first = stablehlo.slice %1#1 [0:1] : (tensor<4xi1>) -> tensor<1xi1>
      %flag = stablehlo.reshape %first : (tensor<1xi1>) -> tensor<i1>
      %2 = "stablehlo.if"(%flag) ({{
        stablehlo.return %c0 : tensor<i32>
      }}, {{
        stablehlo.return %c1 : tensor<i32>
      }}) : (tensor<i1>) -> tensor<i32>
      return %1#1, %2, %1#2 : tensor<4xi1>, tensor<i32>, tensor<4xf32>
    }}
    func.func private @draw(%a: tensor<4xf32>) -> tensor<4xi1> {{
      {RANDOM}
      %limit = stablehlo.constant dense<{chance}> : tensor<4xf32>
      %0 = stablehlo.compare LT, %r, %limit : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
      return %0 : tensor<4xi1>
    }}"""
    said = summary_of(text)
    assert said[0].startswith("validated: 1 results agree")
    assert said[1:] == [f"warning: result {number} is not deterministic: not compared" for number in (0, 1)]


def test_all_results_that_differ_are_listed() -> None:
    text = module(
        "%0 = stablehlo.add %a, %b : tensor<4xf32>", "tensor<4xf32>, tensor<4xf32>, tensor<4xf32>", "%0, %a, %b"
    )
    with pytest.raises(ValidationError) as error:
        validate(text, becomes(text.replace("return %0, %a, %b", "return %a, %a, %a")))
    first, second = error.value.message, error.value.hint
    assert re.match("pass 'edit' changed what the module computes: result 0 differs by ", first)
    assert re.match("result 2 differs by [^\n]*$", second)


def test_rounding_does_not_widen_the_tolerance_without_limit() -> None:
    """A result that rounding moves as far as its own size says nothing: it is named."""
    big = module(
        "%c = stablehlo.constant dense<1.0e9> : tensor<4xf32> %1 = stablehlo.multiply %a, %c : tensor<4xf32> "
        "%0 = stablehlo.sine %1 : tensor<4xf32>"
    )
    said = summary_of(big)
    assert said[0].startswith("validated: 0 results agree")
    assert re.fullmatch(
        r"warning: result 0 moves by \S+ where the inputs change in their last bit: not compared", said[1]
    )


def run(*arguments: str, text: str = "") -> tuple[int, str]:
    code, _, err = runline.call(opt.main, *arguments, stdin=text).texts
    return code, err


def test_compare_two_modules(tmp_path: Path) -> None:
    body = "%0 = stablehlo.{} %a, %b : tensor<4xf32>"
    for name in ("add", "subtract"):
        (tmp_path / name).write_text(module(body.format(name)))
    (tmp_path / "near").write_text(
        module(
            "%c = stablehlo.constant dense<1.0001> : tensor<4xf32> %1 = stablehlo.multiply %b, %c : tensor<4xf32> "
            "%0 = stablehlo.add %a, %1 : tensor<4xf32>"
        )
    )
    add, subtract, near = (str(tmp_path / name) for name in ("add", "subtract", "near"))
    code, said = run("--compare", add, add)
    assert (code, said) == (0, "compared: 1 results agree; largest difference 0.0e+00 of an array's largest value\n")
    code, said = run("--compare", add, subtract)
    assert code == 1
    assert said.startswith(f"{subtract}: error: {subtract} changed what the module computes: result 0 differs by ")
    assert run("--compare", add, near)[0] == 1
    assert run("--compare", add, near, "--tolerance", "1e-3")[0] == 0
    code, said = run("--compare", add, str(tmp_path / "none"))
    assert (code, said) == (1, f"{tmp_path / 'none'}: error: cannot read: No such file or directory\n")


@pytest.mark.parametrize("arguments", [("x.mlir",), ("-p", ""), ("--pipeline", "mpmd"), ("--validate",)])
def test_compare_runs_no_pass(arguments: tuple[str, ...]) -> None:
    code, said = run("--compare", "a", "b", *arguments)
    assert code == 2
    assert said.endswith("error: --compare A B takes two files, and runs no pass\n")


@pytest.mark.parametrize("tolerance", ["-1", "nan", "inf", "x"])
def test_tolerances(tolerance: str) -> None:
    code, said = run("--validate", f"--tolerance={tolerance}")
    assert code == 2
    assert f"argument --tolerance: expected a number from 0 on, such as 1e-4, found '{tolerance}'" in said


INFEED = """%t = stablehlo.create_token : !stablehlo.token
    %0:2 = "stablehlo.infeed"(%t) <{infeed_config = "", layout = [[0]]}>
        : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)"""
OUTFEED = """%t = stablehlo.create_token : !stablehlo.token
    %0 = "stablehlo.outfeed"(%a, %t) <{outfeed_config = ""}> : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token"""
SEND = """%t = stablehlo.create_token : !stablehlo.token
    %0 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>,
        is_host_transfer = true}> : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token"""
RECV = """%t = stablehlo.create_token : !stablehlo.token
    %0:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>,
        is_host_transfer = true}> : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)"""
CALLBACK = """%0 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%a)
    {api_version = 4 : i32, mhlo.backend_config = {index = 0 : ui64}} : (tensor<4xf32>) -> tensor<4xf32>"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (INFEED, "a stablehlo.infeed in @main waits for another program, which does not run here"),
        (OUTFEED, "a stablehlo.outfeed in @main waits for another program, which does not run here"),
        (SEND, "a stablehlo.send in @main waits for another program, which does not run here"),
        (RECV, "a stablehlo.recv in @main waits for another program, which does not run here"),
        (
            CALLBACK,
            "custom call @xla_ffi_python_cpu_callback: a callback into Python, which only the process that lowered the "
            "module has",
        ),
        (
            "%0 = stablehlo.custom_call @nobody(%a) : (tensor<4xf32>) -> tensor<4xf32>",
            "custom call @nobody, for which nothing is registered on CPUs: it can't be run here",
        ),
    ],
)
def test_what_waits_or_is_not_here_is_refused_at_its_line(body: str, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        validate(module(body, returned="%a"), nothing)
    assert error.value.message == f"the module can't be run to validate what becomes of it: {message}"
    assert re.match(r"-:\d+:", error.value.source or "")


def test_replicas_are_refused() -> None:
    text = module("%0 = stablehlo.add %a, %b : tensor<4xf32>").replace("{mhlo", "{mhlo.num_replicas = 2 : i32, mhlo")
    with pytest.raises(ValidationError, match="it is for 2 replicas, expected one: shard it over partitions"):
        validate(text, nothing)


def test_lapack_runs_in_a_process_that_lowered_nothing() -> None:
    """JAX initializes jaxlib's kernels when it lowers a call of one; else a call jumps to address 0."""
    text = """
    func.func public @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%a) {api_version = 4 : i32,
          backend_config = {uplo = 76 : ui8}, operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
          result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]}
          : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i32>)
      return %0#0 : tensor<4x4xf32>
    }"""
    code, said = run("--validate", "-p", "inline-calls", text=text)
    assert code == 0, said
    assert said.startswith("validated: 1 results agree")


def test_a_crash_of_xla_is_an_error() -> None:
    text = module("%0 = stablehlo.custom_call @TopK(%a) : (tensor<4xf32>) -> tensor<4xf32>")
    code, said = run("--validate", "-p", "inline-calls", text=text)
    assert code == 1
    cannot = "the module can't be run to validate what becomes of it: XLA crashes on it"
    assert re.fullmatch(rf"<stdin>: error: {cannot}: SIG[A-Z]+(, .*)?\n", said)


def test_a_bug_in_the_child_is_one_of_ours() -> None:
    with pytest.raises(RuntimeError, match="AttributeError"):
        Apart().findings()  # of nothing
