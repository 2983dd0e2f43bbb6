"""NKI kernels that a module names: files written when it was traced, at a path that is another in every job.

A custom call ``AwsNeuronCustomNativeKernel`` carries a base64 JSON ``backend_config`` whose ``klir_binary.binary`` is
the absolute path of such a file. In what is hashed, the file's own SHA-256 stands in place of the path.
"""

from __future__ import annotations

import binascii
import json
import os
import re

from client.launcher.digest import sha256
from client.launcher.passing import NotShared

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from typing import Any

# Base64 of a JSON object that is worth a look: "{" followed by a quote, a blank or a new line.
_CONFIG = re.compile(rb"(?<![A-Za-z0-9+/])e[wy][A-Za-z0-9+/]{38,}={0,2}")


class Kernel:
    """A kernel's file: where it was found, its bytes, their SHA-256."""

    __slots__ = ("content", "path", "sha256")

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self.content = content
        self.sha256 = sha256(content)

    def is_unchanged(self) -> bool:
        """Whether the file still holds the bytes that were hashed."""
        try:
            with open(self.path, "rb") as file:  # noqa: PTH123 - pathlib costs a launcher 3 ms
                return file.read() == self.content
        except OSError:
            return False


class Kernels:
    """The kernels of one module, in the order in which it names them."""

    def __init__(self) -> None:
        self.found: list[Kernel] = []
        self.configurations = 0

    def replace(self, config: bytes) -> bytes:
        """Return one ``backend_config`` with the kernel's content in place of its path.

        Raises `NotShared` if it is not what it is expected to be, or names files that would not be in the key.
        """
        try:
            value = json.loads(binascii.a2b_base64(config, strict_mode=True))
        except (ValueError, RecursionError) as error:
            raise NotShared("an NKI kernel's configuration that cannot be read") from error
        self.configurations += 1
        binary = value.get("klir_binary") if isinstance(value, dict) else None
        path = binary.get("binary") if isinstance(binary, dict) else None
        if isinstance(binary, dict) and isinstance(path, str):
            kernel = self._read(path)
            self.found.append(kernel)
            binary["binary"] = f"sha256:{kernel.sha256}"
        if _names_a_file(value):
            raise NotShared("an NKI kernel's configuration that names other files")
        return json.dumps(value, separators=(",", ":")).encode()

    def replace_all(self, module: bytes) -> bytes:
        """Return a module in any encoding with each ``backend_config`` in it replaced; raises `NotShared`."""
        return _CONFIG.sub(lambda match: self.replace(match[0]), module)

    def _read(self, path: str) -> Kernel:
        """Read a kernel where the compiler looks: at its path, else below the working directory."""
        parent, name = os.path.split(path)
        for place in (path, os.path.join(os.path.basename(parent), name)):  # noqa: PTH118, PTH119
            try:
                with open(place, "rb") as file:  # noqa: PTH123
                    return Kernel(os.path.abspath(place), file.read())  # noqa: PTH100
            except OSError:
                continue
        raise NotShared("an NKI kernel's file that is not there")


def _names_a_file(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_names_a_file(one) for one in value.values())
    if isinstance(value, list):
        return any(_names_a_file(one) for one in value)
    return isinstance(value, str) and value.startswith("/") and os.path.exists(value)  # noqa: PTH110
