"""The bytes of collectives, from the text of optimized modules."""

import pytest

from jaxpp.planning.collectives import COLLECTIVE, Sent, collective_bytes, result_bytes

FOUR = "replica_groups={{0,1,2,3}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"%a = f32[8]{{0}} all-reduce(f32[8]{{0}} %x), {FOUR}", 2 * 32 * 3 / 4),
        (f"%a = (f32[8]{{0}}, f32[2]{{0}}) all-reduce(%x, %y), {FOUR}", 2 * 40 * 3 / 4),
        (f"%a = (f32[8]{{0}}, f32[2]{{0}}) all-reduce-start(%x, %y), {FOUR}", 2 * 40 * 3 / 4),
        (f"%a = (f32[8]{{0}}, /*index=1*/f32[4]{{0}}) all-gather(%x, %y), {FOUR}", 48 * 3 / 4),
        (f"%a = (f32[2]{{0}}, f32[8]{{0:T(8)}}) all-gather-start(%x), {FOUR}", 32 * 3 / 4),
        (
            f"%a = ((f32[2]{{0}}, f32[1]{{0}}), (f32[8]{{0:T(8)S(1)}}, f32[4]{{0}})) all-gather-start(%x, %y), {FOUR}",
            48 * 3 / 4,
        ),
        (f"%a = (f32[2]{{0}}, bf16[4]{{0}}) reduce-scatter(%x, %y), {FOUR}", 16 * 3),
        (f"%a = ((f32[8]{{0}}), f32[2]{{0}}) reduce-scatter-start(%x), {FOUR}", 8 * 3),
        ("%a = (f32[8]{0}, f32[4]{0}) collective-permute(%x, %y), source_target_pairs={{0,1},{1,0}}", 48),
        ("%a = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%x)", 32),
        ("%a = f32[8]{0} all-gather-done(%x)", 0),
    ],
)
def test_what_a_device_sends(text: str, expected: float) -> None:
    assert collective_bytes(text)[:2] == (expected, 0)


def test_kinds_and_results() -> None:
    text = f"%a = f32[8]{{0}} all-gather(%x), {FOUR}\n%b = (f32[2]{{0}}, bf16[4]{{0}}) reduce-scatter(%x, %y), {FOUR}"
    found = [(each["kind"], result_bytes(each)) for each in COLLECTIVE.finditer(text)]
    assert found == [("all-gather", 32), ("reduce-scatter", 16)]


@pytest.mark.parametrize(
    ("groups", "is_between"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", False),
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", True),
        ("replica_groups=[2,4]<=[8]", False),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", True),
        ("replica_groups=mesh['data'=2,'model'=4] {'model'}", False),
        ("replica_groups=mesh['data'=2,'model'=2,'rest'=2] {'data','model'}", True),
    ],
)
def test_what_crosses_hosts(groups: str, is_between: bool) -> None:
    """Of eight devices on two hosts."""
    sent = 2 * 32 * 3 / 4
    found = collective_bytes(f"%a = f32[8]{{0}} all-reduce(%x), {groups}", [0] * 4 + [1] * 4)
    assert found == (Sent(0, sent, 0, 1) if is_between else Sent(sent, 0, 1, 0))


def test_a_fusion_that_scatters() -> None:
    """As a TPU has it: of the all-reduce in it only the first half is done."""
    text = f"%all-reduce-scatter (x: f32[8]) -> f32[2] {{\n  %a = f32[8]{{0}} all-reduce(%x), {FOUR}\n}}\n"
    assert collective_bytes(text) == Sent(32 * 3 / 4, 0, 1, 0)
    assert collective_bytes(text + f"%b = f32[8]{{0}} all-reduce(%y), {FOUR}") == Sent(3 * 32 * 3 / 4, 0, 2, 0)


def test_pairs_that_cross_hosts() -> None:
    text = "%a = f32[8]{{0}} collective-permute(%x), source_target_pairs={pairs}"
    assert collective_bytes(text.format(pairs="{{0,1},{1,0},{2,3},{3,2}}"), [0, 0, 1, 1]) == Sent(32, 0, 1, 0)
    assert collective_bytes(text.format(pairs="{{0,1},{1,2},{2,3},{3,0}}"), [0, 0, 1, 1]) == Sent(0, 32, 0, 1)


def test_one_of_several_groups_crosses_hosts() -> None:
    text = "%a = f32[8]{0} all-reduce(%x), replica_groups={{0,1,2},{3,4,5}}"
    assert collective_bytes(text, [0] * 4 + [1] * 4).inside == 0


def test_an_empty_list_of_groups_is_all_devices() -> None:
    text = "%a = f32[8]{0} all-reduce(%x), replica_groups={}"
    assert collective_bytes(text, [0] * 4 + [1] * 4) == Sent(0, 2 * 32 * 7 / 8, 0, 1)
