"""Migrate Lightning's `FSDPStrategy` to its `ModelParallelStrategy`."""

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.configurations import lightning_calls, lightning_fabric, lightning_module
from fsdp_migrate.configurations.frameworks import lightning, words
from fsdp_migrate.configurations.lightning_calls import StrategyCall
from fsdp_migrate.configurations.lightning_hook import Hook, NotSimple
from fsdp_migrate.configurations.plugin_calls import assigned_for, made_by
from fsdp_migrate.discovery import pins
from fsdp_migrate.families.wrapping import policies
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import Finder, Rule

STRATEGY = Construct.parse(f"{lightning_calls.NAME}()")


def _find(study: Study, module: Module) -> Iterator[Site]:
    for found in study.cache(lightning_calls.strategy_calls):
        if found.module is module:
            yield Site(STRATEGY, module, found.call, found.call.func)
    for node, home in study.cache(lightning_calls.other_places):
        if home is module:
            yield Site(STRATEGY, module, node, node)


RULE = Rule(
    code="FSDP530",
    name="lightning",
    handles=(str(STRATEGY),),
    finders=(Finder(262, _find, always=True),),
)

WRAPS = "Lightning wraps the model with FSDP1 here"
ELSEWHERE = "Lightning is given this strategy elsewhere, and wraps the model with FSDP1"
DERIVED = "this class derives from Lightning's, which wraps the model with FSDP1"
DERIVE = (
    "derive it from ModelParallelStrategy, and shard in the hook of the model, configure_model: of "
    "its methods, those for FSDP1's states, clipping and wrapping go or change"
)
PLAIN = "write ModelParallelStrategy with data_parallel_size, tensor_parallel_size=1 and a hook"
SIZE = (
    "data_parallel_size is the number of all processes: both sizes are needed, as the default is "
    "tensor parallelism over the devices of a machine"
)
NUMBER = "{} has to be a number: Lightning stops where the two sizes do not make up all processes"
FOLDERS = (
    "a folder that FSDPStrategy has saved calls the model `model`, and ModelParallelStrategy asks "
    "for `state_dict`: save it once more with state_dict_type='full' first"
)
BUFFERS = "FSDP1 also casts buffers to bfloat16, which fully_shard leaves as they are"
SEPARATE = (
    "setup(model, optimizer) becomes setup_module(model) and then setup_optimizers(optimizer), of "
    "an optimizer that is made in between: given both at once, it trains nothing and says nothing"
)
HOOKS = {
    "configure_model": "put it into the method that stands there",
    "configure_sharded_model": "it is called no more, and its wrap() becomes fully_shard",
    "configure_gradient_clipping": "clip_grad_norm_ of trainer.model becomes self.clip_gradients",
    "clip_gradients": "ModelParallelStrategy clips by norm itself",
}
HERE = "the hook {0} of {1} has to change: {2}"


OWN = "ModelParallelStrategy"
WRITTEN = "ModelParallelStrategy shards what {hook} says, from Lightning 2.3 on"


class Unknown(Exception):
    """Something that ModelParallelStrategy does otherwise, or that is not known; what to do."""

    def __init__(self, reason: str, help: str) -> None:
        super().__init__(reason)
        self.help = help


def decide(site: Site, study: Study) -> Decision:
    calls = study.cache(lightning_calls.strategy_calls)
    found = next((each for each in calls if each.call is site.node), None)
    if found is None:
        around = site.module.table.parents.get(site.node)
        is_base = isinstance(around, ast.ClassDef) and site.node in around.bases
        said = (DERIVED, DERIVE) if is_base else (ELSEWHERE, PLAIN)
        return study.left(site, RULE.code, *said)
    try:
        target = _target(found, study)
    except Unknown as problem:
        return study.left(site, RULE.code, str(problem), problem.help)
    hooks = [*_hooks(found, study)]
    try:
        if hooks:
            raise NotSimple("a hook was written for FSDP1")
        return _rewritten(site, found, target, study)
    except NotSimple as problem:
        hook = "its function" if found.fabric else "configure_model"
        reason = f"{WRAPS}, and {hook} is not written by itself: {problem}"
    notes = [*target.notes, *hooks, *([SEPARATE] if found.fabric else [])]
    return study.left(site, RULE.code, reason, sentences(target.text(), *notes).rstrip("."))


def _rewritten(site: Site, found: StrategyCall, target: lightning.Target, study: Study) -> Decision:
    """Write the strategy and the hook.

    Raises:
        NotSimple: the hook cannot be written.
    """
    if target.sharded and not found.fabric:
        raise NotSimple("folders that are saved before could not be loaded")
    size = target.size
    if size.startswith("<"):
        raise NotSimple("the number of processes is not written")
    proposal, module = study.proposal(), found.module
    if found.fabric:
        lightning_fabric.write(found, Hook(found, target, study, proposal), study)
    else:
        cls = lightning_module.module_of(found, study)
        lightning_module.write_hook(cls, found, target, study, proposal)
    if "torch." in size:
        torch = proposal.module_name(module, "torch", "torch", found.call)
        target.size = size.replace("torch", torch)
    new = proposal.name(module, _source(found, study), "ModelParallelStrategy", found.call)
    if found.alias:
        given = next(k.value for k in found.call.keywords if k.arg == "strategy")
        made = assigned_for(given, module, study)
        given = made.value if made is not None else given
        if not isinstance(given, ast.Constant):
            raise NotSimple("the strategy stands in a variable that others read or set as well")
        proposal.replace(module, given, code("{s}", s=target.strategy.replace(OWN, new)))
    else:
        proposal.replace(module, found.call.func, code("{n}", n=new))
        for keyword in found.call.keywords:
            if keyword.arg in lightning.KEPT:
                continue
            if keyword.arg in found.owned:
                proposal.delete(module, found.owned[keyword.arg])
            proposal.remove_argument(module, found.call, keyword)
        written = {"parallelize_fn": lightning_fabric.NAME} if found.fabric else {}
        for name, value in {**written, **target.arguments()}.items():
            proposal.add_keyword(module, found.call, name, code("{v}", v=value))
    review = sentences(*target.notes)
    said = WRITTEN.format(hook=lightning_fabric.NAME if found.fabric else "configure_model")
    return study.rewritten(site, RULE.code, said, proposal, review=review)


def _source(found: StrategyCall, study: Study) -> str:
    names = study.external(found.call.func, found.module)
    if found.fabric:
        old = any(name.startswith("lightning_fabric") for name in names)
        return "lightning_fabric.strategies" if old else "lightning.fabric.strategies"
    old = any(name.startswith("pytorch_lightning") for name in names)
    return "pytorch_lightning.strategies" if old else "lightning.pytorch.strategies"


def _target(found: StrategyCall, study: Study) -> lightning.Target:
    """What takes the place of one strategy.

    Raises:
        Unknown: nothing does, or it is not known.
    """
    _check_release(found, study)
    if found.problem:
        by_hand = PLAIN if found.alias else f"write them out in the call, or {PLAIN}"
        raise Unknown(f"{WRAPS}, and {found.problem}", by_hand)
    target = lightning.Target(found.fabric, "<number of processes>")
    target.size = _size(found, study, target) or target.size
    if target.size.startswith("<"):
        target.notes.append(SIZE)
    kept = [(name, found.given(name)) for name in lightning.KEPT]
    target.kept = [f"{name}={ast.unparse(node)}" for name, node in kept if node is not None]
    target.options = [*_strategy(found, study), *_precision(found, study, target)]
    target.options += _offload(found, study, target)
    target.units = _classes(found, "auto_wrap_policy", study)
    target.checkpointed = _checkpointed(found, study)
    _others(found, target)
    default = "sharded" if found.fabric else "full"
    kind = _text(found.given("state_dict_type"), found, study, default)
    if kind not in {"full", "sharded"}:
        raise Unknown(f"state_dict_type is {kind}", "write it in the call, and run again")
    target.sharded = kind == "sharded"
    if target.sharded and not found.fabric:
        target.notes.append(FOLDERS)
    return target


def _check_release(found: StrategyCall, study: Study) -> None:
    for name in ("lightning", "pytorch-lightning", "lightning-fabric"):
        release = study.project.library.pinned(name, found.module.path)
        if release and release < lightning.HAS_NEW:
            shown = ".".join("*" if part == pins.ANY else str(part) for part in release)
            reason = f"{name} {shown} has no ModelParallelStrategy, which came with 2.3"
            raise Unknown(reason, f"raise {name}, and run again")


def _size(found: StrategyCall, study: Study, target: lightning.Target) -> str:
    """The number of processes, where the Trainer or Fabric says it."""
    nodes, devices = found.of_runner("num_nodes"), found.of_runner("devices")
    if found.runner is None or any(k.arg is None for k in found.runner.keywords):
        return ""
    machines = _number(nodes, 1, found, study)
    each = _number(devices, "auto", found, study)
    if machines in (None, -1, "auto") or each is None:
        return ""
    if each in (-1, "auto", "-1"):
        each = "torch.cuda.device_count()"
    if type(each) is int and type(machines) is int:
        return str(each * machines)
    named = [x for x in (each, machines) if isinstance(x, str) and not x.startswith("torch.")]
    if named:
        target.notes.append(NUMBER.format(" and ".join(named)))
    return f"{each}" if machines == 1 else f"{machines} * {each}"


def _number(
    node: ast.expr | None, default: int | str, found: StrategyCall, study: Study
) -> int | str | None:
    """A number, ``auto``, or the source of an expression that is the same for the strategy."""
    module = found.runner_module
    if node is None or module is None:
        return default
    known = study.literal(node, module)
    if known is not None:
        value = known.value
        return value if type(value) is int or value in ("auto", "-1") else None
    table, inner = module.table, node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    if not isinstance(inner, ast.Name) or module is not found.module:
        return None
    scopes = [table.scope_of(each) for each in (found.call, found.runner) if each is not None]
    scope = scopes[0].lookup(inner.id)
    same = scope is not None and all(s.lookup(inner.id) is scope for s in scopes)
    if scope is None or not same or len(scope.bindings[inner.id]) != 1:
        return None
    return ast.unparse(node)


def _text(node: ast.expr | None, found: StrategyCall, study: Study, default: str) -> str:
    """A text that an argument is, or the source of what it is."""
    if node is None:
        return default
    known = study.literal(node, found.module)
    return str(known.value) if known is not None else ast.unparse(node)


def _strategy(found: StrategyCall, study: Study) -> list[str]:
    given = _text(found.given("sharding_strategy"), found, study, "FULL_SHARD")
    named = words.strategy(given.rpartition(".")[2])
    if named is None:
        reason = f"sharding_strategy is {given}, which is not known here"
        raise Unknown(reason, "write it in the call, and run again")
    if named == "NO_SHARD":
        raise Unknown("NO_SHARD is what DDP does", 'write strategy="ddp"')
    if named.startswith("HYBRID") or found.given("device_mesh") is not None:
        reason = f"{named} replicates, and the mesh of ModelParallelStrategy has no such dimension"
        raise Unknown(
            reason,
            "shard over a mesh of your own in the hook: init_device_mesh('cuda', (<machines>, "
            "<devices of one>), mesh_dim_names=('replicate', 'shard'))",
        )
    return [] if words.RESHARDING[named] else ["reshard_after_forward=False"]


def _precision(found: StrategyCall, study: Study, target: lightning.Target) -> list[str]:
    given = found.given("mixed_precision")
    if given is not None and ast.unparse(given) != "None":
        reason = f"mixed_precision is {ast.unparse(given)}, which is not known here"
        raise Unknown(
            reason, "give fully_shard its MixedPrecisionPolicy in the hook, as mp_policy="
        )
    asked = _text(found.of_runner("precision"), found, study, "32-true")
    if asked in lightning.UNSUPPORTED:
        raise Unknown(
            f"ModelParallelStrategy refuses precision {asked}", 'write precision="bf16-mixed"'
        )
    if asked in lightning.BFLOAT16:
        target.notes.append(BUFFERS)
        policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)"
        return [f"mp_policy={policy}"]
    if asked not in {"32-true", "32", "None", "bf16-true", "16-true"}:
        reason = f"precision is {asked}, which is not known here"
        raise Unknown(reason, "write it in the call, and run again")
    return []


def _offload(found: StrategyCall, study: Study, target: lightning.Target) -> list[str]:
    given = found.given("cpu_offload")
    if found.alias == "fsdp_cpu_offload":
        return _offloads(found, target)
    if given is None:
        return []
    known = study.literal(given, found.module)
    value = known.value if known is not None else None
    if made_by(given, found.module, study) == "CPUOffload" and isinstance(given, ast.Call):
        inner = [*given.args, *(k.value for k in given.keywords)]
        literal = study.literal(inner[0], found.module) if inner else None
        value = literal.value if literal is not None else (None if inner else False)
        known = literal if inner else known
        if not inner:
            return []
    if known is None:
        reason = f"cpu_offload is {ast.unparse(given)}, which is not known here"
        raise Unknown(reason, "write it in the call, and run again")
    return _offloads(found, target) if value else []


def _offloads(found: StrategyCall, target: lightning.Target) -> list[str]:
    if not found.fabric:
        raise Unknown(
            "ModelParallelStrategy moves the whole model to the device after configure_model, and "
            "with it what CPUOffloadPolicy keeps on the host",
            "do without cpu_offload, or override model_to_device in a subclass of it",
        )
    target.notes.append("its parameters are on the host when the optimizer is made")
    return ["offload_policy=CPUOffloadPolicy()"]


def _classes(found: StrategyCall, name: str, study: Study) -> list[ast.expr]:
    """The classes of a policy."""
    given = found.given(name)
    if given is None:
        return []
    written = given if isinstance(given, ast.Set) else None
    if written is None:
        try:
            read = policies.read(study.values(given, found.module), study)
        except policies.Unreadable:
            read = []
        if read and all(each.kind is policies.Kind.NONE for each in read):
            return []
        if len(read) == 1 and read[0].kind is policies.Kind.CLASSES:
            argument = read[0].argument
            written = argument if isinstance(argument, ast.Set) else None
    if written is None:
        raise Unknown(
            f"{name} is {ast.unparse(given)}",
            "write a set of classes in the call and run again, or its condition for each of "
            "modules() in the hook",
        )
    return written.elts


def _checkpointed(found: StrategyCall, study: Study) -> list[ast.expr]:
    old = found.given("activation_checkpointing")
    if old is None:
        return _classes(found, "activation_checkpointing_policy", study)
    return old.elts if isinstance(old, ast.List | ast.Tuple) else [old]


READ = (
    *("sharding_strategy", "state_dict_type", "mixed_precision", "cpu_offload", "device_mesh"),
    *("auto_wrap_policy", "activation_checkpointing", "activation_checkpointing_policy"),
)


def _others(found: StrategyCall, target: lightning.Target) -> None:
    """Arguments that go to FSDP1's constructor, and those of a strategy that the new has not."""
    known = {*READ, *lightning.KEPT, *lightning.DEAD}
    for keyword in () if found.alias else found.call.keywords:
        if keyword.arg in known:
            continue
        shown = f"{keyword.arg}={ast.unparse(keyword.value)}"
        if keyword.arg == "sync_module_states":
            target.notes.append("seed before the model is made: nothing spreads rank 0's weights")
        elif keyword.arg == "precision_plugin":
            raise Unknown(f"the strategy has {shown}", "give precision= to the Trainer")
        elif keyword.arg in lightning.UNTAKEN:
            raise Unknown(
                f"ModelParallelStrategy takes no {shown}", "give it to the Trainer or Fabric"
            )
        else:
            raise Unknown(
                f"FSDP1's {shown} is not followed here", "say it to fully_shard in the hook"
            )


def _hooks(found: StrategyCall, study: Study) -> Iterator[str]:
    """Hooks of Lightning modules that were written for FSDP1."""
    for module in study.project.modules if not found.fabric else ():
        if study.project.island(module) != study.project.island(found.module):
            continue
        if not any(map(module.mentions, (*HOOKS, "configure_optimizers"))):
            continue
        for node in ast.walk(module.source.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    yield from _hook(each, node.name)


def _hook(method: ast.FunctionDef, owner: str) -> Iterator[str]:
    if method.name in HOOKS:
        yield HERE.format(method.name, owner, HOOKS[method.name])
    elif method.name == "configure_optimizers" and "self.trainer.model." in ast.unparse(method):
        todo = "self.trainer.model is self under ModelParallelStrategy, so that it may stay"
        yield f"{method.name} of {owner}: {todo}"
