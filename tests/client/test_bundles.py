from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from client import bundles, entry_stream
from client.bundles import BundleError, Manifest
from client.errors import ConfigurationError, FormatError
from client.pulling import SILENT
from client.sources import DirectSource
from client.transports import open_transport
from tests.client.programs import compiled, document, entry_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from client.wire import Entry


def _pack(path: Path, plain: bytes) -> Path:
    path.write_bytes(zstandard.compress(plain))
    return path


def _member(name: str, content: bytes, **changes: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in changes.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.USTAR_FORMAT) + content + entry_stream.padding(len(content))


class _Made:
    """A bundle of one entry, in parts that a test may change."""

    def __init__(self) -> None:
        program = compiled()
        self.entry = entry_of(document(), program.outputs)
        self.outputs = dict(program.outputs)
        self.manifest = Manifest.of([self.entry]).to_json()
        self.name = str(entry_stream.name_of(self.entry))

    def members(self) -> list[bytes]:
        return [
            _member("manifest.json", json.dumps(self.manifest).encode()),
            _member(self.name, entry_stream.entry_bytes(self.entry)),
            *(
                _member(str(entry_stream.name_of(self.entry, output)), self.outputs[output.name])
                for output in self.entry.outputs
            ),
        ]


def _refused(path: Path, match: str, **options: Any) -> None:
    with pytest.raises(BundleError, match=match):
        bundles.verify(path, progress=SILENT, **options)


def test_a_bundle_made_by_hand_is_sound(tmp_path: Path) -> None:
    made = _Made()
    path = _pack(tmp_path / "bundle", b"".join(made.members()) + entry_stream.END)
    assert bundles.verify(path, progress=SILENT).entries == 1
    ((entry, outputs),) = bundles.read(path, progress=SILENT)
    assert (entry, outputs) == (made.entry, made.outputs)


def test_what_we_write_every_tar_can_list(tmp_path: Path) -> None:
    made = _Made()
    plain = b"".join(made.members()) + entry_stream.END
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        assert [info.name for info in tar] == ["manifest.json", *(part["name"] for part in made.manifest["members"])]


_PATHS = [
    "../../etc/passwd",
    "/etc/passwd",
    "default/graph/../../x",
    "default/graph",
    "a/b/c/d/e",
    "default/graph/x.json",
]


@pytest.mark.parametrize("name", _PATHS)
def test_no_member_leads_out_of_its_place(tmp_path: Path, name: str) -> None:
    made = _Made()
    made.manifest["members"][0]["name"] = name
    made.name = name
    _refused(_pack(tmp_path / "bundle", b"".join(made.members()) + entry_stream.END), "member")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"x", b"L"]
)
def test_links_folders_devices_and_extensions_are_refused(tmp_path: Path, kind: bytes) -> None:
    made = _Made()
    members = made.members()
    members[1] = _member(made.name, b"", type=kind, linkname="/etc/passwd")
    _refused(_pack(tmp_path / "bundle", b"".join(members) + entry_stream.END), "no plain file")


def test_a_bomb_is_stopped_at_what_its_manifest_announced(tmp_path: Path) -> None:
    made = _Made()
    large = bytes(512 << 20)
    main = made.entry.outputs[0]
    head = entry_stream.head(str(entry_stream.name_of(made.entry, main)), len(large))
    path = tmp_path / "bundle"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as stream:
        for piece in (*made.members()[:2], head):
            stream.write(piece)
        for _ in range(64):
            stream.write(bytes(8 << 20))
    assert path.stat().st_size < 200_000
    _refused(path, f"in place of {main.size}")


def test_a_bundle_that_announces_a_bomb_is_refused_unread(tmp_path: Path) -> None:
    made = _Made()
    made.manifest["members"][1]["size"] = 1 << 60
    made.manifest["size"] = sum(member["size"] for member in made.manifest["members"])
    _refused(_pack(tmp_path / "bundle", made.members()[0]), "announces")


def test_a_million_members_in_a_manifest_are_bounded_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as stream:
        stream.write(entry_stream.head("manifest.json", bundles.MAX_MANIFEST + 1))
    _refused(path, "more than the")


def _drop_last(members: list[bytes]) -> list[bytes]:
    return members[:-1]


def _swap(members: list[bytes]) -> list[bytes]:
    return [members[0], members[1], members[3], members[2]]


def _double(members: list[bytes]) -> list[bytes]:
    return [*members, members[-1]]


@pytest.mark.parametrize("change", [_drop_last, _swap, _double])
def test_a_member_too_few_too_many_or_out_of_place_is_refused(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    _refused(_pack(tmp_path / "bundle", b"".join(change(_Made().members())) + entry_stream.END), "is refused")


def test_a_bundle_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    made = _Made()
    plain = b"".join(made.members()) + entry_stream.END
    for size in range(0, len(plain), 997):
        _refused(_pack(tmp_path / "bundle", plain[:size]), "is refused")
    packed = zstandard.compress(plain)
    path = tmp_path / "cut"
    for size in range(0, len(packed) - 16, 61):
        path.write_bytes(packed[:size])
        _refused(path, "is refused")


def test_bytes_after_the_end_are_refused(tmp_path: Path) -> None:
    plain = b"".join(_Made().members()) + entry_stream.END
    _refused(_pack(tmp_path / "bundle", plain + b"more"), "goes on")
    path = tmp_path / "appended"
    path.write_bytes(zstandard.compress(plain) + zstandard.compress(b"more"))
    _refused(path, "goes on")
    path.write_bytes(zstandard.compress(plain) + b"more")
    _refused(path, "is refused")


def _wrong_output(made: _Made) -> None:
    name = made.entry.outputs[0].name
    made.outputs[name] = bytes(len(made.outputs[name]))


def _wrong_digest(made: _Made) -> None:
    made.manifest["members"][1]["sha256"] = "0" * 64


def _wrong_total(made: _Made) -> None:
    made.manifest["size"] += 1


def _wrong_count(made: _Made) -> None:
    made.manifest["entries"] = 7


def _wrong_format(made: _Made) -> None:
    made.manifest["schema"] = 2


def _twice(made: _Made) -> None:
    made.manifest["members"].append(made.manifest["members"][0])


def _no_members(made: _Made) -> None:
    del made.manifest["members"]


@pytest.mark.parametrize(
    "change", [_wrong_output, _wrong_digest, _wrong_total, _wrong_count, _wrong_format, _twice, _no_members]
)
def test_a_bundle_that_contradicts_itself_is_refused(tmp_path: Path, change: Callable[[_Made], None]) -> None:
    made = _Made()
    change(made)
    _refused(_pack(tmp_path / "bundle", b"".join(made.members()) + entry_stream.END), "is refused")


def test_an_entry_under_a_key_that_is_not_its_documents_is_refused(tmp_path: Path) -> None:
    made = _Made()
    wrong = {**entry_of(document("a"), made.outputs).to_json(), "key_document": document("b").to_json()}
    made.entry = type(made.entry).from_json(wrong)
    made.name = str(entry_stream.name_of(made.entry))
    made.manifest = Manifest.of([made.entry]).to_json()
    _refused(_pack(tmp_path / "bundle", b"".join(made.members()) + entry_stream.END), "no entry")


def test_any_other_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    for content in (b"", b"hello", zstandard.compress(b"hello"), zstandard.compress(bytes(1 << 20))):
        path.write_bytes(content)
        _refused(path, str(path))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        bundles.verify(tmp_path / "nothing", progress=SILENT)


def _shared(tmp_path: Path, *names: str) -> tuple[DirectSource, list[Entry]]:
    transport = open_transport(str(tmp_path / "shared"), "default", {})
    entries = []
    for name in names:
        program = compiled(size=len(name) * 3000)
        entries.append(transport.publish(entry_of(document(name), program.outputs), program.outputs, None).entry)
    return DirectSource(transport), entries


def test_a_bundle_is_the_same_whatever_order_its_entries_came_in(tmp_path: Path) -> None:
    source, entries = _shared(tmp_path, *(f"program {number}" for number in range(70)))
    bundles.export(tmp_path / "one", [(source, entries)], SILENT)
    bundles.export(tmp_path / "two", [(source, entries[::-1])], SILENT)
    digests = {hashlib.sha256((tmp_path / name).read_bytes()).digest() for name in ("one", "two")}
    assert len(digests) == 1
    found = {entry.key for entry, _ in bundles.read(tmp_path / "one", progress=SILENT)}
    assert found == {entry.key for entry in entries}


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    source, entries = _shared(tmp_path, "a", "b")
    for path in (tmp_path / "shared").rglob(entries[1].outputs[0].sha256):
        path.unlink()
    with pytest.raises(FormatError, match="withdrawn"):
        bundles.export(tmp_path / "bundle", [(source, entries)], SILENT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shared"]


def test_a_bundle_goes_only_where_it_can_be_written(tmp_path: Path) -> None:
    source, entries = _shared(tmp_path, "a")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        bundles.export(tmp_path / "no" / "such" / "folder", [(source, entries)], SILENT)
