"""Locations go, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.launcher.mlir_text import clear

LOCATIONS = [
    "loc(unknown)",
    "loc(#loc3)",
    'loc("/home/me/a.py":3:4)',
    'loc("a \\" ) // b"("/x/y.py":1:1))',
    'loc(callsite("f"("a.py":1:2) at fused<"p(">["b.py":3:4, #loc]))',
    'loc(fused[#loc1, "g"(#loc2)])',
    "loc (#loc)",
]
PLAIN = [
    '%0 = stablehlo.constant dense<"0x28">',
    '"loc(#loc1) in a string \\" loc(unknown)"',
    '// a comment: loc(#loc1) and "an open string',
    "@loc(%arg0)",
    "%loc",
    "my.loc(#x)",
    "alloc(#x)",
    "loc",
    "loc(%arg0)",
    "#map = affine_map<(d0) -> (d0)>",
    "call @f(%0, %1) : (i32, i32) -> i32",
    'attributes {mhlo.num_partitions = 1 : i32, name = "source_file"}',
    "{",
    "}",
]
lines = st.lists(st.tuples(st.sampled_from(PLAIN), st.sampled_from([None, *LOCATIONS])), max_size=20)


def joined(pairs: list[tuple[str, str | None]], *, located: bool) -> bytes:
    rows = []
    for plain, location in pairs:
        # behind a comment a location is part of the comment
        shown = location is not None and located and "//" not in plain
        rows.append(f"  {plain} {location}" if shown else f"  {plain}")
    return "\n".join(rows).encode()


@given(lines)
def test_a_module_with_locations_is_the_module_without(pairs: list[tuple[str, str | None]]) -> None:
    bare = joined(pairs, located=False)
    assert clear(bare) == bare
    assert clear(joined(pairs, located=True)) == bare


@given(lines, st.lists(st.sampled_from(LOCATIONS), max_size=4))
def test_definitions_of_locations_go_with_their_lines(pairs: list[tuple[str, str | None]], defined: list[str]) -> None:
    aliases = "".join(f"#loc{number} = {location}\n" for number, location in enumerate(defined)).encode()
    bare = joined(pairs, located=False)
    assert clear(aliases + bare) == bare


@given(st.text(alphabet='loc()#"\\/ \n%a1,=', max_size=60))
def test_whatever_the_text_nothing_is_added_and_strings_survive(text: str) -> None:
    raw = text.encode()
    once = clear(raw)
    assert len(once) <= len(raw) + raw.count(b"loc")
    if b"loc" not in raw:
        assert once == raw


@given(lines)
def test_cleared_twice_is_cleared_once(pairs: list[tuple[str, str | None]]) -> None:
    once = clear(joined(pairs, located=True))
    assert clear(once) == once


def test_debug_paths_go_and_other_attributes_stay() -> None:
    text = b'{a = 1, source_file = "/home/u/x.py", source_line = 7 : i64, my_source_file = "/y", b = "source_file = 3"}'
    kept = b'{a = 1, source_file = "", source_line = "" : i64, my_source_file = "/y", b = "source_file = 3"}'
    assert clear(text) == kept
    assert clear(kept) == kept


def test_debug_information_of_llvm_goes() -> None:
    text = b'#di_file = #llvm.di_file<"x.py" in "/home/u">\n#di = distinct[0]<>\nmodule {\n}\n'
    assert clear(text) == b"#di = distinct[0]<>\nmodule {\n}\n"


@pytest.mark.parametrize("text", [b'a loc("never ends', b"a loc(#loc1", b'"a string that never ends loc(#loc1)', b""])
def test_what_is_broken_stays_as_it_is(text: bytes) -> None:
    assert clear(text) == text


def test_broken_text_costs_no_more_than_whole_text() -> None:
    broken = b'loc("' + b"a" * 100_000 + b'\\" loc(' * 1000
    assert clear(broken) == broken


def test_what_is_not_a_location_still_tells_modules_apart() -> None:
    one, other = (clear(f'x = "{name}" loc("a.py":1:1)'.encode()) for name in ("p", "q"))
    assert one != other


def test_real_modules_are_equal_with_and_without_debug_information() -> None:
    pytest.importorskip("jaxlib")
    from jaxlib.mlir import ir  # noqa: PLC0415 - where it is installed

    from neuron_backend.canonical import context  # noqa: PLC0415

    source = """
    module @jit_f {
      func.func public @main(%arg0: tensor<4xf32> loc("x"), %arg1: tensor<4xf32> loc("y")) -> tensor<4xf32> {
        %0 = stablehlo.add %arg0, %arg1 : tensor<4xf32> loc(callsite("f"("/u/a.py":1:2) at "/u/b.py":3:4))
        %1 = stablehlo.tanh %0 : tensor<4xf32> loc(fused<"x">["a", "b"("/u/c.py":7:1)])
        return %1 : tensor<4xf32> loc("/u/a.py":9:9)
      } loc("/u/a.py":1:1)
    } loc(unknown)
    """
    with context():
        module = ir.Module.parse(source)
        bare = module.operation.get_asm(enable_debug_info=False)
        located = module.operation.get_asm(enable_debug_info=True)
    assert "/u/a.py" in located
    assert clear(located.encode()) == bare.encode()
