from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from client.artifact import Compiled
from client.key import CompilerIdentity, Ir
from client.names import Kind
from client.transports import open_transport
from client.wire import Producer
from tests.client.programs import compiled, document, entry_of

if TYPE_CHECKING:
    from client.key import KeyDocument
    from tests.client.cli.conftest import CommandLine

_BASE = replace(
    document("program"), flags=("-O2", "--model-type", "transformer"), extra={"env": {"NEURON_FUSE": "1"}}, kernels=()
)
_CHANGES: dict[str, tuple[KeyDocument, str, Any, Any]] = {
    "a flag": (
        replace(_BASE, flags=("-O2", "--model-type", "unet")),
        "flags.--model-type",
        "--model-type transformer",
        "--model-type unet",
    ),
    "the order of flags": (
        replace(_BASE, flags=("--model-type", "transformer", "-O2")),
        "flags (order)",
        ["-O2", "--model-type", "transformer"],
        ["--model-type", "transformer", "-O2"],
    ),
    "the compiler's version": (
        replace(_BASE, compiler=CompilerIdentity("test", "1.2.4+def")),
        "compiler.version",
        "1.2.3+abc",
        "1.2.4+def",
    ),
    "the target": (replace(_BASE, target="trn1"), "target", "trn2", "trn1"),
    "an environment switch": (replace(_BASE, extra={"env": {"NEURON_FUSE": "0"}}), "extra.env.NEURON_FUSE", "1", "0"),
    "a kernel": (replace(_BASE, kernels=("a" * 64,)), "kernels[0]", None, "a" * 64),
    "a constant of the program": (
        replace(_BASE, ir=Ir("stablehlo", "vhlo", "1.0.0", "f" * 64)),
        "ir.sha256",
        _BASE.ir.sha256,
        "f" * 64,
    ),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_the_part_of_the_key_that_differs_is_named(shared: CommandLine, change: str) -> None:
    asked, path, stored, wanted = _CHANGES[change]
    near = shared.share(_BASE)
    far = replace(
        _BASE, target="inf2", logical_cores=1, flags=("--other",), ir=Ir("stablehlo", "vhlo", "1.9", "9" * 64)
    )
    shared.share(far)
    described = shared.folder / "key.json"
    described.write_text(json.dumps(asked.to_json()))
    value = shared.run("why", "--document", str(described), "--json").json
    (found,) = value["nearest"]
    assert found["key"] == near.key
    assert found["differences"] == [{"path": path, "stored": stored, "asked": wanted}]
    assert value["stored_in"] == []


def test_a_compile_of_another_host_is_explained_by_its_key(shared: CommandLine) -> None:
    asked, path, _, _ = _CHANGES["a flag"]
    shared.share(_BASE)
    mine = shared.share(asked)
    ran = shared.run("why", mine.key)
    assert ran.status == 0
    assert path in ran.stdout
    assert "NEURON_CC_FLAGS" in ran.stdout
    assert f"stored in {'file://' if shared.url and shared.url.startswith('/') else shared.url}" in ran.stdout


def test_a_compile_that_was_never_shared_is_explained_by_the_node_that_made_it(shared: CommandLine) -> None:
    shared.share(_BASE)
    mine = shared.keep(_CHANGES["the target"][0])
    value = shared.run("why", mine.key[:12] if shared.url and shared.url.startswith("/") else mine.key, "--json").json
    assert [difference["path"] for difference in value["nearest"][0]["differences"]] == ["target"]
    assert value["stored_in"] == [f"node tier {shared.node_dir}"]


def test_without_a_shared_cache_the_node_is_searched(alone: CommandLine) -> None:
    alone.keep(_BASE)
    mine = alone.keep(_CHANGES["the order of flags"][0])
    value = alone.run("why", mine.key, "--json").json
    assert [difference["path"] for difference in value["nearest"][0]["differences"]] == ["flags (order)"]


def test_a_run_that_missed_is_explained_as_a_whole(shared: CommandLine) -> None:
    newer = CompilerIdentity("test", "2.0.0+new")
    programs = [replace(_BASE, ir=Ir("stablehlo", "vhlo", "1.0.0", f"{number:064x}")) for number in range(4)]
    for program in programs:
        shared.share(program)
    missed = [shared.share(replace(program, compiler=newer)) for program in programs]
    plan = shared.plan(*missed)
    value = shared.run("why", "--plan", plan, "--json").json
    (group,) = value["groups"]
    assert group["entries"] == 4
    assert group["nearest"]["differences"] == [
        {"path": "compiler.version", "stored": "1.2.3+abc", "asked": "2.0.0+new"}
    ]
    assert "4 of 4 entries" in shared.run("why", "--plan", plan).stdout


def test_two_programs_are_compared_line_by_line_where_their_modules_are_stored(folder: CommandLine) -> None:
    mlir = pytest.importorskip("jaxlib.mlir.ir")
    canonical = pytest.importorskip("neuron_backend.canonical")

    def module(constant: float) -> bytes:
        text = f"""func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{
            %c = stablehlo.constant dense<{constant}> : tensor<2xf32>
            %r = stablehlo.add %a, %c : tensor<2xf32>
            return %r : tensor<2xf32>
        }}"""
        with canonical.context() as messages, mlir.Location.unknown():
            code, _ = canonical.serialise(mlir.Module.parse(text), messages)
        return bytes(code)

    for number, constant in enumerate((0.5, 0.25)):
        asked = replace(_BASE, ir=Ir("stablehlo", "vhlo", "1.0.0", str(number) * 64))
        program = compiled()
        mine = folder.share(asked, Compiled({**program.outputs, "module.mlirbc": module(constant)}, 1.0))
    value = folder.run("why", mine.key, "--json").json
    changed = [line for line in value["module_difference"] if line[:1] in "+-"][2:]
    assert len(changed) == 2, value
    assert "5.000000e-01" in changed[0]
    assert "2.500000e-01" in changed[1]
    assert "2.500000e-01" in folder.run("why", mine.key).stdout


def test_modules_that_are_not_stored_are_said_to_be_missing(folder: CommandLine) -> None:
    folder.share(_BASE)
    mine = folder.share(_CHANGES["a constant of the program"][0])
    value = folder.run("why", mine.key, "--json").json
    assert value["module_difference"] == []
    assert "module.mlirbc" in value["module_note"]


def test_nothing_to_compare_with_is_a_no(shared: CommandLine) -> None:
    mine = shared.share(_BASE)
    assert shared.run("why", mine.key).status == 1


def test_an_unknown_key_is_answered_with_what_to_do(shared: CommandLine) -> None:
    ran = shared.run("why", "0" * 64)
    assert ran.status == 2
    assert "--document" in ran.stderr
    assert shared.run("why").status == 2
    assert shared.run("why", "0" * 64, "--plan", "x").status == 2


def test_the_host_and_the_label_of_the_near_entry_are_named(folder: CommandLine) -> None:
    program = compiled()
    entry = replace(entry_of(_BASE, program.outputs), producer=Producer("neff-cache/test", "trn-17", "llama-8b"))
    assert folder.url is not None
    open_transport(folder.url, "default", {}).publish(entry, program.outputs, None)
    mine = folder.keep(_CHANGES["a flag"][0])
    text = folder.run("why", mine.key).stdout
    assert "trn-17" in text
    assert "llama-8b" in text
    assert Kind.GRAPH in text
