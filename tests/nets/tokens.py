"""Adversarial nets on tokens: class tokens, registers, other orders, pooled, dropped and appended tokens, queries, and
heads on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets import Does, conv, net, patches, plane, table, tokens

#: Rows and columns of patches of 4 x 4 pixels.
GRID = (8, 10)
COUNT = GRID[0] * GRID[1]


class Attention(nn.Module):
    """Self-attention, or attention to other tokens; ``mix`` scales what it adds."""

    def __init__(self, c: int = 6) -> None:
        super().__init__()
        self.norm, self.q, self.k, self.v = nn.LayerNorm(c), nn.Linear(c, c), nn.Linear(c, c), nn.Linear(c, c)
        self.mix = 1.0

    def forward(self, t: Tensor, other: Tensor | None = None) -> Tensor:
        t_, o = self.norm(t), self.norm(t if other is None else other)
        return t + self.mix * F.scaled_dot_product_attention(self.q(t_), 2 * self.k(o), self.v(o))


class Block(nn.Module):
    """A transformer block without heads."""

    def __init__(self, c: int = 6) -> None:
        super().__init__()
        self.attention, self.mlp = (
            Attention(c),
            nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.GELU(), nn.Linear(2 * c, c)),
        )

    def forward(self, t: Tensor) -> Tensor:
        t = self.attention(t)
        return t + self.mlp(t)


def blocks(n: int = 2, c: int = 6) -> nn.Sequential:
    """Transformer blocks."""
    return nn.Sequential(*(Block(c) for _ in range(n)))


class Vit(nn.Module):
    """A ViT with tokens before, among and behind those of the patches, in any order, and whatever happens then."""

    def __init__(
        self,
        *,
        before: int = 0,
        among: int = 0,
        behind: int = 0,
        order: Sequence[int] | None = None,
        grid: tuple[int, int] = GRID,
        then: Callable[[Tensor], Tensor] = lambda t: t,
    ) -> None:
        super().__init__()
        self.embed, self.table, self.blocks = patches(), table(1, grid[0] * grid[1], 6), blocks()
        self.extra = nn.ParameterList([table(1, n, 6) for n in (before, among, behind)])
        self.then = then
        self.register_buffer("order", None if order is None else torch.tensor(list(order)))

    def forward(self, x: Tensor) -> Tensor:
        t = self.embed(x).flatten(2).transpose(1, 2) + self.table
        if self.order is not None:
            t = t[:, self.order]
        before, among, behind = (e.expand(len(x), -1, -1) for e in self.extra)
        half = t.shape[1] // 2
        return self.then(self.blocks(torch.cat([before, t[:, :half], among, t[:, half:], behind], 1)))


# --- prefix, suffix, and between


@net("class token", tokens(prefix=1), local=True)
def class_token_first():
    """One class token before the patches."""
    return Vit(before=1)


@net("class token", tokens(), local=True)
def class_token_last():
    """One class token behind the patches."""
    return Vit(behind=1)


@net(
    "class token",
    tokens(place=lambda r, c: (n := r * GRID[1] + c) + (n >= COUNT // 2)),
    local=True,
    expected="either",
    tokens=COUNT + 1,
    by_shape=True,
)
def class_token_in_the_middle():
    """One class token between the two halves of the patches (Vim)."""
    return Vit(among=1)


@net("registers", tokens((8, 12), prefix=4), size=(32, 48), local=True)
def registers_that_make_a_square():
    """96 patches and four registers are 100 tokens, which look like 10 x 10."""
    return Vit(before=4, grid=(8, 12))


@net("registers", tokens((8, 8)), size=(32, 32), local=True)
def as_many_registers_as_make_the_next_square():
    """64 patches and 17 registers behind them are 81 tokens, which look like 9 x 9."""
    return Vit(behind=17, grid=(8, 8))


@net("registers", tokens(prefix=1), local=True)
def patches_cut_out_by_the_model():
    """The model adds six tokens and returns all but its registers, the class token first."""
    return Vit(before=6, then=lambda t: torch.cat([t[:, :1], t[:, 6:]], 1))


@net("registers", plane(1.5, 4, GRID), local=True)
def patches_put_back_into_a_map():
    """Registers are dropped, and patches put back into a map."""
    return Vit(before=4, then=lambda t: t[:, 4:].transpose(1, 2).unflatten(2, GRID))


# --- other orders


SHUFFLED = torch.randperm(COUNT, generator=torch.Generator().manual_seed(3)).tolist()


@net(
    "order",
    tokens(prefix=1, place=lambda r, c: SHUFFLED.index(r * GRID[1] + c)),
    local=True,
    expected="either",
    tokens=COUNT + 1,
    by_shape=True,
)
def any_order_behind_a_class_token():
    """Tokens are permuted by a buffer, behind a class token."""
    return Vit(order=SHUFFLED, before=1)


@net("order", tokens(place=lambda r, c: COUNT - 1 - (r * GRID[1] + c)), local=True)
def backwards():
    """The last patch comes first."""
    return Vit(order=range(COUNT - 1, -1, -1))


def _windows(r: int, c: int) -> int:
    return ((r // 4) * 2 + c // 5) * 20 + (r % 4) * 5 + c % 5


@net("order", tokens(place=_windows), local=True, expected="either", tokens=COUNT, by_shape=True)
def window_by_window():
    """Tokens are sorted by windows of 4 x 5 patches (Hiera)."""
    order = [
        r * 10 + c for a in range(2) for b in range(2) for r in range(4 * a, 4 * a + 4) for c in range(5 * b, 5 * b + 5)
    ]
    return Vit(order=order)


@net("order", tokens(), local=True)
def windows_in_the_batch_and_back():
    """Attention within windows that lie along the batch axis."""

    def forward(m, x):
        t = m.embed(x).permute(0, 2, 3, 1).view(len(x), 2, 4, 2, 5, 6).transpose(2, 3).reshape(-1, 20, 6)
        return m.blocks(t).view(len(x), 2, 2, 4, 5, 6).transpose(2, 3).reshape(len(x), COUNT, 6)

    return Does(forward, embed=patches(), blocks=blocks())


# --- other axes


@net("axes", tokens(axes="NBC", prefix=1), local=True)
def tokens_first():
    """A sequence first, as nn.MultiheadAttention takes it: (N, B, C)."""
    return Vit(before=1, then=lambda t: t.transpose(0, 1))


@net("axes", tokens(axes="BCN", prefix=1), local=True)
def channels_before_tokens_behind_a_class_token():
    """(B, C, 1 + N)."""
    return Vit(before=1, then=lambda t: t.transpose(1, 2))


@net("axes", tokens((2, 20), step=(16, 2), offset=(7.5, 0.5)), local=True)
def tall_patches():
    """Patches of 16 x 2 pixels: a token grid of another shape than the image's."""
    return Does(
        lambda m, x: m.blocks(m.embed(x).flatten(2).transpose(1, 2)),
        embed=nn.Conv2d(3, 6, (16, 2), (16, 2)),
        blocks=blocks(),
    )


@net("axes", tokens(), local=True)
def patches_by_unfolding():
    """The patch embedding is a linear layer on unfolded pixels."""
    return Does(
        lambda m, x: m.blocks(m.embed(F.unfold(x, 4, stride=4).transpose(1, 2))),
        embed=nn.Linear(48, 6),
        blocks=blocks(),
    )


@net("axes", tokens((8, 10), offset=0))
def overlapping_patches():
    """Patches of 7 x 7 pixels at every fourth one."""
    return Does(
        lambda m, x: m.blocks(m.embed(x).flatten(2).transpose(1, 2)), embed=nn.Conv2d(3, 6, 7, 4, 3), blocks=blocks()
    )


# --- pooled, dropped, appended


@net("pooled", tokens((4, 5), offset=3.5, step=8), local=True, expected="either")
def patches_merged_by_four():
    """2 x 2 patches become one token (Swin's merging)."""

    def merge(t):
        return t.view(len(t), 4, 2, 5, 2, 6).permute(0, 1, 3, 2, 4, 5).reshape(len(t), 20, 24)[..., ::4]

    return Does(
        lambda m, x: m.out(torch.cat([m.vit(x), m.vit(x).square()], -1)), vit=Vit(then=merge), out=nn.Linear(12, 6)
    )


@net("pooled", tokens((8, 5), offset=(1.5, 3.5), step=(4, 8)), local=True)
def neighbours_in_the_sequence_averaged():
    """Two tokens that follow each other become one."""
    return Vit(then=lambda t: t.unflatten(1, (-1, 2)).mean(2))


@net("pooled", tokens((4, 5), offset=1.5, step=8), local=True)
def strided_tokens():
    """Every second token of every second row is kept."""
    return Vit(then=lambda t: t.unflatten(1, GRID)[:, ::2, ::2].flatten(1, 2))


@net("dropped", tokens((6, 8), offset=5.5), local=True)
def border_dropped():
    """The outermost patches are dropped."""
    return Vit(then=lambda t: t.unflatten(1, GRID)[:, 1:-1, 1:-1].flatten(1, 2))


KEPT = sorted(SHUFFLED[:20])


@net("dropped", tokens=20, expected="refused")
def random_tokens_kept():
    """Twenty tokens that a buffer names are kept (a masked auto-encoder): they form no grid, though 20 is 4 x 5."""
    return Vit(then=lambda t: t[:, KEPT])


@net("dropped", tokens(), local=True, expected="either")
def random_tokens_kept_and_filled_in():
    """Twenty tokens are encoded, and mask tokens stand in for the others: each stands where it stood."""

    def forward(m, x):
        t = m.vit(x)
        full = m.mask.expand(len(x), COUNT, 6).clone()
        full[:, m.kept] = t[:, m.kept]
        return m.more(full + t * m.table)

    return Does(forward, vit=Vit(), mask=table(1, 1, 6), table=table(COUNT, 1), kept=torch.tensor(KEPT), more=blocks())


@net("dropped", tokens=20, expected="refused")
def strongest_tokens_kept():
    """The twenty tokens of largest norm are kept, others for every image."""
    return Vit(then=lambda t: t.gather(1, t.norm(dim=-1).topk(20).indices[..., None].expand(-1, -1, t.shape[2])))


@net("dropped", tokens=16, expected="refused")
def tokens_merged_by_likeness():
    """Sixteen clusters of tokens, by a softmax over learned centres."""

    def forward(m, x):
        t = m.vit(x)
        return (m.centres @ t.transpose(1, 2)).softmax(-1) @ t

    return Does(forward, vit=Vit(), centres=table(16, 6))


@net("appended", tokens(prefix=10), local=True)
def prompts_between_blocks():
    """Ten prompts are put before the patches after the first blocks."""
    return Does(
        lambda m, x: m.more(torch.cat([m.prompts.expand(len(x), -1, -1), m.vit(x)], 1)),
        vit=Vit(),
        prompts=table(1, 10, 6),
        more=blocks(1),
    )


@net("appended", tokens(prefix=1), local=True)
def mean_token_before():
    """The mean of all tokens is put before them: it stands nowhere."""
    return Does(
        lambda m, t: m.more(torch.cat([m.mean(m.vit(t)), m.vit(t)], 1)), vit=Vit(), mean=_Mean(), more=blocks(1)
    )


class _Mean(nn.Module):
    """Mean over tokens, as one token."""

    mix = 1.0

    def forward(self, t: Tensor) -> Tensor:
        return self.mix * t.mean(1, keepdim=True)


@net(
    "appended", tokens(), tokens((4, 5), prefix=COUNT, offset=3.5, step=8), expected="either", tokens=100, by_shape=True
)
def two_scales_in_one_sequence():
    """Eighty fine and twenty coarse tokens in one sequence: 100, but no 10 x 10."""

    def forward(m, x):
        coarse = m.embed2(x).flatten(2).transpose(1, 2)
        return m.more(torch.cat([m.vit(x), coarse], 1))

    return Does(forward, vit=Vit(), embed2=patches(8), more=blocks(1))


# --- queries and heads


class Decoder(nn.Module):
    """A ViT whose patches are read by learned queries."""

    def __init__(self, count: int, out: int = 6) -> None:
        super().__init__()
        self.vit, self.queries = Vit(), table(1, count, 6)
        self.cross, self.self_, self.head = Attention(), Attention(), nn.Linear(6, out)

    def forward(self, x: Tensor) -> Tensor:
        t = self.vit(x)
        q = self.cross(self.queries.expand(len(x), -1, -1), t)
        return self.head(self.self_(q))


@net("queries", expected="refused", tokens=80)
def as_many_queries_as_patches():
    """80 learned queries, as many as there are patches: they stand on nothing all the same."""
    return Decoder(80)


@net("queries", plane(1.5, 4, GRID))
def masks_of_queries():
    """Queries times patches are masks (Mask2Former): a map whose channels are queries."""

    def forward(m, x):
        t = m.vit(x)
        q = m.cross(m.queries.expand(len(x), -1, -1), t)
        return torch.einsum("bqc,bnc->bqn", q, t).unflatten(2, GRID)

    return Does(forward, vit=Vit(), queries=table(1, 16, 6), cross=Attention())


@net(
    "heads",
    plane(0, 4, (8, 10), layer="levels.0"),
    plane(0, 8, (4, 5), layer="levels.1"),
    expected="either",
    tokens=100,
)
def anchors_of_two_levels():
    """Anchors of two levels in one list (B, 100, 4): no 10 x 10; an error, or the maps before."""

    def forward(m, x):
        fine = m.stem(x).tanh()
        coarse = m.down(fine).tanh()
        rows = [level(y).flatten(2).transpose(1, 2) for level, y in zip(m.levels, (fine, coarse), strict=True)]
        return torch.cat(rows, 1)

    return Does(
        forward, stem=nn.Conv2d(3, 6, 5, 4, 2), down=conv(6, 6, 3, 2), levels=nn.ModuleList([conv(6, 4), conv(6, 4)])
    )


@net("heads", plane(0, 4, (8, 10), layer="features"))
def class_scores():
    """Pooled features and class scores behind a map: the map is the default."""
    return Does(
        lambda m, x: m.head(m.features(m.stem(x).tanh()).tanh().mean((2, 3))),
        stem=nn.Conv2d(3, 6, 5, 4, 2), features=conv(6, 6), head=nn.Linear(6, 16),
    )  # fmt: skip


@net("heads", tokens(prefix=1, layer="vit"), local=True)
def class_scores_of_a_class_token():
    """Class scores of a ViT's class token."""
    return Does(lambda m, x: m.head(m.vit(x)[:, 0]), vit=Vit(before=1), head=nn.Linear(6, 64))


@net("heads", plane(0, 4, (8, 10), layer="score"), expected="either", tokens=10)
def rows_of_detections():
    """A list of the ten best cells per image, as rows of numbers."""

    def forward(m, x):
        y = m.score(m.stem(x).tanh())
        best = y[:, 0].flatten(1).topk(10).indices
        rows = y.flatten(2).transpose(1, 2)
        return [rows[b, best[b]] for b in range(len(x))]

    return Does(forward, stem=nn.Conv2d(3, 6, 5, 4, 2), score=conv(6, 5))


@net(
    "heads", plane(0, 4, (8, 10), layer="score"), tokens((8, 10), offset=0, axes="BCN"), expected="either", tokens=None
)
def boxes_decoded_from_distributions():
    """Distances are means over 16 bins with cells along the last axis (YOLO's dfl), behind a grid of cells."""

    def forward(m, x):
        y = m.score(m.stem(x).tanh())
        bins = y.flatten(2).unflatten(1, (4, 16)).softmax(2)
        return (bins * m.bins.view(1, 1, -1, 1)).sum(2)

    return Does(forward, stem=nn.Conv2d(3, 6, 5, 4, 2), score=conv(6, 64), bins=torch.arange(16.0))
