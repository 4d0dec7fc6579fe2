"""``self.kind == "ddp"``: an attribute that is set with the model tells who wrapped it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Backend:
    def __init__(self):
        self.module = None
        self.kind = "none"

    def prepare(self, model, wrap, sharded):
        if not wrap:
            self.module = model
            self.kind = "none"
        else:
            if sharded:
                model = FSDP(model)
                self.kind = "fsdp"
            else:
                model = DDP(model)
                self.kind = "ddp"
            self.module = model
        return self.module

    def state(self):
        if self.kind == "ddp":
            return self.module.module.state_dict()
        return None
"""
STATE = "    def state(self)"
ASKED = 'if self.kind == "ddp":'
TOLD = {
    "the name of another wrapper": {},
    "any name but one": {ASKED: 'if self.kind != "fsdp":'},
    "one of several": {ASKED: 'if self.kind in ("ddp", "none"):'},
    "in a condition": {ASKED: 'if self.module is not None and self.kind == "ddp":'},
    "after the other has left": {
        ASKED: 'if self.kind == "fsdp":\n            return {}\n        if True:'
    },
    "a flag": {
        'self.kind = "none"': "self.kind = False",
        'self.kind = "fsdp"': "self.kind = True",
        'self.kind = "ddp"': "self.kind = False",
        ASKED: "if not self.kind:",
    },
    "the tag comes first": {
        'model = FSDP(model)\n                self.kind = "fsdp"': 'self.kind = "fsdp"\n'
        "                model = FSDP(model)"
    },
    "the model is held at once": {
        "model = FSDP(model)\n": "self.module = FSDP(model)\n",
        "model = DDP(model)\n": "self.module = DDP(model)\n",
        "            self.module = model\n        return": "        return",
    },
    "a static is given the model in another method": {
        "import FullyShardedDataParallel as FSDP": "import StateDictType\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
        STATE: '    def context(self):\n        if self.kind != "fsdp":\n            return None\n'
        "        return FSDP.state_dict_type(self.module, StateDictType.FULL_STATE_DICT)\n\n"
        f"{STATE}",
    },
    "it is taken on by another class": {
        "class Backend:": "class Other:\n    kind = 1\n\n\nclass Backend:"
    },
}
NOT_TOLD = {
    "the same name": {ASKED: 'if self.kind == "fsdp":'},
    "one of several, with it": {ASKED: 'if self.kind in ("ddp", "fsdp"):'},
    "another method names it anew": {
        STATE: f'    def rename(self):\n        self.kind = "ddp"\n\n{STATE}'
    },
    "a subclass names it anew": {
        "class Backend:": "class Base:\n    pass\n\n\nclass Backend(Base):",
        "            return self.module.module.state_dict()\n        return None\n": (
            "            return self.module.module.state_dict()\n        return None\n\n\n"
            'class Child(Backend):\n    def rename(self):\n        self.kind = "ddp"\n'
        ),
    },
    "somebody else names it": {
        "class Backend:": 'def rename(backend):\n    backend.kind = "ddp"\n\n\nclass Backend:'
    },
    "somebody names it by a text": {
        "class Backend:": 'def rename(b):\n    setattr(b, "kind", "ddp")\n\n\nclass Backend:'
    },
    "it is named later": {
        "        return self.module\n": '        self.kind = "ddp"\n        return self.module\n'
    },
    "a branch holds nothing": {
        'self.kind = "fsdp"\n': 'self.kind = "fsdp"\n                self.module = model\n',
        "            self.module = model\n        return": "        return",
    },
    "a branch returns before anything is held": {
        'self.kind = "ddp"\n': 'self.kind = "ddp"\n                return model\n'
    },
    "a branch holds what was held": {
        "model = DDP(model)\n": "model = self.module.train()\n",
        "self.module = model\n        return": "self.module = self.module or model\n        return",
    },
    "another method holds it": {
        STATE: f"    def hold(self, model):\n        self.module = model\n\n{STATE}"
    },
    "it is not known": {'self.kind = "fsdp"': "self.kind = model.kind"},
    "only some runs name it": {
        'self.kind = "fsdp"\n': 'if wrap:\n                    self.kind = "fsdp"\n'
    },
    "it is prepared again in between": {
        "return self.module.module": "self.prepare(None, True, True)\n"
        "            return self.module.module"
    },
    "a loop": {"if sharded:": "for sharded in (True, sharded):\n             if sharded:"},
}


def changed(edits: dict[str, str]) -> str:
    program = PROGRAM
    for old, new in edits.items():
        assert old in program
        program = program.replace(old, new)
    return program


def _lines_of_states(program: str) -> list[str]:
    _, after = migrate({"backend.py": program})
    assert "fully_shard(" in after["backend.py"]
    text = after["backend.py"]
    return [line.strip() for line in text[text.index("def state(") :].splitlines()]


@pytest.mark.parametrize("edits", TOLD.values(), ids=TOLD)
def test_the_other_wrapper_is_taken_off_as_before(edits: dict[str, str]) -> None:
    lines = _lines_of_states(changed(edits))
    assert not any("TODO" in line for line in lines)
    assert "return self.module.module.state_dict()" in lines


@pytest.mark.parametrize("edits", NOT_TOLD.values(), ids=NOT_TOLD)
def test_a_model_that_may_be_sharded_is_spoken_of(edits: dict[str, str]) -> None:
    program = changed(edits)
    result, _ = migrate({"backend.py": program})
    line = 1 + next(
        n for n, text in enumerate(program.splitlines()) if "self.module.module.state" in text
    )
    assert any(getattr(d.site.node, "lineno", 0) == line for d in result.decisions)
