"""An HLO module as protobuf, without what changes from process to process: names, ids, metadata.

A walker over the wire format, no schema: field numbers are those of ``xla/service/hlo.proto``. Names, metadata and
stack frames are left out; the ids of instructions and computations, which also say what is connected to what, become
their places in the module, everywhere they stand. All other bytes stay as they are, so that two modules with equal
results differ in nothing else. What is not understood (a schedule, an id that names nothing) gives None, and the bytes
are hashed as they stand.
"""

from __future__ import annotations

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KERNEL_TARGET = b"AwsNeuronCustomNativeKernel"

# HloModuleProto
_MODULE_DROPPED = frozenset({1, 2, 5, 17})  # name, entry_computation_name, id, stack_frame_index
_COMPUTATIONS, _MODULE_SHAPE, _ENTRY_ID, _SCHEDULE = 3, 4, 6, 7
# HloComputationProto
_COMPUTATION_NAME, _INSTRUCTIONS, _COMPUTATION_SHAPE, _COMPUTATION_ID, _ROOT_ID = 1, 2, 4, 5, 6
# ProgramShapeProto
_PARAMETER_NAMES = 3
# HloInstructionProto
_INSTRUCTION_DROPPED = frozenset({1, 7})  # name, metadata
_TARGET, _ID, _OPERANDS, _PREDECESSORS, _CALLED, _CONFIG = 28, 35, 36, 37, 38, 43

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class _NotUnderstood(Exception):  # noqa: N818 - never leaves this module
    pass


def clear(data: bytes, replace_config: Callable[[bytes], bytes]) -> bytes | None:
    """Return the module's bytes without what changes from process to process, or None if they are not understood.

    ``replace_config`` gets the ``backend_config`` of each NKI kernel and returns what stands in its place.
    """
    try:
        return _Module(data, replace_config).cleared()
    except _NotUnderstood:
        return None


class _Module:
    def __init__(self, data: bytes, replace_config: Callable[[bytes], bytes]) -> None:
        self._data = data
        self._replace_config = replace_config
        self._computations: dict[int, int] = {}

    def cleared(self) -> bytes:
        kept: list[bytes] = []
        entry = None
        for number, wire, begin, value, end in _fields(self._data, 0, len(self._data)):
            if number in _MODULE_DROPPED:
                continue
            if number == _SCHEDULE:
                raise _NotUnderstood
            if number == _ENTRY_ID:
                entry = _number(self._data, wire, value)
            elif number == _COMPUTATIONS:
                kept.append(_tagged(number, self._computation(*_inner(wire, value, end))))
            elif number == _MODULE_SHAPE:
                kept.append(_tagged(number, self._shape(*_inner(wire, value, end))))
            else:
                kept.append(self._data[begin:end])
        if not self._computations:
            raise _NotUnderstood
        kept.append(_number_field(_ENTRY_ID, _place(self._computations, entry or 0)))
        return b"".join(kept)

    def _computation(self, at: int, end: int) -> bytes:
        data = self._data
        kept: list[bytes] = []
        places: dict[int, int] = {}
        own = root = None
        for number, wire, begin, value, stop in _fields(data, at, end):
            if number == _COMPUTATION_NAME:
                continue
            if number == _INSTRUCTIONS:
                kept.append(_tagged(number, self._instruction(*_inner(wire, value, stop), places)))
            elif number == _COMPUTATION_SHAPE:
                kept.append(_tagged(number, self._shape(*_inner(wire, value, stop))))
            elif number == _COMPUTATION_ID:
                own = _number(data, wire, value)
            elif number == _ROOT_ID:
                root = _number(data, wire, value)
            else:
                kept.append(data[begin:stop])
        if not places:
            raise _NotUnderstood
        kept.append(_number_field(_COMPUTATION_ID, _add(self._computations, own or 0)))
        kept.append(_number_field(_ROOT_ID, _place(places, root or 0)))
        return b"".join(kept)

    def _instruction(self, at: int, end: int, places: dict[int, int]) -> bytes:
        data = self._data
        kept: list[bytes] = []
        references: dict[int, list[int]] = {}
        own = 0
        kernel = False
        config = None
        for number, wire, begin, value, stop in _fields(data, at, end):
            if number in _INSTRUCTION_DROPPED:
                continue
            if number == _ID:
                own = _number(data, wire, value)
            elif number in (_OPERANDS, _PREDECESSORS, _CALLED):
                references.setdefault(number, []).extend(_numbers(data, wire, value, stop))
            elif number == _CONFIG:
                config = len(kept)
                kept.append(data[begin:stop])
                held = data[value:stop]
            else:
                kernel = kernel or (number == _TARGET and data[value:stop] == KERNEL_TARGET)
                kept.append(data[begin:stop])
        if kernel:
            if config is None:
                raise _NotUnderstood
            kept[config] = _tagged(_CONFIG, self._replace_config(held))
        for number, ids in references.items():
            known = self._computations if number == _CALLED else places
            kept.append(_tagged(number, b"".join(_varint(_place(known, one)) for one in ids)))
        kept.append(_number_field(_ID, _add(places, own)))
        return b"".join(kept)

    def _shape(self, at: int, end: int) -> bytes:
        fields = _fields(self._data, at, end)
        return b"".join(self._data[begin:stop] for number, _, begin, _, stop in fields if number != _PARAMETER_NAMES)


def _add(places: dict[int, int], own: int) -> int:
    """Give the next place, counted from 1, to an id that has none yet."""
    if own in places:
        raise _NotUnderstood
    places[own] = len(places) + 1
    return places[own]


def _place(places: dict[int, int], one: int) -> int:
    """Return the place of an id; operands stand before their users, and callees before their callers."""
    if one not in places:
        raise _NotUnderstood
    return places[one]


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Give (number, wire type, begin of the field, begin of its value, end) of each field."""
    while at < end:
        begin = at
        tag, at = _read_varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        value = at
        if wire == _VARINT:
            _, at = _read_varint(data, at, end)
        elif wire == _BYTES:
            length, value = _read_varint(data, at, end)
            at = value + length
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            at += 4
        else:
            raise _NotUnderstood
        if at > end or not number:
            raise _NotUnderstood
        yield number, wire, begin, value, at


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(end, at + _LONGEST_VARINT)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says whether more bytes follow
            return value, place + 1
        shift += 7
    raise _NotUnderstood


def _inner(wire: int, value: int, end: int) -> tuple[int, int]:
    if wire != _BYTES:
        raise _NotUnderstood
    return value, end


def _number(data: bytes, wire: int, value: int) -> int:
    if wire != _VARINT:
        raise _NotUnderstood
    return _read_varint(data, value, len(data))[0]


def _numbers(data: bytes, wire: int, value: int, end: int) -> list[int]:
    """Return the numbers of a repeated field, packed or not."""
    if wire == _VARINT:
        return [_number(data, wire, value)]
    at, stop = _inner(wire, value, end)
    found: list[int] = []
    while at < stop:
        number, at = _read_varint(data, at, stop)
        found.append(number)
    return found


def _varint(value: int) -> bytes:
    if value < 0x80:  # noqa: PLR2004 - as above
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:  # noqa: PLR2004
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tagged(number: int, payload: bytes) -> bytes:
    return b"".join((_varint(number << 3 | _BYTES), _varint(len(payload)), payload))


def _number_field(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)
