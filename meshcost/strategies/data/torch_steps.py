"""The program of a step under PyTorch: the groups of fully_shard, or the buckets of DistributedDataParallel."""

from meshcost.program import Program
from meshcost.schedule import Schedule
from meshcost.strategies.data.fully_shard import sharding_of
from meshcost.strategies.setting import Setting
from meshcost.torch_program import TorchProgram


def torch_program(
    setting: Setting, schedule: Schedule, units: tuple[tuple[tuple[str, int], ...], ...]
) -> Program:
    """Put around the units of a schedule what the data strategy calls there."""
    return TorchProgram(schedule, units, sharding=sharding_of(setting, units))
