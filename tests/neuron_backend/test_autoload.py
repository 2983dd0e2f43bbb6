"""``import torch`` stays whole, whatever is or is not installed around it; each case is a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import neuron_backend
from neuron_backend.device import build

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(neuron_backend.__file__).parents[1]
LIMIT_SECONDS = 60

STATE = """
import sys
print("torch._dynamo" in sys.modules, "jaxlib" in sys.modules)
try:
    torch.empty(1, device="neuron")
    print("device")
except RuntimeError as error:
    print("no device")
"""


@dataclass
class Ran:
    out: list[str]
    err: str

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.err.splitlines() if "Warning: " in line or line.startswith("neff-cache: ")]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Return a directory with a copy of our packages, the built library included, to be put first on the path."""
    target = tmp_path / "packages"
    for package in ("neuron_backend", "client"):
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("_lib"))
    library = build.library_path()
    assert library is not None, f"run `{build.COMMAND}`"
    (target / "neuron_backend" / "_lib").mkdir()
    (target / "neuron_backend" / "_lib" / library.name).symlink_to(library)
    return target


@pytest.fixture
def run(packages: Path, tmp_path: Path) -> Callable[..., Ran]:
    def run(script: str, *options: str, first: tuple[Path, ...] = (), **environment: str) -> Ran:
        path = tmp_path / "job" / "script.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        done = subprocess.run(
            [sys.executable, "-W", "always", *options, str(path)],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "TORCH_"))},
                "PYTHONPATH": os.pathsep.join(map(str, (*first, packages))),
                "HOME": str(tmp_path),
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                **environment,
            },
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return Ran(done.stdout.splitlines(), done.stderr)

    return run


def without_library(packages: Path) -> None:
    shutil.rmtree(packages / "neuron_backend" / "_lib")


def at_start(folder: Path, code: str) -> Path:
    """Make ``folder`` one that runs ``code`` when Python starts, if it is on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    return folder


def distribution(folder: Path, name: str, entry_points: str, code: str = "") -> Path:
    """Install a distribution of one module into ``folder``."""
    module = name.replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(code or "def autoload(): pass\ndef backend(*a, **k): return 'vendor'\n")
    info = folder / f"{module}-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.13.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder


def test_the_device_is_there_and_nothing_heavy_is_imported(run: Callable[..., Ran]) -> None:
    ran = run("import torch" + STATE)
    assert ran.out == ["False False", "device"]
    assert ran.err == ""


def test_without_a_built_library_torch_is_whole_and_the_command_is_named(
    run: Callable[..., Ran], packages: Path
) -> None:
    without_library(packages)
    ran = run("import torch" + STATE)
    assert ran.out == ["False False", "no device"]
    assert ran.err == ""
    ran = run(
        "import torch\nimport neuron_backend\nimport neuron_backend\nfrom neuron_backend.device import build" + STATE
    )
    assert ran.out[-1] == "no device"
    (warning,) = ran.warnings
    assert "RuntimeWarning: neff-cache: there is no device neuron, its library is not built for torch 2" in warning
    assert "run `neff-cache backend build`" in warning


@pytest.mark.soak
def test_who_imports_neuron_backend_first_hears_of_a_missing_library_too(
    run: Callable[..., Ran], packages: Path
) -> None:
    without_library(packages)
    ran = run("import neuron_backend\nprint('quiet')\nimport torch" + STATE)
    assert ran.out == ["quiet", "False False", "no device"]
    assert [warning.count("neff-cache backend build") for warning in ran.warnings] == [1]


@pytest.mark.soak
def test_warnings_made_errors_do_not_break_import_torch(run: Callable[..., Ran], packages: Path) -> None:
    without_library(packages)
    ran = run("import neuron_backend, torch\nprint('whole')", "-W", "error")
    assert ran.out == ["whole"]
    assert "neff-cache backend build" in ran.err


def test_without_jaxlib_torch_is_whole(run: Callable[..., Ran], tmp_path: Path, packages: Path) -> None:
    blocked = at_start(tmp_path / "site", "import sys; sys.modules['jaxlib'] = None\n")
    without_library(packages)
    ran = run("import torch" + STATE, first=(blocked,))
    assert ran.out[-1] == "no device"
    assert ran.err == ""
    (warning,) = run("import torch, neuron_backend", first=(blocked,)).warnings
    assert "jaxlib is not installed: run `pip install 'neff-cache[torch]'`" in warning


VENDOR = """
[torch.backends]
torch_neuronx = torch_neuronx:autoload
[torch_dynamo_backends]
neuron = torch_neuronx:backend
"""
TAKES_THE_SLOT = "import torch\ndef autoload(): torch.utils.rename_privateuse1_backend('neuron')\n"


@pytest.mark.parametrize("code", ["", TAKES_THE_SLOT], ids=["registers nothing", "takes the slot"])
@pytest.mark.parametrize("first", [True, False], ids=["before ours", "after ours"])
@pytest.mark.share(1)
def test_the_vendors_package_keeps_its_device(run: Callable[..., Ran], tmp_path: Path, first: bool, code: str) -> None:
    vendor = distribution(tmp_path / "vendor", "torch-neuronx", VENDOR, code)
    script = """
import torch, neuron_backend
from neuron_backend import _autoload
print(_autoload.state.registered, _autoload.state.reason)
print(torch._C._get_privateuse1_backend_name(), hasattr(torch.ops.neuron_device, "as_cpu"))
"""
    if first:
        ran = run(script, first=(vendor,))
    else:
        ran = run(script, first=(at_start(tmp_path / "site", f"import sys; sys.path.append({str(vendor)!r})\n"),))
    slot = "neuron" if code else "privateuseone"
    assert ran.out == ["False torch-neuronx is installed, and the device is its own", f"{slot} False"]
    assert ran.err == ""


@pytest.mark.soak
def test_another_owner_of_the_dynamo_backend_keeps_it(run: Callable[..., Ran], tmp_path: Path) -> None:
    other = distribution(tmp_path / "other", "other_neuron", "[torch_dynamo_backends]\nneuron = other_neuron:backend\n")
    ran = run("import torch" + STATE, first=(other,))
    assert ran.out[-1] == "no device"
    assert ran.err == ""


@pytest.mark.soak
def test_an_extension_that_holds_the_slot_is_left_alone(run: Callable[..., Ran], tmp_path: Path) -> None:
    code = "import torch\ndef autoload(): torch.utils.rename_privateuse1_backend('other')\n"
    holder = distribution(tmp_path / "holder", "holder", "[torch.backends]\nholder = holder:autoload\n", code)
    ran = run("import torch, neuron_backend\nprint(torch._C._get_privateuse1_backend_name())", first=(holder,))
    assert ran.out == ["other"]
    (warning,) = ran.warnings
    assert "another extension, 'other', holds the one slot" in warning


def test_a_client_py_beside_the_script_is_named_and_not_run(run: Callable[..., Ran], tmp_path: Path) -> None:
    shadow = tmp_path / "job" / "client.py"
    shadow.parent.mkdir()
    shadow.write_text("raise SystemExit('the wrong client was imported')\n")
    ran = run("import torch" + STATE)
    assert ran.out == ["False False", "no device"]
    assert ran.err == ""
    (warning,) = run("import torch, neuron_backend").warnings
    assert f"`import client` finds {shadow}" in warning
    assert "rename it" in warning


def test_a_damaged_library_gives_one_warning(run: Callable[..., Ran], packages: Path) -> None:
    folder = packages / "neuron_backend" / "_lib"
    (library,) = folder.iterdir()
    library.unlink()
    library.write_bytes(b"\x7fELF, or nearly")
    ran = run("import torch, neuron_backend" + STATE)
    assert ran.out[-1] == "no device"
    (warning,) = ran.warnings
    assert "its registration failed: OSError" in warning


@pytest.mark.soak
def test_settings_that_mean_nothing_give_one_warning(run: Callable[..., Ran]) -> None:
    ran = run("import torch, neuron_backend" + STATE, NEURON_BACKEND_DEVICES="65")
    assert ran.out[-1] == "no device"
    (warning,) = ran.warnings
    assert "NEURON_BACKEND_DEVICES='65' is no number of devices: expected 1 to 64" in warning


@pytest.mark.soak
def test_with_autoload_off_importing_the_package_registers_the_device(run: Callable[..., Ran]) -> None:
    ran = run("import torch" + STATE + "import neuron_backend" + STATE, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ran.out == ["False False", "no device", "False False", "device"]
    assert ran.err == ""


def test_the_package_itself_is_light(run: Callable[..., Ran]) -> None:
    ran = run(
        "import sys, neuron_backend\nprint([name for name in ('torch', 'jaxlib', 'numpy') if name in sys.modules])"
    )
    assert ran.out == ["[]"]
    ran = run("import neuron_backend\ntry: neuron_backend.nothing\nexcept AttributeError as error: print(error)")
    assert ran.out == ["module 'neuron_backend' has no attribute 'nothing'"]


def test_a_torch_that_the_backend_was_not_made_for_is_whole_and_said_in_one_sentence(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    other = at_start(
        tmp_path / "start",
        "import importlib.metadata as m\nv = m.version\nm.version = lambda n: '2.99.1' if n == 'torch' else v(n)\n",
    )
    ran = run("import torch" + STATE, first=(other,))
    assert (ran.out[-1], ran.err) == ("no device", "")
    ran = run("import torch, neuron_backend" + STATE, first=(other,))
    assert ran.out[-1] == "no device"
    (warning,) = ran.warnings
    assert "made for torch 2.13, 2.14, 2.15, and this is torch 2.99.1: install one of those" in warning


def test_a_python_without_the_interpreters_lock_is_refused_and_torch_is_whole(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    free = at_start(tmp_path / "start", "import sys\nsys._is_gil_enabled = lambda: False\n")
    ran = run("import torch, neuron_backend" + STATE, first=(free,))
    assert ran.out[-1] == "no device"
    (warning,) = ran.warnings
    assert "without the interpreter's lock" in warning


def test_a_name_that_this_torch_lacks_costs_one_family_of_operators_and_not_every_operator(
    run: Callable[..., Ran], packages: Path
) -> None:
    broken = packages / "neuron_backend" / "lowering" / "alignments.py"
    broken.write_text(
        broken.read_text().replace("import torch\n", "import torch\nfrom torch._decomp import of_another_version\n", 1)
    )
    ran = run(
        "import torch\n"
        "x = torch.tensor([-1.0, 2.0], device='neuron').relu()\n"
        "p = torch.randn(5, 1, 4).log_softmax(2)\n"
        "f = lambda p: torch.nn.functional.ctc_loss(p, torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2]))\n"
        "print(x.tolist(), torch.allclose(f(p.to('neuron')).cpu(), f(p)))\n"
    )
    assert ran.out == ["[0.0, 2.0] True"]
    (warning,) = [each for each in ran.warnings if "family" in each]
    assert "operators of the family 'alignments' run on the CPU" in warning
    assert "of_another_version" in warning
