"""HLO as protobuf: what changes from process to process goes, and modules that differ stay different."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.launcher import hlo_wire

if TYPE_CHECKING:
    import random


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def packed(field: int, values: list[int]) -> bytes:
    return text(field, b"".join(map(varint, values))) if values else b""


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()
    literal: bytes = b""


@dataclass(frozen=True)
class Names:
    """How one process happens to call things: a salt for names, and an order of ids."""

    salt: str = ""
    offset: int = 1
    stride: int = 1
    unpacked: bool = False

    def id(self, computation: int, place: int) -> int:
        return self.offset + self.stride * (computation * 1000 + place)


Program = tuple[tuple[Instruction, ...], ...]


def encode(program: Program, names: Names) -> bytes:
    """Return the HloModuleProto of computations whose operands and callees are places."""
    salt = names.salt
    module = [
        text(1, f"jit_{salt}"),
        text(2, f"main.{salt}"),
        number(5, names.offset + 7),
        text(17, text(1, salt or "x")),
    ]
    for at, instructions in enumerate(program):
        body = [text(1, f"region.{salt}")] if salt else []
        for place, instruction in enumerate(instructions):
            ids = [names.id(at, operand) for operand in instruction.operands]
            operands = b"".join(number(36, one) for one in ids) if names.unpacked else packed(36, ids)
            fields = [
                text(1, f"add.{salt}{place}"),
                text(2, instruction.opcode),
                text(3, b"\x10\x0b"),
                text(7, text(2, f"jit(f)/{salt}") + text(3, f"/home/{salt}/a.py")),
                text(8, instruction.literal) if instruction.literal else b"",
                number(35, names.id(at, place)),
                operands,
                packed(38, [names.id(99, callee) for callee in instruction.calls]),
            ]
            body.append(text(2, b"".join(fields)))
        body += [text(4, text(1, b"\x10\x0b") + text(3, f"p.{salt}")), number(5, names.id(99, at))]
        body.append(number(6, names.id(at, len(instructions) - 1)))
        module.append(text(3, b"".join(body)))
    module.append(number(6, names.id(99, len(program) - 1)))
    return b"".join(module)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    computations = []
    for at in range(draw(st.integers(1, 3))):
        instructions: list[Instruction] = []
        for place in range(draw(st.integers(1, 5))):
            earlier = st.integers(0, place - 1)
            instructions.append(
                Instruction(
                    draw(st.sampled_from(["add", "multiply", "parameter", "call"])),
                    tuple(draw(st.lists(earlier, max_size=3))) if place else (),
                    tuple(draw(st.lists(st.integers(0, at - 1), max_size=2))) if at else (),
                    draw(st.binary(max_size=6)),
                )
            )
        computations.append(tuple(instructions))
    return tuple(computations)


names = st.builds(
    Names,
    salt=st.text("abc", max_size=4),
    offset=st.integers(0, 2**40),
    stride=st.integers(1, 2**30),
    unpacked=st.booleans(),
)


@given(programs(), names, names)
def test_one_program_is_one_module_whatever_a_process_calls_things(program: Program, one: Names, other: Names) -> None:
    cleared = hlo_wire.clear(encode(program, one), bytes)
    assert cleared is not None
    assert cleared == hlo_wire.clear(encode(program, other), bytes)
    assert b"/home/" not in cleared


@given(programs(), programs(), names)
def test_different_programs_stay_different(one: Program, other: Program, spelling: Names) -> None:
    same = hlo_wire.clear(encode(one, spelling), bytes) == hlo_wire.clear(encode(other, Names()), bytes)
    assert same == (one == other)


@given(programs(), names)
def test_cleared_twice_is_cleared_once(program: Program, spelling: Names) -> None:
    once = hlo_wire.clear(encode(program, spelling), bytes)
    assert once is not None
    assert hlo_wire.clear(once, bytes) == once


def test_what_an_instruction_is_connected_to_is_part_of_the_module() -> None:
    first, second = Instruction("parameter"), Instruction("parameter", literal=b"2")
    left = ((first, second, Instruction("subtract", (0, 1))),)
    right = ((first, second, Instruction("subtract", (1, 0))),)
    assert hlo_wire.clear(encode(left, Names()), bytes) != hlo_wire.clear(encode(right, Names()), bytes)


@given(st.binary(max_size=200))
def test_no_bytes_whatsoever_break_the_walker(data: bytes) -> None:
    cleared = hlo_wire.clear(data, bytes)
    assert cleared is None or hlo_wire.clear(cleared, bytes) == cleared


@settings(max_examples=30)
@given(programs(), st.randoms(use_true_random=False))
def test_a_torn_module_is_never_taken_for_another_whole_one(program: Program, dice: random.Random) -> None:
    whole = encode(program, Names())
    torn = whole[: dice.randrange(len(whole))]
    cleared = hlo_wire.clear(torn, bytes)
    assert cleared is None or cleared != hlo_wire.clear(whole, bytes)


@pytest.mark.parametrize("change", ["schedule", "operand", "twice", "group"])
def test_what_is_not_understood_is_not_cleared(change: str) -> None:
    program: Program = ((Instruction("parameter"), Instruction("negate", (0,))),)
    data = encode(program, Names())
    if change == "schedule":
        data += text(7, b"\x0a\x02\x08\x01")
    elif change == "operand":
        instructions = (program[0][0], replace(program[0][1], operands=(7,)))
        data = encode((instructions,), Names())
    elif change == "twice":
        data = encode(program, Names(stride=0))
    else:
        data += bytes([99 << 3 & 0x7F | 3, 0])
    assert hlo_wire.clear(data, bytes) is None


def test_a_real_module_is_one_whatever_its_names_and_not_another() -> None:
    jax = pytest.importorskip("jaxlib._jax")

    def proto(name: str, operation: str) -> bytes:
        source = f"""module @{name} {{ func.func public @main(%a: tensor<4xf32>, %b: tensor<f32>) -> tensor<f32> {{
          %0 = stablehlo.{operation} %a, %a : tensor<4xf32>
          %1 = stablehlo.reduce(%0 init: %b) applies stablehlo.add across dimensions = [0]
            : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
          return %1 : tensor<f32> }} }}"""
        computation = jax.mlir.mlir_module_to_xla_computation(source, use_tuple_args=False, return_tuple=False)
        serialised: bytes = computation.as_serialized_hlo_module_proto()
        return serialised

    one, same, other = proto("jit_f", "add"), proto("jit_another_name", "add"), proto("jit_f", "multiply")
    assert one != same
    assert hlo_wire.clear(one, bytes) is not None
    assert hlo_wire.clear(one, bytes) == hlo_wire.clear(same, bytes)
    assert hlo_wire.clear(one, bytes) != hlo_wire.clear(other, bytes)
