"""Files that are not looked at closely, and have a key of FSDP1's: it is said once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsdp_migrate.configurations.block import Block, File
from fsdp_migrate.configurations.entries import Entries
from fsdp_migrate.configurations.formats.text import Span
from fsdp_migrate.configurations.recognise import ACCELERATE
from fsdp_migrate.configurations.settings import Setting

TEMPLATE = "it is a template, and what fills it in decides what there is of it"
_KEY = re.compile(  # at the beginning of a line, where data that came from elsewhere has none
    r"(?m)^[ \t]*[\"']?(fsdp_(?:sharding_strategy|auto_wrap_policy|backward_prefetch"
    r"|state_dict_type|transformer_layer_cls_to_wrap|offload_params|use_orig_params"
    r"|sync_module_states))[\"']?[ \t]*:"
)


def block(file: File, reason: str) -> Sequence[Block]:
    key = _KEY.search(file.text.text)
    if key is None:
        return ()
    found = Entries(ACCELERATE, file, Span(*key.span(1)), comments=False, reason=reason)
    found.settings[key[1]] = Setting(key[1], None, reason)
    found.spans[key[1]] = found.head
    return [found]
