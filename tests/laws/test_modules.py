"""A model of any torch module: its parameters in order, in blocks where numbered children repeat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcost import models
from meshcost.errors import ModelError

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)


class Net(nn.Module):
    def __init__(self, inners, shared, at_top):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        blocks = nn.ModuleList(Block(4, inner) for inner in inners)
        if at_top:
            self.layers = blocks
        else:
            self.body = nn.Module()
            self.body.layers = blocks
        self.head = nn.Linear(4, 11, bias=False)
        if shared:
            self.head.weight = self.embed.weight


@given(st.lists(st.sampled_from([3, 5]), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_a_module_is_its_parameters_in_order(inners, shared, at_top):
    with torch.device("meta"):
        module = Net(inners, shared, at_top)
    module.embed.weight.requires_grad_(False)
    model = models.Model.from_module(module, name="net")
    assert [(w.name, tuple(map(int, w.shape)), w.trainable) for w in model.weights()] == [
        (name, tuple(weight.shape), weight.requires_grad) for name, weight in module.named_parameters()
    ]
    assert model.weights_total == sum(weight.numel() for weight in module.parameters())
    assert model.layers == (len(inners) if len(inners) > 1 else 0)
    assert len(model.kinds) == (len(set(inners)) if len(inners) > 1 else 0)
    assert model.attention is None


class Named:
    """A module as far as meshcost looks at one."""

    def __init__(self, *names, shared=False):
        weight = nn.Parameter(torch.zeros(2))
        self.named = [(name, weight if shared else nn.Parameter(torch.zeros(2))) for name in names]

    def named_parameters(self):
        yield from self.named


@pytest.mark.parametrize(
    ("names", "layers", "before"),
    [
        (["layers.0.experts.0.w", "layers.0.experts.1.w", "layers.0.experts.2.w", "layers.1.w"], 2, 0),
        (["a.0.w", "a.1.w", "b.0.w", "b.1.w", "b.2.w"], 3, 2),
        (["x.y.0.w", "x.y.1.w", "x.y.2.w", "z.0.w", "z.1.w"], 2, 3),
        (["a.0.w", "a.2.w"], 0, 2),
        (["a.1.w", "a.2.w"], 0, 2),
        (["a.0.w", "x", "a.1.w"], 0, 3),
        (["a.00.w", "a.01.w"], 0, 2),
    ],
)
def test_blocks_are_the_longest_run_at_the_shallowest_level_and_keep_their_names(names, layers, before):
    model = models.from_module(Named(*names))
    assert [weight.name for weight in model.weights()] == names
    assert (model.layers, len(model.before)) == (layers, before)


def test_a_weight_under_two_names_counts_once():
    assert models.from_module(Named("embed", "head", shared=True)).weights_total == 2


def test_a_module_without_numbered_children_is_one_unit():
    with torch.device("meta"):
        model = models.from_module(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    assert (model.layers, len(model.before), model.weights_total) == (0, 4, 13)


@pytest.mark.parametrize("module", [None, 3, nn.ReLU(), nn.LazyLinear(3)])
def test_a_module_without_known_weights_is_refused(module):
    with pytest.raises(ModelError):
        models.from_module(module)
