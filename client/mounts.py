"""Which paths lie on a file system whose calls may never return, told without a call on any such file system.

A network file system whose server is gone, or a FUSE daemon that stands still, keeps whoever asks it in the kernel for
ever. The kernel's own list of mounts says which those are, and the way to a path is looked at link by link as far as it
lies on disks of this machine. Imported by the launcher, whose hits have no time for more.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DISKS = frozenset(
    (
        *(
            "bcachefs",
            "btrfs",
            "erofs",
            "exfat",
            "ext2",
            "ext3",
            "ext4",
            "f2fs",
            "hugetlbfs",
            "iso9660",
            "jfs",
            "ntfs3",
        ),
        *("overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "udf", "vfat", "xfs", "zfs"),
        *("cgroup2", "devpts", "devtmpfs", "proc", "sysfs"),
    )
)
"""File systems of a disk or of memory of this machine."""
_MOST_LINKS = 40

_table: dict[str, str] = {}


def may_stall(path: str) -> bool:
    """Return whether calls on what is at ``path``, or would be, may never return. Itself it always does.

    By the mounts as they were when this process asked first. Where the kernel shows none, everything may.
    """
    try:
        table = _table or _read_table()
    except OSError:
        return True
    if table.get("/", "rootfs") not in DISKS:
        return True
    return any(kind not in DISKS for kind in _crossed(path, table))


def _crossed(path: str, table: Mapping[str, str]) -> Iterator[str]:
    """Yield the types of the file systems on the way to ``path``, each before anything on it is looked at."""
    at, links = "", 0
    rest = _parts(os.path.abspath(path))  # noqa: PTH100 - pathlib costs the launcher 3 ms
    while rest and links <= _MOST_LINKS:
        part = rest.pop()
        if part == "..":
            at = at.rpartition("/")[0]
            continue
        below = f"{at}/{part}"
        if below in table:
            yield table[below]
        try:
            target = os.readlink(below)  # noqa: PTH115 - as above
        except OSError:  # no link, or nothing at all
            at = below
            continue
        links += 1
        rest.extend(_parts(target))
        if target.startswith("/"):
            at = ""


def _parts(path: str) -> list[str]:
    """Return the parts of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _read_table() -> dict[str, str]:
    """Return the type of the file system at each mount point; a later mount hides an earlier one."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123 - as above
        for line in lines:
            words = line.split(" ")
            point = words[4]
            if "\\" in point:
                point = point.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
            _table[point] = words[words.index("-") + 1]
    return _table
