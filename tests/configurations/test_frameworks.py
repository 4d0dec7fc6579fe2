"""What becomes of the settings of transformers, axolotl and verl, and of accelerate's flags."""

from __future__ import annotations

import os
import warnings
from typing import Any
from unittest import mock

import pytest

from fsdp_migrate.configurations.frameworks import accelerate, axolotl, transformers, verl
from fsdp_migrate.configurations.settings import Change, Setting, Value
from tests.configurations import running


def settings(**values: Value) -> dict[str, Setting]:
    return {name: Setting(name, value) for name, value in values.items()}


def made(given: dict[str, Setting], changes: list[Change]) -> dict[str, Value]:
    return {name: s.value for name, s in running.applied(given, changes).items()}


def plugin_arguments(after: dict[str, Value]) -> dict[str, Any]:
    """What transformers gives accelerate's plugin for these settings.

    Raises:
        ValueError: it refuses.
    """
    from transformers import TrainingArguments

    after = {k: v for k, v in after.items() if k not in {"bf16", "fp16"}}
    fsdp = after.pop("fsdp")
    with mock.patch.dict(os.environ), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = list(fsdp) if isinstance(fsdp, tuple) else fsdp
        parsed = TrainingArguments("out", fsdp=given, fsdp_config=dict(after), use_cpu=True)
    assert parsed.fsdp_plugin_args is not None
    running.plugin({}, **parsed.fsdp_plugin_args)
    return dict(parsed.fsdp_plugin_args)


LOADS = {"cpu_ram_efficient_loading": True}
FULL = {"fsdp": "full_shard", **LOADS}


@pytest.mark.parametrize(
    ("given", "installed", "expected", "reshard"),
    [
        ({"fsdp": "full_shard auto_wrap"}, (), "review", True),
        ({"fsdp": "full_shard auto_wrap", **LOADS}, (), "rewritten", True),
        ({"fsdp": "shard_grad_op auto_wrap", **LOADS}, (), "rewritten", False),
        ({"fsdp": ("full_shard", "offload"), **LOADS}, (5, 24), "rewritten", True),
        ({"fsdp": True, "fsdp_version": 1, **LOADS}, (5, 24), "rewritten", True),
        ({"fsdp": "full_shard", "version": "1", **LOADS}, (5, 8), "rewritten", True),
        ({**FULL, "reshard_after_forward": "full_shard"}, (), "rewritten", True),
        ({"fsdp": "shard_grad_op", "version": 2, **LOADS}, (5, 0), "review", False),
        ({"fsdp": "full_shard", "bf16": True, **LOADS}, (), "review", True),
        ({"fsdp": "full_shard", "min_num_params": 2000, **LOADS}, (), "review", True),
        ({**FULL, "forward_prefetch": True, "use_orig_params": "false"}, (), "rewritten", True),
        ({"fsdp": "full_shard", "sync_module_states": False}, (), "rewritten", True),
        ({**FULL, "fsdp_transformer_layer_cls_to_wrap": "Block"}, (), "rewritten", True),
    ],
)  # fmt: skip
def test_transformers_makes_a_plugin_of_version_2(
    given: dict[str, Value], installed: tuple[int, ...], expected: str, reshard: bool
) -> None:
    before = settings(**given)
    changes = transformers.migrate(before, installed)
    assert running.outcome(changes) == expected
    after = made(before, changes)
    arguments = plugin_arguments(after)
    assert (arguments["fsdp_version"], arguments["reshard_after_forward"]) == (2, reshard)
    assert arguments["state_dict_type"] == "FULL_STATE_DICT"
    offload = "offload" in str(given["fsdp"])
    assert bool(arguments.get("cpu_offload")) == offload
    again = transformers.migrate(settings(**after), installed)
    assert made(settings(**after), again) == after


@pytest.mark.parametrize(
    ("given", "installed", "word"),
    [
        ({"fsdp": "full_shard", **LOADS}, (4, 57), "before 5.0"),
        ({"fsdp": "hybrid_shard auto_wrap", **LOADS}, (), "HYBRID_SHARD"),
        ({"fsdp": "no_shard", **LOADS}, (), "NO_SHARD"),
        ({"fsdp": "full_shard", "version": 3}, (), "version is 3"),
        ({"fsdp": "full_shard", "version": 1, "fsdp_version": 2}, (), "twice"),
        ({"fsdp": "full_shard", "state_dict_type": "LOCAL_STATE_DICT"}, (), "local"),
        ({"fsdp": "full_shard", "min_num_params": 9}, (5, 8), "by size"),
        ({"fsdp": "full_shard", "auto_wrap_policy": "SIZE_BASED_WRAP"}, (), "by size"),
        ({"fsdp": "full_shard", "fsdp_config": "fsdp.json"}, (), "not read"),
        ({"fsdp": "full_shard", "reshard_after_forward": "shard_grad_op"}, (), "fsdp says"),
    ],
)
def test_transformers_leaves(
    given: dict[str, Value], installed: tuple[int, ...], word: str
) -> None:
    before = settings(**given)
    changes = transformers.migrate(before, installed)
    assert running.outcome(changes) == "left"
    assert any(word in change.message for change in changes)
    assert all(
        change.help
        for change in changes
        if change.outcome.value == "left" and "not read" not in change.message
    )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"fsdp": ""},
        {"fsdp": False},
        {"fsdp": None, "bf16": True},
        {"fsdp": ()},
        {"fsdp": "", "version": 1, "min_num_params": 10},
        {"fsdp": "full_shard", "xla": True, "xla_fsdp_v2": True},
    ],
)
def test_transformers_without_fsdp_is_no_site(given: dict[str, Value]) -> None:
    assert transformers.migrate(settings(**given)) == []


def test_a_file_that_fsdp_config_names_says_no_strategy() -> None:
    before = settings(fsdp_version=1, fsdp_forward_prefetch=True, fsdp_state_dict_type="3")
    before |= settings(fsdp_cpu_ram_efficient_loading="true")
    changes = transformers.migrate(before)
    assert running.outcome(changes) == "rewritten"
    assert made(before, changes) == {
        "fsdp_version": 2,
        "fsdp_state_dict_type": "3",
        "fsdp_cpu_ram_efficient_loading": "true",
    }


@pytest.mark.parametrize("framework", [transformers, axolotl])
def test_version_2_is_done(framework: Any) -> None:
    """What is for review once is not for review again."""
    done = settings(
        fsdp_version=2, fsdp=True, bf16=True, reshard_after_forward=True, min_num_params=10
    )
    if framework is axolotl:
        del done["fsdp"]
    assert framework.migrate(done) == []


AXOLOTL = {
    "fsdp_offload_params": False,
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_transformer_layer_cls_to_wrap": "Qwen3DecoderLayer",
    "fsdp_state_dict_type": "FULL_STATE_DICT",
    "fsdp_sharding_strategy": "FULL_SHARD",
}


def test_axolotl_is_migrated_as_its_guide_says() -> None:
    before = settings(fsdp_version=1, **AXOLOTL)
    changes = axolotl.migrate(before)
    assert running.outcome(changes) == "rewritten"
    assert made(before, changes) == {
        "fsdp_version": 2,
        "offload_params": False,
        "cpu_ram_efficient_loading": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": "Qwen3DecoderLayer",
        "state_dict_type": "FULL_STATE_DICT",
        "reshard_after_forward": True,
    }
    assert axolotl.migrate(settings(**made(before, changes))) == []


def test_axolotls_list_becomes_keys() -> None:
    before = settings(
        fsdp=("full_shard", "auto_wrap", "offload"),
        fsdp_transformer_layer_cls_to_wrap="LlamaDecoderLayer",
        fsdp_limit_all_gathers=True,
        fsdp_use_orig_params=False,
        fsdp_sync_module_states=True,
        fsdp_cpu_ram_efficient_loading=True,
    )
    assert made(before, axolotl.migrate(before)) == {
        "fsdp_version": 2,
        "transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "cpu_ram_efficient_loading": True,
        "offload_params": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({**AXOLOTL, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}, "review"),
        ({**AXOLOTL, "bf16": "auto"}, "review"),
        ({**AXOLOTL, "fsdp_sharding_strategy": "HYBRID_SHARD"}, "left"),
        ({**AXOLOTL, "fsdp_sharding_strategy": "NO_SHARD"}, "left"),
        ({**AXOLOTL, "optimizer": "adamw_bnb_8bit"}, "left"),
        ({**AXOLOTL, "optimizer": "paged_adamw_8bit"}, "left"),
        ({**AXOLOTL, "optimizer": "adamw_torch"}, "rewritten"),
        ({**AXOLOTL, "load_in_4bit": True}, "review"),
        ({**AXOLOTL, "rl": "dpo", "load_in_4bit": True}, "left"),
        ({**AXOLOTL, "rl": "dpo", "load_in_4bit": False}, "rewritten"),
        ({**AXOLOTL, "rl": "grpo", "load_in_8bit": True}, "rewritten"),
        ({**AXOLOTL, "fsdp": ("shard_grad_op",)}, "left"),
        ({**AXOLOTL, "fsdp_version": 1, "fsdp_config.fsdp_version": 2}, "left"),
        ({**AXOLOTL, "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"}, "left"),
        ({**AXOLOTL, "fsdp_state_dict_type": "LOCAL_STATE_DICT"}, "left"),
        ({"fsdp_version": 2, "reshard_after_forward": True, "bf16": True}, ""),
        ({"fsdp_version": 2, "sharding_strategy": "SHARD_GRAD_OP"}, "review"),
        ({"bf16": True, "optimizer": "adamw_8bit"}, ""),
        ({"fsdp": None, "bf16": "auto"}, ""),
        ({"fsdp": (), "fsdp_version": 1}, ""),
        ({**AXOLOTL, "fsdp": None}, "rewritten"),
    ],
)
def test_axolotls_outcomes(given: dict[str, Value], expected: str) -> None:
    assert running.outcome(axolotl.migrate(settings(**given))) == expected


def test_every_role_of_verl_goes() -> None:
    actor = "actor_rollout_ref.actor"
    before = settings(
        **{
            f"{actor}.strategy": "fsdp",
            f"{actor}.fsdp_config.param_offload": True,
            f"{actor}.fsdp_config.forward_prefetch": False,
            "actor_rollout_ref.ref.fsdp_config.param_offload": True,
            "critic.model.fsdp_config.use_orig_params": True,
            "reward_model.strategy": "megatron",
        }
    )
    changes = verl.migrate(before)
    assert running.outcome(changes) == "review"
    assert made(before, changes) == {
        f"{actor}.strategy": "fsdp2",
        f"{actor}.fsdp_config.param_offload": True,
        "actor_rollout_ref.ref.fsdp_config.param_offload": True,
        "critic.strategy": "fsdp2",
        "reward_model.strategy": "megatron",
    }
    after = settings(**made(before, changes))
    assert made(after, verl.migrate(after)) == {s.name: s.value for s in after.values()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"critic.strategy": "fsdp2"}, ""),
        ({"actor_rollout_ref.actor.strategy": "megatron", "critic.strategy": "megatron"}, ""),
        ({"model.strategy": "fsdp"}, "review"),
        ({"model.fsdp_config.param_offload": True}, ""),  # supervised: fsdp2 is the default
        ({"engine.fsdp_size": 8}, "review"),  # supervised, since 0.9: fsdp is
        ({"engine.param_offload": True}, ""),  # of any engine
        ({"engine.strategy": "megatron", "engine.fsdp_size": 8}, ""),
        ({"critic.fsdp.param_offload": True}, "review"),
        (
            {
                "critic.strategy": "fsdp",
                "critic.model.fsdp_config.wrap_policy.min_num_params": 100,
            },
            "left",
        ),
        (
            {
                "critic.strategy": "fsdp",
                "critic.model.fsdp_config.wrap_policy.min_num_params": 0,
            },
            "review",
        ),
    ],
)
def test_verls_outcomes(given: dict[str, Value], expected: str) -> None:
    assert running.outcome(verl.migrate(settings(**given))) == expected


VERLS: dict[str, tuple[Value, bool]] = {  # each key of a role's fsdp_config, and whether it stays
    "wrap_policy.transformer_layer_cls_to_wrap": ("Block", True),
    "wrap_policy.min_num_params": (0, True),
    "fsdp_size": (-1, True),
    "reshard_after_forward": (True, True),
    "param_offload": (False, True),
    "optimizer_offload": (False, True),
    "offload_policy": (False, True),
    "model_dtype": ("fp32", True),
    "forward_prefetch": (False, False),
    "use_orig_params": (False, False),
}


@pytest.mark.parametrize("key", VERLS)
@pytest.mark.parametrize(("role", "block"), [(r, b) for r in verl.ROLES for b in verl.ROLES[r]])
def test_each_key_of_verl_under_each_role(role: str, block: str, key: str) -> None:
    value, stays = VERLS[key]
    name, strategy = f"{block}.{key}", f"{role}.strategy"
    given = settings(**{strategy: "fsdp", name: value})
    expected = {strategy: "fsdp2", **({name: value} if stays else {})}
    changes = verl.migrate(given)
    after = made(given, changes)
    assert {n: v for n, v in after.items() if n in {strategy, name}} == expected
    assert running.outcome(changes) == "review"


def test_verls_own_defaults_keep_the_keys_that_overrides_need() -> None:
    """hydra stops at an override of a key that is not there."""
    block = {"engine.strategy": "fsdp", "engine.forward_prefetch": False}
    before = settings(**block, **{"engine._target_": "verl.workers.config.FSDPEngineConfig"})
    expected = {**{s.name: s.value for s in before.values()}, "engine.strategy": "fsdp2"}
    assert made(before, verl.migrate(before)) == expected


def test_both_places_of_verls_critic_are_read() -> None:
    names = [f"{block}.forward_prefetch" for block in verl.ROLES["critic"]]
    before = settings(**{"critic.strategy": "fsdp"}, **dict.fromkeys(names, True))
    assert made(before, verl.migrate(before)) == {"critic.strategy": "fsdp2"}


@pytest.mark.parametrize(("version", "said"), [(1, False), (2, True)])
def test_a_release_without_version_2_is_said_to_train_fsdp1_where_2_is_written(
    version: int, *, said: bool
) -> None:
    given = settings(
        distributed_type="FSDP", fsdp_version=version, fsdp_sharding_strategy="SHARD_GRAD_OP"
    )
    [change] = accelerate.migrate(given, (0, 34))
    assert ("trains FSDP1" in change.message) == said
    assert "1.6" in change.help


def test_verls_reference_follows_the_actor() -> None:
    name = "actor_rollout_ref.ref.strategy"
    follows = Setting(
        name,
        "${actor_rollout_ref.actor.strategy}",
        "filled in by hydra: actor_rollout_ref.actor.strategy",
    )
    assert verl.migrate({name: follows}) == []
    other = Setting(name, "${oc.env:STRATEGY}", "filled in from the environment")
    assert running.outcome(verl.migrate({name: other})) == "left"


# accelerate, in other places than a file


def test_flags_of_accelerate_turn_the_sizes_on() -> None:
    flags = settings(
        use_fsdp=None, fsdp_sharding_strategy="HYBRID_SHARD", num_machines="2", num_processes="16"
    )
    after = made(flags, accelerate.migrate(flags))
    assert after["use_parallelism_config"] is True
    spelled = {None: "", True: "=true"}
    flags_after = [f"--{k}{spelled.get(v, f'={v}')}" for k, v in after.items()]
    flags_after.remove("--use_parallelism_config=true")
    ran = running.launched(None, [*flags_after, "--use_parallelism_config", "--machine_rank=0"])
    assert ran == "2 reshard FULL loading DP_REPLICATE=2 DP_SHARD=8"


def test_flags_of_version_1_are_mended() -> None:
    flags = settings(use_fsdp=None, fsdp_version="2", fsdp_reshard_after_forward="SHARD_GRAD_OP")
    assert made(flags, accelerate.migrate(flags))["fsdp_reshard_after_forward"] is False


def test_a_flag_false_is_true_for_the_launcher() -> None:
    flags = settings(
        use_fsdp=None, fsdp_sync_module_states="false", fsdp_cpu_ram_efficient_loading="true"
    )
    changes = accelerate.migrate(flags)
    assert running.outcome(changes) == "rewritten"
    assert "fsdp_sync_module_states" not in made(flags, changes)


def test_variables_have_the_plugins_defaults() -> None:
    """torchrun with variables alone: nobody turns loading on."""
    variables = settings(use_fsdp="true", fsdp_sharding_strategy="2")
    changes = accelerate.migrate(variables)
    assert running.outcome(changes) == "rewritten"
    assert made(variables, changes) == {
        "use_fsdp": "true",
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": False,
        "fsdp_state_dict_type": "FULL_STATE_DICT",
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fsdp_sharding_strategy", "left"),
        ("fsdp_version", "left"),
        ("distributed_type", "left"),
        ("fsdp_state_dict_type", "review"),
        ("fsdp_backward_prefetch", "rewritten"),
        ("fsdp_transformer_layer_cls_to_wrap", "rewritten"),
    ],
)
def test_values_that_are_not_known(name: str, expected: str) -> None:
    given = settings(distributed_type="FSDP", fsdp_offload_params=True)
    given[name] = Setting(name, "${VALUE}", "the shell fills it in")
    assert running.outcome(accelerate.migrate(given)) == expected


@pytest.mark.parametrize(
    ("strategy", "installed", "expected"),
    [
        ("FULL_SHARD", (1, 5), "left"),
        ("FULL_SHARD", (1, 6), "rewritten"),
        ("HYBRID_SHARD", (1, 9), "left"),
        ("HYBRID_SHARD", (1, 10), "review"),
        ("HYBRID_SHARD", (), "review"),
    ],
)
def test_releases_of_accelerate(strategy: str, installed: tuple[int, ...], expected: str) -> None:
    given = settings(
        distributed_type="FSDP",
        fsdp_sharding_strategy=strategy,
        num_machines=2,
        num_processes=16,
    )
    assert running.outcome(accelerate.migrate(given, installed)) == expected


@pytest.mark.parametrize(
    ("others", "expected"),
    [({}, "review"), ({"fsdp_sync_module_states": False}, "rewritten")],
)
def test_whether_rank_0_loads_is_not_known(others: dict[str, Value], expected: str) -> None:
    given = settings(distributed_type="FSDP", fsdp_sharding_strategy="1", **others)
    name = "fsdp_cpu_ram_efficient_loading"
    given[name] = Setting(name, "${LOADING}", "the shell fills it in")
    changes = accelerate.migrate(given)
    assert running.outcome(changes) == expected
    assert made(given, changes)[name] == "${LOADING}"


def test_use_fsdp_false_is_no_site() -> None:
    assert accelerate.migrate(settings(use_fsdp="false", fsdp_sharding_strategy="1")) == []


@pytest.mark.parametrize("sync", [{}, {"fsdp_sync_module_states": "false"}])
def test_loading_turns_synchronising_on_without_the_launcher(sync: dict[str, Value]) -> None:
    given = settings(use_fsdp="true", fsdp_cpu_ram_efficient_loading="true", **sync)
    changes = accelerate.migrate(given)
    assert running.outcome(changes) == "rewritten"
    variables = {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true", "FSDP_SYNC_MODULE_STATES": "false"}
    assert running.plugin(variables).sync_module_states
    assert "fsdp_sync_module_states" not in made(given, changes)
