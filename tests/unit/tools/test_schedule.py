"""`jaxpp-schedule`: what each command prints, where it reads and writes, exit codes, and the text of every error."""

import io
import itertools
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import runline

from jaxpp import schedules as S
from jaxpp.schedules.engine.activations import activations
from jaxpp.tools import schedule
from jaxpp.tools.search_progress import progress_of

SIZES = ("--meshes", "2", "--microbatches", "3")
GRID = str(S.make("1f1b", meshes=2, microbatches=3)) + "\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run(*argv: object, stdin: str = "") -> tuple[int, str, str]:
    return runline.call(schedule.main, *argv, stdin=stdin).texts


def output(*argv: object, stdin: str = "") -> str:
    code, out, error = run(*argv, stdin=stdin)
    assert (code, error) == (0, "")
    return out


def failure(*argv: object, stdin: str = "", code: int = 1) -> str:
    found, out, error = run(*argv, stdin=stdin)
    assert (found, out) == (code, "")
    return error


def usage_error(*argv: object) -> str:
    usage, _, message = failure(*argv, code=2).partition(f"\njaxpp-schedule {argv[0]}: error: ")
    assert usage.startswith(f"usage: jaxpp-schedule {argv[0]} ")
    return message.rstrip("\n")


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.txt"
    path.write_text(GRID)
    return path


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_list_has_every_schedule_with_its_paper_and_options() -> None:
    found = rows(output("list"))
    assert [row[0] for row in found] == ["name", *S.names()]
    assert " ".join(found[S.names().index("gis") + 1]) == (
        "gis Generalized interleaved schedule, GIS(g) PipeOffload, arXiv 2503.01328 chunks=2 group"
    )
    assert all(re.search("arXiv|ICML", row) for row in map(" ".join, found[1:]))


def test_show_prints_the_grid_that_it_reads(grid: Path) -> None:
    assert output("show", "1f1b", *SIZES) == GRID
    assert output("show", grid) == output("show", "-", stdin=GRID) == GRID
    assert output("show", grid, *SIZES) == GRID


def test_show_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with redirect_stdout(Terminal()) as stdout:
        assert schedule.main(["show", "zb-h1", *SIZES]) == 0
    assert "\x1b[94m0F0\x1b[0m" in stdout.getvalue()
    assert "\x1b[32m0W0\x1b[0m" in stdout.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(Terminal()) as stdout:
        schedule.main(["show", "1f1b", *SIZES])
    assert "\x1b[94m" not in stdout.getvalue()


def test_options_as_flags_and_in_braces() -> None:
    chunked = str(S.make("gis", meshes=2, microbatches=4, chunks=3, group=2)) + "\n"
    sizes = ("--meshes", 2, "--microbatches", 4)
    assert output("show", "gis", *sizes, "--chunks", 3, "--group", 2) == chunked
    assert output("show", "gis{chunks=3 group=2}", *sizes) == chunked
    assert output("show", "gis{chunks=3}", *sizes, "--chunks", 1, "--group", 2) == chunked
    serial = str(S.make("dualpipe", meshes=2, microbatches=4, fused=False)) + "\n"
    assert output("show", "dualpipe", *sizes, "--no-fused") == output("show", "dualpipe{fused=false}", *sizes) == serial
    assert "placement: 0 1 1 0" in output("show", "1f1b", *sizes, "--placement", "0,1,1,0")
    assert "placement: 0 1 1 0" in output("show", "gpipe", *sizes, "--placement", "0 1 1 0")
    assert "0F0.1" in output("show", "seq1f1b", *sizes, "--slices", 2)


def test_costs_reach_the_schedules_that_are_made_for_them(tmp_path: Path) -> None:
    sizes = ("--meshes", 4, "--microbatches", 6)
    made = S.make("zb-1p", meshes=4, microbatches=6, costs=S.Costs(weight_grad=0.3, hop=0.8))
    assert made != S.make("zb-1p", meshes=4, microbatches=6)
    assert output("show", "zb-1p", *sizes, "--weight-grad", 0.3, "--hop", 0.8) == f"{made}\n"
    S.Costs(weight_grad=9, hop=0.8).save(tmp_path / "costs.toml")
    costs = ("--costs", tmp_path / "costs.toml", "--weight-grad", 0.3)
    assert output("show", "zb-1p", *sizes, *costs) == f"{made}\n"


def test_simulate_for_scripts(grid: Path, tmp_path: Path) -> None:
    S.Costs(activation_bytes=10, unit="us").save(tmp_path / "costs.json")
    found = json.loads(output("simulate", grid, "--json", "--costs", tmp_path / "costs.json", "--forward", 2))
    report = S.simulate(S.parse(GRID), S.Costs(forward=2, activation_bytes=10, unit="us"))
    assert found == {
        "schedule": "1f1b",
        "meshes": 2,
        "stages": 2,
        "microbatches": 3,
        "unit": "us",
        "makespan": report.makespan,
        "longest_stage": report.longest_stage,
        "bubble": report.bubble,
        "bubble_of_longest_stage": report.bubble_of_longest_stage,
        "peak_activations": {"W": [2, 1], "B": [2, 1], "half": [2, 1]},
        "peak_bytes": [20, 10],
    }
    assert json.loads(output("simulate", grid, "--json"))["peak_bytes"] is None


def test_compare_sorts_and_says_what_does_not_exist(grid: Path) -> None:
    found = rows(output("compare", "gpipe", "dualpipe", grid, "zb-v", "gis{chunks=1 group=2}", *SIZES))
    assert [row[0] for row in found] == ["schedule", "zb-v", "gpipe", str(grid), "dualpipe", "gis{chunks=1"]
    assert " ".join(found[3][1:]) == "12 units 12 units 25.0 % 2"
    assert " ".join(found[4][1:]).startswith("- - - - dualpipe: microbatches must be ")
    assert " ".join(found[5][2:]).startswith("- - - - gis: microbatches must be a multiple of 2, found 3")


def test_compare_in_bytes(tmp_path: Path) -> None:
    S.Costs(activation_bytes=10).save(tmp_path / "costs.toml")
    found = rows(output("compare", "gpipe", "1f1b", *SIZES, "--costs", tmp_path / "costs.toml", "--chunks", 1))
    assert [row[-1] for row in found] == ["bytes", "30", "20"]


def test_search_prints_a_grid_and_how_good_it_is(tmp_path: Path) -> None:
    code, out, error = run("search", *SIZES, "--memory-limit", 2, "--seconds", 0.5)
    assert code == 0
    assert error == "makespan 10 units; at least 10 units, gap 0.0 %\n"
    assert S.simulate(S.parse(out)).makespan == 10
    words = ("search", *SIZES, "--placement", "0,1,1,0", "--seconds", 0.2, "--objective", "longest_stage")
    code, out, error = run(*words, "-o", tmp_path / "found.txt", "--no-split-backward")
    assert (code, out) == (0, "")
    assert error.startswith("longest stage ")
    found = S.parse((tmp_path / "found.txt").read_text())
    assert str(found.placement) == "0 1 1 0"
    assert {task.kind for task in found} == {"forward", "backward"}


def test_improve_prints_a_grid_and_how_good_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(str(S.recompute(S.make("1f1b", meshes=4, microbatches=8), 0, 1)))
    code, out, error = run("improve", path, "--memory-limit", 4, "--hop", 0.1, "--seconds", 0.3)
    assert code == 0
    before, after = (S.simulate(S.parse(text), S.Costs(hop=0.1)) for text in (path.read_text(), out))
    assert after.makespan < before.makespan
    assert error.startswith(f"makespan {after.makespan:.6g} units; at least ")
    code, out, _ = run("improve", path, "--memory-limit", 1, "--change", "recompute", "--seconds", 0.3)
    assert code == 0
    assert "recompute" in out
    message = failure("improve", path, "--change", "x")
    assert "change must be one of recompute, offload, fuse, homes, found 'x'" in message
    message = failure("improve", path, "--memory-limit", 1)
    assert message.startswith("jaxpp-schedule: error: improve: 1f1b keeps 2 microbatches on mesh 2, its limit is 1")


def test_limits_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    S.Costs(activation_bytes=10, message_bytes=1, copy_bandwidth=20).save(path)
    words = ("--costs", path, "--seconds", 0.1)
    found = S.parse(run("search", *SIZES, *words, "--memory-bytes", "10,30")[1])
    assert activations(found)[0] == 1
    ranked = output("tune", *SIZES, *words, "--memory-bytes", 25)
    assert [row[0] for row in rows(ranked) if "gpipe" in row] == ["gpipe"]  # it keeps 30, and so has no rank
    (tmp_path / "grid.txt").write_text(str(S.make("gpipe", meshes=2, microbatches=3)))
    words = ("improve", tmp_path / "grid.txt", *words, "--memory-bytes", 20, "--change", "offload")
    assert "offload" in run(*words)[1]
    assert "even with these changes" in failure(*words, "--host-bytes", 5)
    assert "two ways to say one thing" in failure("search", *SIZES, "--memory-limit", 2, "--memory-bytes", 9)


def test_search_shows_its_progress_on_a_terminal() -> None:
    argv = ["search", "--meshes", "3", "--microbatches", "4", "--memory-limit", "2,2,1", "--seconds", "0.5"]
    with redirect_stdout(io.StringIO()), redirect_stderr(Terminal()) as stderr:
        assert schedule.main(argv) == 0
    assert ", at least " in stderr.getvalue()
    assert stderr.getvalue().splitlines()[-1].strip().startswith("makespan ")


def test_a_long_search_tells_of_itself_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr("jaxpp.tools.search_progress.time.monotonic", lambda: float(next(clock)))
    stderr = io.StringIO()
    with progress_of(stderr) as tell:
        for step in range(1, 26):
            tell(step / 25, 112.5, 100.0)
    assert stderr.getvalue().splitlines() == [
        " 40%   10 s: 112.5, at least 100, gap 12.5%",
        " 80%   20 s: 112.5, at least 100, gap 12.5%",
    ]


def test_search_and_improve_draw_their_history(tmp_path: Path) -> None:
    drawn = tmp_path / "history.svg"
    words = ("--memory-limit", 2, "--hop", 0.1, "--seconds", 0.1, "--history", drawn)
    code, grid, _ = run("search", "--meshes", 3, "--microbatches", 4, "--placement", "v", *words)
    assert code == 0
    assert "best value: " in drawn.read_text()
    assert "lower bound: " in drawn.read_text()
    drawn.unlink()
    assert run("improve", "-", *words, stdin=grid)[0] == 0
    assert "best value: " in drawn.read_text()
    before = "jaxpp-schedule: error: a picture's name must end in .svg or .png, found 'x.html'\n"
    assert failure("search", *SIZES, "--seconds", 10**6, "--history", "x.html") == before
    for flag in ("--history", "-o"):
        missing = tmp_path / "none" / "x.svg"
        text = f"{missing}: error: cannot write: No such file or directory\n"
        assert failure("search", *SIZES, "--seconds", 10**6, flag, missing) == text


def test_search_refuses() -> None:
    message = failure("search", *SIZES, "--memory-limit", 0.5)
    assert message.startswith("jaxpp-schedule: error: ")
    assert usage_error("search", "--meshes", "2") == "the following arguments are required: --microbatches"
    assert usage_error("search", *SIZES, "--memory-limit", "x").startswith("argument --memory-limit: expected a number")
    assert usage_error("search", *SIZES, "--placement", "0,x").startswith("argument --placement: placement must be ")
    assert usage_error("search", *SIZES, "--placement", "round") == (
        "argument --placement: expected linear, v, looped, waves, any, or meshes such as 0,1,1,0, found 'round'"
    )


def test_tune_ranks_everything(tmp_path: Path) -> None:
    S.Costs(weight_grad=0.5).save(tmp_path / "costs.toml")
    found = rows(output("tune", *SIZES, "--costs", tmp_path / "costs.toml", "--seconds", 0.2, "--memory-limit", 2))
    assert {"1f1b", "zb-v", "search:", "gis"} <= {word for row in found for word in row}
    assert found[0][0] == "schedule"
    assert found[1][0] == "1"


def test_convert(grid: Path, tmp_path: Path) -> None:
    table = output("convert", grid, "--to", "csv")
    assert table == S.parse(GRID).to_csv()
    (tmp_path / "my table.csv").write_text(table)
    assert output("convert", tmp_path / "my table.csv", "--to", "text") == GRID.replace("1f1b", "my_table")
    assert output("convert", "-", "--to", "csv", "--communicate", stdin=table) == S.parse(GRID).to_csv(communicate=True)
    trace = output("convert", grid, "--to", "trace", "--hop", 0.5)
    assert trace == S.simulate(S.parse(GRID), S.Costs(hop=0.5)).to_chrome_trace()
    assert output("convert", grid, "--to", "text", "-o", tmp_path / "out.txt") == ""
    assert (tmp_path / "out.txt").read_text() == GRID


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".html", b"<!doctype html>")])
def test_plot(suffix: str, start: bytes, grid: Path, tmp_path: Path) -> None:
    assert output("plot", grid, "--hop", 1, "-o", tmp_path / f"x{suffix}") == ""
    assert (tmp_path / f"x{suffix}").read_bytes().lstrip().startswith(start)


def test_plot_of_a_trace(grid: Path, tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    assert output("convert", grid, "--to", "trace", "-o", trace) == ""
    assert output("plot", trace) == ""
    assert (tmp_path / "step.html").read_bytes().startswith(b"<!doctype html>")
    svg = tmp_path / "a.svg"
    expected = "a trace is drawn as a page: expected a name that ends in .html\n"
    assert failure("plot", trace, "-o", svg) == f"{svg}: error: {expected}"
    message = usage_error("plot", trace, "--hop", 1)
    assert message == f"{trace} is a trace, which has its own times: leave out --hop"
    trace.write_text('{"traceEvents": [{"ph": "X"}]}')
    assert failure("plot", trace).startswith(
        f"{trace}: error: it is no trace of jaxpp (KeyError: 'name'): expected a file"
    )
    trace.write_text(GRID)
    assert output("plot", trace, "-o", tmp_path / "grid.html") == "", "a schedule may have any name"


def test_a_file_may_have_the_name_of_a_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1f1b").write_text(GRID.replace("1f1b", "mine"))
    assert output("show", "./1f1b").startswith("schedule: mine")
    assert output("show", "1f1b", *SIZES) == GRID
    Path("mine").write_text(GRID)
    assert output("show", "mine") == GRID


def test_bad_usage() -> None:
    assert usage_error("show", "1f1b") == "1f1b is a schedule of the library: give --meshes and --microbatches"
    assert usage_error("show", "1f1b", "--meshes", "2").endswith("give --meshes and --microbatches")
    assert (
        usage_error("show", "zb-v", *SIZES, "--group", "2")
        == "no schedule here takes --group, which is for gis, po-h, po-f"
    )
    names = "seq1f1b, seq1f1b-i, seq1f1b-zb, slimpipe, vocab-1f1b, vocab-v-half"
    assert usage_error("show", "a.txt", "--slices", "2") == f"no schedule here takes --slices, which is for {names}"
    assert usage_error("show", "gis{group=x}", *SIZES) == "group must be a whole number, found 'x'"
    assert usage_error("show", "dualpipe{fused}", *SIZES) == "fused must be true or false, found ''"
    assert (
        usage_error("show", "gis{", *SIZES) == "expected a schedule such as gis or gis{chunks=4 group=2}, found 'gis{'"
    )
    assert usage_error("show", "1f1b", *SIZES, "--placement", "0,x") == (
        "argument --placement: placement must be the mesh of each stage, such as 0,1,1,0, found '0,x'"
    )
    assert usage_error("show", "1f1b", *SIZES, "--chunks", "x").startswith("argument --chunks: chunks must be a whole")
    assert usage_error("plot", "1f1b", *SIZES) == "the following arguments are required: -o/--output"
    assert failure(code=2).endswith("jaxpp-schedule: error: the following arguments are required: COMMAND\n")
    assert "invalid choice: 'shwo'" in failure("shwo", code=2)


def test_bad_input(grid: Path, tmp_path: Path) -> None:
    assert failure("show", "1f1c", *SIZES).endswith(", po-f, bpipe\n")
    unknown = "jaxpp-schedule: error: no schedule is named"
    assert failure("show", "1f1c").startswith(f"{unknown} '1f1c'; did you mean '1f1b'? There are gpipe, ")
    assert failure("show", "interleaved", *SIZES).startswith(
        f"{unknown} 'interleaved'; did you mean 'interleaved-1f1b' or 'interleaved-zb'? There are gpipe, "
    )
    assert failure("show", "zb-v{chunks=2}", *SIZES) == (
        "jaxpp-schedule: error: schedule 'zb-v' has no option 'chunks': it takes none\n"
    )
    assert failure("show", "1f1b", "--meshes", 0, "--microbatches", 1) == (
        "jaxpp-schedule: error: meshes must be a whole number of at least 1, found 0\n"
    )
    assert failure("show", "none.txt") == "none.txt: error: cannot read: No such file or directory\n"
    assert failure("show", tmp_path) == f"{tmp_path}: error: cannot read: Is a directory\n"
    assert failure("show", "-") == "<stdin>: error: the input is empty; expected a schedule: a grid or a table\n"
    assert failure("show", "-", stdin="0F0,hello") == (
        "<stdin>: error: row 1 (mesh 0), column 2: cannot read 'hello': a cell is <stage><op><microbatch>, like 0F3, "
        "2W1 or 1SEND_F0, fused (0F3;3B1)OVERLAP_F_B, or 0UNSHARD; the ops are F, B, I, W, SEND_F, RECV_F, SEND_B, "
        "RECV_B, UNSHARD, RESHARD, REDUCE_GRAD\n"
    )
    assert failure("show", "-", stdin="a: b") == (
        "<stdin>: error: line 1: expected 'schedule:', 'placement:' or, behind it, 'after:' (each once), 'kind NAME:' "
        "or 'mesh NUMBER:', found 'a: b'\n"
    )
    trace = tmp_path / "step.json"
    assert output("convert", grid, "--to", "trace", "-o", trace) == ""
    is_trace = (
        "it is a trace, and no schedule: `jaxpp-schedule plot step.json` draws it, and Perfetto opens it "
        "(https://ui.perfetto.dev)\n"
    )
    assert failure("show", trace) == f"{trace}: error: {is_trace}"
    assert failure("show", "-", stdin=trace.read_text()) == f"<stdin>: error: {is_trace}"
    assert failure("show", grid, "--microbatches", 9) == f"{grid}: error: the schedule has 3 microbatches, not 9\n"
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    assert failure("show", tmp_path / "bytes.txt").endswith("neither a grid nor a table: not text in UTF-8\n")
    assert failure("compare", "1f1b", "1f1c", *SIZES).startswith("jaxpp-schedule: error: no schedule is named '1f1c'")
    assert failure("compare", "1f1b", "none.txt", *SIZES).startswith("none.txt: error: cannot read: ")


def test_bad_costs(grid: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.toml"
    assert failure("simulate", grid, "--costs", costs) == f"{costs}: error: cannot read: No such file or directory\n"
    costs.write_text("forwards = 1")
    message = failure("simulate", grid, "--costs", costs)
    assert message.startswith(f"jaxpp-schedule: error: {costs}: no cost is named 'forwards': there are forward, ")
    costs.write_text("forward = [1, 2, 3]")
    assert failure("simulate", grid, "--costs", costs) == (
        "jaxpp-schedule: error: forward: expected a number for each of 2 stages, found 3\n"
    )
    assert failure("simulate", grid, "--hop=-1") == "jaxpp-schedule: error: hop must be 0 or more, found -1.0\n"
    assert " ".join(rows(output("compare", "1f1b", *SIZES, "--costs", costs))[1]).endswith(
        "the costs are for 3 stages, the schedule has 2: measure as many, or a multiple"
    )
    costs.write_text("forward = [1, 2, 3, 4]")
    assert rows(output("compare", "1f1b", *SIZES, "--costs", costs))[1][:2] == ["1f1b", "32"]


def test_nothing_is_written_where_something_is_wrong(grid: Path, tmp_path: Path) -> None:
    assert failure("plot", grid, "-o", "x.pdf").endswith(
        "error: a picture's name must end in .svg, .png or .html, found 'x.pdf'\n"
    )
    target = tmp_path / "no" / "x.svg"
    assert failure("plot", grid, "-o", target) == f"{target}: error: cannot write: No such file or directory\n"
    assert failure("convert", "dualpipe", *SIZES, "--to", "csv", "-o", tmp_path / "x.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.txt"]


def test_a_bug_has_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(S, "resolve", broken)
    assert failure("show", "1f1b", *SIZES, code=70) == "jaxpp-schedule: error: internal error: KeyError: 'oops'\n"


@pytest.mark.parametrize("command", "list show simulate compare search improve tune convert plot".split())
def test_help_has_an_example(command: str) -> None:
    assert f"\nexample: jaxpp-schedule {command}" in output(command, "--help")
    assert f"    {command} " in output("--help")


def command(*argv: object, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    line = [sys.executable, "-c", "from jaxpp.tools.schedule import cli; cli()", *map(str, argv)]
    return subprocess.run(line, capture_output=True, timeout=120, check=False, **options)


def test_the_command(grid: Path) -> None:
    assert command("show", "-", input=GRID.encode()).stdout.decode() == GRID
    done = command("show", "none.txt")
    assert (done.returncode, done.stdout) == (1, b"")
    assert command("show").returncode == 2
    # The name of a file that the terminal's encoding lacks.
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    other = grid.rename(grid.with_name("gräd.txt"))
    assert b"gr\\xe4d.txt" in command("compare", other, env=ascii_only).stdout


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule, "main", interrupted)
    with pytest.raises(SystemExit) as stop:
        schedule.cli()
    assert stop.value.code == 130


def test_a_reader_that_goes_away() -> None:
    line = f"{sys.executable} -c 'from jaxpp.tools.schedule import cli; cli()' list | true"
    done = subprocess.run(line, shell=True, capture_output=True, timeout=120, check=False)
    assert done.stderr == b""


def test_it_needs_no_jax_and_no_drawing_library() -> None:
    code = (
        "import sys; from jaxpp.tools import schedule; "
        f"assert schedule.main(['convert', '1f1b', *{SIZES!r}, '--to', 'text', '-o', {os.devnull!r}]) == 0; "
        "print({'jax', 'jaxlib', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"


def test_search_takes_stages_that_are_a_graph() -> None:
    sizes = ("--meshes", 3, "--microbatches", 2, "--seconds", 0.1)
    code, text, _ = run("search", *sizes, "--placement", "0,1,2", "--after", ".,.,0+1")
    found = S.parse(text)
    assert code == 0
    assert found.placement == S.Placement.of(0, 1, 2, after=[[], [], [0, 1]])
    wrong = failure("search", *sizes, "--after", ".,.,0+1")
    assert wrong == "jaxpp-schedule: error: --after goes with --placement MESHES, such as 0,1,2, found linear\n"
    assert "expected the stages that each reads, as in .,.,0+1, found '.,x'" in failure(
        "search", *sizes, "--placement", "0,1", "--after", ".,x", code=2
    )
