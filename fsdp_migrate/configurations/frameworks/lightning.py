"""Lightning: what ``ModelParallelStrategy`` and its hook have to say for an ``FSDPStrategy``.

``FSDPStrategy`` wraps the model itself. ``ModelParallelStrategy`` wraps nothing: a hook of the
program does, ``configure_model`` of the module under a Trainer, ``parallelize_fn`` under Fabric.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

HAS_NEW = (2, 3)  # the first release with ModelParallelStrategy
UNSUPPORTED = ("16-mixed", "16")
BFLOAT16 = ("bf16-mixed", "bf16")
# Arguments of FSDP1's that have no counterpart, and change no number.
DEAD = frozenset(
    {"backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params", "device_id"}
)
KEPT = ("process_group_backend", "timeout")
UNTAKEN = ("accelerator", "parallel_devices", "cluster_environment", "checkpoint_io")
STEPS = '("training_step", "validation_step", "test_step", "predict_step")'


@dataclass
class Target:
    """What the new strategy and its hook must say, as text of Python."""

    fabric: bool
    size: str
    kept: Sequence[str] = ()  # arguments that stay, such as timeout=...
    sharded: bool = False  # checkpoints in folders
    units: Sequence[ast.expr] = ()  # their classes
    checkpointed: Sequence[ast.expr] = ()  # of the parts whose activations are computed again
    options: Sequence[str] = ()  # arguments of fully_shard
    notes: list[str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        return [ast.unparse(each) for each in self.units]

    @property
    def strategy(self) -> str:
        first = ["parallelize_fn=parallelize"] if self.fabric else []
        said = [f"{name}={value}" for name, value in self.arguments().items()]
        arguments = [*first, *said, *self.kept]
        return f"ModelParallelStrategy({', '.join(arguments)})"

    def arguments(self) -> dict[str, str]:
        sharded = str(self.sharded)
        return {
            "data_parallel_size": self.size,
            "tensor_parallel_size": "1",
            "save_distributed_checkpoint": sharded,
        }

    def hook(self) -> Iterator[str]:
        """The statements of the hook, each of one line."""
        model = "model" if self.fabric else "self"
        mesh = "device_mesh" if self.fabric else "self.device_mesh"
        arguments = ", ".join([f'mesh={mesh}["data_parallel"]', *self.options])
        if not self.fabric:  # it is called again before validate and test
            yield "if isinstance(self, FSDPModule): return"
        if self.checkpointed:
            test = f"lambda m: isinstance(m, {_classes(list(map(ast.unparse, self.checkpointed)))})"
            yield f"apply_activation_checkpointing({model}, check_fn={test})"
        if self.classes:
            parts = f"[m for m in {model}.modules() if isinstance(m, {_classes(self.classes)})]"
            yield f"for part in reversed({parts}): fully_shard(part, {arguments})"
        yield f"fully_shard({model}, {arguments})"
        if self.fabric:
            yield "return model"
        else:
            yield f"for step in {STEPS}: register_fsdp_forward_method(self, step)"

    def text(self) -> str:
        """The whole as prose with code."""
        head = "a function parallelize(model, device_mesh)" if self.fabric else "a method "
        head += "" if self.fabric else "configure_model(self) of the LightningModule"
        steps = "; then ".join(f"`{line}`" for line in self.hook())
        return f"write `{self.strategy}`, and {head} that says {steps}"


def _classes(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
