"""Keys of files by which the frameworks that read them are told."""

from __future__ import annotations

# Words that only files of one framework have beside ``fsdp_config``.
BESIDE_ACCELERATE = {
    "compute_environment", "distributed_type", "machine_rank", "main_training_function",
    "num_machines", "downcast_bf16", "main_process_port", "use_cpu",
}  # fmt: skip
BESIDE_AXOLOTL = {
    "base_model", "sequence_len", "micro_batch_size", "num_epochs", "val_set_size", "adapter",
    "dataset_prepared_path", "sample_packing", "datasets", "load_in_4bit", "flash_attention",
}  # fmt: skip
BESIDE_TRANSFORMERS = {
    "output_dir", "per_device_train_batch_size", "learning_rate", "num_train_epochs",
    "gradient_accumulation_steps", "gradient_checkpointing", "lr_scheduler_type", "save_strategy",
    "model_name_or_path", "logging_steps", "save_steps", "max_steps", "warmup_ratio",
}  # fmt: skip
BESIDE_COMPOSER = {
    "max_duration", "train_loader", "eval_loader", "device_train_microbatch_size",
    "device_train_grad_accum", "global_train_batch_size", "device_eval_batch_size",
    "eval_interval", "eval_subset_num_batches", "save_interval", "console_log_interval",
    "algorithms",
}  # fmt: skip
COMPOSERS_KEYS = {
    "activation_checkpointing_reentrant", "activation_cpu_offload", "load_monolith_rank0_only",
    "data_parallel_shard_degree", "data_parallel_replicate_degree", "keep_low_precision_grads",
    "load_planner", "save_planner",
}  # fmt: skip
OPTIONS = {
    "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "auto_wrap",
    "offload",
}  # fmt: skip
KEYS = {
    "version", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "xla",
    "backward_prefetch", "backward_prefetch_policy", "forward_prefetch", "limit_all_gathers",
    "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading", "state_dict_type",
    "activation_checkpointing", "reshard_after_forward", "xla_fsdp_settings", "offload_params",
    "xla_fsdp_grad_ckpt", "sharding_strategy", "cpu_offload", "ignored_modules",
    "xla_fsdp_v2",
}  # fmt: skip
