"""Comments of replaced code stay where they still say something, and go where they do not."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.engine import Options
from tests.helpers.migrating import migrate

CALL = """\
import torch
from torch.distributed.fsdp import (
    CPUOffload,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)


def build(model, dtype, args):
    return FSDP(
        model,
        {arguments}
    )
"""


def emitted(arguments: str, line_length: int = 88) -> str:
    text = CALL.format(arguments=arguments)
    result, after = migrate({"a.py": text}, Options(line_length=line_length))
    assert not result.problems
    assert not migrate(after, Options(line_length=line_length))[0].changes
    return after["a.py"].partition("def build")[2]


@pytest.mark.parametrize(
    "arguments",
    [
        "# why\n        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,",
        "# why\n        cpu_offload=CPUOffload(offload_params=True),",
        "# why\n        mixed_precision=MixedPrecision(param_dtype=dtype),",
        "# why\n        sync_module_states=True,",
        "# why\n        ignored_modules=[model.head],",
    ],
)
def test_a_comment_on_what_goes_on_stays(arguments: str) -> None:
    assert emitted(arguments).count("    # why\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        "# why\n        use_orig_params=True,",
        "# why\n        limit_all_gathers=True,",
        "# why\n        cpu_offload=None,",
        "# why\n        cpu_offload=CPUOffload(offload_params=False),",
        "# why\n        sync_module_states=False,",
        "# why\n        device_id=None,",
        "use_orig_params=True,  # why",
        "sync_module_states=False,  # why",
    ],
)
def test_a_comment_on_what_is_gone_goes(arguments: str) -> None:
    assert "why" not in emitted(arguments)


@pytest.mark.parametrize(
    ("comment", "stays"),
    [
        ("# backward_prefetch=BackwardPrefetch.BACKWARD_PRE,", False),
        ("# device_id=rank, limit_all_gathers=True", False),
        ("#sharding_strategy=ShardingStrategy.NO_SHARD,", False),
        ("# seed=1,", True),
        ("# sharding_strategy = FULL_SHARD needs more memory", True),
        ("# sharding_strategy", True),
    ],
)
def test_an_argument_that_was_switched_off_goes_with_the_call(comment: str, stays: bool) -> None:
    given = f"{comment}\n        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,"
    assert (comment in emitted(given)) is stays


LONG = """mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16,  # first
            reduce_dtype=torch.float32,  # second
            cast_root_forward_inputs=False,
        ),"""


def test_comments_behind_arguments_stay_behind_them() -> None:
    after = emitted(LONG, 60)
    assert "param_dtype=torch.bfloat16,  # first\n" in after
    assert "reduce_dtype=torch.float32,  # second\n" in after
    assert after.count("# first") == after.count("# second") == 1


def test_where_the_line_is_too_short_they_stand_above() -> None:
    long = "a sentence that is as long as the line"
    after = emitted(LONG.replace("first", long), 60)
    assert f"    # {long}\n" in after
    assert "reduce_dtype=torch.float32,  # second\n" in after


def test_where_arguments_share_a_line_they_stand_above() -> None:
    after = emitted(LONG, 120)
    assert "    # first\n    # second\n" in after
    assert max(map(len, after.splitlines())) <= 120


def test_a_word_behind_a_translated_argument_needs_its_argument() -> None:
    after = emitted("sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # zero2\n", 88)
    assert "zero2" not in after
    after = emitted("sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # zero2", 40)
    assert "zero2" not in after or "reshard_after_forward=False,  # zero2\n" in after


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", ["    ", "\t", "  "])
def test_line_ends_and_indents_stay(end: str, indent: str) -> None:
    text = CALL.format(arguments=LONG).replace("    ", indent).replace("\n", end)
    result, after = migrate({"a.py": text}, Options(line_length=60))
    assert not result.problems
    new = after["a.py"]
    assert new.count(end) == new.count("\n")
    assert f"{indent * 2}param_dtype=torch.bfloat16,  # first{end}" in new


def test_a_marker_stands_above_the_comments_that_stay() -> None:
    after = emitted(
        "# why\n        cpu_offload=CPUOffload(True),\n        "
        "# units\n        auto_wrap_policy=args.policy,"
    )
    lines = [line.strip() for line in after.splitlines() if line.strip().startswith("#")]
    assert lines[0].startswith("# TODO(fsdp-migrate FSDP")
    assert lines.index("# why") > max(
        n for n, line in enumerate(lines) if line.startswith(("# TODO", "#     "))
    )


UNSET = """\
from dataclasses import dataclass

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


@dataclass
class Plugin:
    precision: MixedPrecision | None = None

    def kwargs(self):
        found = {"use_orig_params": True}
        if self.precision is not None:
            found.update(mixed_precision=self.precision)
        BEHIND


def main(net):
    return FSDP(net, **Plugin().kwargs())
"""


@pytest.mark.parametrize(
    "behind",
    ["return found", "found |= {'forward_prefetch': True}\n        return found"],
)
def test_the_marker_of_a_statement_that_goes_stands_above_the_next(behind: str) -> None:
    _, after = migrate({"a.py": UNSET.replace("BEHIND", behind)})
    lines = [line.strip() for line in after["a.py"].splitlines()]
    assert "found.update" not in after["a.py"]
    marked = next(n for n, line in enumerate(lines) if "Nothing here sets self.precision" in line)
    assert lines[marked + 2].startswith("return")


@pytest.mark.parametrize(
    ("around", "under"),
    [
        ("if self.more:\n            log()\n            ", "log()"),
        ("if self.more:\n            ", "return found"),
        ("if self.more:\n            log()\n        else:\n            ", "if self.more:"),
    ],
)
def test_with_nothing_behind_it_stands_in_front_or_around(around: str, under: str) -> None:
    text = UNSET.replace("if self.precision", f"{around}if self.precision")
    text = text.replace("            found", " " * 16 + "found").replace("BEHIND", "return found")
    _, after = migrate({"a.py": text})
    lines = [line.strip() for line in after["a.py"].splitlines()]
    assert "found.update" not in after["a.py"]
    marked = next(n for n, line in enumerate(lines) if "Nothing here sets self.precision" in line)
    assert lines[marked + 2] == under


LONE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def state_of(net):
    model = FSDP(net)
    return model.state_dict()  COMMENT
"""


@pytest.mark.parametrize(
    ("comment", "is_above"),
    [
        ("# of whatever kind the model is set to", True),
        ("# short", False),
        ("# noqa: a very long list of codes that a tool reads here", False),
        ("# type: ignore[because of a long explanation that has to be here]", False),
    ],
)
def test_a_comment_for_which_there_is_no_room_stands_above(comment: str, is_above: bool) -> None:
    text = LONE.replace("COMMENT", comment)
    result, after = migrate({"a.py": text}, Options(line_length=100))
    assert not result.problems
    assert (f"    {comment}\n    return get_model_state_dict(" in after["a.py"]) is is_above
    assert after["a.py"].count(comment) == 1


def test_a_comment_that_was_too_long_stays_behind() -> None:
    comment = "# " + "long " * 20 + "end"
    _, after = migrate({"a.py": LONE.replace("COMMENT", comment)}, Options(line_length=100))
    assert f")  {comment}\n" in after["a.py"]


PARAGRAPH = """\
from functools import partial
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from layers import Block


def build(model):
    print("start")
ABOVE    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
BETWEEN    model = FSDP(model, auto_wrap_policy=policy)
    return model
"""


@pytest.mark.parametrize(
    ("above", "between", "stays"),
    [
        ("\n    # [5] the model\n", "", True),
        ("\n    # [5] the model\n    # is sharded\n", "", True),
        ("    # the policy\n", "", False),  # it heads no paragraph
        ("\n    # the policy\n", "\n", False),
        ("\n    # the policy\n", "    # the model\n", False),
    ],
)
def test_a_comment_that_heads_a_paragraph_stays_when_its_first_statement_goes(
    above: str, between: str, stays: bool
) -> None:
    source = PARAGRAPH.replace("ABOVE", above).replace("BETWEEN", between)
    _, after = migrate({"a.py": source})
    assert "transformer_auto_wrap_policy" not in after["a.py"]
    assert (above in after["a.py"]) is stays


@pytest.mark.parametrize("end", ["\n    ", "    ", "\n\t", "\n\n  # no newline"])
def test_a_file_may_end_in_spaces(end: str) -> None:
    many = "".join(f"    print({n})\n" for n in range(12))
    head, _, body = PARAGRAPH.replace("ABOVE", "").replace("BETWEEN", "").partition("def build")
    source = f"{head}def build{body}\n\ndef others():\n{many}{end}"
    result, after = migrate({"a.py": source})
    assert not result.problems
    assert "fully_shard(model)" in after["a.py"]
    assert after["a.py"].endswith(f"{many}{end}")


ABOVE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, other):
    net = net.cuda()
    COMMENT
    model = FSDP(net, use_orig_params=True)
    print(model)
    return model
"""


@pytest.mark.parametrize(
    "comment",
    ["# Need use_orig_params=True to compile", "# torch.compile wants `use_orig_params` to be set"],
)
def test_a_comment_on_an_argument_that_is_gone_goes(comment: str) -> None:
    after = migrate({"a.py": ABOVE.replace("COMMENT", comment)})[1]["a.py"]
    assert "use_orig_params" not in after
    assert "    net = net.cuda()\n    model = fully_shard(net)\n" in after


@pytest.mark.parametrize(
    "comment",
    [
        "# each rank holds a part",
        "# the names of files matter\n    # (and use_orig_params=True keeps them)",
        "# auto_wrap_policy: one unit is enough",
    ],
)
def test_a_comment_that_says_more_stays(comment: str) -> None:
    after = migrate({"a.py": ABOVE.replace("COMMENT", comment)})[1]["a.py"]
    assert f"    {comment}\n    model = fully_shard(net)\n" in after


def test_a_comment_on_an_argument_of_another_call_stays() -> None:
    other = ABOVE.replace("print(model)", "COMMENT\n    print(model)").replace(
        "    COMMENT\n", "", 1
    )
    other = other.replace("COMMENT", "# use_orig_params is what made the names")
    after = migrate({"a.py": other})[1]["a.py"]
    assert "    # use_orig_params is what made the names\n    print(model)\n" in after


def test_what_is_left_keeps_its_comment() -> None:
    left = ABOVE.replace("COMMENT", "# use_orig_params=True, to compile").replace(
        "net, use", "*net, use"
    )
    after = migrate({"a.py": left})[1]["a.py"]
    assert "# use_orig_params=True, to compile\n" in after
