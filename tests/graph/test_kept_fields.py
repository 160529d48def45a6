"""What the graph says of public models, beside the table of ``benchmarks/fields.json``, which holds 119 of them."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fields

pytestmark = pytest.mark.slow

#: Of the small families, one of each kind: convolutions, windows, tokens, pooling, branches.
MODELS = (
    *("test_byobnet", "test_convnext", "levit_128s", "mobilenetv3_small_050", "xcit_nano_12_p16_224", "nest_tiny"),
    *(
        "torchvision:squeezenet1_0",
        "torchvision:googlenet",
        "torchvision:swin_v2_t",
        "torchvision:lraspp_mobilenet_v3_large",
    ),
)


@pytest.mark.parametrize("chosen", [MODELS, pytest.param((), marks=pytest.mark.more)], ids=["some", "all"])
def test_public_models_are_read_as_the_kept_table_says(chosen):
    kept = json.loads(fields.KEPT.read_text(encoding="utf-8"))
    assert len(kept) == 119
    models = [model for model in chosen or kept if model in kept]
    assert len(models) >= 7
    assert list(fields.differences(models, kept)) == []
