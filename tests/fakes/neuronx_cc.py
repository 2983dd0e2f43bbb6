"""A program that behaves as ``neuronx-cc`` does, by its documentation and what its users report.

It reads nothing of this project: it writes its NEFF by itself, so that a wrong reading of the format shows. Beside the
program lie ``mode`` (one word, see `MODES`; absent: ``ok``) and ``calls.jsonl``, to which every call adds what it got.

Installed by `tests.fakes.programs.install_neuronx_cc`.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tarfile
import time
import uuid
from pathlib import Path

HERE = Path(sys.argv[0]).parent
VERSION = "2.27.5334.0+f702b353"

# Options and whether they take a value as the next word where none is joined with '='.
OPTIONS = {
    "--framework": True,
    "--target": True,
    "--lnc": True,
    "-lnc": True,
    "--logical-nc-config": True,
    "--optlevel": True,
    "--model-type": True,
    "--auto-cast": True,
    "--auto-cast-type": True,
    "--output": True,
    "-o": True,
    "--verbose": True,
    "--logfile": True,
    "--logfile-verbose": True,
    "--workdir": True,
    "--enable-fast-loading-neuron-binaries": False,
    "--internal-max-instruction-limit": True,
    "--dump-to": True,
}
ALIASES = {"-lnc": "--lnc", "--logical-nc-config": "--lnc", "-o": "--output"}
LOGICAL_CORES = {"trn1": "1", "inf2": "1", "trn2": "2", "trn3": "2"}
TARGETS = ("trn1", "inf2", "trn2", "trn3")


def fail(text, status=70):
    sys.stderr.write(f"{text}\n")
    sys.exit(status)


def parse(words):
    """Return (sub-command, input, options); the right-most of competing options wins, and may stand anywhere."""
    plain, options = [], {}
    words = iter(words)
    for word in words:
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-O[0-9]?", word):
            options["--optlevel"] = word[2:] or next(words, "")
        elif name in OPTIONS:
            options[ALIASES.get(name, name)] = value if equals else next(words, None) if OPTIONS[name] else ""
        elif word.startswith("-"):
            fail(f"neuronx-cc: error: [NCC_EARG001] unrecognized option {word}")
        else:
            plain.append(word)
    options.setdefault("--target", os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE"))
    options.setdefault("--lnc", os.environ.get("NEURON_LOGICAL_NC_CONFIG", LOGICAL_CORES.get(options["--target"])))
    if len(plain) != 2 or plain[0] != "compile":
        fail(f"neuronx-cc: error: [NCC_EARG002] expected compile and one input, got {plain}")
    return plain[1], options


def read_module(source):
    """Return the module's text; bytecode and HLO protobuf, which it cannot read, stand for a module with one input."""
    content = source.read_bytes()
    for config in re.findall(rb"e[wy][A-Za-z0-9+/]{38,}={0,2}", content):
        kernel = Path(json.loads(base64.b64decode(config))["klir_binary"]["binary"])
        if not kernel.exists() and not Path(kernel.parent.name, kernel.name).exists():
            fail(f"[NCC_EVRF059] kernel file {kernel}: No such file or directory")
    if any(byte < ord("\t") for byte in content[:64]) or content.startswith(b"ML\xefR"):
        return "func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {"
    return content.decode()


def tensors(text):
    """Return the byte sizes of inputs and outputs of the module's entry function."""
    header = re.search(r"func\.func(?: public)? @main\((.*?)\)(?: -> (.*?))? \{", text, re.DOTALL)
    if header is None:
        fail("neuronx-cc: error: [NCC_EHLO001] the input is no StableHLO module with a function main")

    def sizes(part):
        for shape, bits in re.findall(r"tensor<((?:[0-9]+x)*)[a-z]+([0-9]+)", part or ""):
            size = max(int(bits) // 8, 1)
            for extent in shape.split("x")[:-1]:
                size *= int(extent)
            yield size

    return list(sizes(header[1])), list(sizes(header[2]))


def neff(text, output, options, *, compressed=True, weights=0):
    """Return a NEFF: header with a fresh UUID and the path of the output, then the archive.

    ``weights`` bytes of noise make it as large as one wants.
    """
    inputs, outputs = tensors(text)
    listing = [f"input input{index} {size}" for index, size in enumerate(inputs)]
    listing += [f"output output{index} {size}" for index, size in enumerate(outputs)]
    members = {"hlo_stats.json": b"{}", "sg00/def.json": json.dumps(options).encode()}
    members["tensors.txt"] = ("FAKE-NEFF-TENSORS\n" + "\n".join(listing) + "\nEND\n").encode()
    if weights:
        members["sg00/weights.bin"] = os.urandom(weights)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    payload = gzip.compress(archive.getvalue()) if compressed else archive.getvalue()
    header = bytearray(1024)
    struct.pack_into("<QQQQQ", header, 0, 2, 1024, len(payload), 2, 0)
    struct.pack_into("<128s", header, 40, VERSION.encode())
    struct.pack_into("<I32s16s", header, 168, 1, hashlib.sha256(payload).digest(), uuid.uuid4().bytes)
    struct.pack_into("<256s", header, 220, output.encode())
    struct.pack_into("<I64sQI", header, 476, 1, b"\1", 0, int(options["--lnc"]))
    return bytes(header) + payload


def leave_grandchild():
    """Start a program that holds our output streams open and would outlive us."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    (HERE / "grandchild.pid").write_text(str(child.pid))


def compile_module(words, mode):
    source, options = parse(words)
    for name, allowed in (("--framework", ("XLA",)), ("--target", TARGETS), ("--lnc", ("1", "2"))):
        if options.get(name) not in allowed:
            fail(f"neuronx-cc: error: [NCC_EARG003] {name} is {options.get(name)!r}, expected one of {allowed}")
    if "--output" not in options:
        fail("neuronx-cc: error: [NCC_EARG004] no --output")
    text = read_module(Path(source))
    output = Path(options["--output"])
    data = neff(text, str(output), options, compressed=mode != "uncompressed", weights=300_000 * (mode == "large"))
    if mode in MODES:
        MODES[mode](output, data)
    else:
        output.write_bytes(data)
    sys.stdout.write("Compiler status PASS\n")


def slow(output, data):
    leave_grandchild()
    time.sleep(300)


def outlived(output, data):
    leave_grandchild()
    output.write_bytes(data)


def chatty(output, data):
    for _ in range(64):
        sys.stderr.write("w" * 16384 + "\n")
        sys.stdout.write("o" * 16384 + "\n")
    output.write_bytes(data)


def loud(output, data):
    """Say more than a pipe holds, on both streams, and fail."""
    chatty(output, data)
    fail("ERROR: [NCC_ESFH002] unsupported operator custom_call")


def killed(output, data):
    os.kill(os.getpid(), signal.SIGKILL)


def sleepy(output, data):
    """Take a moment, as real compiles do, so that others come meanwhile."""
    time.sleep(0.3)
    output.write_bytes(data)


def one_in_64(output, data):
    """Fail each 64th time for no reason that it says, as a race does."""
    with (HERE / "runs").open("ab") as runs:
        runs.write(b".")
        number = runs.tell()
    if number % 64 == 32:
        fail("Compiler status ERROR")
    output.write_bytes(data)


def fails_once(output, data):
    """Fail the first time for no reason that it says."""
    try:
        (HERE / "failed").touch(exist_ok=False)
    except FileExistsError:
        sleepy(output, data)
        return
    fail("Compiler status ERROR")


def working(output, data):
    """Leave what the real one leaves in the working directory, and a word about where that is."""
    Path("log-neuron-cc.txt").write_text("work\n")
    output.write_bytes(data)


MODES = {
    "slow": slow,
    "outlived": outlived,
    "chatty": chatty,
    "killed": killed,
    "loud": loud,
    "sleepy": sleepy,
    "one-in-64": one_in_64,
    "fails-once": fails_once,
    "working": working,
    "foreign": lambda output, data: output.write_bytes(b"a container of another format"),
    "diagnosis": lambda *_: fail("info\nERROR: [NCC_ESFH002] unsupported operator custom_call\ntraceback follows"),
    "memory": lambda *_: fail("[F137] neuronx-cc was forcibly killed - insufficient system memory"),
    "memory-diagnosis": lambda *_: fail("[NCC_EXTP004] walrus_driver: std::bad_alloc"),
    "missing-kernel": lambda *_: fail("[NCC_EVRF059] kernel file /tmp/x/kernel.klir: No such file or directory"),
    "disk-full": lambda *_: fail("OSError: [Errno 28] No space left on device"),
    "crash": lambda *_: fail("Traceback: AssertionError in a race", 1),
    "shell-killed": lambda *_: fail("Killed", 137),
    "no-file": lambda *_: Path("log-neuron-cc.txt").write_text("what the compiler tells its own log\n"),
    "empty": lambda output, data: output.write_bytes(b""),
    "short": lambda output, data: output.write_bytes(data[:-40]),
    "random": lambda output, data: output.write_bytes(os.urandom(5000)),
}


def main():
    try:
        mode = (HERE / "mode").read_text().strip()
    except FileNotFoundError:
        mode = "ok"
    call = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
        "pid": os.getpid(),
    }
    with (HERE / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(call) + "\n")
    if sys.argv[1:] == ["--version"]:
        if mode == "no-version":
            fail("command not licensed", 1)
        stream = sys.stderr if mode == "version-on-stderr" else sys.stdout
        stream.write(f"NeuronX Compiler version {VERSION}\n\nPython version 3.11.7\n")
        return
    if sys.argv[1:2] in (["--help"], ["list-operators"]):
        sys.stdout.write(f"what {sys.argv[1]} prints: {sys.stdin.read()}\n")
        sys.stderr.write("and its error output\n")
        sys.exit(3 if mode == "diagnosis" else 0)
    compile_module(sys.argv[1:], mode)


if __name__ == "__main__":
    main()
