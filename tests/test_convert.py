"""Each odd way in which a model can act on its activations, and what the transforms make of it."""

import contextlib
import copy
import functools
import io
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from htaf.core.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough
from htaf.program.packed import pack
from htaf.transform import convert
from htaf.transform.convert import conversion, harden, sites
from htaf.transform.spiking import IF, LIF

replace = functools.partial(convert.replace, where="*")  # whatever it is: test_stays.py is about the default
X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Owner(nn.Module):
    """Has a child, so that it is no activation itself."""

    def __init__(self):
        super().__init__()
        self.child = nn.Identity()


class Calls(nn.Module):
    """One call of each spelling, around a child that acts too."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.GELU()

    def forward(self, x):
        x = F.relu(self.linear(x) - 0.1)
        x = self.act(x)
        x = torch.sigmoid(x) - 0.5
        x = x.tanh() * 2
        return F.silu(input=x)


class Nested(nn.Module):
    """An owner whose child is an owner of the same kind of call."""

    def __init__(self):
        super().__init__()
        self.before, self.after = Inner(0.3), Inner(-0.2)

    def forward(self, x):
        x = torch.relu(self.before(x) - 0.4)
        return self.after(x).relu() - 0.5


class Inner(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift, self.kept = shift, nn.ReLU()

    def forward(self, x):
        return F.relu(self.kept(x + 1) - 1 + self.shift)


class Discards(Owner):
    """Throws away what the in-place functions return."""

    def forward(self, x):
        x = x * 1.0
        torch.relu_(x)
        x = x - 0.5
        F.leaky_relu(x, 0.1, inplace=True)
        x = x - 0.2
        x.sigmoid_()
        return x


class DiscardsMethods(Owner):
    def forward(self, x):
        x = x * 1.0
        x.relu_()
        x = x - 0.5
        F.relu(x, inplace=True)
        return x - 0.2


class DiscardsModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.polite = nn.ReLU(inplace=True), nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.polite(x - 0.5)
        x = x - 0.3
        self.act(x)
        return x


class Looping(Owner):
    def __init__(self, times):
        super().__init__()
        self.times = times

    def forward(self, x):
        for _ in range(self.times):
            x = F.relu(x) - 0.25
        return x


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), self.relu) for _ in range(2)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.relu(x - 0.5)


class Dependent(Owner):
    """The number of calls, or their kind, depends on the data."""

    def forward(self, x):
        if x.sum() > 100:
            x = torch.tanh(x)
        x = F.relu(x)
        return F.relu(x - 1) if x.sum() > 10 else x


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner(0.0)

    def forward(self, x):
        x = self.inner(F.relu(x))
        if x.shape[0] == 1:
            raise KeyError("half-way")
        return F.relu(x - 0.5)


class FailingInner(nn.Module):
    def forward(self, x):
        x = F.relu(x)
        raise ValueError("inside")


class Catches(nn.Module):
    """A child fails half-way, the owner carries on."""

    def __init__(self):
        super().__init__()
        self.inner = FailingInner()

    def forward(self, x):
        with contextlib.suppress(ValueError):
            self.inner(x)
        return F.relu(x) - 0.5


class Normalised(nn.Module):
    """Childless and without parameters, yet not elementwise."""

    def forward(self, x):
        x = F.relu(x)
        return x / (1 + x.sum(-1, keepdim=True))


class Attribute(Owner):
    def __init__(self, function):
        super().__init__()
        self.activation = function

    def forward(self, x):
        return self.activation(x - 0.1)


def swish(x):
    return x * x.sigmoid()


class OwnParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return F.relu(x * F.softplus(self.scale))


def binary(y):
    return bool(((y == 0) | (y == 1)).all())


def names(found):
    return [site.name for site in found]


# ---- sites ----


def test_every_spelling_of_a_call_is_one_site_in_order_of_run():
    found = sites(Calls(), X)
    assert [(s.name, s.kind, s.calls, s.functional, s.index) for s in found] == [
        ("relu_0", "relu", 1, True, 0),
        ("act", "gelu", 1, False, 0),
        ("sigmoid_1", "sigmoid", 1, True, 1),
        ("tanh_2", "tanh", 1, True, 2),
        ("silu_3", "silu", 1, True, 3),
    ]
    assert found[0].label == "relu_0 (relu, functional, 1 call)"
    assert found[1].label == "act (gelu, 1 call)"


def test_softmax_glu_attention_and_modules_that_mix_elements_are_no_module_sites():
    model = nn.Sequential(
        nn.Softmax(-1), nn.GLU(), nn.Dropout(), nn.MultiheadAttention(4, 2), nn.Flatten(), Normalised()
    )
    with pytest.raises(ValueError, match=r"no activation site[\s\S]*5 \(Normalised\): pass example="):
        replace(model, HTAF)
    assert [s.label for s in sites(Normalised(), X)] == ["relu_0 (relu, functional, 1 call)"]


def test_squashing_a_parameter_is_no_site():
    assert names(sites(OwnParameter(), X)) == ["relu_0"]
    assert binary(harden(replace(OwnParameter(), HTAF, example=X))(X))


def test_htaf_modules_are_sites_of_their_own_kind():
    model = nn.Sequential(HTAF(), ScaledSigmoid(), StraightThrough(), Heaviside())
    assert [s.kind for s in sites(model, X)] == ["htaf", "scaled_sigmoid", "straight_through", "heaviside"]


def test_sites_that_never_ran_come_last():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused, self.used = nn.ReLU(), nn.Tanh()

        def forward(self, x):
            return self.used(x)

    assert [(s.path, s.calls) for s in sites(Half(), X)] == [("used", 1), ("unused", 0)]


def test_looking_leaves_no_trace():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout())
    model[1].train()
    before = copy.deepcopy(model.state_dict())
    flags, seed = [m.training for m in model.modules()], torch.get_rng_state()
    sites(model, X)
    replace(model, HTAF, example=X)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert flags == [m.training for m in model.modules()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert type(model[2]) is nn.ReLU
    assert model[2].inplace
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(torch.get_rng_state(), seed)


def test_example_may_be_a_tensor_a_tuple_or_a_mapping():
    assert names(sites(Calls(), X)) == names(sites(Calls(), (X,))) == names(sites(Calls(), {"x": X}))
    assert names(sites(Calls(), [(X, None), X])) == names(sites(Calls(), X))
    array = r"expected tensors in example, got ndarray: give torch.as_tensor"
    wrongs = [(X.numpy(), array), ({"x": X.numpy()}, array), ([X.numpy()], array)]
    wrongs += [(3, r"example must be a tensor.*got int"), ([], "an example of one batch or more, got none")]
    for wrong, words in wrongs:
        with pytest.raises((TypeError, ValueError), match=words):
            sites(Calls(), wrong)
    with pytest.raises(TypeError, match=r"arguments of Calls.forward\(.*'x'; a model that takes one mapping"):
        sites(Calls(), {"y": X})
    with pytest.raises(TypeError, match=r"arguments of Calls.forward\(.*too many positional arguments$"):
        sites(Calls(), (X, X))


# ---- replace ----


def test_functional_calls_become_children_in_their_order():
    model = Calls()
    new = replace(model, HTAF, example=X)
    assert [n for n, m in new.named_modules() if isinstance(m, HTAF)] == [
        "act",
        "relu_0",
        "sigmoid_1",
        "tanh_2",
        "silu_3",
    ]
    step = [HTAF() for _ in range(5)]
    y = step[1](step[0](model.linear(X) - 0.1))
    assert torch.equal(new(X), step[4](step[3](step[2](y) - 0.5) * 2))
    assert [s.calls for s in sites(new, X)] == [1] * 5
    assert {s.kind for s in sites(new, X)} == {"htaf"}
    assert torch.equal(new(X), new(X))


def test_original_is_untouched_and_keys_stay():
    model = Calls()
    before = model(X)
    new = replace(model, HTAF, example=X)
    exact = harden(new)
    assert torch.equal(model(X), before)
    assert list(model.state_dict()) == list(new.state_dict()) == list(exact.state_dict())
    assert not any(isinstance(m, (HTAF, Heaviside)) for m in model.modules())


@pytest.mark.parametrize(("where", "act"), [("relu_0", (torch.tanh, torch.relu)), ("relu_1", (torch.relu, torch.tanh))])
def test_calls_of_a_child_are_never_taken_for_the_owners(where, act):
    model = Nested()
    new = replace(model, nn.Tanh, where=where, example=X)  # only one call of the outermost owner
    assert torch.equal(new(X), act[1](model.after(act[0](model.before(X) - 0.4))) - 0.5)


def test_owner_inside_an_owner():
    model = Nested()
    expected = ["before.kept", "before.relu_0", "relu_0", "after.kept", "after.relu_0", "relu_1"]
    assert names(sites(model, X)) == expected
    # modules that call torch's own functions: their calls must not reach the owners around them
    s = torch.sigmoid
    for where, act in (("*", s), (lambda site: site.path == "", torch.relu)):
        new = replace(model, nn.Sigmoid, where=where, example=X)
        inner = lambda x, shift, act=act: act(act(x + 1) - 1 + shift)  # noqa: E731
        torch.testing.assert_close(new(X), s(inner(s(inner(X, 0.3) - 0.4), -0.2)) - 0.5)
        assert names(sites(new, X)) == expected


def test_owner_that_calls_itself():
    class Recursive(Owner):
        def forward(self, x, depth=1):
            x = F.relu(x)
            return self(x - 0.5, depth - 1) if depth else x

    new = replace(Recursive(), nn.Sigmoid, example=X)
    torch.testing.assert_close(new(X), torch.sigmoid(torch.sigmoid(X) - 0.5))


def test_replacing_the_rest_later():
    model = Calls()
    new = replace(model, HTAF, where="sigmoid_1", example=X)
    assert names(conversion(new).left) == ["relu_0", "act", "tanh_2", "silu_3"]
    rest = replace(new, HTAF, where=lambda site: site.kind != "htaf", example=X)
    assert torch.equal(rest(X), replace(model, HTAF, example=X)(X))
    assert set(rest._modules) == {"linear", "act", "relu_0", "sigmoid_1", "tanh_2", "silu_3"}


def test_in_place_calls_whose_result_is_thrown_away():
    new = replace(Discards(), HTAF, example=X)
    h = HTAF()
    assert torch.equal(new(X), h(h(h(X) - 0.5) - 0.2))
    x = X.clone().requires_grad_()
    y = X.clone().requires_grad_()
    new(x).sum().backward()
    h(h(h(y) - 0.5) - 0.2).sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert torch.equal(harden(new)(X), (((X >= 0).float() - 0.5 >= 0).float() - 0.2 >= 0).float())


def test_in_place_module_whose_result_is_thrown_away():
    found = {site.path: site for site in sites(DiscardsModule(), X)}
    assert found["act"].in_place
    assert not found["polite"].in_place
    new = replace(DiscardsModule(), HTAF, example=X)
    h = HTAF()
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    out, expected = new(x), h(h(y - 0.5) - 0.3)
    assert torch.equal(out, expected)
    out.sum().backward()
    expected.sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert isinstance(new.act, HTAF)
    for made in (harden(new), harden(copy.deepcopy(new)), pickle.loads(pickle.dumps(harden(new)))):
        assert binary(made(X))
        assert isinstance(made.act, Heaviside)


def test_a_line_that_runs_behind_the_same_layers_is_one_site_however_often():
    (site,) = sites(Looping(3), X)
    assert (site.name, site.calls) == ("relu_0", 3)
    new, h = replace(Looping(3), HTAF, example=X), HTAF()
    for times in (4, 2, 0):
        new.times, y = times, X
        for _ in range(times):
            y = h(y) - 0.25
        assert torch.equal(new(X), y)
        assert torch.equal(pickle.loads(pickle.dumps(new))(X), y)


class Levels(Owner):
    """A loop over layers inside one over levels, as the head of a detector has it."""

    def __init__(self, layers=2, levels=2):
        super().__init__()
        self.layers, self.levels = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers)), levels

    def forward(self, x):
        found = []
        for level in range(self.levels):
            y = x + level
            for layer in self.layers:
                y = F.relu(layer(y))
            found.append(y)
        return found


def test_a_line_in_a_loop_over_layers_is_one_site_for_each_of_them():
    torch.manual_seed(0)
    model = Levels()
    assert [(site.name, site.calls) for site in sites(model, X)] == [("relu_0", 2), ("relu_1", 2)]
    new = replace(model, HTAF, example=X)
    new.relu_0, new.relu_1 = nn.Sigmoid(), nn.Tanh()
    for new.levels in (3, 1, 2):
        y = [torch.tanh(new.layers[1](torch.sigmoid(new.layers[0](X + level)))) for level in range(new.levels)]
        assert all(torch.equal(a, b) for a, b in zip(new(X), y, strict=True))
    new.levels, layers = 1, new.layers
    steps = dict(zip(layers, (torch.sigmoid, torch.tanh), strict=True))
    for order in ("1", "10", "010", "1100"):  # the layer tells which step it is
        new.layers = nn.ModuleList(layers[int(i)] for i in order)
        y = X
        for layer in new.layers:
            y = steps[layer](layer(y))
        assert torch.equal(new(X)[0], y)
    other = nn.Linear(4, 4)  # nothing tells of one that came later
    for some in ([other, layers[1]], [layers[0], layers[1], other], [layers[1], other]):
        new.layers = nn.ModuleList(some)
        with pytest.raises(RuntimeError, match=r"line 5 of it ran behind .*, or a layer that the example has not"):
            new(X)


def test_layers_are_known_in_copies_and_where_they_are_wrapped_or_put_elsewhere():
    class Wrapped(nn.Module):  # as LoRA wraps
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x)

    torch.manual_seed(0)
    new = replace(Levels(levels=1), HTAF, example=X)
    new.relu_0, new.relu_1 = nn.Sigmoid(), HTAF()
    outer = replace(nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), new), HTAF, example=X)
    for model in (copy.deepcopy(new), pickle.loads(pickle.dumps(new)), harden(new).eval(), new, outer[1]):
        first, second = model.layers
        model.layers = nn.ModuleList([Wrapped(second), first])
        assert torch.equal(model(X)[0], model.relu_0(first(model.relu_1(second(X)))))
        model.layers = nn.ModuleList([second, Wrapped(first), first])
        assert torch.equal(model(X)[0], model.relu_0(first(model.relu_0(first(model.relu_1(second(X)))))))


class Functional(Owner):
    """Layers without modules, between which nothing tells."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(4, 4) for _ in range(2))

    def forward(self, x):
        for weight in self.weights:
            x = F.relu(F.linear(x, weight))
        return [x]


def test_where_no_layer_tells_there_is_one_step():
    new = replace(Functional(), HTAF, example=X)
    new.relu_0, (a, b) = nn.Sigmoid(), new.weights
    assert torch.equal(new(X)[0], torch.sigmoid(F.linear(torch.sigmoid(F.linear(X, a)), b)))
    new.weights = nn.ParameterList([a])
    assert torch.equal(new(X)[0], torch.sigmoid(F.linear(X, a)))


def test_shared_activation_stays_one_module():
    model = Shared()
    (site,) = sites(model, X)
    assert (site.path, site.calls, site.aliases) == ("relu", 3, ("blocks.0.1", "blocks.1.1"))
    assert site.label == "relu (relu, 3 calls), also blocks.0.1, blocks.1.1"
    made = []
    new = replace(model, lambda: made.append(HTAF()) or made[-1])
    assert len(made) == 1
    assert new.relu is new.blocks[0][1] is new.blocks[1][1] is made[0]
    exact = harden(new)
    assert exact.relu is exact.blocks[0][1] is exact.blocks[1][1]
    assert names(conversion(replace(model, HTAF, where="blocks.1.*")).replaced) == ["relu"]


def test_calls_that_depend_on_the_data_are_told_by_their_place_and_never_guessed():
    new = replace(Dependent(), HTAF, example=X).eval()
    assert new(X).shape == X.shape
    with pytest.raises(RuntimeError, match=r"but there was tanh in Dependent.forward, line 2 of it"):
        new(X + 100)
    few = replace(Dependent(), HTAF, example=X + 3)
    assert torch.equal(few(X - 100), HTAF()(X - 100))


def test_a_call_that_only_training_makes_is_named_and_left():
    class Auxiliary(Owner):
        def forward(self, x):
            y = F.relu(x)
            return (y, F.gelu(x)) if self.training else y

    new = replace(Auxiliary(), HTAF, example=X)
    with pytest.warns(UserWarning, match=r"gelu in .*Auxiliary.forward, line 2 of it did not run in the example"):
        y, aside = new(X)
    assert torch.equal(y, HTAF()(X))
    assert torch.equal(aside, F.gelu(X))
    assert torch.equal(new.eval()(X), HTAF()(X))


def test_a_place_that_is_reached_on_another_way():
    class Recomputed(Owner):
        def block(self, x):
            return F.relu(x)

        def forward(self, x):
            if self.training:
                return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
            return self.block(x)

    new = replace(Recomputed(), HTAF, example=X)
    assert torch.equal(new(X), HTAF()(X))
    assert torch.equal(new.eval()(X), HTAF()(X))


class Twice(nn.Module):
    def __init__(self, shared, attribute, values):
        super().__init__()
        self.shared, self.act, self.attribute, self.values = shared, nn.ReLU(), attribute, values

    def forward(self, x):
        setattr(self.shared, self.attribute, self.values[0])
        x = self.act(torch.cat([torch.as_tensor(y) for y in self.shared(x)]))
        setattr(self.shared, self.attribute, self.values[1])
        return self.shared(x)


def test_forwards_of_one_module_may_differ_where_it_is_clear_which_call_is_which():
    model = Twice(Levels(), "levels", (1, 3))
    assert [(s.name, s.calls) for s in sites(model, X)] == [("shared.relu_0", 4), ("shared.relu_1", 4), ("act", 1)]
    new = replace(model, HTAF, example=X)
    assert len(harden(new).eval()(X)) == 3
    assert len(torch.export.export(new.eval(), (X,)).module()(X)) == 3


@pytest.mark.parametrize("orders", ["01 012", "012 201", "01 21", "0 12"])
def test_forwards_that_run_layers_in_other_orders_are_told_by_their_layers(orders):
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    first, second = ([int(i) for i in order] for order in orders.split())
    model = Twice(Levels(levels=1), "layers", tuple(layers[:0].extend(layers[i] for i in o) for o in (first, second)))
    model.layers = layers
    ran = [i for i in range(3) if i in (*first, *second)]
    new = replace(model, HTAF, example=X)
    numbers = dict(zip(dict.fromkeys((*first, *second)), range(3), strict=False))
    steps = {i: (nn.Sigmoid(), nn.Tanh(), nn.Softplus())[i] for i in ran}
    for i, step in steps.items():
        setattr(new.shared, f"relu_{numbers[i]}", step)
    y = X
    for i in first:
        y = steps[i](new.layers[i](y))
    y = new.act(y)
    for i in second:
        y = steps[i](new.layers[i](y))
    assert torch.equal(new(X)[0], y)


def test_an_exception_half_way_leaves_the_next_forward_right():
    new = replace(Fails(), HTAF, example=X)
    expected = new(X)
    with pytest.raises(KeyError, match="half-way"):
        new(X[:1])
    assert torch.equal(new(X), expected)
    assert torch.equal(F.relu(torch.tensor([-1.0])), torch.zeros(1))


@pytest.mark.parametrize("where", ["*", lambda site: site.path == ""], ids=["both", "owner only"])
def test_an_exception_inside_a_child_that_the_owner_catches(where):
    new = replace(Catches(), HTAF, example=X, where=where)
    assert torch.equal(new(X), HTAF()(X) - 0.5)


@pytest.mark.parametrize(
    "function", [F.relu, torch.relu, torch.tanh, functools.partial(F.gelu, approximate="tanh"), swish, torch.relu_]
)
def test_function_attribute(function):
    model = Attribute(function)
    (site,) = sites(model, X)
    assert (site.path, site.calls, site.functional) == ("activation", 1, False)
    new = replace(model, HTAF)
    assert isinstance(new.activation, HTAF)
    assert model.activation is function
    assert torch.equal(new(X), HTAF()(X - 0.1))
    assert binary(harden(new)(X))


def test_other_attributes_are_left_alone():
    model = Attribute(F.relu)
    model.loss, model.make, model.forward_hook = F.mse_loss, nn.ReLU, print
    assert names(sites(model, X)) == ["activation"]


def test_where_by_class_path_glob_predicate_and_list():
    layers = [nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Tanh(), nn.ReLU()), nn.GELU(), nn.Linear(4, 4)]
    model = nn.Sequential(*layers)

    def chosen(where):
        return names(conversion(replace(model, HTAF, where=where)).replaced)

    assert chosen("*") == ["1", "2.0", "2.1", "3"]
    assert chosen(nn.ReLU) == ["1", "2.1"]
    assert chosen((nn.ReLU, nn.Tanh)) == ["1", "2.0", "2.1"]
    assert chosen("2.1") == ["2.1"]
    assert chosen("2.*") == ["2.0", "2.1"]
    assert chosen(lambda site: site.kind == "gelu") == ["3"]
    assert chosen(["2.0", nn.GELU, lambda site: site.path == "1"]) == ["1", "2.0", "3"]
    with pytest.raises(TypeError, match="where"):
        chosen([3])


def test_nothing_to_replace_says_what_there_was():
    with pytest.raises(ValueError, match=r"Sequential where '\*', got none: it has no activation site"):
        replace(nn.Sequential(nn.Linear(4, 4)), HTAF)
    with pytest.raises(ValueError, match=r"where 'relu', got none of these 1 sites:\s+1 \(relu\)"):
        replace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), HTAF, where="relu")
    with pytest.raises(ValueError, match=r"the model \(Looping\): pass example= to convert functional calls"):
        replace(Looping(2), HTAF)


def test_functional_calls_that_were_not_seen_are_hinted_at():
    model = nn.Sequential(Calls(), Shared())
    assert conversion(replace(model, HTAF)).hints == (
        "0 (Calls): pass example= to convert functional calls; its forward names activation functions",
    )
    assert conversion(replace(model, HTAF, example=X)).hints == ()

    class Aux(nn.Module):
        def __init__(self):
            super().__init__()
            self.aux, self.act = Looping(1), nn.ReLU()

        def forward(self, x):
            return self.act(self.aux(x) if self.training else x)

    (hint,) = conversion(replace(Aux(), HTAF, example=X)).hints
    assert hint == "aux (Looping): never ran in the example; its forward names activation functions"


def test_what_was_not_looked_at_is_told_once():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act, self.second, self.last = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(F.relu(self.second(self.act(self.first(x)))))

    told = r"^pass an example= that runs all of the model: activations may be left in the model \(Net\)$"
    with pytest.warns(UserWarning, match=told):
        new = replace(Net(), HTAF)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = harden(new).eval()
        assert str(conversion(exact)).startswith("replaced 1 of 1 activation sites that were seen\n")
        assert conversion(exact).unseen == conversion(new).unseen != ()
        pack(exact, X)
        whole = harden(replace(Net(), HTAF, example=X))
        pack(whole.eval(), X)
    assert (conversion(whole).hints, conversion(whole).unseen, len(conversion(whole).replaced)) == ((), (), 2)


def test_factory_must_make_a_module():
    with pytest.raises(TypeError, match=r"factory must make an nn\.Module, got function"):
        replace(nn.ReLU(), lambda: F.relu)
    with pytest.raises(TypeError, match=r"such as lambda: HTAF\(2, 11\), got a HTAF"):
        replace(nn.Sequential(nn.ReLU()), HTAF(2.0, 11.0))


def test_share_keeps_the_tensors_and_a_copy_does_not():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Looping(1), nn.Linear(4, 2)).eval()
    own, shared = replace(model, HTAF, example=X), replace(model, HTAF, example=X, share=True)
    exact = harden(shared, share=True)
    for a, b, c, d in zip(
        *(tuple(m.state_dict(keep_vars=True).values()) for m in (model, shared, exact, own)), strict=True
    ):
        assert a is b is c
        assert a is not d
    before, kept = shared(X), own(X)
    assert torch.equal(before, kept)
    with torch.no_grad():
        model[3].weight.neg_()
        model[1].running_mean += 1
    assert not torch.equal(shared(X), before)
    assert torch.equal(own(X), kept)


def test_harden_with_share_keeps_learnable_alphas():
    model = nn.Sequential(nn.Linear(4, 4), HTAF(torch.tensor(2.0), torch.tensor(11.0), learnable=True))
    exact = harden(model, share=True)
    assert exact.state_dict().keys() == model.state_dict().keys()
    assert exact[1].log_alpha0 is model[1].log_alpha0


def test_training_flags_and_hooks_carry_over():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Looping(1))
    model[1].eval()
    model[2].eval()
    seen = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(type(module)))
    new = replace(model, HTAF, example=X)
    assert [new.training, new[1].training, new[2].relu_0.training] == [True, False, False]
    seen.clear()
    harden(new)(X)
    assert seen == [Heaviside]
    assert new.train()[2].relu_0.training


# ---- every spelling, and what no module can stand in for ----


def own_function(name, forward):
    """An autograd Function of somebody's own."""
    parts = {"forward": staticmethod(forward), "backward": staticmethod(lambda ctx, grad: grad)}
    return type(name, (torch.autograd.Function,), parts)


Signing = own_function("Signing", lambda ctx, x: x.sign())
Tripling = own_function("Tripling", lambda ctx, x: 3 * x)


class Form(Owner):
    """One spelling of an activation between affine maps."""

    def __init__(self, call):
        super().__init__()
        self.call = [call]  # not kept in an attribute of its own, so the call and not the function is the site

    def forward(self, x):
        return self.call[0](x - 0.25) - 0.25


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    SCRIPTED = torch.jit.script(swish)


# what the report says, besides the ReLU that follows
REPORTS = {
    "Function of a sign": (
        Signing.apply,
        "left     0 (Form): autograd Function Signing, which calls sign; write it as a module",
    ),
    "Function that may be anything": (
        Tripling.apply,
        "note     0 (Form): runs the autograd Function Tripling, which is left as it is",
    ),
    "scripted function": (
        lambda x: SCRIPTED(x),
        "left     0 (Form): sigmoid in scripted, compiled or C++ code; call it from Python",
    ),
    "clamp to a range": (lambda x: x.clamp(0, 1), "note     0 (Form): also computes clamp, left as it is"),
    "where without a negative": (
        lambda x: torch.where(x + 9 > 0, x + 9, 0.0),
        "note     0 (Form): also computes where, left as it is",
    ),
    "guarded division": (lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1e-6), None),
    "normalize": (lambda x: F.normalize(x), None),
    "softmax": (lambda x: x.softmax(-1), None),
    "mask": (lambda x: x.masked_fill(torch.arange(4) > 2, 0.0), None),
    "the largest": (lambda x: x - x.max(-1, keepdim=True).values, None),
}


@pytest.mark.parametrize("form", REPORTS)
def test_nothing_is_left_without_a_word(form):
    call, line = REPORTS[form]
    new = replace(nn.Sequential(Form(call), nn.ReLU()), HTAF, example=X)
    new(X)
    head, *rest = str(conversion(new)).splitlines()
    left = line is not None and line.startswith("left")
    seen = " that were seen" if line is not None and line.startswith("note") else ""
    assert head == f"replaced 1 of {1 + left} activation sites{seen}"
    assert [text.strip() for text in rest[1:]] == ([] if line is None else [line])


@pytest.mark.parametrize(
    "layer", [nn.RNN(4, 4), nn.LSTM(4, 4), nn.GRU(4, 4), nn.GRUCell(4, 4), nn.RNNCell(4, 4), nn.GLU()], ids=repr
)
def test_fused_layers_are_named_with_and_without_an_example(layer):
    class First(nn.Module):
        def forward(self, x):
            return x[0] if isinstance(x, tuple) else x

    model = nn.Sequential(layer, First(), nn.ReLU())
    seen = replace(model, HTAF, example=X)
    name = type(layer).__name__
    expected = (f"0 ({name}): activations inside a fused layer; write its formula with modules",)
    for new in (seen, replace(model, HTAF), harden(seen)):
        assert conversion(new).beyond == expected
        assert str(conversion(new)).startswith("replaced 1 of 2 activation sites\n")


def test_calls_of_hooks_are_named_and_left_alone():
    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.linear.register_forward_pre_hook(lambda module, args: (F.relu(args[0]),))
            self.linear.register_forward_hook(lambda module, args, output: F.relu(output))

        def forward(self, x):
            return torch.tanh(self.linear(x))

    model = Hooked()
    new = replace(model, HTAF, example=X)
    assert str(conversion(new)).splitlines() == [
        "replaced 1 of 2 activation sites",
        "  replaced tanh_0 (tanh, functional, 1 call)",
        "  left     linear (Linear): relu called by a hook; make it a module",
    ]
    assert torch.equal(new(X), HTAF()(model.linear(X)))


def test_parametrizations_are_no_sites():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    for part in (nn.Sigmoid(), Form(torch.tanh)):
        nn.utils.parametrize.register_parametrization(model[0], "weight", part)
    for new in (replace(model, HTAF), replace(model, HTAF, example=X)):
        assert names(conversion(new).replaced) == ["1"]
        assert str(conversion(new)).splitlines()[0] == "replaced 1 of 1 activation sites"


# ---- an optimizer from before ----


def stepped(model, optimizer, times=2):
    """What is warned of when `model` is trained with `optimizer`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_an_optimizer_from_before_replace_is_told_once(times):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    old = torch.optim.Adam(model.parameters())
    stepped(model, old)
    for _ in range(times):
        model = replace(model, HTAF)
    (message,) = stepped(model, old)
    assert message == (
        "this Adam holds the parameters of a model from before htaf.replace, which returned a new model: that one has "
        "gradients and is not trained. Make the optimizer from its parameters()"
    )
    assert stepped(model, torch.optim.Adam(model.parameters())) == []


# ---- harden ----


@pytest.mark.parametrize(
    "make", [HTAF, ScaledSigmoid, StraightThrough, lambda: HTAF(torch.tensor(2.0), torch.tensor(11.0))]
)
def test_harden_makes_every_site_exact(make):
    new = replace(Calls(), make, example=X)
    exact = harden(new)
    assert exact.state_dict().keys() == new.state_dict().keys()
    assert {s.kind for s in sites(exact, X)} == {"heaviside"}
    assert len(conversion(exact).replaced) == 5
    assert binary(exact(X))
    assert {s.kind for s in sites(new, X)} != {"heaviside"}


@pytest.mark.parametrize(
    ("where", "exact"),
    [("1", [1]), ("[13]", [1, 3]), (ScaledSigmoid, [3]), (lambda site: site.kind == "htaf", [1]), (["3", "1"], [1, 3])],
)
def test_harden_some_steps(where, exact):
    net = nn.Sequential(nn.Linear(4, 4), HTAF(), nn.Linear(4, 4), ScaledSigmoid(2.0))
    made = harden(net, where=where, share=True)
    assert [i for i in (1, 3) if isinstance(made[i], Heaviside)] == exact
    assert made[2].weight is net[2].weight
    assert [site.path for site in conversion(made).replaced] == [str(i) for i in exact]
    assert all(isinstance(module, Heaviside) for module in harden(made)[1::2]) if len(exact) == 1 else True


@pytest.mark.parametrize(("where", "reached"), [("2.spike", [2]), ("0.*", [0]), (HTAF, [0, 2])])
def test_harden_reaches_the_steps_of_neurons(where, reached):
    net = nn.Sequential(LIF(HTAF()), nn.Linear(4, 4), IF(HTAF()))
    made = harden(net, where=where)
    assert [i for i in (0, 2) if isinstance(made[i].spike, Heaviside)] == reached


def test_harden_without_a_smooth_step_or_one_that_is_chosen_says_what_there_was():
    with pytest.raises(ValueError, match=r"where 'act', got none of these:\n  1 \(htaf\)"):
        harden(nn.Sequential(nn.Linear(4, 4), HTAF(), nn.ReLU()), where="act")
    with pytest.raises(ValueError, match=r"expected a smooth step.* got heaviside, relu: call htaf.replace"):
        harden(nn.Sequential(nn.ReLU(), Heaviside()))
    assert isinstance(harden(HTAF(bipolar=True)), Heaviside)
    assert harden(HTAF(bipolar=True)).bipolar


# ---- copies, training, compilation ----


def test_copies_pickles_and_checkpoints():
    new = replace(Nested(), HTAF, example=X)
    file = io.BytesIO()
    torch.save(new, file)
    file.seek(0)
    for again in (
        copy.deepcopy(new),
        copy.copy(new),
        pickle.loads(pickle.dumps(new)),
        torch.load(file, weights_only=False),
    ):
        assert torch.equal(again(X), new(X))
        assert isinstance(again, Nested)
        assert binary(harden(again)(X) + 0.5)
    duplicate = copy.deepcopy(new)
    duplicate.relu_1 = nn.Identity()
    assert not torch.equal(duplicate(X), new(X))  # the copy runs its own children


def compile_in_one_graph():
    """Every odd model, smooth and exact, values and gradients; True when all agree with eager."""
    models = (Calls(), Nested(), DiscardsMethods(), DiscardsModule(), Looping(2), Shared(), Attribute(F.relu))
    for model in models:
        smooth = replace(model, HTAF, example=X)
        for new in (smooth, harden(smooth), replace(model, nn.Sigmoid, example=X)):
            torch._dynamo.reset()
            results = []
            for run in (new, torch.compile(new, fullgraph=True, backend="aot_eager")):
                x = X.clone().requires_grad_()
                y = run(x)
                y.square().sum().backward() if y.requires_grad else None
                results.append((y.detach(), x.grad))
            torch.testing.assert_close(*results)
    varying = replace(Twice(Levels(), "levels", (1, 3)), HTAF, example=X)
    with pytest.raises(RuntimeError, match=r"they vary, which torch.compile cannot follow"):
        torch.compile(varying, fullgraph=True, backend="eager")(X)
    moved = replace(Levels(levels=1), HTAF, example=X)
    torch.testing.assert_close(torch.compile(moved, fullgraph=True, backend="eager")(X), moved(X))
    moved.layers = nn.ModuleList([moved.layers[1], moved.layers[0]])
    with pytest.raises(RuntimeError, match=r"call 0 ran behind layers.1"):
        torch.compile(moved, fullgraph=True, backend="eager")(X)
    return True


@pytest.mark.slow
def test_compiles_in_one_graph():
    # a process of its own: the shape checks that pytest adds to every function cannot be compiled
    code = "import test_convert; assert test_convert.compile_in_one_graph(); print('compiled')"
    run = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert run.stdout == "compiled\n", run.stderr


def test_what_cannot_be_converted_says_so():
    with pytest.raises(ValueError, match=r"expected a GraphModule that runs the forward of its class"):
        replace(torch.fx.symbolic_trace(Calls()), HTAF, example=X)
    on_instance = Looping(1)
    on_instance.forward = functools.partial(Looping.forward, on_instance)
    with pytest.raises(ValueError, match="forward set on the instance"):
        replace(on_instance, HTAF, example=X)
    with pytest.raises(ValueError, match=r"before torch\.compile"):
        replace(torch.compile(Calls()), HTAF, example=X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    account = conversion(replace(nn.Sequential(scripted, nn.ReLU()), HTAF, example=X))
    assert names(account.replaced) == ["1"]
    assert len(account.hints) == 1
    assert "scripted" in account.hints[0]


# ---- torch's transformers ----


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


class Step(nn.Module):
    def forward(self, x):
        return (x >= 0).float()


PADDED = torch.tensor([[False, False, False, True, True], [False] * 5])


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
def test_transformer_encoder_really_changes(encoder, training, mask):
    x = torch.randn(2, 5, 8)
    encoder.train(training)
    assert [str(s) for s in sites(encoder, x)] == [f"layers.{i}.activation (relu, 1 call)" for i in range(2)]
    smooth = replace(encoder, HTAF)
    exact = harden(smooth)
    seen = []
    for layer in exact.layers:
        layer.activation.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        plain, soft, hard = (m(x, src_key_padding_mask=mask) for m in (encoder, smooth, exact))
        reference = copy.deepcopy(exact)
        for layer in reference.layers:
            layer.activation = Step()
            layer.activation_relu_or_gelu = 0
        reference.use_nested_tensor = False
        assert torch.equal(reference(x, src_key_padding_mask=mask), hard)
    keep = slice(None) if mask is None else ~mask
    assert not torch.allclose(plain[keep], soft[keep], atol=1e-2)
    assert not torch.allclose(soft[keep], hard[keep], atol=1e-3)
    assert len(seen) == 2
    assert all(binary(output) for output in seen)
    assert encoder.layers[0].activation is F.relu


def test_fused_path_is_bypassed_without_hooks_too(encoder):
    x = torch.randn(2, 5, 8)
    exact = harden(replace(encoder, HTAF)).eval()
    with torch.no_grad():
        fused = exact(x)
    torch.testing.assert_close(exact(x), fused)  # with gradients torch never fuses


def test_transformer_decoder_keeps_its_activation_when_copied():
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).eval()
    example = (torch.randn(2, 5, 8), torch.randn(2, 4, 8))
    new = replace(model, HTAF, example=example)
    assert names(conversion(new).replaced) == ["encoder.layers.0.activation", "decoder.layers.0.activation"]
    for again in (copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
        assert isinstance(again.decoder.layers[0].activation, HTAF)
        assert torch.equal(again(*example), new(*example))
    exact = harden(new)
    assert isinstance(exact.decoder.layers[0].activation, Heaviside)
    assert isinstance(copy.deepcopy(exact).decoder.layers[0].activation, Heaviside)


def test_a_maximum_that_may_be_an_activation_stays():
    class Boxes(Owner):
        def forward(self, x, *others):
            for other in others:
                x = torch.max(x, other)  # ReLU of x where the other is 0
            return F.relu(x)

    (site,) = sites(Boxes(), (X, X - 1, torch.zeros(3, 4)))
    assert site.kind == "relu"
    new = replace(Boxes(), HTAF, example=(X, X - 1, torch.zeros(3, 4)))
    assert torch.equal(new(X, X + 2), HTAF()(X + 2))
    assert "an activation written with max" in str(conversion(new))


def test_looking_leaves_no_trace_when_the_example_does_not_fit():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(RuntimeError, match="shapes"):
        sites(model, torch.zeros(2, 7))
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(F.relu(torch.tensor([-1.0])), torch.zeros(1))


def test_replacing_the_rest_with_an_example_that_makes_other_calls_is_refused():
    class Early(Owner):
        def forward(self, x):
            x = F.gelu(F.relu(x))
            return F.relu(x - 1) if x.sum() > 10 else x

    new = replace(Early(), HTAF, where="relu_0", example=X + 3)
    with pytest.raises(ValueError, match=r"that an earlier replace left, gelu, relu, got gelu: give it the same"):
        replace(new, HTAF, example=X)


def test_calls_in_a_compiled_function_are_seen():
    compiled = torch.compile(swish, fullgraph=True)  # no mode can follow where it is really compiled
    new = replace(nn.Sequential(Form(lambda x: compiled(x)), nn.ReLU()), HTAF, example=X)
    assert names(conversion(new).replaced) == ["0.sigmoid_0", "1"]
