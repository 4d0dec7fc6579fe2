"""The report as JUnit XML: one test case for every gate, which CI services show by themselves."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from fsdp_migrate import shown
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.report.model import Report
from fsdp_migrate.verify.report.text import render as plain_text


def render(report: Report) -> str:
    """One test suite, ending in a newline."""
    cases = [_case(gate, report.points_at(gate)) for gate in report.gates]
    # The verdict is a case of its own: a crash has no gates.
    verdict = ET.Element(
        "testcase", classname="verify", name="verdict", time=f"{report.seconds:.2f}"
    )
    message = "; ".join(filter(None, (f"{report.title}: {report.says}", report.caveat)))
    if report.exit_code == 1:
        ET.SubElement(verdict, "failure", type=report.verdict.value, message=shown.text(message))
    elif report.exit_code == 2:
        ET.SubElement(verdict, "error", type=report.verdict.value, message=shown.text(message))
    cases.append(verdict)
    suite = ET.Element(
        "testsuite",
        name=shown.text(f"fsdp-migrate verify {report.program}"),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        time=f"{report.seconds:.2f}",
    )
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = shown.text(plain_text(report))
    ET.indent(suite)
    body = ET.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _case(gate: Gate, points_at: str) -> ET.Element:
    name = f"{gate.title} ({gate.part})" if gate.part else gate.title
    case = ET.Element("testcase", classname="verify.gates", name=shown.text(name), time="0")
    points_at = f"points at {points_at}" if points_at else ""
    says = "; ".join(filter(None, (gate.says, gate.hint, points_at)))
    if gate.status is Status.FAIL:
        failure = ET.SubElement(case, "failure", type=gate.key, message=shown.text(says))
        failure.text = shown.text("\n".join(gate.details))
    elif gate.status is Status.VOID:
        ET.SubElement(case, "error", type=gate.key, message=shown.text(says))
    elif gate.status is Status.NOTE:
        ET.SubElement(case, "skipped", message=shown.text(says))
    return case
