"""Plans of a machine with 8 cores."""

from typing import Any

from launch.cluster import Machine
from launch.plan import Plan, make_plan


def plan_of(**changed: Any) -> Plan:
    """The plan for these settings, others left out."""
    settings: dict[str, Any] = {
        "nproc": None,
        "hosts": (),
        "machine": Machine(cores=8, whole=True),
        "environ": {},
        "as_root": False,
        "live": False,
    }
    return make_plan(**(settings | changed))
