"""What is emitted runs on the torch it is made for; what that torch lacks is left, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from fsdp_migrate import runtime
from fsdp_migrate.migration.engine import Options, Result
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.rewriting import check
from fsdp_migrate.syntax import name_table_builder
from fsdp_migrate.syntax.source import Source
from tests.helpers.migrating import migrate
from tests.rules.test_examples import EXAMPLES, sources

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def build(net, settings, **kwargs):
"""


def at(release: str, call: str) -> tuple[Result, str]:
    files = {"example.py": f"{HEAD}    return {call}\n"}
    result, after = migrate(files, Options(target=Version(release)))
    assert not result.problems
    return result, after["example.py"]


@pytest.mark.parametrize("release", ["2.6", "2.9", "2.12", "2.15"])
def test_every_example_fits_the_signatures_of_the_release(release: str) -> None:
    target = Version(release)
    for rule, example in EXAMPLES:
        result, _ = migrate(sources(example), Options(target=target))
        assert not result.problems, (rule.code, example.title)


@pytest.mark.parametrize("release", ["2.4", "2.5"])
def test_before_the_public_fully_shard_everything_is_left(release: str) -> None:
    for rule, example in EXAMPLES:
        result, after = migrate(sources(example), Options(target=Version(release)))
        what = (rule.code, example.title)
        assert "fsdp2_support.py" not in after, what
        wraps = [
            d for d in result.decisions if str(d.site.construct) == "FullyShardedDataParallel()"
        ]
        assert all(d.outcome is Outcome.LEFT for d in wraps), what
        told = {d.message for d in wraps if d.code == "FSDP101"}
        assert all("needs torch 2.6" in message for message in told), what


@pytest.mark.parametrize(
    "call",
    [
        "FSDP(net, ignored_modules=[net.head])",
        "FSDP(net, ignored_states=list(net.head.parameters()))",
        "FSDP(net, ignored_modules=[net.head], **kwargs)",
        "[FSDP(m, auto_wrap_policy=settings.policy, ignored_modules=[m.head]) for m in net]",
    ],
)
def test_ignored_parameters_need_2_7(call: str) -> None:
    result, text = at("2.6", call)
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
    assert "needs torch 2.7, the project's target is 2.6" in text
    result, text = at("2.7", call)
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}


@pytest.mark.parametrize("call", ["FSDP(net, ignored_modules=None)", "FSDP(net, **kwargs)"])
def test_nothing_ignored_needs_nothing_newer(call: str) -> None:
    result, _ = at("2.6", call)
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}


def test_replication_says_from_which_release_it_is_clean() -> None:
    call = "FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)"
    for release, said in (("2.6", True), ("2.9", True), ("2.10", False)):
        result, text = at(release, call)
        assert (Outcome.REVIEW in {d.outcome for d in result.decisions}) is said
        assert ("before 2.10" in text) is said


def test_prefetching_is_left_to_fsdp2_on_every_release() -> None:
    for release in ("2.6", "2.15"):
        _, text = at(release, "FSDP(net, forward_prefetch=True)")
        assert "fully_shard(net)" in text


@pytest.mark.parametrize("release", ["2.6", "2.15"])
def test_the_support_module_fits_the_signatures_of_the_release(release: str) -> None:
    path = Path(runtime.__file__).with_name("fsdp2_support.py")
    table = name_table_builder.build(Source.parse(path.read_bytes()).tree)
    assert check.mismatches(table, Version(release)) == []
