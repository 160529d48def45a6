"""What ``luo-training`` trains: the paper's two nets, and the segmentation net with one thing changed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope.apps.lab.studies.luo.images import VOID, Task, classification, segmentation
from erfscope.apps.lab.studies.luo.residual import Classifier, Segmenter
from erfscope.apps.lab.studies.study import StudyOptions
from erfscope.apps.lab.studies.training import seeded

#: Headings of the table.
PAPER, CHANGES = "the paper's nets", "segmentation with one change"
#: Images of the training that sees no others, and the stream of random numbers that they are drawn from.
FEW, IMAGES = 64, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One net, the images that it is trained on, and the paper's result."""

    name: str
    net: nn.Module
    task: Task
    batch: int
    #: Whether rare classes count as much as frequent ones.
    is_balanced: bool = True
    section: str = PAPER
    #: The paper's result, and the theoretical receptive field of its net.
    published: str | None
    published_trf_px: int | None

    def stream(self, asked: StudyOptions, number: int) -> np.random.Generator:
        """Return random numbers of one kind; nets with batches of one size get the same."""
        return np.random.default_rng([asked.seed, self.batch, number])

    def loss(self, pictures: Tensor, classes_of: Tensor) -> Tensor:
        """Mean cross entropy of images (B, 3, H, W) and their classes, (B,) or (B, H, W)."""
        scores = self.net(pictures)
        targets = targets_of(scores, classes_of)
        weight = balance(targets, self.task.classes) if self.is_balanced else None
        return F.cross_entropy(scores, targets, weight=weight, ignore_index=VOID)


def targets_of(scores: Tensor, classes: Tensor) -> Tensor:
    """The classes that the scores are about: of the images, or of the pixels that the units have their centres at."""
    if scores.dim() == 2:
        return classes
    return classes[:, :: classes.shape[1] // scores.shape[2], :: classes.shape[2] // scores.shape[3]]


def balance(targets: Tensor, classes: int) -> Tensor:
    """Weights that make the classes of a batch count alike: a background would outweigh all shapes."""
    return 1 / torch.bincount(targets[targets != VOID].flatten(), minlength=classes).clamp(min=1)


def lessons(asked: StudyOptions) -> list[Lesson]:
    """What is trained: the two nets, and in long also the segmentation net with another loss, depth, data or shapes."""
    is_small = asked.effort == "smoke"
    side = 64 if is_small else 128
    shapes, task = classification(asked, asked.pick(full=32, quick=24, smoke=24)), segmentation(asked, side)
    with seeded(asked.seed):
        classifier = Classifier(8, shapes.classes, 3 if is_small else 17)
        net = Segmenter(8, task.classes, 1 if is_small else 4)
        shallow = Segmenter(8, task.classes, 2)
    found = [
        Lesson(name="classifier", net=classifier, task=shapes, batch=32, published="grows", published_trf_px=74),
        Lesson(name="segmentation", net=net, task=task, batch=16, published="100 to 150", published_trf_px=505),
    ]
    if asked.effort != "long":
        return found
    changed = replace(found[1], section=CHANGES, published=None, published_trf_px=None)
    few = task.train(FEW, changed.stream(asked, IMAGES))
    return [
        *found,
        replace(changed, name="classes weighted by their pixels", net=deepcopy(net), is_balanced=False),
        replace(changed, name="half as deep", net=shallow),
        replace(changed, name=f"{FEW} images", net=deepcopy(net), task=replace(task, train=partial(_some, few))),
        *(
            replace(
                changed,
                name=name,
                net=deepcopy(net),
                task=segmentation(asked, side, reach=2 * side),
                published="100 to 150",
            )
            for name in (["shapes twice as large"] if asked.data is None else [])
        ),
    ]


def _some(few: tuple[Tensor, Tensor], count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Some of a few images, with their classes."""
    which = torch.from_numpy(generator.integers(len(few[0]), size=count))
    return few[0][which], few[1][which]
