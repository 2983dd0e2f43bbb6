"""What of a module is hashed, and the kernels it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client.launcher import module
from client.launcher.passing import NotShared
from tests.client.launcher.test_hlo_wire import number, text
from tests.support.launching import kernel_call, kernel_config, module_text

if TYPE_CHECKING:
    from pathlib import Path

HLO = text(3, text(2, text(2, "parameter") + number(35, 4)) + number(5, 9) + number(6, 4)) + number(6, 9)


def kernel_instruction(path: Path, name: str) -> bytes:
    fields = (text(1, name), text(2, "custom-call"), text(28, "AwsNeuronCustomNativeKernel"))
    instruction = b"".join((*fields, text(43, kernel_config(path)), number(35, 4)))
    return text(3, text(2, instruction) + number(5, 9) + number(6, 4)) + number(6, 9)


@pytest.mark.parametrize(
    ("content", "encoding", "dialect"),
    [
        (module_text().encode(), "mlir-text", "mlir"),
        (b"  // made by hand\n" + module_text().encode(), "mlir-text", "mlir"),
        (b"#loc = loc(unknown)\nmodule {}", "mlir-text", "mlir"),
        (b"ML\xefR\x0dLLVM22\0rest", "mlir-bytecode", "mlir"),
        (HLO, "hlo-protobuf", "hlo"),
        (b"HloModule text, entry", "bytes", ""),
        (b"", "bytes", ""),
        (b"\x1f\x8b\x08zipped", "bytes", ""),
    ],
)
def test_modules_are_told_apart_by_what_they_hold(content: bytes, encoding: str, dialect: str) -> None:
    found = module.Module(content)
    assert (found.encoding, found.dialect, found.content) == (encoding, dialect, content)


def test_bytes_that_are_not_understood_are_hashed_as_they_are() -> None:
    digests = {module.Module(content).sha256 for content in (b"\x1fa", b"\x1fb", b"ML\xefRa", b"ML\xefRb")}
    assert len(digests) == 4


@pytest.fixture(params=["text", "protobuf", "bytecode"])
def encode(request: pytest.FixtureRequest):
    if request.param == "text":
        return lambda path: kernel_call(path).encode()
    if request.param == "protobuf":
        return lambda path: kernel_instruction(path, f"custom-call.{path.parent.name}")
    # strings of bytecode end with a zero; paths of equal length
    return lambda path: b"ML\xefR\0AwsNeuronCustomNativeKernel\0" + kernel_config(path).encode() + b"\0"


def test_a_kernel_under_two_paths_is_one_module_and_a_changed_kernel_another(encode, tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "k.klir", tmp_path / "two" / "k.klir"
    for path in (one, other):
        path.parent.mkdir()
        path.write_bytes(b"kernel")
    first, second = module.Module(encode(one)), module.Module(encode(other))
    assert first.content != second.content
    assert first.sha256 == second.sha256
    assert [kernel.content for kernel in first.kernels] == [b"kernel"]
    assert [kernel.sha256 for kernel in first.kernels] == [kernel.sha256 for kernel in second.kernels]
    other.write_bytes(b"changed")
    assert module.Module(encode(other)).sha256 != first.sha256
    assert not second.kernels[0].is_unchanged()


def test_a_kernel_is_found_where_the_compiler_looks_second(
    encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gone" / "abc" / "k.klir"
    with pytest.raises(NotShared):
        module.Module(encode(path))
    brought = tmp_path / "work" / "abc"
    brought.mkdir(parents=True)
    (brought / "k.klir").write_bytes(b"kernel")
    monkeypatch.chdir(brought.parent)
    assert module.Module(encode(path)).kernels[0].content == b"kernel"


def test_what_else_a_kernel_is_called_with_is_part_of_the_module(tmp_path: Path) -> None:
    path = tmp_path / "k.klir"
    path.write_bytes(b"kernel")
    text_of = kernel_call(path)
    other = text_of.replace(kernel_config(path), kernel_config(path, grid=2))
    assert module.Module(text_of.encode()).sha256 != module.Module(other.encode()).sha256


@pytest.mark.parametrize("config", ["no base64 at all", "bm9uIEpTT04gYXQgYWxsLCBidXQgbG9uZyBlbm91Z2ggdG8gbG9vayBhdA=="])
def test_a_kernel_that_cannot_be_read_is_not_shared(config: str, tmp_path: Path) -> None:
    path = tmp_path / "k.klir"
    path.write_bytes(b"kernel")
    with pytest.raises(NotShared):
        module.Module(kernel_call(path).replace(kernel_config(path), config).encode())


def test_a_configuration_that_names_another_file_is_not_shared(tmp_path: Path) -> None:
    path = tmp_path / "k.klir"
    path.write_bytes(b"kernel")
    with pytest.raises(NotShared):
        module.Module(kernel_call(path).replace(kernel_config(path), kernel_config(path, also=[str(path)])).encode())


def test_what_is_no_file_is_left_to_the_compiler(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NotShared):
            module.read(str(path))
