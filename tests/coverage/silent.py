"""What goes wrong without an error where FSDP1's names are merely replaced, and the tests of it.

Each row has a test in which the obvious code fails, and one (often the same) in which what the tool
writes does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.coverage import checkpoint, guarded, program, support, weights

DIFFERS = "test_programs.py::test_parts_that_a_step_leaves_out_differ_before_torch_2_13"
AVERAGES = "test_programs.py::test_averages_are_exact_between_evaluations"
HANGS = "test_guarded.py::test_gathered_where_it_stands_two_ranks_hang"


@dataclass(frozen=True)
class Silent:
    """``naive`` is the obvious code, ``happens`` what comes of it."""

    naive: str
    happens: str
    fails: str
    ours: str = ""  # the same test, unless given


ROWS = (
    # -- construction --
    Silent(
        "an optimizer, a list or an attribute from before the sharding",
        "holds parameters that nothing trains",
        support("what_held_parameters_before_sharding_goes_stale"),
        program("ordering --kind early"),
    ),
    Silent(
        "an optimizer built after an evaluation",
        "never changes the root's parameters",
        support("an_optimizer_built_after_an_evaluation_trains_everything"),
    ),
    Silent(
        "the state dict alone is broadcast",
        "buffers differ from rank to rank",
        support("broadcasting_the_state_dict_alone_leaves_buffers_out"),
        weights("a policy"),
    ),
    Silent(
        "parameters are drawn after the sharding",
        "every rank draws the same numbers on the CPU",
        support("values_drawn_for_shards_are_the_same_on_every_rank"),
    ),
    Silent(
        "one MixedPrecisionPolicy for blocks and root",
        "blocks cast tables and masks that FSDP1 left alone",
        support("inputs_of_units_are_cast_unless_told_otherwise"),
        program("precision"),
    ),
    Silent(
        "a part that a step does not use",
        "no weight decay; gradients of unlike parts are averaged",
        DIFFERS,
        program("conditional --kind ranks"),
    ),
    # -- states --
    Silent(
        "torch.save(model.state_dict()) on rank 0",
        "a file of one shard",
        support("a_file_of_a_plain_state_dict_has_one_shard"),
        guarded("direct"),
    ),
    Silent(
        "state_dict() of a module around sharded parts",
        "shards of the parts, in a file that says nothing",
        "test_holders.py::test_asked_as_it_was_the_file_has_one_ranks_shards",
        "test_holders.py::test_they_give_and_take_whole_states[whole]",
    ),
    Silent(
        "cpu_offload=True for rank0_only=True under NO_SHARD",
        "ranks that FSDP1 gave the state have none",
        support("every_rank_is_first_where_parameters_are_not_sharded"),
        "test_replicated_states.py::test_for_the_first_rank[NO_SHARD]",
    ),
    Silent(
        "the state is gathered behind a condition on the rank",
        "the ranks wait for each other",
        HANGS,
        guarded("context"),
    ),
    Silent(
        "cpu_offload=True for offload_to_cpu=True",
        "an empty state on every rank but one",
        support("a_whole_state_on_the_cpu_is_for_every_rank_that_asks"),
    ),
    Silent(
        "a sharded state is kept",
        "it follows the training",
        support("a_sharded_state_follows_the_training"),
        program("states --kind kept"),
    ),
    Silent(
        "set_model_state_dict without broadcast_from_rank0, strict",
        "missing keys are filled with the model's own values",
        support("missing_keys_are_an_error_with_a_broadcast_alone"),
    ),
    Silent(
        "set_model_state_dict of states that differ by rank",
        "rank 0's is loaded everywhere, and the given dictionary changes",
        support("a_dictionary_that_is_loaded_is_filled_with_shards"),
    ),
    Silent(
        "load_state_dict(assign=True)",
        "the optimizer goes on with the parameters that were",
        support("weights_that_are_assigned_are_not_trained"),
    ),
    Silent(
        "set_optimizer_state_dict of a state of flat parameters",
        "steps that parameters share count many times",
        support("steps_that_parameters_share_count_once"),
        checkpoint("whole_checkpoints_continue_on_the_other_side[adamw-0]"),
    ),
    Silent(
        "get_optimizer_state_dict before the first step",
        "takes a step",
        support("an_optimizer_that_has_not_stepped_stays_so"),
    ),
    # -- whole parameters --
    Silent(
        "unshard() for summon_full_params",
        "values in the precision of the computation, and changes are lost",
        support("whole_parameters_can_be_read_in_full_precision"),
        support("changes_to_whole_parameters_stay"),
    ),
    Silent(
        "p.data = x",
        "does nothing",
        support("assigning_to_the_data_of_a_shard_does_nothing"),
        program("averaging --kind data"),
    ),
    Silent(
        "averages while the root is gathered",
        "what is written is lost",
        AVERAGES + "[data]",
    ),
    Silent(
        "writing through an optimizer's groups, replicated, after an evaluation",
        "the next forward misses what is written",
        "test_group_writes.py::test_without_resharding_a_replicated_model_misses_them",
        "test_group_writes.py::test_they_are_seen_when_fsdp1_saw_them[NO_SHARD-mul]",
    ),
    # -- training --
    Silent(
        "norm.item() of a norm that is not gathered",
        "this rank's number",
        support("a_norm_that_is_not_gathered_is_this_ranks"),
    ),
    Silent(
        "p.grad.norm() in messages",
        "this rank's number",
        support("numbers_of_shards_are_this_ranks_alone"),
    ),
    Silent(
        "zero_grad(), clipping or step() between micro-batches",
        "pass over gradients that wait for their reduction",
        support("gradients_that_were_not_reduced_outlive_zero_grad"),
    ),
    Silent(
        "positional arguments of ShardedGradScaler",
        "two factors change places",
        support("positions_of_the_scalers_mean_other_things"),
    ),
    Silent(
        "a static of FSDP1 on an FSDP2 model",
        "passes over it",
        support("statics_of_fsdp1_pass_over_a_sharded_model"),
    ),
    Silent(
        "a method that computes, after an evaluation",
        "trains nothing",
        support("a_method_without_hooks_trains_nothing_after_an_evaluation"),
        support("a_registered_method_has_the_gradients_of_the_whole_model"),
    ),
    Silent(
        "a module that replaces one of a sharded model",
        "nobody averages its gradients",
        support("a_module_that_comes_later_is_not_reduced"),
    ),
    Silent(
        "p.data_ptr() as a key",
        "is 0 for every parameter",
        support("sharded_parameters_have_no_address"),
    ),
)
