"""A small Llama that transformers' Trainer trains as the module ``settings`` says."""

import os
import sys

import torch
from settings import CONFIG, FSDP
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(1)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
)
generator = torch.Generator().manual_seed(5)
rows = [torch.randint(64, (12,), generator=generator) for _ in range(64)]
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    max_steps=6,
    learning_rate=1e-2,
    save_strategy="steps" if len(sys.argv) > 1 else "no",
    save_steps=6,
    report_to=[],
    seed=7,
    bf16=bool(os.environ.get("BF16")),
    max_grad_norm=1.0,
    fsdp=FSDP,
    fsdp_config=CONFIG,
)
data = [{"input_ids": row, "labels": row} for row in rows]
Trainer(model=model, args=arguments, train_dataset=data).train()
