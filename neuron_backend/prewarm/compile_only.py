"""``neuron_backend.compile_only()``: everything that a job with these inputs will ask for, compiled and published."""

from __future__ import annotations

import os
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from client.cache import Cache
from client.environment import schedulable_cpus
from client.errors import ConfigurationError
from client.names import Kind
from client.pulling import SILENT, missing
from client.settings import Settings
from client.sources import open_source
from client.transports import open_transport
from neuron_backend import _autoload
from neuron_backend.compilers import get_compiler
from neuron_backend.prewarm import capture
from neuron_backend.prewarm.recorder import Recorder
from neuron_backend.prewarm.report import Report
from neuron_backend.torch_private import dynamo_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from client.pulling import Progress
    from neuron_backend.prewarm.report import Bucket, Name

_UPLOAD_SECONDS = 3600.0
"""A prewarm is done when others find what it made: it waits for each upload."""


def compile_only(
    target: Callable[..., Any],
    buckets: Iterable[Sequence[Any]],
    *,
    backward: bool = False,
    as_is: bool = False,
    labels: Sequence[str] | None = None,
    compile: bool = True,  # noqa: A002 - says best what it is
    jobs: int | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Progress = SILENT,
) -> Report:
    """Compile and publish all programs that ``target`` will ask for with the inputs of ``buckets``; run none of them.

    ``target`` is a module or a function, called as ``torch.compile(target, backend="neuron")(*inputs)`` for each tuple
    of inputs; ``backward`` adds the backward graphs. With ``as_is`` it is called as it stands, gradients on, operator
    by operator but for what it compiles itself: for a training step with its loss and optimizer. Of tensors only
    shape, strides, dtype and ``requires_grad`` count: inputs and a module's parameters may be on meta or fake, and are
    replaced by tensors of the device that take no memory. A function's own tensors have to be on the device.

    The keys are those of the job because the job's own path makes them: torch's dispatcher, Dynamo and AOTAutograd meet
    real tensors of the device, and only programs are not run. Hence code that reads a value, of which there is none,
    is refused. Dynamo meets each bucket first by itself, then all of them one after the other, so that it does not
    matter in which order a job meets them, and an optimizer has made its state by then.

    ``labels`` name the buckets in the report. With ``compile`` False programs are keyed only. ``jobs`` compiles run at
    once (default: ``NEURON_CACHE_COMPILE_SLOTS``, else the CPUs of this process), within the node's slots and memory.
    ``environ`` (default: the process's) says cache, compiler and target. While this runs, nothing else of this process
    may use the device; functions that were compiled before are compiled anew, out of the cache, at their next call.

    What one bucket's code raises, what cannot be lowered and what the compiler refuses stands in the report, and the
    rest goes on. Raises `ConfigurationError` for settings under which nothing can be compiled or published,
    RuntimeError where the device is not there, `client.errors.TransportError` if the shared cache cannot be asked at
    the end.
    """
    if backward and as_is:
        raise ConfigurationError(
            "backward and as_is exclude each other: a function that is called as it stands calls backward() itself"
        )
    if not _autoload.state.registered:
        raise RuntimeError(f"compile_only() has no device to capture for: {_autoload.state.reason}")
    environ = _environment(os.environ if environ is None else environ)
    settings = Settings.from_environment(environ)
    inputs = [tuple(each) for each in buckets]
    names = list(labels) if labels is not None else [describe(each) for each in inputs]
    report = Report(settings.project, settings.label, shared=settings.url is not None, compiled=compile)
    compiler = get_compiler(environ)
    jobs = jobs or settings.compile_slots or schedulable_cpus()
    opened = _open(settings, environ) if compile else None
    with closing(compiler), closing(opened) if opened else nullcontext():
        compiler.configuration(Kind.GRAPH)  # what is wrong with it is no bucket's fault
        recorder = Recorder(compiler, opened, jobs=jobs, progress=progress)
        with closing(recorder):
            with capture.recording(recorder), _room_for(len(inputs), report):
                report.buckets = _capture(recorder, target, inputs, names, backward=backward, as_is=as_is)
            report.programs = recorder.results()
            if compile and settings.url is not None:
                _publish(recorder, report, environ, settings)
    return report


def _open(settings: Settings, environ: Mapping[str, str]) -> Cache:
    opened = None if settings.url is None else partial(open_transport, settings.url, settings.project, environ)
    return Cache(settings, open_transport=opened, upload_grace=_UPLOAD_SECONDS)


def describe(inputs: Sequence[Any]) -> str:
    """Return the shapes of a bucket's tensors, ``8x64 8x64``."""
    leaves = torch.utils._pytree.tree_leaves(tuple(inputs))  # noqa: SLF001 - what torch itself flattens with
    shapes = ["x".join(map(str, leaf.shape)) or "scalar" for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return " ".join(shapes) or "no tensors"


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a prewarm: those of the job, but for the one that forbids it to compile."""
    mode = environ.get("NEURON_CACHE_MODE", "").strip().lower() or "rw"
    if mode != "rw":
        raise ConfigurationError(f"NEURON_CACHE_MODE={mode} publishes nothing: a prewarm needs rw")
    return {**environ, "NEURON_CACHE_ON_MISS": "compile"}


def _room_for(count: int, report: Report) -> Any:
    """Raise Dynamo's limit of recompiles if there are more buckets, and tell that the job has to do so too."""
    limit = dynamo_config.recompile_limit
    if count <= limit:
        return nullcontext()
    report.notes.append(
        f"{count} buckets are more than torch._dynamo.config.recompile_limit ({limit}): a process that meets all of "
        f"them has to set it to {count} or more"
    )
    return dynamo_config.patch(recompile_limit=count)


def _capture(
    recorder: Recorder,
    target: Callable[..., Any],
    inputs: Sequence[tuple[Any, ...]],
    labels: Sequence[str],
    *,
    backward: bool,
    as_is: bool,
) -> list[Bucket]:
    call = capture.as_called(target, as_is=as_is)

    def captured(index: int) -> Bucket:
        return capture.bucket(recorder, call, inputs[index], label=labels[index], backward=backward, as_is=as_is)

    found = []
    for index in range(len(inputs)):
        torch._dynamo.reset()  # noqa: SLF001 - as in a process that meets this bucket first
        found.append(captured(index))
    if len(inputs) > 1 or as_is:
        torch._dynamo.reset()  # noqa: SLF001
        for index, bucket in enumerate(found):
            later = captured(index)
            more = tuple(name for name in later.programs if name not in bucket.programs)
            found[index] = replace(bucket, programs=(*bucket.programs, *more), seconds=bucket.seconds + later.seconds)
    return found


def _publish(recorder: Recorder, report: Report, environ: Mapping[str, str], settings: Settings) -> None:
    """See to it that the shared cache has what this node had already, or could not upload at once.

    A node tier does not hold all outputs of an entry, so such a program is compiled once more.
    """
    absent = _absent(report, environ, settings)
    if absent:
        with closing(_open(replace(settings, node_dir=None, summary=None, record=None), environ)) as cache:
            report.programs.update(recorder.again(absent, cache))
        absent = _absent(report, environ, settings)
    report.unpublished = absent


def _absent(report: Report, environ: Mapping[str, str], settings: Settings) -> list[Name]:
    wanted = [each for each in report.plan() if report.programs[each.name].error is None]
    if settings.url is None or not wanted:
        return []
    with closing(open_source(settings.url, settings.project, environ)) as source:
        return [each.name for each in missing(source, wanted)]
