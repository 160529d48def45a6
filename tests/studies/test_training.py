"""Trainings that are killed go on where they were, and end as if they had run in one go."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from erfscope.apps.lab.studies.study import StudyOptions
from erfscope.apps.lab.studies.training import batches, one_cycle, train

EPOCHS, BATCHES = 5, 4


def trained(cache: Path | None, before_batch: Callable[[int], None] = lambda _: None) -> tuple[Tensor, list[object]]:
    """Weights and history of a tiny net; its optimiser has momentum and its rate falls, so that both must be kept."""
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 6, generator=draws), torch.randn(32, 1, generator=draws)
    net = torch.nn.Linear(6, 1)
    for values in net.parameters():
        torch.nn.init.constant_(values, 0.1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

    def losses(epoch: int) -> Iterator[Tensor]:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + epoch)
        for number, some in enumerate(batches(len(x), 32 // BATCHES, epoch)):
            before_batch(BATCHES * epoch + number)
            yield F.mse_loss(net(x[some]), y[some])

    history = train(StudyOptions(cache=cache), "tiny", net, optimizer, EPOCHS, losses)
    return net.weight.detach(), history


@pytest.mark.slow
def test_a_training_that_is_killed_at_random_ends_as_in_one_go(tmp_path):
    last = random.Random(0).randrange(BATCHES, EPOCHS * BATCHES)
    code = "import sys, pathlib; from test_training import trained, killer; "
    code += f"trained(pathlib.Path(sys.argv[1]), killer({last}))"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=Path(__file__).parent)
    assert done.returncode == -signal.SIGKILL
    seen: list[int] = []
    weights, history = trained(tmp_path, seen.append)
    # It goes on with the epoch in which it was killed.
    assert seen[0] == last - last % BATCHES > 0
    wanted, in_one_go = trained(None)
    assert torch.equal(weights, wanted)
    assert history == in_one_go


def killer(last: int) -> Callable[[int], None]:
    """Return a function that kills the process at a batch."""
    return lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == last else None


def test_sizes_and_rates_of_trainings_are_those_of_their_effort():
    sizes = {"full": 3, "quick": 2, "smoke": 1}
    assert [StudyOptions(effort=each).pick(**sizes) for each in ("long", "full", "quick")] == [3, 3, 2]
    assert StudyOptions(effort="long").pick(**sizes, long=9) == 9
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    rates = []
    for done in (0, 0.1, 0.2, 0.6, 1):
        one_cycle(optimizer, 4.0, done)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0, 2, 4, 2, 0])


def test_a_training_ends_where_its_validation_loss_is_flat_and_does_so_again_when_resumed(tmp_path):
    losses = [3.0, 2.0, 1.0, 1.5, 1.0, 2.0, 0.5]

    def history(cache: Path, most: int) -> list[float]:
        net, left = torch.nn.Linear(1, 1), iter(losses[len(seen) :])
        epochs = train(
            *(StudyOptions(cache=cache), "any", net, torch.optim.SGD(net.parameters()), most, lambda _: ()),
            measured=lambda: {"validation_loss": seen.append(next(left)) or seen[-1]},
            patience=3,
        )
        return [entry["validation_loss"] for entry in epochs]

    seen: list[float] = []
    # The least, 1.0, is three epochs old after six.
    assert history(tmp_path, 7) == losses[:6]
    assert history(tmp_path, 7) == seen == losses[:6]
