"""Which of PyTorch's operations are alike, by their names without namespace: every such table of this room, and who
asks it."""

from __future__ import annotations

#: Views that split and merge dimensions: the rule of slices asks, which recognises relative positions made absolute by
#: them.
RESHAPES = frozenset(["view", "_unsafe_view", "reshape"])
#: Views that show every element of their base once, so that what is written into one is the whole base's new value: the
#: tape asks.
WHOLE_VIEWS = RESHAPES | frozenset(
    ["alias", "detach", "lift_fresh", "permute", "transpose", "t", "_reshape_alias", "unsqueeze", "squeeze"]
)
#: Views of a part of one dimension, whose arguments say which: asked where the arguments of two recordings are
#: compared.
PART_VIEWS = frozenset(["slice", "select", "narrow", "split", "split_with_sizes", "unsafe_split", "unbind", "chunk"])
#: Operations that only copy, so that the copy may stand for the original: the tape asks.
COPIES = frozenset(["clone", "_to_copy"])
#: Operations that show a tensor, or a part of it, in whatever shape, or copy it: asked for what a value was before
#: them.
VIEWS_AND_COPIES = WHOLE_VIEWS | PART_VIEWS | COPIES
#: Operations that pick by numbers: the tape asks, to keep these for the rule, and so does what says why positions are
#: not known.
INDEXING = frozenset(["index", "index_select", "gather", "masked_select"])
#: Operations that fill a new tensor with one number, as padding is: the tape asks, to tell such from learned tokens.
FILLING = frozenset(
    f"{new}{name}{like}"
    for name in ("zeros", "ones", "full", "empty")
    for new, like in (("", ""), ("", "_like"), ("new_", ""))
)
#: Operations that make memory without numbers: the tape asks, since what is read there comes from code that is not
#: recorded.
UNINITIALIZED = frozenset(["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"])
#: Operations that make a tensor of numbers that Python or NumPy holds: the tape asks, since they may be the image's.
FROM_PYTHON = frozenset(["lift_fresh"])
#: Operations that take the shape of a tensor and not its numbers: the tape asks.
SHAPE_ONLY = frozenset(
    f"{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
) | frozenset(f"new_{name}" for name in ("empty", "empty_strided", "zeros", "ones", "full"))
#: Methods of tensors that hand their numbers, or their memory, to code that is not recorded: what watches for that
#: asks.
EXPOSING_METHODS = frozenset(["numpy", "__array__", "tolist", "__dlpack__", "data_ptr", "untyped_storage", "storage"])
#: Operations without a derivative, or with one that is zero almost everywhere: what a gradient says of the unit may not
#: be all.
WITHOUT_DERIVATIVE = frozenset(
    (
        *("detach", "round", "floor", "ceil", "trunc", "sign", "sgn", "argmax", "argmin", "heaviside"),
        *("fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask"),
        *("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", "quantize_per_tensor", "quantize_per_channel"),
    )
)
#: Operations that draw random numbers, without the underscore of those that work in place.
DRAWING = frozenset(
    (
        *(
            "bernoulli",
            "binomial",
            "cauchy",
            "exponential",
            "geometric",
            "log_normal",
            "multinomial",
            "native_dropout",
            "normal",
        ),
        *("poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "randperm"),
        *("rrelu_with_noise", "uniform"),
    )
)
#: Arguments that follow the sizes of tensors, or say where and not what: left out where the arguments of two recordings
#: are compared.
SIZE_ARGUMENTS = frozenset(
    (
        *("size", "start", "end", "length", "output_size", "split_size", "split_sizes", "N", "HxW"),
        *("layout", "device", "pin_memory", "non_blocking", "memory_format", "generator", "implicit"),
    )
)
