"""Options that several commands share."""

from typing import Annotated

import typer

from client.names import Kind
from client.pulling import JOBS

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Url = Annotated[
    str | None,
    typer.Option("--url", help="Address of the shared cache, in place of NEURON_CACHE_URL.", metavar="URL"),
]
Project = Annotated[
    str | None, typer.Option("--project", help="Project, in place of NEURON_CACHE_PROJECT.", metavar="NAME")
]
Kinds = Annotated[
    list[Kind] | None, typer.Option("--kind", help="Only entries of this kind; may be given several times.")
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Requests on their way at once.", min=1, max=64)]
Key = Annotated[
    str, typer.Argument(metavar="KEY", help="A key, or its first 6 digits or more; KIND/ may stand before it.")
]
DEFAULT_JOBS = JOBS
