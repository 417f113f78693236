"""The config without Hydra is the config with it, for every member of every group."""

from pathlib import Path

import pytest

from knockgraph import losses, models, strategies
from knockgraph.errors import ConfigError
from knockgraph.train import config as config_module
from knockgraph.train.config import compose, dump, load
from knockgraph.train.groups import choices
from knockgraph.train.plain_config import compose_plain, load_plain

MEMBERS = [
    f"{group}={member}"
    for group in ("data", "loss", "model", "preset", "strategy", "trainer")
    for member in choices(group)
    if (group, member) not in (("data", "files"), ("data", "interactions"))
]
KNOWN = {"model": models, "strategy": strategies, "loss": losses}


@pytest.mark.parametrize("member", MEMBERS)
def test_every_member_of_every_group(member: str) -> None:
    words = [member, *(["task=classification"] if member == "loss=bce" else [])]
    config = compose(words)
    assert compose_plain(words) == config
    group, _, name = member.partition("=")
    if group in KNOWN:
        chosen = getattr(config, group).name
        assert chosen in KNOWN[group].available()
        assert chosen == name or name in ("hetero-small", "hetero-fast", "hetero-pairs")


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["preset=one-relation", "model=dango", "loader.batch_size=64"],
        ["preset=reference", "data=demo", "optimizer.lr=1e-3"],
        [
            "model.options.channels=8",
            "++model.options.messages.layers=2",
            "loss=composite",
            "loss.options.gather=none",
            "+loss.options.temperature=.5",
        ],
        ["trainer.accumulate={0:2,4:8}", "data.relations=[physical,regulatory]", "trainer.early_stopping=null"],
        ["data=files", "data.cell=my.cellgraph", "data.screen=my.parquet", "data.phenotype=fitness"],
        ["data=interactions", "data.cell=my.cellgraph", "data.screen=my.parquet"],
        ["data=interactions", "data.cell=my.cellgraph", "data.screen=my.parquet", "model=hetero-pairs"],
        ["data=kuzmin2018", "task=regression", "loss=log-cosh"],
        ["preset=edge-masks", "data=demo"],
        ["task=classification", "loss=bce", "data.threshold=-0.08", "run_dir=runs/a", "optimizer.betas=[0.9,0.99]"],
        ["strategy.name=lazy-mask", "model.name=torch.nn:Identity", "loss.name=composite", "preset=reference"],
        ["logging.wandb=off", "trainer.progress_bar=false", "trainer.compile=true", "seed=3"],
    ],
)
def test_overrides(overrides: list[str]) -> None:
    assert compose_plain(overrides) == compose(overrides)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("banana=1", "config key 'banana': there is no such key"),
        ("trainer.banana=1", r"config key 'trainer\.banana': there is no such key"),
        ("trainer.max_epochs=many", r"config key 'trainer\.max_epochs': 'many' is not an integer"),
        ("trainer.max_epochs=2.5", r"config key 'trainer\.max_epochs'"),
        ("trainer.devices=true", r"config key 'trainer\.devices'"),
        ("optimizer.betas=[0.9,high]", r"config key 'optimizer\.betas\[1\]'"),
        ("data.relations=physical", r"config key 'data\.relations'"),
        ("trainer=3", "there is no trainer=3; use one of ddp, default, gpu"),
        ("model=banana", "there is no model=banana; use one of .*dango"),
        ("task=ranking", "config key 'task': 'ranking' is not one of"),
        ("loader.batch_size=0", r"config key 'loader\.batch_size': 0 must be greater than 0"),
        ("data=files", r"config key 'data\.cell': there is no default; give it a value, data\.cell=…"),
        ("seed.x=1", r"'seed\.x' has no keys below 'seed'"),
        ("word", "'word' is not key=value"),
        ("model=" + "x" * 400, "there is no model=xxx"),
        ("seed={", r"'\{' is not a value"),
        ("trainer.profile_window=[[1],1,1]", r"'trainer\.profile_window\[0\]': \[1\] is not an integer"),
    ],
)
def test_refusals(override: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        compose_plain([override])


def test_without_hydra_and_omegaconf(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    expected = compose(["preset=reference"])
    monkeypatch.setattr(config_module, "find_spec", lambda name: None)
    found = compose(["preset=reference"])
    assert found == expected
    assert yaml.safe_load(dump(found))["loader"]["batch_size"] == 28


def test_load_plain(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump(compose_plain(["trainer.max_steps=7", "optimizer.lr=1e-5"])))
    assert load_plain(path) == load(path)
    with pytest.raises(ConfigError, match="a run directory"):
        load_plain(tmp_path / "no" / "config.yaml")
    path.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plain(path)
    path.write_text("")
    with pytest.raises(ConfigError, match="it holds no keys"):
        load_plain(path)
