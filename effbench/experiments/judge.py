"""Judges claims. A verdict follows the measurement; what the intervals leave open is `undecided`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.cell import Status
from effbench.experiments.definition import Claim, Found
from effbench.experiments.figures import (
    NO_INTERVAL,
    UNDEFINED,
    ClaimError,
    Facts,
    Figure,
    Missing,
    Truth,
    as_figure,
    rows_without_figure,
    truth,
)
from effbench.experiments.frames import is_absent, shown, split
from effbench.store.decisions import ClaimVerdict


@dataclass(frozen=True)
class Part:
    """What holds in one part of the matrix, or of one statement (its label; empty for all), and the figure there."""

    label: str
    holds: Truth
    value: Figure | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict, the reason, the figure over all rows, and what was found by part."""

    claim: str
    verdict: ClaimVerdict
    reason: str
    value: Figure | None = None
    unit: str = ""
    parts: tuple[Part, ...] = ()
    also: Mapping[str, Any] = field(default_factory=dict)


def judge(claim: Claim, inputs: Mapping[str, Any]) -> Judgement:
    """Judge a claim by what its function asks for: name -> DataFrame of rows, Facts, or Missing.

    Raises ClaimError if the function fails or asks for what does not exist.
    """
    if claim.not_measurable:
        return Judgement(claim.id, ClaimVerdict.NOT_MEASURABLE, claim.not_measurable)
    frames = {name: value for name, value in inputs.items() if not isinstance(value, Facts | Missing)}
    empty = {name: Missing("no row was measured") for name, frame in frames.items() if frame.empty}
    frames, inputs = {name: frame for name, frame in frames.items() if name not in empty}, {**inputs, **empty}
    missing = [value for value in inputs.values() if isinstance(value, Missing)]
    if len(missing) == len(inputs):
        return Judgement(claim.id, nothing_measured([], inputs, ""), missing[0].reason)
    with rows_without_figure() as without:
        overall, parts = call(claim, inputs, frames)
    rows = [row for frame in frames.values() for _, row in frame.iterrows()]
    failed = [row for row in rows if row.name in without and row["status"] != Status.OK]
    if failed and (reason := unsupported_everywhere(rows)):
        return Judgement(claim.id, ClaimVerdict.NOT_MEASURABLE, reason)
    if all(part.holds.missing for part in parts):
        reason = parts[0].holds.why if parts else "no part of the matrix was measured"
        verdict = nothing_measured(failed, inputs, reason)
        return Judgement(claim.id, verdict, with_failed(reason, failed, frames))
    verdict = verdict_of([part.holds.holds for part in parts])
    reason = with_failed(reason_of(verdict, parts), failed, frames)
    also = {str(name): plain(value) for name, value in overall.also.items()}
    return Judgement(claim.id, verdict, reason, figure_of(overall), claim.unit, tuple(parts), also)


def call(claim: Claim, inputs: Mapping[str, Any], frames: Mapping[str, Any]) -> tuple[Found, list[Part]]:
    """Return what the claim's function finds over all rows, and in each part. A part of the matrix without
    measurements is omitted; a statement without them stays open."""
    try:
        overall = found_by(claim, inputs)
    except ClaimError:
        if not claim.axes:
            raise
        overall = Found(None)  # such as of only(), which has one row in each part and several in all
    if not claim.axes or not frames:
        return overall, parts_of(overall, "")
    ((name, frame),) = frames.items()
    parts = []
    for label, rows in split(frame, claim.axes):
        parts += parts_of(found_by(claim, {**inputs, name: rows}), label)
    return overall, parts


def found_by(claim: Claim, inputs: Mapping[str, Any]) -> Found:
    assert claim.function is not None
    try:
        found = claim.function(**inputs)
    except ClaimError:
        raise
    except (Exception, SystemExit) as error:
        text = (str(error).strip() or "no message").splitlines()[0]
        raise ClaimError(f"its function raised {type(error).__name__}: {text}") from error
    if not isinstance(found, Found):
        raise ClaimError(f"its function returned {type(found).__name__}, not Found(holds, value, also)")
    return found


def parts_of(found: Found, label: str) -> list[Part]:
    if isinstance(found.holds, Mapping):
        labels = {f"{statement}: {label}" if label else statement: held for statement, held in found.holds.items()}
        return [Part(text, truth(held)) for text, held in labels.items()]
    part = Part(label, truth(found.holds), figure_of(found))
    return [] if label and part.holds.missing else [part]


def figure_of(found: Found) -> Figure | None:
    return None if found.value is None or isinstance(found.value, Missing) else as_figure(found.value)


def plain(value: Any) -> Any:
    """Return values of NumPy and pandas as Python's own."""
    value = value.tolist() if hasattr(value, "tolist") and not isinstance(value, Missing) else value
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def verdict_of(conditions: Sequence[bool | None]) -> ClaimVerdict:
    if True in conditions and False in conditions:
        return ClaimVerdict.DEPENDS
    if None in conditions:
        return ClaimVerdict.UNDECIDED
    return ClaimVerdict.CONFIRMED if True in conditions else ClaimVerdict.REFUTED


def reason_of(verdict: ClaimVerdict, parts: Sequence[Part]) -> str:
    """Return where it holds and where not."""
    if len(parts) == 1 and not parts[0].label:
        texts = {ClaimVerdict.CONFIRMED: "holds", ClaimVerdict.REFUTED: "does not hold"}
        return texts.get(verdict, parts[0].holds.why)
    groups = {
        "holds for": [part for part in parts if part.holds.holds is True],
        "not for": [part for part in parts if part.holds.holds is False],
        "open for": [part for part in parts if part.holds.holds is None and not part.holds.missing],
        "not measured for": [part for part in parts if part.holds.missing],
    }
    texts = []
    for title, group in groups.items():
        if group:
            more = f" and {len(group) - 6} more" if len(group) > 6 else ""
            why = group[0].holds.why
            because = f" ({why})" if why in (NO_INTERVAL, UNDEFINED) or group[0].holds.missing else ""
            texts.append(f"{title} {', '.join(part.label for part in group[:6])}{more}{because}")
    return "; ".join(texts)


def unsupported_everywhere(rows: Sequence[Any]) -> str | None:
    """Return why, if all rows but a baseline's are `unsupported`."""
    others = [row for row in rows if row["mode"] != "eager"] or rows
    if not others or any(row["status"] != Status.UNSUPPORTED for row in others):
        return None
    return str(others[0]["reason"])


def nothing_measured(failed: Sequence[Any], inputs: Mapping[str, Any], reason: str) -> ClaimVerdict:
    """It cannot be measured here if all that is missing is unsupported. `reason`: of a part of a check that is."""
    unsupported = [
        value.reason.startswith(Status.UNSUPPORTED) for value in inputs.values() if isinstance(value, Missing)
    ]
    unsupported += [row["status"] == Status.UNSUPPORTED for row in failed]
    unsupported = unsupported or [reason.startswith(Status.UNSUPPORTED)]
    return ClaimVerdict.NOT_MEASURABLE if all(unsupported) else ClaimVerdict.NOT_MEASURED


def with_failed(reason: str, failed: Sequence[Any], frames: Mapping[str, Any]) -> str:
    """Add the failed rows that were left out, with their swept parameters and the first one's reason."""
    if not failed:
        return reason
    swept = [name for frame in frames.values() for name in frame.attrs["whole"].paths]
    named = []
    for row in failed[:3]:
        further = [f"{name}={shown(row[name])}" for name in dict.fromkeys(swept) if not is_absent(row.get(name))]
        named.append(" ".join([row["model"], "bs", str(row["bs"]), row["mode"], *further, row["status"]]))
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return f"{reason}; left out: {', '.join(named)}{more} ({' '.join(str(failed[0]['reason']).split())})"
