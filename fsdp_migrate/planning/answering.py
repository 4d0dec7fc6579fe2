"""The form of a rule's answer: a decision with its edits, its models and its markers."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from packaging.version import Version

from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.edits import Mark
from fsdp_migrate.planning.forms import Form, PassedOver, Taken, take
from fsdp_migrate.planning.model import Cause, Constructor, Conversion, Decision
from fsdp_migrate.planning.naming import Namer
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.proposal import Claims, Proposal
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import LoadedRule


class Answering:
    """Makes decisions; a :class:`~fsdp_migrate.planning.context.Study` is one."""

    target: Version
    namer: Namer
    passed_over: PassedOver
    _taken: dict[tuple[ast.AST, Construct], Taken]

    def proposal(self) -> Proposal:
        return Proposal(self.namer)

    def take(self, site: Site, *forms: Form) -> str:
        """The name of the form to write a site in: the first of ``forms`` that is enough by what is
        known, unless it was tried."""
        place = (site.module.path, site.position)
        taken = take(forms, self.passed_over.get(place, ()))
        self._taken[site.node, site.construct] = taken
        return taken.name

    def rewritten(
        self,
        site: Site,
        code: str,
        message: str,
        proposal: Proposal | None = None,
        *,
        models: Iterable[Constructor] = (),
        review: str = "",
        marked: bool = False,
        once: bool = False,
    ) -> Decision:
        """Applied; with ``review``, a sentence on what may differ, it is marked for review.

        Args:
            marked: the proposal holds the marker, at a better place.
            once: one marker in a file is enough.
        """
        edits = list(proposal.edits) if proposal is not None else []
        outcome = Outcome.REWRITTEN
        if review:
            outcome = Outcome.REVIEW
        if review and not marked:
            edits.append(Mark(site.module, site.node, code, sentences(review), once=once))
        return Decision(
            site,
            code,
            outcome,
            message,
            review,
            tuple(edits),
            frozenset(models),
            claims=proposal.claims if proposal is not None else Claims(),
            form=self._taken.get((site.node, site.construct)),
        )

    def kept_as_is(
        self,
        site: Site,
        code: str,
        message: str,
        *,
        models: Iterable[Constructor] = (),
        review: str = "",
    ) -> Decision:
        """Nothing to write: what stands there does what it did, and a second run finds it again."""
        decision = self.rewritten(site, code, message, models=models, review=review)
        return replace(decision, cause=Cause.KEPT)

    def converted(
        self, site: Site, code: str, conversion: Conversion, *, review: str = ""
    ) -> Decision:
        """A value that constructors asked to be converted where it is made."""
        proposal = conversion.proposal or self.proposal()
        if conversion.new is not None:
            proposal.replace(site.module, site.expression, conversion.new)
        return self.rewritten(
            site,
            code,
            conversion.message,
            proposal,
            models=conversion.constructors,
            review=review,
        )

    def dropped(self, site: Site, code: str, message: str, *, review: str = "") -> Decision:
        """An argument of a constructor that the emitted code does without."""
        return self.rewritten(site, code, message, review=review)

    def left(
        self,
        site: Site,
        code: str,
        reason: str,
        help: str,
        *,
        models: Iterable[Constructor] = (),
        quiet: bool = False,
        final: bool = False,
        unknown_state: bool = False,
        at: ast.AST | None = None,
    ) -> Decision:
        """Not touched, for ``reason``; ``help`` is what to do by hand.

        Args:
            at: where the marker stands, if not at the site.
        """
        said = sentences(reason, help)
        edits = (Mark(site.module, at or site.node, code, said, stays=True),)
        cause = Cause.FINAL if final else Cause.OWN
        return Decision(
            site,
            code,
            Outcome.LEFT,
            reason,
            help,
            edits,
            frozenset(models),
            quiet,
            Cause.UNKNOWN_STATE if unknown_state else cause,
        )

    def too_new(
        self, site: Site, rule: LoadedRule, *, models: Iterable[Constructor] = ()
    ) -> Decision:
        """Left, because the target torch does not have what would replace it."""
        return self.left(
            site,
            rule.code,
            f"what replaces it needs torch {rule.rule.since}, the project's target is "
            f"{self.target}",
            "raise the project's torch requirement or pass --target-torch",
            models=models,
            quiet=True,
            final=True,  # the support module needs it as well
        )
