"""Theorems, figures and tables of the literature, reproduced.

May import: what ``apps`` may, ``theory`` and ``influence_matrix``.

To add one, write a module with ``study(asked: StudyOptions) -> StudyFindings`` and a row in :data:`STUDIES`.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from erfscope.apps.lab.studies.study import (
    Claim,
    Effort,
    Progress,
    Study,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyResult,
    StudyRow,
    kept_study,
)
from erfscope.core import ErfscopeError, Request, unknown
from erfscope.show import Chart, ChartMap, Curve, Picture

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            name="theorems",
            source=(
                "Nicolicioiu & Duta; Luo et al. 2016; Knyazev et al. 2019; Neumeier et al.; Brody et al. 2022; and"
                " others"
            ),
            shows="closed forms of ERFs, against the engine and the blocks",
            seconds=20,
            quick_seconds=12,
            home="theorems",
        ),
        Study(
            name="luo-gaussian",
            source="Luo et al. 2016",
            shows="ERFs of deep stacks are Gaussian, for uniform and random weights",
            seconds=30,
            quick_seconds=12,
            home="luo.gaussian",
        ),
        Study(
            name="luo-growth",
            source="Luo et al. 2016",
            shows="the ERF grows like the root of the depth, its fraction of the TRF shrinks as 1/sqrt(depth)",
            seconds=35,
            quick_seconds=10,
            home="luo.growth",
        ),
        Study(
            name="luo-subsample-dilation",
            source="Luo et al. 2016",
            shows="strides and dilations widen the ERF",
            seconds=12,
            quick_seconds=6,
            home="luo.subsample",
        ),
        Study(
            name="luo-skip",
            source="Luo et al. 2016",
            shows="skip connections make the ERF smaller",
            seconds=40,
            quick_seconds=10,
            home="luo.skip",
        ),
        Study(
            name="luo-dropout",
            source="Luo et al. 2016",
            shows="dropout does not change the shape of the ERF",
            seconds=35,
            quick_seconds=7,
            home="luo.dropout",
        ),
        Study(
            name="luo-nonlinearity",
            source="Luo et al. 2016",
            shows="random ReLU, tanh and sigmoid nets, dead ones among them",
            seconds=13,
            quick_seconds=13,
            home="luo.nonlinearity",
        ),
        Study(
            name="luo-init",
            source="Luo et al. 2016",
            shows="a less Gaussian initialisation gains little",
            seconds=6,
            quick_seconds=5,
            home="luo.init",
        ),
        Study(
            name="luo-training",
            source="Luo et al. 2016",
            shows="the ERF of a classifier and a segmentation net, before and after training",
            seconds=255,
            quick_seconds=36,
            home="luo.training",
            reason=(
                "nets and trainings are smaller than the paper's, and how large a trained ERF becomes depends on how"
                " large the shapes are that it has to recognise; without --data they are drawn here"
            ),
            data="CIFAR-10, CamVid",
        ),
        Study(
            name="correlations",
            source="Nicolicioiu & Duta, Fig. 1",
            shows=(
                "dot-product attention follows its input's covariance where keys are queries, a GCN its links, a"
                " convolution neither"
            ),
            seconds=150,
            quick_seconds=20,
            home="scenes.correlations",
            reason=(
                "the theorem is of one layer of dot-product attention, and none is of softmax or of a second layer;"
                " where keys are not queries, its effect is smaller than the noise of these samples"
            ),
        ),
        Study(
            name="syncmnist",
            source="Nicolicioiu & Duta, section 4.2",
            shows="how far video nets look with graph and attention layers, and which moving digits they find in step",
            seconds=315,
            quick_seconds=20,
            home="syncmnist",
            reason=(
                "the nets are trained on smaller frames with fewer classes than the paper's, where they see both digits"
                " without the added layers, and the nets of different seeds differ by more than the layers gain"
            ),
        ),
        Study(
            name="sort-of-clevr",
            source="Nicolicioiu & Duta, Table 1; Santoro et al. 2017",
            shows="ERF sizes rank as accuracy on relational questions does",
            seconds=250,
            quick_seconds=27,
            home="scenes.sort_of_clevr",
            reason="but for --effort long, the nets are trained on fewer images than the paper's",
        ),
        Study(
            name="padding",
            source="course report, Table 1; Kayhan & van Gemert 2020",
            shows="six ways of padding: influence at the border, ERFs there, and whether a net reads where things are",
            seconds=125,
            quick_seconds=17,
            home="padding",
            reason=(
                "replicate padding hides positions from symmetric kernels alone, so that a trained net can read them;"
                " with circular padding at most 67 % of the answers can be right on these images, fewer than the report"
                " has"
            ),
        ),
        Study(
            name="gatv2-gradients",
            source="Neumeier et al.; Brody et al. 2022",
            shows="gradients of graph attention in closed form, and which nodes send the target weights none",
            seconds=75,
            quick_seconds=14,
            home="graph_attention.gatv2_gradients",
            reason="the paper's formula for Theta_R has a misprint (erratum E4-02); the corrected one is exact",
        ),
        Study(
            name="attention-pooling",
            source="Knyazev et al. 2019",
            shows=(
                "counting green nodes, in unseen colours too, through attention that is unsupervised, supervised, or"
                " supervised by removing nodes"
            ),
            seconds=230,
            quick_seconds=30,
            home="graph_attention.attention_pooling",
            reason=(
                "accuracies of nets of different seeds are far apart, and there are few nets of each kind: a difference"
                " counts where it is two standard errors"
            ),
        ),
        Study(
            name="trust",
            source="Yeh et al. 2019",
            shows="gradients that lose a share, and the share of weights in a map",
            seconds=155,
            quick_seconds=50,
            home="trust",
            reason=(
                "the map of a random convolutional net depends on its architecture and hardly on its weights, so that"
                " new weights leave it as it is"
            ),
            data="weights",
        ),
        Study(
            name="trained",
            source="Luo et al. 2016",
            shows="ERFs of ImageNet classifiers, and of random ones, on photographs",
            seconds=400,
            quick_seconds=30,
            home="trained",
            reason=(
                "training widens nets as PyTorch's layers draw them, and narrows those that timm draws or whose"
                " normalisations have the statistics of images, more so at twice the side, where the border cuts less"
            ),
            data="photographs",
        ),
    )
}

__all__ = [
    "STUDIES",
    "Chart",
    "ChartMap",
    "Claim",
    "Curve",
    "Effort",
    "Picture",
    "Study",
    "StudyColumn",
    "StudyFindings",
    "StudyOptions",
    "StudyResult",
    "StudyRow",
    "kept_study",
    "run",
]


def run(
    name: str,
    *,
    seed: int = 0,
    effort: Effort = "full",
    data: str | Path | None = None,
    cache: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> StudyResult:
    """Run one study.

    Args:
        name: One of :data:`STUDIES`.
        seed: Seed of all its random numbers.
        effort: ``"long"``, hours; ``"full"``, at most ten minutes on two cores; ``"quick"``, less than one;
            ``"smoke"``, a few seconds.
        data: A folder with the papers' own data set, for the studies that can take one (:attr:`Study.data`).
        cache: A folder where trained nets are kept after every epoch, in a folder of each run, so that an interrupted
            run goes on where it was; None to keep none.
        progress: Called with (text, number of cases done, number of cases); True prints lines on stderr.

    Returns:
        Its rows, claims and figure; ``passed`` says whether every check held, as closed forms do. A claim that a
        smaller training does not reproduce has its verdict, and is no failure.

    Raises:
        ErfscopeError: no study or effort of that name, no such folder of data, data for a study that takes none, or
            a seed below 0.
    """
    check(name, seed=seed, data=data)
    if effort not in get_args(Effort):
        raise unknown("effort", effort, get_args(Effort))
    nets = None if cache is None else Path(cache) / f"{name}-{effort}-seed-{seed}"
    start = time.perf_counter()
    with _one_thread():
        module = importlib.import_module(f"{__name__}.{STUDIES[name].home}")
        options = StudyOptions(
            seed=seed,
            effort=effort,
            progress=Request.parse({"progress": progress}).progress,
            data=None if data is None else Path(data),
            cache=nets,
        )
        findings = module.study(options)
    seconds = time.perf_counter() - start + sum(options.spent)
    used = None if data is None else str(data)
    return StudyResult(**vars(findings), study=name, seed=seed, effort=effort, seconds=seconds, data=used)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: nets are small, and several threads would wait for each other on a busy machine and add in
    another order."""
    import torch

    threads = torch.get_num_threads()
    # Not where it changes nothing, such as in a forked child.
    set_threads = torch.set_num_threads if threads > 1 else lambda _: None
    set_threads(1)
    try:
        yield
    finally:
        set_threads(threads)


def check(name: str, *, seed: int = 0, data: str | Path | None = None) -> None:
    """Refuse a study that cannot be run, before anything is computed.

    Args:
        name: Name of a study.
        seed: Seed of its random numbers.
        data: A folder with the papers' own data set, or None.

    Raises:
        ErfscopeError: no study of that name, a seed below 0, a study that takes no data, or no such folder.
    """
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    if seed < 0:
        raise ErfscopeError(f"the seed is {seed}; it must be 0 or larger")
    if data is not None and not STUDIES[name].data:
        takes = ", ".join(f"{study.name} ({study.data})" for study in STUDIES.values() if study.data)
        raise ErfscopeError(
            f"the study {name} makes its own data and takes none; leave out --data {str(data)!r}, which is for {takes}"
        )
    if data is not None and not Path(data).is_dir():
        raise ErfscopeError(f"there is no folder {str(data)!r} with data; leave it out to use data that is made here")
