"""FSDP1's methods on models that are kept in objects whose classes are not known."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

HEAD = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM


class Model(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.plain = nn.Linear(2, 2)
        self.language = AutoModelForCausalLM.from_pretrained(name)
        self.language.layers = nn.ModuleList(Layer() for _ in range(2))

    def wrap(self):
        SET

    def clip(self, limit):
        ASK


class Layer(nn.Module):
    pass
"""


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        (
            "self.language.layers = nn.ModuleList(FSDP(layer) for layer in self.language.layers)",
            "for layer in self.language.layers:\n            layer.clip_grad_norm_(limit)",
        ),
        (
            "self.language.layers = [FSDP(x) if x else None for x in self.language.layers]",
            "self.language.layers[0].clip_grad_norm_(limit)",
        ),
        (
            "self.language.set_input_embeddings(FSDP(self.language.get_input_embeddings()))",
            "self.language.get_input_embeddings().clip_grad_norm_(limit)",
        ),
        (
            "self.language.head = FSDP(self.language.head)",
            "self.language.head.clip_grad_norm_(limit)",
        ),
    ],
)
def test_clipping_what_may_be_a_model_is_marked(kept: str, asked: str) -> None:
    after = rewritten(HEAD.replace("SET", kept).replace("ASK", asked))
    assert ".clip_grad_norm_(limit)" not in after.replace("utils.clip_grad_norm_", "")


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        ("self.language.head = FSDP(self.language.head)", "self.plain.clip_grad_norm_(1)"),
        (
            "self.language.set_head(self.language.tail)",
            "self.language.get_head().clip_grad_norm_(1)",
        ),
    ],
)
def test_what_was_given_no_model_is_not_spoken_of(kept: str, asked: str) -> None:
    after = rewritten(HEAD.replace("SET", kept).replace("ASK", asked))
    assert asked in after
    assert "TODO" not in after
