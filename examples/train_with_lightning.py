"""How the effective receptive field grows while a small net is trained with Lightning: python
examples/train_with_lightning.py"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from erfscope.apps.monitor.lightning import ErfCallback


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 16, 3, padding=1), *(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4))]
        self.backbone = nn.Sequential(
            *(part for layer in layers for part in (layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()))
        )
        self.head = nn.Linear(16, 2)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.head(self.backbone(x).mean(dim=(2, 3))), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 3, 32, 32)
    y = (x[:, 0, 0, 0] > 0).long()
    erf = ErfCallback(part="backbone", every=1, samples=4, input_size=32)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[erf],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), DataLoader(TensorDataset(x, y), batch_size=16))
    assert erf.monitor is not None
    print(erf.monitor.report().table(["r50", "r90"]))


if __name__ == "__main__":
    main()
