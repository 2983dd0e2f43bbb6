from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError, FormatError
from client.signing.keys import PrivateKey, PublicKey, check_name
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from pathlib import Path


def test_a_key_that_was_saved_signs_as_before(tmp_path: Path):
    key = PrivateKey.generate()
    key.save(tmp_path / "key")
    again = PrivateKey.load(tmp_path / "key")
    assert again.public == key.public
    assert key.public.verifies(b"message", again.sign(b"message"))
    assert not key.public.verifies(b"messagf", again.sign(b"message"))
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_key_is_never_written_over_another(tmp_path: Path):
    key = PrivateKey.generate()
    key.save(tmp_path / "key")
    with pytest.raises(ConfigurationError, match="there already"):
        PrivateKey.generate().save(tmp_path / "key")
    assert PrivateKey.load(tmp_path / "key").public == key.public


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o660])
def test_a_key_that_others_could_read_or_change_is_refused(tmp_path: Path, mode: int):
    PrivateKey.generate().save(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigurationError, match="others have access"):
        PrivateKey.load(tmp_path / "key")


@pytest.mark.parametrize("content", [b"", b"secret", b"-----BEGIN PRIVATE KEY-----\n!!\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key_is_named_and_not_shown(tmp_path: Path, content: bytes):
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="expected a PEM file") as raised:
        PrivateKey.load(path)
    assert not content or content.decode() not in str(raised.value)


def test_a_missing_key_is_one_sentence(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="No such file"):
        PrivateKey.load(tmp_path / "key")


def test_the_line_of_a_public_key_reads_back_in_one_way_only():
    public = PrivateKey.generate().public
    algorithm, text = str(public).split()
    assert PublicKey.parse(algorithm, text) == public
    for wrong in (text[:-1], f"{text}=", f" {text}", text.rstrip("="), "!" * 44, "A" * 42 + "B="):
        with pytest.raises(FormatError):
            PublicKey.parse(algorithm, wrong)
    with pytest.raises(FormatError, match="expected ed25519"):
        PublicKey.parse("rsa", text)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 65, "a\n", "ä"])
def test_names_that_would_break_a_list_are_refused(name: str):
    with pytest.raises(FormatError):
        check_name(name)


def test_the_id_is_the_documented_one():
    # docs/trust.md: the first 16 digits of SHA-256 of the raw key; RFC 8032 test vector 1
    public = PublicKey(bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"))
    assert public.key_id == "21fe31dfa154a261"
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert public.verifies(b"", signature)


def test_a_job_that_signs_and_checks_nothing_never_imports_cryptography():
    program = "import sys, client.cache, client.cli.main, client.signing.job; print('cryptography' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert ended.stdout.strip() == "False"


def test_without_cryptography_one_sentence_says_what_to_install():
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from client.signing.keys import PrivateKey, PublicKey\n"
        "for call in (PrivateKey.generate, lambda: PublicKey(bytes(32)).verifies(b'', bytes(64))):\n"
        "    try: call()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == 2
    assert all(each.startswith("ConfigurationError") and "neff-cache[signing]" in each for each in lines)
