from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.launching import Host, new_host

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return new_host(tmp_path)
