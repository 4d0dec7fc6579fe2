"""What rules may ask about a project; ``answering.py`` has the form of their answers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from packaging.version import Version

from fsdp_migrate.analysis import dead_branches
from fsdp_migrate.analysis.flow import Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Outdated, Project
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, Constant, Made, Unknown, Value, Values
from fsdp_migrate.fsdp1 import declared, model_values
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.narrowing import Narrowing
from fsdp_migrate.fsdp1.site import ANYWHERE, Key, Site
from fsdp_migrate.planning import wrapped_elsewhere
from fsdp_migrate.planning.answering import Answering
from fsdp_migrate.planning.branches import Branch
from fsdp_migrate.planning.edits import Code
from fsdp_migrate.planning.forms import PassedOver, Taken
from fsdp_migrate.planning.model import (
    Constructor,
    Conversion,
    Decision,
    Models,
)
from fsdp_migrate.planning.naming import Namer
from fsdp_migrate.planning.proposal import Claims, Proposal
from fsdp_migrate.planning.rule import LoadedRule, Registry
from fsdp_migrate.planning.seen import Seen
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.planning.target import DEFAULT_TARGET
from fsdp_migrate.planning.wrap_contexts import Wrapping
from fsdp_migrate.syntax.trees import LOOPS, block_of

Cached = TypeVar("Cached")

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, eq=False)
class Failure:
    """A rule that ended with an error where it was asked for a decision."""

    site: Site
    rule: LoadedRule
    error: BaseException


@dataclass(eq=False)
class Study(Answering):
    """What rules may ask: the project, its values, its models."""

    project: Project
    registry: Registry
    target: Version = DEFAULT_TARGET
    tracer: Tracer = field(init=False)
    narrowing: Narrowing = field(init=False)
    namer: Namer = field(default_factory=Namer)
    constructors: dict[ast.AST, Constructor] = field(default_factory=dict)
    entries: dict[ast.AST, Constructor] = field(default_factory=dict)  # in keyword dictionaries
    plans: dict[Constructor, ShardPlan] = field(default_factory=dict)
    conversions: dict[ast.AST, Conversion] = field(default_factory=dict)
    _made: list[tuple[Constructor, str, str]] = field(default_factory=list)
    run_time: frozenset[ast.AST] = frozenset()  # constructor calls to write in the run-time form
    kept_dictionaries: frozenset[ast.AST] = frozenset()  # calls whose dictionaries stay as they are
    passed_over: PassedOver = field(default_factory=dict)  # forms that sites are not to take
    seen: Seen = field(default_factory=Seen)  # what a run of the original has shown
    broken: Mapping[Key, str] = field(default_factory=dict)  # whose new code fails, and how
    _taken: dict[tuple[ast.AST, Construct], Taken] = field(default_factory=dict)
    published: bool = True  # others may install the project, and use its functions
    run_time_states: bool = False  # kinds of state dicts that only the running program knows
    partial: bool = False  # stop the program at what is left rather than hold its model back
    branches: list[Branch] = field(default_factory=list)  # for FSDP1 models, and going
    found: tuple[list[Site], set[ast.AST]] | None = None  # sites, and what they refer by
    doubtful: set[ast.expr] = field(default_factory=set)  # that may be models, or anything
    outdated: list[Site] = field(default_factory=list)  # that only older torch releases run
    going: dict[Outdated, bool] = field(default_factory=dict)  # which of it is removed
    subclassed: bool = False  # the project derives classes from FSDP1's
    handed_on: str = ""  # where FSDP1's class is handed on as a value
    unwritten: list[Constructor] = field(default_factory=list)  # that fully_shard cannot say
    wrapping: Wrapping = field(default_factory=Wrapping)
    # Wrappers around what others have wrapped, which these are: they go (``second_wrappers.py``).
    second_wrappers: dict[Constructor, tuple[Constructor, ...]] = field(default_factory=dict)
    by_plugin: set[ast.AST] = field(default_factory=set)  # settings of accelerate's, all of them
    settled: dict[ast.AST, Decision] = field(default_factory=dict)  # node -> its decision
    failures: dict[ast.AST, Failure] = field(default_factory=dict)
    claims: Claims = field(default_factory=Claims)  # of the sites that are settled
    _caches: dict[Callable[[Study], object], object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dead_branches.settle(self.project, self.target)
        self.tracer = Tracer(self.project)
        self.narrowing = Narrowing(self.tracer)
        self.tracer.narrow, self.tracer.told = self.narrowing.narrowed, self.narrowing.verdict
        self.tracer.shown, self.tracer.settled = self.seen.shown_at, self.seen.settled_at

    def again(
        self,
        run_time: frozenset[ast.AST] = frozenset(),
        *,
        states: bool = False,
        kept: frozenset[ast.AST] = frozenset(),
    ) -> Study:
        """A fresh study of the same values, in which some sites take another form.

        Args:
            kept: calls, more than those of this study, whose dictionaries stay as they are.
        """
        result = Study(
            self.project, self.registry, self.target, run_time=run_time, run_time_states=states
        )
        result.kept_dictionaries = self.kept_dictionaries | kept
        result.partial, result.passed_over, result.seen = self.partial, self.passed_over, self.seen
        result.broken, result.published = self.broken, self.published
        result.tracer, result.narrowing = self.tracer, self.narrowing
        result.found, result.outdated = self.found, self.outdated
        result.doubtful, result.failures = self.doubtful, self.failures
        result._caches = self._caches
        return result

    def anew(self) -> Study:
        """A fresh study of the same values, which has found nothing yet."""
        result = self.again()
        result.found, result.outdated = None, []
        return result

    def mistake(self, site: Site) -> str:
        """What is wrong with the code that its rule writes for a site, if that is known."""
        of_all = (site.module.path, ANYWHERE, site.construct)
        return (self.broken and (self.broken.get(site.key) or self.broken.get(of_all))) or ""

    def cache(self, find: Callable[[Study], Cached]) -> Cached:
        """What ``find`` says of this project, asked once however many forms are tried.

        A family of rules keeps here what it has found out. The function is the key, so that nobody
        else can mean the same entry.
        """
        if find not in self._caches:
            self._caches[find] = find(self)
        return cast(Cached, self._caches[find])

    # -- values ---------------------------------------------------------------------------------

    def values(self, node: ast.expr, module: Module) -> Values:
        return self.tracer.evaluate(node, module)

    def literal(self, node: ast.expr, module: Module) -> Constant | None:
        """The constant ``node`` certainly is: written here, or a local name for one.

        A field of a configuration object is not one, whatever its default: command lines change it.
        """
        if not isinstance(node, (ast.Constant, ast.Name)):
            return None
        if isinstance(node, ast.Name) and not self._assigned_here(node, module):
            return None
        found = self.values(node, module)
        constants = [v for v in found if isinstance(v, Constant)]
        same = len({repr(v.value) for v in constants}) == 1
        return constants[0] if same and len(constants) == len(found) else None

    def _assigned_here(self, node: ast.Name, module: Module) -> bool:
        scope = module.table.scope_of(node).lookup(node.id)
        if scope is None:
            return False
        return all(isinstance(b.value, ast.Constant) for b in scope.bindings[node.id])

    def unknown(self, found: Iterable[Value]) -> str:
        """Why some of the values cannot be followed, or nothing when all can."""
        for value in found:
            if isinstance(value, Unknown):
                return value.why  # no position: markers must stay true when lines move
        return ""

    def external(self, node: ast.expr, module: Module) -> frozenset[str]:
        return self.project.external(node, module)

    def convert(
        self,
        node: ast.AST,
        new: Code | None,
        message: str,
        constructor: Constructor,
        proposal: Proposal | None = None,
    ) -> bool:
        """Ask for the value made at ``node`` to become ``new``; False if that contradicts an
        earlier wish."""
        known = self.conversions.get(node)
        if known is None:
            self.conversions[node] = Conversion(new, message, {constructor}, proposal)
            return True
        same = (known.new is None) == (new is None) and (
            new is None or known.new is None or known.new.preview() == new.preview()
        )
        if same:
            known.constructors.add(constructor)
        return same

    def make(self, constructor: Constructor, value: Code, name: str) -> None:
        """Remember that the code emitted for ``constructor`` binds ``name`` to ``value``."""
        if constructor.maker is None:  # it may stand in the function that makes the arguments
            self._made.append((constructor, value.preview(), name))
            self.namer.keep(constructor.module, constructor.reference, name)

    def made_before(self, constructor: Constructor, value: Code) -> str:
        """The name that an earlier constructor bound to ``value`` where it surely ran before.

        That is in the same run of statements, or in one around it in the same function.
        """
        if constructor.maker is not None:
            return ""
        table = constructor.module.table
        before: list[ast.stmt] = []
        statement = constructor.statement
        for parent in table.ancestors(statement):
            block = block_of(parent, statement)
            before += block[: block.index(statement)]
            if not isinstance(parent, ast.stmt) or isinstance(parent, (*SCOPES, *LOOPS)):
                break
            statement = parent
        for other, text, name in self._made:
            earlier = other.module is constructor.module and other.statement in before
            if earlier and text == value.preview():
                return name
        return ""

    # -- models ---------------------------------------------------------------------------------

    @property
    def every_constructor(self) -> frozenset[Constructor]:
        """All of the project's, for what may concern any model."""
        return frozenset(self.constructors.values())

    @property
    def no_models(self) -> str:
        """Why there is nothing to migrate, or an empty text."""
        if self.constructors:
            return ""
        return self.derived or wrapped_elsewhere.reason(self.project, self.handed_on)

    @property
    def no_models_help(self) -> str:
        """What to do about that."""
        return wrapped_elsewhere.next_step(self.project, self.handed_on)

    @property
    def derived(self) -> str:
        """That the only models are of a class derived from FSDP1's, or an empty text."""
        if self.constructors or not self.subclassed:
            return ""
        return "the models here are of a subclass of FSDP, which stays (FSDP103)"

    def models(self, node: ast.expr, module: Module) -> Models:
        """The FSDP1 models ``node`` may be."""
        found = self.values(node, module)
        made = model_values.models(found, self.tracer)
        constructors = frozenset(c for m in made for c in self.made_by(m))
        if not made and model_values.is_taken_for_model(node, module, self.tracer):
            said = declared.model(found, self.tracer)
            return Models(self.every_constructor, tuple(found) if said.other else ())
        if not constructors and self.seen.shown_at(node, module):
            shown = self.seen.makers_at(node, module)
            every = self.constructors.values()
            return Models(frozenset(c for c in every if c.is_made_at(shown)))
        others = tuple(v for v in found if v not in made)
        if node in self.doubtful:
            constructors = frozenset(self.reached_from(module))
        return Models(constructors, others)

    def reached_from(self, module: Module) -> list[Constructor]:
        """The constructors that a value of ``module`` may get to: all where there are none near."""
        every = list(self.constructors.values())
        island = self.project.island(module)
        return [c for c in every if self.project.island(c.module) == island] or every

    def made_by(self, model: Made) -> Iterator[Constructor]:
        """The constructor of a model, or the partial of it that was called."""
        if model.node in self.constructors:
            yield from self.settings_of(self.constructors[model.node])
        elif isinstance(model.callee, Class):
            for cls in self.tracer.lineage(model.callee):
                if cls.node in self.constructors:
                    yield self.constructors[cls.node]
        elif isinstance(model.node, ast.Call):
            yield from self._called(model.node.func, model.module)

    def _called(self, function: ast.expr, module: Module, deep: int = 4) -> Iterator[Constructor]:
        """The partial of a constructor that is called, or is bound by one that is."""
        for callee in self.values(function, module) if deep else ():
            match callee:
                case _ if callee.node in self.constructors:
                    yield self.constructors[callee.node]
                case Made(made_by="functools.partial", node=ast.Call(args=[bound, *_])):
                    yield from self._called(bound, callee.module, deep - 1)

    def settings_of(self, constructor: Constructor) -> tuple[Constructor, ...]:
        """The constructors whose arguments a model has: ``wrap(x)`` has those of enable_wrap,
        and ``FSDP(FSDP(x))`` those of the inner one."""
        if constructor in self.second_wrappers:
            return self.second_wrappers[constructor]
        return self.wrapping.contexts.get(constructor, (constructor,))

    def traced(self, node: ast.expr, module: Module) -> bool:
        """Whether tracing, or a type, shows that ``node`` is an FSDP1 model."""
        found = self.values(node, module)
        if model_values.models(found, self.tracer) or self.seen.shown_at(node, module):
            return True
        return bool(self.constructors) and declared.model(found, self.tracer).model

    def models_of_static(self, node: ast.expr | None, module: Module) -> Models:
        """As :meth:`models`, for the model given to an FSDP1 static: it can be nothing else."""
        found = self.models(node, module) if node is not None else Models(frozenset())
        if found.constructors:
            return Models(found.constructors)
        return Models(self.every_constructor)

    def may_ignore(self, models: Iterable[Constructor]) -> bool:
        """Whether some models may leave parameters unsharded: the argument is given, or they are
        given arguments from elsewhere, in a project that speaks of it."""
        models = list(models)
        named = [c for c in models if c.has("ignored_modules") or c.has("ignored_states")]
        spoken_of = self.project.mentions("ignored_modules", "ignored_states", "ignored_parameters")
        return bool(named) or (spoken_of and any(c.is_open for c in models))

    def argument(self, site: Site) -> tuple[ShardPlan, ast.expr, str]:
        """The plan, value and name of a constructor argument's site."""
        name = site.construct.part
        for plan in reversed(self.plans.values()):  # the last: a dictionary may serve several
            if plan.constructor.nodes().get(name) is site.node:
                return plan, plan.constructor.arguments[name], name
        raise AssertionError(f"{site.construct} belongs to no constructor")

    def defined_by(self, node: ast.expr, module: Module) -> frozenset[Definition]:
        """The definitions that reach a use of a name or dotted path in its own scope."""
        return model_values.definitions(node, module)
