"""Families of models whose windows, token lists and pooled keys took rules of their own."""

import pytest
from test_trf_models import of

pytestmark = pytest.mark.slow

FAMILIES = {
    "mobilevitv2_050": ((128, 128), "stages.4", "group norm (stages.2.1.transformer.0.norm1)"),
    "efficientformerv2_s0": ((224, 224), "stages.3", "softmax attention (stages.2.blocks.4.token_mixer)"),
    "nextvit_small": ((224, 224), "stages.3", "softmax attention (stages.1.blocks.3.e_mhsa)"),
    "gcvit_xxtiny": ((224, 224), "stages.3", "global average pooling (stem.down.conv_block.se)"),
    "halonet26t": ((256, 256), "final_conv", "softmax attention (stages.3.1.self_attn)"),
    "botnet26t_256": ((256, 256), "final_conv", "softmax attention (stages.2.1.self_attn)"),
    "efficientvit_m0": ((224, 224), "stages.2", "global average pooling (stages.1.downsample.patchmerge.se)"),
    "efficientvim_m1": ((224, 224), "stages.2.blocks.1.ffn", "softmax over positions (stages.0.blocks.0.mixer)"),
    "hieradet_small": ((256, 256), "blocks.15", "softmax attention (blocks.4.attn)"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_operation_of_a_family_is_understood(name):
    size, layer, global_by = FAMILIES[name]
    model = of(name, size)
    field = model.site(layer).trf(model.site(layer).nearest_unit())
    assert field.exact, field.inexact_by
    assert field.global_by == global_by
    assert field.clipped_box_px == tuple((0, side - 1) for side in size)


def test_halo_attention_sees_its_window_and_a_halo():
    """One block of 8 units of 16 pixels and two more on either side; a 3x3 convolution and the first layers around
    them."""
    model = of("halonet26t", (256, 256))
    inner = model.site("stages.2.1.self_attn", "stages.2.1.self_attn:in").trf((9, 9))
    assert inner.clipped_box_px == ((6, 15), (6, 15))
    assert inner.center_px == (9.0, 9.0)


def test_attention_in_windows_of_a_pooled_map_pools_inside_the_windows():
    """HieraDet halves the map inside windows of 8: a unit of the pooled map reads one window of the map before."""
    model = of("hieradet_small", (256, 256))
    assert model.site("blocks.1", "blocks.0").trf((9, 9)).box_px == ((16, 23), (16, 23))


@pytest.mark.parametrize(("layer", "stride"), [("stages.2", 16), ("stages.3", 32)])
def test_paths_half_a_stride_apart_give_no_exact_centre(layer, stride):
    """LowFormer's attention works on a map of half the size and comes back up; without it unit u sits at a multiple of
    the stride."""
    model = of("lowformer_b0", (224, 224))
    (shape,) = (entry.shape for entry in model.recording.layers if entry.name == layer)
    fields = [model.site(layer).trf((u, u)) for u in range(shape[2])]
    assert all(field.center_px[0] == stride * u for u, field in enumerate(fields) if field.center_exact)
    assert not all(field.center_exact for field in fields)
    assert model.site("stages.1").trf((7, 7)).center_exact
