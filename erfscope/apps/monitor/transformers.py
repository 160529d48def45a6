"""A callback for the Hugging Face Trainer: ``Trainer(..., callbacks=[ErfCallback("val/", every=500)])``. Needs the
extra ``hf``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from erfscope.apps.monitor.monitor import ErfMonitor, part_of


class ErfCallback(TrainerCallback):
    """Measures after every ``every``-th optimisation step; the scalars are in ``monitor.moments``, and go to ``log``
    where one is given."""

    def __init__(self, images: Any = None, *, part: str | None = None, **options: Any) -> None:
        """Make a monitor when the training starts.

        Args:
            images: As for :class:`erfscope.ErfMonitor`.
            part: Name of the network inside the model, such as ``"backbone"``; the model itself if left out.
            **options: As for :class:`erfscope.ErfMonitor`.
        """
        self.images, self.part, self.options = images, part, options
        self.monitor: ErfMonitor | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Find the network."""
        self.monitor = self.monitor or ErfMonitor(part_of(given["model"], self.part), self.images, **self.options)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Measure."""
        assert self.monitor is not None
        self.monitor.step(state.global_step)
