"""The shortest way: `replace` with an example puts in exact steps that train, as wide as their pre-activations."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed, nn

import htaf
from htaf import StraightThrough, surrogates


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)
    )


def from_file(state: dict[str, Any]) -> dict[str, Any]:
    """A state dict, saved and loaded."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def trained(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Train a network in place; its losses."""
    optimizer, losses = torch.optim.Adam(net.parameters(), 0.02), []
    for step in range(150):
        htaf.sharpen(net, step / 150)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_width_is_the_scale_of_the_pre_activations_and_at_least_1() -> None:
    net, x = plain(), 50 * torch.randn(300, 4)
    state = copy.deepcopy(net.state_dict())
    new = htaf.replace(net, example=x)
    first, second = new[1], new[4]
    assert isinstance(first, StraightThrough)
    assert isinstance(second, StraightThrough)
    assert first.width == pytest.approx(net[0](x).square().mean().sqrt().item(), rel=1e-5)
    assert first.width > 10
    assert second.width == pytest.approx(1, rel=1e-3)  # behind a norm, on the statistics of the batch
    assert all(torch.equal(value, state[name]) for name, value in new.state_dict().items())  # running ones too
    assert [m.training for m in new.modules()] == [True] * len([*new.modules()])
    narrow = htaf.replace(net, example=0.01 * x[:, :4])
    assert isinstance(narrow[1], StraightThrough)
    assert narrow[1].width == 1


def test_a_loop_of_ones_own_trains_it_and_its_state_comes_back() -> None:
    x = 20 * torch.randn(400, 4)
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = htaf.replace(plain(), example=x)
    losses = trained(net, x, y)
    assert losses[-1] < 0.6 * losses[0]
    other = htaf.replace(plain(), example=torch.randn(100, 4))
    other.load_state_dict(from_file(net.state_dict()))
    assert [m.width for m in other.modules() if isinstance(m, StraightThrough)] == [
        m.width for m in net.modules() if isinstance(m, StraightThrough)
    ]
    assert torch.equal(other.eval()(x), net.eval()(x))
    assert torch.equal(htaf.harden(net)(x), net(x))  # the network that was trained is the exact one
    assert torch.equal(copy.deepcopy(net)(x), net(x))


def test_sharpen_narrows_the_gradient_and_changes_nothing_else() -> None:
    x = 9 * torch.randn(64, 4)
    net = htaf.replace(plain()[:3], example=x)
    step = net[1]
    assert isinstance(step, StraightThrough)
    state, outputs, grads = copy.deepcopy(net.state_dict()), net(x), []
    for progress, stretch in [(0.0, 2.0), (0.25, 1.0), (0.49, 0.5), (1.0, 0.5)]:
        assert htaf.sharpen(net, progress) == 1
        z = x.mean(1).clone().requires_grad_(True)
        step(z).sum().backward()
        width = step.width * stretch
        assert torch.allclose(z.grad, surrogates.htaf(z.detach() / width, 0.7, 4.0) / width, rtol=1e-5)  # pyright: ignore[reportArgumentType]
        assert torch.equal(net(x), outputs)
        grads.append(z.grad)
    assert torch.equal(grads[2], grads[3])
    assert state["0.weight"].equal(net.state_dict()["0.weight"])
    assert getattr(net.state_dict(), "_metadata") == getattr(state, "_metadata")  # noqa: B009
    other = htaf.replace(plain()[:3], example=x)
    other.load_state_dict(net.state_dict())
    stretches = [m.stretch for m in other.modules() if isinstance(m, StraightThrough)]
    assert stretches == [1]  # a training that goes on says where it is


def test_sharpen_wants_a_share_and_steps() -> None:
    net = htaf.replace(plain(), example=torch.randn(9, 4))
    for progress in (-0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match=r"share of the training that is done, in \[0, 1\], got"):
            htaf.sharpen(net, progress)
    assert {m.stretch for m in net.modules() if isinstance(m, StraightThrough)} == {1}
    with pytest.raises(ValueError, match=r"with StraightThrough steps, .* got one without; .*set_sharpness"):
        htaf.sharpen(plain(), 0.5)


@pytest.mark.usefixtures("unchecked")
def test_compiled_it_is_compiled_for_five_widths() -> None:
    x = 9 * torch.randn(64, 4)
    net = htaf.replace(plain()[:3], example=x)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(net, backend=backend, fullgraph=True)
    for step in range(20):
        htaf.sharpen(net, step / 20)
        compiled(x).sum().backward()
        with torch.no_grad():
            compiled(x)
    assert len(graphs) == 5 + 1  # and one without gradients


def test_levels_lie_as_far_apart_as_the_example_asks() -> None:
    net, x = plain(), 50 * torch.randn(300, 4)
    new = htaf.replace(net, example=x, levels=2)
    first = new[1]
    assert isinstance(first, StraightThrough)
    assert first.spacing == pytest.approx(1.4 * net[0](x).std().item(), rel=1e-4)
    assert {*first(net[0](x)).flatten().tolist()} == {0, 0.5, 1}
    exact, _ = htaf.finish(new, [x, x], measure=lambda other: 0.0, higher=False)
    assert torch.equal(exact(x), new.eval()(x))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.b(nn.functional.relu(self.a(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.encode(x))


def test_a_method_that_is_called_by_itself_gives_bits_too() -> None:
    x = torch.randn(64, 4)
    net = htaf.replace(Encoder(), example=x)
    for other in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net)), htaf.harden(net)):
        h = other.encode(x)
        assert {*h.flatten().tolist()} == {0.0, 1.0}
        assert torch.equal(other(x), other.c(h))
    assert Encoder().encode(x).unique().numel() > 2  # the class of the given model is as it was


class Shared(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.a, self.b, self.act, self.scale = nn.Linear(4, 16), nn.Linear(16, 2), nn.ReLU(), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.act(self.a(x)) + self.act(self.scale * self.a(x)))


def test_one_step_in_places_of_other_scales_is_told() -> None:
    with pytest.warns(UserWarning, match=r"act: it runs in several places, .* scales from .* give each place"):
        htaf.replace(Shared(20.0), example=3 * torch.randn(64, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        htaf.replace(Shared(1.5), example=3 * torch.randn(64, 4))


def test_bad_input_says_what_to_do() -> None:
    for given in ((), (htaf.HTAF,)):
        with pytest.raises(ValueError, match="expected example=, some hundred rows"):
            htaf.replace(plain(), *given)
    with pytest.raises(ValueError, match="levels=2 to what factory makes"):
        htaf.replace(plain(), htaf.HTAF, levels=2)
    with pytest.raises(ValueError, match="1: expected finite pre-activations of the example, got nan"):
        htaf.replace(plain(), example=torch.full((20, 4), float("nan")))
    with pytest.raises(ValueError, match="width must be > 0"):
        StraightThrough(width=0)
    with pytest.raises(ValueError, match=r"call htaf\.replace first"):
        htaf.harden(plain())


def test_the_example_leaves_no_state() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n = self.n + 1
            return self.net(x)

    assert htaf.replace(Counting(), example=torch.randn(100, 4)).n == 0


def test_tensors_alone_say_that_they_hold_no_spacing() -> None:
    x = torch.randn(100, 4)
    one, other = (htaf.replace(plain(), example=scale * x, levels=2) for scale in (1, 9))
    with pytest.warns(UserWarning, match="no spacing of the step"):
        other.load_state_dict(dict(one.state_dict()))
    with pytest.warns(UserWarning, match="no spacing of the step"):
        htaf.harden(other).load_state_dict(dict(one.state_dict()))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.eval()(x), other.eval()(x))


class Residual(nn.Module):
    """relu(net(x) + x) with a net that ends in ReLU, as a block of a TCN; `shared`: one ReLU for all places."""

    def __init__(self, *, shared: bool = False, blocks: int = 2) -> None:
        super().__init__()
        one = nn.ReLU()
        relu = (lambda: one) if shared else nn.ReLU
        self.first, self.last = nn.Sequential(nn.Linear(4, 16), relu()), nn.Linear(16, 2)
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), relu()) for _ in range(blocks))
        self.acts = nn.ModuleList(relu() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for net, act in zip(self.nets, self.acts, strict=True):
            h = act(net(h) + h)
        return self.last(h)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.relu(self.a(x))
        return self.c(nn.functional.relu(h + nn.functional.relu(self.b(h))))


def chain(*acts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), *acts, nn.Linear(16, 2))


def images(*acts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), *acts, nn.Flatten(), nn.LazyLinear(2))


NEVER_NEGATIVE = {
    "tcn": Residual,
    "shared": lambda: Residual(shared=True),
    "functional": Functional,
    "twice": lambda: chain(nn.ReLU(), nn.ReLU()),
    "pooled": lambda: images(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU()),
    "averaged": lambda: images(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.AvgPool2d(2), nn.ReLU6()),
    "gelu": lambda: chain(nn.GELU(), nn.ReLU()),
    "hardtanh": lambda: chain(nn.Sigmoid(), nn.Hardtanh()),
    "softplus": lambda: chain(nn.ReLU(), nn.Softplus()),
    "negative": lambda: chain(nn.ReLU(), Minus(), nn.Tanh()),
    "input": lambda: nn.Sequential(Absolute(), nn.ReLU(), nn.Linear(4, 2)),
}


class Minus(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x - 1


class Absolute(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square()


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("name", NEVER_NEGATIVE)
def test_a_step_on_values_of_one_sign_has_a_threshold_among_them(name: str, levels: int) -> None:
    torch.manual_seed(0)
    x, net = torch.randn(300, 4), NEVER_NEGATIVE[name]()
    net(x)  # a lazy layer
    new = htaf.replace(net, example=x, levels=levels)
    values: dict[str, set[float]] = {}
    for path, step in new.named_modules():
        if isinstance(step, StraightThrough):
            step.register_forward_hook(lambda _, args, y, path=path: values.setdefault(path, set()).update(y.unique()))
    found = new.eval()(x)
    assert all(len({*map(float, seen)}) > 1 for seen in values.values())
    (told, *_) = htaf.conversion(new).steps
    assert "threshold" in told
    assert told in str(htaf.conversion(new))
    exact = htaf.harden(new)
    assert torch.equal(exact(x), found)
    other = htaf.replace(net, example=9 * x, levels=levels).eval()
    other.load_state_dict(new.state_dict())
    assert torch.equal(other(x), found)


def test_the_gradient_is_centred_at_the_threshold_and_the_step_is_exact_there() -> None:
    slope = partial(surrogates.htaf, alpha0=0.7, alpha1=4.0)
    step = StraightThrough(slope, width=2.0, threshold=1.5)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = torch.tensor([-1.5, 0.0, 1.4921875, 1.5, 3.0], dtype=dtype, requires_grad=True)
        y = step(x)
        assert y.tolist() == [0, 0, 0, 1, 1]
        assert y.dtype == dtype
        y.sum().backward()
        wanted = slope((x.detach().double() - 1.5) / 2) / 2
        assert torch.allclose(x.grad.double(), wanted, rtol=1e-2)  # pyright: ignore[reportOptionalMemberAccess]
    assert "threshold=1.5" in repr(step)
    assert step.hardened().threshold == 1.5
    tiny = htaf.Heaviside(threshold=1e-8)
    assert tiny(torch.tensor([0.0, 1.0], dtype=torch.float16)).tolist() == [0, 1]
    for bad in (float("nan"), "a"):
        with pytest.raises((TypeError, ValueError), match="threshold must be"):
            htaf.Heaviside(threshold=bad)  # pyright: ignore[reportArgumentType]


def test_a_step_that_is_constant_all_the_same_is_told() -> None:
    with pytest.warns(UserWarning, match="2: it gives one value"):
        new = htaf.replace(
            nn.Sequential(nn.Linear(4, 8), Constant(), nn.ReLU(), nn.Linear(8, 2)), example=torch.ones(9, 4)
        )
    assert "2: it gives one value" in str(htaf.conversion(new))


class Constant(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0 * x + 1


X = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))


def test_the_threshold_goes_wherever_the_step_goes() -> None:
    torch.manual_seed(0)
    made = Residual()
    net = htaf.replace(made, example=X).eval()
    assert net.acts[0].threshold > 0  # pyright: ignore[reportOperatorIssue]
    expected = net(X)
    exact = htaf.harden(net).eval()
    assert torch.equal(exact(X), expected)
    assert torch.allclose(htaf.pack(exact, X)(X), expected, atol=1e-5)
    other = htaf.replace(made, example=3 * X.abs()).eval()
    other.load_state_dict(from_file(net.state_dict()))
    assert torch.equal(other(X), expected)
    with pytest.warns(UserWarning, match="no threshold"):
        other.load_state_dict(dict(net.state_dict()))


def test_a_residual_network_learns() -> None:
    """At chance where its last step gave 1 throughout."""
    torch.manual_seed(0)
    y = (X[:, 0] * X[:, 1] > 0).long()
    net = htaf.replace(Residual(), example=X)
    trained(net, X, y)
    assert (net.eval()(X).argmax(1) == y).float().mean() > 0.8


def test_layers_that_wait_for_their_input_get_it_from_the_example() -> None:
    net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=r"0\.weight"):
        htaf.replace(net, htaf.HTAF, where="*")
    new = htaf.replace(net, example=X)
    assert {*new[1](new[0](X)).flatten().tolist()} == {0, 1}
    assert net[0].has_uninitialized_params()  # pyright: ignore[reportCallIssue]


class Branches(nn.Module):
    """Two inputs of their own, each with an activation that no other comes before."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU()) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.a(x), self.b(-x)], 1))


KEEPS = {
    "first": ("first", ["a.1", "b.1"]),
    "path": ("a.3", ["a.3"]),
    "list": (["a.*", nn.Tanh], ["a.1", "a.3", "head.1"]),
    "predicate": (lambda site: site.kind == "gelu", ["a.3", "b.3"]),
}


@pytest.mark.parametrize("name", KEEPS)
def test_what_keep_chooses_stays_and_the_rest_is_as_ever(name: str) -> None:
    keep, wanted = KEEPS[name]
    made = Branches()
    new = htaf.replace(made, example=X, keep=keep).eval()
    account = htaf.conversion(new)
    assert [site.name for site in account.left] == wanted
    assert {site.stays for site in account.left} == {"kept"}
    assert len(account.replaced) == 5 - len(wanted)
    assert all(type(new.get_submodule(path)) is type(made.get_submodule(path)) for path in wanted)
    exact = htaf.harden(new).eval()
    assert torch.allclose(htaf.pack(exact, X)(X), exact(X), atol=1e-5)
    grid = htaf.harden(htaf.on_grid(new, X)).eval()
    assert torch.equal(htaf.pack(grid, X)(X), grid(X))


def test_keep_that_leaves_nothing_or_finds_nothing_says_so() -> None:
    for keep, example, words in (
        ("*", X, r"keep='\*' leaves as it is"),
        ("c.*", X, r"keep='c\.\*' leaves"),
        ("first", None, "which only an example= tells"),
    ):
        with pytest.raises(ValueError, match=words):
            htaf.replace(Branches(), htaf.HTAF, where="*", example=example, keep=keep)


def test_levels_by_path() -> None:
    new = htaf.replace(Branches(), example=X, levels={"a.*": 2, "head.1": 4})
    found = {name: step.levels for name, step in new.named_modules() if isinstance(step, StraightThrough)}
    assert found == {"a.1": 2, "a.3": 2, "b.1": 1, "b.3": 1, "head.1": 4}
    with pytest.raises(ValueError, match=r"levels= by paths of a\.1, .*, got 'c'"):
        htaf.replace(Branches(), example=X, levels={"c": 2})


def test_an_example_may_be_batches_and_is_not_one_row() -> None:
    rows = torch.utils.data.TensorDataset(X, torch.zeros(256))
    for batches in ([(X[:100], None), (X[100:], None)], [X[:100], X[100:]], torch.utils.data.DataLoader(rows, 50)):
        torch.manual_seed(0)
        new = htaf.replace(Residual(), example=batches)
        torch.manual_seed(0)
        wanted = htaf.replace(Residual(), example=X).state_dict()._metadata  # pyright: ignore[reportAttributeAccessIssue]
        assert new.state_dict()._metadata == wanted  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.warns(UserWarning, match="some hundred rows, from which .* got one"):
        htaf.replace(plain(), example=X[:1])


def test_a_process_whose_group_is_not_there_yet_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="one of 2 processes, .* replace after init_process_group"):
        htaf.replace(plain(), example=X)


def test_an_activation_inside_vmap() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vmap(lambda row: self.b(torch.relu(self.a(row))))(x)

    new = htaf.replace(Rows(), where="*", example=X)
    assert {*new(X).shape} == {256, 2}


def test_save_pretrained_does_not_lose_the_steps() -> None:
    class Pretrained(nn.Sequential):
        def save_pretrained(self, folder: str) -> None:
            raise AssertionError

    made = Pretrained(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    new = htaf.replace(made, example=X)
    for net in (new, htaf.harden(new)):
        with pytest.raises(ValueError, match=r"torch\.save"):
            net.save_pretrained("folder")
    with pytest.raises(AssertionError):
        made.save_pretrained("folder")


def test_a_folder_of_transformers_says_that_its_activations_are_others(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    made = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=9, **sizes))
    new = htaf.replace(made, example={"input_ids": torch.randint(0, 9, (20, 5))})
    for net in (new, htaf.harden(new)):
        net.save_pretrained(tmp_path)
        with pytest.raises(KeyError, match="htaf"):
            transformers.BertModel.from_pretrained(tmp_path)
    assert new.config.htaf == {"hidden_act": "gelu"}
    assert made.config.hidden_act == "gelu"


ROWS, CODES = X, (X[:, 0] * X[:, 1] > 0).long()
cross_entropy = nn.functional.cross_entropy


def by_lightning(net: nn.Module, folder: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Mine(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch, batch_idx):
            htaf.sharpen(self, self.global_step / self.trainer.estimated_stepping_batches)
            return cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.02)

    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ROWS, CODES), 64)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning.Trainer(max_epochs=25, accelerator="cpu", default_root_dir=folder, **quiet).fit(Mine(), rows)


class Scored(nn.Module):
    """With a loss of its own, as models of transformers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.net(x)
        return {"loss": cross_entropy(output, labels), "logits": output}


def by_transformers(net: nn.Module, folder: Path) -> None:
    """Stopped half way, and gone on with from its checkpoint."""
    transformers = pytest.importorskip("transformers")

    class Sharpen(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            htaf.sharpen(model, state.global_step / 100)

    rows = [{"x": x, "labels": y} for x, y in zip(ROWS, CODES, strict=True)]
    shared = {"report_to": [], "use_cpu": True, "learning_rate": 0.02, "per_device_train_batch_size": 64}
    for steps in (50, 100):
        options = transformers.TrainingArguments(str(folder), max_steps=steps, save_steps=50, **shared)
        trainer = transformers.Trainer(Scored(net), options, train_dataset=rows, callbacks=[Sharpen()])
        trainer.train(resume_from_checkpoint=steps > 50)


def by_accelerate(net: nn.Module, folder: Path) -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ROWS, CODES), 64)
    prepared, optimizer, rows = accelerator.prepare(net, torch.optim.Adam(net.parameters(), 0.02), rows)
    for epoch in range(25):
        htaf.sharpen(prepared, epoch / 25)
        for x, y in rows:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(prepared(x), y))
            optimizer.step()
    accelerator.save_state(folder / "state")
    accelerator.load_state(folder / "state")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("train", [by_lightning, by_transformers, by_accelerate])
def test_a_whole_training_by_the_tools_of_others(train, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = htaf.replace(plain(), example=[(ROWS, CODES)])
    train(net, tmp_path)
    steps = [m for m in net.modules() if isinstance(m, StraightThrough)]
    assert {step.stretch for step in steps} == {0.5}
    exact, report = htaf.finish(net.cpu(), [(ROWS, CODES)], valid=(ROWS, CODES))
    assert (exact(ROWS).argmax(1) == CODES).float().mean() > 0.85
    assert report.measure < 0.5


def of_one_rank(rank: int, place: str, found: "mp.SimpleQueue[list[float]]") -> None:
    distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = htaf.replace(Residual(), example=(1 + 9 * rank) * X, levels=2)
    steps = [m for m in net.modules() if isinstance(m, StraightThrough)]
    found.put([number for step in steps for number in (step.width, step.spacing, step.threshold)])
    distributed.destroy_process_group()


def test_all_processes_of_a_group_have_the_same_steps(tmp_path: Path) -> None:
    context = mp.get_context("fork")
    found = context.SimpleQueue()
    processes = [context.Process(target=of_one_rank, args=(rank, str(tmp_path / "store"), found)) for rank in (0, 1)]
    for process in processes:
        process.start()
    assert found.get() == found.get()
    for process in processes:
        process.join()
