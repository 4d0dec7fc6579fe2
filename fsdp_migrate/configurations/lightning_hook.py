"""The statements that shard a model under ``ModelParallelStrategy``, as they are written."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, External
from fsdp_migrate.configurations.frameworks.lightning import Target
from fsdp_migrate.configurations.lightning_calls import StrategyCall
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.proposal import Proposal

FSDP = "torch.distributed.fsdp"
CHECKPOINTS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"

ELEMENTWISE = frozenset(
    f"torch.optim.{name}"
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam")
)


class NotSimple(Exception):
    """The hook is not written by itself; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where the hook is written."""

    module: Module
    near: ast.AST


@dataclass(frozen=True)
class Hook:
    """What one strategy's hook says."""

    found: StrategyCall
    target: Target
    study: Study
    to: Proposal

    def lines(self, model: str, mesh: str, at: Place) -> list[Code]:
        """The statements that shard ``model``.

        Raises:
            NotSimple: a class of the policy is not to be named there, or others are to be
                checkpointed than sharded.
        """
        target, shard = self.target, self._name(FSDP, "fully_shard", at)
        options = self._options(at)
        lines = [code(f'    mesh = {mesh}["data_parallel"]')]
        units = [self._unit(each, at) for each in target.units]
        if target.checkpointed:
            if any(m.mentions("checkpoint_wrapper") for m in self.study.project.modules):
                raise NotSimple("the program checkpoints activations itself")
            parts = [self._unit(each, at) for each in target.checkpointed]
            apply = self._name(CHECKPOINTS, "apply_activation_checkpointing", at)
            test = code("lambda module: isinstance(module, {c})", c=_any_of(parts))
            lines.append(code(f"    {apply}({model}, check_fn={{t}})", t=test))
            same = {*map(ast.unparse, target.units)} == {*map(ast.unparse, target.checkpointed)}
            if units and not same:
                raise NotSimple("other parts of it are checkpointed than sharded")
            if units:
                units = [code("{c}", c=self._name(CHECKPOINTS, "CheckpointWrapper", at))]
        if units:
            itself = "" if model == "self" else f"module is not {model} and "
            lines += [
                code(f"    for module in reversed(list({model}.modules())):"),
                code(f"        if {itself}isinstance(module, {{u}}):", u=_any_of(units)),
                code("            {f}(module, mesh=mesh{o})", f=shard, o=options),
            ]
        return [*lines, code(f"    {{f}}({model}, mesh=mesh{{o}})", f=shard, o=options)]

    def _name(self, source: str, name: str, at: Place) -> str:
        return self.to.name(at.module, source, name, at.near)

    def _options(self, at: Place) -> Code:
        parts = []
        for option in self.target.options:
            name, _, value = option.partition("=")
            if name == "mp_policy":
                torch = self.to.module_name(at.module, "torch", "torch", at.near)
                policy = self._name(FSDP, "MixedPrecisionPolicy", at)
                value = f"{policy}(param_dtype={torch}.bfloat16, reduce_dtype={torch}.bfloat16)"
            if name == "offload_policy":
                value = f"{self._name(FSDP, 'CPUOffloadPolicy', at)}()"
            parts.append(code(", {n}={v}", n=name, v=value))
        return join("", parts)

    def _unit(self, unit: ast.expr, at: Place) -> Code:
        """A class of a policy, by a name that it has there."""
        values = self.study.values(unit, self.found.module)
        value = next(iter(values)) if len(values) == 1 else None
        if isinstance(value, Class) and value.module is at.module and is_global(value):
            return code("{n}", n=value.node.name)
        if isinstance(value, External):
            source, _, name = value.name.rpartition(".")
            return code("{n}", n=self._name(source, name, at))
        named = getattr(at.near, "name", "the function")
        raise NotSimple(f"{ast.unparse(unit)} is not defined where {named} is")


def is_global(cls: Class) -> bool:
    table = cls.module.table
    return table.scope_of(cls.node) is table.module


def _any_of(classes: list[Code]) -> Code:
    return classes[0] if len(classes) == 1 else code("({u})", u=join(", ", classes))
