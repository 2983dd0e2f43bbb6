"""The machine of `test_lease_rules` on PostgreSQL: other locks, other isolation, the same rules."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import settings

from tests.property.test_lease_rules import LeaseMachine, TestLeaseMachine
from tests.support.postgres import postgres


class PostgresLeaseMachine(LeaseMachine):
    def __init__(self) -> None:
        self.stack = ExitStack()
        self.database = self.stack.enter_context(postgres().new_database())
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.stack.close()


TestPostgresLeaseMachine = pytest.mark.timeout(100)(PostgresLeaseMachine.TestCase)
TestPostgresLeaseMachine.settings = settings(TestLeaseMachine.settings, max_examples=4)
del TestLeaseMachine, LeaseMachine
