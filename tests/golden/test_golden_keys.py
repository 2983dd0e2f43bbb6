"""Keys that must never change: small modules, a fixed compiler and target, over Pythons, jaxlibs and hash seeds.

A key that changes makes every entry of every user a miss. If the key schema itself is to change, write the keys anew
with ``python tests/golden/test_golden_keys.py`` and say so in the changelog.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.waiting import HANG_SECONDS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEYS = HERE / "keys.json"

pytestmark = pytest.mark.each

MODULES = sorted(path.stem for path in (HERE / "modules").glob("*.mlir"))

try:
    import jaxlib  # noqa: F401
except ModuleNotFoundError:
    pytest.skip("skipped: golden keys need jaxlib, which is not installed for this Python", allow_module_level=True)


def key_of_text(text: str) -> tuple[str, str]:
    """Return key and VHLO version of the module in ``text``, with compiler and target fixed."""
    from jaxlib.mlir import ir  # noqa: PLC0415

    from client.key import CompilerIdentity, Ir, KeyDocument  # noqa: PLC0415
    from client.names import Kind  # noqa: PLC0415
    from neuron_backend.canonical import context, serialise, simplify  # noqa: PLC0415

    with context() as messages:
        module = ir.Module.parse(text)
        simplify(module, messages)
        code, version = serialise(module, messages)
    document = KeyDocument(
        kind=Kind.GRAPH,
        ir=Ir("stablehlo", "vhlo", version, hashlib.sha256(code).hexdigest()),
        compiler=CompilerIdentity("neuronx-cc", "2.27.5334.0+f702b353"),
        target="trn2",
        logical_cores=2,
        flags=("-O2",),
    )
    return document.key, version


def computed() -> dict[str, list[str]]:
    return {name: list(key_of_text((HERE / "modules" / f"{name}.mlir").read_text())) for name in MODULES}


def test_no_release_of_python_or_jaxlib_changes_a_key():
    assert computed() == json.loads(KEYS.read_text())


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_a_fresh_process_in_another_folder_finds_the_same_keys(tmp_path, seed):
    done = subprocess.run(
        [sys.executable, str(HERE / "test_golden_keys.py"), "--print"],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(KEYS.read_text())


@pytest.mark.parametrize("name", MODULES)
def test_names_locations_and_layout_of_the_text_do_not_reach_the_key(name):
    text = (HERE / "modules" / f"{name}.mlir").read_text()
    renamed = re.sub(r"%([a-z]\w*)", r"%other_\1", text).replace("\n}", '\n} loc("/home/somebody/model.py":12:3)\n')
    other = f"// a comment\n\n#loc = loc(unknown)\nmodule @a_name {{\n{renamed}\n}}\n"
    keys = json.loads(KEYS.read_text())
    assert key_of_text("\n\n" + text)[0] == keys[name][0]
    assert key_of_text(other.replace("module @a_name", "module"))[0] == keys[name][0]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("add", "add %left, %right", "subtract %left, %right"),
        ("add", "2x3xf32", "3x2xf32"),
        ("add", "2x3xf32", "2x3xf16"),
        ("constants", "-0.0", "0.0"),
        ("constants", "9007199254740993", "9007199254740992"),
        ("constants", "0x7FC00000", "0x7FC00001"),
        ("convolution", "[1, 1], [1, 1]", "[1, 1], [2, 0]"),
        ("sort", "LT", "LE"),
        ("sort", "is_stable = true", "is_stable = false"),
    ],
)
def test_what_changes_the_program_changes_the_key(name, old, new):
    text = (HERE / "modules" / f"{name}.mlir").read_text()
    assert old in text
    assert key_of_text(text.replace(old, new))[0] != key_of_text(text)[0]


REDUCED = """module {
  func.func public @main(%NAME: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_reduce"(%NAME) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %1 = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %1 : tensor<f32>
    }) {replica_groups = dense<GROUPS> : tensor<2x2xi64>} : (tensor<4xf32>) -> tensor<4xf32> loc("NAME")
    return %0 : tensor<4xf32>
  }
}
"""


def test_a_collectives_group_is_keyed_by_its_ranks_and_not_by_its_name():
    def key(name: str, groups: str) -> str:
        return key_of_text(REDUCED.replace("NAME", name).replace("GROUPS", groups))[0]

    pairs = "[[0, 1], [2, 3]]"
    assert key("process_group_0", pairs) == key("process_group_7", pairs)
    assert key("process_group_0", pairs) != key("process_group_0", "[[0, 2], [1, 3]]")


def test_the_lowest_version_of_the_ladder_is_taken():
    keys = json.loads(KEYS.read_text())
    assert {name: version for name, (_, version) in keys.items() if version != "1.0.0"} == {"tan": "1.4.0"}


if __name__ == "__main__":
    if "--print" in sys.argv:
        json.dump(computed(), sys.stdout)
    else:
        KEYS.write_text(json.dumps(computed(), indent=1) + "\n")
