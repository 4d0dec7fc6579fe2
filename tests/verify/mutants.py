"""Defects planted in correct migrations, and the gate that has to name each of them.

``python -m tests.verify.mutants`` plants them all and renews the table in ``docs/mutants.md``;
with numbers after it (``5 12``), only those, and nothing is written.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fsdp_migrate.cli.study import study
from fsdp_migrate.verify.launch.start import warm_server
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.report.against_sites import against_sites
from fsdp_migrate.verify.report.model import Report, Verdict

from .programs import PROGRAMS, Replaced, altered, judged

DOCUMENT = Path(__file__).parents[2] / "docs" / "mutants.md"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A defect: what is replaced in the migrated ``program``, and the gates of which one has to
    fail first. ``crash`` and ``hang`` stand for a program that no longer runs."""

    what: str
    replaced: tuple[Replaced, ...]
    named: tuple[str, ...]
    costs: bool = False
    """Whether it trains the same and costs otherwise."""
    program: str = "causal"
    args: tuple[str, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    site: str = ""
    """The site of the original, as rule and line of it, that the gate has to point at."""
    row: str = ""
    """Its row in the published measurements that the gates were designed from."""


@dataclass(frozen=True)
class Caught:
    """What verify said of a mutant."""

    mutant: Mutant
    report: Report

    @property
    def first(self) -> str:
        """The gate that failed first, else ``crash``, ``hang`` or nothing."""
        failure = self.report.first_failure
        if failure is not None:
            return failure.key
        return {"after_failed": "crash", "after_hung": "hang"}.get(self.report.verdict.value, "")

    @property
    def points_at(self) -> str:
        """The sites that the gate points at."""
        failure = self.report.first_failure
        return self.report.points_at(failure) if failure is not None else ""

    @property
    def right(self) -> bool:
        """Whether the verdict is a failure, or another cost, that names the cause and its site."""
        costs = self.report.verdict is Verdict.SAME_AT_OTHER_COST
        told = costs if self.mutant.costs else self.report.exit_code == 1
        return told and self.first in self.mutant.named and self.mutant.site in self.points_at


# --- what stands in the programs ------------------------------------------------------------------

CLIP = "                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n"
SHARD_ROOT = "    fully_shard(model, mesh=mesh, **root)\n"
SHARD_BLOCK = "            fully_shard(module, mesh=mesh, **inner)\n"
SHARD_BLOCKS = (
    "    for module in reversed(list(model.modules())):\n"
    "        if isinstance(module, Block):\n" + SHARD_BLOCK
)
BROADCAST = "        dist.broadcast(tensor.detach(), src=0)\n"
STATES = "    for tensor in (*model.parameters(), *model.buffers()):\n"
SYNC = "            model.set_requires_gradient_sync(last)\n"
BUILD = "Transformer(depth=args.depth, width=args.width)"
WRAP = f"    model = wrap({BUILD}, args)\n"
OPTIMIZER = "    optimizer = optimizer_for(model, args)\n"
ADAMW = "    return torch.optim.AdamW(groups, lr=args.lr)\n"
BACKWARD = "            (loss / args.accumulate).backward()\n"
STEP = "            optimizer.step()\n"
ZERO = "            optimizer.zero_grad()\n"
SCHEDULE = "            schedule.step()\n"
LOGITS = "            logits = model(tokens[:, :-1])\n"
SAMPLER = "    sampler = DistributedSampler(data, shuffle=True)\n"
UNUSED = "    model.set_reduce_scatter_unused_params(True, recurse=False)\n"
MESH = '    mesh = init_device_mesh("cpu", (dist.get_world_size(),))\n'
BF16 = ("--precision", "bf16")
BLOCK_FORWARD = (
    "        x = x + self.dropout(self.attention(self.norm1(x)) * scale)\n"
    "        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))\n"
)

CLIP_LOCAL = """\
                grads = [p.grad.to_local() for p in model.parameters() if p.grad is not None]
                norm = torch.stack([g.norm() for g in grads]).norm()
                for g in grads:
                    g.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))
"""
CLIP_PER_UNIT = """\
                for unit in (*model.blocks, model.norm, model.embed):
                    torch.nn.utils.clip_grad_norm_(unit.parameters(), 0.5)
"""
CLIP_SUM = f"""\
                for p in model.parameters():
                    if p.grad is not None:
                        p.grad.mul_(dist.get_world_size())
{CLIP}"""
CLIP_ON_RANK_0 = (
    "            if not args.no_clip:\n" + CLIP,
    "            if not args.no_clip and rank == 0:\n" + CLIP,
)
FULL_ON_RANK_0 = """\
            if rank == 0:
                next(p for p in model.parameters() if p.requires_grad).full_tensor().sum()
"""

LOADERS = "import StateDictOptions, get_state_dict, set_model_state_dict"
LOAD_BOTH = """\
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(full_state_dict=True),
    )
"""

# --- the rows of the published measurements -------------------------------------------------------

MEASURED: tuple[Mutant, ...] = (
    Mutant(
        row="1",
        what="no root `fully_shard`, with clipping",
        replaced=((SHARD_ROOT, ""), (SYNC, "")),
        named=("placement",),
    ),
    Mutant(
        row="2",
        site="FSDP101 at train.py:33",
        what="no root `fully_shard`, without clipping",
        replaced=((SHARD_ROOT, ""), (SYNC, "")),
        args=("--no-clip",),
        named=("placement",),
    ),
    Mutant(
        row="3",
        site="FSDP101 at train.py:33",
        what="optimizer built before `fully_shard`",
        replaced=(
            (
                WRAP + OPTIMIZER,
                f"    model = {BUILD}\n{OPTIMIZER}    model = wrap(model, args)\n",
            ),
        ),
        named=("optimizer-alive",),
    ),
    Mutant(
        row="4",
        site="FSDP401 at train.py:77",
        what="clipping dropped",
        replaced=((CLIP, "                pass\n"),),
        named=("clipping",),
    ),
    Mutant(
        row="4, SGD",
        what="clipping dropped, SGD",
        replaced=((CLIP, "                pass\n"),),
        args=("--optimizer", "sgd"),
        named=("clipping",),
    ),
    Mutant(
        row="5",
        what="clipped by the norm of local shards, by hand",
        replaced=((CLIP, CLIP_LOCAL),),
        named=("clipping",),
    ),
    Mutant(
        row="6",
        site="FSDP401 at train.py:77",
        what="clipped unit by unit",
        replaced=((CLIP, CLIP_PER_UNIT),),
        named=("clipping",),
    ),
    Mutant(
        row="7",
        site="FSDP110 at train.py:37",
        what="`sync_module_states` lost",
        replaced=((STATES + BROADCAST, ""),),
        named=("start",),
    ),
    Mutant(
        row="8",
        what="the weights that count are on rank 0 only and stay there",
        program="lifecycle",
        replaced=(
            ("    for tensor in model.parameters():\n" + BROADCAST, ""),
            (
                "    model = Tagger()\n",
                "    model = Tagger()\n"
                "    if rank:\n"
                "        for p in model.parameters():\n"
                "            nn.init.zeros_(p)\n",
            ),
        ),
        plan={"max_steps": 8},
        named=("start",),
    ),
    Mutant(
        row="9",
        what="broadcast from the wrong rank",
        replaced=((BROADCAST, BROADCAST.replace("src=0", "src=1")),),
        named=("start",),
    ),
    Mutant(
        row="10",
        what="one block initialised with zeros",
        replaced=(
            (
                WRAP,
                f"    model = {BUILD}\n"
                "    for p in model.blocks[1].parameters():\n"
                "        torch.nn.init.zeros_(p)\n"
                "    model = wrap(model, args)\n",
            ),
        ),
        named=("start",),
    ),
    Mutant(
        row="11",
        site="FSDP110 at train.py:36",
        what="buffers not broadcast",
        program="uneven",
        replaced=(
            ("(*model.parameters(), *model.buffers())", "model.parameters()"),
            (
                "    model = Net()\n",
                "    model = Net()\n    model.norm.running_mean.add_(0.1 * dist.get_rank())\n",
            ),
        ),
        named=("start", "trajectory", "buffers"),
    ),
    Mutant(
        row="12",
        site="FSDP101 at train.py:33",
        what="`reshard_after_forward=False` on the blocks",
        costs=True,
        replaced=(
            (SHARD_BLOCK, SHARD_BLOCK.replace("**inner", "reshard_after_forward=False, **inner")),
        ),
        named=("collectives",),
    ),
    Mutant(
        row="13",
        site="FSDP402 at train.py:70",
        what="`no_sync` dropped",
        replaced=((SYNC, ""),),
        named=("collectives",),
    ),
    Mutant(
        row="14",
        site="FSDP402 at train.py:70",
        what="gradient synchronisation never switched on again",
        replaced=((SYNC, SYNC.replace("last", "False")),),
        named=("gradients-present",),
    ),
    Mutant(
        row="15",
        site="FSDP113 at train.py:35",
        what="an ignored module sharded",
        program="uneven",
        replaced=(
            (
                "fully_shard(model, mesh=mesh, ignored_params=ignored)",
                "fully_shard(model, mesh=mesh)",
            ),
        ),
        named=("placement",),
    ),
    Mutant(
        row="16",
        what="learning rate doubled",
        replaced=((ADAMW, ADAMW.replace("args.lr", "2 * args.lr")),),
        named=("settings",),
    ),
    Mutant(
        row="17",
        what="learning rate 1 % higher",
        replaced=((ADAMW, ADAMW.replace("args.lr", "1.01 * args.lr")),),
        named=("settings",),
    ),
    Mutant(
        row="18",
        what="groups without weight decay lost",
        replaced=(
            (
                ADAMW,
                "    trained = [p for p in model.parameters() if p.requires_grad]\n"
                "    return torch.optim.AdamW(trained, lr=args.lr, weight_decay=0.1)\n",
            ),
        ),
        named=("settings",),
    ),
    Mutant(
        row="19",
        what="gradients summed over ranks instead of averaged",
        replaced=((CLIP, CLIP_SUM),),
        named=("clipping",),
    ),
    Mutant(
        row="19, no clip",
        what="gradients summed over ranks instead of averaged, without clipping",
        replaced=(
            (
                STEP,
                "            for p in model.parameters():\n"
                "                if p.grad is not None:\n"
                "                    p.grad.mul_(dist.get_world_size())\n" + STEP,
            ),
        ),
        args=("--no-clip",),
        named=("gradient",),
    ),
    Mutant(
        row="20",
        what="loss divided by the number of ranks",
        replaced=(
            (
                BACKWARD,
                BACKWARD.replace("args.accumulate", "args.accumulate / dist.get_world_size()"),
            ),
        ),
        named=("first-loss",),
    ),
    Mutant(
        row="21",
        what="loss not divided by the number of micro-batches",
        replaced=((BACKWARD, "            loss.backward()\n"),),
        named=("first-loss",),
    ),
    Mutant(
        row="22",
        what="`zero_grad` lost",
        replaced=((ZERO, ""),),
        named=("trajectory",),
    ),
    Mutant(
        row="23",
        what="a frozen layer trained",
        replaced=((WRAP, WRAP.replace(BUILD, f"{BUILD}.requires_grad_(True)")),),
        named=("names",),
    ),
    Mutant(
        row="24",
        what="the same data on all ranks",
        replaced=((SAMPLER, SAMPLER.replace("shuffle=True", "num_replicas=1, rank=0")),),
        named=("inputs",),
    ),
    Mutant(
        row="25",
        what="an extra call that draws random numbers",
        replaced=((OPTIMIZER, OPTIMIZER + "    torch.rand(1)\n"),),
        named=("random",),
    ),
    Mutant(
        row="26",
        site="FSDP114 at train.py:35",
        what="a mesh that replicates instead of sharding",
        program="hybrid",
        replaced=(("(2, world // 2)", "(world, 1)"),),
        plan={"nproc": 4},
        named=("placement",),
    ),
    Mutant(
        row="27",
        what="root sharded before its blocks",
        replaced=((SHARD_BLOCKS + SHARD_ROOT, SHARD_ROOT + SHARD_BLOCKS),),
        named=("crash", "units", "placement", "collectives"),
    ),
    Mutant(
        row="29",
        what="gradients clipped on rank 0 only",
        replaced=(CLIP_ON_RANK_0,),
        plan={"timeout": 15.0},
        named=("hang",),
    ),
    Mutant(
        row="30",
        what="`full_tensor()` on rank 0 only",
        replaced=((STEP, STEP + FULL_ON_RANK_0),),
        plan={"timeout": 15.0},
        named=("hang", "crash"),
    ),
    Mutant(
        row="B1",
        site="FSDP202 at train.py:32",
        what="`reduce_dtype` dropped",
        replaced=((', "reduce_dtype": torch.float32', ""),),
        args=BF16,
        named=("units",),
    ),
    Mutant(
        row="B2",
        what="`param_dtype` dropped",
        replaced=(('"param_dtype": torch.bfloat16, ', ""),),
        args=BF16,
        named=("units", "first-loss"),
    ),
    Mutant(
        row="B3",
        site="FSDP202 at train.py:32",
        what="float16 instead of bfloat16",
        replaced=(('"param_dtype": torch.bfloat16', '"param_dtype": torch.float16'),),
        args=BF16,
        named=("units",),
    ),
    Mutant(
        row="B5",
        what="bfloat16: clipped by the norm of local shards",
        replaced=((CLIP, CLIP_LOCAL),),
        args=BF16,
        named=("clipping",),
    ),
    Mutant(
        row="B6",
        what="bfloat16: groups without weight decay lost",
        replaced=(
            (
                ADAMW,
                "    trained = [p for p in model.parameters() if p.requires_grad]\n"
                "    return torch.optim.AdamW(trained, lr=args.lr, weight_decay=0.1)\n",
            ),
        ),
        args=BF16,
        named=("settings",),
    ),
    Mutant(
        row="B7",
        what="bfloat16: gradients summed over ranks",
        replaced=((CLIP, CLIP_SUM),),
        args=BF16,
        named=("clipping",),
    ),
    Mutant(
        row="B8",
        what="bfloat16: learning rate 1 % higher",
        replaced=((ADAMW, ADAMW.replace("args.lr", "1.01 * args.lr")),),
        args=BF16,
        named=("settings",),
    ),
)

# --- our own --------------------------------------------------------------------------------------

OWN: tuple[Mutant, ...] = (
    Mutant(
        what="schedule of the learning rate dropped",
        replaced=((SCHEDULE, ""),),
        named=("settings",),
    ),
    Mutant(
        what="schedule stepped with every micro-batch",
        replaced=((SCHEDULE, ""), (BACKWARD, BACKWARD + SCHEDULE)),
        named=("settings",),
    ),
    Mutant(
        what="Adam instead of AdamW",
        replaced=((ADAMW, ADAMW.replace("AdamW", "Adam")),),
        named=("settings",),
    ),
    Mutant(
        what="other betas",
        replaced=((ADAMW, ADAMW.replace("lr=args.lr", "lr=args.lr, betas=(0.9, 0.95)")),),
        named=("settings",),
    ),
    Mutant(
        what="clipped by another bound",
        replaced=((CLIP, CLIP.replace("0.5", "1.0")),),
        named=("clipping",),
    ),
    Mutant(
        what="clipped by the maximum norm",
        replaced=((CLIP, CLIP.replace("0.5", 'max_norm=0.5, norm_type=float("inf")')),),
        named=("clipping",),
    ),
    Mutant(
        what="clipped by value",
        replaced=((CLIP, CLIP.replace("clip_grad_norm_", "clip_grad_value_")),),
        named=("clipping", "crash"),
    ),
    Mutant(
        what="every micro-batch steps the optimizer",
        replaced=(("            if not last:\n                continue\n", ""),),
        named=("steps",),
    ),
    Mutant(
        what="gradients reduced with every micro-batch and zeroed in between",
        replaced=((SYNC + LOGITS, ZERO + LOGITS),),
        named=("clipping", "gradient"),
    ),
    Mutant(
        what="tied weights no longer tied",
        replaced=(
            (
                WRAP,
                f"    model = {BUILD}\n"
                "    model.head.weight = torch.nn.Parameter(model.embed.weight.detach().clone())\n"
                "    model = wrap(model, args)\n",
            ),
        ),
        named=("names",),
    ),
    Mutant(
        what="a layer frozen by mistake",
        replaced=(
            (
                WRAP,
                f"    model = {BUILD}\n"
                "    model.blocks[0].norm1.requires_grad_(False)\n"
                "    model = wrap(model, args)\n",
            ),
        ),
        named=("names",),
    ),
    Mutant(
        what="trained in evaluation mode",
        replaced=((OPTIMIZER, "    model.eval()\n" + OPTIMIZER),),
        named=("mode",),
    ),
    Mutant(
        what="BatchNorm left in evaluation mode",
        program="uneven",
        replaced=(
            (
                "    optimizer = torch.optim.SGD(",
                "    model.norm.eval()\n    optimizer = torch.optim.SGD(",
            ),
        ),
        named=("mode",),
    ),
    Mutant(
        what="running averages of a BatchNorm no longer updated",
        program="uneven",
        replaced=(
            (
                "    optimizer = torch.optim.SGD(",
                "    model.norm.momentum = 0.0\n    optimizer = torch.optim.SGD(",
            ),
        ),
        named=("updated-buffers",),
    ),
    Mutant(
        what="stronger dropout",
        replaced=((WRAP, WRAP.replace("width=args.width", "width=args.width, dropout=0.2")),),
        named=("first-loss",),
    ),
    Mutant(
        what="data no longer shuffled",
        replaced=((SAMPLER, SAMPLER.replace("True", "False")),),
        named=("inputs",),
    ),
    Mutant(
        what="half the blocks sharded",
        site="FSDP102 at train.py:29",
        costs=True,
        replaced=(
            (
                "        if isinstance(module, Block):\n",
                "        if isinstance(module, Block) and module is not model.blocks[1]:\n",
            ),
        ),
        named=("units",),
    ),
    Mutant(
        what="every linear layer sharded by itself as well",
        costs=True,
        replaced=(
            (
                "isinstance(module, Block)",
                "isinstance(module, (Block, torch.nn.Linear)) and module is not model.head",
            ),
        ),
        named=("units",),
    ),
    Mutant(
        what="several blocks in one unit",
        costs=True,
        replaced=((SHARD_BLOCKS, "    fully_shard(list(model.blocks), mesh=mesh, **inner)\n"),),
        named=("units",),
    ),
    Mutant(
        what="activation checkpointing dropped",
        site="FSDP117",
        program="lifecycle",
        costs=True,
        replaced=(("m.out_features == 48", "m.out_features == 0"),),
        plan={"max_steps": 8},
        named=("recomputation",),
    ),
    Mutant(
        what="an inner method registered as an entry, though `forward` calls it",
        replaced=(
            (
                "model.py",
                BLOCK_FORWARD,
                "        x = self.attend(x, scale)\n"
                "        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))\n"
                "\n"
                "    def attend(self, x, scale):\n"
                "        return x + self.dropout(self.attention(self.norm1(x)) * scale)\n",
            ),
            (
                SHARD_BLOCK,
                SHARD_BLOCK
                + "            from torch.distributed.fsdp import register_fsdp_forward_method\n\n"
                '            register_fsdp_forward_method(module, "attend")\n',
            ),
        ),
        named=("crash", "collectives"),
    ),
    Mutant(
        what="units kept gathered in backward (`set_reshard_after_backward(False)`)",
        replaced=((OPTIMIZER, OPTIMIZER + "    model.set_reshard_after_backward(False)\n"),),
        named=("clipping", "collectives"),
    ),
    Mutant(
        what="dimensions of the mesh swapped (groups of other ranks)",
        program="hybrid",
        replaced=(
            ("    fully_shard(model, mesh=mesh)\n", "    fully_shard(model, mesh=mesh)\n"),
            ("    mesh = init_device_mesh(", "    mesh = _swapped("),
            (
                "def main():\n",
                "def _swapped(kind, shape, mesh_dim_names):\n"
                "    ranks = torch.arange(shape[0] * shape[1]).view(shape).T.contiguous()\n"
                "    return DeviceMesh(kind, ranks, mesh_dim_names=mesh_dim_names)\n\n\n"
                "def main():\n",
            ),
            ("import init_device_mesh\n", "import DeviceMesh\n"),
        ),
        plan={"nproc": 4},
        named=("placement",),
    ),
    Mutant(
        what="sharded over all ranks where replicas were wanted",
        program="hybrid",
        replaced=(("(2, world // 2)", "(1, world)"),),
        plan={"nproc": 4},
        named=("placement",),
    ),
    Mutant(
        what="buffer left in float32",
        program="packaged",
        replaced=(("src/trainer/main.py", "    model.gain = model.gain.to(torch.bfloat16)\n", ""),),
        plan={"script": "module:trainer.main", "workdir": "src"},
        args=("6",),
        named=("buffers", "first-loss", "crash"),
    ),
    Mutant(
        what="inputs of inner units cast (`cast_forward_inputs`)",
        program="packaged",
        replaced=(("src/trainer/main.py", ", cast_forward_inputs=False", ""),),
        plan={"script": "module:trainer.main", "workdir": "src"},
        args=("6",),
        named=("first-loss", "crash"),
    ),
    Mutant(
        what="scaler's `unscale_` lost before clipping",
        program="scaled",
        replaced=(("        scaler.unscale_(optimizer)\n", ""),),
        plan={"max_steps": 7},
        named=("clipping",),
    ),
    Mutant(
        what="gradient scaler lost",
        program="scaled",
        replaced=(
            ("scaler.scale(loss).backward()", "loss.backward()"),
            ("        scaler.unscale_(optimizer)\n", ""),
            (
                "        scaler.step(optimizer)\n        scaler.update()\n",
                "        optimizer.step()\n",
            ),
        ),
        plan={"max_steps": 7},
        named=("steps",),
    ),
    Mutant(
        what="running average follows at another rate",
        program="lifecycle",
        replaced=(("kept.lerp_(now, 0.1)", "kept.lerp_(now, 0.2)"),),
        plan={"max_steps": 8},
        named=("evaluation",),
    ),
    Mutant(
        what="running average never updated",
        program="lifecycle",
        replaced=(("        follow(average, model)\n", ""),),
        plan={"max_steps": 8},
        named=("evaluation",),
    ),
    Mutant(
        what="checkpoint loaded without the optimizer",
        program="lifecycle",
        replaced=(
            ("import StateDictOptions, get_state_dict, set_state_dict", LOADERS),
            (
                LOAD_BOTH,
                "    whole = StateDictOptions(full_state_dict=True)\n"
                '    set_model_state_dict(model, state["model"], options=whole)\n',
            ),
        ),
        plan={"max_steps": 8},
        named=("settings", "trajectory"),
    ),
    Mutant(
        what="checkpoint not loaded (names do not match, not strict)",
        program="lifecycle",
        replaced=(
            (
                'model_state_dict=state["model"]',
                'model_state_dict={"module." + n: t for n, t in state["model"].items()}',
            ),
            (
                "StateDictOptions(full_state_dict=True),",
                "StateDictOptions(full_state_dict=True, strict=False),",
            ),
        ),
        plan={"max_steps": 8},
        named=("trajectory",),
    ),
    Mutant(
        what="generator of dropout reseeded with every step",
        replaced=((LOGITS, "            torch.manual_seed(number)\n" + LOGITS),),
        named=("random",),
    ),
    Mutant(
        what="weights drawn from another distribution after meta-device creation",
        site="FSDP111 at train.py:24",
        program="meta",
        replaced=(
            (
                "            module.reset_parameters()\n",
                "            module.reset_parameters()\n"
                "            if isinstance(module, torch.nn.Linear):\n"
                "                torch.nn.init.normal_(module.weight, std=0.5)\n",
            ),
        ),
        plan={"max_steps": 8},
        named=("drawn",),
    ),
    Mutant(
        what="every rank draws the same local tensors after meta-device creation",
        program="meta",
        replaced=(
            ("torch.manual_seed(1234 + rank)", "torch.manual_seed(1234)"),
            (
                "            module.reset_parameters()\n",
                "            for parameter in module.parameters(recurse=False):\n"
                "                torch.nn.init.uniform_(parameter.to_local().data, -0.1, 0.1)\n",
            ),
        ),
        plan={"max_steps": 8},
        named=("drawn",),
    ),
    Mutant(
        what="a critic's optimizer built before sharding",
        program="adversarial",
        replaced=(
            (
                "    generator, critic = shard(generator), shard(critic)\n",
                "    early = torch.optim.RMSprop(critic.parameters(), lr=5e-4)\n"
                "    generator, critic = shard(generator), shard(critic)\n",
            ),
            (
                '        "critic": torch.optim.RMSprop(critic.parameters(), lr=5e-4),\n',
                '        "critic": early,\n',
            ),
        ),
        plan={"max_steps": 12},
        named=("optimizer-alive",),
    ),
    Mutant(
        what="the critic never frozen while the generator learns",
        program="adversarial",
        replaced=(
            ("        critic.requires_grad_(False)\n", ""),
            ('        optimizers["critic"].zero_grad()\n', ""),
        ),
        plan={"max_steps": 12},
        named=("trajectory", "names", "inputs"),
    ),
    Mutant(
        what="trains nothing: gradients detached by a forward without them",
        replaced=(
            (
                LOGITS,
                LOGITS.replace(
                    "model(tokens[:, :-1])", "model(tokens[:, :-1]).detach().requires_grad_()"
                ),
            ),
        ),
        named=("gradients-present", "optimizer-alive", "first-loss"),
    ),
    *(
        Mutant(
            what=what,
            program="conditional",
            args=("--kind", kind),
            replaced=((UNUSED, ""),),
            named=("gradients-present", "gradient"),
        )
        for kind, what in (
            ("never", "a part that no step uses is not decayed"),
            ("steps", "a part that some steps use, and Adam passes over otherwise"),
            ("ranks", "ranks use different parts, whose gradients are averaged"),
        )
    ),
)

MUTANTS = (*MEASURED, *OWN)


def plant(mutant: Mutant, folder: Path, **settings: Any) -> Caught:
    """Verify the original against the migration with the defect, which is made in ``folder``."""
    after = altered(PROGRAMS / mutant.program / "after", folder, mutant.replaced)
    settings = {"args": mutant.args, **mutant.plan, **settings}
    report = judged(mutant.program, after=after, **settings)
    return Caught(mutant, against_sites(report, _study(PROGRAMS / mutant.program / "before")))


_study = cache(study)


def plant_all(mutants: Sequence[Mutant]) -> list[Caught]:
    """Plant one after the other, with originals trained once and one warm process."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server: WarmServer = warm_server(sys.executable, folder)
        with server:
            for mutant in mutants:
                number = MUTANTS.index(mutant) + 1
                made = folder / f"mutant-{number}"
                caught = plant(mutant, made, server=server, cache=folder / "baselines")
                found.append(caught)
                sign = "caught" if caught.right else "MISSED"
                print(f"{number:>3} {sign}  {caught.first or '-':<18} {mutant.what}", flush=True)
                if not caught.right:
                    print(f"      {caught.report.verdict.value}: {caught.report.says}", flush=True)
    return found


def table(caught: Sequence[Caught]) -> str:
    """The table of the document."""
    lines = [
        "| defect | program | row | caught by | what verify says |",
        "|---|---|---|---|---|",
    ]
    for each in caught:
        says = each.report.says.replace("|", "\\|")
        words = " ".join([each.mutant.program, *each.mutant.args])
        lines.append(
            f"| {each.mutant.what} | {words} | {each.mutant.row or 'own'} | {each.first} | {says} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    chosen = [MUTANTS[int(word) - 1] for word in arguments] or list(MUTANTS)
    caught = plant_all(chosen)
    right = sum(each.right for each in caught)
    print(f"{right} of {len(caught)} caught with the right first cause")
    if not arguments:
        from tests.tools.documents import between

        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(between("mutants", text, table(caught)), encoding="utf-8")
    return 0 if right == len(caught) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
