"""A Lightning callback: ``Trainer(callbacks=[ErfCallback("val/", every=5)])``. Needs the extra ``lightning``."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from erfscope.apps.monitor.monitor import ErfMonitor, part_of


class ErfCallback(Callback):
    """Measures after every ``every``-th training epoch, and logs ``erf/r50`` and the like to the trainer's loggers."""

    def __init__(self, images: Any = None, *, part: str | None = None, **options: Any) -> None:
        """Make a monitor when the training starts.

        Args:
            images: As for :class:`erfscope.ErfMonitor`.
            part: Name of the network inside the LightningModule, such as ``"backbone"``; the module itself if left out.
            **options: As for :class:`erfscope.ErfMonitor`.
        """
        self.images, self.part, self.options = images, part, options
        self.monitor: ErfMonitor | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the network."""
        model, options = part_of(pl_module, self.part), {"log": self._log_with(trainer), **self.options}
        self.monitor = self.monitor or ErfMonitor(model, self.images, **options)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure."""
        assert self.monitor is not None
        self.monitor.step(trainer.current_epoch)

    @staticmethod
    def _log_with(trainer: Trainer) -> Any:
        def log(scalars: dict[str, float], step: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics({**scalars, "epoch": step}, step=trainer.global_step)

        return log
