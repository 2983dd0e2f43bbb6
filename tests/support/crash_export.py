"""Commands that kill themselves, by SIGKILL, before the n-th call that changes something on disk.

Run as ``python -m tests.support.crash_export``: it imports everything once, then forks a command for each JSON line on
its standard input (``{"words": […], "last": n, "names": file}``) and answers its exit status. The first command is run
once before that as a dry run, which imports what is only imported when it is needed. The product knows nothing of this.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from client.cli.main import app
from client.foreign import bucket_tree, pulling, pushing, writing  # noqa: F401 - imported before the fork

CALLS = ("open", "write", "fsync", "mkdir", "rename", "link", "unlink", "rmdir", "fchmod")


def _arm(last: int, names: Path) -> None:
    done: list[str] = []

    def before(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                done.append(name)
                if len(done) == last:
                    with names.open("a") as file:
                        file.write(f"{name}\n")
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        setattr(os, name, call)

    for name in CALLS:
        before(name)


def main() -> None:
    warm = False
    for line in sys.stdin:
        order = json.loads(line)
        if not warm:
            with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None):
                app([*order["words"], "--dry-run"])
            gc.freeze()
            warm = True
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            _arm(order["last"], Path(order["names"]))
            try:
                app(order["words"])
            except SystemExit as end:
                os._exit(int(end.code or 0))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer to the order


if __name__ == "__main__":
    main()
