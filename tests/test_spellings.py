"""A hundred ways in which public code writes an activation: each is replaced as a whole, or named and left alone."""

import functools
import math
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from htaf.core.activations import HTAF
from htaf.transform import convert
from htaf.transform.convert import conversion, harden, sites

STEP = HTAF()
X = torch.linspace(-4.5, 4.0, 48).reshape(4, 12)
SQRT_2_BY_PI = math.sqrt(2 / math.pi)

replace = functools.partial(convert.replace, where="*")  # whatever it is: test_stays.py is about the default


class Calls(nn.Module):
    """Calls a function in its forward, after a linear layer."""

    def __init__(self, function: Callable[[Tensor], Tensor], size: int = 12) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.function = [function]  # in a list: not the function is the site, but what it calls
        with torch.no_grad():
            self.linear.weight.copy_(torch.eye(size))
            self.linear.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.function[0](self.linear(x))


class Holds(nn.Module):
    """Holds modules, and calls a function of them and x."""

    def __init__(self, function: Callable[..., Tensor], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.function, self.names = [function], list(modules)

    def forward(self, x: Tensor) -> Tensor:
        return self.function[0](x, *(self.get_submodule(name) for name in self.names))


class Own(nn.Module):
    """Calls a function of x and a parameter or buffer of its own."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], size: int, learned: bool = True) -> None:
        super().__init__()
        own = torch.full((size,), 1.5)
        self.register_parameter("own", nn.Parameter(own)) if learned else self.register_buffer("own", own)
        self.function = [function]

    def forward(self, x: Tensor) -> Tensor:
        return self.function[0](x, self.get_parameter("own") if self._parameters else self.get_buffer("own"))


class WrittenPReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.25]))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) - self.slope * F.relu(-x)


class SwishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return grad * (torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))))


class Written(nn.Module):
    """A module of its own without children."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = [function]

    def forward(self, x: Tensor) -> Tensor:
        return self.function[0](x)


class Kept(nn.Module):
    """Keeps a function in an attribute."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = function

    def forward(self, input: Tensor) -> Tensor:
        return self.act(input)


class SignFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad


def for_images(x: Tensor) -> Tensor:
    """Of four dimensions, or of two as here."""
    if x.ndim != 2:
        _images, _channels, _height, _width = x.shape
    return x * torch.sigmoid(1.702 * x)


def in_place(function: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        function(x)
        return x

    return run


def leaky_by_mask(x: Tensor) -> Tensor:
    y = x.clone()
    y[y < 0] *= 0.1
    return y


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.chunk(2, dim=-1)
    return a, b


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(SQRT_2_BY_PI * (x + 0.044715 * torch.pow(x, 3.0))))


def gated(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: act(halves(x)[0]) * halves(x)[1]


def shared_gate(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * x + (1 - gate) * x.flip(-1)


def overwritten(x: Tensor) -> Tensor:
    y = 0.5 * x
    x += torch.ones_like(x).cumsum(0)
    return y * (1 + torch.tanh(y))


H_SIGMOID = functools.partial(Holds, lambda x, relu: relu(x + 3) / 6)

WRITTEN = {  # by a bound or a mask: a site as a module, else named
    "clamp": lambda x: x.clamp(min=0),
    "clamp to infinity": lambda x: x.clamp(0.0, float("inf")),
    "clamp of a tensor": lambda x: x.clamp(min=torch.tensor(0.0)),
    "clamp_min": lambda x: torch.clamp_min(x, 0),
    "clamp in place": in_place(lambda x: x.clamp_(min=0)),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "max": lambda x: torch.max(x, torch.zeros_like(x)),
    "clamp to 6": lambda x: torch.clamp(x, 0, 6),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "where the other way": lambda x: torch.where(x < 0, torch.tensor(0.0), x),
    "leaky by where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "mul": lambda x: x * (x > 0),
    "mul in place": lambda x: operator.imul(x, x > 0),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0.0),
    "setitem": in_place(lambda x: operator.setitem(x, x < 0, 0)),
}
MODULES = (
    "ReLU ReLU6 LeakyReLU PReLU RReLU ELU SELU CELU GELU SiLU Mish Hardswish Hardsigmoid Hardshrink Hardtanh Sigmoid "
    "Tanh Softplus Softshrink Softsign LogSigmoid Tanhshrink"
)
FUNCTIONS = (
    "relu gelu silu mish elu selu celu leaky_relu leaky_relu_ rrelu relu6 hardswish hardsigmoid hardtanh hardshrink "
    "softplus softshrink softsign tanhshrink sigmoid logsigmoid"
)
# each is the whole activation
WHOLE: dict[str, Callable[[], nn.Module]] = {
    # modules
    **{f"nn.{name}": getattr(nn, name) for name in MODULES.split()},
    "nn.ReLU(inplace=True)": lambda: nn.ReLU(inplace=True),
    "nn.Threshold": lambda: nn.Threshold(0.0, 0.0),
    "nn.Sequential": lambda: nn.Sequential(nn.Identity(), nn.ReLU()),
    "nn.ModuleDict": lambda: Holds(lambda x, acts: acts["act"](x), acts=nn.ModuleDict({"act": nn.GELU()})),
    "nn.ModuleList": lambda: Holds(lambda x, acts: acts[0](x), acts=nn.ModuleList([nn.GELU()])),
    "module of one's own": lambda: Written(gelu_tanh),
    "module of one's own for images": lambda: Written(for_images),
    "module of a function that it keeps": lambda: Kept(F.gelu),
    "module around a module": lambda: Holds(lambda x, sigmoid: x * sigmoid(x), sigmoid=nn.Sigmoid()),
    "h_sigmoid around a module": lambda: H_SIGMOID(relu=nn.ReLU6()),
    "h_swish around two": lambda: Holds(lambda x, sigmoid: x * sigmoid(x), sigmoid=H_SIGMOID(relu=nn.ReLU6())),
    # functionals, methods, in place
    **{f"F.{name}": functools.partial(Calls, getattr(F, name)) for name in FUNCTIONS.split()},
    "F.prelu": lambda: Calls(lambda x: F.prelu(x, torch.ones(1))),
    "torch.sigmoid into another": lambda: Calls(lambda x: torch.sigmoid(x, out=torch.empty(4, 12))),
    "F.relu inplace": lambda: Calls(lambda x: F.relu(x, inplace=True)),
    "F.relu inplace, thrown away": lambda: Calls(in_place(lambda x: F.relu(x, inplace=True))),
    "F.threshold": lambda: Calls(lambda x: F.threshold(x, 0.0, 0.0)),
    "torch.threshold_": lambda: Calls(lambda x: torch.threshold_(x, 0.0, 0.0)),
    "torch.relu": lambda: Calls(torch.relu),
    "x.relu": lambda: Calls(lambda x: x.relu()),
    "x.relu_": lambda: Calls(in_place(lambda x: x.relu_())),
    "x.tanh": lambda: Calls(lambda x: x.tanh()),
    "partial": lambda: Calls(functools.partial(F.gelu, approximate="tanh")),
    "F.hardtanh to 6": lambda: Calls(lambda x: F.hardtanh(x, 0.0, 6.0)),
    "torch.relu_": lambda: Calls(lambda x: torch.relu_(x)),
    "torch.ops.aten.relu": lambda: Calls(lambda x: torch.ops.aten.relu(x)),
}
# a formula around activations: all of them stay, and the report says why
FORMULAS: dict[str, Callable[[], nn.Module]] = {
    "module of a product, beside a layer": lambda: Holds(
        lambda x, linear, sigmoid: x * sigmoid(x), linear=nn.Linear(2, 2), sigmoid=nn.Sigmoid()
    ),
    "swish with a parameter": lambda: Own(lambda x, beta: x * torch.sigmoid(beta * x), 1),
    "swish with a buffer": lambda: Own(lambda x, beta: x * torch.sigmoid(beta * x), 1, learned=False),
    "PReLU written out": WrittenPReLU,
    # SiLU
    "x * sigmoid(x)": lambda: Calls(lambda x: x * torch.sigmoid(x)),
    "x.mul_": lambda: Calls(lambda x: x.mul_(x.sigmoid())),
    "swish in float32": lambda: Calls(lambda x: (x.float() * torch.sigmoid(x.float())).to(x.dtype)),
    "swish of a beta": lambda: Calls(lambda x: x * torch.sigmoid(1.5 * x)),
    "swish after a ReLU6": lambda: Calls(lambda x: x * F.hardsigmoid(x)),
    # Mish, GELU
    "x * tanh(softplus(x))": lambda: Calls(lambda x: x * torch.tanh(F.softplus(x))),
    "mish by exp": lambda: Calls(lambda x: x * torch.tanh(torch.log1p(torch.exp(x)))),
    "gelu by tanh": lambda: Calls(gelu_tanh),
    "quick gelu": lambda: Calls(lambda x: x * torch.sigmoid(1.702 * x)),
    # the hard ones
    "x * relu6(x + 3) / 6": lambda: Calls(lambda x: x * F.relu6(x + 3) / 6),
    # others
    "log of a sigmoid": lambda: Calls(lambda x: torch.log(torch.sigmoid(x))),
    "relu * relu": lambda: Calls(lambda x: F.relu(x) * F.relu(x)),
    "x * relu(x)": lambda: Calls(lambda x: x * F.relu(x)),
    "leaky ReLU by two": lambda: Calls(lambda x: F.relu(x) - 0.1 * F.relu(-x)),
    "p * (1 - p)": lambda: Calls(lambda x: (lambda p: p * (1 - p))(torch.sigmoid(x))),
    # views of x
    "view_as": lambda: Calls(lambda x: x * x.view_as(x).sigmoid()),
    "a new axis, transposed": lambda: Calls(lambda x: (lambda h: h[None] * h[None].sigmoid())(x.T)[0].T),
    "sigmoid(x) * tanh(x)": lambda: Calls(lambda x: torch.sigmoid(x) * torch.tanh(x)),
    # where nothing could be rewritten
    "a part used elsewhere": lambda: Calls(shared_gate),
    "an input overwritten": lambda: Calls(overwritten),
    "p * (1 - p), and p": lambda: Calls(lambda x: (lambda p: torch.cat([p, p * (1 - p)], 1)[:, :12])(x.sigmoid())),
    "einsum": lambda: Calls(lambda x: torch.einsum("ij,ij->ij", x, x.sigmoid())),
    "einsum of a square": lambda: Calls(lambda x: (lambda r: torch.einsum("ij,ij->ij", r, r + 1))(F.relu(x))),
    "a product of two views": lambda: Calls(lambda x: (x[None] * x.sigmoid())[0]),
    "a parameter for each channel": lambda: Own(lambda x, w: x * torch.sigmoid(x * w), 12),
    "a buffer for each channel": lambda: Own(lambda x, t: x * torch.sigmoid(x * t), 12, learned=False),
}
# a part of a larger expression is the activation; the rest stays, and what comes out is this
PARTS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Tensor]]] = {
    "residual": (lambda: Calls(lambda x: x + F.relu(x)), lambda x: x + STEP(x)),
    "gain": (lambda: Calls(lambda x: math.sqrt(2) * F.leaky_relu(x, 0.2)), lambda x: math.sqrt(2) * STEP(x)),
    "relu6(x + 3) / 6": (lambda: Calls(lambda x: F.relu6(x + 3) / 6), lambda x: STEP(x + 3) / 6),
    "relu ** 2": (lambda: Calls(lambda x: F.relu(x) ** 2), lambda x: STEP(x) ** 2),
    "sigmoid by tanh": (lambda: Calls(lambda x: 0.5 * (1 + torch.tanh(0.5 * x))), lambda x: (1 + STEP(x / 2)) / 2),
    "softcap": (lambda: Calls(lambda x: 30 * torch.tanh(x / 30)), lambda x: 30 * STEP(x / 30)),
    "chain": (lambda: Calls(lambda x: F.relu(F.relu(x) - 0.3)), lambda x: STEP(STEP(x) - 0.3)),
    "GLU": (lambda: Calls(lambda x: halves(x)[0] * torch.sigmoid(halves(x)[1])), lambda x: x[:, :6] * STEP(x[:, 6:])),
    "SwiGLU": (lambda: Calls(gated(F.silu)), lambda x: STEP(x[:, :6]) * x[:, 6:]),
    "a gate of means": (
        lambda: Calls(lambda x: x * torch.sigmoid(x.mean(1, keepdim=True))),
        lambda x: x * STEP(x.mean(1, keepdim=True)),
    ),
    "a gate of a layer": (
        lambda: Holds(lambda x, layer: x * torch.sigmoid(layer(x)), layer=nn.Softmax(-1)),
        lambda x: x * STEP(x.softmax(-1)),
    ),
    "lerp to a ReLU": (lambda: Calls(lambda x: torch.lerp(x, F.relu(x), 0.5)), lambda x: (x + STEP(x)) / 2),
    "einsum over rows": (
        lambda: Calls(lambda x: torch.einsum("ij,kj->ik", x, F.relu(x))),
        lambda x: x @ STEP(x).T,
    ),
    "a square matmul": (
        lambda: Calls(lambda x: x[:, :4] @ (lambda h: h @ F.relu(h))(x[:, :4].contiguous())),
        lambda x: x[:, :4] @ (x[:, :4] @ STEP(x[:, :4])),
    ),
    "CReLU": (
        lambda: Calls(lambda x: torch.cat([F.relu(x), F.relu(-x)], 1)),
        lambda x: torch.cat([STEP(x), STEP(-x)], 1),
    ),
}
# left as it is, and named in these words
NAMED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "nn.GLU": (nn.GLU, "activations inside a fused layer"),
    "F.glu": (lambda: Calls(F.glu), "activations inside glu"),
    "autograd Function": (lambda: Calls(SwishFunction.apply), "autograd Function SwishFunction, which calls sigmoid"),
    "1 / (1 + exp(-x))": (lambda: Calls(lambda x: 1 / (1 + torch.exp(-x))), "also computes exp"),
    "log(1 + exp(x))": (lambda: Calls(lambda x: torch.log(1 + torch.exp(x))), "also computes exp"),
    "logaddexp": (lambda: Calls(lambda x: torch.logaddexp(x, torch.zeros_like(x))), "also computes logaddexp"),
    "gelu by erf": (lambda: Calls(lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))), "also computes erf"),
    "softsign by abs": (lambda: Calls(lambda x: x / (1 + x.abs())), "also computes abs"),
    **{
        form: (functools.partial(Calls, call), f"an activation written with {form.split()[-1 if 'by' in form else 0]}")
        for form, call in WRITTEN.items()
    },
    "leaky by maximum": (lambda: Calls(lambda x: torch.maximum(x, 0.1 * x)), "also computes maximum"),
    "leaky by a mask": (lambda: Calls(leaky_by_mask), "an activation written with setitem"),
    "sine": (lambda: Calls(torch.sin), "also computes sin"),
    "x * ndtr(x)": (lambda: Calls(lambda x: x * torch.special.ndtr(x)), "also computes erf"),
}


@pytest.mark.parametrize("spelling", WHOLE)
def test_replaced_as_a_whole(spelling: str) -> None:
    model = nn.Sequential(WHOLE[spelling]()).eval()
    new = replace(model, HTAF, example=X.clone())
    account = conversion(new)
    assert str(account).startswith("replaced 1 of 1 activation sites\n")
    assert account.beyond == ()
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    made, expected = new(x), STEP(y)
    assert torch.equal(made, expected)
    made.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert [site.name for site in sites(new, X.clone())] == [account.replaced[0].name]
    assert torch.equal(harden(new)(X.clone()), (X >= 0).float())
    if account.replaced[0].module_type is not None and not list(model[0].children()):  # needs no example
        assert isinstance(replace(model, HTAF).get_submodule("0"), HTAF)
        assert isinstance(replace(model[0], HTAF), HTAF)  # the model may be the site itself


@pytest.mark.parametrize(
    "function",
    [*WRITTEN.values(), SignFunction.apply, lambda x: (x.abs() + x) / 2, lambda x: (x > 0).float()],
)
def test_a_module_without_children_is_a_site(function: Callable[[Tensor], Tensor]) -> None:
    (site,) = sites(Written(function), X.clone())
    assert (site.path, site.kind) == ("", "written")


@pytest.mark.parametrize(
    "guard", [lambda x: x.clamp(-100, 100), lambda x: x.nan_to_num(), lambda x: torch.where(x.isnan(), 0.0, x)]
)
def test_a_guard_is_no_site(guard: Callable[[Tensor], Tensor]) -> None:
    assert sites(Written(guard), X.clone()) == []


@pytest.mark.parametrize("spelling", PARTS)
def test_replaced_inside_a_larger_expression(spelling: str) -> None:
    make, expected = PARTS[spelling]
    new = replace(nn.Sequential(make()), HTAF, example=X.clone())
    account = conversion(new)
    assert (account.left, account.hints, account.beyond) == ((), (), ())
    torch.testing.assert_close(new(X.clone()), expected(X))


@pytest.mark.parametrize("spelling", NAMED)
def test_left_and_named(spelling: str) -> None:
    make, words = NAMED[spelling]
    model = nn.Sequential(make(), nn.ReLU())  # so that there is something to replace
    new = replace(model, HTAF, example=X.clone())
    account = conversion(new)
    assert [site.path for site in account.replaced] == ["1"]
    assert words in "\n".join((*account.hints, *account.beyond))
    assert torch.equal(new.get_submodule("0")(X.clone()), model[0](X.clone()))


@pytest.mark.parametrize("spelling", FORMULAS)
def test_a_formula_stays_and_is_named(spelling: str) -> None:
    model = nn.Sequential(FORMULAS[spelling](), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1)).eval()
    new = convert.replace(model, HTAF, example=X.clone())
    account = conversion(new)
    assert [site.path for site in account.replaced] == ["2"]
    assert {site.stays for site in account.left} == {"formula"}
    assert "stays: a part of a formula that is written out: call it by one function" in str(account)
    assert torch.equal(new.get_submodule("0")(X.clone()), model[0](X.clone()))


def test_what_is_no_formula() -> None:
    """Products of two parts of one tensor, of two layers, and branches that are added."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.a(x))
            h = h + F.relu(h - 0.3)
            one, two = halves(self.a(h))
            return self.a(torch.cat([F.silu(one) * two, F.silu(self.b(h)) * one], 1))

    assert [(site.kind, site.stays) for site in sites(Net(), X)] == [("relu", None)] * 2 + [("silu", None)] * 2
