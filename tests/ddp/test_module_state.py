"""What a module of ddp remembers: state belongs to a process group, but for what is listed here, with the reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

DDP = Path(__file__).parents[2] / "ddp"

ALLOWED = {
    "collectives/attendance.py _on_their_way": "messages outlive their group: MPI reads them",
    "execution/leaving.py _left": "communicators of groups that are no more",
    "gradients/listening.py reducers": "one backward may lead through models of several groups",
    "gradients/listening.py _numbers": "the order of Reducers in such a backward",
    "gradients/listening.py _running": "the same; autograd's graph knows no groups",
    "gradients/listening.py _owners": "a parameter may be wrapped again, in another group",
    "groups/group.py _default": "the default group itself",
    "losses/calls.py _own": "the pipe by which this process is called",
    "losses/deadlock.py _over": "a process is looked at by one thread",
    "losses/ending.py _step": "of the one job of a process whose ranks may be lost",
    "losses/ending.py _agreed": "the same",
    "losses/nursery.py _child": "a process brings one at a time",
    "losses/reserve.py _seat": "a process in reserve replaces one rank",
    "losses/transactions.py _attempt": "of the one job of a process whose ranks may be lost",
    "losses/transactions.py _come": "the same",
    "losses/world.py _watch": "a process is in one world",
    "losses/world.py _happened": "MPI is ended once a process",
    "losses/world.py _number": "of the process, when it was started",
    "losses/world.py _ranks": "the same",
    "losses/world.py _met": "what MPI keeps of others, the process keeps",
    "transport/under_way.py under_way": "who waits moves the works of all groups on, else groups wait for each other",
    "watching/progress.py channels": "the watchdog looks at all groups",
    "watching/progress.py _waiting": "a thread waits for one thing, whichever group it is in",
    "watching/standstill.py _stopped": "processes of this host, which the watchdog and the recovery look at in turn",
    "watching/watchdog.py _limits": "of the default group, for the watchdog of those that go on when ranks are lost",
    "watching/watchdog.py _watchdog": "one a process",
    "watching/watchdog.py _retired": "requests outlive the watchdog: MPI reads them",
    "world/bootstrap.py _world": "MPI is started once a process",
    "world/bootstrap.py _other_excepthook": "Python has one",
}

CONTAINERS = ("List", "Dict", "Set", "ListComp", "DictComp", "SetComp")
MAKERS = ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "count", "WeakValueDictionary", "WeakSet")


def remembered(path: Path) -> Iterator[str]:
    """Names of a module that functions assign, or containers that begin empty."""
    tree = ast.parse(path.read_text())
    assigned = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    own = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith(("list", "dict")) for base in node.bases)
    }
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = node.value
            empty = type(value).__name__ in CONTAINERS and not any(ast.iter_child_nodes(value))
            empty = empty or (isinstance(value, ast.List) and not value.elts)
            made = isinstance(value, ast.Call) and ast.unparse(value.func) in (*MAKERS, *own)
            for target in targets:
                if isinstance(target, ast.Name) and (empty or made or target.id in assigned):
                    yield target.id


def test_state_of_modules_is_listed() -> None:
    found = {f"{path.relative_to(DDP)} {name}" for path in DDP.rglob("*.py") for name in remembered(path)}
    assert found == ALLOWED.keys()
