"""An optimizer that is built before another function wraps its model trains nothing then."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.engine import Result
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


"""
TRAINER = """\
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def shard(self):
        self.model = FSDP(self.model, use_orig_params=True)
"""
CALLED = f"""{TRAINER}

def main(net):
    trainer = Trainer(net)
    trainer.shard()
"""
IN_BASE = """\
class Base:
    def finish(self):
        self.model = FSDP(self.model, use_orig_params=True)


class Bench(Base):
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.finish()
"""
GIVEN_BOTH = """\
def prepare(model, optimizer):
    return FSDP(model, use_orig_params=True), optimizer


def main(net):
    optimizer = torch.optim.AdamW(net.parameters())
    net, optimizer = prepare(net, optimizer)
    return net, optimizer
"""
IN_ENGINE = """\
class Engine:
    def __init__(self, net):
        self.model = FSDP(net, use_orig_params=True)


def main(net):
    optimizer = torch.optim.AdamW(net.parameters())
    engine = Engine(net)
    return engine, optimizer
"""
GIVEN_ITS_OPTIMIZER = """\
class Engine:
    def __init__(self, net, optimizer):
        self.model = FSDP(net, use_orig_params=True)
        self.optimizer = optimizer


def main(net):
    return Engine(net, torch.optim.AdamW(net.parameters()))
"""


@pytest.mark.parametrize("program", [TRAINER, CALLED, IN_BASE, GIVEN_BOTH, GIVEN_ITS_OPTIMIZER])
def test_it_holds_its_model_back(program: str) -> None:
    result, after = migrate({"a.py": HEAD + program})
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
    assert ("FSDP403", Outcome.LEFT) in outcomes(result)
    assert "fully_shard(" not in after["a.py"]


def test_it_moves_behind_the_call_that_wraps() -> None:
    result, after = migrate({"a.py": HEAD + IN_ENGINE})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert after["a.py"].index("Engine(net)") < after["a.py"].index("optimizer = ")


BUILDER = """\
import torch


def build(model, cfg):
    named = list(model.named_parameters())
    groups = []
    for group_cfg in cfg.groups:
        group = []
        for name, p in named:
            if p.requires_grad and name.startswith(group_cfg.prefix):
                group.append(p)
        groups.append({"params": group, "lr": group_cfg.lr})
    return torch.optim.AdamW(groups)
"""
SETUP = """\
from build import build
from torch import nn


def setup(cfg):
    model = nn.Linear(2, 2).to(cfg.device)
    return model, build(model, cfg)
"""
MAIN = """\
from setups import setup


def wrap(model):
    return FSDP(model, use_orig_params=True)


def main(cfg):
    model, optimizer = setup(cfg)
    model = wrap(model)
    return model, optimizer


def tune(cfg):
    model, optimizer = setup(cfg)
    model = wrap(model)
    return model, optimizer
"""
FILTERED = BUILDER.replace("AdamW(groups)", "AdamW(filter(lambda p: p.requires_grad, chosen))")
CHOSEN = "    chosen = model.parameters()\n    return"


@pytest.mark.parametrize(
    "builder",
    [
        BUILDER,
        FILTERED.replace("    return", CHOSEN),
        BUILDER.replace("AdamW(groups)", "AdamW([p for _, p in named])"),
    ],
)
@pytest.mark.parametrize("main", [MAIN, MAIN[: MAIN.index("def tune")]])
def test_its_parameters_may_come_in_groups_and_its_model_from_other_programs(
    builder: str, main: str
) -> None:
    files = {"a.py": HEAD + main, "build.py": builder, "setups.py": SETUP}
    result, _ = migrate(files)
    assert outcomes(result).count(("FSDP403", Outcome.LEFT)) == 1


RUN_BY_TWO = """\
from torch import nn


def get():
    return nn.Linear(2, 2)


def build(model):
    return torch.optim.AdamW([{"params": [p for p in model.parameters()]}])


def wrap(model):
    return FSDP(model, use_orig_params=True)


def run(net):
    optimizer = build(net)
    model = wrap(net)
    return model, optimizer


def main():
    run(get())


def tune():
    run(get())
"""
TWO_OBJECTS = RUN_BY_TWO.replace("run(net)", "run(net, other)").replace("wrap(net)", "wrap(other)")
TWO_OBJECTS = TWO_OBJECTS.replace("run(get())", "run(get(), get())")


def test_an_object_of_two_programs_that_one_function_is_given() -> None:
    result, _ = migrate({"a.py": HEAD + RUN_BY_TWO})
    assert outcomes(result).count(("FSDP403", Outcome.LEFT)) == 1
    result, _ = migrate({"a.py": HEAD + TWO_OBJECTS})
    assert not [d for d in result.decisions if d.code == "FSDP403"]


IN_GROUPS = """\
def main(net):
    decayed = [p for n, p in net.named_parameters() if p.ndim > 1]
    optimizer = torch.optim.AdamW([{"params": decayed}])
    net = FSDP(net, use_orig_params=True)
    return net, optimizer
"""


def test_groups_that_are_made_beside_the_wrap_are_one_site() -> None:
    result, _ = migrate({"a.py": HEAD + IN_GROUPS})
    assert len([d for d in result.decisions if d.code == "FSDP403"]) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    model = wrap(model)\n", "    teacher = wrap(nn.Linear(2, 2))\n"),
        ("setup(cfg)\n    model = wrap(model)", "setup(cfg, wrap)"),  # wrapped first
        ("    model = wrap(model)\n", "    teacher = wrap(setup(cfg)[0])\n"),
    ],
)
def test_groups_of_models_that_are_wrapped_before_or_not_at_all(old: str, new: str) -> None:
    main = MAIN[: MAIN.index("def tune")].replace(old, new)
    setup = SETUP.replace("(cfg):", "(cfg, wrap=None):")
    if new.endswith("wrap)"):
        setup = setup.replace("    return", "    model = wrap(model)\n    return")
    files = {"a.py": f"{HEAD}from torch import nn\n{main}", "build.py": BUILDER, "setups.py": setup}
    result, _ = migrate(files)
    assert not [d for d in result.decisions if d.code == "FSDP403"]


WRAPPED_FIRST = """\
class Engine:
    def __init__(self, net):
        self.net = net
        self.model = FSDP(net, use_orig_params=True)

    def configure(self):
        self.optimizer = torch.optim.AdamW(self.net.parameters())


def main(net):
    engine = Engine(net)
    return engine, torch.optim.AdamW(net.parameters())
"""
OF_OTHERS = """\
def get_model():
    return Net()


def wrap(model):
    return FSDP(model, use_orig_params=True)


def distill():
    student = get_model()
    optimizer = torch.optim.AdamW(student.parameters())
    teacher = wrap(get_model())
    return student, teacher, optimizer


def plain():
    model = get_model()
    return model, torch.optim.AdamW(model.parameters())


def main():
    plain()
    distill()
"""
OTHER_ARM = """\
def prepare(model):
    return FSDP(model, use_orig_params=True)


def main(args, net):
    if args.fsdp:
        model = prepare(net)
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        optimizer = torch.optim.AdamW(net.parameters())
        model = net
    return model, optimizer
"""


@pytest.mark.parametrize(
    "program",
    [
        WRAPPED_FIRST,
        OF_OTHERS,
        OTHER_ARM,
        TRAINER.replace(", use_orig_params=True", ""),  # FSDP1 did not train it either
        GIVEN_BOTH.replace("True", "False"),
        GIVEN_BOTH.replace("torch.optim.AdamW", "list"),
        GIVEN_BOTH.replace(
            "return FSDP(model, use_orig_params=True), optimizer",
            "model = FSDP(model, use_orig_params=True)\n"
            "    optimizer.__init__(model.parameters(), **optimizer.defaults)\n"
            "    return model, optimizer",
        ),
    ],
)
def test_others_hold_nothing_back(program: str) -> None:
    result, _ = migrate({"a.py": HEAD + program})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}


def test_parameters_that_move_behind_the_wrap_are_no_early_ones() -> None:
    program = """\
def build_optimizer(model):
    return torch.optim.AdamW(model.parameters())


def main(net):
    optimizer = build_optimizer(net)
    net = FSDP(net, use_orig_params=True)
    return net, optimizer
"""
    result, after = migrate({"a.py": HEAD + program})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert after["a.py"].index("fully_shard(net)") < after["a.py"].index("= build_optimizer")


UNSEEN = "an optimizer that is built before wrap() is called, out of sight, trains nothing"


def is_marked(result: Result) -> bool:
    return any(UNSEEN in d.help for d in result.decisions)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return FSDP(model, use_orig_params=True)", True),
        ("return FSDP(model, **settings)", True),
        ("return FSDP(model)", False),  # whose early optimizers FSDP1 did not train either
        (
            "model = FSDP(model, use_orig_params=True)\n"
            "    return model, torch.optim.AdamW(model.parameters())",
            False,
        ),
    ],
)
def test_what_calls_a_wrapping_function_out_of_sight_is_told(body: str, said: bool) -> None:
    result, _ = migrate({"a.py": f"{HEAD}def wrap(model, settings):\n    {body}\n"})
    assert (UNSEEN in {place.why for place in result.not_followed}) is said
    assert not is_marked(result)  # nothing of the project calls it


def test_a_wrapping_method_that_asks_its_base_first_is_told() -> None:
    program = """\
class Base:
    def wrap(self, model, settings):
        return model


class Sharding(Base):
    def wrap(self, model, settings):
        model = super().wrap(model, settings)
        return FSDP(model, **settings)
"""
    result, _ = migrate({"a.py": HEAD + program})
    assert is_marked(result)
    made = program.replace("super().wrap(model, settings)", "self.build(settings)")
    result, _ = migrate({"a.py": HEAD + made})
    assert not is_marked(result)


def test_a_caller_in_sight_tells() -> None:
    program = """\
def wrap(model):
    return FSDP(model, use_orig_params=True)


if __name__ == "__main__":
    net = wrap(torch.nn.Linear(2, 2))
"""
    result, _ = migrate({"a.py": HEAD + program})
    assert not result.not_followed


def test_groups_of_an_optimizer_that_another_file_builds() -> None:
    build = (
        "import torch\n\n\ndef build(model):\n    return torch.optim.AdamW(model.parameters())\n"
    )
    program = """\
from b import build


def main(net):
    model = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)
    optimizer = build(model)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.mul_(0.5)
    return model, optimizer
"""
    result, _ = migrate({"a.py": HEAD + program, "b.py": build})
    assert not result.problems
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN, Outcome.REVIEW}


def test_a_class_that_wraps_is_named_and_not_its_init() -> None:
    result, _ = migrate(
        {
            "engine.py": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
            "class Engine:\n"
            "    def __init__(self, net):\n"
            "        self.model = FSDP(net, use_orig_params=True)\n"
        }
    )
    assert any("before Engine() is called" in place.why for place in result.not_followed)


IN_LISTS = """\
class Strategy:
    def setup(self, model, plain):
        self.model = FSDP(model, use_orig_params=True)
        decay, others = [], []
        for name, p in MODEL.named_parameters():
            if name.endswith("bias"):
                others.append(p)
            else:
                decay.append(p)
        groups = [{"params": decay}, {"params": others, "weight_decay": 0.0}]
        BUILT
"""
UNSEEN_OPTIMIZER = "An optimizer that is built before setup() is called"


def in_lists(model: str, built: str) -> str:
    program = IN_LISTS.replace("MODEL", model).replace("BUILT", built)
    return migrate({"a.py": HEAD + program})[1]["a.py"]


def test_a_method_that_builds_its_optimizer_from_lists_is_not_asked_for_another() -> None:
    built = "self.optimizer = torch.optim.AdamW(groups, lr=0.1)"
    assert UNSEEN_OPTIMIZER not in in_lists("self.model", built)


@pytest.mark.parametrize(
    ("model", "built"),
    [
        ("self.model", "self.groups = groups"),
        ("plain", "self.optimizer = torch.optim.AdamW(groups, lr=0.1)"),
        ("self.model", "self.optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)"),
    ],
)
def test_an_optimizer_of_something_else_does_not_tell(model: str, built: str) -> None:
    assert UNSEEN_OPTIMIZER in in_lists(model, built)


TABLES = """\
def main(net, other):
    by = {"head": [], "blocks": []}
    for name, p in NET.named_parameters():
        by[name.split(".")[0]].append(p)
    table = dict(NET.named_parameters())
    each = []
    for m in NET.modules():
        own = list(m.parameters(recurse=False))
        each.append({"params": own})
    optimizer = torch.optim.AdamW(GIVEN, lr=0.1)
    model = FSDP(net, use_orig_params=True)
    model(batch).sum().backward()
    optimizer.step()
"""
GIVEN = [
    '[{"params": ps} for ps in by.values()]',
    '[{"params": ps, "lr": rates[k]} for k, ps in by.items()]',
    "[table[name] for name in sorted(table)]",
    "each",
]


@pytest.mark.parametrize("given", GIVEN)
def test_what_flows_into_an_optimizer_is_what_it_gets(given: str) -> None:
    program = HEAD + TABLES.replace("GIVEN", given)
    result, after = migrate({"a.py": program.replace("NET", "net")})
    assert [d.outcome for d in result.decisions if d.code == "FSDP403"] == [Outcome.LEFT]
    assert "FSDP(net, use_orig_params=True)" in after["a.py"]
    result, after = migrate({"a.py": program.replace("NET", "other")})
    assert "FSDP403" not in {d.code for d in result.decisions}
    assert "fully_shard(net)" in after["a.py"]
