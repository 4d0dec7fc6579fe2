"""Note every place in the project's own code that uses what only FSDP1 has.

FSDP1's own functions are patched, and look at the frame that calls them. Patches come last, so that
arguments are seen as the program gives them.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from torch import nn

from fsdp_migrate.fsdp1 import api
from fsdp_migrate.verify.capture.described import described
from fsdp_migrate.verify.capture.places import Place, Places, outer
from fsdp_migrate.verify.capture.probes import Probes
from fsdp_migrate.verify.inject.config import FSDP1

Say = Callable[..., None]
"""Writes an event: its kind, and its fields."""

_MOST_UNITS = 64


class Uses:
    """What is known of FSDP1's uses in this process, each told to ``say`` when it is first seen.

    ``steps`` answers how many optimizer steps there were so far.
    """

    def __init__(self, tree: str, say: Say, steps: Callable[[], int]) -> None:
        self._say = say
        self._steps = steps
        self._places = Places(tree)
        self._known: dict[tuple[str, CodeType, int], Place] = {}
        self._said: set[tuple[str, Place, int | None]] = set()
        self._constructors: dict[str, int] = {}
        self._made_by: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._local = threading.local()
        self._wrapper: Any = None

    def install(self) -> None:
        """Patch FSDP1, which has just been imported."""
        wrapper = self._wrapper = sys.modules[FSDP1].FullyShardedDataParallel
        self._patch_constructor(wrapper)
        Probes(self._say, self._steps, wrapper, self._made_by.get).install()
        attributes = api.STATICS | api.METHODS | api.FIELDS | api.STATE_METHODS
        for name in sorted(attributes):
            found = inspect.getattr_static(wrapper, name, None)
            if found is None or isinstance(found, property):
                setattr(wrapper, name, self._attribute(name, found))
            else:
                setattr(wrapper, name, _Method(self, name, found))
        # Policies that are functions are named where they are handed over, and called elsewhere.
        wrapping = {"CustomPolicy", "ModuleWrapPolicy", "enable_wrap", "wrap"}
        for module, names in (("api", api.SETTINGS), ("wrap", wrapping)):
            for name in sorted(names):
                self._patch_name(sys.modules[f"{api.PACKAGE}.{module}"], name)

    # --- what is patched ------------------------------------------------------------------------

    def _patch_constructor(self, wrapper: Any) -> None:
        original = wrapper.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> None:
            # Units that a policy picks are made within the call of the outermost constructor.
            place = self.note(api.FSDP, outer(1), within=True)
            outermost = not getattr(self._local, "inside", False)
            self._local.inside = True
            try:
                original(*args, **kwargs)
            finally:
                self._local.inside = not outermost
            if outermost and place is not None:
                given = dict(signature.bind(*args, **kwargs).arguments)
                self._attempt(self._note_constructor, place, given)

        wrapper.__init__ = init

    def _note_constructor(self, place: Place, given: dict[str, Any]) -> None:
        model, module = given.pop("self"), given.pop("module")
        arguments = {name: described(value) for name, value in given.items()}
        buffers = sorted({str(b.dtype) for b in module.buffers() if b.is_floating_point()})
        kind = type(module).__name__
        key = json.dumps([_of_place(place), kind, arguments, buffers], default=str)
        number = self._constructors.setdefault(key, len(self._constructors))
        units = [(name, m) for name, m in model.named_modules() if isinstance(m, self._wrapper)]
        new = all(known != number for known in self._made_by.values())
        for _, unit in units:
            self._made_by.setdefault(unit, number)
        if new:
            self._say(
                "constructor",
                number=number,
                **_of_place(place),
                module=kind,
                arguments=arguments,
                units=[[_plain(name), _class_within(unit)] for name, unit in units[:_MOST_UNITS]],
                count=len(units),
                buffers=buffers,
            )

    def _noting(self, original: Any, name: str) -> Any:
        """``original``, which says where it is called from."""

        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.note(name, outer(1), _model_among(args, kwargs))
            return original(*args, **kwargs)

        return noting

    def _attribute(self, name: str, found: property | None) -> property:
        """An attribute that says where it is read. What FSDP1 itself reads costs one look-up."""

        def get(model: nn.Module) -> Any:
            if found is not None:
                # Not found.__get__(model): the compiler of torch 2.11 looks that up here again.
                value = found.fget(model)  # type: ignore[misc]
            elif name in model.__dict__:
                value = model.__dict__[name]
            elif name in model._modules:
                value = model._modules[name]
            else:
                raise AttributeError(name)
            self.note(name, sys._getframe(1), model)
            return value

        def put(model: nn.Module, value: Any) -> None:
            if found is not None:
                found.__set__(model, value)
            else:
                model.__dict__[name] = value

        def delete(model: nn.Module) -> None:
            if found is not None:
                found.__delete__(model)
            else:
                del model.__dict__[name]

        return property(get, put, delete)

    def _patch_name(self, module: Any, name: str) -> None:
        """A function, class or enumeration of one of FSDP1's modules."""
        found = getattr(module, name, None)
        if found is None:
            return
        if name in api.ENUMS:
            found.__class__ = self._members(found)
        elif isinstance(found, type):
            if "__init__" in vars(found):
                made: Any = found
                made.__init__ = self._noting(made.__init__, name)
        elif inspect.isfunction(found):
            for key, other in list(sys.modules.items()):
                if key.startswith("torch.") and vars(other).get(name) is found:
                    setattr(other, name, self._noting(found, name))

    def _members(self, enumeration: Any) -> Any:
        """The class of an enumeration, which says where its members are read."""
        kind: Any = type(enumeration)
        names = frozenset(enumeration.__members__)
        note = self.note

        class Members(kind):  # type: ignore[misc]
            def __getattribute__(cls, name: str) -> Any:
                value = super().__getattribute__(name)
                if name in names:
                    note(f"{enumeration.__name__}.{name}", outer(1))
                return value

            def __getitem__(cls, name: str) -> Any:
                note(f"{enumeration.__name__}.{name}", outer(1))
                return super().__getitem__(name)

        Members.__name__ = Members.__qualname__ = kind.__name__
        return Members

    # --- what is noted --------------------------------------------------------------------------

    def note(self, what: str, frame: FrameType, model: Any = None, **how: bool) -> Place | None:
        """Where the project uses ``what``, which is said once for each place and model."""
        if not how and self._places.is_torch(frame.f_code):
            return None
        place: Place | None = self._attempt(self._look, what, frame, model, **how)
        return place

    def note_model(self, what: str, place: Place, model: Any) -> None:
        """What was read at a place is called with a model."""
        self._attempt(self._say_once, what, place, model)

    def _look(
        self,
        what: str,
        frame: FrameType,
        model: Any = None,
        *,
        within: bool = False,
    ) -> Place | None:
        caller = self._places.calling(frame, within=within)
        if caller is None:
            return None
        if caller is not frame and what.partition(".")[0] in api.SETTINGS:
            return None  # which settings a library reads on the project's behalf is its business
        at = (caller.f_code.co_filename, caller.f_code, caller.f_lasti)
        place = self._known.get(at)
        if place is None:
            place = self._known[at] = self._places.place(caller, frame)
        self._say_once(what, place, model)
        return place

    def _say_once(self, what: str, place: Place, model: Any) -> None:
        number = self._made_by.get(model) if isinstance(model, nn.Module) else None
        key = (what, place, number)
        if key not in self._said:
            self._said.add(key)
            self._say("use", what=what, **_of_place(place), model=number, step=self._steps())

    def _attempt(self, work: Callable[..., Any], *args: Any, **how: Any) -> Any:
        """Do ``work``; the program goes on if it fails, and what is known is incomplete."""
        try:
            return work(*args, **how)
        except Exception as error:
            self._say("unobserved", what=f"{type(error).__name__}: {error}")
            return None


class _Method:
    """A method of FSDP1's that says where it is read: ``net.no_sync`` may be called elsewhere.

    A static method is told its model only when it is called.
    """

    def __init__(self, uses: Uses, name: str, found: Any) -> None:
        self.uses, self.name, self.found = uses, name, found

    def __get__(self, model: Any, owner: Any = None) -> Any:
        bound = self.found.__get__(model, owner)
        place = self.uses.note(self.name, outer(1), model)
        if place is None or model is not None:
            return bound

        @functools.wraps(bound)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.uses.note_model(self.name, place, _model_among(args, kwargs))
            return bound(*args, **kwargs)

        return noting


def _model_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The model that a function of FSDP1's is given."""
    return next((v for v in (*args, *kwargs.values()) if isinstance(v, nn.Module)), None)


def _of_place(place: Place) -> dict[str, Any]:
    return {"file": place.file, "span": list(place.span), "through": place.through}


def _plain(name: str) -> str:
    """The name of a unit as if nothing were wrapped."""
    return ".".join(part for part in name.split(".") if part != "_fsdp_wrapped_module")


def _class_within(unit: nn.Module) -> str:
    return type(unit._modules.get("_fsdp_wrapped_module")).__name__
