"""Judge claims by what was measured; a claim that the intervals leave open is `undecided`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.cell import Status
from effbench.experiments.definition import Claim, Found
from effbench.experiments.figures import (
    OPEN,
    ClaimError,
    Facts,
    Figure,
    Missing,
    Truth,
    as_figure,
    no_figure,
    truth,
)
from effbench.experiments.frames import DISTURBANCE, shown, split
from effbench.metrics import is_missing
from effbench.printable import describe, listed, one_line
from effbench.store.decisions import ClaimVerdict

#: Stands for the status of a row whose figures decide nothing, because the host was disturbed.
MARKED = "marked"


@dataclass(frozen=True)
class Part:
    """Whether a claim holds in a part of the matrix, or a statement of it (`label`; empty for all),
    and the figure."""

    label: str
    holds: Truth
    value: Figure | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict, the reason, the figure over all rows, and the parts. `also`: further figures."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str
    value: Figure | None = None
    parts: tuple[Part, ...] = ()
    also: Mapping[str, Any] = field(default_factory=dict)


def judge(claim: Claim, inputs: Mapping[str, Any]) -> Judgement:
    """Judge a claim by the inputs of its function: name -> DataFrame of rows, Facts, or Missing.
    Raises ClaimError if the function fails or uses something that does not exist."""
    if claim.not_measurable:
        return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, claim.not_measurable)
    frames = {
        name: value for name, value in inputs.items() if not isinstance(value, Facts | Missing)
    }
    inputs = {
        **inputs,
        **{name: Missing("no row was measured") for name in frames if frames[name].empty},
    }
    frames = {name: frame for name, frame in frames.items() if not frame.empty}
    missing = [value.why for value in inputs.values() if isinstance(value, Missing)]
    if len(missing) == len(inputs):
        return Judgement(claim, without_measurement(missing), missing[0])
    no_figure.clear()
    overall, parts = call(claim, inputs, frames)
    rows = [row for frame in frames.values() for _, row in frame.iterrows()]
    failed = [row for row in rows if row.name in no_figure and status_of(row) != Status.OK]
    others = [row for row in rows if row["mode"] != "eager"] or rows
    if failed and all(row["status"] == Status.UNSUPPORTED for row in others):
        return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, str(others[0]["reason"]))
    left_out = text_of_failed(failed, frames)
    if all(part.holds.missing for part in parts):
        reason = parts[0].holds.why if parts else "no part of the matrix was measured"
        verdict = without_measurement([*missing, *map(status_of, failed)] or [reason])
        return Judgement(claim, verdict, reason + left_out)
    verdict = verdict_of([part.holds.holds for part in parts])
    reason = reason_of(verdict, parts) + left_out
    return Judgement(claim, verdict, reason, value_of(overall), tuple(parts), overall.also)


def call(
    claim: Claim, inputs: Mapping[str, Any], frames: Mapping[str, Any]
) -> tuple[Found, list[Part]]:
    """Return the result of the claim's function over all rows, and the parts. A part of the matrix
    without measurements is omitted; a statement without measurements stays open."""
    try:
        overall = found_by(claim, inputs)
    except ClaimError:
        if not claim.axes:
            raise
        overall = Found(None)  # for example only() finds one row in each part, but several in all
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
        result = claim.function(**inputs)
    except ClaimError:
        raise
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        raise ClaimError(f"its function raised {describe(error)}") from error
    if not isinstance(result, Found):
        raise ClaimError(
            f"its function returned {type(result).__name__}, not Found(holds, value, also)"
        )
    if not isinstance(result.also, Mapping):
        raise ClaimError(f"also: expected text -> figure, got {one_line(repr(result.also), 80)}")
    return result


def parts_of(found: Found, label: str) -> list[Part]:
    if isinstance(found.holds, Mapping):
        return [
            Part(f"{name}: {label}" if label else name, truth(holds))
            for name, holds in found.holds.items()
        ]
    holds, value = truth(found.holds), value_of(found)
    if holds.holds is not None and value is not None and math.isnan(value.value):
        holds = Missing("its figure was not measured")  # `nan > 1` is false, but decides nothing
    return [] if label and holds.missing else [Part(label, holds, value)]


def value_of(found: Found) -> Figure | None:
    return (
        None if found.value is None or isinstance(found.value, Missing) else as_figure(found.value)
    )


def verdict_of(conditions: Sequence[bool | None]) -> ClaimVerdict:
    if True in conditions and False in conditions:
        return ClaimVerdict.DEPENDS
    if None in conditions:
        return ClaimVerdict.UNDECIDED
    return ClaimVerdict.CONFIRMED if True in conditions else ClaimVerdict.REFUTED


def without_measurement(reasons: Sequence[str]) -> ClaimVerdict:
    is_unsupported = all(reason.startswith(Status.UNSUPPORTED) for reason in reasons)
    return ClaimVerdict.NOT_MEASURABLE if is_unsupported else ClaimVerdict.NOT_MEASURED


def reason_of(verdict: ClaimVerdict, parts: Sequence[Part]) -> str:
    """Return where the claim holds and where it does not."""
    if len(parts) == 1 and not parts[0].label:
        texts = {ClaimVerdict.CONFIRMED: "holds", ClaimVerdict.REFUTED: "does not hold"}
        return texts.get(verdict, parts[0].holds.why)
    groups = {
        "holds for": [part for part in parts if part.holds.holds is True],
        "not for": [part for part in parts if part.holds.holds is False],
        "open for": [part for part in parts if part.holds.holds is None and not part.holds.missing],
        "not measured for": [part for part in parts if part.holds.missing],
    }
    texts, between = [], " · " if any(", " in part.label for part in parts) else ", "
    for title, group in groups.items():
        if group:
            why = group[0].holds.why
            because = "" if why in ("", OPEN) else f" ({why})"
            texts.append(f"{title} {listed([part.label for part in group], 6, between)}{because}")
    return "; ".join(texts)


def text_of_failed(failed: Sequence[Any], frames: Mapping[str, Any]) -> str:
    """Return the names of the failed rows, with their swept parameters, and the reason of the first
    one."""
    if not failed:
        return ""
    swept = dict.fromkeys(name for frame in frames.values() for name in frame.attrs["paths"])
    names = []
    for row in failed:
        settings = [f"{name}={shown(row[name])}" for name in swept if not is_missing(row.get(name))]
        names.append(
            " ".join([row["model"], "bs", str(row["bs"]), row["mode"], *settings, status_of(row)])
        )
    first = failed[0]
    reason = first[DISTURBANCE] if status_of(first) == MARKED else first["reason"]
    return f"; left out: {listed(names, 3)} ({' '.join(str(reason).split())})"


def status_of(row: Any) -> str:
    """Return the status of a row, or `marked` if it is ok, but a disturbed host makes its figures
    decide nothing."""
    is_disturbed = row["status"] == Status.OK and not is_missing(row.get(DISTURBANCE))
    return MARKED if is_disturbed else str(row["status"])


def bounds(value: Figure | None) -> dict[str, float]:
    return {} if value is None else {"value": value.value, "low": value.low, "high": value.high}


def as_json(value: Any) -> Any:
    """Return figures, conditions and facts for JSON; an infinite bound becomes None."""
    if isinstance(value, Figure):
        return (
            None
            if isinstance(value, Missing)
            else as_json(value.value if value.is_exact else bounds(value))
        )
    if isinstance(value, Truth):
        return value.holds
    if hasattr(value, "tolist"):  # NumPy and pandas
        return as_json(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)
