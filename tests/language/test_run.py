"""The whole way: a model and text in, a folder out that other programs read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from tests.language.models import MORE, QUICK, tiny
from tests.quick import slow_but
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from htaf._files import sealed
from htaf.language import LanguageError, calibrate, files, gates_of
from htaf.language.generating import Clock, pieces, prompt_tokens
from htaf.language.options import Data, Machine, Training
from htaf.language.ranks import Ranks
from htaf.language.run import _read_calibration, _Work, _write_calibration, fit, held_out_blocks, read
from htaf.language.scores import text_scores
from htaf.language.text import by_parts, documents, questions, task_files
from made_language import TEXT


def test_the_record(run):
    out, record = run
    assert record == read(out)
    assert record["before"]["kl"] is None
    assert min(row["kl"] for row in record["validation"]) < record["validation"][0]["kl"]
    assert set(record["documents"]) == {"train", "validation", "test"}
    assert [gate["layer"] for gate in record["gates"]] == [2, 3]
    assert all(0 <= gate["dead"] + gate["always"] <= 1 and 0 < gate["open"] < 1 for gate in record["gates"])
    assert not (out / "work").exists()


@pytest.mark.slow
def test_another_process_reads_the_same_network(run):
    out, _ = run
    code = (
        "import sys, htaf, json, torch\n"
        "from htaf.language import files, gates_of\n"
        f"model, tokenizer = files.load({str(out)!r})\n"
        "x = torch.arange(3, 40)[None]\n"
        "print(json.dumps([sorted(gates_of(model)), model(input_ids=x).logits.double().sum().item()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    layers, total = json.loads(done.stdout)
    mine, _ = files.load(out)
    with torch.no_grad():
        assert mine(input_ids=torch.arange(3, 40)[None]).logits.double().sum().item() == total
    assert layers == [2, 3]


@pytest.mark.parametrize("reader", [AutoConfig, AutoModelForCausalLM, LlamaForCausalLM])
def test_no_other_reader_computes_the_old_activation(run, reader):
    out, _ = run
    with pytest.raises((ValueError, OSError), match=r"htaf.language.load|no file named model.safetensors"):
        reader.from_pretrained(out)
    # what converters look for: llama.cpp reads architectures, vLLM and MLX model_type
    content = json.loads((out / "config.json").read_text())
    assert content["architectures"] == ["HtafGatedForCausalLM"]
    assert "hidden_act" not in content
    ids = AutoTokenizer.from_pretrained(out)("red cats")["input_ids"]  # a tokenizer is the same everywhere
    assert ids == files.load(out)[1]("red cats")["input_ids"]


@pytest.mark.parametrize("kind", slow_but(MORE, "qwen3_5_text"))
def test_every_architecture_is_trained_saved_and_read(kind, model, text, tmp_path):
    tiny(kind, vocab_size=300).save_pretrained(tmp_path / "model")
    files.tokenizer_of(model).save_pretrained(tmp_path / "model")
    data = Data(str(text), length=32, calibration=8, training=16, test=4)
    record = fit(str(tmp_path / "model"), data, replace(QUICK, steps=3), tmp_path / "out", last_k=2)
    network, tokenizer = files.load(tmp_path / "out")
    assert list(gates_of(network)) == [2, 3]
    _, found = text_scores(network, None, held_out_blocks(record, tokenizer, 4))
    assert found.loss == pytest.approx(record["trained"]["loss"], rel=1e-4)
    prompt, clock = prompt_tokens(tokenizer, "red cats"), Clock()
    list(pieces(network, tokenizer, prompt, tokens=4, clock=clock))
    assert clock.written > 0


def test_the_command(model, text, tmp_path, htaf):
    task = tmp_path / "task.jsonl"
    lines = [json.dumps({"context": "red cats see", "choices": ["the sun.", "the xq."], "answer": 0})] * 60
    task.write_text("\n".join([*lines, "{", '{"context": 1}']))
    flags = ["--steps", "3", "--length", "32", "--last-k", "1", "--training-blocks", "20", "--lr", "0.001"]
    made = tmp_path / "made"

    command = ["train", "llm", "--model", str(model), "--text", str(text), "--task", str(task), "--out", str(made)]
    _, said, _ = htaf(*command, *flags, "--task-test", task)
    assert "2 lines left out (line 61" in said
    assert "open gates:" in said
    assert json.loads(htaf("evaluate", made, "--json")[1])["trained"]["task"]["questions"] == 60
    assert htaf("generate", made, "red cats", "--tokens", "5")[1].strip()
    assert "already done" in htaf(*command, *flags, "--task-test", task)[1]
    code, _, told = htaf(
        *(str(made) if word == str(model) else word for word in command[:-1]), tmp_path / "twice", *flags
    )
    assert "has gates already" in told, told
    assert code == 1
    assert not (tmp_path / "twice").exists()


def test_other_text_and_questions_are_scored(model, text, run, tmp_path, htaf):
    out, record = run
    found = json.loads(htaf("evaluate", out, "--data", text, "--json")[1])
    assert found["original"]["perplexity"] == pytest.approx(record["before"]["perplexity"], rel=0.3)
    assert 0 < found["run"]["kl"] < 0.1
    assert 0.5 < found["run"]["agreement"] <= 1
    task = tmp_path / "task.jsonl"
    task.write_text('{"context": "red cats see", "choices": ["the sun.", "the xq."], "answer": 0}\n{')
    code, said, told = htaf("evaluate", out, "--data", task)
    assert (code, "accuracy on 1 questions" in said, "1 line left out (line 2" in told) == (0, True, True)
    away = tmp_path / "away"
    shutil.copytree(out, away)
    (away / "htaf_record.json").write_text(sealed(read(away) | {"model": str(tmp_path / "gone")}))
    found = json.loads(htaf("evaluate", away, "--data", text, "--json")[1])
    assert (found["original"], found["run"]["kl"]) == (None, None)
    assert any("without the original" in note for note in found["notes"])


def test_models_without_a_record(model, text, run, tmp_path, htaf):
    """The original to compare with, and a folder of `files.save`."""
    out, _ = run
    network, tokenizer = files.load(out)
    files.save(network, tokenizer, tmp_path / "own")
    assert json.loads((tmp_path / "own" / "config.json").read_text())["model_type"] == files.KIND
    said = [htaf("generate", folder, "red cats", "--tokens", "5", "--json")[1] for folder in (out, tmp_path / "own")]
    assert json.loads(said[0])["text"] == json.loads(said[1])["text"] != ""
    for number, (folder, layers) in enumerate(((model, 0), (tmp_path / "own", 2))):
        packed = tmp_path / f"packed{number}"
        assert json.loads(htaf("pack", folder, "--out", packed, "--json")[1])["last_k"] == layers
        told = json.loads(htaf("generate", packed, "red cats", "--tokens", "5", "--json")[1])
        assert (told["tokens_written"] <= 5, len(told["open_gates"])) == (True, layers)
    code, _, _ = htaf("concepts", "gates", tmp_path / "own", "--out", tmp_path / "page", "--text", text)
    assert code == 0
    assert "has no htaf_record.json" in htaf("evaluate", tmp_path / "own")[2]


def test_scores_are_those_of_the_definition(model, run):
    from htaf.language.scores import log_likelihoods

    network, tokenizer = files.load(model)
    context, continuation = "red cats see", " the sun."
    ids = tokenizer(context + continuation)["input_ids"]
    known = len(tokenizer(context)["input_ids"])
    with torch.no_grad():
        logs = network(torch.tensor([ids])).logits[0].log_softmax(-1)
    wanted = sum(logs[i - 1, ids[i]].item() for i in range(known, len(ids)))
    pairs = [(context, continuation), ("old dogs hear the red cats see", " the moon."), (context, " a.")]
    found = log_likelihoods(network, tokenizer, pairs)
    assert found[0] == pytest.approx(wanted, abs=1e-4)
    assert found == pytest.approx([log_likelihoods(network, tokenizer, [pair])[0] for pair in pairs], abs=1e-4)


def test_a_tokenizer_that_begins_texts_with_a_token(model):
    from tokenizers.processors import TemplateProcessing

    from htaf.language.scores import log_likelihoods
    from htaf.language.text import Document, blocks

    network, tokenizer = files.load(model)
    documents = [Document("a", TEXT)]
    plain = blocks(documents, tokenizer, 32)
    template = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    tokenizer.backend_tokenizer.post_processor = template
    made = blocks(documents, tokenizer, 33)
    assert (made[:, 0] == 1).all()
    assert torch.equal(made[:, 1:], plain)
    ids = tokenizer("red cats see the sun.")["input_ids"]
    known = len(tokenizer("red cats see")["input_ids"])
    assert ids[0] == 1
    with torch.no_grad():
        logs = network(torch.tensor([ids])).logits[0].log_softmax(-1)
    wanted = sum(logs[i - 1, ids[i]].item() for i in range(known, len(ids)))
    assert log_likelihoods(network, tokenizer, [("red cats see", " the sun.")])[0] == pytest.approx(wanted, abs=1e-4)


def test_weights_and_gates_that_are_missing(model, run, tmp_path):
    lacking, without = tmp_path / "lacking", tmp_path / "without"
    shutil.copytree(model, lacking)
    weights = safetensors.torch.load_file(lacking / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layers.3.mlp" not in name}
    safetensors.torch.save_file(kept, lacking / "model.safetensors", {"format": "pt"})
    with pytest.raises(LanguageError, match=r"expected all weights.*3 are missing: model.layers.3.mlp.down_proj"):
        files.load(lacking)
    shutil.copytree(run[0], without)
    (without / files.GATES).unlink()
    with pytest.raises(LanguageError, match=r"htaf_gates.safetensors is missing: put back a copy"):
        files.load(without)
    shutil.copy(model / "config.json", without)  # as a folder of an earlier version was
    shutil.copy(run[0] / files.GATES, without)
    with pytest.raises(LanguageError, match=r"has gates, and its config.json is none of format 2"):
        files.load(without)


def test_a_tokenizer_of_another_model(model, text, tmp_path):
    shutil.copytree(model, tmp_path / "other")
    tiny("llama").save_pretrained(tmp_path / "other")  # 64 tokens instead of 300
    with pytest.raises(LanguageError, match="expected a tokenizer for the 64 tokens of"):
        fit(str(tmp_path / "other"), Data(str(text), length=32), QUICK, tmp_path / "a", last_k=1)
    assert not (tmp_path / "a").exists()


def test_what_a_run_was_made_of_has_changed(model, text, run, tmp_path, htaf):
    for name in ("run", "model"):
        shutil.copytree(run[0] if name == "run" else model, tmp_path / name)
    (tmp_path / "text.txt").write_text(text.read_text())
    record = read(tmp_path / "run")
    record["data"]["text"], record["model"] = str(tmp_path / "text.txt"), str(tmp_path / "model")
    (tmp_path / "run" / "htaf_record.json").write_text(sealed(record))
    assert json.loads(htaf("evaluate", tmp_path / "run", "--data", text, "--json")[1])["notes"] == []
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    (tmp_path / "model" / "model.safetensors").write_bytes(weights[:-1] + b"x")
    (tmp_path / "text.txt").write_text(text.read_text() + "x")
    notes = json.loads(htaf("evaluate", tmp_path / "run", "--data", text, "--json")[1])["notes"]
    assert "is not there, or not what it was at the training" in notes[0]
    told = htaf("concepts", "gates", tmp_path / "run", "--out", tmp_path / "page")[2]
    assert "the text of this run is not there, or not what it was: give --text" in told


def test_outputs_beside_what_is_read(model, text, tmp_path, htaf):
    shutil.copytree(text.parent, tmp_path / "texts")
    command = ["train", "llm", "--model", model, "--text", tmp_path / "texts", "--out"]
    code, _, told = htaf(*command, tmp_path / "texts" / "out")
    assert (code, "lies in the folder of --text" in told) == (2, True)
    code, _, told = htaf(*command, tmp_path / "out", "--cache", tmp_path / "texts" / "cache")
    assert (code, "--cache" in told, "lies in the folder of --text" in told) == (2, True, True)


def test_bad_input(model, text, run, tmp_path):
    out, _ = run
    data = Data(str(text), length=32)
    for given, said in (
        ("no/such/place/here", "expected a folder of transformers, a .gguf file or a name at the hub"),
        (str(tmp_path), "has no config.json"),
        (str(tmp_path / "x.gguf"), "expected a GGUF file, there is none"),
    ):
        with pytest.raises(LanguageError, match=said):
            files.load(given)
    (tmp_path / "x.gguf").write_bytes(b"GGUFxxxx")
    with pytest.raises(LanguageError, match="cannot be read as a causal language model"):
        files.load(tmp_path / "x.gguf")
    with pytest.raises(LanguageError, match="holds another run"):
        fit(str(model), data, QUICK, out, last_k=1)
    with pytest.raises(LanguageError, match="last_k must be in 1 to 4, the layers of this model, got 9"):
        fit(str(model), data, QUICK, tmp_path / "a", last_k=9)
    with pytest.raises(LanguageError, match="expected text or a task"):
        fit(str(model), Data(), QUICK, tmp_path / "b")
    with pytest.raises(LanguageError, match="there is nothing at"):
        documents(tmp_path / "none")
    (tmp_path / "bad.jsonl").write_text("[]\n{}\n")
    with pytest.raises(LanguageError, match="one JSON object a line, got none; line 1"):
        questions(tmp_path / "bad.jsonl")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in out.iterdir():
        if file.is_file():
            (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / files.GATES).write_bytes(b"x")
    with pytest.raises(LanguageError, match=r"htaf_gates.safetensors is damaged"):
        files.load(damaged)


def test_questions_of_the_known_sets(tmp_path):
    file = tmp_path / "q.jsonl"
    lines = [
        {"id": "1", "question": {"stem": "A", "choices": [{"text": "b", "label": "A"}, {"text": "c", "label": "B"}]},
         "answerKey": "B"},
        {"qID": "2", "sentence": "Ann saw Eve because _ looked.", "option1": "Ann", "option2": "Eve", "answer": "1"},
        {"context": "x", "choices": ["y", "z"], "answer": 1},
    ]  # fmt: skip
    file.write_text("\n".join(json.dumps(line) for line in lines))
    found, bad = questions(file)
    assert bad == []
    assert (found[0].continuations, found[0].answer) == (("b", "c"), 1)
    assert found[1].contexts == ("Ann saw Eve because Ann", "Ann saw Eve because Eve")
    assert (found[1].continuations[0], found[1].answer) == ("looked.", 0)
    assert found[2].answer == 1


def test_more_layers_from_an_earlier_run(model, text, run, tmp_path):
    out, record = run
    data = Data(str(text), length=32, calibration=16, training=40, test=8)
    more = fit(str(model), data, QUICK, tmp_path / "more", last_k=4, start_from=str(out))
    assert [gate["layer"] for gate in more["gates"]] == [0, 1, 2, 3]
    assert [layer["layer"] for layer in more["layers"]] == [0, 1]
    assert more["before"] == record["before"]
    with pytest.raises(LanguageError, match="has gates in its last 2 layers"):
        fit(str(model), data, QUICK, tmp_path / "same", last_k=2, start_from=str(out))


def test_runs_share_hidden_states_and_calibrations(model, text, tmp_path):
    data, said, computed = Data(str(text), length=32, calibration=16, training=40, test=8), [], []
    shared = Machine(cache=tmp_path / "cache")
    made = [
        fit(
            str(model), data, QUICK, tmp_path / name, last_k=1, machine=shared, say=said.append,
            progress=lambda what, done, of: computed.append(what) if done == of else None,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    assert [computed.count(f"scores, {what}") for what in ("original", "calibrated", "trained")] == [1, 1, 2]
    for part in ("before", "calibrated", "trained"):
        assert made[0][part] == made[1][part]
    assert made[0]["layers"] == made[1]["layers"]
    assert sum(line.startswith("layer 3:") for line in said) == 1
    alone = fit(str(model), data, QUICK, tmp_path / "c", last_k=1)
    for part in ("before", "calibrated", "trained"):
        assert alone[part] == made[0][part]
    more = fit(str(model), data, QUICK, tmp_path / "d", last_k=2, machine=shared)
    assert more["before"] == alone["before"]
    assert more["calibrated"] != alone["calibrated"]


def test_what_was_kept_and_has_changed_is_computed_again(tmp_path):
    def flip(file):
        data = file.read_bytes()
        file.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])

    network, kept = tiny("llama"), tmp_path / "kept.safetensors"
    report = calibrate(network, torch.randint(3, 64, (2, 16)), 1)
    _write_calibration(network, report, kept)
    assert _read_calibration(tiny("llama"), 1, kept) == report
    flip(kept)
    assert _read_calibration(tiny("llama"), 1, kept) is None
    work = _Work("x", Data("y"), QUICK, tmp_path, 1, None, torch.float32, False, "down", tmp_path, print, None)
    asked = [work._known("key", lambda: {"loss": 1.25})]
    asked.append(work._known("key", lambda: {"loss": 9.0}))
    flip(tmp_path / "key.scores.json")
    asked.append(work._known("key", lambda: {"loss": 2.5}))
    assert [found["loss"] for found in asked] == [1.25, 1.25, 2.5]


def test_rounded_weights_and_rounded_products_share_no_hidden_states(model, text, tmp_path):
    data, training = Data(str(text), length=32, calibration=4, training=4, test=2), replace(QUICK, steps=1)
    for dtype, precision in (("bfloat16", "float32"), ("float32", "bfloat16")):
        fit(
            str(model), data, replace(training, precision=precision), tmp_path / dtype, last_k=1,
            machine=Machine(dtype=dtype, cache=tmp_path / "cache"), save=False,
        )  # fmt: skip
    assert len(list((tmp_path / "cache").glob("*/hidden.json"))) == 6  # three parts each


def test_calibrated_only(model, text, tmp_path):
    data = Data(str(text), length=32, calibration=16, training=40, test=8)
    record = fit(str(model), data, Training(steps=0), tmp_path / "a", last_k=1)
    assert record["trained"] == record["calibrated"]
    assert record["validation"] == []


@pytest.mark.parametrize(
    "changed",
    [
        {"hidden_weight": 1.0},
        {"checkpointing": True},
        {"precision": "bfloat16"},
        {"distil": 0.5, "method": "ste"},
    ],
)
def test_ways_to_train(model, text, changed, tmp_path):
    data = Data(str(text), length=32, calibration=16, training=40, test=8)
    record = fit(str(model), data, replace(QUICK, **changed), tmp_path / "a", last_k=2)
    assert record["trained"]["kl"] < 2 * record["calibrated"]["kl"]
    plain = fit(str(model), data, QUICK, tmp_path / "b", last_k=2)
    losses = [[row["train"] for row in made["validation"][1:]] for made in (record, plain)]
    if "checkpointing" in changed:
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    else:
        assert losses[0] != pytest.approx(losses[1], rel=1e-6)


def test_frozen_weights_in_4_bits(model, text, tmp_path):
    pytest.importorskip("bitsandbytes")
    data = Data(str(text), length=32, calibration=16, training=40, test=8)
    tiny("llama", vocab_size=300, hidden_size=64, intermediate_size=128, head_dim=16).save_pretrained(
        tmp_path / "large"
    )
    files.tokenizer_of(model).save_pretrained(tmp_path / "large")
    model = tmp_path / "large"  # 4 bits go by 64 values
    training = replace(QUICK, steps=6, lr=0.01, distil=0.0)
    record = fit(str(model), data, training, tmp_path / "a", last_k=2, machine=Machine(quantize=True))
    assert record["layers"][0]["after"] is None  # weights in 4 bits cannot be refitted
    saved, _ = files.load(tmp_path / "a")
    whole, _ = files.load(model)
    now, before = (m.model.layers[3].mlp.up_proj.weight for m in (saved, whole))
    assert now.dtype == torch.float32
    assert 0 < (now - before).norm() < 0.5 * before.norm()
    assert torch.equal(saved.model.layers[1].mlp.up_proj.weight, whole.model.layers[1].mlp.up_proj.weight)
    assert "quantization_config" not in json.loads((tmp_path / "a" / "config.json").read_text())
    alone = replace(QUICK, steps=0)
    calibrated = fit(str(model), data, alone, tmp_path / "b", last_k=2, machine=Machine(quantize=True))
    assert calibrated["before"] == record["before"]  # of the whole weights, as what is saved
    assert files.load(tmp_path / "b")[0].model.layers[3].mlp.up_proj.weight.dtype == torch.float32


def test_packed_by_the_command(run, tmp_path, htaf):
    out, _ = run
    said = htaf("pack", out, "--out", tmp_path / "packed", "--weights", "float32")[1]
    assert "same token 100.0%" in said
    words = [htaf("generate", folder, "red cats", "--tokens", "8")[1] for folder in (out, tmp_path / "packed")]
    assert words[0].strip().startswith(words[1].strip())  # less the bytes of a character that is not whole
    told = htaf("generate", tmp_path / "packed", "red cats", "--tokens", "8", "--stats")[2]
    assert "open gates: " in told
    code, _, told = htaf("pack", out, "--out", tmp_path / "packed")
    assert code == 1
    assert "new or empty folder" in told


def test_tasks_by_name(tmp_path, monkeypatch):
    monkeypatch.delenv("HTAF_DATA", raising=False)
    with pytest.raises(LanguageError, match=r"winogrande/train_s.jsonl and winogrande/dev.jsonl in the folder"):
        task_files("winogrande-s", tmp_path)
    for name in ("train_s", "dev"):
        (tmp_path / "text" / "winogrande").mkdir(parents=True, exist_ok=True)
        (tmp_path / "text" / "winogrande" / f"{name}.jsonl").write_text("{}")
    assert task_files("winogrande-s", tmp_path)[1] == tmp_path / "text" / "winogrande" / "dev.jsonl"
    (tmp_path / "own.jsonl").write_text("{}")
    assert task_files(str(tmp_path / "own.jsonl")) == (tmp_path / "own.jsonl", None)
    with pytest.raises(LanguageError, match=r"got opnbookqa \(did you mean 'openbookqa'"):
        task_files("opnbookqa")


@pytest.mark.data
@pytest.mark.parametrize(("task", "learn", "score"), [("openbookqa", 4957, 500), ("winogrande-m", 2558, 1267)])
def test_the_known_tasks(task, learn, score, data_dir):
    files = task_files(task, data_dir)
    assert [len(questions(file)[0]) for file in files] == [learn, score]


@pytest.mark.slow
def test_two_processes_train_as_one(model, text, tmp_path):
    code = (
        "import sys, htaf\n"
        "from htaf.language import Data, Training, fit\n"
        f"data = Data({str(text)!r}, length=32, calibration=16, training=40, test=8)\n"
        "training = Training(steps=6, batch_size=2, lr=0.003, validate=3)\n"
        f"fit({str(model)!r}, data, training, {str(tmp_path / 'two')!r}, last_k=2)\n"
    )
    (tmp_path / "run.py").write_text(code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run([*torchrun, str(tmp_path / "run.py")], check=True, timeout=300)
    two = read(tmp_path / "two")
    data = Data(str(text), length=32, calibration=16, training=40, test=8)
    one = fit(str(model), data, QUICK, tmp_path / "one", last_k=2)
    assert two["processes"] == 2
    assert two["calibrated"] == pytest.approx(one["calibrated"])
    for mine, other in zip(two["validation"], one["validation"], strict=True):
        assert [v or 0 for v in mine.values()] == pytest.approx([v or 0 for v in other.values()], rel=1e-3)
    with pytest.raises(LanguageError, match="for 3 processes alike, got 4"):
        Ranks(0, 3).share(torch.arange(4))


def test_the_same_run_is_known_by_its_content(model, text, run, tmp_path):
    out, record = run
    moved = tmp_path / "elsewhere.txt"
    moved.write_text(text.read_text())
    data = Data(str(moved), length=32, calibration=16, training=40, test=8)
    assert fit(str(model), data, QUICK, out, last_k=2) == record
    moved.write_text(text.read_text() + "x")
    with pytest.raises(LanguageError, match="another run, or its inputs have changed"):
        fit(str(model), data, QUICK, out, last_k=2)


def test_a_stopped_run_goes_on_to_the_same_bits(model, text, run, tmp_path):
    out, record = run
    data, said = Data(str(text), length=32, calibration=16, training=40, test=8), []

    def stop(what, done, of):
        if (what, done) == ("training", 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(str(model), data, QUICK, tmp_path / "a", last_k=2, progress=stop)
    again = fit(str(model), data, QUICK, tmp_path / "a", last_k=2, say=said.append)
    assert not any(line.startswith(("layer", "step 0")) for line in said)  # calibration and first steps were kept
    assert again["trained"] == record["trained"]
    for name in ("model.htaf.safetensors", files.GATES):
        assert (tmp_path / "a" / name).read_bytes() == (out / name).read_bytes()


def test_a_wrong_first_call_leaves_the_folder_free(model, text, tmp_path):
    data = Data(str(text), length=32, calibration=16, training=40, test=8)
    with pytest.raises(LanguageError, match="last_k must be in 1 to 4"):
        fit(str(model), data, QUICK, tmp_path / "a", last_k=9)
    fit(str(model), data, Training(steps=0), tmp_path / "a", last_k=1)


def test_weights_that_were_not_kept_are_made_when_asked_for(model, text, tmp_path):
    data, way = Data(str(text), length=32, calibration=16, training=40, test=8), Training(steps=0)
    first = fit(str(model), data, way, tmp_path / "a", last_k=1, save=False)
    assert not (tmp_path / "a" / "model.htaf.safetensors").exists()
    again = fit(str(model), data, way, tmp_path / "a", last_k=1)
    assert again["trained"] == first["trained"]
    whole = (tmp_path / "a" / "model.htaf.safetensors").read_bytes()
    (tmp_path / "a" / "model.htaf.safetensors").write_bytes(whole[:-1] + b"x")  # damaged
    fit(str(model), data, way, tmp_path / "a", last_k=1)
    assert (tmp_path / "a" / "model.htaf.safetensors").read_bytes() == whole


def test_a_run_on_another_model_cannot_be_begun_with(model, text, run, tmp_path):
    out, _ = run
    tiny("llama", vocab_size=300, num_hidden_layers=3).save_pretrained(tmp_path / "other")
    files.tokenizer_of(model).save_pretrained(tmp_path / "other")
    with pytest.raises(LanguageError, match="is one on another model"):
        fit(str(tmp_path / "other"), Data(str(text), length=32), QUICK, tmp_path / "a", last_k=3, start_from=str(out))


@pytest.mark.parametrize("mark", ["\n\n", "\n", "\r\n\r\n", " "])
def test_one_text_or_two_are_cut_into_documents(mark, tmp_path):
    words = [f"word {i} and more of it." for i in range(3000)]
    (tmp_path / "a.txt").write_bytes(mark.join(words).encode())
    found, notes = documents(tmp_path / "a.txt")
    assert notes == []
    assert 200 <= len(found) <= 400
    assert all(document.text.strip() for document in found)
    assert "".join(document.text for document in found) == mark.replace("\r", "").join(words)
    (tmp_path / "b.txt").write_text("short")
    assert len(documents(tmp_path)[0]) > 200


def test_parts_have_text_and_no_part_is_one_document(tmp_path):
    for number in range(30):
        (tmp_path / f"note{number}.txt").write_text(f"note {number}")
    (tmp_path / "book.txt").write_text(" ".join(f"word{i}" for i in range(30_000)))
    parts = by_parts(documents(tmp_path)[0])
    sizes = {part: sum(len(document.text) for document in found) for part, found in parts.items()}
    assert min(len(found) for found in parts.values()) >= 10
    whole = sum(sizes.values())
    assert 0.05 <= sizes["validation"] / whole <= 0.06
    assert 0.05 <= sizes["test"] / whole <= 0.06


def test_files_that_are_left_out_are_told(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("some text " * 50)
        (tmp_path / f"old{number}.txt").write_bytes("später".encode("latin-1"))
    (tmp_path / "x.png").write_bytes(b"\x89")
    found, notes = documents(tmp_path)
    assert all(document.name.startswith(("0", "1", "2")) for document in found)
    assert "1 file left out (read are .txt" in notes[0]
    assert "3 of 6 files left out, not UTF-8 (old0.txt, old1.txt, old2.txt)" in notes[1]
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "a.txt").write_bytes(b"\xff")
    with pytest.raises(LanguageError, match="not UTF-8"):
        documents(bad)


def test_choices_that_are_no_list_are_left_out(tmp_path):
    file = tmp_path / "q.jsonl"
    asked = {"text": ["a", "b"], "label": ["A", "B"]}
    listed = [{"text": text, "label": label} for text, label in zip("ab", "AB", strict=True)]
    lines = [
        {"context": "x", "choices": "yes", "answer": 0},
        {"question": "x", "choices": asked, "answerKey": "A"},
        {"question": "x", "choices": listed, "answerKey": "C"},
        {"question": "x", "choices": listed, "answerKey": "B"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    found, bad = questions(file)
    assert [question.answer for question in found] == [1]
    assert bad == [
        "line 1: expected choices as a list, got str",
        "line 2: expected choices as a list, got dict",
        "line 3: expected an answerKey of A, B, got 'C'",
    ]


def test_wrong_answers_are_left_out(tmp_path):
    file = tmp_path / "q.jsonl"
    line = {"sentence": "Ann saw Eve because _ looked.", "option1": "Ann", "option2": "Eve"}
    lines = [line | {"answer": answer} for answer in ("0", "1", "3")]
    lines += [
        {"context": "a", "choices": ["", "b"], "answer": 0},
        {"context": "a", "choices": ["\ud800", "b"], "answer": 0},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    found, bad = questions(file)
    assert [question.answer for question in found] == [0]
    assert [note[:7] for note in bad] == ["line 1:", "line 3:", "line 4:", "line 5:"]


def test_numbers_out_of_range():
    for change, said in (
        ({"length": 1}, "length must be >= 2, got 1"),
        ({"training": 1}, "training must be >= 2, got 1"),
    ):
        with pytest.raises(LanguageError, match=said):
            Data("x", **change)
