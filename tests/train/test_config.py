"""The config: everything wrong is refused at the start, with the key's path."""

import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import knockgraph as kg
from knockgraph import losses, models
from knockgraph.errors import ConfigError
from knockgraph.sources import yeast_scale
from knockgraph.train.config import compose, dump, load
from knockgraph.train.plain_config import load_plain
from knockgraph.train.schema import Config
from knockgraph.train.task import Task

CONF = Path(kg.__file__).parent / "conf"
PRESETS = [file.stem for file in sorted((CONF / "preset").glob("*.yaml"))]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        # unknown keys
        ("trainer.max_epoch=3", "max_epoch"),
        ("banana=1", "banana"),
        ("+trainer.banana=1", "config key 'trainer.banana'"),
        ("+data.split.banana=1", "config key 'data.split.banana'"),
        ("+model.banana=1", "config key 'model.banana'"),
        # unknown members of a group
        ("model=banana", "banana"),
        ("strategy=node_mask", "node_mask"),
        ("preset=banana", "banana"),
        (
            "model=hetero-smal",
            "'hetero-small'.*there are additive, boosting, constant, dango, hetero, hetero-fast, ",
        ),
        # wrong types
        ("trainer.max_epochs=many", "config key 'trainer.max_epochs'"),
        ("trainer.max_epochs=2.5", "config key 'trainer.max_epochs'"),
        ("trainer.devices=true", "config key 'trainer.devices'"),
        ("trainer.compile=perhaps", "config key 'trainer.compile'"),
        ("optimizer.lr=fast", "config key 'optimizer.lr'"),
        ("optimizer.betas=[0.9,high]", r"config key 'optimizer.betas\[1\]'"),
        ("data.relations=physical", "config key 'data.relations'"),
        ("data.merge={string: string_*}", "config key 'data.merge.string'"),
        ("data.merge=[string]", "the overrides cannot be applied: .*data.merge"),
        ("data.split.fractions=[a,b,c]", r"config key 'data.split.fractions\[0\]'"),
        ("trainer.accumulate={first:2}", "config key 'trainer.accumulate"),
        ("trainer.max_steps=null", "config key 'trainer.max_steps'"),
        ("seed=[1]", "config key 'seed'"),
        # unknown choices
        ("task=ranking", "config key 'task': 'ranking' is not one of regression, classification"),
        ("data.unknown=ignore", "config key 'data.unknown': 'ignore' is not one of error, drop"),
        ("data.transform=log", "config key 'data.transform'"),
        ("data.split.kind=time", "config key 'data.split.kind'"),
        ("data.split.unseen=two", "config key 'data.split.unseen'"),
        ("scheduler.name=linear", "config key 'scheduler.name'"),
        ("trainer.accelerator=tpu", "config key 'trainer.accelerator'"),
        ("trainer.precision=8-bit", "config key 'trainer.precision'"),
        ("logging.wandb=always", "config key 'logging.wandb'"),
        (
            "trainer.baselines=[mean,oracle]",
            "config key 'trainer.baselines': there is no baseline 'oracle'; use one",
        ),
        ("trainer.baselines=[no.such:Thing]", "config key 'trainer.baselines': .* there is no module 'no'; install"),
        # numbers out of range
        ("loader.batch_size=0", "config key 'loader.batch_size': 0 must be greater than 0"),
        ("loader.num_workers=-1", "config key 'loader.num_workers': -1 must not be negative"),
        ("loader.prefetch_factor=0", "config key 'loader.prefetch_factor'"),
        ("optimizer.lr=0", "config key 'optimizer.lr'"),
        ("optimizer.lr=-1e-3", "config key 'optimizer.lr'"),
        ("optimizer.lr=nan", "config key 'optimizer.lr'"),
        ("optimizer.betas=[0.9]", "config key 'optimizer.betas'"),
        ("optimizer.weight_decay=-1", "config key 'optimizer.weight_decay'"),
        ("scheduler.cycles=0", "config key 'scheduler.cycles'"),
        ("trainer.devices=0", "config key 'trainer.devices'"),
        ("trainer.num_nodes=-1", "config key 'trainer.num_nodes'"),
        ("trainer.log_every_n_steps=0", "config key 'trainer.log_every_n_steps'"),
        ("trainer.checkpoint_every_n_steps=0", "config key 'trainer.checkpoint_every_n_steps'"),
        ("trainer.gradient_clip=-1", "config key 'trainer.gradient_clip'"),
        ("trainer.max_epochs=0", "config key 'trainer.max_epochs': 0 must be 1 or more"),
        ("trainer.max_epochs=-1", "config key 'trainer.max_epochs': the run has no end"),
        ("trainer.max_steps=0", "config key 'trainer.max_steps'"),
        ("trainer.accumulate={2:0}", r"config key 'trainer.accumulate': \{2: 0\}"),
        # what does not go together
        ("task=classification", "config key 'loss': task=classification needs loss=bce"),
        ("loss=bce", "config key 'loss': task=regression needs loss=mse or loss=log-cosh"),
        (
            "loss=os:system",
            "config key 'loss.name': the loss 'os:system' cannot be used: it is not a class that derives",
        ),
        # what is no override
        ("trainer.max_epochs", "the overrides cannot be applied: .*'knockgraph options' lists all keys"),
        ("trainer.max_epochs={", "the overrides cannot be applied"),
        ("=3", "the overrides cannot be applied"),
    ],
)
def test_refused_with_the_path_of_the_key(override: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as refused:
        compose([override])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("word", ["model=dan~go${oc.env:HOME}", "+=dango"])
def test_an_error_of_hydra_without_a_text(word: str) -> None:
    with pytest.raises(ConfigError, match=r"the overrides cannot be applied: .+; ('knockgraph options' lists|put)"):
        compose([word])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--epochs", "3"], r"'--epochs 3' is not key=value; write trainer\.max_epochs=3"),
        (["epochs=3"], r"did you mean trainer\.max_epochs=…"),
        (["trainer.max_epoch=3"], r"did you mean 'trainer\.max_epochs'\?"),
        (["run_dir=a{b"], r"the value of 'run_dir' cannot be read, 'a\{b'; put a string .* in quotes"),
        (["run_dir=a(b"], "the value of 'run_dir' cannot be read"),
        (
            ["model=heteroo"],
            r"there is no model=heteroo \(did you mean 'hetero' or 'hetero-fast' or .*\?\), there are additive,",
        ),
    ],
)
def test_odd_overrides_are_answered_with_what_was_meant(words: list[str], text: str) -> None:
    """``LexerNoViableAltException`` was the answer to ``--epochs 3``."""
    with pytest.raises(ConfigError, match=text):
        compose(words)


def test_files_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"config key 'data\.cell'"):
        compose(["data=files"])
    with pytest.raises(ConfigError, match=r"config key 'data\.screen'"):
        compose(["data=files", "data.cell=my.cellgraph"])
    config = compose(["data=files", "data.cell=my.cellgraph", "data.screen=my.parquet", "data.phenotype=fitness"])
    assert (config.data.cell, config.data.screen, config.data.phenotypes) == ("my.cellgraph", "my.parquet", ["fitness"])


def flat(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    found = {}
    for key, value in tree.items():
        below = f"{path}.{key}" if path else str(key)
        found.update(flat(value, below) if isinstance(value, dict) else {below: value})
    return found


def test_presets() -> None:
    # Those of torchcell have tests of their own.
    presets = {name: compose([f"preset={name}"]) for name in PRESETS if not name.startswith("torchcell")}
    reference = presets["reference"]
    assert (reference.data.cell, reference.loader.batch_size, reference.loss.name) == ("yeast-scale", 28, "composite")
    assert reference.model.options == {**models.PRESETS["hetero"]["reference"], "input": {"norm": False}}
    assert losses.create("composite", **reference.loss.options).gather == "differentiable"
    # Each differs from the reference in what its name says and nowhere else.
    largest = max(yeast_scale.RELATIONS, key=lambda name: yeast_scale.RELATIONS[name].edges)
    changes = {
        "reference": {},
        "one-relation": {"data.relations": [largest]},
        "merged-string": {"data.merge.string": ["string12_0_*"]},
        "merged-typed": {"model.options.messages.merge": "typed"},
        "no-gather": {"loss.options.gather": "none"},
        "edge-masks": {"strategy.name": "lazy-mask", "loader.num_workers": 2, "loader.pin_memory": True},
        "empty": {"task": "empty"},
    }
    assert set(presets) == set(changes)
    known = flat(dataclasses.asdict(reference))
    for name, preset in presets.items():
        values = flat(dataclasses.asdict(preset))
        assert {key: value for key, value in values.items() if known.get(key) != value} == changes[name], name
        assert set(known) <= set(values)
        losses.create(preset.loss.name, **preset.loss.options)
    assert compose(["preset=reference", "loader.batch_size=64"]).loader.batch_size == 64  # the command line wins


def test_the_yaml_files_say_what_the_schema_says() -> None:
    """Two places state the defaults; a reader of either must not be misled."""
    composed, schema = compose(["model=additive"]), Config()  # the hetero models have learning rates of their own
    for name in ("data", "loader", "optimizer", "scheduler", "trainer", "logging"):
        assert getattr(composed, name) == getattr(schema, name), name


def test_options_need_no_plus() -> None:
    config = compose(
        ["model.options.channels=8", "strategy.options.direction=in", "loss=composite", "loss.options.buffer_size=40"]
    )
    assert config.model.options == {**models.PRESETS["hetero"]["small"], "channels": 8, "input": {"norm": True}}
    assert config.strategy.options == {"direction": "in"}
    assert config.loss.options == {"buffer_size": 40}
    merge = {"both": ["physical", "co*"]}
    assert compose(["data.merge={both: [physical, co*]}"]).data.merge == merge
    assert compose(["data.merge.both=[physical,co*]"]).data.merge == merge
    assert compose(["model=pair-gp", "model.options={device: cpu}"]).model.options == {"device": "cpu"}
    assert compose(["trainer.accumulate={0:2,4:8}"]).trainer.accumulate == {0: 2, 4: 8}


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("model.options.banana=1", "model hetero has no option 'banana'"),
        (
            "model.options.messages.layer=1",
            r"no option 'messages.layer' \(did you mean 'layers'\?\); messages has layers",
        ),
        ("model.options.messages=3", "the option messages is 3, but a group of options .* is needed"),
        ("model.options.mlp_layers=2", "the hetero model's option mlp_layers is now messages.mlp_layers: write"),
        ("model.options.metabolism=true", "write model.options.metabolism.enabled=true on the command line"),
        ("strategy.options.banana=1", "strategy node-mask has no option 'banana'"),
        ("loss.options.banana=1", "loss mse has no option 'banana'"),
        ("model.options.preset=banana", "has no preset 'banana'"),
        ("strategy.options.direction=out", "direction='out' is not known"),
        ("strategy.options.direction=5", "the strategy node-mask: the option direction is 5, but one of both, in"),
        ("model.options.chanels=8", r"has no option 'chanels' \(did you mean 'channels'\?\); it has channels, heads,"),
        (
            "model.options.messages.dropout=abc",
            "the model hetero: the option messages.dropout is 'abc', but a number is needed",
        ),
        ("model.options.messages.layers=2.5", "the option messages.layers is 2.5, but an integer is needed"),
        ("model.options.messages.norm=maybe", "the option messages.norm is 'maybe', but true or false is needed"),
        ("model.options.input.features=x", "the option input.features is 'x', but a list of strings is needed"),
        ("model.options.channels=null", "the option channels is None, but an integer is needed"),
    ],
)
def test_unknown_options_are_named(override: str, text: str) -> None:
    kinds = (ConfigError, kg.ModelError, kg.StrategyError, losses.LossError)
    with pytest.raises(kinds, match=text):  # noqa: PT012 - a preset is refused by the first, an option by the second
        config = compose([override])
        Task(config, kg.demo_cell(), kg.LabelTransform.from_state_dict({"kind": "none", "center": [0], "scale": [1]}))


# YAML folds exotic line breaks such as U+0085, which no name of a phenotype or option has.
TEXT = st.text(st.characters(categories=("L", "N", "P", "S", "Zs"), exclude_characters="\u2028\u2029"))


@given(
    epochs=st.integers(1, 10**6),
    lr=st.floats(1e-30, 1e30),
    accumulate=st.dictionaries(st.integers(1, 99), st.integers(1, 99), max_size=3).map(lambda d: {0: 1, **d}),
    options=st.dictionaries(
        st.text("abc_", min_size=1), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
    ),
    phenotype=TEXT.filter(lambda text: "${" not in text and text != "???"),
)
@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_round_trip(tmp_path_factory, epochs, lr, accumulate, options, phenotype) -> None:  # type: ignore[no-untyped-def]
    config = Config()
    config.trainer.max_epochs, config.optimizer.lr, config.trainer.accumulate = epochs, lr, accumulate
    config.model.options, config.data.phenotypes = {"messages": {"residual": True}, **options}, [phenotype]
    if any(isinstance(v, str) and ("${" in v or v == "???") for v in options.values()):
        return
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    assert load(path) == config


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch {canary}']",
        "seed: !!python/object/apply:os.system ['touch {canary}']",
        "model: {{name: !!python/object/new:subprocess.Popen [['touch', '{canary}']]}}",
        "data: {{cell: !!python/name:os.system}}",
        "seed: ${{oc.env:HOME}}",
        "run_dir: ${{oc.env:PATH}}",
        "seed: ${{python_version:}}",
        "model: {{options: {{x: '${{oc.decode:__import__(\"os\")}}'}}}}",
        "",
        "[1, 2]",
        "just a text",
        "seed: {{",
        "trainer: {{max_epochs: x}}",
        "\x00",
    ],
)
def test_a_config_of_a_run_directory_executes_nothing(
    tmp_path: Path, text: str, command: Callable[..., tuple[str, str]]
) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "config.yaml").write_text(text.format(canary=canary))
    with pytest.raises(ConfigError):
        load(tmp_path / "config.yaml")
    for arguments in (["predict", str(tmp_path), "--genes", "WT"], ["train", f"run_dir={tmp_path}", "resume=true"]):
        _, err = command(*arguments, code=1)
        assert err.startswith("error: ")
        assert len(err.strip().splitlines()) == 1
    assert not canary.exists()


def test_the_canary_would_sing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    yaml.unsafe_load(f"!!python/object/apply:os.system ['touch {canary}']")
    assert canary.exists()


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"no config at {tmp_path}/config.yaml; is {tmp_path} a run")):
        load(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "config.yaml")


def test_the_command_shows_the_config(command: Callable[..., tuple[str, str]]) -> None:
    out, _ = command("train", "--cfg", "seed=7", "model=dango")
    shown = yaml.safe_load(out)
    assert (shown["seed"], shown["model"]["name"]) == (7, "dango")
    _, err = command("train", "trainer.max_epochs=many", code=1)
    assert "trainer.max_epochs" in err


@pytest.mark.parametrize(
    ("name", "task", "loss", "phenotype", "split"),
    [
        ("collins2007", "regression", "mse", "gene_interaction", "genotype"),
        ("costanzo2016", "regression", "mse", "gene_interaction", "genotype"),
        ("kuzmin2018", "classification", "bce", "significant", "source"),
        ("kuzmin2018-scores", "regression", "mse", "gene_interaction", "genotype"),
    ],
)
def test_yeast_screens_by_name(name: str, task: str, loss: str, phenotype: str, split: str) -> None:
    config = compose([f"data={name}"])
    assert (config.task, config.loss.name, config.data.phenotypes, config.data.split.kind) == (
        task,
        loss,
        [phenotype],
        split,
    )
    assert (config.data.cell, config.data.screen) == ("data/yeast-clean.cellgraph", f"data/{name}.parquet")
    assert "boosting" in config.trainer.baselines
    changed = compose(
        [f"data={name}", "data.cell=my.cellgraph", "data.split.kind=unseen-genes", "trainer.baselines=[mean]"]
    )
    assert (changed.data.cell, changed.data.split.kind) == ("my.cellgraph", "unseen-genes")
    assert changed.trainer.baselines == ["mean"]


def test_a_missing_file_of_a_yeast_screen_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from knockgraph.train.data import TrainingData

    monkeypatch.chdir(tmp_path)
    text = r"cannot read data/yeast-clean\.cellgraph: .* make it with 'knockgraph graph build --preset yeast-clean"
    with pytest.raises(kg.FileFormatError, match=text):
        TrainingData.from_config(compose(["data=collins2007"]))


def bomb(levels: int) -> str:
    """Nine to the power of ``levels`` values, in a few hundred bytes."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("read", [load, load_plain])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (bomb(10), r"line 2 has the alias \*a0, and a resolved config has none"),
        ("model:\n  options: &x {a: 1}\nloss:\n  options: *x\n", r"line 4 has the alias \*x"),
        ("# " + "x" * 300_000 + "\nseed: 0\n", "it has 300,011 bytes, and a config has a few thousand"),
        ("seed: !!python/object/apply:os.getpid []\n", "cannot be read|is not"),
        ("seed: !mine 3\n", "cannot be read|is not"),
    ],
)
def test_hostile_configs_are_refused_at_once(
    read: Callable[[Path], Config], text: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=why):
        read(tmp_path / "config.yaml")
    assert time.perf_counter() - start < 30  # it took ten minutes


def test_real_screens_have_the_model_that_is_best_on_them() -> None:
    assert compose(["data=collins2007"]).model.name == "profile-propagation"
    assert compose(["data=collins2007", "model=hetero-pairs"]).model.name == "hetero"
    assert compose(["data=collins2007", "model.name=pair-gp"]).model.name == "pair-gp"
    assert compose(["data=collins2007", "preset=one-relation"]).model.name == "hetero"
    named = compose(["data=interactions", "data.cell=my.cellgraph", "data.screen=my.parquet"])
    assert named.model.name == "profile-propagation"
    assert compose([]).model.name == "hetero"
