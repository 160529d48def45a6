"""What a model's failure means, in plain words, and what to do about it; imports the core's errors and the adapters' protocol only."""

from erfscope.failures.exits import ModelExitError, contained
from erfscope.failures.plain import Failure, is_short, plain_line, raised_at, telling, understand
from erfscope.failures.remedy import remedy
from erfscope.failures.trial import failure_at, order_that_runs, size_that_runs

__all__ = [
    "Failure",
    "ModelExitError",
    "contained",
    "failure_at",
    "is_short",
    "order_that_runs",
    "plain_line",
    "raised_at",
    "remedy",
    "size_that_runs",
    "telling",
    "understand",
]
