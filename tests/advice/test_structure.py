"""Fields of layers and what is unproductive: closed forms, numbers of rfa_toolbox, and all paths of random nets."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from nets import Does
from torch import Tensor, nn

import erfscope
from erfscope.apps.advise.structure import ALL, NetStructure
from erfscope.core import Operation

#: (smallest, largest) input that rfa_toolbox's ``input_resolution_range`` gives; None where its smallest counts squeeze
#: and excitation or a kernel of 1 in another way.
PUBLISHED = {
    # The README of https://github.com/MLRichter/receptive_field_analysis_toolbox.
    "resnet50": (75, 427),
    # Computed with it.
    "torchvision.models:resnet18": (None, 435),
    "torchvision.models:squeezenet1_0": (None, 155),
    "torchvision.models:mobilenet_v2": (163, 491),
    "torchvision.models:mnasnet1_0": (283, 843),
    "torchvision.models:efficientnet_b0": (299, 851),
    "torchvision.models:mobilenet_v3_small": (303, 639),
}


def structure(module: nn.Module, *size: int, **more: object) -> NetStructure:
    return erfscope.advise(module, input_size=size, **more).structure


def fields(found: NetStructure, name: str = "shortest_in", axis: int = 0) -> dict[str, float]:
    return {each.name: getattr(each, name)[axis] for each in found.layers}


def layer(found: NetStructure, name: str) -> Operation:
    (one,) = [each for each in found.layers if each.name == name]
    return one


def conv(taken: int, given: int, kernel: int = 3, **more: object) -> nn.Conv2d:
    return nn.Conv2d(taken, given, kernel, padding=kernel // 2 * more.get("dilation", 1), **more)


@pytest.mark.slow
@pytest.mark.parametrize("spec", PUBLISHED)
def test_sensible_inputs_are_those_of_rfa_toolbox(spec):
    smallest, largest = PUBLISHED[spec]
    found = erfscope.advise(spec, weights="random").structure
    assert found.largest() == (largest,) * 2
    assert smallest is None or found.smallest() == (smallest,) * 2
    assert sum(each.gmacs for each in found.layers) == pytest.approx(found.gmacs)


def test_layer_n_of_a_stack_sees_one_and_n_times_kernel_less_one():
    found = structure(nn.Sequential(*(conv(3, 3) for _ in range(5))), 6, 6)
    assert fields(found) == {str(n): 1 + 2 * n for n in range(5)}
    assert fields(found, "local") == fields(found, "longest") == {str(n): 3 + 2 * n for n in range(5)}
    assert [each.name for each in found.unproductive()] == ["3", "4"]
    # A layer that is unproductive is not critical too.
    assert [each.name for each in found.critical()] == ["2"]
    assert found.border() == layer(found, "2")
    assert (found.smallest(), found.largest()) == ((9, 9), (11, 11))
    assert found.mixer() is None
    # Weights and biases of each are a fifth; so are its multiply-adds.
    assert [each.params / found.params for each in found.layers] == pytest.approx([0.2] * 5)
    assert [each.gmacs / found.gmacs for each in found.layers] == pytest.approx([0.2] * 5)
    assert found.layers[0].gmacs == pytest.approx(6 * 6 * 3 * 3 * 9 / 1e9)


def test_a_field_as_large_as_the_input_is_not_beyond_it():
    stack = nn.Sequential(*(conv(3, 3) for _ in range(3)))
    assert structure(stack, 5, 5).unproductive() == ()
    assert [each.name for each in structure(stack, 4, 4).unproductive()] == ["2"]


def test_strides_and_dilation_multiply_what_comes_after():
    module = nn.Sequential(
        conv(3, 4, 7, stride=2), nn.MaxPool2d(3, 2, 1), conv(4, 4, dilation=3), conv(4, 4, 1, stride=2), conv(4, 4)
    )
    found = structure(module, 64, 64)
    # 7, then 2 * 2 more by the pool, 4 * 6 by the dilated one, none by a kernel of 1, and 8 * 2 by the last.
    assert fields(found) == {"0": 1, "2": 11, "3": 35, "4": 35}
    assert fields(found, "local") == {"0": 7, "2": 35, "3": 35, "4": 51}
    assert [each.name for each in found.layers if not each.widens] == ["3"]


def test_kernels_and_inputs_differ_between_axes():
    module = nn.Sequential(*(nn.Conv2d(3, 3, (5, 1), padding=(2, 0)) for _ in range(4)))
    found = structure(module, 8, 40)
    assert [each.shortest_in for each in found.layers] == [(1 + 4 * n, 1) for n in range(4)]
    assert found.unproductive() == found.critical() == ()
    assert [each.name for each in found.partly()] == ["2", "3"]
    assert found.border() is None
    # The same kernels on both axes, and an input that is long along one.
    long = structure(nn.Sequential(*(conv(3, 3) for _ in range(4))), 4, 40)
    assert [each.name for each in long.partly()] == ["2", "3"]
    assert long.unproductive() == ()


@pytest.mark.parametrize(("rank", "kind"), [(1, nn.Conv1d), (3, nn.Conv3d)])
def test_signals_and_volumes_have_an_axis_each(rank, kind):
    module = nn.Sequential(*(kind(2, 2, 3, padding=1) for _ in range(4)))
    found = structure(module, *(6, 12, 5)[:rank])
    assert [each.shortest_in for each in found.layers] == [(1 + 2 * n,) * rank for n in range(4)]
    assert [each.name for each in found.unproductive()] == (["3"] if rank == 1 else [])
    assert [each.name for each in found.partly()] == (["3"] if rank == 3 else [])


def test_a_residual_block_counts_as_its_shortcut():
    def run(net, x):
        x = net.stem(x)
        x = x + net.b(F.relu(net.a(x)))
        x = net.short(x) + net.d(F.relu(net.c(x)))
        return net.last(x)

    # Stem: 5. The first block adds 4 by its convolutions, nothing by its shortcut; the second 2 + 2 * 2, and nothing.
    found = structure(
        Does(
            run,
            stem=conv(3, 4, 5),
            a=conv(4, 4),
            b=conv(4, 4),
            short=conv(4, 4, 1, stride=2),
            c=conv(4, 4, stride=2),
            d=conv(4, 4),
            last=conv(4, 4),
        ),
        32,
        32,
    )
    assert fields(found) == {"stem": 1, "a": 5, "b": 7, "short": 5, "c": 5, "d": 7, "last": 5}
    assert fields(found, "local") == {"stem": 5, "a": 7, "b": 9, "short": 9, "c": 11, "d": 15, "last": 19}


def test_the_narrowest_channels_of_a_concatenation_count():
    def run(net, x):
        return net.last(torch.cat([net.wide(x), net.narrow(x)], 1))

    found = structure(Does(run, wide=conv(3, 4, 9), narrow=conv(3, 2), last=conv(6, 2)), 16, 16)
    assert (layer(found, "last").shortest_in, layer(found, "last").local) == ((3, 3), (11, 11))


def test_channel_groups_keep_what_they_see():
    def run(net, x):
        x = net.groups(torch.cat([net.wide(x), net.narrow(x)], 1))
        return net.last(x[:, :2])

    # The first group of two channels comes from the wide branch alone.
    net = Does(run, wide=conv(3, 2, 9), narrow=conv(3, 2), groups=conv(4, 4, groups=2), last=conv(2, 2))
    found = structure(net, 16, 16)
    assert (layer(found, "groups").shortest_in, layer(found, "groups").shortest) == ((3, 3), (5, 5))
    assert layer(found, "last").shortest_in == (11, 11)


def test_squeeze_and_excitation_leaves_the_path_beside_it():
    def run(net, x):
        x = net.first(x)
        return net.last(x * net.gate(x.mean((2, 3), keepdim=True)).sigmoid())

    found = structure(Does(run, first=conv(3, 4), gate=conv(4, 4, 1), last=conv(4, 4)), 16, 16)
    assert layer(found, "gate").shortest_in == (ALL, ALL)
    assert (layer(found, "last").shortest_in, layer(found, "last").local) == ((3, 3), (5, 5))
    assert [each.name for each in found.in_place] == ["first", "last"]
    assert found.mixer() == layer(found, "last")
    assert not any(each.is_head for each in found.layers)
    assert found.unproductive() == ()


@pytest.mark.parametrize("is_residual", [True, False])
def test_attention_mixes_all_positions(is_residual):
    def run(net, x):
        x = net.patch(x).flatten(2).transpose(1, 2)
        y, _ = net.attention(x, x, x, need_weights=False)
        x = x + y if is_residual else y
        return net.last(x).transpose(1, 2).unflatten(2, (4, 4))

    parts = {"patch": nn.Conv2d(3, 8, 4, 4), "attention": nn.MultiheadAttention(8, 2, batch_first=True)}
    found = structure(Does(run, **parts, last=nn.Linear(8, 8)), 16, 16)
    last = layer(found, "last")
    assert last.longest == (ALL, ALL)
    # Beside a shortcut, and by its query: that is its own token alone.
    assert last.shortest_in == last.local == (4, 4)
    assert found.mixer() is not None
    assert found.unproductive() == ()


def test_a_classifier_is_no_layer_of_maps():
    module = nn.Sequential(conv(3, 4), conv(4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    found = structure(module, 4, 4)
    assert [each.name for each in found.layers if each.is_head] == ["4"]
    assert [each.name for each in found.in_place] == ["0", "1"]
    assert layer(found, "4").params == 50
    assert sum(each.params for each in found.layers) == found.params
    assert found.unproductive() == ()


def test_a_u_net_is_seen_through_its_skips():
    def run(net, x):
        skip = net.enc(x)
        deep = net.mid(F.max_pool2d(skip, 2))
        return net.dec(torch.cat([net.up(deep), skip], 1))

    net = Does(run, enc=conv(3, 4), mid=conv(4, 4), up=nn.ConvTranspose2d(4, 4, 2, stride=2), dec=conv(8, 2))
    found = structure(net, 16, 16)
    assert fields(found)["dec"] == 3
    # 3, then 1 by the pool and 2 * 2 by the next: 8; the last reads three rows, which lie in two rows below.
    assert fields(found)["up"] == 8
    assert fields(found, "local") == {"enc": 3, "mid": 8, "up": 8, "dec": 10}


def test_weights_that_run_twice_are_counted_once():
    def run(net, x):
        return net.shared(F.relu(net.shared(x)))

    found = structure(Does(run, shared=conv(3, 3)), 16, 16)
    assert [each.params for each in found.layers] == [84, 0]
    assert found.params == 84
    assert [each.shortest_in for each in found.layers] == [(1, 1), (3, 3)]
    assert sum(each.gmacs for each in found.layers) == pytest.approx(found.gmacs) == 2 * 256 * 81 / 1e9


def test_the_json_has_no_infinity():
    def run(net, x):
        return net.last(net.first(x).mean((2, 3), keepdim=True) + x)

    document = structure(Does(run, first=conv(3, 3), last=conv(3, 3)), 8, 8).to_json()
    assert document["layers"][1]["longest"] == [None, None]
    assert document["layers"][1]["shortest_in"] == [1, 1]
    assert document["smallest_input"] == [1, 1]


def test_what_has_no_weights_is_refused():
    with pytest.raises(erfscope.ErfscopeError, match=r"no operation with weights .* nothing to advise on"):
        structure(nn.MaxPool2d(2), 8, 8)


def test_a_model_of_several_inputs_is_refused():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = conv(3, 4), conv(3, 4)

        def forward(self, x, y):
            return self.a(x) + self.b(y)

    model = erfscope.wrap(Two(), example_inputs=(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8)))
    with pytest.raises(erfscope.ErfscopeError, match="takes several inputs; advice is given on models of one"):
        erfscope.advise(model)


#: Kernel, stride, dilation, padding; sides that are even stay as they are, or are halved.
SAME = [(1, 1, 1, 0), (3, 1, 1, 1), (5, 1, 1, 2), (3, 1, 2, 2), (3, 1, 3, 3)]
HALVED = [(1, 2, 1, 0), (2, 2, 1, 0), (3, 2, 1, 1), (5, 2, 1, 2), (4, 2, 1, 1)]
Step = Sequence[tuple[int, int, int, int]]


class RandomNet(nn.Module):
    """Convolutions in a graph: nodes are sums or concatenations of convolutions of earlier nodes of one resolution."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.convs = nn.ModuleDict()
        #: For each node how it joins its branches: (source, name, or None for the source itself).
        self.nodes: list[tuple[str, list[tuple[int, str | None]]]] = []
        channels, levels = [2], [0]
        for number in range(1, draw.randint(4, 7)):
            is_last_halved = draw.random() < 0.3 and levels[-1] < 2
            level = levels[-1] + is_last_halved
            how = draw.choice(["add", "cat"])
            near = [i for i, each in enumerate(levels) if each in (level, level - 1)]
            branches = list[tuple[int, str | None]]()
            for branch in range(draw.randint(1, 3)):
                source = number - 1 if branch == 0 else draw.choice(near)
                if levels[source] == level and channels[source] == 2 and branch and draw.random() < 0.4:
                    branches.append((source, None))
                    continue
                name = f"n{number}_{branch}"
                kinds = SAME if levels[source] == level else HALVED
                axes = [draw.choice(kinds), draw.choice(kinds)]
                kernel, stride, dilation, padding = zip(*axes, strict=True)
                self.convs[name] = nn.Conv2d(channels[source], 2, kernel, stride, padding, dilation)
                branches.append((source, name))
            self.nodes.append((how, branches))
            channels.append(2 if how == "add" else 2 * len(branches))
            levels.append(level)

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for how, branches in self.nodes:
            parts = [found[source] if name is None else self.convs[name](found[source]) for source, name in branches]
            found.append(sum(parts[1:], parts[0]) if how == "add" else torch.cat(parts, 1))
        return found[-1]

    def paths(self, node: int) -> list[list[nn.Conv2d]]:
        """The convolutions of each path from the image to a node."""
        if node == 0:
            return [[]]
        return [
            [*path, *([] if name is None else [self.convs[name]])]
            for source, name in self.nodes[node - 1][1]
            for path in self.paths(source)
        ]


def interval(path: Sequence[nn.Conv2d], axis: int) -> tuple[int, int]:
    """The cells that element 0 of a path's end reads, without borders."""
    first = last = 0
    for each in reversed(path):
        first = first * each.stride[axis] - each.padding[axis]
        last = last * each.stride[axis] - each.padding[axis] + each.dilation[axis] * (each.kernel_size[axis] - 1)
    return first, last


@pytest.mark.slow
def test_fields_of_random_nets_are_those_of_all_paths_one_by_one():
    compared = 0
    for seed in range(20):
        net = RandomNet(seed)
        found = {each.name: each for each in structure(net, 32, 24).layers}
        for _, branches in net.nodes:
            for source, name in branches:
                if name is None or f"convs.{name}" not in found:
                    continue
                ours, before = found[f"convs.{name}"], net.paths(source)
                for axis in range(2):
                    ends = [interval([*path, net.convs[name]], axis) for path in before]
                    sides = [last - first + 1 for first, last in ends]
                    least_in = min(last - first + 1 for first, last in (interval(path, axis) for path in before))
                    assert ours.shortest_in[axis] == least_in, (seed, name)
                    assert ours.shortest[axis] == min(sides), (seed, name)
                    assert ours.local[axis] == max(last for _, last in ends) - min(first for first, _ in ends) + 1
                    compared += 1
    assert compared > 200
