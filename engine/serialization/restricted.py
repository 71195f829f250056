"""An unpickler that builds data, and instances of what was allowed by name; nothing in a pickle makes it do more.

Only the opcodes that `objects.py` writes are known, and in `torch_files.py` those of torch.save. A pickle can call what
was allowed, nothing it finds otherwise; it sets attributes on instances of allowed classes, never on a class or a
function; and it fills lists, dicts and sets by their own methods. Keys are no nested tuples: hashing one that refers to
itself many times over takes for ever, as does showing one. (torch/_weights_only_unpickler.py draws the same lines.)
"""

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from engine.nn.parameter import Parameter
from engine.rules.device import device
from engine.rules.dtypes import named
from engine.rules.spec import Size
from engine.serialization.container import damaged
from engine.tensor import Tensor

_DATA = (OrderedDict, device, named, Parameter, Size, Tensor)  # what data refers to by name
_CALLABLE = (OrderedDict, device, named, Size)  # of these, what is called: each gives data and nothing else

_MALFORMED = (
    *(pickle.UnpicklingError, struct.error, ArithmeticError, AssertionError, AttributeError, EOFError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)

_OPCODES = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPERSID"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT"),
    *("SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET", "STACK_GLOBAL"),
    *("REDUCE", "NEWOBJ", "NEWOBJ_EX", "BUILD"),
)


class NotAllowedError(pickle.UnpicklingError):
    """A pickle wants what it may not have."""


_PythonUnpickler: Any = pickle._Unpickler  # the one written in Python, whose opcodes can be replaced


def _shown(value: Any) -> str:
    """A class or function by its name, anything else by its type."""
    return getattr(value, "__qualname__", None) or f"a {type(value).__name__}"


def check_hash(key: Any) -> None:
    """Raises ValueError for nested tuples: hashing one that refers to itself many times over takes for ever."""
    if isinstance(key, tuple | frozenset) and any(isinstance(part, tuple | frozenset) for part in key):
        raise ValueError("a key, or what is looked up, is made of nested tuples or sets")


class RestrictedUnpickler(_PythonUnpickler):
    """Reads one pickle.

    allowed: classes and functions of the user. persistent: what stands for a reference out of the pickle.
    Raises: pickle.UnpicklingError for a name that was not allowed, saying which and how to allow it; RuntimeError for a
    pickle that is malformed.
    """

    def __init__(self, text: bytes, where: str, allowed: Iterable[Any], persistent: Callable[[Any], Any]) -> None:
        super().__init__(io.BytesIO(text))
        self._where = where
        self._added = tuple(allowed)
        self._persistent = persistent

    def load(self) -> Any:
        try:
            return super().load()
        except NotAllowedError:
            raise
        except _MALFORMED as cause:
            raise damaged(self._where, cause) from cause

    def persistent_load(self, pid: Any) -> Any:
        return self._persistent(pid)

    names: ClassVar[dict[tuple[str, str], Any]] = {(each.__module__, each.__qualname__): each for each in _DATA}
    called: ClassVar[tuple[Any, ...]] = _CALLABLE

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.names:
            return self.names[module, name]
        for each in self._added:
            if (each.__module__, each.__qualname__) == (module, name):
                return each
        raise NotAllowedError(
            f"load: {self._where} holds {module}.{name}, and building it can run any code. If you trust the file, "
            f"pass weights_only=False, or allow it: engine.serialization.add_safe_globals([{name}])"
        )

    def _check_call(self, function: Any, arguments: Any) -> None:
        if any(function is each for each in self._added):
            return
        if not any(function is each for each in self.called):
            raise NotAllowedError(f"load: {self._where} calls {_shown(function)}, which is not allowed")
        if type(arguments) is not tuple or (function is OrderedDict and arguments):
            raise NotAllowedError(f"load: {self._where} calls {_shown(function)} with {_shown(arguments)}")
        for each in arguments if function in _CALLABLE else ():
            check_hash(each)

    def _load_reduce(self) -> None:
        self._check_call(*self.stack[-2:])
        super().load_reduce()

    def _load_newobj(self) -> None:
        self._check_call(*self.stack[-2:])
        super().load_newobj()

    def _load_newobj_ex(self) -> None:
        self._check_call(*self.stack[-3:-1])
        if self.stack[-1] and not any(self.stack[-3] is each for each in self._added):
            raise NotAllowedError(f"load: {self._where} calls {_shown(self.stack[-3])} with keywords")
        super().load_newobj_ex()

    def _load_build(self) -> None:
        instance = self.stack[-2]
        if type(instance) not in (OrderedDict, *self._added):
            raise NotAllowedError(
                f"load: {self._where} sets attributes on {_shown(instance)}, which is no instance of an allowed class"
            )
        super().load_build()

    def _load_append(self) -> None:
        self._must_be(self.stack[-2], list)
        super().load_append()

    def _load_appends(self) -> None:
        self._must_be(self.metastack[-1][-1], list)
        super().load_appends()

    def _load_setitem(self) -> None:
        self._must_be(self.stack[-3], dict)
        check_hash(self.stack[-2])
        super().load_setitem()

    def _load_setitems(self) -> None:
        self._must_be(self.metastack[-1][-1], dict)
        for key in self.stack[::2]:
            check_hash(key)
        super().load_setitems()

    def _load_additems(self) -> None:
        self._must_be(self.metastack[-1][-1], set)
        for key in self.stack:
            check_hash(key)
        super().load_additems()

    def _load_frozenset(self) -> None:
        for key in self.stack:
            check_hash(key)
        super().load_frozenset()

    def _must_be(self, container: Any, kind: type) -> None:
        if not (isinstance(container, kind) and type(container) in (kind, OrderedDict, *self._added)):
            raise NotAllowedError(f"load: {self._where} fills {_shown(container)} as if it were a {kind.__name__}")

    dispatch = {getattr(pickle, name)[0]: _PythonUnpickler.dispatch[getattr(pickle, name)[0]] for name in _OPCODES} | {
        pickle.REDUCE[0]: _load_reduce,
        pickle.NEWOBJ[0]: _load_newobj,
        pickle.NEWOBJ_EX[0]: _load_newobj_ex,
        pickle.BUILD[0]: _load_build,
        pickle.APPEND[0]: _load_append,
        pickle.APPENDS[0]: _load_appends,
        pickle.SETITEM[0]: _load_setitem,
        pickle.SETITEMS[0]: _load_setitems,
        pickle.ADDITEMS[0]: _load_additems,
        pickle.FROZENSET[0]: _load_frozenset,
    }
