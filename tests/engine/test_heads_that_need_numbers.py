"""A head that looks at numbers, as detectors have it: layers before it keep the graph."""

import pytest
import torch
from nets import Does
from torch import Tensor, nn

import erfscope


def detector(*, centred: bool = False) -> nn.Module:
    """A backbone, and a head that takes another way for bright images and keeps the best cells; which may add the mean
    of the batch."""

    def forward(m: Does, x: Tensor) -> Tensor:
        y = m.head(m.body(x))
        y = m.refine(y.relu() if y.max() > 0 else y)
        return y + y.mean(0, keepdim=True) if centred else y

    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, 2, 1))
    return Does(forward, body=body, head=nn.Conv2d(6, 5, 1), refine=nn.Conv2d(5, 5, 3, padding=1)).eval()


ASKED = {"input_size": 32, "samples": 5, "measures": "r50", "batch_size": 4, "dtype": "float64"}


@pytest.mark.parametrize("layer", ["body", "head"])
def test_layers_before_the_first_number_are_measured_by_their_graph_in_batches(layer: str) -> None:
    net = detector()
    found = erfscope.analyze(net, layer=layer, unit="3,4", verify=True, **ASKED)  # type: ignore[arg-type]
    assert (found.status, found.computed.path) == ("ok", "graph")
    assert found.trf is not None
    assert (found.trf.center_px, found.trf.center_exact) == ((12.0, 16.0), True)
    assert not {"needed_numbers", "one_by_one", "centre_not_exact"} & {each.code for each in found.findings}
    assert found.verification is not None
    assert found.verification.map < 1e-12
    plain = erfscope.analyze(net, layer=layer, unit="3,4", plain=True, **ASKED)  # type: ignore[arg-type]
    assert found["r50"].value == pytest.approx(plain["r50"].value, rel=1e-12)


def test_what_comes_behind_takes_the_model_itself_one_image_at_a_time() -> None:
    found = erfscope.analyze(detector(), layer="refine", unit="3,4", **ASKED)  # type: ignore[arg-type]
    assert (found.status, found.computed.path) == ("ok", "plain")
    assert {"needed_numbers", "one_by_one", "centre_not_exact"} <= {each.code for each in found.findings}


def test_tiles_of_a_layer_before_it_are_planned() -> None:
    net = detector()
    assert erfscope.tile(net, 16, layer="body", input_size=32, image_size=64).possible
    blockers = erfscope.tile(net, 16, input_size=32, image_size=64).blockers
    assert any("depends on the numbers of the image" in each for each in blockers)


def test_why_images_are_measured_one_by_one_is_said_once() -> None:
    found = erfscope.analyze(detector(centred=True), layer="output", unit="3,4", **ASKED)  # type: ignore[arg-type]
    assert [each.text for each in found.findings if each.code == "one_by_one"] == [
        "measured one image at a time: the images of a batch may see each other through global average pooling"
    ]
