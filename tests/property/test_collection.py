"""Collection, against everything an entry can be: pinned, leased, young, used, old, large, dear."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_server.access import SERVER
from cache_server.collection_plan import Held, Reason, Victim, plan
from cache_server.collection_rules import (
    HALF_LIFE,
    NOTHING,
    SLACK,
    Amount,
    Candidate,
    Limit,
    PinSet,
    Policy,
    Rules,
    dropped_versions,
    score,
    weight,
)
from cache_server.database import usage
from cache_server.database.models import LeaseRow, LeaseState
from cache_server.service import Service
from cache_server.settings import Settings
from cache_server.stores.base import Blob
from tests.cache_server.harness import FakeClock, build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cache_server.address import Address

NOW = 1_800_000_000.0
GRACE = 600.0
VERSIONS = ("2.18.0", "2.20.1+aa", "2.21", "unknown")


class Case(NamedTuple):
    """What an entry is."""

    project: str
    size: int
    seconds: float
    age: float
    uses: tuple[float, ...]
    version: str
    pinned: bool
    labelled: bool
    leased: bool


ages = st.one_of(st.integers(1, 80).map(lambda number: number * 86_400.0), st.floats(0, 2 * GRACE))
rarely = st.sampled_from([False] * 9 + [True])
sizes = st.one_of(st.integers(0, 1000), st.just(10))
cases = st.builds(
    Case,
    project=st.sampled_from(["a", "b"]),
    size=sizes,
    seconds=st.one_of(st.just(0.0), st.floats(0.1, 10_000), st.just(5.0)),
    age=ages,
    uses=st.lists(ages, max_size=2).map(tuple),
    version=st.sampled_from(VERSIONS),
    pinned=rarely,
    labelled=rarely,
    leased=rarely,
)


def limits(held: Amount) -> st.SearchStrategy[Limit]:
    """Limits that what is held exceeds, just keeps to, or does not."""

    def bound(of: int) -> st.SearchStrategy[int | None]:
        return st.one_of(st.none(), st.integers(0, of + of // 4), st.just(of), st.just(max(of - 1, 0)))

    return st.builds(Limit, bound(held.stored_bytes), bound(held.entries))


rules = st.builds(
    Rules,
    st.one_of(st.none(), st.floats(GRACE, 8 * HALF_LIFE)),
    st.one_of(st.none(), st.integers(1, 3)),
    st.sampled_from([{}, {"cc": "2.20"}, {"other": "9.9"}]),
)


def candidate(number: int, case: Case) -> Candidate:
    return Candidate(
        case.project,
        "graph",
        f"{number:064x}",
        case.size,
        case.seconds,
        NOW - case.age,
        "kept" if case.labelled else "",
        "cc",
        case.version,
        len(case.uses),
        sum(weight(NOW - age) for age in case.uses),
        max((NOW - age for age in case.uses), default=0.0),
    )


def held_of(rows: list[Candidate]) -> list[Held]:
    groups = sorted({(row.project, row.compiler, row.version) for row in rows})
    return [
        Held(*group, total(row for row in rows if (row.project, row.compiler, row.version) == group))
        for group in groups
    ]


def total(rows: Iterator[Candidate] | list[Candidate]) -> Amount:
    found = list(rows)
    return Amount(sum(row.stored_bytes for row in found), len(found))


def spared(row: Candidate, case: Case) -> bool:
    return case.pinned or case.labelled or case.leased or row.touched > NOW - GRACE


@dataclass
class World:
    """Entries, and the policy over them."""

    rows: list[Candidate]
    cases: list[Case]
    policy: Policy
    incoming: dict[str, Amount] = field(default_factory=dict)

    def victims(self) -> list[Victim]:
        return plan(lambda: self.rows, held_of(self.rows), self.policy, NOW, self.incoming)

    def plan(self) -> list[Candidate]:
        return [victim.candidate for victim in self.victims()]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    found = draw(st.one_of(st.lists(cases, max_size=5), st.lists(cases, min_size=10, max_size=25)))
    rows = [candidate(number, case) for number, case in enumerate(found)]
    both = list(zip(rows, found, strict=True))
    pins = {
        project: PinSet(
            frozenset((row.kind, row.key) for row, case in both if case.pinned and case.project == project),
            frozenset({"kept"}),
        )
        for project in ("a", "b")
    }
    quotas = {
        project: draw(limits(total(row for row in rows if row.project == project)))
        for project in draw(st.sets(st.sampled_from(["a", "b"])))
    }
    return World(
        rows,
        found,
        Policy(
            server=draw(limits(total(rows))),
            quotas=quotas,
            common_rules=draw(st.one_of(st.just(Rules()), rules)),
            rules=draw(st.dictionaries(st.just("a"), rules)),
            pins=pins,
            leased=frozenset(row.named for row, case in both if case.leased),
            grace_seconds=GRACE,
        ),
        draw(st.dictionaries(st.sampled_from(["a", "b"]), st.builds(Amount, st.integers(0, 2000), st.integers(0, 2)))),
    )


@given(worlds())
@settings(max_examples=80, deadline=None)
def test_nothing_pinned_leased_or_in_use_is_ever_chosen(world: World) -> None:
    kept = {row.named for row, case in zip(world.rows, world.cases, strict=True) if spared(row, case)}
    chosen = [row.named for row in world.plan()]
    assert not kept & set(chosen)
    assert len(chosen) == len(set(chosen))


@given(worlds())
@settings(max_examples=80, deadline=None)
def test_what_is_left_is_within_every_limit_unless_only_protected_entries_are_left(world: World) -> None:
    gone = {row.named for row in world.plan()}
    left = [(row, case) for row, case in zip(world.rows, world.cases, strict=True) if row.named not in gone]
    for project, limit in world.policy.quotas.items():
        of_project = [(row, case) for row, case in left if row.project == project]
        if of_project or project in world.incoming:
            amount = total([row for row, _ in of_project]).plus(world.incoming.get(project, NOTHING))
            assert amount.fits(limit) or all(spared(row, case) for row, case in of_project)
    if left:
        amount = total([row for row, _ in left])
        assert amount.fits(world.policy.server) or all(spared(row, case) for row, case in left)


@given(worlds())
@settings(max_examples=80, deadline=None)
def test_the_lowest_scores_go_first_and_no_more_than_a_tenth_beyond_what_must(world: World) -> None:
    victims = world.victims()
    by_case = dict(zip((row.named for row in world.rows), world.cases, strict=True))
    left = [row for row in world.rows if row.named not in {victim.candidate.named for victim in victims}]
    for project, limit in world.policy.quotas.items():
        chosen = [v for v in victims if v.reason is Reason.QUOTA and v.candidate.project == project]
        assert [v.score for v in chosen] == sorted(v.score for v in chosen)
        ruled = [v for v in victims if v.reason in {Reason.UNUSED, Reason.COMPILER} and v.candidate.project == project]
        if not chosen:
            continue
        stays = [row for row in left if row.project == project and not spared(row, by_case[row.named])]
        stays += [v.candidate for v in victims if v.reason is Reason.LIMIT and v.candidate.project == project]
        assert all(score(row, NOW) >= chosen[-1].score for row in stays)
        # without the last of them the project would still be above the mark that collection goes down to
        before = total([row for row in world.rows if row.project == project])
        freed = total([v.candidate for v in [*ruled, *chosen[:-1]]])
        coming = world.incoming.get(project, NOTHING)
        rest = before.minus(freed)
        mark = Limit(
            None if limit.max_bytes is None else limit.max_bytes - limit.max_bytes // SLACK,
            None if limit.max_entries is None else limit.max_entries - limit.max_entries // SLACK,
        )
        assert not (rest.plus(coming).fits(limit) and rest.fits(mark))
    over = [v for v in victims if v.reason is Reason.LIMIT]
    assert [v.score for v in over] == sorted(v.score for v in over)


@given(worlds())
@settings(max_examples=40, deadline=None)
def test_the_order_in_which_entries_are_read_decides_nothing(world: World) -> None:
    turned = World(world.rows[::-1], world.cases[::-1], world.policy, world.incoming)
    assert sorted(world.plan()) == sorted(turned.plan())


@given(worlds())
@settings(max_examples=40, deadline=None)
def test_a_second_collection_finds_nothing_to_do(world: World) -> None:
    gone = {row.named for row in world.plan()}
    pairs = [(row, case) for row, case in zip(world.rows, world.cases, strict=True) if row.named not in gone]
    rest = World([row for row, _ in pairs], [case for _, case in pairs], world.policy, world.incoming)
    assert not rest.plan()


@given(st.lists(st.sampled_from(["1.2", "1.10", "1.9.9+x", "2.0", "none", "jaxlib-0.10.2"])), st.integers(1, 4))
def test_the_newest_releases_are_kept_by_number_not_by_text(versions: list[str], keep: int) -> None:
    order = ["jaxlib-0.10.2", "1.2", "1.9.9+x", "1.10", "2.0"]
    known = [version for version in order if version in versions]
    dropped = dropped_versions(Rules(keep_versions=keep), [("cc", version) for version in versions])
    assert dropped == {("cc", version) for version in known[:-keep]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("collection")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        opened = Service.open(
            Settings(data_dir=folder / "data", collect_grace_seconds=GRACE, access_log=False), clock=FakeClock(NOW)
        )
        yield opened
        opened.close()


_projects = (f"p{number}" for number in itertools.count())


def stored(service: Service, project: str, number: int, case: Case) -> Address:
    """Publish an entry, and make it as old, used and leased as the case says."""
    clock = service.database._clock
    assert isinstance(clock, FakeClock)
    built = build(f"{project}-{number}", bytes(case.size), log=None, project=project)
    address = built.address
    blob = Blob.of(address, built.entry.outputs[0])
    upload = service.store.begin_upload(blob)
    upload.write(built.stored["model.neff"])
    upload.commit(blob)
    clock.now = NOW - case.age
    service.publishing.publish(address, built.entry, by=SERVER)
    for age in case.uses:
        with service.database.transaction() as session:
            usage.add(session, {(project, "graph", address.key): 1}, NOW - age)
    clock.now = NOW
    if case.pinned:
        service.pins.pin_entry(address, by=SERVER)
    if case.leased:
        with service.database.transaction() as session:
            session.add(
                LeaseRow(
                    project=project,
                    kind="graph",
                    key=address.key,
                    generation=1,
                    state=LeaseState.HELD,
                    token_hash="",
                    holder="{}",
                    since=NOW,
                    expires=NOW + 30,
                )
            )
    return address


@given(st.data(), st.lists(cases, max_size=8))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_dry_run_says_what_the_real_run_removes_and_the_rest_is_served(
    service: Service, data: st.DataObject, found: list[Case]
) -> None:
    project = next(_projects)
    limit = data.draw(limits(Amount(sum(case.size for case in found), len(found))))
    addresses = [stored(service, project, number, case) for number, case in enumerate(found)]
    service.quotas.set(project, limit, by=SERVER)

    said = service.collection.dry_run(project)
    assert all(service.catalogue.indexed(address) is not None for address in addresses)
    done = service.collection.run(project)

    assert done.state == "done"
    assert done.removed == said.chosen
    gone = {victim.candidate.key for victim in done.removed}
    for address, case in zip(addresses, found, strict=True):
        touched = min([case.age, *case.uses])
        if case.pinned or touched < GRACE:
            assert address.key not in gone
        entry = service.catalogue.settle(address)
        assert (entry is None) == (address.key in gone)
        assert bool(service.store.files(address)) == (entry is not None)
    with service.database.reading() as connection:
        left = usage.amount(connection, project)
    movable = [
        case
        for address, case in zip(addresses, found, strict=True)
        if address.key not in gone and not case.pinned and not case.leased and min([case.age, *case.uses]) >= GRACE
    ]
    assert left.fits(limit) or not movable
