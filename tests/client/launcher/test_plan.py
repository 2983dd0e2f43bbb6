"""The key: the client's own, and all that a compiler sees is in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import key as client_key
from client.explaining import differences, shown
from client.launcher import command, plan
from client.launcher.passing import NotShared

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.launching import Host

OTHERS = {"NKI_FRONTEND": "beta2", "NEURON_FUSE_SOFTMAX": "1"}
WORDS = "--framework XLA -O2 -o o"
plain = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


@given(
    st.lists(plain, max_size=4),
    st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=8), plain, max_size=4),
    st.integers(1, 64),
)
def test_the_key_is_the_one_that_everybody_else_computes(flags: list[str], env: dict[str, str], cores: int) -> None:
    document = {"schema": 1, "kind": "cc", "flags": flags, "logical_cores": cores, "extra": {"env": env}}
    assert plan.key_of(document) == client_key.key_of(document)


def test_words_that_are_no_text_are_not_shared() -> None:
    with pytest.raises(NotShared):
        plan.key_of({"flags": ["\udcff"], "extra": {}})
    with pytest.raises(NotShared):
        plan.key_of({"flags": [], "extra": {"env": {"NKI_\u00fc": "1"}}})


@pytest.fixture
def document(host: Host, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(host.work)

    def describe(more: str = "", **environ: str) -> Any:
        request = command.read(f"compile in.mlir {WORDS} {more}".split())
        return plan.Plan(request, str(host.real.program), {"PATH": "/bin", **environ}, None).document

    return describe


@pytest.mark.parametrize(
    ("more", "environ", "target", "cores", "env"),
    [
        ("--target trn2", {}, "trn2", 2, {}),
        ("--target trn1", {}, "trn1", 1, {}),
        ("--target trn1 --target=trn2 --lnc 1", {}, "trn2", 1, {}),
        ("", {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"}, "trn2", 2, {}),
        ("--target trn2", {"NEURON_LOGICAL_NC_CONFIG": "1"}, "trn2", 1, {}),
        ("--target trn2", {"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, "trn2", 1, {}),
        # who disagrees with the command line is kept in the key
        ("--target trn2 --lnc 2", {"NEURON_LOGICAL_NC_CONFIG": "1"}, "trn2", 2, {"NEURON_LOGICAL_NC_CONFIG": "1"}),
        (
            "--target trn2",
            {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"},
            "trn2",
            2,
            {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"},
        ),
        ("--target trn2", {"XLA_FLAGS": "--a --xla_dump_to=/x"}, "trn2", 2, {"XLA_FLAGS": "--a"}),
        (
            "--target trn2",
            OTHERS,
            "trn2",
            2,
            OTHERS,
        ),
        ("--target trn2", {"NEURON_RT_LOG_LEVEL": "x", "NEURON_CACHE_URL": "/x", "HOME": "/x"}, "trn2", 2, {}),
        ("--target trn2", {"NEURON_CC_FLAGS": "--never-on-the-line"}, "trn2", 2, {}),
    ],
)
def test_target_cores_and_environment_are_those_the_compiler_would_see(
    document: Any, more: str, environ: dict[str, str], target: str, cores: int, env: dict[str, str]
) -> None:
    found = document(more, **environ)
    assert (found["target"], found["logical_cores"]) == (target, cores)
    assert found["extra"] == ({"env": env} if env else {})
    assert found["compiler"] == {"name": "neuronx-cc", "version": "2.27.5334.0+f702b353"}
    assert found["ir"]["format"] == "mlir-text"


@pytest.mark.parametrize("name", ["NEURON_HUB_TOKEN", "XLA_SECRET", "NKI_PASS", "NEURON_WANDB"])
def test_a_value_that_may_be_a_secret_is_in_the_key_and_not_to_be_read(document: Any, name: str) -> None:
    found = document("--target trn2", **{name: "hunter2-and-more"})
    assert "hunter2" not in str(found)
    ((kept, value),) = found["extra"]["env"].items()
    assert kept == name
    assert re.fullmatch("sha256:[0-9a-f]{64}", value)
    # it makes a difference, and `why` says no more than that
    other = document("--target trn2", **{name: "hunter3"})
    (difference,) = differences(found, other)
    assert difference.path == f"extra.env.{name}"
    assert shown(difference.stored).startswith("differs")
    # a name is no salt that two variables share
    assert document("--target trn2", **{f"{name}_2": "hunter2-and-more"})["extra"]["env"][f"{name}_2"] != value


def test_two_clusters_whose_services_have_other_addresses_share_their_entries(document: Any) -> None:
    made_up = {
        "NEURON_MONITOR_SERVICE_HOST": "10.0.0.7",
        "NEURON_MONITOR_SERVICE_PORT": "8000",
        "NEURON_MONITOR_SERVICE_PORT_METRICS": "8000",
        "NEURON_MONITOR_PORT": "tcp://10.0.0.7:8000",
        "NEURON_MONITOR_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "NEURON_MONITOR_PORT_8000_TCP_PROTO": "tcp",
        "NEURON_MONITOR_PORT_8000_TCP_PORT": "8000",
        "NEURON_MONITOR_PORT_8000_TCP_ADDR": "10.0.0.7",
        "NEURON_MONITOR_NAME": "/job/neuron-monitor",
        "NEURON_MONITOR_ENV_VERSION": "2",
        "XLA_SERVER_SERVICE_HOST": "fd00::7",
    }
    assert document("--target trn2", **made_up) == document("--target trn2")
    # what only looks like it is somebody's setting
    assert document("--target trn2", NEURON_MODEL_NAME="llama")["extra"]
    assert document("--target trn2", NEURON_SOME_PORT="8000")["extra"]


@pytest.mark.parametrize(
    ("more", "environ"),
    [
        ("", {}),
        ("--target trn9", {}),
        ("--target trn2 --lnc two", {}),
        ("--target trn2", {"NEURON_LOGICAL_NC_CONFIG": "x"}),
        ("--target trn2", {"XLA_FLAGS": "/no/such/file"}),
    ],
)
def test_what_cannot_be_resolved_is_left_to_the_compiler(document: Any, more: str, environ: dict[str, str]) -> None:
    with pytest.raises(NotShared):
        document(more, **environ)


def test_a_compiler_that_says_no_version_is_not_shared(document: Any, host: Host) -> None:
    host.real.set_mode("no-version")
    with pytest.raises(NotShared):
        document("--target trn2")


def test_modules_that_differ_only_in_where_they_were_traced_make_one_key(document: Any, host: Host) -> None:
    one = document("--target trn2")
    source: Path = host.work / "in.mlir"
    source.write_text(source.read_text().replace("\n    return", ' loc("/home/me/a.py":3:4)\n    return'))
    assert document("--target trn2") == one
    source.write_text(source.read_text().replace("stablehlo.add", "stablehlo.multiply"))
    assert document("--target trn2") != one
