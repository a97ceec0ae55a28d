"""Compares mapping tables with the installed frameworks: one process of each, whatever is compared."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from converter.checkpoints import TrainerConfig, parse_trainer_config
from converter.choices import LAYOUTS
from converter.conformance.answers import AnswerError, AXLearnAnswer, MaxTextAnswer, read_axlearn, read_maxtext
from converter.conformance.compare import (
    asked_config,
    asked_keys,
    compare_published,
    compare_with_axlearn,
    compare_with_maxtext,
    widened,
)
from converter.conformance.interpreter import ask, invalid
from converter.conformance.result import Conformance, Framework, Installed, ModelComparison
from converter.conformance.subjects import Subject, checkpoint_subject, config_subject, published_subject
from converter.errors import UsageError
from converter.mapping import MappingTable, find_mapping, load_bundled
from converter.planning import check_options

MAXTEXT, AXLEARN = "--maxtext", "--axlearn"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformRequest:
    """What `conform` is asked.

    Attributes:
      source: a step or trainer directory; None for none.
      model: a published size, which the source then must be; None for none.
      maxtext: the Python of an environment with MaxText; None to leave MaxText out.
      axlearn: the same of AXLearn.
      config: AXLearn's configuration: NAME, MODULE:NAME or FILE.py:NAME.
      step: the wanted step of the source; None for the latest.
      mapping: a user's own table, or the name of a bundled one; None for all bundled ones.
      options: options of the mapping table that are on.
      settings: the user's `KEY=VALUE` texts for maxtext.yml.
      layout: the only layer layout of MaxText that is compared; None for each.
    """

    source: str | None = None
    model: str | None = None
    maxtext: str | None = None
    axlearn: str | None = None
    config: str | None = None
    step: int | None = None
    mapping: str | None = None
    options: frozenset[str] = frozenset()
    settings: tuple[str, ...] = ()
    layout: str | None = None

    def check(self) -> None:
        """Refuses what cannot be asked together.

        Raises:
          UsageError: naming the options.
        """
        if self.maxtext is None and self.axlearn is None:
            raise UsageError("conform: expected --maxtext PYTHON, --axlearn PYTHON, or both")
        if (self.axlearn is None) != (self.config is None):
            raise UsageError("conform: --axlearn PYTHON and --config NAME need each other")
        if self.source is None and self.step is not None:
            raise UsageError("conform: --step needs a source: conform SRC")
        for python in (self.maxtext, self.axlearn):
            if python is not None and not python:
                raise UsageError("conform: empty path of a Python; is a shell variable unset?")
        if self.layout is not None and self.layout not in LAYOUTS:
            raise UsageError(f"--layout {self.layout}: expected one of {', '.join(LAYOUTS)}")
        if self.maxtext is None and (self.options or self.settings or self.layout):
            raise UsageError("conform: --option, --untie, --set and --layout are about MaxText, and need --maxtext")


def conform(request: ConformRequest) -> Conformance:
    """Compares what is asked.

    Raises:
      UsageError: the request contradicts itself, or an interpreter has no such framework.
      SourceError, MappingError: the source cannot be read, or no table fits.
      VerificationError: a framework gives no answer.
    """
    request.check()
    tables = load_bundled() if request.mapping is None else [find_mapping(request.mapping)]
    check_options(tables, request.options)
    axlearn = _ask_axlearn(request, tables)
    subjects = _subjects(request, tables, axlearn)
    if request.layout is not None:
        subjects = [subject.only(request.layout) for subject in subjects]
    models: list[ModelComparison] = []
    installed: list[Installed] = []
    if axlearn is not None and request.axlearn is not None:
        answer, trained = axlearn
        installed.append(_installed("AXLearn", request.axlearn, answer, subjects))
        models += [compare_with_axlearn(subject, answer, trained.lines) for subject in subjects]
    result = Conformance(
        installed=tuple(installed),
        models=tuple(models),
        notes=tuple(dict.fromkeys(note for subject in subjects for note in subject.notes)),
        peak_memory=axlearn[0].peak_memory if axlearn is not None else 0,
    )
    if request.maxtext is not None:
        result = with_maxtext(result, request.maxtext, subjects)
    return dataclasses.replace(result, notes=(*result.notes, *_version_notes(result.installed)))


def _subjects(
    request: ConformRequest, tables: Sequence[MappingTable], axlearn: tuple[AXLearnAnswer, TrainerConfig] | None
) -> list[Subject]:
    """What is compared: the source, the published size, the configuration's model, or all published sizes."""
    own: dict[str, Any] = {"options": request.options, "settings": request.settings}
    if request.source is not None:
        return [
            checkpoint_subject(
                request.source, tables, model=request.model, step=request.step, mapping=request.mapping, **own
            )
        ]
    names = [model.name for table in tables for model in table.models]
    if request.model is not None:
        return [published_subject(tables, request.model, **own)]
    if axlearn is not None and request.config is not None:
        name = request.config.rpartition(":")[2]
        same = next((one for one in names if one.lower() == name.lower()), None)
        if same is not None:
            return [published_subject(tables, same, **own)]
        return [config_subject(name, tables, axlearn[0].leaves, axlearn[1], **own)]
    if not names:
        raise UsageError(f"conform: mapping '{tables[0].name}' has no published sizes; give SRC")
    return [published_subject(tables, name, **own) for name in names]


def _ask_axlearn(request: ConformRequest, tables: Sequence[MappingTable]) -> tuple[AXLearnAnswer, TrainerConfig] | None:
    """The parameters of AXLearn's configuration, and its lines; None where AXLearn is left out."""
    if request.axlearn is None or request.config is None:
        return None
    trainers = list(dict.fromkeys(name for table in tables for name in table.conformance.trainers))
    place, mark, name = request.config.rpartition(":")
    if place.endswith(".py"):
        place = os.path.abspath(os.path.expanduser(place))
    if not name or (not place and not trainers):
        raise UsageError(f"--config {request.config}: expected NAME, MODULE:NAME or FILE.py:NAME")
    question = {"framework": "axlearn", "config": f"{place}{mark}{name}", "trainers": trainers}
    answer = ask(AXLEARN, request.axlearn, question)
    try:
        read = read_axlearn(answer)
    except AnswerError as error:
        raise invalid(AXLEARN, request.axlearn, error) from None
    return read, parse_trainer_config(read.lines.encode())


def with_maxtext(result: Conformance, python: str, subjects: Sequence[Subject]) -> Conformance:
    """Adds the comparison with MaxText to a result: all subjects in one process, each in every layout that it has.

    Raises:
      UsageError: the interpreter cannot be started, or has no MaxText.
      VerificationError: it gives no valid answer.
    """
    named = {f"{number} {layout}": (one, layout) for number, one in enumerate(subjects) for layout in one.matches}
    question = {
        "framework": "maxtext",
        "models": {name: asked_config(*one) for name, one in named.items()},
        "published": sorted({subject.published for subject in subjects if subject.published}),
        "keys": asked_keys([subject.table for subject in subjects]),
    }
    answer = ask(MAXTEXT, python, question)
    try:
        read = read_maxtext(answer)
        if read.models.keys() != named.keys() or read.published.keys() != set(question["published"]):
            raise AnswerError("other models than were asked for")
    except AnswerError as error:
        raise invalid(MAXTEXT, python, error) from None
    models = [compare_with_maxtext(subject, layout, read.models[name]) for name, (subject, layout) in named.items()]
    wider = sum(widened(model.leaves) for model in models)
    note = f"{wider} leaves are loaded in a wider dtype than they are stored in, which is exact"
    return dataclasses.replace(
        result,
        installed=(_installed("MaxText", python, read, subjects), *result.installed),
        models=(*models, *result.models),
        published=tuple(
            compare_published(subject, read.published[subject.published]) for subject in subjects if subject.published
        ),
        notes=(*result.notes, *([note] if wider else [])),
        peak_memory=max(result.peak_memory, read.peak_memory),
    )


def _installed(
    framework: Framework, python: str, answer: MaxTextAnswer | AXLearnAnswer, subjects: Sequence[Subject]
) -> Installed:
    tables = {subject.table.name: subject.table.conformance for subject in subjects}
    return Installed(
        framework=framework,
        interpreter=python,
        python=answer.python,
        version=answer.version,
        checked={name: rules.maxtext if framework == "MaxText" else rules.axlearn for name, rules in tables.items()},
    )


def _version_notes(installed: Sequence[Installed]) -> list[str]:
    """Where a framework is not of a version that a table was checked with."""
    notes: list[str] = []
    for one in installed:
        if one.new_for:
            versions = ", ".join(dict.fromkeys(version for name in one.new_for for version in one.checked[name]))
            found = f"{one.framework} {one.version}" if one.version else f"this {one.framework} (without a version)"
            tables = ", ".join(one.new_for)
            notes.append(f"{found} is not among the versions that {tables} were checked with: {versions or 'none'}")
    return notes
