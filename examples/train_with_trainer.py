"""How the effective receptive field grows while a small net is trained with Hugging Face: python
examples/train_with_trainer.py"""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from erfscope.apps.monitor.transformers import ErfCallback


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 16, 3, padding=1), *(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4))]
        self.backbone = nn.Sequential(
            *(part for layer in layers for part in (layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()))
        )
        self.head = nn.Linear(16, 2)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.backbone(pixel_values).mean(dim=(2, 3)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 3, 32, 32)
    pictures = [{"pixel_values": picture, "labels": int(picture[0, 0, 0] > 0)} for picture in x]
    erf = ErfCallback(part="backbone", every=4, samples=4, input_size=32)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=3,
            per_device_train_batch_size=16,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
        )
        Trainer(model=Classifier(), args=arguments, train_dataset=pictures, callbacks=[erf]).train()
    assert erf.monitor is not None
    print(erf.monitor.report().table(["r50", "r90"]))


if __name__ == "__main__":
    main()
