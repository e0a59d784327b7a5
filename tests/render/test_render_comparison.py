import html
import io
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from effbench.analysis.compare import Compared, ModeChange
from effbench.analysis.limits import Limits
from effbench.analysis.matching import Side
from effbench.analysis.verdicts import COLUMNS, STATUS, Change, Verdict
from effbench.core.terminal import Console
from effbench.render import comparison
from effbench.render.data import Changes

HOSTILE = "<img src=x onerror=alert(1)> a|b `c` ![i](http://x) *e* @me #1 \\"


def change(verdict=Verdict.SLOWER, name="mlp", metric="latency_ms", **more):
    return Change("key", name, metric, verdict, **more)


def compared(*changes, differences=(), modes=(), notes=(), label="v1"):
    sweep = SimpleNamespace(state="completed")
    here = {"": SimpleNamespace(hardware="NVIDIA H200")}
    before, after = (Side(sweep, title, label, {}, {}, here) for title in ("one", "two"))
    return Compared(
        before,
        after,
        list(differences),
        list(changes),
        list(modes),
        Limits(),
        notes=list(notes),
    )


SLOWER = change(
    before=1.02,
    after=1.08,
    ratio=1.059,
    low=1.051,
    high=1.067,
    p_value=0.001,
    limit=0.02,
    test=SimpleNamespace(smallest_slowdown=0.022),
)
BROKEN = change(Verdict.BROKEN, "gpt2", STATUS, reason="error: boom (ok before)")


def cells_of(change):
    table = comparison.table_of([change])
    return [column.shown(table.rows[0]).text for column in table.columns]


def document(*rows, **more):
    return comparison.Document(compared(*rows, **more))


UNBOUNDED = change(
    ratio=math.inf, low=0.0, high=math.inf, test=SimpleNamespace(smallest_slowdown=math.inf)
)


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        (
            SLOWER,
            "▲ slower|mlp|latency_ms|1.02 ms|1.08 ms|1.059 (1.051–1.067)|≥ 2.2 %|",
        ),
        (UNBOUNDED, "▲ slower|mlp|latency_ms|—|—|inf (interval over 1000×)|more than tenfold|"),
        (BROKEN, "✗ broken|gpt2|status|||||error: boom (ok before)"),
    ],
)
def test_a_row_of_the_table(row, texts):
    assert cells_of(row) == texts.split("|")


def test_markdown():
    same = [change(Verdict.SAME, str(number)) for number in range(3)]
    more = {"differences": ["torch_version 1 → 2"], "notes": ["a note"]}
    text = document(SLOWER, *same, **more).markdown()
    assert text.startswith("**one v1 → two v1 · NVIDIA H200**\n")
    for line in (
        "- torch_version 1 → 2",
        "1 slower, 3 same",
        "Omitted: 3 same.",
        "- a note",
        "| verdict | cell | metric | before | after | after ÷ before (95 %) |",
    ):
        assert f"\n{line}\n" in text


CAUSE = "2 pointwise kernels are no longer fused: +0.05 of +0.06 ms"


def checked(*rows, **more):
    whole = compared(*rows, **more)
    return comparison.CheckDocument(whole, baseline="main", line="check failed: 1 slower")


def test_markdown_of_a_check_begins_with_the_verdict_and_what_changed():
    """The rest is folded: rows without a change, the environment and remarks."""
    rows = (
        change(Verdict.FASTER, "vit", before=1.0, after=0.9),
        replace(SLOWER, cause=CAUSE),
        change(Verdict.AMBIGUOUS, "gpt2", reason="its trials differ"),
        change(Verdict.SAME, "bert"),
    )
    text = checked(*rows, differences=["torch_version 1 → 2"], notes=["a note"]).markdown()
    shown, *folded = text.split("<details>")
    lines = shown.splitlines()
    assert lines[0] == "## ❌ effbench: check failed: 1 slower"
    assert [line.split(" | ")[1] for line in lines if line.startswith("| ")][2:] == ["mlp", "vit"]
    assert lines[2].endswith("| after ÷ before (95 %) | cause |")
    assert lines[4].endswith(f"| {CAUSE} |")
    others, remarks = folded
    assert others.startswith("<summary>Other rows: 1 ambiguous, 1 same</summary>\n\n| ")
    assert "gpt2" in others and "\nOmitted: 1 same.\n" in others
    assert "\n- one v1 → two v1 · NVIDIA H200\n- torch_version 1 → 2\n- a note\n" in remarks
    assert others.endswith("\n</details>\n\n") and remarks.endswith("\n</details>\n")


def test_markdown_of_a_check_with_many_changes_counts_the_last_ones():
    many = [change(Verdict.SLOWER, str(number)) for number in range(53)]
    shown, _ = checked(*many).markdown().split("<details>")
    assert shown.count("▲ slower") == 50
    assert "\n3 further rows are omitted here.\n" in shown


def test_a_cause_is_in_all_formats():
    whole = document(replace(SLOWER, cause=CAUSE))
    assert json.loads(whole.render("json"))["changes"][0]["cause"] == CAUSE
    assert CAUSE in whole.render("csv")
    (failure,) = ElementTree.fromstring(whole.junit()).iter("failure")
    assert failure.get("message").endswith(f": {CAUSE}")
    console = Console(file=io.StringIO(), width=100)
    whole.print(console)
    assert f"\nmlp: {CAUSE}\n" in console.file.getvalue()


def test_a_smaller_matrix_is_no_significant_change():
    fewer = change(Verdict.MISSING, "gpt2", STATUS, reason="not in the plan")
    assert Changes(compared=compared(SLOWER, fewer)).significant == [SLOWER]


def test_names_cannot_begin_anything_in_markdown():
    row = change(Verdict.BROKEN, HOSTILE, STATUS, reason=f"{HOSTILE}\n| x |", cause=HOSTILE)
    more = {"label": HOSTILE, "differences": [HOSTILE], "notes": [HOSTILE]}
    text = document(row, **more).markdown()
    assert "<" not in re.sub("</?(details|summary)>", "", text)
    assert not re.search(r"[@#]\w", html.unescape(text)), "no mention, no issue"
    (line,) = (line for line in text.splitlines() if "alert" in line and line.startswith("|"))
    assert line.count("|") == 6  # verdict, cell, metric, cause, why
    assert not set("`[]\\") & set(text)


def test_json():
    modes = [ModeChange("inference", "eager", "latency_ms", 1.05, 1.04, 1.06, 3, 3)]
    whole = json.loads(document(SLOWER, modes=modes).render("json"))
    assert whole["counts"] == {"slower": 1}
    assert whole["modes"][0]["ci_high"] == 1.06
    (row,) = whole["changes"]
    assert set(row) == set(COLUMNS)
    assert row["verdict"] == "slower"
    assert row["gates"] is True
    assert row["ci_low"] == 1.051


def test_a_sentence_is_one_line():
    broken = change(Verdict.BROKEN, "a\x1b[31m\nb", STATUS, reason="x\r\ny")
    assert comparison.sentence(broken) == "a [31m b: status broken: x y"
    assert comparison.sentence(change(metric="energy_mj")) == "mlp: energy_mj more"


def test_junit():
    """Failures have a type and a message, and what does not gate is skipped."""
    rows = [
        SLOWER,
        change(metric="kernels", verdict=Verdict.SAME),
        change(Verdict.AMBIGUOUS, metric="period_ms", reason="one trial"),
        BROKEN,
        change(Verdict.MISSING, "vit", STATUS, ignored=True),
        change(Verdict.SLOWER, "vit", "energy_mj", ignored=True),
    ]
    root = ElementTree.fromstring(document(*rows).junit())
    mlp, gpt2, vit = root
    assert len([*root.iter("testcase")]) == 6
    assert len([*gpt2.iter("failure")]) == 1
    (slower,) = mlp.iter("failure")
    assert slower.get("type") == "slower"
    assert "1.02 ms → 1.08 ms" in slower.get("message")
    (ambiguous,) = mlp.iter("skipped")
    assert ambiguous.get("message").endswith("one trial")
    assert vit.find("testcase[@name='status']/skipped") is not None
    assert vit.find("testcase[@name='energy_mj']/*") is None


def test_no_name_breaks_xml():
    row = change(Verdict.BROKEN, f"{HOSTILE}\x00\x1b[31m\ud800", STATUS, reason="\x0b]]> & <x>")
    root = ElementTree.fromstring(document(row, label="\x07").junit())
    assert "alert(1)" in root[0].get("name")
    assert "]]> & <x>" in root[0][0][0].get("message")
