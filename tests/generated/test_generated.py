"""One program with something hidden from each fixture and example.

``python -m tests.generated`` makes thousands.
"""

from __future__ import annotations

import pytest

from fsdp_migrate.report import event, text
from tests.generated import hiding, making
from tests.helpers.migrating import migrate

SEED, PARTS = 20261123, 8

PROGRAM = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{above}

def train(net, batches):
    model = FSDP(net)
    hidden = {hidden}
    for batch in batches:
        hidden(batch).sum().backward()
        {asked}
"""


@pytest.fixture(scope="module")
def bases() -> list[making.Base]:
    return list(making.bases())


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_silent(part: int, bases: list[making.Base]) -> None:
    made = making.cases(bases[part::PARTS], SEED)
    silent = {str(case): found for case in made if (found := making.unsaid(case))}
    assert not silent


def test_most_fixtures_and_examples_are_hidden_in(bases: list[making.Base]) -> None:
    assert len(bases) > 450
    assert sum(base.name.startswith("fixtures/") for base in bases) > 40


@pytest.mark.parametrize("way", hiding.EXPRESSIONS)
@pytest.mark.parametrize(
    "asked", ["torch.save({}.state_dict(), 'a')", "{}.clip_grad_norm_(1.0)", "print({}.module)"]
)
def test_what_a_hidden_model_is_asked_for(way: str, asked: str) -> None:
    """It is rewritten, or marked, for every way there is."""
    form, _, above = hiding.EXPRESSIONS[way].partition("|")
    given = PROGRAM.format(
        above=above, hidden=form.format("model", "model"), asked=asked.format("hidden")
    )
    _, after = migrate({"train.py": given})
    assert "fully_shard" in after["train.py"]
    unchanged = asked.format("hidden") in after["train.py"]
    assert not unchanged or "TODO(fsdp-migrate" in after["train.py"]


@pytest.mark.parametrize("name", ["parameters", "named_modules", "register_forward_hook"])
def test_the_report_names_what_is_used_and_not_followed(name: str) -> None:
    given = PROGRAM.format(
        above="import elsewhere", hidden="elsewhere.passed(model)", asked=f"print(hidden.{name}())"
    )
    result, _ = migrate({"train.py": given})
    assert text.not_followed_lines(event.summary(result)) == [
        "What passed() does with a model is not followed: see train.py:11"
    ]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (
            "torch.cat([0, [p.grad.flatten() for p in model.parameters()]].pop())",
            "What pop() does with a model is not followed: see train.py:12",
        ),
        (
            "torch.nn.utils.parameters_to_vector(elsewhere.chosen(model.parameters()))",
            "What chosen() does with a model is not followed: see train.py:12",
        ),
        (
            "save_model(elsewhere.passed(torch.nn.Sequential(model)), 'a')",
            "What passed() does with a model is not followed: see train.py:12",
        ),
    ],
)
def test_parameters_and_parts_behind_what_is_not_followed(asked: str, line: str) -> None:
    above = "import elsewhere\nfrom safetensors.torch import save_model"
    given = PROGRAM.format(above=above, hidden="model", asked=asked)
    result, _ = migrate({"train.py": given})
    assert line in text.not_followed_lines(event.summary(result))


BOX = """import elsewhere, typing
class Box(torch.nn.Module):
    def __init__(self, net=None):
        super().__init__()
        self.net = net
def last(*things):
    return things[-1]
def product(a, b):
    return torch.sum(typing.cast("object", a) * b)"""


@pytest.mark.parametrize(
    ("hidden", "asked", "said"),
    [
        ("Box(elsewhere.passed(model))", "torch.save({}.state_dict(), 'a')", "passed"),
        (
            "torch.nn.Sequential(elsewhere.passed(model))",
            "torch.save({}.state_dict(), 'a')",
            "passed",
        ),
        ("torch.nn.ModuleDict({'a': last(0, model)})", "torch.save({}.state_dict(), 'a')", "state"),
        ("elsewhere.Box(model)", "torch.save({}.state_dict(), 'a')", "Box"),
        ("elsewhere.Box(); hidden.net = model", "torch.save({}.state_dict(), 'a')", "Box"),
        (
            "Box(); hidden.add_module('a', next(m for m in [model]))",
            "print({}.state_dict())",
            "state",
        ),
        ("torch.compile(last(*(0, model)))", "print(isinstance({}._orig_mod, Box))", None),
        ("[p.grad for p in model.parameters()]", "print(sum(map(product, {}, {})))", "cast"),
        ("[p.grad for p in model.parameters()]", "map(torch.norm, next(x for x in [{}]))", "next"),
        (
            "list(model.parameters())",
            "torch.nn.utils.clip_grad_value_(next(x for x in [{}]), 0.1)",
            "next",
        ),
        ("[p.shape for p in model.parameters()]", "map(torch.prod, next(x for x in [{}]))", None),
    ],
)
def test_what_went_into_what_is_asked(hidden: str, asked: str, said: str | None) -> None:
    """It is rewritten, or the report names it; None where it is no question of that model."""
    given = PROGRAM.format(above=BOX, hidden=hidden, asked=asked.format("hidden", "hidden"))
    result, after = migrate({"train.py": given})
    lines = text.not_followed_lines(event.summary(result))
    if said == "state":
        assert "get_model_state_dict(" in after["train.py"]
    else:
        assert any(f"What {said}() does" in line for line in lines) is (said is not None)


@pytest.mark.parametrize(
    "asked", ["isinstance((lambda: part)(), Net)", "(lambda: part)().state_dict()"]
)
def test_a_free_name_of_a_lambda(asked: str) -> None:
    """It is what the function around it has: the element of a loop."""
    given = (
        PROGRAM.format(above="", hidden="None", asked="pass")
        + f"""
class Net(torch.nn.Module):
    pass

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = FSDP(Net())

def look(whole):
    for part in whole.children():
        print({asked})

look(Whole())
"""
    )
    result, _ = migrate({"train.py": given})
    assert any(each.line == 23 for each in result.not_followed)


OF_MANY = """
class Net(torch.nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(4, 4))
        self.heads = torch.nn.ModuleDict({name: HEAD for name in heads})

    def clip(self):
        for head in self.heads.values():
            head.clip_grad_norm_(1.0)

def taken(**things):
    return things["net"]

model = FSDP(Net("ab"))
optimizer = torch.optim.AdamW(model.parameters())
models = [max([FSDP(torch.nn.Linear(4, 4))], key=id) for _ in range(2)]
others = [max([torch.nn.Linear(4, 4)], key=id) for _ in range(2)]
parts = {"rate": 0.1, "model": model}
ASKED
"""


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [
        ("elsewhere.Holder(optimizer).net.load_state_dict(saved)", True),
        ("elsewhere.Holder(optimizer).scheduler.load_state_dict(saved)", False),
        ("print((model.encoder,)[0].state_dict())", True),
        ("print((model.config,)[0].state_dict())", False),
        ("print([n for n, part in parts.items() if isinstance((lambda: part)(), Net)])", True),
        ("print([n for n in range(2) if isinstance((lambda: n)(), Net)])", False),
        ("print([p.grad.norm() for m in models for p in m.parameters()])", True),
        ("print([p.grad.norm() for m in others for p in m.parameters()])", False),
    ],
)
def test_what_one_of_many_is_asked(asked: str, is_said: bool) -> None:
    given = PROGRAM.format(above="import elsewhere", hidden="None", asked="pass")
    given += OF_MANY.replace("ASKED", asked).replace("HEAD", "torch.nn.Linear(4, 1)")
    result, _ = migrate({"train.py": given})
    line = given[: given.index(asked)].count("\n") + 1
    assert any(each.line == line for each in result.not_followed) is is_said


@pytest.mark.parametrize(
    ("head", "code"),
    [("taken(net=FSDP(torch.nn.Linear(4, 1)))", "FSDP401"), ("torch.nn.Linear(4, 1)", "")],
)
def test_what_a_dictionary_of_modules_is_written_with(head: str, code: str) -> None:
    given = PROGRAM.format(above="", hidden="None", asked="pass")
    given += OF_MANY.replace("ASKED", "").replace("HEAD", head)
    result, _ = migrate({"train.py": given})
    line = given[: given.index("head.clip")].count("\n") + 1
    found = [each.code for each in result.decisions if each.site.position[0] == line]
    assert found == [code] * bool(code)


@pytest.mark.parametrize(
    ("hidden", "asked"),
    [
        ("Box(net)", "print({}.state_dict())"),  # not the model
        ("elsewhere.Scheduler(0.1)", "print({}.state_dict())"),
        ("elsewhere.passed(0)", "print(torch.sum(2 * {}))"),
        ("elsewhere.Box(model)", "print({}.size)"),
    ],
)
def test_what_no_model_went_into(hidden: str, asked: str) -> None:
    given = PROGRAM.format(above=BOX, hidden=hidden, asked=asked.format("hidden"))
    result, _ = migrate({"train.py": given})
    assert not result.not_followed


@pytest.mark.parametrize(
    "hidden",
    [
        "elsewhere.Monitor(model)",  # an object of another class
        "model.named_parameters()",
        "elsewhere.loss_of(batches)",
        "torch.optim.AdamW(model.parameters())",
        "elsewhere.passed(net.config)",
    ],
)
def test_what_is_no_model_is_not_spoken_of(hidden: str) -> None:
    given = PROGRAM.format(above="import elsewhere", hidden=hidden, asked="hidden.parameters()")
    result, after = migrate({"train.py": given})
    assert not result.not_followed
    assert "TODO" not in after["train.py"]


JOINED = {
    "reduce": (
        "def join(vector, p):\n    return torch.cat((vector, PART))\n"
        "functools.reduce(join, model.parameters(), torch.zeros(0))"
    ),
    "a loop": "for p in model.parameters():\n    flat = torch.cat([flat, PART])",
    "a list": "flat = torch.cat([PART for p in model.parameters()])",
    "a list under a name": "parts = [PART for p in model.parameters()]\nflat = torch.cat(parts)",
    "a list that grows": (
        "parts = []\nfor p in model.parameters():\n    parts.append(PART)\n"
        "flat = torch.hstack(parts)"
    ),
}


@pytest.mark.parametrize("joined", JOINED)
@pytest.mark.parametrize(
    ("part", "is_said"),
    [
        ("typing.cast('object', p.grad).reshape(-1)", True),
        ("typing.cast('object', p.grad.view(-1))", True),
        ("torch.flatten([0, p.grad].pop())", True),
        ("elsewhere.passed(p.grad.detach().view(-1)).float()", True),
        ("elsewhere.passed(p.shape).view(-1)", False),
        ("torch.zeros(4).view(-1)", False),
    ],
)
def test_what_is_put_into_a_vector(joined: str, part: str, is_said: bool) -> None:
    given = PROGRAM.format(above="import elsewhere, functools, typing", hidden="None", asked="pass")
    given += "\nmodel = FSDP(torch.nn.Linear(4, 4), use_orig_params=True)\nflat = torch.zeros(0)\n"
    given += JOINED[joined].replace("PART", part)
    result, _ = migrate({"train.py": given})
    line = given[: given.index(part)].count("\n") + 1
    assert [each.line for each in result.not_followed] == [line] * is_said


@pytest.mark.parametrize("joined", JOINED)
@pytest.mark.parametrize(
    ("part", "after"),
    [
        ("p.grad.view(-1)", "own_part(p.grad).view(-1)"),
        ("p.grad.abs().view(-1)", "own_part(p.grad).abs().view(-1)"),
        ("torch.flatten(p.grad)", "torch.flatten(own_part(p.grad))"),
        ("torch.abs(p.grad).flatten()", "torch.abs(own_part(p.grad)).flatten()"),
        ("p.grad.view(-1).pow(2)", "own_part(p.grad).view(-1).pow(2)"),
        ("torch.flatten(p.step)", "torch.flatten(p.step)"),
        ("torch.flatten(flat)", "torch.flatten(flat)"),
    ],
)
def test_what_flattens_a_part_of_a_vector(joined: str, part: str, after: str) -> None:
    given = PROGRAM.format(above="import functools", hidden="None", asked="pass")
    given += "\nmodel = FSDP(torch.nn.Linear(4, 4), use_orig_params=True)\nflat = torch.zeros(0)\n"
    given += JOINED[joined].replace("PART", part)
    _, files = migrate({"train.py": given})
    assert after in files["train.py"]


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [
        ("torch.numel((hidden := p))", True),
        ("torch.numel(typing.cast('object', p.view(-1)))", True),
        ("torch.std(elsewhere.passed(p), unbiased=False)", True),
        ("len(torch.flatten([0, p].pop()))", True),
        ("torch.numel({'net': p}['net'])", True),
        ("torch.numel((hidden := batch))", False),
        ("torch.numel({'net': batch}['net'])", False),
        ("torch.std(elsewhere.passed(p.name))", False),
        ("len(elsewhere.passed(p))", False),
        ("len(torch.flatten(elsewhere.passed(p.shape)))", False),
    ],
)
def test_what_functions_of_torchs_ask(asked: str, is_said: bool) -> None:
    given = PROGRAM.format(above="import elsewhere, typing", hidden="None", asked="pass")
    given += "\nbatch = torch.zeros(4)\nmodel = FSDP(torch.nn.Linear(4, 4), use_orig_params=True)\n"
    given += f"for p in model.parameters():\n    print({asked})\n"
    result, _ = migrate({"train.py": given})
    assert bool(result.not_followed) is is_said


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [
        ("(lambda it: it)(value).numel()", True),
        ("torch.numel([0, value].pop())", True),
        ("(lambda it: it)(plain).numel()", False),
    ],
)
def test_tensors_of_an_optimizers_state(asked: str, is_said: bool) -> None:
    given = PROGRAM.format(above="", hidden="None", asked="pass")
    given += "\nplain = torch.zeros(4)\nmodel = FSDP(torch.nn.Linear(4, 4), use_orig_params=True)\n"
    given += "optimizer = torch.optim.AdamW(model.parameters())\n"
    given += "for state in optimizer.state.values():\n    for key, value in state.items():\n"
    result, _ = migrate({"train.py": f"{given}        print({asked})\n"})
    assert bool(result.not_followed) is is_said


def test_a_chosen_class_that_a_lambda_calls() -> None:
    """Its name is of the scope around, which stopped the whole run."""
    given = (
        PROGRAM.format(above="flag = bool(1)", hidden="None", asked="pass")
        + """
def build(net):
    wrapper = FSDP if flag else torch.nn.Identity
    model = (lambda: wrapper(net))()
    return model
"""
    )
    result, after = migrate({"train.py": given})
    assert not result.problems
    assert "wrapper = shard if flag else torch.nn.Identity" in after["train.py"]


LOADER = """
class Strategy:
    def prepare(self, *given):
        made = [self.wrap(each) for each in given]
        return made[0] if len(made) == 1 else made

    def wrap(self, net):
        model = FSDP(net)
        return model, torch.optim.AdamW(model.parameters())

    def load(self, model, optimizer, scheduler, path):
        model.load_state_dict(torch.load(f"{path}/model.pt"))
        ASKED
"""


@pytest.mark.parametrize(
    ("optimizer", "is_said"),
    [
        ("optimizer", True),
        ("{'net': optimizer}['net']", True),
        ("[scheduler, optimizer][-1]", True),
        ("(lambda it: it)(optimizer)", True),
        ("elsewhere.passed(optimizer)", True),
        ("elsewhere.passed(scheduler)", False),
        ("elsewhere.Scheduler(optimizer)", False),
        ("scheduler", False),
        ("{'other': scheduler}['other']", False),
    ],
)
def test_an_optimizer_by_its_name_behind_what_holds_it(optimizer: str, is_said: bool) -> None:
    given = "import elsewhere, torch\n"
    given += "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    given += LOADER.replace("ASKED", f"{optimizer}.load_state_dict(torch.load(path))")
    result, after = migrate({"train.py": given})
    assert ("FSDP312" in after["train.py"] or bool(result.not_followed)) is is_said


@pytest.mark.parametrize(
    ("part", "is_said"),
    [
        ("model.llm", True),
        ("(model.llm or flag)", True),
        ("(flag if flag else model.llm)", True),
        ("elsewhere.passed(model.llm)", True),
        ("(model.tokenizer or flag)", False),
        ("elsewhere.passed(flag)", False),
    ],
)
def test_an_adapter_that_is_a_part(part: str, is_said: bool) -> None:
    given = f"""import elsewhere
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, path, flag=None):
    model = FSDP(net)
    {part}.save_pretrained(path)
"""
    result, after = migrate({"train.py": given})
    is_whole = "get_model_state_dict(" in after["train.py"]
    assert (is_whole or bool(result.not_followed)) is is_said
