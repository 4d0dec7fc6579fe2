"""What ``save_pretrained`` writes beside the weights: the name of the model's class.

``fully_shard`` gives the model a class of its own, ``FSDPLlamaForCausalLM``.
"""

NAMED = (
    "save_pretrained writes the class's name, which is FSDP... now, into the configuration with "
    "transformers before 4.57, and with diffusers: require transformers>=4.57, or take FSDP out of "
    "the name there"
)
