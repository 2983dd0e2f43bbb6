"""``neff-cache why``: which part of a key made it miss."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from client.cli.group import Exit
from client.cli.looking import read_document
from client.cli.opening import Here, Located, locate
from client.cli.options import JsonFlag, Project, Url
from client.cli.output import print_json, print_text, say
from client.cli.planning import open_plan
from client.errors import ConfigurationError
from client.explaining import MODULE, Difference, Json, Near, shown
from client.key import key_of
from client.modules import MODULE_OUTPUT, CannotRenderError, module_difference
from client.names import check_kind
from client.nearby import Nearby
from client.plans import Wanted, by_project
from client.sources import NodeSource

MAX_EXPLAINED = 50
"""Entries of a plan that are explained: what a run's keys have in common shows in that many."""


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(why)


@dataclass
class _Explanation:
    """What is known of one key: where it is stored, and what is near to it."""

    key: str
    kind: str
    stored_in: list[str]
    searched: str = ""
    nearest: list[Near] = field(default_factory=list)
    module: list[str] = field(default_factory=list)
    module_note: str = ""

    def to_json(self) -> Json:
        return {
            "key": self.key,
            "kind": self.kind,
            "stored_in": self.stored_in,
            "searched": self.searched,
            "nearest": [near.to_json() for near in self.nearest],
            "module_difference": self.module,
            "module_note": self.module_note,
        }


def why(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY", help="A key that was compiled although an entry was expected, as summaries list them."
        ),
    ] = None,
    *,
    plan: Annotated[
        str | None, typer.Option("--plan", help="A run that missed: what sets its entries apart from all others.")
    ] = None,
    document: Annotated[
        Path | None, typer.Option("--document", help="File with a key document, stored or not.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="How many near entries to name.", min=1, max=20)] = 1,
    url: Url = None,
    project: Project = None,
    as_json: JsonFlag = False,
) -> None:
    """Name the part of a key that differs from the nearest stored entry of any host.

    Compares flag by flag and their order, compiler version, target, kernels and environment. Where only the program
    differs and both modules are stored, their texts are compared (needs jaxlib). Ends with 1 if there is nothing to
    compare with.
    """
    here = Here.open(url, project)
    if sum(given is not None for given in (key, plan, document)) != 1:
        raise ConfigurationError("say what is to be explained: a KEY, or --plan PLAN, or --document FILE")
    with ExitStack() as stack:
        nearby = _nearby(here, stack)
        if plan is not None:
            _explain_plan(here, nearby, open_plan(here, plan), as_json=as_json)
            return
        explanation = _explain(here, nearby, key, document, limit)
    if as_json:
        print_json(explanation.to_json())
    else:
        _print(explanation)
    if not explanation.nearest:
        say("nothing is stored that it could be compared with")
        raise typer.Exit(Exit.NO)


def _nearby(here: Here, stack: ExitStack) -> Nearby:
    return Nearby(
        calls=stack.enter_context(here.calls()),
        folder=here.shared_folder,
        tier=None if here.settings.node_dir is None else here.tier(),
        project=here.settings.project,
    )


def _explain(here: Here, nearby: Nearby, key: str | None, document: Path | None, limit: int) -> _Explanation:
    if document is not None:
        asked = read_document(document)
        key, kind = key_of(asked), str(check_kind(asked["kind"]))
        found = locate(here, f"{kind}/{key}")
    else:
        found = locate(here, str(key))
        asked = next((each.entry.key_document for each in found if each.entry.key_document is not None), {})
        if not asked:
            raise ConfigurationError(
                f"the key document of {key} is not known here: no entry of that key is stored. Look on the node that "
                "compiled it, or give --document FILE"
            )
        key, kind = found[0].entry.key, str(found[0].entry.kind)
    where, near = nearby.nearest(asked, without={key}, limit=limit)
    explanation = _Explanation(key, kind, [each.where for each in found], where, near)
    if near and any(difference.path == MODULE for difference in near[0].differences):
        _compare_modules(here, found, near[0], explanation)
    return explanation


def _compare_modules(here: Here, found: Sequence[Located], near: Near, explanation: _Explanation) -> None:
    """Add the difference of both programs' texts, or say why there is none."""
    shared = next((each.entry for each in found if each.is_shared), None)
    if shared is None or here.settings.url is None:
        explanation.module_note = "the programs cannot be compared: modules are kept in the shared cache alone"
        return
    with here.transport() as transport:
        other = transport.entry(check_kind(near.kind), near.key)
        stored = None if other is None else transport.read_output(other, MODULE_OUTPUT)
        asked = transport.read_output(shared, MODULE_OUTPUT)
    if stored is None or asked is None:
        explanation.module_note = f"the programs cannot be compared: {MODULE_OUTPUT} is not stored for both"
        return
    try:
        explanation.module = module_difference(stored, asked)
    except CannotRenderError as error:
        explanation.module_note = str(error)


def _print(explanation: _Explanation) -> None:
    name = f"{explanation.kind}/{explanation.key}"
    stored = f"stored in {'; '.join(explanation.stored_in)}" if explanation.stored_in else "not stored"
    print_text(f"{name}: {stored}")
    for near in explanation.nearest:
        origin = ", ".join(part for part in (near.host, near.label, near.created) if part)
        print_text(f"nearest in {explanation.searched}: {near.kind}/{near.key} ({origin})")
        for difference in near.differences:
            _print_difference(difference)
    if explanation.module:
        print_text("  the programs differ in:")
        for line in explanation.module:
            print_text(f"    {line}")
    elif explanation.module_note:
        print_text(f"  {explanation.module_note}")


def _print_difference(difference: Difference) -> None:
    print_text(f"  {difference.path}" + (f": {difference.meaning}" if difference.meaning else ""))
    print_text(f"    stored  {shown(difference.stored)}")
    print_text(f"    asked   {shown(difference.asked)}")


def _explain_plan(here: Here, nearby: Nearby, plan: Sequence[Wanted], *, as_json: bool) -> None:
    """Say what a run's entries have in common that other runs' have not, commonest difference first."""
    documents, unknown = _documents(here, plan)
    without = {wanted.key for wanted in plan}
    counts: Counter[tuple[tuple[str, str, str], ...]] = Counter()
    examples: dict[tuple[tuple[str, str, str], ...], tuple[str, Near]] = {}
    alone = []
    step = max(1, len(documents) // MAX_EXPLAINED)
    sample = list(documents.items())[::step][:MAX_EXPLAINED]
    for key, document in sample:
        _, near = nearby.nearest(document, without=without, limit=1)
        if not near:
            alone.append(key)
            continue
        group = tuple(_signature(difference) for difference in near[0].differences)
        counts[group] += 1
        examples.setdefault(group, (key, near[0]))
    groups = [(count, *examples[group]) for group, count in counts.most_common()]
    if as_json:
        found = [{"entries": count, "example": key, "nearest": other.to_json()} for count, key, other in groups]
        print_json({"explained": len(sample), "groups": found, "alone": alone, "unknown": unknown})
    else:
        for count, key, other in groups:
            print_text(f"{count} of {len(sample)} entries differ from the nearest of other runs by (here {key[:12]}):")
            for difference in other.differences:
                _print_difference(difference)
        if alone:
            print_text(f"{len(alone)} have nothing to be compared with")
        if unknown:
            print_text(f"{len(unknown)} are stored nowhere, so that their key documents are not known")
    if not groups:
        say("nothing is stored that the plan could be compared with")
        raise typer.Exit(Exit.NO)


def _documents(here: Here, plan: Sequence[Wanted]) -> tuple[dict[str, Json], list[str]]:
    """Return the key documents of a plan's entries by key, and the keys whose document is not known."""
    found: dict[str, Json] = {}
    for name, group in by_project(plan).items():
        if here.settings.url is not None:
            with here.source(name) as source:
                for begin in range(0, len(group), source.batch):
                    for entry in source.find(group[begin : begin + source.batch]):
                        found.setdefault(entry.key, entry.key_document or {})
        if here.settings.node_dir is not None:
            left = [wanted for wanted in group if wanted.key not in found]
            for entry in NodeSource(here.tier(name)).find(left):
                found.setdefault(entry.key, entry.key_document or {})
    known = {key: document for key, document in found.items() if document}
    return known, [str(wanted) for wanted in plan if wanted.key not in known]


def _signature(difference: Difference) -> tuple[str, str, str]:
    """Return what makes two entries' differences the same; each program differs in its own way."""
    values: tuple[Any, Any] = ("", "") if difference.path == MODULE else (difference.stored, difference.asked)
    return difference.path, repr(values[0]), repr(values[1])
