"""What there is to choose can be found: models, options, completion, and errors that say what to write."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from knockgraph import registry
from knockgraph.errors import KnockgraphError
from knockgraph.options import NO_DEFAULT
from knockgraph.train.config import compose
from knockgraph.train.explained import completions, explained, groups, members
from knockgraph.train.schema import CHOICES, Config, keys

Command = Callable[..., tuple[str, str]]


def test_all_models_have_a_line(command: Command, tmp_path: Path) -> None:
    out, _ = command("models", "--json", tmp_path / "m.json")
    found = json.loads((tmp_path / "m.json").read_text())
    assert set(found["models"]) >= {*registry.available("model"), "hetero-small", "hetero-fast", "hetero-pairs"}
    assert set(found["baselines"]) == set(registry.available("baseline"))
    assert all(found["models"].values())
    assert all(found["baselines"].values())
    for name in found["models"]:
        assert f"model={name} " in out
        compose([f"model={name}"])  # it can be chosen as it is listed


def test_options_of_a_model(command: Command, tmp_path: Path) -> None:
    out, _ = command("options", "model=hetero-fast", "--json", tmp_path / "o.json")
    assert "set one with model.options.NAME=VALUE, e.g. model.options.channels=64" in out
    found = {option["name"]: option for option in json.loads((tmp_path / "o.json").read_text())["options"]}
    assert found["messages.layers"]["default"] == 1  # as the preset has it, 3 in the class
    assert found["messages.aggregation"]["choices"] == ["sum", "mean", "attention", "pairwise"]
    assert found["messages.dropout"]["needed"] == "a number"
    assert found["input.embedding"]["meaning"] == "Whether genes have a learned embedding."
    for kind in ("model", "strategy", "loss", "baseline", "convolution"):
        for name in registry.available(kind):
            undocumented = [o.name for o in explained(f"{kind}={name}").options if not o.meaning]
            assert not undocumented, (kind, name)


def test_every_key_is_explained() -> None:
    shown = {
        f"{group}.{o.name}": o
        for group in groups()
        if group in Config.__annotations__
        for o in explained(group).options
    }
    wanted = {key for key in keys(Config) if "." in key and key.split(".")[0] not in ("model", "strategy", "loss")}
    assert set(shown) == wanted
    assert all(option.meaning for option in shown.values())
    for key, allowed in CHOICES.items():
        assert key == "task" or shown[key].choices == allowed
    assert {o.name: o.default for o in explained("data=files").options}["cell"] == NO_DEFAULT
    assert {o.name: o.default for o in explained("trainer=gpu").options}["precision"] == "bf16-mixed"
    assert {o.name: o.default for o in explained("optimizer").options}["lr"] == compose([]).optimizer.lr
    for group in groups():
        assert all(members(group).values()), group


def test_groups_and_wrong_names(command: Command) -> None:
    out, _ = command("options")
    assert all(group in out for group in groups())
    out, _ = command("options", "strategy")
    assert "strategy=node-mask" in out
    _, err = command("options", "modl", code=1)
    assert "there is no group 'modl' (did you mean 'model'?); use one of model, strategy" in err
    _, err = command("options", "model=heterofast", code=1)
    assert "there is no model=heterofast (did you mean 'hetero-fast'" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "3"], "'--epochs 3' is not key=value; write trainer.max_epochs=3"),
        (["--epochs=3"], "'--epochs=3' is not key=value; write trainer.max_epochs=3"),
        (["model=dango", "--batch-size", "64"], "write loader.batch_size=64"),
        (["--lr", "1e-3"], "write optimizer.lr=1e-3"),
        (["--learning-rate", "1e-3"], "write optimizer.lr=1e-3"),
        (["--seed", "4"], "write seed=4"),
        (["--model", "dango"], "write model=dango"),
        (["--devices", "2"], "write trainer.devices=2"),
        (["--max-epochs", "2"], "write trainer.max_epochs=2"),
        (["--resume", "model=dango"], "'--resume' is not key=value; write resume=…"),
        (["--banana", "2"], "write for instance trainer.max_epochs=3, 'knockgraph options' lists all keys"),
        (
            ["trainer.max_epoch=2"],
            r"Could not override 'trainer.max_epoch' \(did you mean 'trainer.max_epochs'\?\), trainer has",
        ),
        (["optimizer.banana=2"], "optimizer has lr, weight_decay, betas; 'knockgraph options' lists all keys"),
        (["trainer.max_epochs=abc"], "config key 'trainer.max_epochs': 'abc' is not an integer"),
        (["optimizer.betas=3"], "config key 'optimizer.betas': 3 is not a list of numbers"),
        (["trainer.compile=maybe"], "config key 'trainer.compile': 'maybe' is not true or false"),
        (["trainer.precision=bf16"], r"is not one of 32-true, 64-true, bf16-mixed \(did you mean 'bf16-mixed'\?\)"),
        (["data.split.kind=unseen"], r"is not one of random, .*, file \(did you mean 'unseen-genes'\?\)"),
        (["model=hetro"], r"there is no model=hetro \(did you mean 'hetero'.*\), there are additive, "),
        (
            ["model.options.chanels=3"],
            r"the model hetero has no option 'chanels' \(did you mean 'channels'\?\); it has channels",
        ),
        (["model.options.messages.dropout=abc"], "the option messages.dropout is 'abc', but a number is needed"),
        (["model.options.messages.activation=tanh"], "activation.*tanh.*gelu, relu, silu"),
        (["strategy.options.x=1"], "the strategy node-mask has no option 'x'"),
        (["loss.options.x=1"], "the loss mse has no option 'x'"),
    ],
)
def test_errors_say_what_to_write(words: list[str], message: str) -> None:
    with pytest.raises(KnockgraphError, match=message) as caught:
        compose(words)
    assert "\n" not in str(caught.value)


def complete(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    program = "import sys; sys.argv = ['knockgraph']; from knockgraph.cli import main; main()"
    environment = {
        **os.environ,
        "_KNOCKGRAPH_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_in_bash() -> None:
    assert "trainer.max_epochs=null" in complete("knockgraph", "train", "trainer.max")
    assert complete("knockgraph", "train", "model", "=", "hetero-") == ["hetero-fast", "hetero-pairs", "hetero-small"]


def test_completion_of_whole_words() -> None:
    """As zsh and fish hand them over."""
    assert set(completions("model=hetero-")) == {"model=hetero-fast", "model=hetero-pairs", "model=hetero-small"}
    assert list(completions("trainer.prec")) == ["trainer.precision=32-true"]
    assert list(completions("trainer.precision=")) == [
        *("trainer.precision=32-true", "trainer.precision=64-true", "trainer.precision=bf16-mixed")
    ]
    assert "model.options.channels=64" in set(completions("model.options.ch"))
    assert {"model=", "data=", "seed=0"} <= set(completions(""))
    assert list(completions("banana")) == []


def test_what_is_completed_can_be_composed() -> None:
    for prefix in ("trainer.", "loader.", "data.split."):
        words = [word for word in completions(prefix) if "cell" not in word]
        assert words
        assert compose(words) == compose([])
