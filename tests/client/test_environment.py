from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client.environment import (
    Row,
    compiler_words,
    is_neuron_host,
    keyed_environment,
    positive_integer,
    resolve_logical_cores,
    resolve_target,
    row_of,
    scrubbed,
    unlisted_names,
    xla_flags_without_dumps,
)
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

# What the launchers, schedulers and images of a Trainium cluster set; {rank} differs by rank, {node} by node.
CLUSTER = {
    "PATH": "/opt/aws_neuronx_venv/bin:/usr/bin",
    "LD_LIBRARY_PATH": "/opt/aws/neuron/lib",
    "HOME": "/home/user{node}",
    "TMPDIR": "/scratch/job-{node}",
    "LANG": "de_DE.UTF-8",
    "PYTHONHASHSEED": "{rank}",
    "HOSTNAME": "ip-10-0-0-{node}",
    "RANK": "{rank}",
    "LOCAL_RANK": "{rank}",
    "WORLD_SIZE": "64",
    "MASTER_ADDR": "ip-10-0-0-1",
    "NEURON_CC_FLAGS": "--model-type transformer --cache_dir=/fsx/{rank}",
    "NEURON_LOGICAL_NC_CONFIG": "2",
    "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
    "NEURON_RT_VIRTUAL_CORE_SIZE": "2",
    "NEURON_RT_VISIBLE_CORES": "{rank}",
    "NEURON_RT_NUM_CORES": "1",
    "NEURON_RT_ROOT_COMM_ID": "10.0.0.{node}:41000",
    "NEURON_RT_INSPECT_OUTPUT_DIR": "/prof/{rank}",
    "NEURON_RT_LOG_LEVEL": "WARN",
    "NEURON_PJRT_PROCESS_INDEX": "{node}",
    "NEURON_PJRT_PROCESSES_NUM_DEVICES": "32,32",
    "NEURON_PJRT_WORLD_SIZE": "64",
    "NEURON_COMPILE_CACHE_URL": "/fsx/cache/{node}",
    "NEURON_COMPILATION_CACHE_DIR": "/x/{node}",
    "NEURON_LIBTORCH_REMOTE_CACHE": "/y/{node}",
    "NEURON_PARALLEL_COMPILE_MAX_RETRIES": "{rank}",
    "NEURON_EXTRACT_GRAPHS_ONLY": "{rank}",
    "NEURON_CACHE_URL": "http://cache-{node}:8080",
    "NEURON_CACHE_LABEL": "rank {rank}",
    "NEURON_BACKEND_COMPILER": "neuronx-cc",
    "NEURON_DUMP_PATH": "/dump/{rank}",
    "XLA_IR_DEBUG": "{rank}",
    "XLA_HLO_DEBUG": "{rank}",
    "XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_dump_to=/tmp/{rank} --xla_dump_hlo_as_text",
}


def environment(rank: int, node: int) -> dict[str, str]:
    return {name: value.format(rank=rank, node=node) for name, value in CLUSTER.items()}


RANKS = [environment(rank, node) for rank, node in ((0, 1), (1, 1), (32, 2), (33, 2))]


def test_ranks_on_two_nodes_start_the_compiler_in_one_environment() -> None:
    assert len({tuple(scrubbed(environ, home="/h", tmpdir="/t").items()) for environ in RANKS}) == 1


def test_ranks_on_two_nodes_key_one_environment_in_the_launcher() -> None:
    keyed = [keyed_environment(environ) for environ in RANKS]
    assert keyed == [{"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}] * 4
    assert [unlisted_names(environ) for environ in RANKS] == [[]] * 4


def test_a_compiler_is_started_with_rows_1_3_and_4_alone() -> None:
    assert scrubbed(RANKS[0], home="/h", tmpdir="/t", extra={"NPROC": "1"}) == {
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
        "NEURON_LOGICAL_NC_CONFIG": "2",
        "NEURON_RT_VIRTUAL_CORE_SIZE": "2",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=false",
        "PATH": "/opt/aws_neuronx_venv/bin:/usr/bin",
        "LD_LIBRARY_PATH": "/opt/aws/neuron/lib",
        "HOME": "/h",
        "TMPDIR": "/t",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "NPROC": "1",
    }


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NEURON_PLATFORM_TARGET_OVERRIDE", Row.RESOLVED),
        ("NEURON_LOGICAL_NC_CONFIG", Row.RESOLVED),
        ("NEURON_RT_VIRTUAL_CORE_SIZE", Row.RESOLVED),
        ("NEURON_CC_FLAGS", Row.WORDS),
        ("XLA_FLAGS", Row.ALWAYS),
        ("PATH", Row.PROCESS),
        ("NPROC", Row.PROCESS),
        ("NEURON_RT_NUM_CORES", Row.NEVER),
        ("NEURON_PJRT_PROCESS_INDEX", Row.NEVER),
        ("NEURON_CACHE_URL", Row.NEVER),
        ("NEURON_BACKEND_CPU_THREADS", Row.NEVER),
        ("NEURON_COMPILE_CACHE_URL", Row.NEVER),
        ("NEURON_COMPILATION_CACHE_MODE", Row.NEVER),
        ("NEURON_LIBTORCH_X", Row.NEVER),
        ("NEURON_PARALLEL_COMPILE_X", Row.NEVER),
        ("NEURON_EXTRACT_GRAPHS_ONLY", Row.NEVER),
        ("XLA_IR_DEBUG", Row.NEVER),
        ("XLA_HLO_DEBUG", Row.NEVER),
        ("NEURON_FRAMEWORK_DUMP", Row.NEVER),
        ("NKI_LOG_LEVEL", Row.NEVER),
        ("XLA_WORK_DIR", Row.NEVER),
        ("NEURON_X_CACHE_Y", Row.NEVER),
        ("NEURON_LOGICAL_SOMETHING", Row.OTHER),
        ("NEURON_DIRECT_ACCESS", Row.OTHER),
        ("NEURON_FUSE_SOFTMAX", Row.OTHER),
        ("XLA_DISABLE_FUNCTIONALIZATION", Row.OTHER),
        ("NKI_FRONTEND", Row.OTHER),
        ("CUDA_VISIBLE_DEVICES", None),
        ("MY_NEURON_SETTING", None),
    ],
)
def test_each_variable_stands_in_its_row(name: str, row: Row | None) -> None:
    assert row_of(name) is row


def test_a_variable_that_no_row_names_is_keyed_and_warned_of_by_the_launcher_and_kept_from_our_compilers() -> None:
    environ = {**RANKS[0], "NEURON_FUSE_SOFTMAX": "1", "NKI_FRONTEND": "beta", "SECRET": "x"}
    assert unlisted_names(environ) == ["NEURON_FUSE_SOFTMAX", "NKI_FRONTEND"]
    assert keyed_environment(environ) == {
        "NEURON_FUSE_SOFTMAX": "1",
        "NKI_FRONTEND": "beta",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=false",
    }
    assert scrubbed(environ, home="/h", tmpdir="/t") == scrubbed(RANKS[0], home="/h", tmpdir="/t")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("", ""),
        ("  --b=2   --a=1\n--b=3 ", "--b=2 --a=1 --b=3"),
        ("--xla_dump_to=/x --a", "--a"),
        ("--a --xla_hlo_dump_as_graph=true", "--a"),
        ("--xla_dump_to='/with space' --a=1", "--a=1"),
        ('--a="x y" --xla_dump_to="/q \\" r"', '--a="x y"'),
        ("--a=dump", "--a=dump"),
        ("--a='unclosed", "--a='unclosed"),
    ],
)
def test_only_words_that_ask_for_dumps_leave_xla_flags_and_order_stays(value: str, kept: str) -> None:
    assert xla_flags_without_dumps({"XLA_FLAGS": value}) == kept


def test_xla_flags_may_name_a_file_of_flags_whose_content_counts(tmp_path: Path) -> None:
    flags = tmp_path / "flags"
    flags.write_text("--a=1\n--xla_dump_to=/x\n--b=2\n")
    assert xla_flags_without_dumps({"XLA_FLAGS": str(flags)}) == "--a=1 --b=2"
    with pytest.raises(ConfigurationError, match="XLA_FLAGS='/no/such/file'"):
        xla_flags_without_dumps({"XLA_FLAGS": "/no/such/file"})


def test_words_of_the_wrappers_never_reach_the_compiler() -> None:
    value = "--no_cache -O1 --cache_dir=/c --log_level INFO --lnc 1 --cache_dir /d --retry_failed_compilation --lnc=2"
    assert compiler_words({"NEURON_CC_FLAGS": value}) == ["-O1", "--lnc", "1", "--lnc=2"]
    assert compiler_words({}) == []
    assert compiler_words({"NEURON_CC_FLAGS": "-O2 --cache_dir"}) == ["-O2"]


@pytest.fixture
def host(tmp_path: Path):
    def make(instance: str | None) -> Path:
        directory = tmp_path / "sys/class/dmi/id"
        directory.mkdir(parents=True, exist_ok=True)
        if instance is not None:
            (directory / "product_name").write_text(instance + "\n")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("instance", "target"),
    [
        ("trn1.32xlarge", "trn1"),
        ("trn1n.32xlarge", "trn1"),
        ("inf2.xlarge", "inf2"),
        ("trn2.48xlarge", "trn2"),
        ("trn2u.48xlarge", "trn2"),
        ("trn3.metal-48xl", "trn3"),
    ],
)
def test_the_target_is_read_from_the_instance(host, instance: str, target: str) -> None:
    assert resolve_target({}, root=host(instance)) == target
    assert is_neuron_host(host(instance))


@pytest.mark.parametrize("instance", [None, "", "p5.48xlarge", "inf1.xlarge", "trn2", "Standard PC (i440FX)"])
def test_a_host_without_the_chip_is_told_which_variable_to_set(host, instance: str | None) -> None:
    with pytest.raises(ConfigurationError, match="NEURON_PLATFORM_TARGET_OVERRIDE"):
        resolve_target({}, root=host(instance))
    assert not is_neuron_host(host(instance))


def test_the_override_wins_over_the_instance_and_must_be_a_name(host) -> None:
    assert resolve_target({"NEURON_PLATFORM_TARGET_OVERRIDE": " trn3 "}, root=host("trn1.2xlarge")) == "trn3"
    with pytest.raises(ConfigurationError, match="NEURON_PLATFORM_TARGET_OVERRIDE='--lnc 2'"):
        resolve_target({"NEURON_PLATFORM_TARGET_OVERRIDE": "--lnc 2"}, root=host("trn1.2xlarge"))


@pytest.mark.parametrize(
    ("environ", "target", "cores"),
    [
        ({}, "trn1", 1),
        ({}, "inf2", 1),
        ({}, "trn2", 2),
        ({}, "trn3", 2),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, "trn2", 1),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, "trn2", 1),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "1", "NEURON_LOGICAL_NC_CONFIG": "2"}, "trn2", 2),
        ({"NEURON_LOGICAL_NC_CONFIG": "4"}, "trn9", 4),
    ],
)
def test_logical_cores_come_from_the_setting_else_the_target(environ: dict[str, str], target: str, cores: int) -> None:
    assert resolve_logical_cores(environ, target) == cores


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_logical_cores_that_mean_nothing_are_named(value: str) -> None:
    with pytest.raises(ConfigurationError, match="NEURON_LOGICAL_NC_CONFIG"):
        resolve_logical_cores({"NEURON_LOGICAL_NC_CONFIG": value}, "trn2")


def test_an_unknown_target_has_no_default_of_logical_cores() -> None:
    with pytest.raises(ConfigurationError, match="NEURON_LOGICAL_NC_CONFIG"):
        resolve_logical_cores({}, "trn9")


def test_an_unset_number_takes_its_default() -> None:
    assert positive_integer({}, "X", default=3) == 3
    assert positive_integer({"X": " 7 "}, "X", default=3) == 7
