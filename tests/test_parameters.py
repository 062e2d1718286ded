"""`ParameterSpace` and `BufferSpace`: layout, views, segments, and what they refuse."""

import copy

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn

from shoal.bank import Buffers, Entry
from shoal.parameters import BufferSpace, ParameterSpace, default_segments, frozen_modules


class Bag(nn.Module):
    """Parameters and submodules by keyword."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def parameter(*shape):
    return nn.Parameter(torch.randn(*shape))


def net():
    features = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten())
    return Bag(features=features, classifier=nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2)))


def run(module, x):
    return module.classifier(module.features(x))


# ---- layout ---------------------------------------------------------------------------------------------------


def test_vector_holds_parameters_in_order_and_4d_weights_channels_last():
    module = net()
    space = ParameterSpace(module)
    expected = [
        module.features[0].weight.detach().numpy().transpose(0, 2, 3, 1).ravel(),
        *(p.detach().numpy().ravel() for p in list(module.parameters())[1:]),
    ]
    assert torch.equal(space.read(module), torch.cat([torch.from_numpy(e) for e in expected]))
    assert space.size == 3 * 2 * 9 + 3 + 12 * 4 + 4 + 4 * 2 + 2


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=5).map(tuple), min_size=1, max_size=6),
    seed=st.integers(0, 2**20),
)
def test_read_and_bind_are_inverse_for_any_shapes(shapes, seed):
    torch.manual_seed(seed)
    module = Bag(**{f"p{i}": nn.Parameter(torch.randn(shape)) for i, shape in enumerate(shapes)})
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    space = ParameterSpace(module)
    vector, other = space.read(module), torch.randn(space.size)
    space.bind(module, vector, torch.zeros(space.size))
    for name, p in module.named_parameters():
        assert torch.equal(p, before[name])
        assert p.shape == before[name].shape
    vector.copy_(other)
    assert torch.equal(space.read(module), other)


def test_view_of_a_stack_is_the_stack_of_views():
    space = ParameterSpace(net())
    stack = torch.randn(3, space.size)
    for name in space.names:
        view = space.view(stack, name)
        assert view.data_ptr() >= stack.data_ptr()
        assert torch.equal(view, torch.stack([space.view(v, name) for v in stack]))
    weights = space.view(stack[0], "features.0.weight")
    assert weights.is_contiguous(memory_format=torch.channels_last)
    stack.zero_()
    assert not view.any()


def test_view_refuses_wrong_sizes_and_names():
    space = ParameterSpace(net())
    with pytest.raises(ValueError, match=r"has 119 parameters; got a vector of \(118,\)"):
        space.view(torch.zeros(118), "features.0.bias")
    with pytest.raises(KeyError, match=r"did you mean 'features.0.bias'"):
        space.view(torch.zeros(119), "features.0.bia")


def test_read_and_bind_refuse_another_module():
    space = ParameterSpace(net())
    wider = net()
    wider.classifier[2] = nn.Linear(4, 1)  # would broadcast silently
    with pytest.raises(ValueError, match=r"'classifier.2.weight' of shape \(2, 4\); the module has \(1, 4\)"):
        space.read(wider)
    more = net()
    more.extra = parameter(2)
    with pytest.raises(ValueError, match=r"not in this space: \['extra'\]"):
        space.bind(more, torch.zeros(119), torch.zeros(119))
    with pytest.raises(ValueError, match="the module has None"):
        space.read(nn.Linear(2, 2))


@pytest.mark.parametrize("bad", [torch.zeros(118), torch.zeros(1, 119), torch.zeros(119, dtype=torch.float64)])
def test_bind_refuses_vectors_of_wrong_shape_or_type(bad):
    space, good = ParameterSpace(net()), torch.zeros(119)
    for pair in ((bad, good), (good, bad)):
        with pytest.raises(ValueError, match="bind needs a float32"):
            space.bind(net(), *pair)


# ---- training through the views ----------------------------------------------------------------------------------


def test_gradients_stay_views_through_training():
    module = net()
    space = ParameterSpace(module)
    vector, gradient = space.read(module), torch.zeros(space.size)
    space.bind(module, vector, gradient)
    plain = net()
    plain.load_state_dict(module.state_dict())
    x = torch.randn(5, 2, 4, 4)
    for _ in range(3):
        gradient.zero_()
        run(module, x).square().sum().backward()
        plain.zero_grad()
        run(plain, x).square().sum().backward()
        for (name, p), q in zip(module.named_parameters(), plain.parameters(), strict=True):
            assert p.grad.data_ptr() == space.view(gradient, name).data_ptr()
            assert p.data_ptr() == space.view(vector, name).data_ptr()
            torch.testing.assert_close(space.view(gradient, name), q.grad, rtol=1e-5, atol=1e-5)
    assert module.features[0].weight.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
        (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)), (2, 4, 4)),
    ],
)
def test_flat_sgd_is_torch_sgd(make, shape):
    torch.manual_seed(3)
    module = make()
    plain = copy.deepcopy(module)
    space = ParameterSpace(module)
    start = space.read(module)
    vector, gradient = start.clone(), torch.zeros(space.size)
    space.bind(module, vector, gradient)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    x, y = torch.randn(8, *shape), torch.arange(8) % 3
    for _ in range(3):
        gradient.zero_()
        F.cross_entropy(module(x), y).backward()
        vector.add_(gradient, alpha=-0.1)
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    assert (vector - start).abs().max() > 0.01
    torch.testing.assert_close(vector, space.read(plain), rtol=0, atol=3e-7)


# ---- segments ----------------------------------------------------------------------------------------------------


def test_default_segments_cover_the_vector_and_end_in_the_head():
    module = net()
    space = ParameterSpace(module)
    assert space.segments == {"features": slice(0, 57), "classifier": slice(57, 119)}
    assert space.head == slice(109, 119)
    assert default_segments(nn.Linear(2, 2)) == {"classifier": ["weight", "bias"]}


def test_head_is_the_last_linear_of_the_classifier_and_lies_last():
    module = Bag(classifier=nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2), nn.LayerNorm(2)), body=nn.Linear(3, 3))
    space = ParameterSpace(module)
    assert space.names[-2:] == ("classifier.1.weight", "classifier.1.bias")
    assert space.head == slice(12 + 12 + 4, 12 + 12 + 4 + 8)
    assert space.segments["features"] == slice(0, 12)


def test_a_classifier_without_parameters_is_none():
    module = Bag(body=nn.Linear(3, 3), top=nn.Linear(3, 2), classifier=nn.Identity())
    assert ParameterSpace(module).segments == {"features": slice(0, 12), "classifier": slice(12, 20)}


def test_without_a_linear_layer_there_is_no_head():
    space = ParameterSpace(nn.Conv2d(1, 2, 3))
    assert space.head == slice(20, 20)
    assert list(space.segments) == ["features"]


def test_own_segments_by_prefix_or_declared_by_the_module():
    module = net()
    groups = {"b": ["classifier.2", "features"], "a": "classifier.0"}
    space = ParameterSpace(module, groups)
    assert space.segments == {"b": slice(0, 67), "a": slice(67, 119)}
    assert space.head == slice(57, 67)
    module.segments = groups
    assert ParameterSpace(module).segments == space.segments
    del module.segments
    module.segments = nn.ModuleList([nn.Linear(1, 1)])  # a layer of that name is no declaration
    assert list(ParameterSpace(module).segments) == ["features", "classifier"]


def test_prefixes_end_at_a_dot():
    module = Bag(fc1=nn.Linear(1, 1), fc10=nn.Linear(1, 1))
    assert ParameterSpace(module, {"a": ["fc1"], "b": ["fc10"]}).segments == {"a": slice(0, 2), "b": slice(2, 4)}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": ["features"]}, "leave out"),
        ({}, "leave out"),
        ({"a": [""], "b": ["classifier"]}, "in segment 'a' and in 'b'"),
        ({"a": ["feature"], "b": ["classifier"]}, "no parameter lies under 'feature'; did you mean 'features'"),
        ({"a": [""], "b": []}, r"\['b'\] hold no trainable parameter"),
        ({"head": ["classifier"], "a": ["features"]}, "segment 'head' is always the last linear layer"),
        (
            {"a": ["features", "classifier.0", "classifier.2.weight"], "b": ["classifier.2.bias"]},
            "belongs to one segment",
        ),
    ],
)
def test_segments_that_do_not_fit_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        ParameterSpace(net(), groups)


def test_a_segment_called_head_may_be_the_head():
    space = ParameterSpace(net(), {"body": ["features", "classifier.0"], "head": ["classifier.2"]})
    assert space.segments["head"] == space.head == slice(109, 119)


def test_slices_join_neighbours():
    module = Bag(a=parameter(2), b=parameter(3), c=parameter(4))
    space = ParameterSpace(module, {n: [n] for n in "abc"})
    assert space.slices(None) == [slice(0, 9)]
    assert space.slices(["c", "a"]) == [slice(0, 2), slice(5, 9)]
    assert space.slices(["b", "a"]) == [slice(0, 5)]
    assert space.slices([]) == []
    with pytest.raises(KeyError, match=r"no segment 'd'; this model has \['a', 'b', 'c', 'head'\]"):
        space.slices(["d"])
    assert ParameterSpace(net()).slices(["head", "classifier"]) == [slice(57, 119)]


def test_join_and_part():
    module = Bag(a=parameter(2), b=parameter(3), head=nn.Linear(1, 2))
    space = ParameterSpace(module, {"a": ["a"], "rest": ["b", "head"]})
    vector = torch.arange(9.0)
    parts = {"rest": vector[2:], "a": vector[:2]}
    assert torch.equal(space.join(parts), vector)
    stacked = {n: torch.stack([p, -p]) for n, p in parts.items()}
    assert torch.equal(space.join(stacked), torch.stack([vector, -vector]))
    assert space.part(Entry(vector), "rest").tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert space.part(Entry(vector), "head").tolist() == [5, 6, 7, 8]
    mixed = Entry(torch.cat([vector[2:], vector[:2]]), segments=("rest", "a"))
    assert space.part(mixed, "a").tolist() == [0, 1]
    assert space.part(mixed, "head").tolist() == [5, 6, 7, 8]
    assert space.part(Entry(vector), "a").data_ptr() == vector.data_ptr()
    assert (space.size_of(None), space.size_of(["rest"]), space.size_of([])) == (9, 7, 0)
    for wrong in ({"a": vector[:2]}, {**parts, "b": vector}):
        with pytest.raises(ValueError, match="exactly once"):
            space.join(wrong)
    with pytest.raises(ValueError, match="segment 'a' has 2 parameters"):
        space.join({**parts, "a": vector[:1]})
    with pytest.raises(KeyError, match=r"covers \['a'\], not 'head'"):
        space.part(Entry(vector[:2], segments=("a",)), "head")
    with pytest.raises(KeyError, match=r"covers \[\], not 'a'"):
        space.part(Entry(vector, segments=()), "a")
    with pytest.raises(ValueError, match=r"\['a'\] has 2 parameters; got a vector of \(3,\)"):
        space.part(Entry(vector[:3], segments=("a",)), "a")
    with pytest.raises(KeyError, match="head"):
        space.size_of(["head"])


# ---- odd parameters ----------------------------------------------------------------------------------------------


def test_frozen_parameters_are_in_no_vector():
    module = net()
    module.features.requires_grad_(False)
    space = ParameterSpace(module)
    assert space.segments == {"classifier": slice(0, 62)}
    before = module.features[0].weight.clone()
    space.bind(module, torch.zeros(62), torch.zeros(62))
    assert torch.equal(module.features[0].weight, before)


def tied():
    module = Bag(embed=nn.Embedding(3, 4), body=nn.Linear(4, 4), classifier=nn.Linear(4, 3, bias=False))
    module.classifier.weight = module.embed.weight
    return module


def test_a_tied_parameter_lies_in_the_vector_once():
    module = tied()
    space = ParameterSpace(module)
    assert space.segments == {"features": slice(0, 20), "classifier": slice(20, 32)}
    assert space.head == slice(20, 32)
    vector, gradient = space.read(module), torch.zeros(32)
    again = copy.deepcopy(module)
    space.bind(again, vector, gradient)
    assert again.embed.weight is again.classifier.weight
    again.classifier(again.body(again.embed(torch.tensor([0, 2])))).sum().backward()
    module.classifier(module.body(module.embed(torch.tensor([0, 2])))).sum().backward()
    assert torch.equal(space.view(gradient, "classifier.weight"), module.embed.weight.grad)
    assert torch.equal(space.view(vector, "classifier.weight"), space.view(vector, "embed.weight"))


def test_a_tied_parameter_in_two_segments_is_refused():
    with pytest.raises(ValueError, match=r"'embed.weight' \(tied: .*are one parameter\) is in segment 'a' and in 'b'"):
        ParameterSpace(tied(), {"a": ["embed", "body"], "b": ["classifier"]})
    assert ParameterSpace(tied(), {"b": ["classifier"], "a": ["body"]}).segments["b"] == slice(0, 12)


def test_an_untied_copy_is_refused():
    space, module = ParameterSpace(tied()), tied()
    module.classifier.weight = parameter(3, 4)
    with pytest.raises(ValueError, match=r"not in this space: \['classifier.weight'\]"):
        space.read(module)


@pytest.mark.parametrize("trained", [True, False])
def test_parameters_that_share_memory_are_refused(trained):
    base = torch.zeros(10)
    one, two = nn.Parameter(base[:6]), nn.Parameter(base[5:], requires_grad=trained)
    with pytest.raises(ValueError, match="share memory"):
        ParameterSpace(Bag(one=one, two=two))
    ParameterSpace(Bag(one=nn.Parameter(base[:5]), two=nn.Parameter(base[5:])))


def test_lazy_and_double_parameters_are_refused():
    with pytest.raises(ValueError, match="lazy"):
        ParameterSpace(Bag(a=nn.LazyLinear(3)))
    with pytest.raises(ValueError, match=r"'a' is torch.float64; trainable parameters must be float32"):
        ParameterSpace(Bag(a=nn.Parameter(torch.zeros(2, dtype=torch.float64))))
    frozen = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=False)
    assert ParameterSpace(Bag(a=parameter(1), b=frozen)).size == 1


def test_scalars_and_empty_parameters():
    module = Bag(scale=nn.Parameter(torch.tensor(2.0)), none=parameter(0, 3), last=parameter(0))
    space = ParameterSpace(module)
    assert space.size == 1
    vector, gradient = space.read(module), torch.zeros(1)
    space.bind(module, vector, gradient)
    (module.scale**2).backward()
    assert gradient.tolist() == [4.0]
    assert space.view(torch.zeros(5, 1), "scale").shape == (5,)
    assert space.view(torch.zeros(5, 1), "none").shape == (5, 0, 3)


def test_read_is_float32_whatever_the_default_type():
    module = net()
    space = ParameterSpace(module)
    torch.set_default_dtype(torch.float64)
    try:
        assert space.read(module).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


# ---- buffers -----------------------------------------------------------------------------------------------------


def test_buffers_keep_their_types():
    module = Bag(norm=nn.BatchNorm1d(2))
    module.register_buffer("rounded", torch.tensor([0.5, -3.0], dtype=torch.bfloat16))
    module.register_buffer("flags", torch.tensor([True, False]))
    module.register_buffer("none", None)
    module.register_buffer("place", torch.zeros(3), persistent=False)
    module.register_buffer("empty", torch.zeros(0))
    space = BufferSpace(module)
    read = space.read(module)
    assert read.floats.dtype == torch.float32
    assert read.floats.tolist() == [0.5, -3.0, 0, 0, 1, 1]
    assert read.counters.dtype == torch.int64
    assert read.counters.tolist() == [1, 0, 0]
    big = 2**53 + 1  # a float64 would lose its last bit
    space.write(module, Buffers(torch.arange(6.0), torch.tensor([0, 1, big])))
    assert module.rounded.tolist() == [0, 1]
    assert module.rounded.dtype == torch.bfloat16
    assert module.norm.running_mean.tolist() == [2, 3]
    assert module.flags.tolist() == [False, True]
    assert module.flags.dtype == torch.bool
    assert module.norm.num_batches_tracked.dtype == torch.int64
    assert int(module.norm.num_batches_tracked) == big
    assert space.read(module).counters.tolist() == [0, 1, big]


def test_reading_buffers_copies_them():
    module = nn.BatchNorm1d(2)
    space = BufferSpace(module)
    read = space.read(module)
    module(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    assert read.floats.tolist() == [0, 0, 1, 1]
    assert int(read.counters) == 0
    torch.testing.assert_close(module.running_mean, torch.tensor([0.2, 0.4]))
    space.write(module, read)
    assert module.running_mean.tolist() == [0, 0]
    space.write(module, Buffers())
    assert module.running_var.tolist() == [1, 1]


def test_buffers_of_wrong_size_are_refused():
    space = BufferSpace(nn.BatchNorm1d(2))
    for size in (3, 5):
        with pytest.raises(ValueError, match="take 4 numbers"):
            space.write(nn.BatchNorm1d(2), Buffers(torch.zeros(size)))
    with pytest.raises(ValueError, match="take 0 numbers"):
        BufferSpace(nn.Linear(1, 1)).write(nn.Linear(1, 1), Buffers(torch.zeros(2)))


def test_a_module_without_buffers():
    module = nn.Linear(2, 2)
    space = BufferSpace(module)
    assert not space
    assert space.read(module) == Buffers()
    space.write(module, Buffers())


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_buffers_that_cannot_travel_are_refused(dtype):
    module = Bag(layer=nn.Linear(1, 1))
    module.register_buffer("table", torch.zeros(2, dtype=dtype))
    with pytest.raises(ValueError, match=r"buffer 'table' is torch\.\w+64.*persistent=False"):
        BufferSpace(module)


def test_buffers_of_frozen_layers_are_constants():
    module = Bag(body=nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, affine=False)), norm=nn.BatchNorm1d(2))
    module.body.requires_grad_(False)
    assert frozen_modules(module) == ["body"]
    assert BufferSpace(module).floats == ["norm.running_mean", "norm.running_var"]
    module.requires_grad_(False)
    assert frozen_modules(module) == [""]
    assert frozen_modules(nn.ReLU()) == []
