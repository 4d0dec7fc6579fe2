"""A small Llama that transformers' Trainer trains for three steps."""

import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

from tests.configurations.trained_as import tell


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
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
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    tell(trainer)


main()
