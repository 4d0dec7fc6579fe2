"""Hold a report against what the static study knows of the original."""

from __future__ import annotations

import dataclasses

from fsdp_migrate.verify.compare.blame import point
from fsdp_migrate.verify.compare.sites import Study, account
from fsdp_migrate.verify.report.model import Report


def against_sites(report: Report, study: Study) -> Report:
    """``report`` with the places that used FSDP1 and are no sites, and with the sites that its
    gates point at. The verdict stays what the training says."""
    accounted = account(report.observed, study) if report.observed.uses else None
    notes = report.notes
    if accounted is not None and not accounted.caveat:
        notes = (*notes, accounted.says)
    return dataclasses.replace(
        report,
        accounted=accounted,
        pointed=point(report.gates, study, report.observed),
        notes=notes,
    )
