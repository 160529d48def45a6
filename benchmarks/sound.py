"""Nets of sequences and of sound: what erfscope measures beside plain autograd in float64, by model.

Run ``python benchmarks/sound.py`` for the tables of ``zoo.md``. The oracle shares no code with erfscope: a hook
on the layer, one gradient per channel of the unit, squared, summed, divided by its total.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from csv_rows import print_row
from heads import ALLOWED, SMALL, transformers_model
from sound_nets import (
    Demucs,
    EegNet,
    EfficientAT,
    Fed,
    HybridDemucs,
    Inception,
    LongConvolution,
    MelTagger,
    PyanNet,
    Separator,
    Tagger,
    TasNet,
    UNet1d,
    WaveNet,
    resnet1d,
    seanet,
    sincnet,
    tcn,
)
from torch import nn
from zoo_plain import Array, as_map, output_of, written_out_norms

import erfscope


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and what it is given."""

    name: str
    build: Callable[[], nn.Module]
    #: (C, *space).
    shape: tuple[int, ...]
    #: The layer that erfscope must choose.
    expected: str
    #: By arithmetic; () where the TRF is global or no paper states it.
    trf: tuple[int, ...] = ()
    #: Centre of unit 0 and stride by arithmetic, in samples; () where not stated.
    grid: tuple[float, ...] = ()
    layout: str | None = None
    sound: bool = False


SPEECH = {**SMALL, "conv_dim": (8,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}


def fed(how: str, kind: str, configuration: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a transformers model that takes (B, C, T)."""
    return lambda: Fed(transformers_model(kind, configuration, **options)(), how)


def wav2vec2_front() -> nn.Module:
    """The seven convolutions of Wav2Vec 2.0 with layer norms."""
    model: Any = transformers_model("Wav2Vec2Model", "Wav2Vec2Config", **SPEECH, feat_extract_norm="layer")()
    return Fed(model.feature_extractor, "features")


def whisper() -> nn.Module:
    """The encoder of a small Whisper, on a spectrogram (B, 16, T)."""
    model: Any = transformers_model(
        "WhisperModel", "WhisperConfig", d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=16, max_source_positions=24,
        vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )()  # fmt: skip
    encoder: nn.Module = model.encoder
    return encoder


DAC = {"encoder_hidden_size": 4, "decoder_hidden_size": 16, "downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2],
       "hidden_size": 16, "codebook_dim": 4, "codebook_size": 16, "n_codebooks": 2}  # fmt: skip
ENCODEC = {"num_filters": 4, "upsampling_ratios": [4, 2], "hidden_size": 16, "codebook_dim": 16, "codebook_size": 16,
           "num_lstm_layers": 1}  # fmt: skip
PATCHES = {"num_input_channels": 2, "context_length": 64, "patch_length": 8, "patch_stride": 8, "d_model": 16}
SERIES = {"prediction_length": 8, "context_length": 48, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1,
          "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
          "input_size": 2, "num_time_features": 1, "lags_sequence": [1, 2, 3]}  # fmt: skip


def encoder_of(how: str, kind: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds the encoder of a transformers model."""

    def build() -> nn.Module:
        encoder: Any = transformers_model(f"{kind}Model", f"{kind}Config", **options)().encoder
        return Fed(encoder, how) if how else encoder

    return build


CASES = (
    Case(name="TCN, kernel 4, 7 levels", build=tcn, shape=(2, 800), expected="output", trf=(763,)),
    Case(name="WaveNet-like", build=WaveNet, shape=(1, 128), expected="output", trf=(65,)),
    Case(name="ResNet, 1-D", build=resnet1d, shape=(2, 256), expected="output"),
    Case(name="U-Net, 1-D", build=UNet1d, shape=(2, 64), expected="output"),
    Case(name="InceptionTime-like", build=Inception, shape=(2, 128), expected="output", trf=(77,)),
    Case(name="GRU tagger", build=Tagger, shape=(2, 32), expected="output"),
    Case(name="LSTM tagger", build=partial(Tagger, nn.LSTM), shape=(2, 32), expected="output"),
    Case(name="long convolution by FFT", build=LongConvolution, shape=(2, 128), expected="output",
         layout="NCL"),
    Case(name="SincNet front of PyanNet", build=sincnet, shape=(1, 4000), expected="output", trf=(991,),
         grid=(495, 270), sound=True),
    Case(name="PyanNet-like", build=PyanNet, shape=(1, 4000), expected="output", grid=(495, 270), sound=True),
    Case(name="SEANet-like encoder", build=seanet, shape=(1, 400), expected="output", sound=True),
    Case(name="Demucs-like", build=Demucs, shape=(1, 256), expected="output", sound=True),
    Case(name="Conv-TasNet-like separator", build=TasNet, shape=(1, 1024), expected="output", trf=(496,),
         grid=(7.5, 8), sound=True),
    Case(name="Conv-TasNet-like, its sources", build=Separator, shape=(1, 512), expected="output", trf=(504,),
         grid=(0, 1), sound=True),
    Case(name="Hybrid-Demucs-like", build=HybridDemucs, shape=(2, 512), expected="output", trf=(95,), grid=(0, 1),
         sound=True),
    Case(name="EfficientAT-like tagger", build=EfficientAT, shape=(1, 1024), expected="features", sound=True),
    Case(name="tagger on mel bands of an STFT", build=MelTagger, shape=(1, 1024), expected="output", sound=True),
    Case(name="EEGNet-like", build=EegNet, shape=(8, 128), expected="output", trf=(36,), grid=(1.5, 4)),
    *(Case(name=f"transformers {kind}, embeddings", build=fed("embeddings", f"{kind}Model", f"{kind}Config",
           vocab_size=60, **options), shape=(32, 24), expected=last)
      for kind, last, options in (("Llama", "output", SMALL),
                                  ("Mamba", "output", {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}),
                                  ("GPT2", "inner.h.1", {"n_embd": 32, "n_layer": 2, "n_head": 4}))),
    Case(name="transformers Wav2Vec2, its convolutions", build=wav2vec2_front, shape=(1, 3200), expected="output",
         trf=(400,), grid=(199.5, 320), sound=True),
    *(Case(name=f"transformers {kind}, embeddings", build=encoder_of("embeddings", kind, **SERIES, **options),
           shape=(11, 48), expected="output")
      for kind, options in (("TimeSeriesTransformer", {}), ("Informer", {"sampling_factor": 50}))),
    *(Case(name=f"transformers {kind}", build=fed("patches", f"{kind}Model", f"{kind}Config", **PATCHES, **options),
           shape=(2, 64), expected="output", grid=(3.5, 8))
      for kind, options in (("PatchTST", {"num_attention_heads": 2, "num_hidden_layers": 2, "ffn_dim": 32,
                                          "do_mask_input": False}), ("PatchTSMixer", {"num_layers": 2}))),
    *(Case(name=f"transformers {kind}", build=fed("wave", f"{kind}Model", f"{kind}Config", **SPEECH),
           shape=(1, 3200), expected="output", sound=True) for kind in ("Wav2Vec2", "Hubert", "WavLM")),
    Case(name="transformers Wav2Vec2Conformer", build=fed("wave", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig",
         **SPEECH), shape=(1, 3200), expected="inner.encoder.layers.1", grid=(199.5, 320), sound=True),
    Case(name="transformers DAC, its encoder", build=encoder_of("", "Dac", **DAC), shape=(1, 512), expected="output",
         trf=(274,), grid=(3.5, 8), sound=True),
    Case(name="transformers DAC without codes", build=fed("codec", "DacModel", "DacConfig", **DAC), shape=(1, 512),
         expected="output", grid=(0, 1), sound=True),
    Case(name="transformers EnCodec, its encoder", build=encoder_of("", "Encodec", **ENCODEC), shape=(1, 512),
         expected="output", sound=True),
    Case(name="transformers EnCodec without codes", build=fed("codec", "EncodecModel", "EncodecConfig", **ENCODEC),
         shape=(1, 512), expected="output", sound=True),
    Case(name="transformers AST", build=fed("spectrogram", "ASTModel", "ASTConfig", **SMALL, patch_size=8,
         frequency_stride=4, time_stride=4, max_length=64, num_mel_bins=32), shape=(1, 32, 64),
         expected="inner.layers.1", sound=True),
    Case(name="transformers CLAP, sound", build=fed("frames first", "ClapAudioModel", "ClapAudioConfig", window_size=4,
         num_mel_bins=16, spec_size=64, patch_size=4, patch_stride=[4, 4], hidden_size=64, patch_embeds_hidden_size=32,
         depths=[2, 2], num_attention_heads=[2, 4], num_hidden_layers=2), shape=(1, 16, 256), expected="output",
         sound=True),
    Case(name="transformers Whisper encoder", build=whisper, shape=(16, 48), expected="layers.1", sound=True),
)  # fmt: skip


def by_autograd(module: nn.Module, x: torch.Tensor, result: Any) -> Array:
    """The map of the unit by plain autograd, with sum 1."""
    leaf = x.clone().requires_grad_()
    with written_out_norms():
        found = as_map(output_of(module, partial(module, leaf), result.layer), result.unit.map_shape)
    if found is None:
        raise ValueError(f"{result.layer} is no map {result.unit.map_shape}")
    energy: Any = 0.0
    for value in found[(..., *result.unit.index)].flatten():
        (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True)
        energy = energy + gradient[0].square().sum(0)
    root = energy.sqrt()
    return (root / root.sum()).numpy()


def rows(cases: tuple[Case, ...] = CASES) -> Iterator[tuple[Case, Any, float, float]]:
    """Each case with its result, the relative L1 distance from the oracle and the oracle's map outside of the TRF."""
    for case in cases:
        torch.manual_seed(0)
        module = case.build().double().eval()
        x = torch.randn(1, *case.shape, dtype=torch.float64)
        result = erfscope.analyze(
            module, images=x, input_size=case.shape[1:], in_chans=case.shape[0], mean=0, std=1, dtype="float64",
            convention="jacobian", draws="all", **({"layout": case.layout} if case.layout else {}),
        )  # fmt: skip
        truth = by_autograd(module, x, result)
        distance = float(abs(result.map.values - truth).sum())
        truth[tuple(slice(first, last + 1) for first, last in result.trf.clipped_box_px)] = 0
        yield case, result, distance, float(truth.max())


def is_right(case: Case, result: Any, distance: float, outside: float) -> bool:
    """Whether layer, TRF and map are as they must be."""
    unit = result.unit
    if case.grid:
        offset, stride = case.grid
        if (unit.center_px[0], unit.stride_px[0]) != (offset + stride * unit.index[0], stride):
            return False
    return (
        result.layer == case.expected
        and distance < ALLOWED
        and outside == 0
        and (not case.trf or tuple(result.trf.size_px) == case.trf)
    )


def cells_of(case: Case, result: Any, distance: float) -> tuple[str, ...]:
    """A row of the table."""
    trf, unit = result.trf, result.unit
    return (
        case.name,
        "x".join(map(str, case.shape)),
        result.layer,
        "x".join(map(str, unit.map_shape)),
        ", ".join(f"{each:.4g}" for each in unit.stride_px),
        ("" if trf.exact else "at most ") + (trf.global_by or "x".join(map(str, trf.size_px))),
        ", ".join(f"{each:.6g}" for each in unit.center_px),
        f"{distance:.0e}",
    )


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    wrong = 0
    print_row(("kind", "model", "input", "layer", "map", "stride", "TRF", "unit centre", "off autograd"))
    for kind, sound in (("sequence", False), ("sound", True)):
        for case, result, distance, outside in rows(tuple(case for case in CASES if case.sound is sound)):
            right = is_right(case, result, distance, outside)
            wrong += not right
            cells = (kind, *cells_of(case, result, distance))
            print_row(cells if right else (*cells, "WRONG"))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
