"""Plans of a machine with 8 cores."""

from typing import Any

from launch.hosts import Found
from launch.machine import Machine
from launch.plan import Plan, make_plan


def plan_of(**changed: Any) -> Plan:
    """The plan for these settings, others left out."""
    settings: dict[str, Any] = {
        "nproc": None,
        "found": Found(),
        "machine": Machine(cores=8, whole=True),
        "environ": {},
        "as_root": False,
        "live": False,
    }
    return make_plan(**(settings | changed))
